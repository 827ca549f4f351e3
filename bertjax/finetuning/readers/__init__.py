"""Labelled data of every format, as the examples of a task."""
