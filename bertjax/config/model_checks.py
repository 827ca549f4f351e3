"""Combinations of fields of `EncoderConfig` that no model can have: iterators over the reasons."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bertjax.config.heads import WITH_DENSE
from bertjax.config.rotation import invalid_rotations


def invalid_combinations(config: Any) -> Iterator[str]:
    """Yields why a model cannot be built."""
    yield from _invalid_positions(config)
    yield from invalid_rotations(config)
    yield from _invalid_layers(config)
    yield from _invalid_bottlenecks(config)
    yield from _invalid_heads(config)


def _invalid_positions(config: Any) -> Iterator[str]:
    position, terms = config.attention_position, config.pos_att_type
    disentangled = position == "disentangled"
    if position == "rotary" and config.head_dim % 2 == 1:
        yield f"attention_position=rotary rotates pairs of numbers: the head size {config.head_dim} must be even"
    if position == "relative" and config.hidden_size % 2 == 1:
        yield f"attention_position=relative needs an even hidden_size, not {config.hidden_size}"
    waves = config.position_embedding
    if waves in ("sinusoidal", "fairseq") and config.position_dim % 2 == 1:
        yield f"position_embedding={waves} needs an even embedding width, not {config.position_dim}"
    if waves == "fairseq" and config.position_dim < 4:
        yield f"position_embedding=fairseq needs an embedding width of 4 or more, not {config.position_dim}"
    if disentangled and len(set(terms)) != len(terms):
        yield f"pos_att_type names a term twice: {', '.join(terms)}"
    if config.position_buckets > 0 and not disentangled:
        yield "position_buckets belongs to attention_position=disentangled"
    if disentangled and config.position_buckets > 0 and config.max_distance <= config.position_buckets // 2 + 1:
        yield (
            f"position_buckets {config.position_buckets} must be less than twice max_relative_positions "
            f"{config.max_distance}: the far distances share logarithmic buckets"
        )
    learned = position == "relative_bias" and config.relative_bias == "learned"
    if learned and config.relative_attention_max_distance <= _exact_distances(config):
        yield (
            f"relative_attention_max_distance must be more than {_exact_distances(config)}, the distances with a "
            f"bucket of their own, not {config.relative_attention_max_distance}"
        )
    if not config.relative_attention_shared and config.relative_bias == "linear":
        yield "relative_attention_shared=false needs relative_bias=learned: linear biases have no table"
    if config.relative_segments and position != "relative":
        yield "relative_segments belongs to attention_position=relative"
    if (config.mem_len is not None or config.reuse_len is not None or config.bi_data) and position != "relative":
        yield "mem_len, reuse_len and bi_data belong to attention_position=relative"
    if config.attention_bias != "none" and position == "relative":
        yield (
            f"attention_bias={config.attention_bias} and attention_position=relative: the relative scores have biases "
            "of their own; set attention_bias=none"
        )
    yield from _invalid_scores(config)
    if position in ("disentangled", "relative", "relative_bias") and config.attention_implementation not in (
        "auto",
        "xla",
        *["pallas"] * (position != "relative_bias"),
    ):
        yield (
            f"attention_implementation={config.attention_implementation} and attention_position={position}: the "
            "kernel knows no such terms of positions; take auto or xla"
        )
    if disentangled and config.position_buckets == 1:
        yield "position_buckets must be 0 (a row for every distance) or at least 2"


def _invalid_scores(config: Any) -> Iterator[str]:
    position, size, cap = config.attention_position, config.attention_scale_size, config.attention_soft_cap
    if (size is not None or not config.attention_scale) and position in ("disentangled", "relative"):
        setting = "attention_scale=false" if size is None else f"attention_scale_size={size}"
        yield f"{setting} and attention_position={position}: these scores are sums that are scaled together"
    if size is not None and not config.attention_scale:
        yield f"attention_scale_size={size} needs attention_scale=true"
    if cap is not None and (position not in ("none", "rotary") or config.attention_class is not None):
        other = f"attention_position={position}" if config.attention_class is None else "attention_class"
        yield f"attention_soft_cap caps products of queries and keys, not the scores of {other}; set it to None"
    if cap is not None and config.attention_implementation == "cudnn":
        yield "attention_implementation=cudnn cannot cap scores: attention_soft_cap needs another kernel, such as auto"


def _invalid_layers(config: Any) -> Iterator[str]:
    shared = config.num_groups is not None
    heads = (config.num_heads * config.head_dim, config.kv_heads * config.head_dim)
    for key, inner in (("attention_groups", heads), ("feed_forward_groups", (config.intermediate_size,))):
        groups, widths = getattr(config, key), (config.hidden_size, config.layer_width, *inner)
        if any(width % groups for width in widths):
            yield f"{key}={groups} must divide the widths {', '.join(map(str, dict.fromkeys(widths)))}"
    if config.global_attn_every_n_layers != 1 and config.local_attention == 0:
        yield "global_attn_every_n_layers needs local_attention for the other layers"
    if config.local_attention > 0 and config.global_attn_every_n_layers == 1:
        yield (
            f"local_attention={config.local_attention} has no effect: with global_attn_every_n_layers=1 every layer is "
            "global"
        )
    first, period = config.first_global_layer, config.global_attn_every_n_layers
    if config.local_attention > 0 and first > 0 == period:
        yield f"first_global_layer={first} needs global layers: with global_attn_every_n_layers=0 none is"
    elif config.local_attention > 0 and first >= period > 0:
        yield f"first_global_layer {first} must be less than global_attn_every_n_layers {period}"
    if not config.first_attention_norm and (config.norm_placement == "post" or shared):
        yield (
            "first_attention_norm=false needs another norm_placement than post, and layers with parameters of their own"
        )
    if config.conv_kernel_size > 0 and (shared or config.conv_kernel_size % 2 == 0):
        yield "conv_kernel_size must be odd, and layer 0 must have parameters of its own (no num_groups)"
    if shared and not 1 <= (config.num_groups or 1) <= config.num_layers:
        yield f"num_groups must lie in 1 to num_layers, not {config.num_groups}"
    if config.inner_layers > 1 and not shared:
        yield "inner_layers needs num_groups: only shared groups have inner layers"
    convolutions = [name for name in ("conv_kernel_size", "dynamic_conv_kernel_size") if getattr(config, name)]
    without = [name for name in ("causal", "enhanced_decoder", "token_dropout") if getattr(config, name)]
    if config.decoder_layers is not None and (without := without + convolutions):
        yield f"decoder_layers: a decoder cannot follow an encoder with {without[0]}={getattr(config, without[0])}"
    if config.causal and convolutions:
        yield f"{convolutions[0]} sees the next token: not in causal models"
    if config.depth_weighted_average and (shared or config.norm_placement in ("post", "parallel")):
        yield "depth_weighted_average needs norms before the blocks, one after the other, and no num_groups"
    if config.depth_weighted_average and (config.attention_position == "relative" or config.conv_kernel_size):
        other = "conv_kernel_size" if config.conv_kernel_size else "attention_position=relative"
        yield f"depth_weighted_average and {other}: averages know one stream of blocks alone"
    if config.dynamic_conv_kernel_size and config.dynamic_conv_kernel_size % 2 == 0:
        yield f"dynamic_conv_kernel_size must be odd, not {config.dynamic_conv_kernel_size}"
    if config.dynamic_conv_kernel_size and (config.attention_position == "relative" or config.enhanced_decoder):
        other = "enhanced_decoder" if config.enhanced_decoder else "attention_position=relative"
        yield f"dynamic_conv_kernel_size and {other}: the convolution knows the tokens of one sequence of states only"


def _invalid_bottlenecks(config: Any) -> Iterator[str]:
    for key in ("bottleneck_size", "num_feedforward_networks"):
        if getattr(config, key) not in (None, 1) and config.norm_placement != "post":
            yield f"{key}={getattr(config, key)} needs norm_placement=post, not {config.norm_placement}"
    if config.bottleneck_size is not None:
        if config.attention_position in ("disentangled", "relative"):
            yield (
                f"bottleneck_size={config.bottleneck_size} and attention_position={config.attention_position}: the "
                "embeddings of distances have the hidden size"
            )
        others = ("adapter_size", "attention_class", "attention_gate", "dynamic_conv_kernel_size")
        if both := [name for name in others if getattr(config, name) not in (None, 0)]:
            yield f"bottleneck_size and {both[0]}: that block has the hidden size, not the layer's"
    ngram = config.embedding_ngram
    if ngram is not None and ngram % 2 == 0:
        yield f"embedding_ngram must be odd, not {ngram}: as many tokens before as after"
    if ngram is not None and (config.embedding_size is None or config.embedding_norm not in ("after", "none")):
        yield (
            f"embedding_ngram={ngram} is the input of the projection of the words alone: it needs embedding_size, and "
            "embedding_norm=after or none"
        )
    if ngram not in (None, 1) and (config.causal or config.attention_position == "relative"):
        yield f"embedding_ngram={ngram} sees the next token: not in causal models, nor with two streams"
    if ngram is not None and config.decoder_layers is not None:
        yield f"decoder_layers: a decoder cannot follow an encoder with embedding_ngram={ngram}"


def _invalid_heads(config: Any) -> Iterator[str]:
    if config.pooling == "late" and config.classifier_dense == "pooler":
        yield "pooling=late scores every token: set classifier_dense to own or none"
    if config.causal and config.enhanced_decoder:
        yield "enhanced_decoder predicts masked words: causal models have none"
    if config.enhanced_decoder and config.position_embedding != "none":
        yield "enhanced_decoder adds absolute positions late: position_embedding must be none"
    if config.enhanced_decoder and config.attention_position == "relative":
        yield "enhanced_decoder and attention_position=relative: two streams tell masked words their positions already"
    if config.enhanced_decoder and config.num_groups is not None:
        yield "enhanced_decoder runs the last layer again: not with num_groups"
    if config.enhanced_decoder and config.position_offset != 0:
        yield f"enhanced_decoder counts positions from 0: position_offset must be 0, not {config.position_offset}"
    if config.mlm_head not in WITH_DENSE and config.embedding_dim != config.hidden_size:
        yield (
            f"mlm_head={config.mlm_head} compares hidden states with word embeddings: embedding_size must be None, not "
            f"{config.embedding_size}"
        )
    size = config.output_embedding_size
    if size is not None and config.mlm_head not in WITH_DENSE:
        yield (
            f"output_embedding_size={size} is the width of a table of the masked-token head, which needs "
            f"mlm_head={' or '.join(WITH_DENSE)}"
        )
    if size is not None and config.tie_word_embeddings and size <= config.embedding_dim:
        yield (
            f"output_embedding_size={size} must be more than the width {config.embedding_dim} of the word table, or "
            "tie_word_embeddings=false"
        )
    if config.enhanced_decoder and (config.norm_placement != "post" or config.num_layers < 2):
        yield "enhanced_decoder needs norm_placement=post and at least two layers"


def _exact_distances(config: Any) -> int:
    """Returns the distances per side that have a bucket of their own: half of the buckets of the side."""
    return config.relative_attention_num_buckets // (2 if config.causal else 4)
