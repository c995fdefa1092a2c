"""What several tests use: truths, files, commands, and machines that are played."""
