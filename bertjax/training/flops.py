"""Model FLOPs, the peak FLOP/s of accelerators, and the memory of a train state."""

from __future__ import annotations

import math
from typing import Any

import jax

from bertjax.config.model import EncoderConfig
from bertjax.models.layer import attention_class
from bertjax.objectives.base import Objective
from bertjax.training.sharding import state_shardings

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
"""Dense bfloat16 peaks in FLOP/s by a part of jax's `device_kind`, the most specific first (vendors' data sheets)."""

FLOPS_FORMULA = "6 [W + r (D E + E V)] + 12 N H (sum over layers of s), forward and backward, of real tokens alone"
"""The letters are those of `flops_per_token`."""


def peak_flops(device_kind: str) -> float | None:
    """Returns the peak of a chip, or None where it is not known (a CPU)."""
    return next((peak for name, peak in PEAK_FLOPS if name in device_kind), None)


def training_flops(objective: Objective, keys_per_token: float) -> float:
    """Returns the FLOPs per real token over all networks of an objective; a third for networks that are not trained."""
    return sum(
        each.passes
        * (1.0 if each.trained else 1.0 / 3.0)
        * flops_per_token(each.config, each.predictions / each.passes, keys_per_token)
        for each in objective.flops_terms
    )


def flops_per_token(config: EncoderConfig, predicted_share: float, keys_per_token: float) -> float:
    """Returns the model FLOPs per real token, forward and backward, without recomputation.

    6 [W + r (D E + E V)] + 12 N H (sum over layers of s): W the weights of the matrices that a token meets (attention,
    feed-forward, adapters, bottlenecks, projection of the embeddings), r the share of predicted tokens, E the width of
    the word table, V the padded vocabulary, s the mean number of keys that a token attends to (a local layer's window
    at most). Every relative term of the scores counts as one more matmul over s. Cross-attention counts as if the
    source had as many tokens per sequence and as many keys per token as the target. Embedding look-ups, norms, softmax
    and the optimizer are not counted.

    Args:
        config: Network.
        predicted_share: Share r of the tokens that are predicted.
        keys_per_token: Mean number of keys of a global layer.
    """
    width, attention = config.hidden_size, attention_class(config)
    inside = config.layer_width * config.intermediate_size // config.feed_forward_groups
    inside *= (3 if config.feed_forward == "glu" else 2) * config.num_feedforward_networks
    matrices = attention.matmul_weights(config) + inside
    matrices += 2 * width * ((config.adapter_size or 0) + (config.bottleneck_size or 0))
    weights = config.num_layers * config.inner_layers * matrices
    weights += 0 if config.embedding_size is None else width * config.embedding_size * (config.embedding_ngram or 1)
    weights += width * config.num_layers * (2 * config.num_layers + 3) if config.depth_weighted_average else 0
    head = config.output_embedding_dim * config.table_size
    inner = config.prediction_head_size or width
    before = {
        "transform": width * config.output_embedding_dim,
        "two_layers": inner * (width + config.output_embedding_dim),
    }
    head += before.get(config.mlm_head, 0)
    local = sum(config.is_local(layer) for layer in range(config.num_layers))
    window = 1 + config.local_attention // (2 if config.causal else 1)
    keys = (config.num_layers - local) * keys_per_token + local * min(keys_per_token, window)
    over_keys = attention.key_matmuls(config) * config.inner_layers * config.num_heads * config.head_dim * keys
    if config.cross_attention_hidden_size is not None:
        heads, blocks = config.num_heads * config.head_dim, config.num_layers * config.inner_layers
        read = config.kv_heads * config.head_dim * config.cross_attention_hidden_size
        crossed = 2 * (heads * config.layer_width + read)
        weights += blocks * crossed
        over_keys += 2 * blocks * heads * keys_per_token
    decoder = 0.0 if config.decoder_layers is None else flops_per_token(config.decoder_config(), 0.0, keys_per_token)
    return 6.0 * (weights + predicted_share * head + over_keys) + decoder


def bytes_per_device(state: Any, mesh: jax.sharding.Mesh) -> int:
    """Returns the bytes of a (possibly abstract) train state on one device of the mesh."""

    def size_of(leaf: Any, sharding: jax.sharding.NamedSharding) -> int:
        return math.prod(sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize

    return sum(jax.tree.leaves(jax.tree.map(size_of, state, state_shardings(state, mesh))))
