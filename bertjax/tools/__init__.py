"""Measurements: the speed of a training step, a plan for a text and a time, and steps compiled for absent devices."""
