"""What a model costs: parameters, FLOPs, and the share of the chip's peak that a run reaches."""

from __future__ import annotations

import math
from typing import Any

import jax

from bertjax.config.model import EncoderConfig
from bertjax.objectives.base import Objective
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


FLOPS_FORMULA = "6 [W + r (D E + E V)] + 12 N H (sum over layers of s), forward and backward, of real tokens alone"
"""`flops_per_token` says what the letters are."""


def peak_flops(device_kind: str) -> float | None:
    """The chip's peak, or None where it is not known (a CPU)."""
    return next((peak for name, peak in PEAK_FLOPS if name in device_kind), None)


def training_flops(objective: Objective, keys_per_token: float) -> float:
    """FLOPs of one real token of a batch: every network that it goes through; a third where nothing is trained."""
    return sum(
        each.passes
        * (1.0 if each.trained else 1.0 / 3.0)
        * flops_per_token(each.config, each.predictions / each.passes, keys_per_token)
        for each in objective.flops_terms
    )


def flops_per_token(config: EncoderConfig, predicted_share: float, keys_per_token: float) -> float:
    """Model FLOPs of one real token, forward and backward, nothing recomputed.

    6 [W + r (D E + E V)] + 12 N H (sum over layers of s): W the weights of the matrices that a token meets (attention,
    feed-forward, projection of the embeddings), r the share of predicted tokens, E the width of the word table, V the
    padded vocabulary, s the mean number of keys that a token attends to (a local layer's window at most). Every
    relative term of the scores counts as one more product over s. Embedding look-ups, norms, softmax and the optimizer
    count as nothing.
    """
    width, inner = config.hidden_size, config.num_heads * config.head_dim
    matrices = 4 * width * inner + (3 if config.feed_forward == "glu" else 2) * width * config.intermediate_size
    weights = config.num_layers * config.inner_layers * matrices
    weights += 0 if config.embedding_size is None else width * config.embedding_size
    head = config.embedding_dim * config.table_size
    head += width * config.embedding_dim if config.mlm_head == "transform" else 0
    local = sum(config.is_local(layer) for layer in range(config.num_layers))
    keys = (config.num_layers - local) * keys_per_token + local * min(keys_per_token, config.local_attention + 1)
    products = {"disentangled": 2 + len(config.pos_att_type), "relative": 3}.get(config.attention_position, 2)
    attention = 6.0 * products * config.inner_layers * inner * keys
    return 6.0 * (weights + predicted_share * head) + attention


def bytes_per_device(state: Any, mesh: jax.sharding.Mesh) -> int:
    """Bytes of a (possibly abstract) train state that one device of the mesh holds."""

    def of_leaf(leaf: Any, sharding: jax.sharding.NamedSharding) -> int:
        return math.prod(sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize

    return sum(jax.tree.leaves(jax.tree.map(of_leaf, state, state_shardings(state, mesh))))
