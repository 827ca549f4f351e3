"""The keys of the heads of an encoder: what they compute."""

from __future__ import annotations

import dataclasses
from typing import Any

from bertjax.config.architecture import HEAD_ACTIVATIONS, MAX_LAYERS, dropout_setting, size_setting
from bertjax.config.fields import Settings, setting

WITH_DENSE = ("transform", "two_layers")  # masked-token heads whose table may have another width than the layers
CLASSIFIERS = ("sequence_classification", "token_classification", "question_answering", "multiple_choice")


def has_classifier_layer(config: Any) -> bool:
    """Returns whether a classifier of the model, or its head on every token, has a dense layer of its own."""
    return config.classifier_dense == "own" or bool(config.token_classifier_dense)


@dataclasses.dataclass(frozen=True)
class HeadsConfig(Settings, group="model"):
    """The heads, those of pretraining and those of tasks, and a decoder whose states they may read."""

    decoder_layers: int | None = setting(
        None,
        at_least=1,
        at_most=MAX_LAYERS,
        help="Layers of a decoder after the encoder, which reads the same tokens one position late; heads read its "
        "states (BART's and T5's classifiers, objective.name=task). None: no decoder.",
    )
    decoder_start: str = setting(
        "eos",
        choices=("eos", "pad", "last"),
        read_if=lambda config: config.decoder_layers is not None,
        help="First token of that decoder: the end token (BART), padding (T5), the last token of the text (mBART).",
    )
    eos_token_id: int = setting(
        0,
        key=False,
        may_differ_from_init=True,
        read_if=lambda config: config.decoder_layers is not None or config.pooling == "eos",
        help="Id of the end token, for `decoder_start` and pooling=eos.",
    )
    pooler_act: str = setting(
        "tanh",
        choices=(*HEAD_ACTIVATIONS, "none"),
        heads=("pooler",),
        help="Activation of the pooler; none: it has neither layer nor activation (MobileBERT).",
    )
    mlm_head: str = setting(
        "transform",
        choices=("transform", "two_layers", "bias", "tied"),
        heads=("mlm",),
        help="transform: dense layer, activation, norm, scores, bias; two_layers: twice dense layer and activation, "
        "scores, bias (UltraBERT); bias: scores, bias; tied: scores without bias.",
    )
    prediction_head_size: int | None = size_setting(
        None,
        heads=("mlm",),
        read_if=lambda config: config.mlm_head == "two_layers",
        help="Width between the two layers; None: hidden_size.",
    )
    mlm_act: str | None = setting(
        None, choices=HEAD_ACTIVATIONS, heads=("mlm",), help="Activation of the masked-token head; None: hidden_act."
    )
    head_dense_bias: bool = setting(
        True, heads=("mlm", *CLASSIFIERS), help="Bias of the dense layers of masked-token head and classifiers."
    )
    mlm_bias: bool = setting(True, heads=("mlm",), help="Bias of the masked-token head's scores.")
    tie_word_embeddings: bool = setting(
        True, heads=("mlm",), help="Scores of the masked-token head read the word table; false: a table of their own."
    )
    output_embedding_size: int | None = size_setting(
        None,
        heads=("mlm",),
        read_if=lambda config: config.mlm_head in WITH_DENSE,
        help="Width of that table and of the layer before it (RemBERT). With a tied table its further columns are the "
        "head's own (MobileBERT). None: that of the word table.",
    )
    scale_logits: bool = setting(
        False,
        heads=("mlm",),
        help="Divide hidden states by the root of their width before they are scored (T5, where the table is tied).",
    )
    logit_soft_cap: float | None = setting(
        None,
        above=0.0,
        heads=("mlm", "span_boundary"),
        help="Scores x of the vocabulary become c tanh(x / c) (Gemma 2, arXiv:2408.00118); None: they stay.",
    )
    enhanced_decoder: bool = setting(
        False,
        heads=("mlm",),
        help="Masked tokens are predicted from the last layer run twice over absolute positions (DeBERTa).",
    )
    masked_next_token: bool = setting(
        False,
        key=False,
        may_differ_from_init=True,
        heads=("mlm",),
        read_if=lambda config: not config.causal and not config.enhanced_decoder,
        help="Masked tokens were predicted from the token before them; see `Mlm.masked_next_token`.",
    )
    rtd_head: str = setting(
        "dense",
        choices=("dense", "summary"),
        heads=("rtd",),
        help="Replaced-token head: dense (ELECTRA), or summary: norm of summary + token first (DeBERTa v3).",
    )
    span_positions: int = size_setting(
        20, heads=("span_boundary",), help="Span-boundary head: positions of a span that are distinguished."
    )
    span_position_size: int = size_setting(
        200, heads=("span_boundary",), help="Span-boundary head: width of their embeddings."
    )
    pooling: str = setting(
        "first",
        choices=("first", "last", "eos", "mean", "late"),
        heads=("pooler", "pair", "sequence_classification", "multiple_choice"),
        help="Vector of an example: its first token, its last, its last end token (eos: BART, T5), or the mean of all; "
        "late: mean of all, where a classifier scores every token and the mean is taken of the scores (EuroBERT).",
    )
    classifier_dense: str = setting(
        "pooler",
        choices=("pooler", "own", "none"),
        heads=("sequence_classification",),
        help="Layer before a classifier: the model's pooler, a dense layer of its own, none.",
    )
    choice_dense: str = setting(
        "as_classifier",
        choices=("as_classifier", "pooler"),
        heads=("multiple_choice",),
        help="Layer before the score of a choice: that of `classifier_dense`, or the pooler (RoBERTa).",
    )
    classifier_act: str = setting(
        "tanh",
        choices=HEAD_ACTIVATIONS,
        heads=CLASSIFIERS,
        read_if=has_classifier_layer,
        help="Activation of a classifier's own dense layer.",
    )
    classifier_norm: bool = setting(False, heads=CLASSIFIERS, read_if=has_classifier_layer, help="Norm after it.")
    token_classifier_dense: bool = setting(
        False,
        heads=("token_classification", "question_answering"),
        help="Heads on every token have that dense layer as well (ModernBERT).",
    )
    answer_head: str = setting(
        "tokens",
        choices=("tokens", "question"),
        heads=("question_answering",),
        help="Scores of the ends of an answer: tokens: a layer on every token; question: products of every token with "
        "the token [QUESTION] of the text, in a text without one with its first (Splinter, arXiv:2101.00438).",
    )
    question_token_id: int | None = setting(
        None,
        key=False,
        may_differ_from_init=True,
        heads=("question_answering",),
        read_if=lambda config: config.answer_head == "question",
        help="Id of that token; None: the tokenizer has none.",
    )
    classifier_bias: bool = setting(
        True, heads=("sequence_classification",), help="Bias of a classifier's scores; false: most decoders."
    )
    classifier_dropout: float | None = dropout_setting(None, "Dropout before a classifier; None: hidden_dropout.")
    labels: tuple[str, ...] = setting(
        ("LABEL_0", "LABEL_1"), changes_output=False, help="Names of a classifier's labels."
    )
