"""The verbs of the command line, a file each: options and help. Their work is in `commands`."""
