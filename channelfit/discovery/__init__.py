"""All schemes of a size, fitted to the same data, ranked, and those that agree named."""
