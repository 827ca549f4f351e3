"""DeBERTa v1, v2 and v3: `transformers.DebertaConfig` and `DebertaV2Config`.

Padding is not compared: there, a padded query looks at every key alike, here at the real ones; nobody reads it.
"""

from __future__ import annotations

from typing import Any

from parity.cases import Case

_SIZES: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 60,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "intermediate_size": 44,
    "max_position_embeddings": 19,
    "relative_attention": True,
    "pos_att_type": ["p2c", "c2p"],
    "position_biased_input": False,
}
_SHARED: dict[str, Any] = {"share_att_key": True, "position_buckets": 6, "norm_rel_ebd": "layer_norm"}
_HEADS = ("MaskedLM", "SequenceClassification", "TokenClassification", "QuestionAnswering")


def _first(name: str, classes: tuple[str, ...] = ("Model",), **changes: Any) -> Case:
    names = tuple("DebertaModel" if each == "Model" else f"DebertaFor{each}" for each in classes)
    return Case("deberta", name, "DebertaConfig", _SIZES | changes, names, compare_padding=False)


def _second(name: str, classes: tuple[str, ...] = ("Model",), seq_len: int | None = None, **changes: Any) -> Case:
    names = tuple("DebertaV2Model" if each == "Model" else f"DebertaV2For{each}" for each in classes)
    config = _SIZES | changes
    return Case("deberta-v2", name, "DebertaV2Config", config, names, seq_len=seq_len, compare_padding=False)


CASES = (
    _first("heads of 20, narrow feed-forward", _HEADS),
    _first("content to position", pos_att_type=["c2p"], num_hidden_layers=1),
    _first("position to content", pos_att_type=["p2c"], num_attention_heads=1),
    _first("neither, as a string of old", pos_att_type=None, hidden_act="relu"),
    _first("rows longer than the span, positions in the input", max_relative_positions=5, position_biased_input=True),
    _first("narrow embeddings, two types", ("MaskedLM",), embedding_size=28, type_vocab_size=2),
    _first("Microsoft's masked-word head", ("MaskedLM",), legacy=False, pos_att_type="c2p|p2c"),
    _first("plain attention", ("MaskedLM",), relative_attention=False, pos_att_type=None, position_biased_input=True),
    _second("shared keys, buckets of 6, rows longer", (*_HEADS, "MultipleChoice"), **_SHARED),
    _second("own projections, no buckets, three labels", ("SequenceClassification",), num_labels=3,
            pooler_hidden_act="tanh"),
    _second("content to position", pos_att_type=["c2p"], num_hidden_layers=1),
    _second("position to content", pos_att_type=["p2c"], position_buckets=8, num_attention_heads=1),
    _second("content to position, shared", pos_att_type=["c2p"], **_SHARED),
    _second("position to content, shared", pos_att_type=["p2c"], **_SHARED),
    _second("neither", pos_att_type=[], **_SHARED),
    _second("rows longer than the span", max_relative_positions=5, norm_rel_ebd="layer_norm"),
    _second("rows longer than any position", seq_len=33, max_relative_positions=17, **_SHARED),
    _second("convolution", ("MaskedLM", "Model"), conv_kernel_size=3, conv_act="gelu", **_SHARED),
    _second("wide convolution, one layer", conv_kernel_size=5, conv_act="tanh", num_hidden_layers=1),
    _second("narrow embeddings, types, positions", ("MaskedLM",), embedding_size=28, type_vocab_size=2,
            position_biased_input=True, **_SHARED),
    _second("Microsoft's masked-word head", ("MaskedLM",), legacy=False, pos_att_type="p2c|c2p", **_SHARED),
    _second("plain attention", relative_attention=False, pos_att_type=None, position_biased_input=True),
)  # fmt: skip
