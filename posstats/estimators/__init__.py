"""What a notebook calls: validate a dataset, estimate, test, and return a result."""
