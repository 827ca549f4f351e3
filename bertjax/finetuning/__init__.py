"""Tasks: labelled data, features, objective, batches and metrics."""
