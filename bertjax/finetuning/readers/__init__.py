"""Readers of labelled data: every format becomes the examples of a task."""
