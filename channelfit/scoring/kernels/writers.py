"""Lines of generated text: Python for kernels of the CPU, CUDA C++ for those of a GPU."""

from __future__ import annotations


class Writer:
    """Lines of Python with indentation."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.depth = 0
        self.begun: list[int] = []

    def __call__(self, *lines: str) -> None:
        """Add lines at the present depth."""
        self.lines += ["    " * self.depth + line if line else "" for line in lines]

    def block(self, head: str) -> Writer:
        """Add a line that opens a block, to be used in a `with` statement."""
        self(head)
        return self

    def __enter__(self) -> None:
        self.depth += 1
        self.begun.append(len(self.lines))

    def __exit__(self, *_: object) -> None:
        if len(self.lines) == self.begun.pop():
            self("pass")  # a chain of one state has nothing to do in many places
        self.depth -= 1

    @property
    def text(self) -> str:
        return "\n".join(self.lines) + "\n"


class CudaWriter(Writer):
    """Lines of CUDA C++ with braces that close themselves."""

    def block(self, head: str) -> CudaWriter:
        """Add a line that opens a block, to be used in a `with` statement."""
        self(f"{head} {{".lstrip())
        return self

    def device(self, head: str, doc: str, inlined: bool = True, template: str = "") -> CudaWriter:
        """Open a device function.

        Arguments:
            head: result, name and parameters.
            doc: the comment above it.
            inlined: whether the compiler writes it out wherever it is called.
            template: its parameters as a template, such as ``class Number``.
        """
        self("", f"// {doc}", *([f"template <{template}>"] if template else []))
        return self.block(f"__device__ {'__forceinline__' if inlined else '__noinline__'} {head}")

    def template(self, head: str, doc: str, inlined: bool = True) -> CudaWriter:
        """Open a device function that is a template over a number type, Number."""
        return self.device(head, doc, inlined, "class Number")

    def __exit__(self, *_: object) -> None:
        self.begun.pop()
        self.depth -= 1
        self("}")
