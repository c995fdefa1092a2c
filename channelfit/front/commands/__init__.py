"""The verbs of the command line, a file each: parse, call the public function, print."""
