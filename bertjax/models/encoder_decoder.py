"""An encoder and a decoder as one model, with its parameters as a nested dict {"encoder": ..., "decoder": ...}.

Each part is a `Model`. An array that both use belongs to the encoder, so that it has one gradient, one optimizer state
and one name; the decoder's parameters are completed with it before they are used.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple

import jax
from jaxtyping import Array, Float, Int

from bertjax.config.encoder_decoder import EncoderDecoderConfig
from bertjax.io.tree_paths import flatten_tree, unflatten_tree
from bertjax.models import model as single
from bertjax.models.encoder import EncoderOutput
from bertjax.models.linear import Key
from bertjax.models.model import Model
from bertjax.types import Params

DECODER_HEADS = ("mlm",)
_WORD_TABLE = "encoder/embeddings/word_embeddings/embedding"


class EncoderDecoder(NamedTuple):
    """Encoder and decoder, bound to their parameters."""

    encoder: Model
    decoder: Model

    def encode(
        self,
        input_ids: Int[Array, "B S"],
        segment_ids: Int[Array, "B S"],
        position_ids: Int[Array, "B S"],
        token_type_ids: Int[Array, "B S"],
        key: Key | None = None,
        collect: tuple[str, ...] = (),
    ) -> EncoderOutput:
        """Runs the encoder. Args: as in `Encoder.__call__`."""
        tokens = input_ids, segment_ids, position_ids, token_type_ids
        return self.encoder.encode(*tokens, key=None if key is None else jax.random.fold_in(key, 0), collect=collect)

    def decode(
        self,
        source: Float[Array, "B S D"],
        source_segment_ids: Int[Array, "B S"],
        input_ids: Int[Array, "B T"],
        segment_ids: Int[Array, "B T"],
        position_ids: Int[Array, "B T"],
        token_type_ids: Int[Array, "B T"],
        key: Key | None = None,
        collect: tuple[str, ...] = (),
    ) -> EncoderOutput:
        """Runs the decoder; target example i sees source example i. Its states go into `decoder.mlm_logits`.

        Args:
            source, source_segment_ids: last hidden states of the encoder and the examples of its tokens.
            input_ids, segment_ids, position_ids, token_type_ids: the target, shifted by one token.
            key: key of the dropout; None = no dropout.
            collect: as in `Encoder.__call__`.
        """
        tokens = input_ids, segment_ids, position_ids, token_type_ids
        key = None if key is None else jax.random.fold_in(key, 1)
        encoded = {"encoder_hidden_states": source, "encoder_attention_mask": source_segment_ids}
        return self.decoder.encode(*tokens, key=key, collect=collect, **encoded)


def bind(config: EncoderDecoderConfig, params: Params) -> EncoderDecoder:
    """Returns the model with these parameters."""
    encoder, decoder = complete_params(config, params)
    return EncoderDecoder(
        single.bind(config.encoder, config.encoder_heads, encoder), single.bind(config.decoder, DECODER_HEADS, decoder)
    )


def complete_params(config: EncoderDecoderConfig, params: Params) -> tuple[Params, Params]:
    """Returns the complete parameters of encoder and decoder."""
    names = shared_paths(config)
    if not names:
        return params["encoder"], params["decoder"]
    encoder = flatten_tree(params["encoder"])
    complete = flatten_tree(params["decoder"]) | {path: encoder[path] for path in names}
    return params["encoder"], unflatten_tree(complete)


def without_shared(config: EncoderDecoderConfig, encoder: Params, decoder: Params) -> Params:
    """Returns the parameters of the model from complete ones of both networks; of what they share, the encoder's.

    Args:
        config: the model.
        encoder: parameters of the encoder.
        decoder: parameters of the decoder.
    """
    names = set(shared_paths(config))
    remaining = {path: leaf for path, leaf in flatten_tree(decoder).items() if path not in names}
    return {"encoder": encoder, "decoder": unflatten_tree(remaining)}


@functools.lru_cache(maxsize=64)
def shared_paths(config: EncoderDecoderConfig) -> tuple[str, ...]:
    """Returns the paths of the decoder's parameters that are the encoder's under the same path."""
    if config.sharing == "none":
        return ()
    if config.sharing == "embeddings":
        return (_WORD_TABLE,)
    encoder, decoder = (
        {path: leaf.shape for path, leaf in flatten_tree(single.abstract_params(each, ())).items()}
        for each in (config.encoder, config.decoder)
    )
    return tuple(path for path in decoder if decoder[path] == encoder.get(path))


def warm_start(config: EncoderDecoderConfig, params: Params, encoder: Params, decoder: Params) -> Params:
    """Replaces parameters by those of two trained networks (arXiv:1907.12461).

    The others, cross-attention among them, stay as they are.

    Args:
        config: the model.
        params: its parameters.
        encoder: parameters of a network of the encoder's kind, by the same paths.
        decoder: those of a network of the decoder's kind; what encoder and decoder share is taken from `encoder`.
    """
    networks = {}
    for name, fresh, source in zip(params, complete_params(config, params), (encoder, decoder), strict=True):
        trained, fresh = flatten_tree(source), flatten_tree(fresh)
        networks[name] = unflatten_tree({path: trained.get(path, leaf) for path, leaf in fresh.items()})
    return without_shared(config, networks["encoder"], networks["decoder"])


def init_params(config: EncoderDecoderConfig, key: Key) -> Params:
    """Draws the parameters, a nested dict of float32 arrays without the decoder's copies of shared ones."""
    first, second = jax.random.split(key)
    encoder = single.init_params(config.encoder, config.encoder_heads, first)
    return without_shared(config, encoder, single.init_params(config.decoder, DECODER_HEADS, second))


def abstract_params(config: EncoderDecoderConfig) -> Params:
    """Returns shapes and dtypes of `init_params` without allocating them."""
    encoder = single.abstract_params(config.encoder, config.encoder_heads)
    return without_shared(config, encoder, single.abstract_params(config.decoder, DECODER_HEADS))


def unpadded(config: EncoderDecoderConfig) -> EncoderDecoderConfig:
    """Returns the model at its true vocabulary size."""
    encoder, decoder = (dataclasses.replace(each, padded_vocab_size=None) for each in (config.encoder, config.decoder))
    return dataclasses.replace(config, encoder=encoder, decoder=decoder)


def count_params(config: EncoderDecoderConfig) -> int:
    """Returns the number of parameters at the true vocabulary size; shared and tied ones count once."""
    return sum(leaf.size for leaf in jax.tree.leaves(abstract_params(unpadded(config))))
