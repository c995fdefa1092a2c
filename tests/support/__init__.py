"""Helpers of several tests: truths, files, commands, and machines that are played."""
