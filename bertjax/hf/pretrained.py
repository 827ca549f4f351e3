"""A loaded model: checked inputs, one forward pass without dropout, every head's output."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.hf.xlnet_inputs import TwoStreamInputs, check_two_stream_inputs
from bertjax.models.encoder import EncoderOutput
from bertjax.models.model import Model, bind
from bertjax.models.two_stream import run_two_streams
from bertjax.types import Params

Inputs = dict[str, Array]


class ModelOutput(NamedTuple):
    """What a loaded model returns; None where the model has no such head or it was not asked for.

    last_hidden_state [B, S, D]   hidden_states [L + 1, B, S, D], embeddings first
    pooler_output [B, D]          pair_logits [B, 2]
    mlm_logits [B, S, V]          rtd_logits [B, S], positive = replaced
    sequence_logits [B, K]        token_logits [B, S, K]
    start_logits, end_logits [B, S] of the answer to a question

    Two streams (XLNet with `target_mapping`): `last_hidden_state` and `mlm_logits` are those of the T targets, and
    other heads have no output; target_hidden_states [L + 1, B, T, D]. memory [L, B, M, D] of the rows.
    """

    last_hidden_state: Float[Array, "B S D"]
    pooler_output: Float[Array, "B D"] | None = None
    mlm_logits: Float[Array, "B S V"] | None = None
    pair_logits: Float[Array, "B 2"] | None = None
    rtd_logits: Float[Array, "B S"] | None = None
    sequence_logits: Float[Array, "B K"] | None = None
    token_logits: Float[Array, "B S K"] | None = None
    start_logits: Float[Array, "B S"] | None = None
    end_logits: Float[Array, "B S"] | None = None
    hidden_states: Float[Array, "L1 B S D"] | None = None
    target_hidden_states: Float[Array, "L1 B T D"] | None = None
    memory: Float[Array, "L B M D"] | None = None

    @property
    def logits(self) -> Array | None:
        """Of the task that the model was made for, as its class in `transformers` calls them."""
        found = (self.sequence_logits, self.token_logits, self.mlm_logits, self.rtd_logits)
        return next((logits for logits in found if logits is not None), None)


@dataclasses.dataclass(eq=False)
class PretrainedModel:
    """Parameters with what is needed to run and save them; `tokenizer_files` are carried along byte for byte."""

    config: EncoderConfig
    params: Params
    heads: tuple[str, ...]
    tokenizer_files: Mapping[str, bytes] = dataclasses.field(default_factory=dict)

    def __call__(
        self,
        input_ids: Any,
        attention_mask: Any = None,
        token_type_ids: Any = None,
        position_ids: Any = None,
        output_hidden_states: bool = False,
        *,
        memory: Any = None,
        perm_mask: Any = None,
        target_mapping: Any = None,
        output_memory: bool = False,
    ) -> ModelOutput:
        """Runs the model without dropout, in float32; every input is [B, S], compiled once per shape.

        `position_ids` are rows of the position table, as in `transformers` (RoBERTa's first position is row 2).
        The last four arguments are XLNet's: `memory` [L, B, M, D] as an earlier call returned it (`mems`, its axes in
        another order), `perm_mask` [B, S, S], 1 = hidden, and `target_mapping` [B, T, S], one-hot.
        Raises `UserError` for ids that the tables do not have: JAX would clamp them in silence.
        """
        inputs = check_inputs(self.config, self.heads, input_ids, attention_mask, token_type_ids, position_ids)
        streams = None
        if output_memory or any(given is not None for given in (memory, perm_mask, target_mapping)):
            streams = check_two_stream_inputs(self.config, inputs["input_ids"].shape, memory, perm_mask, target_mapping)
        with jax.default_matmul_precision("float32"):  # accelerators multiply float32 more coarsely unless told
            if streams is None:
                return _forward(self.params, inputs, self.config, self.heads, output_hidden_states)
            out = _forward_streams(self.params, inputs, streams, self.config, self.heads, output_hidden_states)
        return out if output_memory else out._replace(memory=None)

    def save_pretrained(self, folder: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Writes a folder that `transformers` loads, and reads it back to compare."""
        from bertjax.hf.save import save_pretrained

        save_pretrained(
            folder, self.params, self.config, heads=self.heads, tokenizer=self.tokenizer_files, overwrite=overwrite
        )


@functools.partial(jax.jit, static_argnums=(2, 3, 4))
def _forward(
    params: Params, inputs: Inputs, config: EncoderConfig, heads: tuple[str, ...], output_hidden_states: bool
) -> ModelOutput:
    model = bind(config, heads, params)
    collect = ("hidden_states",) if output_hidden_states else ()
    encoded = model.encode(**inputs, collect=collect)
    outputs = _head_outputs(model, heads, encoded, inputs)
    return ModelOutput(encoded.last_hidden_state, hidden_states=encoded.hidden_states, **outputs)


@functools.partial(jax.jit, static_argnums=(3, 4, 5))
def _forward_streams(
    params: Params,
    inputs: Inputs,
    streams: TwoStreamInputs,
    config: EncoderConfig,
    heads: tuple[str, ...],
    output_hidden_states: bool,
) -> ModelOutput:
    model = bind(config, heads, params)
    collect = ("hidden_states",) if output_hidden_states else ()
    out = run_two_streams(model.encoder, **inputs, **streams, collect=collect)
    last = out.content if out.targets is None else out.targets
    heads = heads if out.targets is None else tuple(head for head in heads if head == "mlm")
    outputs = _head_outputs(model, heads, EncoderOutput(last), inputs)
    return ModelOutput(
        last,
        hidden_states=out.hidden_states,
        target_hidden_states=out.target_states,
        memory=out.memory,
        **outputs,
    )


