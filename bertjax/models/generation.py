"""Generation: greedy search, beam search and sampling with encoder-decoders and causal models.

One program per bucket of shapes: batches and lengths are padded to a few sizes, a loop on the device adds one token per
step to every sequence, and ends when all have ended.

Axes: B inputs, K sequences of an input (beams, or samples), R = B K, P tokens of a prompt, M new
tokens at most, T = P + M.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bertjax.config.encoder_decoder import EncoderDecoderConfig
from bertjax.config.generation import GenerationConfig
from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.models import encoder_decoder, model
from bertjax.models.attention import KeyValues
from bertjax.models.attention_context import AttentionContext, CrossInput
from bertjax.models.beam_search import ends, search_beams
from bertjax.models.decoding import Target, can_cache, decode_all, decode_cached, empty_cache, project_source
from bertjax.models.linear import Key
from bertjax.models.logits_processors import History, draw_tokens, process_logits
from bertjax.models.model import Model
from bertjax.types import Params

_DEFAULT_NEW_TOKENS = 20  # as in transformers


class Generated(NamedTuple):
    """New tokens of every input, without start token and prompt, best sequence first; N = num_return_sequences.

    Attributes:
        sequences: tokens, the end token included, then padding [B, N, T].
        lengths: number of new tokens [B, N].
        scores: beam search: log probability divided by the length penalty; else log probability [B, N].
    """

    sequences: Int[np.ndarray, "B N T"]
    lengths: Int[np.ndarray, "B N"]
    scores: Float[np.ndarray, "B N"]


class Search(NamedTuple):
    """Static part of a search: the model, and how many tokens it reads and writes.

    Attributes:
        config: the model.
        settings: how tokens are chosen.
        max_new_tokens: greatest length of the new tokens.
    """

    config: EncoderDecoderConfig | EncoderConfig
    settings: GenerationConfig
    max_new_tokens: int

    @property
    def decoder(self) -> EncoderConfig:
        """Config of the network that predicts tokens."""
        return self.config.decoder if isinstance(self.config, EncoderDecoderConfig) else self.config

    @property
    def pad_id(self) -> int:
        """Id that fills finished sequences: `pad_token_id`, else the first token that ends a text."""
        return self.settings.pad_token_id if self.settings.pad_token_id is not None else self.end_id

    @property
    def end_id(self) -> int:
        """The first token that ends a text, 0 without any."""
        return (*self.settings.eos_token_id, 0)[0]

    @property
    def cached(self) -> bool:
        """True if keys and values of earlier tokens are kept."""
        return self.settings.use_cache and can_cache(self.decoder)


class Stepper(NamedTuple):
    """The model as a search sees it: logits of the next tokens from tokens and a cache (None = without).

    Attributes:
        search: static part.
        model: the decoder, or the causal model.
        target: what does not change while sequences grow.
        prompt_mask: real tokens of the prompts [R, P].
    """

    search: Search
    model: Model
    target: Target
    prompt_mask: Int[Array, "R P"]

    def start(self, tokens: Int[Array, "R T"]) -> KeyValues | None:
        """Returns the cache with all tokens of the prompts but the last."""
        if not self.search.cached:
            return None
        cache, length = empty_cache(self.search.decoder, *tokens.shape), self.prompt_mask.shape[1]
        if length == 1:
            return cache
        return decode_cached(self.model.encoder, tokens[:, : length - 1], jnp.int32(0), self.target, cache)[1]

    def step(
        self, tokens: Int[Array, "R T"], count: Int[Array, ""], cache: KeyValues | None
    ) -> tuple[Float[Array, "R V"], KeyValues | None]:
        """Returns the logits of new token `count`, and the cache with the token before it.

        Args:
            tokens: tokens so far.
            count: number of new tokens.
            cache: result of `start`, or of the step before.
        """
        last = self.prompt_mask.shape[1] - 1 + count
        if cache is None:
            states = decode_all(self.model, tokens, self.target)
            hidden = jax.lax.dynamic_index_in_dim(states, last, 1, keepdims=False)
        else:
            token = jax.lax.dynamic_slice_in_dim(tokens, last, 1, 1)
            states, cache = decode_cached(self.model.encoder, token, last, self.target, cache)
            hidden = states[:, 0]
        return self.model.mlm_logits(hidden)[:, : self.search.decoder.vocab_size], cache


def generate(
    params: Params,
    config: EncoderDecoderConfig | EncoderConfig,
    inputs: Mapping[str, Any],
    settings: GenerationConfig,
    key: Key | None = None,
) -> Generated:
    """Generates sequences for a batch of sources, or of prompts of a causal model.

    Args:
        params: parameters of the model.
        config: the model: an encoder-decoder, or a causal encoder with the head `mlm`.
        inputs: `input_ids` and `attention_mask` [B, S]; of an encoder-decoder also `token_type_ids` and `position_ids`,
            where they are not zeros and counted; `example_ids` [B], which samples are drawn by instead of the row.
        settings: how tokens are chosen.
        key: key of the samples.

    Raises:
        UserError: an input is empty, or an id lies outside its table, or the model cannot hold so many tokens.
    """
    decoder = config.decoder if isinstance(config, EncoderDecoderConfig) else config
    if not decoder.causal:
        raise UserError("generation needs a causal model or an encoder-decoder; this encoder sees what follows")
    if decoder.bi_data:
        raise UserError("generation does not go with model.bi_data: half of a batch would be read backwards")
    arrays = _check_arrays(config, settings, inputs)
    batch = len(arrays["input_ids"])
    settings, limits, max_new_tokens = _limits(config, settings, arrays["attention_mask"].sum(1))
    if isinstance(config, EncoderDecoderConfig):
        arrays["prompt"] = np.full((batch, 1), start_token(config, settings), np.int32)
    padded = _pad(arrays | {"limits": limits}, not isinstance(config, EncoderDecoderConfig))
    search = Search(config, settings, max_new_tokens)
    with jax.default_matmul_precision("float32"):
        result = _run(params, padded, search, jax.random.key(0) if key is None else key)
    sequences, lengths, scores = (np.asarray(each)[:batch] for each in result)
    return Generated(sequences[:, :, : max(int(lengths.max()), 1)], lengths, scores)


@functools.partial(jax.jit, static_argnums=2)
def _run(params: Params, arrays: dict[str, Array], search: Search, key: Key) -> tuple[Array, Array, Array]:
    """Runs a search on the device; `limits` are 0 for padding of the batch."""
    copies = search.settings.num_beams if search.settings.num_beams > 1 else search.settings.num_return_sequences
    stepper, prompt = make_stepper(params, arrays, search, copies)
    tokens = jnp.pad(prompt, ((0, 0), (0, search.max_new_tokens)), constant_values=search.pad_id)
    if search.settings.num_beams > 1:
        return _search_beams(stepper, tokens, arrays["limits"])
    limits = jnp.repeat(arrays["limits"], copies)
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, arrays["example_ids"])
    keys = jax.vmap(lambda each: jax.vmap(jax.random.fold_in, (None, 0))(each, jnp.arange(copies)))(keys).reshape(-1)
    sequences, lengths, scores = _sample(stepper, tokens, limits, keys)
    shape = len(arrays["input_ids"]), copies
    return sequences.reshape(*shape, -1), lengths.reshape(shape), scores.reshape(shape)


def _search_beams(
    stepper: Stepper, tokens: Int[Array, "R T"], limits: Int[Array, "B"]
) -> tuple[Int[Array, "B N M"], Int[Array, "B N"], Float[Array, "B N"]]:
    settings, length = stepper.search.settings, stepper.prompt_mask.shape[1]

    def step(tokens: Array, added: Array, cache: KeyValues | None) -> tuple[Array, KeyValues | None]:
        logits, cache = stepper.step(tokens, added, cache)
        history = History(tokens, stepper.prompt_mask, added, jnp.repeat(limits, settings.num_beams))
        return process_logits(jax.nn.log_softmax(logits), history, settings), cache

    sequences, *others = search_beams(step, tokens, stepper.start(tokens), limits, length, settings)
    sequences, lengths, scores = (each[:, : settings.num_return_sequences] for each in (sequences, *others))
    written = jnp.arange(tokens.shape[1] - length)[None, None] < lengths[:, :, None]
    fill = settings.pad_token_id or stepper.search.end_id  # as there: a pad id 0 is none
    return jnp.where(written, sequences[:, :, length:], fill), lengths, scores


def make_stepper(
    params: Params, arrays: Mapping[str, Array], search: Search, copies: int
) -> tuple[Stepper, Int[Array, "R P"]]:
    """Runs the encoder, if there is one, and returns the decoder with the prompts, each `copies` times.

    Args:
        params: parameters of the model.
        arrays: checked inputs [B, S].
        search: static part.
        copies: sequences of an input.

    Returns:
        The decoder, and its prompts [R, P], R = B * copies.
    """
    config, cross = search.config, None
    if isinstance(config, EncoderDecoderConfig):
        both = encoder_decoder.bind(config, params)
        names = "input_ids", "attention_mask", "position_ids", "token_type_ids"
        source: tuple[Any, ...] = tuple(arrays[name] for name in names)
        states = both.encode(*source).last_hidden_state
        network, prompt = both.decoder, arrays["prompt"]
        context = AttentionContext(jnp.ones_like(prompt), key_segment_ids=arrays["attention_mask"])
        cross = CrossInput(project_source(network.encoder, states, context) if search.cached else states, context)
        mask = jnp.ones_like(prompt)
    else:
        network, prompt, mask = model.bind(config, ("mlm",), params), arrays["input_ids"], arrays["attention_mask"]
    prompt, mask = jnp.repeat(prompt, copies, axis=0), jnp.repeat(mask, copies, axis=0)
    segment_ids = jnp.pad(mask, ((0, 0), (0, search.max_new_tokens)), constant_values=1)
    positions = jnp.maximum(jnp.cumsum(segment_ids, axis=1) - 1, 0)
    return Stepper(search, network, Target(segment_ids, positions, cross), mask), prompt


def _sample(
    stepper: Stepper, tokens: Int[Array, "R T"], limits: Int[Array, "R"], keys: Key
) -> tuple[Int[Array, "R M"], Int[Array, "R"], Float[Array, "R"]]:
    """Adds the most probable token, or one that is drawn, until all sequences have ended."""
    search, settings, length = stepper.search, stepper.search.settings, stepper.prompt_mask.shape[1]

    def body(state: tuple[Any, ...]) -> tuple[Any, ...]:
        count, tokens, cache, done, lengths, scores = state
        logits, cache = stepper.step(tokens, count, cache)
        history = History(tokens, stepper.prompt_mask, count, limits)
        processed = process_logits(logits, history, settings)
        chosen = draw_tokens(processed, count, keys, settings) if settings.do_sample else jnp.argmax(processed, -1)
        gain = jnp.take_along_axis(jax.nn.log_softmax(logits), chosen[:, None], axis=1)[:, 0]
        chosen = jnp.where(done, search.pad_id, chosen).astype(tokens.dtype)
        tokens = jax.lax.dynamic_update_slice_in_dim(tokens, chosen[:, None], length + count, 1)
        scores, lengths = jnp.where(done, scores, scores + gain), jnp.where(done, lengths, count + 1)
        done = done | ends(chosen, settings) | (count + 1 >= limits)
        return count + 1, tokens, cache, done, lengths, scores

    def running(state: tuple[Any, ...]) -> Array:
        return ~state[3].all()

    zeros = jnp.zeros(len(tokens), jnp.int32)
    first = jnp.int32(0), tokens, stepper.start(tokens), limits <= 0, zeros, zeros.astype(jnp.float32)
    _, tokens, _, _, lengths, scores = jax.lax.while_loop(running, body, first)
    return tokens[:, length:], lengths, scores


def _check_arrays(
    config: EncoderDecoderConfig | EncoderConfig, settings: GenerationConfig, inputs: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """Returns the inputs as int32, checked; prompts of causal models end at the last column."""
    ids = np.asarray(inputs["input_ids"])
    mask = np.ones_like(ids) if inputs.get("attention_mask") is None else np.asarray(inputs["attention_mask"])
    reader = config.encoder if isinstance(config, EncoderDecoderConfig) else config
    if ids.ndim != 2 or ids.dtype.kind not in "iu" or mask.shape != ids.shape:
        raise UserError(f"input_ids and attention_mask must be whole numbers [inputs, tokens], not {list(ids.shape)}")
    empty = np.flatnonzero(mask.sum(1) == 0) if ids.size else np.arange(1)
    if len(empty):
        raise UserError(f"input {empty[0]} has no token; generation starts from at least one")
    if ids.min() < 0 or ids.max() >= reader.vocab_size:
        bad = int(ids.min() if ids.min() < 0 else ids.max())
        raise UserError(f"input_ids holds {bad}; the model has ids 0 to {reader.vocab_size - 1}")
    target = config.decoder if isinstance(config, EncoderDecoderConfig) else config
    if settings.largest_token_id >= target.vocab_size:
        raise UserError(
            f"settings of generation name token {settings.largest_token_id}; the model has ids 0 to "
            f"{target.vocab_size - 1}"
        )
    positions = inputs.get("position_ids")
    arrays = {
        "input_ids": ids,
        "attention_mask": mask > 0,
        "position_ids": np.maximum(np.cumsum(mask > 0, axis=1) - 1, 0) if positions is None else np.asarray(positions),
        "token_type_ids": np.zeros_like(ids) if inputs.get("token_type_ids") is None else inputs["token_type_ids"],
        "example_ids": np.arange(len(ids)) if inputs.get("example_ids") is None else inputs["example_ids"],
    }
    return {name: np.asarray(array, np.int32) for name, array in arrays.items()}


def _limits(
    config: EncoderDecoderConfig | EncoderConfig, settings: GenerationConfig, lengths: Int[np.ndarray, "B"]
) -> tuple[GenerationConfig, Int[np.ndarray, "B"], int]:
    """Returns the settings, the most new tokens of every sequence, and the greatest number of them.

    Raises:
        UserError: a prompt leaves no token to add, or the position table ends before the sequence.
    """
    prompts = np.ones_like(lengths) if isinstance(config, EncoderDecoderConfig) else lengths
    decoder = config.decoder if isinstance(config, EncoderDecoderConfig) else config
    table = decoder.max_position_embeddings if decoder.position_embedding == "learned" else None
    if settings.max_new_tokens is not None:
        limits = np.full_like(prompts, settings.max_new_tokens)
    elif settings.max_length is not None:
        limits = settings.max_length - prompts
        if (limits < 1).any():
            raise UserError(
                f"input {int(np.argmin(limits))} has {prompts.max()} tokens, and max_length={settings.max_length} "
                "leaves none to add; set max_new_tokens"
            )
    else:
        limits = np.full_like(prompts, _DEFAULT_NEW_TOKENS)
        if table is not None:
            limits = np.minimum(limits, np.maximum(table - prompts, 1))
    # The last token is never read, so it needs no position.
    if table is not None and (prompts + limits - 1).max() > table:
        worst = int(np.argmax(prompts + limits))
        raise UserError(
            f"input {worst} has a prompt of {prompts[worst]} and up to {limits[worst]} new tokens; the model has "
            f"{table} positions"
        )
    if isinstance(config, EncoderDecoderConfig) and (lengths > _table(config.encoder)).any():
        raise UserError(
            f"input {int(np.argmax(lengths))} has {lengths.max()} tokens; the encoder has "
            f"{_table(config.encoder)} positions"
        )
    lengthless = dataclasses.replace(settings, max_new_tokens=None, max_length=None)  # one program for equal limits
    return lengthless, limits.astype(np.int32), int(limits.max())


def _table(config: EncoderConfig) -> int:
    return config.max_position_embeddings if config.position_embedding == "learned" else 2**30


def start_token(config: EncoderDecoderConfig, settings: GenerationConfig) -> int:
    """Returns the token before the first of a target; raises `UserError` where none is known."""
    ids = settings.decoder_start_token_id, config.decoder_start_token_id, settings.bos_token_id
    for each in ids:
        if each is not None:
            return each
    raise UserError("generation needs the token before the first: set decoder_start_token_id")


def _pad(arrays: dict[str, np.ndarray], causal: bool) -> dict[str, np.ndarray]:
    """Pads batch and source to sizes of few programs; moves the padding of prompts before them."""
    batch, length = arrays["input_ids"].shape
    size = bucket(length)
    names = [name for name, array in arrays.items() if array.shape == (batch, length) and name != "prompt"]
    if causal:
        order = np.argsort(arrays["attention_mask"], axis=1, kind="stable")
        arrays = arrays | {name: np.take_along_axis(arrays[name], order, axis=1) for name in names}
    sides = (size - length, 0) if causal else (0, size - length)
    arrays = arrays | {name: np.pad(arrays[name], ((0, 0), sides)) for name in names}
    rows = 1 << (batch - 1).bit_length()
    padded = {}
    for name, array in arrays.items():
        padded[name] = np.pad(array, ((0, rows - batch), *((0, 0),) * (array.ndim - 1)))
    return padded


def bucket(length: int) -> int:
    """Returns the next of 8, 12, 16, 24, 32, 48, ...: sizes of programs."""
    size = 8
    while size < length:
        size += size // 2 if size & (size - 1) == 0 else size // 3
    return size
