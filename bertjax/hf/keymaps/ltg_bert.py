"""LTG-BERT, NorBERT 3 and GPT-BERT (arXiv:2303.09859, 2305.03880, 2410.24159) under the names of their authors' code.

Norms that have no parameters there are read as ones that multiply by 1 and add 0. All heads begin with such a norm: it
follows the last layer here, and `last_hidden_state` has passed it. `transformers` has no class: exports are native.

Positions are DeBERTa's; one matrix projects content and distances to queries and keys. In the first version of the code
(`share_att_key` = false) distances read its rows head by head, and content does not: they get matrices of their own.

GPT-BERT (`model.attention_gate`) has another norm in attention, and averages over depth. The authors' class scores a
masked token at the one before; here the scores stand at the masked token itself (`masked_next_token`).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.hf.keymap import Entry, KeyMap, Tensors
from bertjax.hf.keymaps import bert
from bertjax.hf.keymaps.family import ENCODER_ONLY, Family, Fields, axis_sizes, linear, norm, parse_fields, table
from bertjax.models.disentangled_attention import log_bucket

_FIELDS: Fields = {
    **{key: field for key, field in bert.BERT_FIELDS.items() if key not in ("hidden_act", "type_vocab_size")},
    "position_bucket_size": ("position_buckets", 32, int),
    "share_att_key": ("share_att_key", False, bool),
}
_WEIGHTS = "transformer.dwa_modules.alphas"
_HEADS = {"sequence": "sequence_classification", "token": "token_classification", "answer": "question_answering"}


def make_keymap(config: EncoderConfig) -> KeyMap:
    """Returns the names of the parameters."""
    attention, theirs = "encoder/layers/{L}/attention", "transformer.layers.{L}.attention"
    block, mlp = "encoder/layers/{L}/feed_forward", "transformer.layers.{L}.mlp.mlp"
    if gated := config.attention_gate is not None:
        theirs, mlp = "transformer.attention_layers.{L}", "transformer.mlp_layers.{L}.mlp"
    values, norms = (f"{attention}/value", f"{attention}/gate"), f"{theirs}.post_layer_norm"
    of_values = (
        (
            *linear(values, f"{theirs}.in_proj_vg", "D A", transform="concat_transpose"),
            *_fixed_norm(f"{attention}/inner_norm", norms),
            Entry("encoder/depth_weighted_average/weights", _WEIGHTS, "L 2 M"),
        )
        if gated
        else (
            *linear(values[0], f"{theirs}.in_proj_v", "D A"),
            *norm(f"{attention}/output_norm", norms, config),
        )
    )
    qk, distances = (tuple(f"{attention}/{kind}{part}" for part in ("query", "key")) for kind in ("", "position_"))
    separate = linear(distances, f"{theirs}.in_proj_positions", "D A", transform="interleave_heads")
    return KeyMap(
        entries=(
            *table("encoder/embeddings/word_embeddings", "embedding.word_embedding", "V D"),
            *_fixed_norm("encoder/embeddings/norm", "embedding.word_layer_norm"),
            Entry("encoder/relative/embedding", "embedding.relative_embedding", "R D"),
            *norm("encoder/relative/norm", "embedding.relative_layer_norm", config),
            *_fixed_norm(f"{attention}/norm", f"{theirs}.pre_layer_norm"),
            *linear(qk, f"{theirs}.in_proj_qk", "D A", transform="concat_transpose"),
            *(() if config.share_att_key else separate),
            *of_values,
            *linear(f"{attention}/output", f"{theirs}.out_proj", "A D"),
            *_fixed_norm(f"{block}/norm", f"{mlp}.0"),
            *linear((f"{block}/intermediate", f"{block}/gate"), f"{mlp}.1", "D F", False, transform="concat_transpose"),
            *_fixed_norm(f"{block}/inner_norm", f"{mlp}.3", axis="F"),
            *linear(f"{block}/output", f"{mlp}.4", "F D", False),
            *_fixed_norm("encoder/norm", "transformer.norm"),
            *linear("mlm_head/dense", "classifier.nonlinearity.1", "D D", head="mlm"),
            *_fixed_norm("mlm_head/norm", "classifier.nonlinearity.3", head="mlm"),
            Entry("mlm_head/bias", "classifier.nonlinearity.5.bias", "V", head="mlm"),
            *(entry for name, head in _HEADS.items() for entry in _classifier_entries(f"{name}_head", head)),
        ),
        sizes=axis_sizes(config) | {"R": 2 * config.position_buckets, "M": 2 * config.num_layers + 1},
        ties={"classifier.nonlinearity.5.weight": "embedding.word_embedding.weight"},
        backbone=r"^(embedding|transformer|classifier)\.",
    )


def _classifier_entries(param: str, head: str) -> tuple[Entry, ...]:
    return (
        *linear(f"{param}/dense", "head.nonlinearity.1", "D D", head=head),
        *_fixed_norm(f"{param}/norm", "head.nonlinearity.3", head=head),
        *linear(f"{param}/output", "head.nonlinearity.5", "D 2" if param == "answer_head" else "D C", head=head),
    )


def _fixed_norm(param: str, tensor: str, axis: str = "D", head: str = "") -> tuple[Entry, ...]:
    scale = Entry(f"{param}/scale", f"{tensor}.weight", axis, "same", head, constant=1.0)
    return scale, Entry(f"{param}/bias", f"{tensor}.bias", axis, "same", head, constant=0.0)


def _complete(values: dict[str, Any], tensors: Tensors, where: str) -> Tensors:
    """Adds a row for distances below -`max_position_embeddings`, equal to the next, and projections of distances.

    Weights of averages are one table.
    """
    result, fields = dict(tensors), parse_fields(values, _FIELDS, where)
    count = sum(name.startswith(f"{_WEIGHTS}.") for name in tensors)
    names = [f"{_WEIGHTS}.{index}" for index in range(count)]
    if count and count % 2 == 0 and all(np.shape(result.get(name, ())) == (at + 2,) for at, name in enumerate(names)):
        padded = [np.pad(result.pop(name), (0, count - 1 - at)) for at, name in enumerate(names)]
        result[_WEIGHTS] = np.stack(padded).reshape(-1, 2, count + 1)
    buckets, longest = fields["position_buckets"], fields["max_position_embeddings"]
    for name, array in tensors.items():
        if name.endswith(".position_indices"):
            rows = np.arange(len(np.atleast_1d(result.pop(name))))
            expected = log_bucket(rows[:, None] - rows, buckets, longest).clip(1 - buckets, buckets - 1) + buckets - 1
            if not np.array_equal(array, expected):
                raise UserError(f"{where}: {name} differs from {buckets} buckets on either side up to {longest} tokens")
        if name == "embedding.relative_embedding" and array.shape[:1] == (2 * buckets - 1,):
            result[name] = np.concatenate([array[:1], array])
        if ".in_proj_qk." in name and not fields["share_att_key"]:
            result.setdefault(name.replace("in_proj_qk", "in_proj_positions"), array)
    return result


FAMILY = Family(
    name="ltg_bert",
    model_type="ltg_bert",
    make_keymap=make_keymap,
    architectures={
        **{f"LtgBertFor{head.title().replace('_', '')}": (head,) for head in _HEADS.values()},
        **{"LtgBertForMaskedLM": ("mlm",), "LtgBertModel": ()},
    },
    fields=_FIELDS,
    structure={
        **{"position_embedding": "none", "type_vocab_size": 0, "attention_position": "disentangled"},
        **{"norm_relative_embeddings": True, "norm_placement": "normformer", "classifier_norm": True},
        **{"feed_forward": "glu", "feed_forward_bias": False, "hidden_act": "gelu_new", "mlm_act": "gelu"},
        **{"classifier_act": "gelu", "classifier_dense": "own", "token_classifier_dense": True},
    },
    unsupported=ENCODER_ONLY,
    ignored_keys="output_all_encoded_layers",
    # One rate is for the probabilities and the output of attention.
    extra_fields=lambda values, fields, where: {"attention_output_dropout": fields["attention_dropout"]},
    cut_tensors=_complete,
    written=False,
)

GPT_BERT = dataclasses.replace(
    FAMILY,
    name="gpt_bert",
    model_type="gpt_bert",
    architectures={name.replace("Ltg", "Gpt"): heads for name, heads in FAMILY.architectures.items()},
    structure={
        **FAMILY.structure,
        **{"norm_placement": "sub", "attention_gate": "gelu", "depth_weighted_average": True},
        "masked_next_token": True,
    },
    unsupported=(*ENCODER_ONLY, ("temperature", (1.0, 1, None), "scores are not divided")),
    aliases={"cls_dropout": "classifier_dropout"},
)
