"""What a search found: how sure it is, the run folder, reports and comparisons."""
