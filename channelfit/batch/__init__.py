"""Many recordings of one protocol, each fitted on its own with the same model, all together."""
