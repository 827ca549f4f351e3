"""Ahead-of-time compilation of a training step for devices that are not attached: memory, collectives, estimates."""
