"""SpanBERT's span-boundary objective: its targets, their neighbors, its sums, and texts without targets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from masking_lab import CLS, PAD, SEP, chosen_of, examples_of, jit, runs_of

from bertjax.config.model import EncoderConfig
from bertjax.models.model import bind
from bertjax.objectives.base import StepInputs
from bertjax.objectives.masking.settings import Masking
from bertjax.objectives.mlm import Mlm
from bertjax.training.step import weighted_loss
from bertjax.types import Params, Vocabulary

S, MAXIMUM = 64, 4
NOTHING = StepInputs(frozen={}, carry={})
MASKING = Masking(mask_unit="span", mask_rounding="ceil", replacement_unit="span", mask_rate=0.3, max_predictions=20)
KEYS = ("span_left_positions", "span_right_positions", "span_position_ids", "span_weights")


@pytest.fixture(scope="module")
def objective(vocabulary: Vocabulary) -> Mlm:
    model = EncoderConfig(
        vocab_size=200,
        padded_vocab_size=256,
        hidden_size=16,
        num_layers=1,
        num_heads=2,
        intermediate_size=32,
        max_position_embeddings=S,
        span_positions=MAXIMUM,
        span_position_size=8,
    )
    return Mlm(MASKING, span_boundary_weight=0.5).build({"model": model}, vocabulary)


@pytest.fixture(scope="module")
def params(objective: Mlm) -> Params:
    shapes = jax.eval_shape(objective.init, jax.random.key(0))
    rng = np.random.default_rng(0)
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: jnp.asarray(rng.normal(float(path[-1].key == "scale"), 0.2, leaf.shape), jnp.float32), shapes
    )


@pytest.fixture(scope="module")
def corrupt(objective: Mlm) -> Callable:
    return jit(objective.corrupt)


@pytest.fixture(scope="module")
def gradient(objective: Mlm) -> Callable[[Params, dict], tuple[tuple, Params]]:
    """Returns ((loss, sums), gradient), without dropout."""

    def loss(params: Params, batch: dict[str, Any]) -> tuple[jax.Array, dict]:
        sums = objective.loss(params, NOTHING, batch, jax.random.key(0), False)[0]
        return weighted_loss(sums, objective.counts(batch), objective.loss_weights), sums

    return jit(jax.value_and_grad(loss, has_aux=True))


@pytest.fixture(scope="module")
def batch(pack: Callable, example: Callable) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return pack(
        [[example(rng, n) for n in row] for row in ([20, 44], [64], [9, 30], [50])], S, [[3, 4], [5], [6, 8], [9]]
    )


@pytest.mark.long
def test_spans_are_predicted_from_their_neighbors(corrupt: Callable, batch: dict) -> None:
    share = 0
    for cursor in range(12):
        hidden = jax.device_get(corrupt(batch, jax.random.key(0), np.int32(cursor)))
        chosen, expected = chosen_of(hidden), {}
        for row, _, columns in examples_of(batch):
            body = ~np.isin(batch["input_ids"][row, columns], (CLS, SEP, PAD))
            for first, last in runs_of(chosen[row, columns]):
                if body[first - 1] and body[last + 1]:  # there is always [CLS] before and [SEP] after
                    for offset in range(min(MAXIMUM, last - first + 1)):
                        expected[row, columns[first + offset]] = (columns[first - 1], columns[last + 1], offset, 1.0)
        result = {}
        for row, slot in zip(*np.nonzero(hidden["span_weights"]), strict=True):
            result[row, hidden["masked_positions"][row, slot]] = tuple(hidden[name][row, slot] for name in KEYS)
        assert result == expected
        for name in KEYS:
            assert not hidden[name][hidden["span_weights"] == 0].any()
        share += len(result) / hidden["masked_weights"].sum()
    assert 0.3 < share / 12 < 0.95


@pytest.mark.long
def test_sums_are_those_of_plain_arithmetic(
    objective: Mlm, corrupt: Callable, gradient: Callable, params: Params, batch: dict
) -> None:
    hidden = jax.device_get(corrupt(batch, jax.random.key(0), np.int32(0)))
    (loss, sums), trained = gradient(params, hidden)
    model = bind(objective.model, objective.heads, params)
    names = ("input_ids", "segment_ids", "position_ids", "token_type_ids")
    states = jit(lambda *arrays: model.encode(*arrays).last_hidden_state)(*(hidden[name] for name in names))
    rows, slots = np.nonzero(hidden["span_weights"])
    left, after, position, _ = (hidden[name][rows, slots] for name in KEYS)
    logits = jit(model.span_logits)(states[rows, left][None], states[rows, after][None], position[None])
    scores = np.asarray(jax.nn.log_softmax(logits[0, :, :200]))
    answers = hidden["masked_ids"][rows, slots]
    total, right = -scores[np.arange(len(rows)), answers].sum(), (scores.argmax(-1) == answers).sum()
    count = hidden["span_weights"].sum()
    np.testing.assert_allclose(sums["span_boundary"].value, total, rtol=1e-5)
    assert (sums["span_boundary"].count, sums["span_boundary_accuracy"].value) == (count, right) and count > 5
    assert objective.loss_weights == {"mlm": 1.0, "span_boundary": 0.5}
    assert float(objective.counts(jax.tree.map(jnp.asarray, hidden))["span_boundary"]) == count
    np.testing.assert_allclose(loss, sums["mlm"].value / sums["mlm"].count + 0.5 * total / count, rtol=1e-5)
    assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(trained))


def test_boundaries_never_see_the_answers(corrupt: Callable, gradient: Callable, params: Params, batch: dict) -> None:
    hidden = jax.device_get(corrupt(batch, jax.random.key(0), np.int32(1)))
    scrambled = {**hidden, "original_ids": np.zeros_like(hidden["original_ids"])}
    np.testing.assert_array_equal(gradient(params, scrambled)[0][0], gradient(params, hidden)[0][0])
    rows = np.nonzero(hidden["span_weights"])[0]
    for name in KEYS[:2]:
        assert not chosen_of(hidden)[rows, hidden[name][hidden["span_weights"] > 0]].any()


def test_nothing_to_predict_is_finite_and_has_no_gradient(
    objective: Mlm, corrupt: Callable, gradient: Callable, params: Params, pack: Callable
) -> None:
    """Rows of specials alone and of padding alone; then texts whose only span touches an edge."""
    specials = np.array([CLS, SEP, SEP], np.int32)
    hidden = corrupt(pack([[specials, specials], [], [specials], []], S, [[1, 2], [], [3], []], 2), *KEY)
    (loss, sums), trained = gradient(params, hidden)
    assert float(loss) == 0.0 and float(sums["mlm"].count) == 0.0 == float(sums["span_boundary"].count)
    assert all((np.asarray(leaf) == 0.0).all() for leaf in jax.tree.leaves(trained))
    edge = np.array([CLS, 9, 10, SEP], np.int32)
    hidden = corrupt(pack([[edge, edge], [], [], []], S, [[1, 2], [], [], []], 2), *KEY)
    (loss, sums), trained = gradient(params, hidden)
    assert float(loss) > 0.0 and float(sums["mlm"].count) == 2.0 and float(sums["span_boundary"].count) == 0.0
    assert all((np.asarray(leaf) == 0.0).all() for leaf in jax.tree.leaves(trained["span_head"]))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(trained))


KEY = (jax.random.key(0), np.int32(0))
