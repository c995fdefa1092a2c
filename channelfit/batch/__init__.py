"""Many recordings, one model: every well of a plate fitted on its own, all of them together."""
