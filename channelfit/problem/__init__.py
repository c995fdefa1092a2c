"""What is fitted: protocols, recordings, and the experiments they make, laid out for scoring."""
