"""Every setting: its definition, defaults, overrides, phases, and checked dataclasses. Imports neither jax nor flax."""
