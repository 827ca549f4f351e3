"""Tasks: labeled data, features, objective, batches and metrics."""
