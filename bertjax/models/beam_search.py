"""Beam search as `transformers` does it, step for step (generation/utils.py: _beam_search).

Every input is on its own: what other inputs of the batch do changes nothing.

Axes: B inputs, K beams, C candidates, T tokens, R = B K.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from bertjax.config.generation import GenerationConfig
from bertjax.models.attention import KeyValues

_LOW = -1e9
Step = Callable[[Array, Array, KeyValues | None], tuple[Array, KeyValues | None]]
"""`step(tokens, added, cache)` returns processed log probabilities of the next tokens [R, V], and the cache."""


class Beams(NamedTuple):
    """State of the search; the finished sequences are the best so far, best first.

    Attributes:
        added: number of new tokens.
        tokens: running sequences [B, K, T].
        scores: their log probabilities [B, K].
        cache: cache of the running sequences.
        finished: finished sequences [B, K, T].
        finished_scores: log probabilities divided by the length penalty [B, K].
        lengths: new tokens of the finished sequences [B, K].
        is_finished: whether there is a finished sequence [B, K].
        improvable: whether a running sequence may be better than the finished ones [B].
    """

    added: Int[Array, ""]
    tokens: Int[Array, "B K T"]
    scores: Float[Array, "B K"]
    cache: KeyValues | None
    finished: Int[Array, "B K T"]
    finished_scores: Float[Array, "B K"]
    lengths: Int[Array, "B K"]
    is_finished: Bool[Array, "B K"]
    improvable: Bool[Array, "B"]


def search_beams(
    step: Step,
    tokens: Int[Array, "R T"],
    cache: KeyValues | None,
    limits: Int[Array, "B"],
    prompt_length: int,
    settings: GenerationConfig,
) -> tuple[Int[Array, "B K T"], Int[Array, "B K"], Float[Array, "B K"]]:
    """Returns the best finished sequences with their number of new tokens and scores, best first.

    Args:
        step: the model.
        tokens: prompts and padding, the same for the beams of an input.
        cache: cache of the prompts.
        limits: most new tokens of every input; 0: padding of the batch.
        prompt_length: P.
        settings: beams, penalties, end tokens.
    """
    beams = settings.num_beams
    folded = tokens.reshape(-1, beams, tokens.shape[1])
    scores = jnp.broadcast_to(jnp.where(jnp.arange(beams) == 0, 0.0, _LOW), folded.shape[:2])
    empty = jnp.zeros(folded.shape[:2], jnp.int32)
    state = Beams(
        jnp.int32(0), folded, scores, cache, folded, empty + jnp.float32(_LOW), empty, empty.astype(bool), limits > 0
    )

    def running(state: Beams) -> Array:
        is_open = state.improvable & (state.added < limits)
        if settings.early_stopping == "true":
            is_open = is_open & ~state.is_finished.all(axis=1)
        return is_open.any()

    def body(state: Beams) -> Beams:
        log_probs, cache = step(state.tokens.reshape(tokens.shape), state.added, state.cache)
        return _advance(state._replace(cache=cache), log_probs, limits, prompt_length, settings)

    state = jax.lax.while_loop(running, body, state)
    return state.finished, state.lengths, state.finished_scores


def _advance(
    state: Beams,
    log_probs: Float[Array, "R V"],
    limits: Int[Array, "B"],
    prompt_length: int,
    settings: GenerationConfig,
) -> Beams:
    """Extends the running sequences by a token, and moves those that end to the finished ones."""
    batch, beams, _ = state.tokens.shape
    size, length = log_probs.shape[-1], state.added + 1
    total = (log_probs.reshape(batch, beams, size) + state.scores[:, :, None]).reshape(batch, -1)
    keep = min(max(2, 1 + len(settings.eos_token_id)) * beams, total.shape[1])
    candidate_scores, index = jax.lax.top_k(total, keep)
    parents, chosen = index // size, index % size
    candidates = jnp.take_along_axis(state.tokens, parents[:, :, None], axis=1)
    chosen = chosen.astype(candidates.dtype)
    candidates = jax.lax.dynamic_update_slice_in_dim(candidates, chosen[:, :, None], prompt_length + state.added, 2)
    stops = ends(chosen, settings) | (length >= limits)[:, None]

    running_scores, best = jax.lax.top_k(candidate_scores + stops * _LOW, beams)
    parents = jnp.take_along_axis(parents, best, axis=1)
    added = candidate_scores / length.astype(jnp.float32) ** settings.length_penalty
    closed = ~state.improvable
    if settings.early_stopping == "true":
        closed = closed | state.is_finished.all(axis=1)
    stops = stops & (jnp.arange(keep) < beams)[None]
    added = added + closed[:, None] * _LOW + ~stops * _LOW
    merged = jnp.concatenate([state.finished_scores, added], axis=1)
    finished_scores, order = jax.lax.top_k(merged, beams)

    def finished(old: Array, new: Array) -> Array:
        index = order.reshape(*order.shape, *(1,) * (old.ndim - 2))
        return jnp.take_along_axis(jnp.concatenate([old, new], axis=1), index, axis=1)

    state = Beams(
        length,
        jnp.take_along_axis(candidates, best[:, :, None], axis=1),
        running_scores,
        _reorder(state.cache, parents),
        finished(state.finished, candidates),
        finished_scores,
        finished(state.lengths, jnp.broadcast_to(length, candidate_scores.shape)),
        finished(state.is_finished, stops),
        state.improvable,
    )
    return state._replace(improvable=state.improvable & _may_improve(state, limits, settings))


def _may_improve(state: Beams, limits: Int[Array, "B"], settings: GenerationConfig) -> Bool[Array, "B"]:
    """Returns whether the best running sequence could still be better than the worst finished one."""
    length = jnp.broadcast_to(state.added, limits.shape)
    if settings.early_stopping == "never" and settings.length_penalty > 0.0:
        length = limits
    best = state.scores[:, :1] / length[:, None].astype(jnp.float32) ** settings.length_penalty
    worst = jnp.where(state.is_finished, state.finished_scores.min(axis=1, keepdims=True), _LOW)
    return (best > worst).any(axis=1)


def _reorder(cache: KeyValues | None, parents: Int[Array, "B K"]) -> KeyValues | None:
    """Returns the cache of the sequences that were continued."""
    rows = (jnp.arange(len(parents))[:, None] * parents.shape[1] + parents).reshape(-1)
    return None if cache is None else jax.tree.map(lambda each: jnp.take(each, rows, axis=1), cache)


def ends(tokens: Int[Array, "*r"], settings: GenerationConfig) -> Any:
    """Returns whether a token ends its sequence."""
    return jnp.isin(tokens, jnp.asarray(settings.eos_token_id, tokens.dtype))
