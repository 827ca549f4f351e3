"""Model inputs as `transformers` takes them, checked and converted to the arguments of `Model.encode`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError, named
from bertjax.models.encoder import count_positions
from bertjax.models.two_stream import check_two_streams

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
