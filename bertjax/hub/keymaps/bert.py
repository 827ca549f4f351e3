"""BERT under Hugging Face's names (transformers: models/bert/modeling_bert.py) and its config.json."""

from __future__ import annotations

from typing import Any

from bertjax.hub.keymap import Entry, KeyMap
from bertjax.hub.keymaps.family import Family, read_config, refuse
from bertjax.models.config import EncoderConfig

# Required heads by class; a file may hold more (Google's BertForMaskedLM files carry the pooler and the pair head).
# BertModel may come without its pooler: `add_pooling_layer` is not in config.json.
ARCHITECTURES: dict[str, tuple[str, ...]] = {
    "BertForPreTraining": ("pooler", "mlm", "pair"),
    "BertForMaskedLM": ("mlm",),
    "BertForNextSentencePrediction": ("pooler", "pair"),
    "BertModel": (),
}
# Three spellings of the tanh formula and two of the erf one (transformers: activations.py).
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_new",
    "gelu_fast": "gelu_new",
    "gelu_pytorch_tanh": "gelu_new",
    "relu": "relu",
}
# Hugging Face key -> (our field, BertConfig's default, type)
_FIELDS: dict[str, tuple[str, Any, type]] = {
    "vocab_size": ("vocab_size", 30522, int),
    "hidden_size": ("hidden_size", 768, int),
    "num_hidden_layers": ("num_layers", 12, int),
    "num_attention_heads": ("num_heads", 12, int),
    "intermediate_size": ("intermediate_size", 3072, int),
    "max_position_embeddings": ("max_position_embeddings", 512, int),
    "type_vocab_size": ("type_vocab_size", 2, int),
    "hidden_act": ("hidden_act", "gelu", str),
    "hidden_dropout_prob": ("hidden_dropout", 0.1, float),
    "attention_probs_dropout_prob": ("attention_dropout", 0.1, float),
    "layer_norm_eps": ("layer_norm_eps", 1e-12, float),
    "initializer_range": ("initializer_range", 0.02, float),
    "pad_token_id": ("pad_token_id", 0, int),
}


def _linear(ours: str, theirs: str, axes: str, head: str = "") -> tuple[Entry, Entry]:
    return (
        Entry(f"{ours}/kernel", f"{theirs}.weight", axes, "transpose", head),
        Entry(f"{ours}/bias", f"{theirs}.bias", axes.split()[1], "same", head),
    )


def _norm(ours: str, theirs: str, head: str = "") -> tuple[Entry, Entry]:
    return (
        Entry(f"{ours}/scale", f"{theirs}.weight", "D", "same", head),
        Entry(f"{ours}/bias", f"{theirs}.bias", "D", "same", head),
    )


def _table(name: str, rows: str) -> Entry:
    return Entry(f"encoder/embeddings/{name}/embedding", f"bert.embeddings.{name}.weight", f"{rows} D")


_OURS, _THEIRS = "encoder/layers/{L}", "bert.encoder.layer.{L}"
_ENTRIES = (
    _table("word_embeddings", "V"),
    _table("position_embeddings", "P"),
    _table("token_type_embeddings", "T"),
    *_norm("encoder/embeddings/norm", "bert.embeddings.LayerNorm"),
    *_linear(f"{_OURS}/attention/query", f"{_THEIRS}.attention.self.query", "D D"),
    *_linear(f"{_OURS}/attention/key", f"{_THEIRS}.attention.self.key", "D D"),
    *_linear(f"{_OURS}/attention/value", f"{_THEIRS}.attention.self.value", "D D"),
    *_linear(f"{_OURS}/attention/output", f"{_THEIRS}.attention.output.dense", "D D"),
    *_norm(f"{_OURS}/attention/norm", f"{_THEIRS}.attention.output.LayerNorm"),
    *_linear(f"{_OURS}/feed_forward/intermediate", f"{_THEIRS}.intermediate.dense", "D F"),
    *_linear(f"{_OURS}/feed_forward/output", f"{_THEIRS}.output.dense", "F D"),
    *_norm(f"{_OURS}/feed_forward/norm", f"{_THEIRS}.output.LayerNorm"),
    *_linear("pooler/dense", "bert.pooler.dense", "D D", "pooler"),
    *_linear("mlm_head/dense", "cls.predictions.transform.dense", "D D", "mlm"),
    *_norm("mlm_head/norm", "cls.predictions.transform.LayerNorm", "mlm"),
    Entry("mlm_head/bias", "cls.predictions.bias", "V", "same", "mlm"),
    *_linear("pair_head", "cls.seq_relationship", "D 2", "pair"),
)


