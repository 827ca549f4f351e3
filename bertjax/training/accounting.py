"""What a model costs: parameters, FLOPs, and the share of the chip's peak that a run reaches."""

from __future__ import annotations

import math
from typing import Any

import jax

from bertjax.models.config import EncoderConfig
from bertjax.training.sharding import state_shardings

# Dense bfloat16 peaks in FLOP/s by a part of jax's `device_kind`, the most specific first (vendors' data sheets).
PEAK_FLOPS = (
    ("H200", 989e12),
    ("H100", 989e12),
    ("A100", 312e12),
    ("V100", 125e12),
    ("TPU v6", 918e12),
    ("TPU v5p", 459e12),
    ("TPU v5 lite", 197e12),
    ("TPU v5e", 197e12),
    ("TPU v5", 459e12),
    ("TPU v4", 275e12),
    ("TPU v3", 140e12),
)


def peak_flops(device_kind: str) -> float | None:
    """The chip's peak, or None where it is not known (a CPU)."""
    return next((peak for name, peak in PEAK_FLOPS if name in device_kind), None)


def flops_per_token(config: EncoderConfig, predicted_share: float, keys_per_token: float) -> float:
    """Model FLOPs of one real token, forward and backward, nothing recomputed.

    6 [L (4 D^2 + 2 D F) + r (D^2 + D V)] + 12 L D s: r the share of predicted tokens, s the mean number of keys that a
    token attends to, V the padded vocabulary. Embedding look-ups, norms, softmax and the optimizer count as nothing.
    """
    d, f, layers = config.hidden_size, config.intermediate_size, config.num_layers
    body = layers * (4 * d * d + 2 * d * f)
    head = predicted_share * (d * d + d * config.table_size)
    return 6.0 * (body + head) + 12.0 * layers * d * keys_per_token


def bytes_per_device(state: Any, mesh: jax.sharding.Mesh) -> int:
    """Bytes of a (possibly abstract) train state that one device of the mesh holds."""

    def of_leaf(leaf: Any, sharding: jax.sharding.NamedSharding) -> int:
        return math.prod(sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize

    return sum(jax.tree.leaves(jax.tree.map(of_leaf, state, state_shardings(state, mesh))))
