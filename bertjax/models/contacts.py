"""Contacts of a protein's residues, read from the attention of all layers (doi:10.1101/2020.12.15.422761)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from bertjax.models.linear import Linear


def contact_features(
    probabilities: Float[Array, "B L N S S"], residues: Bool[Array, "B S"]
) -> Float[Array, "B R R L*N"]:
    """Returns what the contact head reads of every pair of the R = S - 2 tokens between the first and the last.

    Every attention map is made symmetric, and what its rows and columns alone explain is subtracted, the average
    product correction (facebookresearch/esm:esm/modules.py).

    Args:
        probabilities: attention of every layer and head, queries first.
        residues: False at padding and at the end token, which count nowhere.
    """
    pairs = residues[:, :, None] & residues[:, None, :]
    maps = jnp.where(pairs[:, None, None], probabilities, 0.0)[..., 1:-1, 1:-1]
    maps = maps.reshape(len(maps), -1, *maps.shape[-2:])
    maps = maps + jnp.swapaxes(maps, -1, -2)
    rows, columns = maps.sum(axis=-1, keepdims=True), maps.sum(axis=-2, keepdims=True)
    total = maps.sum(axis=(-1, -2), keepdims=True)
    expected = rows * columns / jnp.where(total == 0.0, 1.0, total)
    return jnp.moveaxis(maps - expected, 1, -1)


def contact_probabilities(head: Linear, features: Float[Array, "B R R F"]) -> Float[Array, "B R R"]:
    """Returns how likely every pair is in contact, by the logistic regression that the head is."""
    return jax.nn.sigmoid(head(features)[..., 0].astype(jnp.float32))
