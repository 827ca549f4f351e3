"""Config of an encoder with a decoder that attends to it: two encoder configs, and what they share."""

from __future__ import annotations

import dataclasses
from typing import Any

from ml_collections import ConfigDict

from bertjax.config.distributed import MeshConfig
from bertjax.config.fields import PRESET, Reader, Settings, setting
from bertjax.config.model import OF_TOKENIZER, EncoderConfig, differences, encoder_config, explicit_values
from bertjax.config.presets import PRESETS as NETWORK_PRESETS
from bertjax.config.presets import preset
from bertjax.errors import UserError, require_one_of
from bertjax.types import Vocabulary

SHARINGS = ("embeddings", "none", "all")
"""What encoder and decoder share: the word table (the Transformer, T5, BART); nothing (bert2bert); or every parameter
that the encoder has, so that only cross-attention and head are the decoder's own (arXiv:1907.12461, "shared")."""

START_TOKENS = ("cls", "sep", "pad")
"""Special tokens that can stand before the first token of a target."""
_TOGETHER = ("causal", "cross_attention_hidden_size", "conv_kernel_size", "local_attention", "max_position_embeddings")
"""Fields in which networks with shared layers may differ: they change no parameter that both have."""


@dataclasses.dataclass(frozen=True)
class EncoderDecoderConfig:
    """An encoder and a decoder; any mixture of positions, norms, feed-forward blocks and windows in either.

    The output projection is the decoder's masked-token head: with `tie_word_embeddings` it reads the decoder's word
    table, which with `sharing="embeddings"` is also the encoder's.

    Attributes:
        encoder: the encoder.
        decoder: the decoder, causal and with cross-attention; see `as_decoder`.
        sharing: one of `SHARINGS`.
        encoder_heads: heads of the encoder that are kept, though nothing here reads them (a BERT's pooler).
        family: key of `hf.encoder_decoder.families.FAMILIES`, whose class an export gets if it can hold the model;
            bertjax: our own format; auto: the first class that holds it.
        decoder_start_token_id: id of the token before the first of a target; None: the tokenizer's first special token.

    Raises:
        UserError: encoder and decoder do not fit together.
    """

    encoder: EncoderConfig
    decoder: EncoderConfig
    sharing: str = "embeddings"
    encoder_heads: tuple[str, ...] = ()
    family: str = "bertjax"
    decoder_start_token_id: int | None = None

    def __post_init__(self) -> None:
        require_one_of("decoder.sharing", self.sharing, SHARINGS)
        if not self.decoder.causal or self.encoder.cross_attention_hidden_size is not None:
            raise UserError("a decoder needs causal=true, and an encoder has no cross-attention: see `as_decoder`")
        if self.decoder.cross_attention_hidden_size != self.encoder.hidden_size:
            raise UserError(
                f"the decoder attends to states of {self.decoder.cross_attention_hidden_size}, but the encoder has "
                f"hidden_size={self.encoder.hidden_size}; make them equal"
            )
        for name in self._equal_fields():
            ours, theirs = getattr(self.encoder, name), getattr(self.decoder, name)
            if ours != theirs:
                raise UserError(
                    f"encoder and decoder cannot share {self.sharing}: {name} is {ours} and {theirs}; make them equal, "
                    "or set decoder.sharing=none"
                )

    @classmethod
    def symmetric(cls, model: EncoderConfig, sharing: str = "embeddings", **others: Any) -> EncoderDecoderConfig:
        """Returns an encoder with a decoder of the same kind; `others` are further fields."""
        return cls(model, as_decoder(model, model), sharing, **others)

    def _equal_fields(self) -> list[str]:
        if self.sharing == "none":
            return []
        names = ["vocab_size", "table_size", "embedding_dim"]
        if self.sharing == "all":
            names += [name for name in differences(self.encoder, self.decoder, heads=False) if name not in _TOGETHER]
        return names


def as_decoder(model: EncoderConfig, encoder: EncoderConfig, **changes: Any) -> EncoderConfig:
    """Returns a model as the decoder of an encoder: causal, with cross-attention, without parts that see what follows.

    `changes` are further changes.
    """
    parts = {"causal": True, "cross_attention_hidden_size": encoder.hidden_size, "decoder_layers": None}
    ngram = 1 if model.embedding_ngram == 1 else None
    without = {"enhanced_decoder": False, "conv_kernel_size": 0, "embedding_ngram": ngram}
    return dataclasses.replace(model, **parts | without | changes)


