"""The training step and loop, optimizers, schedules, sharding, metrics."""
