"""An encoder-decoder in memory: load it from a folder, make it of trained encoders, call it, save it."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float, Int

from bertjax.config.encoder_decoder import EncoderDecoderConfig
from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.hf.encoder_decoder.family import family_of
from bertjax.hf.encoder_decoder.folders import EncoderDecoderWeights, read_weights, write_folder
from bertjax.hf.forward import Inputs, check_inputs, max_input_length
from bertjax.hf.generate import generate_ids, generation_settings
from bertjax.hf.load import ModelWeights
from bertjax.models.encoder_decoder import bind, init_params, warm_start
from bertjax.types import Params


class EncoderDecoderOutput(NamedTuple):
    """Outputs of an encoder-decoder, named as in `transformers`; S tokens of the source, T of the target.

    Attributes:
        encoder_hidden_states, decoder_hidden_states: embeddings first; None if they were not requested.
    """

    logits: Float[Array, "B T V"]
    encoder_last_hidden_state: Float[Array, "B S D"]
    decoder_last_hidden_state: Float[Array, "B T D2"]
    encoder_hidden_states: Float[Array, "L1 B S D"] | None = None
    decoder_hidden_states: Float[Array, "L2 B T D2"] | None = None


class PretrainedEncoderDecoder(EncoderDecoderWeights):
    """Config, parameters and files of an encoder-decoder that can be called and saved."""

    def __call__(
        self,
        input_ids: Any,
        attention_mask: Any = None,
        decoder_input_ids: Any = None,
        decoder_attention_mask: Any = None,
        output_hidden_states: bool = False,
        token_type_ids: Any = None,
    ) -> EncoderDecoderOutput:
        """Runs encoder and decoder without dropout, in float32; compiled once per shape.

        Args:
            input_ids: tokens of the source [B, S].
            attention_mask: [B, S], 1 = real token; None = all tokens are real.
            decoder_input_ids: tokens of the target, shifted: the start token, then all but the last [B, T].
            decoder_attention_mask: [B, T]; None = all tokens are real.
            output_hidden_states: also return the states of all layers.
            token_type_ids: token types of the source [B, S]; None = zeros.

        Raises:
            UserError: an id lies outside its table (JAX would clamp it silently), or a shape or type is wrong.
        """
        if decoder_input_ids is None:
            raise UserError("decoder_input_ids are missing: an encoder-decoder scores the tokens of a target")
        first, second = (input_ids, attention_mask, token_type_ids), (decoder_input_ids, decoder_attention_mask, None)
        source = _network_inputs(self.config, self.config.encoder, first)
        target = _network_inputs(self.config, self.config.decoder, second, "decoder_")
        if len(source["input_ids"]) != len(target["input_ids"]):
            raise UserError(
                f"input_ids hold {len(source['input_ids'])} sequences, decoder_input_ids {len(target['input_ids'])}"
            )
        with jax.default_matmul_precision("float32"):  # accelerators would multiply float32 in lower precision
            return _forward(self.params, source, target, self.config, output_hidden_states)

    def generate(
        self,
        input_ids: Any,
        attention_mask: Any = None,
        *,
        token_type_ids: Any = None,
        seed: int = 0,
        **settings: Any,
    ) -> Int[np.ndarray, "R T"]:
        """Generates targets, as transformers' `generate` does.

        Args:
            input_ids: tokens of the source [B, S].
            attention_mask: [B, S], 1 = real token; None = all tokens are real.
            token_type_ids: token types of the source [B, S]; None = zeros.
            seed: seed of samples.
            **settings: fields of `GenerationConfig`, by default those of generation_config.json.

        Returns:
            Targets with their start token, end token and padding; `num_return_sequences` of each source one after the
            other.

        Raises:
            UserError: a setting or an input is wrong.
        """
        source = _network_inputs(self.config, self.config.encoder, (input_ids, attention_mask, token_type_ids))
        source["attention_mask"] = source.pop("segment_ids")
        return generate_ids(self.params, self.config, source, generation_settings(self.generation, settings), seed)

    def save_pretrained(
        self,
        folder: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        dtype: str = "float32",
        max_shard_bytes: int = 5_000_000_000,
        card: Mapping[str, Any] | None = None,
    ) -> None:
        """Writes a folder that `transformers` loads, and reads it back to compare.

        A model that no class of `config.family` can hold is written in the native format, with classes of its own that
        `transformers` runs with `trust_remote_code=True`, and with a warning that names the reason. The folder appears
        under its name after the comparison only. Equal parameters give equal bytes.

        Args:
            folder: a new or empty folder, or with `overwrite` an earlier export.
            overwrite: replace an earlier export.
            dtype: type of the weights: float32, bfloat16 or float16.
            max_shard_bytes: larger weights are split into files of this size, with an index.
            card: facts for README.md; see `model_card.render_facts`.

        Raises:
            UserError: the folder holds something else, or the disk refused.
            ExportError: the model read back is not the model in memory.
        """
        write_folder(folder, self, overwrite, dtype, max_shard_bytes, card)


def read_encoder_decoder(folder: str | os.PathLike[str]) -> PretrainedEncoderDecoder:
    """Loads the encoder-decoder of a folder or of the Hub; see `load_pretrained`.

    Raises:
        UserError: a file is missing, unreadable or unsafe, or the model is not supported.
    """
    weights = read_weights(folder)
    params = jax.device_put(weights.params, may_alias=False)
    return PretrainedEncoderDecoder(weights.config, params, weights.generation, weights.tokenizer_files)


def from_encoders(
    encoder: ModelWeights,
    decoder: ModelWeights,
    sharing: str = "none",
    seed: int = 0,
    start_token_id: int | None = None,
) -> PretrainedEncoderDecoder:
    """Makes an encoder-decoder of trained encoders of any family (arXiv:1907.12461); it needs training.

    The decoder gets causal attention and fresh cross-attention, and where its model has none a fresh output head.

    Args:
        encoder: the encoder.
        decoder: what the decoder starts as; the encoder itself gives bert2bert.
        sharing: what both share: none, embeddings or all (roberta-shared).
        seed: seed of the fresh parameters.
        start_token_id: id of the token before the first of a target.

    Raises:
        UserError: the two cannot share what they should.
    """
    networks = encoder.config, decoder.config.as_decoder(encoder.config)
    pooler = tuple(head for head in encoder.heads if head == "pooler")
    config = EncoderDecoderConfig(*networks, sharing, pooler, "encoder-decoder", start_token_id)
    params = warm_start(config, init_params(config, jax.random.key(seed)), encoder.params, decoder.params)
    return PretrainedEncoderDecoder(config, jax.device_put(params, may_alias=False), {}, encoder.tokenizer_files)


@functools.partial(jax.jit, static_argnums=(3, 4))
def _forward(
    params: Params, source: Inputs, target: Inputs, config: EncoderDecoderConfig, output_hidden_states: bool
) -> EncoderDecoderOutput:
    model, collect = bind(config, params), ("hidden_states",) if output_hidden_states else ()
    encoded = model.encode(**source, collect=collect)
    decoded = model.decode(encoded.last_hidden_state, source["segment_ids"], **target, collect=collect)
    logits = model.decoder.mlm_logits(decoded.last_hidden_state)[..., : config.decoder.vocab_size]
    last = encoded.last_hidden_state, decoded.last_hidden_state
    return EncoderDecoderOutput(logits, *last, encoded.hidden_states, decoded.hidden_states)


def _network_inputs(
    config: EncoderDecoderConfig, network: EncoderConfig, arrays: tuple[Any, Any, Any], prefix: str = ""
) -> Inputs:
    """Returns the checked inputs of a network; positions count padding where those of the family do."""
    limit, shape, positions = max_input_length(network), np.shape(arrays[0]), None
    if len(shape) == 2 and limit is not None and shape[1] > limit:
        raise UserError(f"{prefix}input_ids have {shape[1]} tokens; the model has {limit} positions")
    family = family_of(config)
    if len(shape) == 2 and (family is None or family.counts_padding):
        positions = np.broadcast_to(np.arange(shape[1]) + network.position_offset, shape)
    try:
        return check_inputs(network, (), *arrays, positions)
    except UserError as error:
        raise UserError(f"{prefix}{error}") from None
