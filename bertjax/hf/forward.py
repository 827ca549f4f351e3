"""Calls of a loaded model: inputs as `transformers` takes them, checked, and the forward pass in float32."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError, named
from bertjax.models.encoder import EncoderOutput, count_positions
from bertjax.models.model import Model, bind
from bertjax.models.two_stream import check_two_streams, run_two_streams
from bertjax.types import Params

Inputs = dict[str, Array]

_UNBOUNDED = 2**24  # ids without a table: the integers that float32 represents exactly


def max_input_length(config: EncoderConfig, heads: tuple[str, ...] = ()) -> int | None:
    """Returns the most tokens of a sequence; None where positions are computed instead of looked up."""
    looked_up = config.position_embedding == "learned" or (config.enhanced_decoder and "mlm" in heads)
    return config.max_position_embeddings if looked_up else None


def require_readable(config: EncoderConfig, length: int | None, name: str) -> None:
    """Raises `UserError` for a length that a model cannot read.

    Args:
        config: the model.
        length: tokens of a sequence; None: any.
        name: key or argument of the length.
    """
    limit = max_input_length(config)
    if limit is not None and length is not None and length > limit:
        raise UserError(f"{named(name, length)} is beyond the {limit} tokens that the model can read")


def check_inputs(
    config: EncoderConfig,
    heads: tuple[str, ...],
    input_ids: Any,
    attention_mask: Any = None,
    token_type_ids: Any = None,
    position_ids: Any = None,
) -> Inputs:
    """Converts the inputs of `transformers` to the arguments of `Model.encode`, int32 [B, S].

    Args:
        config: the model that will read them.
        heads: its heads; the enhanced decoder of the MLM head limits the length.
        input_ids, attention_mask, token_type_ids, position_ids: as of `PretrainedModel.__call__`, with its errors.
    """
    ids = _check_ids("input_ids", input_ids, None, config.vocab_size)
    if config.bi_data and len(ids) % 2:
        raise UserError(f"bi_data reads the second half of a batch backwards: {len(ids)} sequences must be even")
    mask = np.ones_like(ids)
    if attention_mask is not None:
        mask = _check_binary("attention_mask", attention_mask, ids.shape)
    types = np.zeros_like(ids) if token_type_ids is None else check_token_types(config, token_type_ids, ids.shape)
    limit = max_input_length(config, heads)
    if position_ids is None:
        positions = _count_positions(config, limit, ids)
    else:
        size = _UNBOUNDED if limit is None else config.position_offset + limit
        positions = _check_ids("position_ids", position_ids, ids.shape, size) - config.position_offset
    arrays = {"input_ids": ids, "segment_ids": mask, "position_ids": positions, "token_type_ids": types}
    return jax.device_put({name: array.astype(np.int32) for name, array in arrays.items()}, may_alias=False)


def check_token_types(config: EncoderConfig, token_type_ids: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Returns the token types that a model reads, zeros for one without types; raises `UserError` for unknown ones."""
    if config.type_vocab_size or config.relative_segments:
        return _check_ids("token_type_ids", token_type_ids, shape, config.type_vocab_size or _UNBOUNDED)
    return np.zeros(shape, np.int32)


def check_two_stream_inputs(
    config: EncoderConfig,
    shape: tuple[int, ...],
    memory: Any = None,
    perm_mask: Any = None,
    target_mapping: Any = None,
) -> Inputs:
    """Converts the inputs that only XLNet has to keyword arguments of `run_two_streams`.

    Args:
        config: the model that will read them.
        shape: [B, S] of the other inputs.
        memory, perm_mask, target_mapping: as of `PretrainedModel.__call__`.

    Raises:
        UserError: a shape or a value is wrong, or the model has no second stream.
    """
    check_two_streams(config, memory is not None)
    inputs: Inputs = {}
    if memory is not None:
        inputs["memory"] = _check_memory(config, shape[0], memory)
    if perm_mask is not None:
        inputs["visible"] = jnp.asarray(_check_binary("perm_mask", perm_mask, (*shape, shape[1])) == 0)
    if target_mapping is not None:
        inputs["targets"] = jnp.asarray(target_positions(target_mapping, shape), jnp.int32)
    return inputs


