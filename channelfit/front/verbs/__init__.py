"""The command line's verbs, a file each: options and help. What a verb does is in `commands`."""