def _sizes(config: EncoderConfig) -> dict[str, int]:
    return {
        "V": config.vocab_size,
        "D": config.hidden_size,
        "F": config.intermediate_size,
        "L": config.num_layers,
        "P": config.max_position_embeddings,
        "T": config.type_vocab_size,
    }


KEYMAP = KeyMap(
    entries=_ENTRIES,
    sizes=_sizes,
    renames=(
        (r"^(embeddings|encoder|pooler)\.", r"bert.\1."),  # BertModel's files have no prefix
        (r"LayerNorm\.gamma$", "LayerNorm.weight"),  # files converted from TensorFlow
        (r"LayerNorm\.beta$", "LayerNorm.bias"),
    ),
    ignored=(r"embeddings\.position_ids$", r"embeddings\.token_type_ids$"),
    ties={
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    backbone=r"^(bert|cls)\.",
)


def config_from_huggingface(values: dict[str, Any], where: str = "config.json") -> EncoderConfig:
    """Our config from the known keys of a BERT config.json; others cannot change what is computed, or are refused.

    Raises `UserError` for a key that would change the maths in a way that is not supported.
    """
    refuse(values, where, "position_embedding_type", ("absolute", None), "only absolute positions are supported")
    refuse(values, where, "is_decoder", (False, None), "only encoders are supported")
    refuse(values, where, "add_cross_attention", (False, None), "only encoders are supported")
    refuse(values, where, "pruned_heads", ({}, None), "pruned models are not supported")
    refuse(values, where, "hidden_act", (*ACTIVATIONS, None), f"known are {', '.join(ACTIVATIONS)}")
    fields = read_config(values, _FIELDS, where)
    return EncoderConfig(**{**fields, "hidden_act": ACTIVATIONS[fields["hidden_act"]], "initializer": "normal"})


def config_to_huggingface(config: EncoderConfig, architecture: str) -> dict[str, Any]:
    """The config.json of a model of class `architecture`; the vocabulary at its true size."""
    return {
        "architectures": [architecture],
        "model_type": "bert",
        "dtype": "float32",
        "tie_word_embeddings": True,
        "is_decoder": False,
        "add_cross_attention": False,
        "classifier_dropout": None,
        "use_cache": True,
        **{theirs: getattr(config, ours) for theirs, (ours, _, _) in _FIELDS.items()},
    }


def architecture_for(heads: tuple[str, ...]) -> str:
    """The class whose heads these are; extra heads (a pooler beside a masked LM) ride along as Google's files do."""
    for architecture, required in ARCHITECTURES.items():
        if set(required) <= set(heads):
            return architecture
    return "BertModel"


def rename_for(architecture: str, name: str) -> str:
    """The name of a tensor in a file of this class: BertModel's own files drop the `bert.` prefix."""
    return name.removeprefix("bert.") if architecture == "BertModel" else name


FAMILY = Family(
    model_type="bert",
    keymap=KEYMAP,
    architectures=ARCHITECTURES,
    config_from_huggingface=config_from_huggingface,
    config_to_huggingface=config_to_huggingface,
    architecture_for=architecture_for,
    rename_for=rename_for,
)