@dataclasses.dataclass(frozen=True)
class DecoderConfig(Settings, group="decoder"):
    """Objectives with an encoder-decoder: the decoder; its other keys are `model`'s."""

    preset: str = setting(
        "model",
        help='Published model whose values are used where a key is "preset"; model: the values of `model`. The decoder '
        "is causal and attends to the encoder in any case.",
    )
    sharing: str = setting(
        "embeddings",
        choices=SHARINGS,
        help="What encoder and decoder share: embeddings = the word table (the Transformer, T5, BART); none "
        "(bert2bert); all = every parameter that the encoder has (arXiv:1907.12461).",
    )
    start_token: str = setting(
        "cls",
        choices=START_TOKENS,
        help="Special token before the first token of a target: cls (BERT), sep (BART), pad (T5, Marian).",
    )

    def join(
        self, encoder: EncoderConfig, decoder: EncoderConfig, vocabulary: Vocabulary | None = None
    ) -> EncoderDecoderConfig:
        """Returns the model of encoder and decoder; raises `UserError` if they do not fit together.

        Args:
            encoder: the encoder.
            decoder: the decoder.
            vocabulary: the tokenizer's, which knows the id of the start token.
        """
        start = None if vocabulary is None else getattr(vocabulary, f"{self.start_token}_id")
        return EncoderDecoderConfig(encoder, decoder, self.sharing, (), "auto", start)


def encoder_decoder_config(cfg: ConfigDict, vocabulary: Vocabulary | None = None) -> EncoderDecoderConfig:
    """Reads an encoder-decoder: `model`, and the values of `decoder` over those of its preset or of `model`.

    `vocabulary` is that of the tokenizer, once it is known.

    Raises:
        UserError: encoder or decoder cannot be built, or they do not fit together.
    """
    encoder, group = encoder_config(cfg, vocabulary), cfg.decoder
    encoder = dataclasses.replace(encoder, **_class_values(cfg.model))
    values = dict(vars(encoder))
    if group.preset != "model":
        values = preset(group.preset) | {name: values[name] for name in OF_TOKENIZER}
    explicit = _class_values(group) | explicit_values(group)
    try:
        decoder = as_decoder(EncoderConfig(**values), encoder, **explicit)
    except UserError as error:
        raise UserError(f"the decoder: {str(error).replace('model.', 'decoder.')}") from None
    Reader(cfg)(MeshConfig).check_model(decoder)
    return Reader(cfg)(DecoderConfig).join(encoder, decoder, vocabulary)


def _class_values(group: ConfigDict) -> dict[str, Any]:
    """Returns what the class of a preset's export fixes otherwise than its authors, where the config leaves it open."""
    values = next((changes for name, _, _, changes in PRESETS.values() if name == group.preset), {})
    return {name: value for name, value in values.items() if group[name] == PRESET}


_MARIAN = {"layer_norm_eps": 1e-5}  # as in Marian and fairseq; tensorflow/tensor2tensor has 1e-6

PRESETS: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "transformer-base": ("transformer-base", "embeddings", "marian", _MARIAN),
    "transformer-big": ("transformer-big", "embeddings", "marian", _MARIAN),
    "bert2bert": ("bert-base", "none", "encoder-decoder", {}),
    "roberta-shared": ("roberta-base", "all", "encoder-decoder", {}),
    **{name: (name, "embeddings", "t5", {}) for name in NETWORK_PRESETS if name.startswith("t5-")},
    **{name: (name, "embeddings", "bart", {}) for name in NETWORK_PRESETS if name.startswith("bart-")},
    **{name: (name, "embeddings", "m2m_100", {}) for name in NETWORK_PRESETS if name.startswith(("m2m100-", "nllb-"))},
}
"""Name -> (preset of either network, what they share, family, other values); config/presets.py, arXiv:1907.12461."""


def encoder_decoder_preset(name: str, vocab_size: int) -> EncoderDecoderConfig:
    """Returns a published encoder-decoder: `name` is one of `PRESETS`, `vocab_size` the number of tokens.

    Raises:
        UserError: the name is unknown.
    """
    require_one_of("the preset of an encoder-decoder", name, tuple(PRESETS))
    model, sharing, family, changes = PRESETS[name]
    values = preset(model) | changes | {"vocab_size": vocab_size}
    return EncoderDecoderConfig.symmetric(EncoderConfig(**values), sharing, family=family)
