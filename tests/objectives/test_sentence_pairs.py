"""A sentence objective next to every objective of tokens: losses, gradients, and token losses that do not change."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from plm_lab import MODEL as XLNET
from rtd_lab import NOTHING, jit

from bertjax.config.model import EncoderConfig
from bertjax.objectives.base import Objective
from bertjax.objectives.masking.settings import Masking
from bertjax.objectives.mlm import Mlm
from bertjax.objectives.plm.objective import Plm
from bertjax.objectives.rtd.networks import RtdNetworks
from bertjax.objectives.rtd.objective import Rtd
from bertjax.types import Vocabulary

S = 24
MASKING = Masking(max_predictions=6)
ENCODER = EncoderConfig(
    vocab_size=200,
    padded_vocab_size=256,
    hidden_size=16,
    num_layers=1,
    num_heads=2,
    intermediate_size=16,
    max_position_embeddings=S,
    hidden_dropout=0.0,
    attention_dropout=0.0,
    span_positions=4,
)


def mlm(pairs: dict, words: Vocabulary) -> Objective:
    return Mlm(MASKING, span_boundary_weight=1.0, **pairs).build({"model": ENCODER}, words)


def rtd(pairs: dict, words: Vocabulary) -> Objective:
    networks = RtdNetworks(ENCODER, dataclasses.replace(ENCODER, pooling="mean"))
    return Rtd(MASKING, **pairs).build({"generator": networks.generator, "model": networks.discriminator}, words)


def plm(pairs: dict, words: Vocabulary) -> Objective:
    return Plm((S,), num_predict=4, **pairs).build({"model": XLNET}, words)


@pytest.fixture(scope="module")
def rows(pack: Callable, example: Callable) -> dict[str, jax.Array]:
    rng = np.random.default_rng(0)
    batch = pack([[example(rng, n)] for n in (24, 19, 24, 12)], S, [[3], [4], [6], [7]])
    return {name: jnp.asarray(value) for name, value in batch.items()}


def part_of(params: Any, shapes: Any) -> Any:
    return {name: part_of(params[name], shapes[name]) for name in shapes} if isinstance(shapes, dict) else params


@pytest.mark.long
@pytest.mark.parametrize("make", [mlm, rtd, plm])
def test_pairs_are_classified_next_to_the_tokens(make: Callable, vocabulary: Vocabulary, rows: dict) -> None:
    alone = make({}, vocabulary)
    both = make({"example_format": "sop_pairs", "pair_weight": 2.0}, vocabulary)
    assert both.loss_weights == {**alone.loss_weights, "pair": 2.0}
    network = next(iter(both.networks.values()))
    assert set(network.heads) - set(next(iter(alone.networks.values())).heads) == {"pooler", "pair"}
    alone_shapes = jax.eval_shape(alone.init, jax.random.key(0))

    @jit
    def run(params: Any, batch: dict) -> tuple:
        hidden = both.corrupt(batch, jax.random.key(0), jnp.int32(0))
        one = {**hidden, "example_weights": hidden["example_weights"].at[1:].set(0.0)}
        other = {**one, "pair_labels": 1 - hidden["pair_labels"]}

        def pair_loss(params: Any) -> tuple:
            sums = both.loss(params, NOTHING, hidden, jax.random.key(1), True)[0]
            return sums["pair"].value, (sums, both.counts(hidden))

        (_, (sums, counts)), grads = jax.value_and_grad(pair_loss, has_aux=True)(params)
        by_label = [both.loss(params, NOTHING, each, jax.random.key(1), True)[0]["pair"] for each in (one, other)]
        tokens = alone.loss(part_of(params, alone_shapes), NOTHING, hidden, jax.random.key(1), True)[0]
        return sums, counts, by_label, tokens, grads

    shapes = jax.eval_shape(both.init, jax.random.key(0))
    rng = np.random.default_rng(1)
    params = jax.tree.map(lambda leaf: jnp.asarray(rng.normal(0.3, 0.5, leaf.shape), jnp.float32), shapes)
    sums, counts, by_label, expected, grads = run(params, rows)
    for name, value in expected.items():
        np.testing.assert_allclose(sums[name].value, value.value, rtol=1e-5, err_msg=name)
    assert set(sums) - set(expected) == {"pair", "pair_accuracy"}
    assert {name: float(count) for name, count in counts.items()} == {
        name: float(sums[name].count) for name in both.loss_weights
    }
    assert float(sums["pair"].count) == 4.0 and [float(each.count) for each in by_label] == [1.0, 1.0]
    np.testing.assert_allclose(sum(np.exp(-each.value) for each in by_label), 1.0, rtol=1e-5)  # of the first example

    trained = grads.get("discriminator", grads)
    for part in ("encoder", "pooler", "pair_head"):
        assert any(float(jnp.abs(leaf).max()) > 0 for leaf in jax.tree.leaves(trained[part])), part
    for part in ("mlm_head", "rtd_head", "span_head"):
        assert not any(float(jnp.abs(leaf).max()) > 0 for leaf in jax.tree.leaves(trained.get(part, {}))), part
    assert not any(float(jnp.abs(leaf).max()) > 0 for leaf in jax.tree.leaves(grads.get("generator", {})))
