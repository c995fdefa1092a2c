"""Work in independent pieces: done here or by others, each result kept as soon as it is there."""
