"""What a run looks like: figures of traces and of schemes."""
