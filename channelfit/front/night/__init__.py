"""A night: many jobs with their dependencies, each a process of its own (`channelfit run`)."""
