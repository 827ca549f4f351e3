"""ESM-2 and ESM-1b (doi:10.1126/science.ade2574, 10.1073/pnas.2016239118; transformers: models/esm/modeling_esm.py).

Nucleotide Transformer v1 (doi:10.1038/s41592-024-02523-z) is of the same class. v2 has gated blocks and code of its
authors (modeling_esm.py of InstaDeepAI/nucleotide-transformer-v2-*), for which `transformers` has no class.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.hf.keymap import Entry, KeyMap, Tensors
from bertjax.hf.keymaps import bert, roberta
from bertjax.hf.keymaps.family import ENCODER_ONLY, Family, Fields, axis_sizes, linear, norm, parse_fields
from bertjax.models.rope import frequencies, round_frequencies

_NORMS = bert.NormNames("attention.LayerNorm", "LayerNorm", "encoder.emb_layer_norm_after")
_ROTATION = "esm.rotary_embeddings.inv_freq"
_UNREAD_TABLE = r"embeddings\.position_embeddings\.weight$"
_ROUNDINGS = ("float32", "float16", "bfloat16")
_FIELDS: Fields = {
    **{key: field for key, field in bert.ENCODER_FIELDS.items() if key not in ("hidden_act", "type_vocab_size")},
    "vocab_size": ("vocab_size", 0, int),
    "max_position_embeddings": ("max_position_embeddings", 1026, int),
    "rope_theta": ("global_rope_theta", 10_000.0, float),
    "token_dropout": ("token_dropout", False, bool),
    "tie_word_embeddings": ("tie_word_embeddings", True, bool),
}
_OPTIONAL: Fields = {"emb_layer_norm_before": ("norm", None, bool), "mask_token_id": ("mask", None, int)}


def make_keymap(config: EncoderConfig) -> KeyMap:
    """Returns the names of an ESM's parameters."""
    prefix, rotary, tied = "esm", config.attention_position == "rotary", config.tie_word_embeddings
    embeddings = (each for each in bert.embedding_entries(prefix, config) if "token_type" not in each.tensor)
    rates = _frequencies(config, config.rope_rounding) if rotary else None
    return KeyMap(
        entries=(
            *(_with_norm_name(each) for each in embeddings),
            *bert.layer_entries(prefix, config, _NORMS),
            *linear("contact_head", f"{prefix}.contact_head.regression", "M 1", head="contact"),
            *linear("pooler/dense", f"{prefix}.pooler.dense", "D D", head="pooler"),
            *linear("mlm_head/dense", "lm_head.dense", "D D", head="mlm"),
            *norm("mlm_head/norm", "lm_head.layer_norm", config, head="mlm"),
            *(() if tied else (Entry("mlm_head/table", "lm_head.decoder.weight", "V D", head="mlm"),)),
            Entry("mlm_head/bias", "lm_head.bias", "V", head="mlm"),
            *bert.classifier_entries("classifier.dense", "classifier.out_proj"),
            *linear("token_head/output", "classifier", "D C", head="token_classification"),
        ),
        sizes=axis_sizes(config) | {"M": config.num_layers * config.num_heads},
        renames=((r"^(embeddings|encoder|pooler|contact_head)\.", rf"{prefix}.\1."),),  # EsmModel: no prefix
        # The rotation is read by `_rounding`; older files have it in every layer.
        ignored=(*bert.BUFFERS, r"rotary_embeddings\.inv_freq$", *[_UNREAD_TABLE] * rotary),
        computed={} if rates is None else {_ROTATION: rates},
        ties={"lm_head.decoder.weight": f"{prefix}.embeddings.word_embeddings.weight"} if tied else {},
        backbone=rf"^({prefix}|lm_head)\.",
    )


def _with_norm_name(entry: Entry) -> Entry:
    return Entry(entry.param, entry.tensor.replace(".LayerNorm.", ".layer_norm."), entry.axes, entry.transform)


def _frequencies(config: EncoderConfig, rounding: str) -> np.ndarray:
    return round_frequencies(frequencies(config.head_dim, config.global_rope_theta), rounding)


def _rounding(config: EncoderConfig, tensors: Tensors, where: str) -> dict[str, Any]:
    """Returns the type to which the frequencies of a file are rounded; those of its first layer count."""
    stored = [(name, each) for name, each in sorted(tensors.items()) if name.endswith("rotary_embeddings.inv_freq")]
    if not stored or config.attention_position != "rotary":
        return {}
    name, rates = stored[0]
    for rounding in _ROUNDINGS:
        expected = _frequencies(config, rounding)
        if rates.shape == expected.shape and np.allclose(rates, expected, rtol=1e-6, atol=0.0):
            return {"rope_rounding": rounding}
    raise UserError(f"{where}: {name} is not 1 / rope_theta^(2i / head size), nor that rounded to 16 bits")


