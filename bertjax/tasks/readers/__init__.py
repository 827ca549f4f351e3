"""Readers of labeled data: every format becomes the examples of a task."""