def _head_outputs(model: Model, heads: tuple[str, ...], encoded: EncoderOutput, inputs: Inputs) -> dict[str, Array]:
    """The outputs of all heads that read nothing but hidden states (the span-boundary head wants spans, too)."""
    hidden, segment_ids = encoded.last_hidden_state, inputs["segment_ids"]
    rows, length = segment_ids.shape
    positions = jnp.full((rows, 1), length - 1 if model.config.pooling == "last" else 0, jnp.int32)
    found: dict[str, Array] = {}
    if "pooler" in heads:
        found["pooler_output"] = model.pooled(hidden, positions, segment_ids)[:, 0]
    if "mlm" in heads:
        states = model.mlm_hidden_states(encoded, segment_ids, inputs["position_ids"])
        found["mlm_logits"] = model.mlm_logits(states)[..., : model.config.vocab_size]
    if "pair" in heads:
        found["pair_logits"] = model.pair_logits(found["pooler_output"])
    if "rtd" in heads:
        found["rtd_logits"] = model.rtd_logits(hidden, jnp.zeros_like(positions), segment_ids)
    if "sequence_classification" in heads:
        found["sequence_logits"] = model.sequence_logits(hidden, positions, segment_ids)[:, 0]
    if "token_classification" in heads:
        found["token_logits"] = model.token_logits(hidden)
    if "question_answering" in heads:
        scores = model.answer_logits(hidden)
        found |= {"start_logits": scores[..., 0], "end_logits": scores[..., 1]}
    return found


def max_input_length(config: EncoderConfig, heads: tuple[str, ...] = ()) -> int | None:
    """How many tokens a row can have; None where positions are computed, not looked up."""
    looked_up = config.position_embedding == "learned" or (config.enhanced_decoder and "mlm" in heads)
    return config.max_position_embeddings if looked_up else None


def check_inputs(
    config: EncoderConfig,
    heads: tuple[str, ...],
    input_ids: Any,
    attention_mask: Any = None,
    token_type_ids: Any = None,
    position_ids: Any = None,
) -> Inputs:
    """The arguments of `Model.encode`, int32 [B, S], every id within its table; raises `UserError`."""
    ids = _ids("input_ids", input_ids, None, config.vocab_size)
    if config.bi_data and len(ids) % 2:
        raise UserError(f"bi_data is set: half of the rows are read backwards, so {len(ids)} rows must be even")
    mask = np.ones(ids.shape, np.int32)
    if attention_mask is not None:
        mask = np.asarray(attention_mask)
        if mask.shape != ids.shape or not np.isin(mask, (0, 1)).all():
            raise UserError(f"attention_mask must hold 0 and 1 in shape {list(ids.shape)}, as input_ids")
    arrays = {
        "input_ids": ids,
        "segment_ids": mask,
        "position_ids": _positions(config, max_input_length(config, heads), ids, position_ids),
        "token_type_ids": _token_types(config, ids, token_type_ids),
    }
    return {name: jnp.asarray(array, jnp.int32) for name, array in arrays.items()}


def _positions(config: EncoderConfig, longest: int | None, ids: np.ndarray, given: Any) -> np.ndarray:
    """Places of the tokens, counted from 0; where the table has an offset, padding is not counted and stands at -1.

    That is what RoBERTa was trained with (transformers: create_position_ids_from_input_ids).
    """
    if given is not None:
        rows = _MANY if longest is None else config.position_offset + longest
        return _ids("position_ids", given, ids.shape, rows) - config.position_offset
    real = ids != config.pad_token_id if config.position_offset else np.ones(ids.shape, bool)
    places = np.cumsum(real, axis=1) * real - 1
    if longest is not None and places.max() >= longest:
        raise UserError(f"{places.max() + 1} tokens in a row; the model has {longest} positions")
    return places


_MANY = 2**24  # ids without a table: what float32 tells apart


def _token_types(config: EncoderConfig, ids: np.ndarray, given: Any) -> np.ndarray:
    if given is None or not (config.type_vocab_size or config.relative_segments):
        return np.zeros_like(ids)
    return _ids("token_type_ids", given, ids.shape, config.type_vocab_size or _MANY)


def _ids(name: str, values: Any, shape: tuple[int, ...] | None, size: int) -> np.ndarray:
    try:
        array = np.asarray(values)
    except ValueError:
        raise UserError(f"{name} has rows of different lengths; pad them and pass attention_mask") from None
    if array.dtype.kind not in "iu" or array.ndim != 2 or array.size == 0:
        raise UserError(f"{name} must be whole numbers in shape [rows, tokens], not {array.dtype} {list(array.shape)}")
    if shape is not None and array.shape != shape:
        raise UserError(f"{name} has shape {list(array.shape)}; input_ids have {list(shape)}")
    if array.min() < 0 or array.max() >= size:
        bad = int(array.min()) if array.min() < 0 else int(array.max())
        raise UserError(f"{name} holds {bad}; the model has ids 0 to {size - 1}")
    return array.astype(np.int32)
