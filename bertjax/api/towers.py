"""Encoder-decoders of trained encoders."""

from __future__ import annotations

import os

from bertjax.api.errors import python_errors
from bertjax.api.models import ModelSource, load_pretrained
from bertjax.data.tokenizer import Tokenizer
from bertjax.errors import UserError
from bertjax.experiment.open_model import tokenizer_of
from bertjax.hf.encoder_decoder import pretrained
from bertjax.hf.encoder_decoder.pretrained import PretrainedEncoderDecoder
from bertjax.hf.pretrained import PretrainedModel


@python_errors()
def from_encoders(
    encoder: ModelSource, decoder: ModelSource | None = None, *, sharing: str = "none", seed: int = 0
) -> PretrainedEncoderDecoder:
    """Makes an encoder-decoder of trained encoders of any family (arXiv:1907.12461); it needs training.

    The decoder gets causal attention and fresh cross-attention, and where its model has none a fresh output head. One
    tokenizer reads sources and writes targets.

    Args:
        encoder: A run, a folder, `hub:NAME`, or a loaded model.
        decoder: What the decoder starts as; None: the encoder, too (bert2bert).
        sharing: What both share: none, embeddings or all (roberta-shared).
        seed: Seed of the fresh parameters.

    Raises:
        UserError: A model cannot be read, is not a single network, has another tokenizer, or cannot share.
    """
    first, tokenizer = _read(encoder, "encoder")
    second, other = (first, tokenizer) if decoder is None else _read(decoder, "decoder")
    if tokenizer.tokens != other.tokens:
        raise UserError(
            f"encoder and decoder have other tokens ({tokenizer.size:,} and {other.size:,}), but one tokenizer reads "
            "sources and writes targets; move one to the tokenizer of the other with init_embeddings=remap"
        )
    ids = {"bos_token_id": tokenizer.cls_id, "eos_token_id": tokenizer.sep_id, "pad_token_id": tokenizer.pad_id}
    model = pretrained.from_encoders(first, second, sharing, seed, tokenizer.cls_id)
    model.generation = ids | {"decoder_start_token_id": tokenizer.cls_id}
    return model


def _read(source: ModelSource, name: str) -> tuple[PretrainedModel, Tokenizer]:
    model = source if isinstance(source, PretrainedModel) else load_pretrained(os.fspath(source))
    if not isinstance(model, PretrainedModel):
        raise UserError(f"{name}={source} has an encoder and a decoder already; give a single network")
    return model, tokenizer_of(model)