def _extra_fields(values: dict[str, Any], fields: dict[str, Any], where: str) -> dict[str, Any]:
    if values.get("pad_token_id") is None:
        raise UserError(f"{where}: pad_token_id = null is not supported: the class counts positions by it")
    if not isinstance(values.get("vocab_list"), list | None):
        raise UserError(f"{where}: vocab_list must be a list of tokens or null, not {values['vocab_list']!r}")
    optional = parse_fields(values, _OPTIONAL, where)
    if fields["token_dropout"] and optional["mask"] is None:
        raise UserError(f"{where}: mask_token_id must be a number: token_dropout scales by the share of mask tokens")
    result = {"embedding_norm": "before" if optional["norm"] else "none", "mask_token_id": optional["mask"] or 0}
    if values.get("position_embedding_type", "absolute") == "rotary":
        return result | {"position_embedding": "none", "attention_position": "rotary"}
    return result | roberta.split_positions(values, fields, where)


def _extra_keys(config: EncoderConfig, architecture: str) -> dict[str, Any]:
    kind = {("none", "rotary"): "rotary", ("learned", "none"): "absolute"}
    return {
        "mask_token_id": config.mask_token_id if config.token_dropout else None,
        "position_embedding_type": kind[config.position_embedding, config.attention_position],
        "emb_layer_norm_before": {"before": True, "none": False}[config.embedding_norm],
        "max_position_embeddings": config.position_offset + config.max_position_embeddings,
    }


FAMILY = Family(
    name="esm",
    model_type="esm",
    make_keymap=make_keymap,
    architectures={
        "EsmForSequenceClassification": ("sequence_classification",),
        "EsmForTokenClassification": ("token_classification",),
        "EsmForMaskedLM": ("mlm",),
        "EsmModel": (),
    },
    fields=_FIELDS,
    structure={
        "type_vocab_size": 0,
        "zero_pad_embeddings": True,
        "embedding_dropout": 0.0,
        "norm_placement": "pre",
        "hidden_act": "gelu",
        "mlm_act": "gelu",
        "classifier_dense": "own",
        "initializer": "normal",
    },
    constants={"is_decoder": False, "add_cross_attention": False, "use_cache": True, "is_folding_model": False},
    unsupported=(
        *ENCODER_ONLY,
        ("position_embedding_type", ("absolute", "rotary"), "positions are absolute or rotary"),
        ("is_folding_model", (False, None), "structures are not predicted"),
        ("head_dim", (None,), "heads share the hidden size"),
    ),
    # The first two are in published files; no code reads them. The others belong to ESMFold.
    ignored_keys="classifier_dropout hidden_act esmfold_config vocab_list",
    extra_fields=_extra_fields,
    extra_keys=_extra_keys,
    prefix="esm.",
    zero_heads=("contact",),
    stores_computed=True,
    fields_of_tensors=_rounding,
)


def _make_gated_keymap(config: EncoderConfig) -> KeyMap:
    """Returns the names of a Nucleotide Transformer v2: the gate is the first half of the intermediate layer."""
    keymap, bias = make_keymap(config), config.feed_forward_bias
    param, tensor = "encoder/layers/{L}/feed_forward", "esm.encoder.layer.{L}"
    dense = (f"{tensor}.intermediate.dense.", f"{tensor}.output.dense.")
    others = (entry for entry in keymap.entries if not entry.tensor.startswith(dense))
    gated = (f"{param}/gate", f"{param}/intermediate")
    entries = (
        *others,
        *linear(gated, f"{tensor}.intermediate.dense", "D F", bias, transform="concat_transpose"),
        *linear(f"{param}/output", f"{tensor}.output.dense", "F D", bias),
    )
    return dataclasses.replace(keymap, entries=entries)


NUCLEOTIDE_TRANSFORMER = dataclasses.replace(
    FAMILY,
    name="nucleotide_transformer",
    model_type="nucleotide_transformer",
    make_keymap=_make_gated_keymap,
    fields={**_FIELDS, "add_bias_fnn": ("feed_forward_bias", True, bool)},
    structure={**FAMILY.structure, "feed_forward": "glu", "hidden_act": "silu"},
    written=False,
)
