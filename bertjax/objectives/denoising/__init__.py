"""Objectives that corrupt a text and rebuild it."""
