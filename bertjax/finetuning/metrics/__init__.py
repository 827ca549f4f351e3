"""How good predictions are, in the figures of the field: numbers in, numbers out, no jax."""
