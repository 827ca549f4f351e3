"""Checkpoints: saving, verification by digests, retention, and surgery on parameter trees."""
