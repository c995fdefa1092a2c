"""The results of searches: uncertainty, run folders, reports, exports and comparisons."""
