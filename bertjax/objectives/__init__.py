"""Pretraining objectives: networks, masking and losses."""
