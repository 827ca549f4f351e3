"""Shared by the tests of replaced token detection: weights, and gradients of each network alone."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.models.model import bind
from bertjax.objectives.base import StepInputs, encoder_inputs
from bertjax.objectives.rtd.networks import RtdNetworks, init_networks
from bertjax.objectives.rtd.objective import Rtd
from bertjax.types import Params, Vocabulary

jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})  # compilation dominates
NOTHING = StepInputs(frozen={}, carry={})


def build(config: Rtd, networks: RtdNetworks, vocabulary: Vocabulary) -> Rtd:
    """Returns the objective of two encoders; what they share is the config's."""
    config = dataclasses.replace(config, embedding_sharing=networks.embedding_sharing)
    return config.build({"generator": networks.generator, "model": networks.discriminator}, vocabulary)


def random_params(objective: Rtd) -> Params:
    return jax.tree.map(lambda leaf: leaf, _random_params(objective.encoders))


@functools.cache
def _random_params(networks: RtdNetworks) -> Params:
    shapes = jax.eval_shape(lambda key: init_networks(networks, key), jax.random.key(0))
    rng = np.random.default_rng(0)
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: jnp.asarray(rng.normal(float(path[-1].key == "scale"), 0.2, leaf.shape), jnp.float32), shapes
    )


def total(objective: Rtd, batch: dict, counts: dict, params: Params) -> jax.Array:
    """Returns the loss that the training step minimizes."""
    sums, _ = objective.loss(params, NOTHING, batch, jax.random.key(0), True)
    return sum(
        weight * sums[name].value / jnp.maximum(counts[name], 1.0) for name, weight in objective.loss_weights.items()
    )


def by_part(objective: Rtd, batch: dict, replaced: jax.Array) -> tuple[Callable, Callable]:
    """Returns the losses of the two networks, each of its complete parameters, computed independently."""
    first, second = objective.networks["generator"], objective.networks["discriminator"]
    real = batch["segment_ids"] > 0

    def of_generator(params: Params) -> jax.Array:
        model = bind(*first, params)
        encoded = model.encode(**encoder_inputs(batch))
        states = model.mlm_hidden_states(encoded, batch["segment_ids"], batch["position_ids"])
        states = jnp.take_along_axis(states, batch["masked_positions"][..., None], axis=1)
        logs = jax.nn.log_softmax(model.mlm_logits(states))
        chosen = jnp.take_along_axis(logs, batch["masked_ids"][..., None], axis=-1)[..., 0]
        return -(chosen * batch["masked_weights"]).sum() / batch["masked_weights"].sum()

    def of_discriminator(params: Params) -> jax.Array:
        model = bind(*second, params)
        states = model.encode(**{**encoder_inputs(batch), "input_ids": replaced}).last_hidden_state
        scores = model.rtd_logits(states, batch["example_positions"], batch["segment_ids"])
        signs = jnp.where(replaced != batch["original_ids"], 1.0, -1.0)
        return 50.0 * jnp.where(real, jax.nn.softplus(-signs * scores), 0.0).sum() / real.sum()

    return of_generator, of_discriminator


def assert_same(actual: Any, expected: Any, scale: float = 1e-5) -> None:
    for (path, one), other in zip(jax.tree_util.tree_leaves_with_path(actual), jax.tree.leaves(expected), strict=True):
        top = float(jnp.abs(other).max())
        np.testing.assert_allclose(one, other, atol=scale * top + 1e-6, err_msg=jax.tree_util.keystr(path))


def take(tree: Params, *path: str) -> Params:
    return functools.reduce(lambda tree, key: tree[key], path, tree)


def joined(networks: RtdNetworks, first: Params, second: Params) -> Params:
    """Returns the gradients of a run's parameters, from the gradients of its two complete networks."""
    if networks.embedding_sharing == "all":
        encoder = jax.tree.map(jnp.add, first["encoder"], second["encoder"])
        return {"generator": {"mlm_head": first["mlm_head"]}, "discriminator": {**second, "encoder": encoder}}
    mine, theirs = (dict(tree["encoder"]["embeddings"]) for tree in (first, second))
    for part in networks.shared_embeddings if networks.embedding_sharing != "none" else ():
        if networks.embedding_sharing == "gdes":  # the table receives the generator's gradient only, delta the other
            theirs[part] = {"delta": theirs[part]["embedding"]}
        else:  # one array, the sum of both
            theirs[part] = jax.tree.map(jnp.add, mine.pop(part), theirs[part])
    encoders = [
        {name: part for name, part in {**tree["encoder"], "embeddings": embeddings}.items() if part}
        for tree, embeddings in ((first, mine), (second, theirs))
    ]
    return {"generator": {**first, "encoder": encoders[0]}, "discriminator": {**second, "encoder": encoders[1]}}


def assert_finite_differences(objective: Rtd, params: Params, actual: Params, run: Callable[[Params], Any]) -> None:
    """Along the shared word table both losses change; with "gdes" its owner receives the generator's gradient only."""
    sharing = objective.encoders.embedding_sharing
    path = ("generator" if sharing in ("gdes", "none") else "discriminator", "encoder", "embeddings", "word_embeddings")
    table = take(params, *path)["embedding"]
    way = jax.random.normal(jax.random.key(5), table.shape)

    def at(step: float) -> np.ndarray:
        moved = jax.tree.map(lambda leaf: leaf, params)
        take(moved, *path)["embedding"] = table + step * way
        return np.asarray([value for value, _ in run(moved)[1:]])

    first, second = (at(1e-3) - at(-1e-3)) / 2e-3
    assert (abs(second) > 0.1) == (sharing != "none") and abs(first) > 0.01
    derivative = float((take(actual, *path)["embedding"] * way).sum())
    np.testing.assert_allclose(
        derivative, first if sharing in ("gdes", "none") else first + second, rtol=4e-2
    )  # float32, steps of 1e-3
