"""Independent tasks: computed by this process or by a cluster, each result stored at once."""
