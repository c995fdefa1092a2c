"""From the text of a kernel to code that runs: lowering, LLVM, NVRTC, and the cache of both."""