def target_positions(target_mapping: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Returns the position of every target, [B, T], from the one-hot form [B, T, S].

    Raises:
        UserError: a target has not exactly one position, or two targets share one: `transformers` would add up their
            queries, and the sum belongs to neither.
    """
    dense = np.asarray(target_mapping)
    if dense.ndim != 3 or dense.shape[1] == 0:
        raise UserError(f"target_mapping must have shape [sequences, targets, tokens], not {list(dense.shape)}")
    dense = _check_binary("target_mapping", dense, (shape[0], dense.shape[1], shape[1]))
    if (dense.sum(-1) != 1).any():
        batch, target = np.argwhere(dense.sum(-1) != 1)[0]
        ones = int(dense[batch, target].sum())
        raise UserError(f"target_mapping[{batch}, {target}] holds {ones} ones; every target has one position")
    repeated = np.argwhere(dense.sum(1) > 1)
    if len(repeated):
        batch, token = repeated[0]
        raise UserError(f"target_mapping names token {token} of sequence {batch} twice; name it once")
    return dense.argmax(-1)


def _count_positions(config: EncoderConfig, limit: int | None, ids: np.ndarray) -> np.ndarray:
    positions = count_positions(config, ids)
    if limit is not None and positions.max() >= limit:
        raise UserError(f"a sequence has {positions.max() + 1} tokens; the model has {limit} positions")
    return positions


def _check_ids(name: str, values: Any, shape: tuple[int, ...] | None, size: int) -> np.ndarray:
    try:
        array = np.asarray(values)
    except ValueError:
        raise UserError(f"{name} has sequences of different lengths; pad them and pass attention_mask") from None
    if array.dtype.kind not in "iu" or array.ndim != 2 or array.size == 0:
        raise UserError(
            f"{name} must be whole numbers in shape [sequences, tokens], not {array.dtype} {list(array.shape)}"
        )
    if shape is not None and array.shape != shape:
        raise UserError(f"{name} has shape {list(array.shape)}; input_ids have {list(shape)}")
    if array.min() < 0 or array.max() >= size:
        bad = int(array.min()) if array.min() < 0 else int(array.max())
        raise UserError(f"{name} holds {bad}; the model has ids 0 to {size - 1}")
    return array.astype(np.int32)


def _check_memory(config: EncoderConfig, batch_size: int, values: Any) -> Float[Array, "L B M D"]:
    memory = jnp.asarray(values, jnp.float32)
    if memory.shape != (config.num_layers, batch_size, *memory.shape[2:3], config.hidden_size):
        raise UserError(
            f"memory has shape {list(memory.shape)}; expected [{config.num_layers} layers, {batch_size} sequences, any "
            f"number of tokens, {config.hidden_size}], as output_memory=True returns it"
        )
    return memory


def _check_binary(name: str, values: Any, shape: tuple[int, ...]) -> np.ndarray:
    array = np.asarray(values)
    if array.shape != shape or not np.isin(array, (0, 1)).all():
        raise UserError(f"{name} must hold 0 and 1 in shape {list(shape)}, not {list(array.shape)}")
    return array


class ModelOutput(NamedTuple):
    """Outputs of a loaded model; None where the model has no such head, or the output was not requested.

    With two streams (XLNet with `target_mapping`) `last_hidden_state` and `mlm_logits` belong to the T targets, and
    other heads have no output.

    Attributes:
        rtd_logits: positive = replaced.
        choice_logits: of each row, which is a choice; `transformers` returns them by question.
        start_logits, end_logits: scores of the first and the last token of an answer.
        hidden_states, target_hidden_states: states of all L layers, embeddings first; those of a decoder follow.
    """

    last_hidden_state: Float[Array, "B S D"]
    pooler_output: Float[Array, "B D"] | None = None
    mlm_logits: Float[Array, "B S V"] | None = None
    pair_logits: Float[Array, "B 2"] | None = None
    rtd_logits: Float[Array, "B S"] | None = None
    sequence_logits: Float[Array, "B K"] | None = None
    choice_logits: Float[Array, "B"] | None = None
    token_logits: Float[Array, "B S K"] | None = None
    start_logits: Float[Array, "B S"] | None = None
    end_logits: Float[Array, "B S"] | None = None
    hidden_states: Float[Array, "L1 B S D"] | None = None
    target_hidden_states: Float[Array, "L1 B T D"] | None = None
    memory: Float[Array, "L B M D"] | None = None

    @property
    def logits(self) -> Array | None:
        """The logits that the model's class in `transformers` calls `logits`; shapes as in the fields."""
        candidates = (self.sequence_logits, self.choice_logits, self.token_logits, self.mlm_logits, self.rtd_logits)
        return next((logits for logits in candidates if logits is not None), None)


def run_model(
    config: EncoderConfig,
    heads: tuple[str, ...],
    params: Params,
    inputs: Inputs,
    *,
    streams: Inputs | None = None,
    output_hidden_states: bool = False,
) -> ModelOutput:
    """Runs a model without dropout; compiled once per shape.

    Args:
        config: architecture.
        heads: heads whose parameters `params` holds.
        params: parameters, float32.
        inputs: what `check_inputs` returns.
        streams: what `check_two_stream_inputs` returns; None = one stream.
        output_hidden_states: also return the states of all layers.
    """
    with jax.default_matmul_precision("float32"):  # accelerators would multiply float32 in lower precision
        return _forward(params, inputs, streams, config, heads, output_hidden_states)


@functools.partial(jax.jit, static_argnums=(3, 4, 5))
def _forward(
    params: Params,
    inputs: Inputs,
    streams: Inputs | None,
    config: EncoderConfig,
    heads: tuple[str, ...],
    output_hidden_states: bool,
) -> ModelOutput:
    model = bind(config, heads, params)
    collect = ("hidden_states",) if output_hidden_states else ()
    if streams is None:
        encoded = model.encode(**inputs, collect=collect)
        outputs = _head_outputs(model, heads, encoded, inputs)
        return ModelOutput(encoded.last_hidden_state, hidden_states=encoded.hidden_states, **outputs)
    out = run_two_streams(model.encoder, **inputs, **streams, collect=collect)
    last = out.content if out.targets is None else out.targets
    heads = heads if out.targets is None else tuple(head for head in heads if head == "mlm")
    return ModelOutput(
        last,
        hidden_states=out.hidden_states,
        target_hidden_states=out.target_states,
        memory=out.memory,
        **_head_outputs(model, heads, EncoderOutput(last), inputs),
    )


def _head_outputs(model: Model, heads: tuple[str, ...], encoded: EncoderOutput, inputs: Inputs) -> dict[str, Array]:
    """Computes all heads that read hidden states alone (the span-boundary head also needs spans)."""
    hidden, segment_ids = encoded.last_hidden_state, inputs["segment_ids"]
    batch_size, length = segment_ids.shape
    config, ids = model.config, inputs["input_ids"]
    positions = jnp.full((batch_size, 1), length - 1 if config.pooling == "last" else 0, jnp.int32)
    if config.pooling == "eos" or (config.pooling == "last" and config.causal):
        # as in transformers, whatever the attention mask says
        counts = ids == config.eos_token_id if config.pooling == "eos" else ids != config.pad_token_id
        positions = jnp.argmax(jnp.arange(length)[None] * counts, axis=1, keepdims=True).astype(jnp.int32)
    outputs: dict[str, Array] = {}
    if "pooler" in heads:
        outputs["pooler_output"] = model.pooled(hidden, positions, segment_ids)[:, 0]
    if "mlm" in heads:
        states = model.mlm_hidden_states(encoded, segment_ids, inputs["position_ids"])
        outputs["mlm_logits"] = model.mlm_logits(states)[..., : model.config.vocab_size]
    if "pair" in heads:
        outputs["pair_logits"] = model.pair_logits(outputs["pooler_output"])
    if "rtd" in heads:
        outputs["rtd_logits"] = model.rtd_logits(hidden, jnp.zeros_like(positions), segment_ids)
    if "sequence_classification" in heads:
        outputs["sequence_logits"] = model.sequence_logits(hidden, positions, segment_ids)[:, 0]
    if "multiple_choice" in heads:
        outputs["choice_logits"] = model.choice_logits(hidden, positions, segment_ids)[:, 0, 0]
    if "token_classification" in heads:
        outputs["token_logits"] = model.token_logits(hidden)
    if "question_answering" in heads:
        logits = model.answer_logits(hidden, ids, segment_ids)
        outputs |= {"start_logits": logits[..., 0], "end_logits": logits[..., 1]}
    return outputs


def predict_contacts(
    config: EncoderConfig, heads: tuple[str, ...], params: Params, inputs: Inputs, end_id: int
) -> Float[Array, "B R R"]:
    """Returns the contacts of a protein model; see `PretrainedModel.predict_contacts`.

    Args:
        config, heads, params, inputs: as of `run_model`.
        end_id: id of the end token.
    """
    residues = (inputs["segment_ids"] > 0) & (inputs["input_ids"] != end_id)
    with jax.default_matmul_precision("float32"):
        return _contacts(params, inputs, residues, config, heads)


@functools.partial(jax.jit, static_argnums=(3, 4))
def _contacts(params: Params, inputs: Inputs, residues: Array, config: EncoderConfig, heads: tuple[str, ...]) -> Array:
    return bind(config, heads, params).contacts(**inputs, residues=residues)
