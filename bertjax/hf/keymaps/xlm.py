"""XLM (arXiv:1901.07291) and FlauBERT (arXiv:1912.05372) under the names of transformers (models/xlm, models/flaubert).

Post-norm layers, four times as wide inside, and a classifier without a dense layer. Not: embeddings of languages,
decoders, the adaptive softmax, and FlauBERT's pre-norm layers, which have no norm after the last.
"""

from __future__ import annotations

from typing import Any

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.hf.keymap import Entry, KeyMap
from bertjax.hf.keymaps import bert
from bertjax.hf.keymaps.family import (
    ENCODER_ONLY,
    SEQUENCE,
    Family,
    Fields,
    Refusals,
    axis_sizes,
    linear,
    norm,
    parse_fields,
    table,
)

_FIELDS: Fields = {
    "vocab_size": ("vocab_size", 30145, int),
    "emb_dim": ("hidden_size", 2048, int),
    "n_layers": ("num_layers", 12, int),
    "n_heads": ("num_heads", 16, int),
    "max_position_embeddings": ("max_position_embeddings", 512, int),
    "dropout": ("hidden_dropout", 0.1, float),
    "attention_dropout": ("attention_dropout", 0.1, float),
    "layer_norm_eps": ("layer_norm_eps", 1e-12, float),
    "init_std": ("initializer_range", 0.02, float),
    "pad_token_id": ("pad_token_id", 2, int),
}
_ATTENTION = {"query": "q_lin", "key": "k_lin", "value": "v_lin", "output": "out_lin"}
_SUMMARY = {"summary_type": "first", "summary_use_proj": True, "summary_proj_to_labels": True}
# Dropout before the layer of the sequence classifier; the other classes have `dropout`.
_RATE: Fields = {"summary_first_dropout": ("classifier_dropout", 0.1, float)}
_GELU: Fields = {"gelu_activation": ("gelu", True, bool)}
_LANGUAGES: Fields = {"n_langs": ("count", 1, int), "use_lang_emb": ("used", True, bool)}
# Ids that the tokenizer knows, the sizes of the beam of another class, and what the authors trained with.
_INERT = """
amp bos_index bptt clip_grad_norm embed_init_std encoder_only end_n_top eos_index fp16 group_by_size id2lang lang2id
lang_id langs lg_sampling_factor lgs mask_index max_batch_size max_vocab min_count mlm_steps pad_index sample_alpha
share_inout_emb start_n_top tokens_per_batch unk_index word_blank word_dropout word_keep word_mask word_mask_keep_rand
word_pred word_rand word_shuffle
"""


def make_keymap(config: EncoderConfig) -> KeyMap:
    """Returns the names of the parameters."""
    param, embeddings, tensor = "encoder/layers/{L}", "encoder/embeddings", "transformer"
    entries = [
        *table(f"{embeddings}/word_embeddings", f"{tensor}.embeddings", "V D"),
        *table(f"{embeddings}/position_embeddings", f"{tensor}.position_embeddings", "P D"),
        *norm(f"{embeddings}/norm", f"{tensor}.layer_norm_emb", config),
    ]
    for name, theirs in _ATTENTION.items():
        entries += linear(f"{param}/attention/{name}", f"{tensor}.attentions.{{L}}.{theirs}", "D D")
    return KeyMap(
        entries=(
            *entries,
            *norm(f"{param}/attention/norm", f"{tensor}.layer_norm1.{{L}}", config),
            *linear(f"{param}/feed_forward/intermediate", f"{tensor}.ffns.{{L}}.lin1", "D F"),
            *linear(f"{param}/feed_forward/output", f"{tensor}.ffns.{{L}}.lin2", "F D"),
            *norm(f"{param}/feed_forward/norm", f"{tensor}.layer_norm2.{{L}}", config),
            Entry("mlm_head/bias", "pred_layer.proj.bias", "V", head="mlm"),
            *linear("sequence_head/output", "sequence_summary.summary", "D C", head=SEQUENCE),
            *bert.token_head_entries(),
        ),
        sizes=axis_sizes(config),
        renames=(
            (r"^(embeddings|position_embeddings|layer_norm_emb|attentions|layer_norm[12]|ffns)\.", r"transformer.\1."),
        ),  # files of the bare model
        ignored=(r"position_ids$",),
        ties={"pred_layer.proj.weight": "transformer.embeddings.weight"},
        backbone=r"^(transformer|pred_layer)\.",
    )


def _parse(values: dict[str, Any], fields: dict[str, Any], where: str) -> dict[str, Any]:
    languages = parse_fields(values, _LANGUAGES, where)
    if languages["count"] > 1 and languages["used"]:
        raise UserError(f"{where}: n_langs = {languages['count']} is not supported: use_lang_emb = false is needed")
    if values.get("pad_token_id", 0) is None:
        raise UserError(f"{where}: pad_token_id = null is not supported: the classes count tokens by it")
    rate = parse_fields(values, _RATE, where)["classifier_dropout"]
    is_classifier = str((values.get("architectures") or [""])[0]).endswith("ForSequenceClassification")
    return {
        "intermediate_size": 4 * fields["hidden_size"],
        "hidden_act": "gelu" if parse_fields(values, _GELU, where)["gelu"] else "relu",
        "classifier_dropout": rate if is_classifier else None,
    }


def _render(config: EncoderConfig, architecture: str) -> dict[str, Any]:
    is_classifier = architecture.endswith("ForSequenceClassification")
    rate = config.rate("classifier_dropout") if is_classifier else 0.1
    return {"gelu_activation": {"gelu": True, "relu": False}[config.hidden_act], "summary_first_dropout": rate}


def _family(name: str, classes: str, aliases: dict[str, str], training_only: Refusals = ()) -> Family:
    return Family(
        name=name,
        model_type=name,
        make_keymap=make_keymap,
        architectures={
            f"{classes}WithLMHeadModel": ("mlm",),
            f"{classes}ForSequenceClassification": (SEQUENCE,),
            f"{classes}ForTokenClassification": ("token_classification",),
            f"{classes}ForQuestionAnsweringSimple": ("question_answering",),
            f"{classes}Model": (),
        },
        fields=_FIELDS,
        structure={"type_vocab_size": 0, "initializer": "normal", "mlm_head": "bias", "classifier_dense": "none"},
        constants=_SUMMARY | {"n_langs": 1, "tie_word_embeddings": True},
        unsupported=(
            *ENCODER_ONLY,
            ("is_encoder", (True, None), "only encoders are supported"),
            ("causal", (False, None), "only encoders are supported"),
            ("asm", (False, None), "scores are those of the whole vocabulary"),
            ("pre_norm", (False, None), "there is a norm after every block"),
            *((key, (value,), f"the classifier reads {key} = {value!r}") for key, value in _SUMMARY.items()),
            ("summary_activation", (None, ""), "the classifier has no activation"),
            ("summary_last_dropout", (0, None), "the classifier has dropout before its layer only"),
        ),
        training_only=(
            ("sinusoidal_embeddings", (False, None), "the table of positions is trained"),
            *training_only,
        ),
        aliases={
            "hidden_size": "emb_dim",
            "num_attention_heads": "n_heads",
            "num_hidden_layers": "n_layers",
            "n_words": "vocab_size",
            **aliases,
        },
        ignored_keys=_INERT,
        extra_fields=_parse,
        extra_keys=_render,
        prefix="transformer.",
    )


FAMILIES = {
    "xlm": _family("xlm", "XLM", {"pad_index": "pad_token_id"}),
    "flaubert": _family("flaubert", "Flaubert", {}, (("layerdrop", (0, None), "no layer is dropped"),)),
}
