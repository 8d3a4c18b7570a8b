"""`transom bench serve`, and the tables, files and charts that all benchmarks share."""
