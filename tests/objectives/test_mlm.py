"""The masked-LM loss against plain numpy, and what it must not see."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.config.model import EncoderConfig
from bertjax.models.model import bind
from bertjax.objectives import vocab_loss
from bertjax.objectives.base import StepInputs, sentence_pair_sums
from bertjax.objectives.masking.settings import Masking
from bertjax.objectives.mlm import Mlm
from bertjax.objectives.vocab_loss import unigram_nll, vocab_loss_sums
from bertjax.types import Params, Sum, Vocabulary

jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})  # compilation dominates
MASK, S = 4, 48
NOTHING = StepInputs(frozen={}, carry={})


def log_softmax(logits: np.ndarray) -> np.ndarray:
    logits = np.asarray(logits, np.float64)
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


@pytest.fixture(scope="module")
def objective(vocabulary: Vocabulary) -> Mlm:
    model = EncoderConfig(
        vocab_size=200,
        padded_vocab_size=256,
        hidden_size=32,
        num_layers=2,
        num_heads=4,
        intermediate_size=64,
        max_position_embeddings=S,
        hidden_dropout=0.1,
        attention_dropout=0.1,
    )
    return Mlm(Masking(max_predictions=16), mlm_weight=0.7, example_format="nsp_pairs").build(
        {"model": model}, vocabulary
    )


@pytest.fixture(scope="module")
def params(objective: Mlm) -> Params:
    fresh = jit(objective.init)(jax.random.key(0))
    assert objective.init_carry(4) == NOTHING.carry
    rng = np.random.default_rng(0)
    return jax.tree.map(
        lambda leaf: jnp.asarray(np.asarray(leaf) + rng.normal(0.0, 0.1, leaf.shape), jnp.float32), fresh
    )


@pytest.fixture(scope="module")
def batch(pack: Callable, example: Callable) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    lengths = [[20, 25], [48], [10, 30], [7]]
    return pack([[example(rng, n) for n in row] for row in lengths], S, [[3, 4], [5], [6, 8], [9]])


@pytest.fixture(scope="module")
def corrupt(objective: Mlm) -> Callable:
    return jit(objective.corrupt)


@pytest.fixture(scope="module")
def hidden(corrupt: Callable, batch: dict) -> dict[str, jax.Array]:
    return corrupt(batch, jax.random.key(0), np.int32(0))


@pytest.fixture(scope="module")
def loss(objective: Mlm) -> Callable[..., dict[str, Sum]]:
    """Returns evaluation sums, jitted once."""
    return jit(lambda params, batch: objective.loss(params, NOTHING, batch, jax.random.key(0), False)[0])


@pytest.fixture(scope="module")
def sums(loss: Callable, params: Params, hidden: dict) -> dict[str, Sum]:
    return jax.device_get(loss(params, hidden))


def test_sums_are_those_of_plain_arithmetic(
    objective: Mlm, params: Params, hidden: dict, sums: dict[str, Sum], vocabulary: Vocabulary
) -> None:
    @jit
    def everywhere(params: Params) -> tuple[Any, Any]:
        model = bind(objective.model, objective.heads, params)
        names = ("input_ids", "segment_ids", "position_ids", "token_type_ids")
        states = model.encode(*(hidden[name] for name in names)).last_hidden_state
        return model.mlm_logits(states), model.pair_logits(model.pooler(states))

    logits, pairs = (np.asarray(array) for array in everywhere(params))
    hidden = jax.device_get(hidden)
    expected = {name: 0.0 for name in ("mlm", "mlm_accuracy", "mlm_unigram_loss", "pair", "pair_accuracy")}
    frequency = (vocabulary.counts + 1) / (vocabulary.counts + 1).sum()
    predictions = 0
    for row in range(4):
        for slot in range(int(hidden["masked_weights"][row].sum())):
            position, token = hidden["masked_positions"][row, slot], hidden["masked_ids"][row, slot]
            predictions += 1
            expected["mlm"] -= log_softmax(logits[row, position, :200])[token]
            expected["mlm_accuracy"] += logits[row, position].argmax() == token
            expected["mlm_unigram_loss"] -= np.log(frequency[token])
    for row, index in ((0, 0), (0, 1), (1, 0), (2, 0), (2, 1), (3, 0)):
        scores, label = pairs[row, hidden["example_positions"][row, index]], hidden["pair_labels"][row, index]
        expected["pair"] -= log_softmax(scores)[label]
        expected["pair_accuracy"] += scores.argmax() == label
    assert predictions == 3 + 4 + 7 + 2 + 4 + 1  # round(0.15 n) of every example
    assert set(sums) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(sums[name].value, value, rtol=1e-5, err_msg=name)
        assert sums[name].count == (6 if name.startswith("pair") else predictions)


def test_counts_are_known_before_the_loss(objective: Mlm, hidden: dict, sums: dict[str, Sum]) -> None:
    assert objective.loss_weights == {"mlm": 0.7, "pair": 1.0}
    counts = objective.counts(hidden)
    assert {name: float(count) for name, count in counts.items()} == {name: sums[name].count for name in counts}
    assert set(counts) == {"mlm", "pair"}


def test_without_a_pair_loss_there_is_neither_pooler_nor_pair_head(
    objective: Mlm, vocabulary: Vocabulary, hidden: dict
) -> None:
    alone = Mlm(Masking()).build({"model": objective.model}, vocabulary)
    assert set(jax.eval_shape(alone.init, jax.random.key(0))) == {"encoder", "mlm_head"}
    assert set(jax.eval_shape(objective.init, jax.random.key(0))) == {"encoder", "mlm_head", "pooler", "pair_head"}
    assert alone.loss_weights == {"mlm": 1.0} and set(alone.counts(hidden)) == {"mlm"}
    unpaired = {name: value for name, value in hidden.items() if name != "pair_labels"}

    def sums(params: Params, train: bool) -> dict[str, Sum]:
        return alone.loss(params, NOTHING, unpaired, jax.random.key(0), train)[0]

    params = jax.eval_shape(alone.init, jax.random.key(0))
    assert set(jax.eval_shape(lambda p: sums(p, False), params)) == {"mlm", "mlm_accuracy", "mlm_unigram_loss"}
    assert set(jax.eval_shape(lambda p: sums(p, True), params)) == {"mlm", "mlm_accuracy"}


def test_no_masked_position_reads_its_own_answer(
    corrupt: Callable, loss: Callable, params: Params, batch: dict, hidden: dict, vocabulary: Vocabulary
) -> None:
    """With other words under the masks, the network receives identical numbers."""
    hidden = jax.device_get(hidden)
    covered = (hidden["input_ids"] == MASK) & (batch["input_ids"] != MASK)
    assert covered.sum() > 10
    others = {**batch, "input_ids": np.where(covered, 5 + (batch["input_ids"] + 50) % 195, batch["input_ids"])}
    assert (others["input_ids"] != batch["input_ids"]).sum() == covered.sum()
    again = jax.device_get(corrupt(others, jax.random.key(0), np.int32(0)))
    for name in set(again) - {"original_ids", "masked_ids"}:
        np.testing.assert_array_equal(again[name], hidden[name], err_msg=name)
    assert (again["masked_ids"] != hidden["masked_ids"]).sum() == covered.sum()
    scrambled = {**hidden, "original_ids": np.zeros_like(hidden["original_ids"])}
    np.testing.assert_array_equal(loss(params, scrambled)["mlm"].value, loss(params, hidden)["mlm"].value)


def test_dropout_only_in_training(objective: Mlm, params: Params, hidden: dict) -> None:
    @jit
    def values(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        return tuple(objective.loss(params, NOTHING, hidden, key, train)[0]["mlm"].value for train in (True, False))

    one, other = values(jax.random.key(0)), values(jax.random.key(1))
    assert one[0] != other[0] and one[1] == other[1] and one[0] != one[1]


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
def test_gradients_of_logits_are_those_of_the_maths(monkeypatch: pytest.MonkeyPatch, platform: str) -> None:
    """softmax - one-hot where there is a prediction, exactly zero elsewhere."""
    monkeypatch.setattr(vocab_loss, "target_platform", lambda: platform)
    rng = np.random.default_rng(0)
    logits = jnp.asarray(rng.normal(size=(2, 3, 5)), jnp.float32)
    ids, weights = jnp.asarray([[1, 4, 0], [2, 0, 0]]), jnp.asarray([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    gradient = jax.grad(lambda logits: vocab_loss_sums("mlm", logits, ids, weights)["mlm"].value)(logits)
    loss = -np.take_along_axis(log_softmax(logits), np.asarray(ids)[..., None], -1)[..., 0] * np.asarray(weights)
    np.testing.assert_allclose(vocab_loss_sums("mlm", logits, ids, weights)["mlm"].value, loss.sum(), rtol=1e-6)
    expected = (np.exp(log_softmax(logits)) - np.eye(5)[np.asarray(ids)]) * np.asarray(weights)[..., None]
    np.testing.assert_allclose(gradient, expected, atol=1e-6)
    assert not np.asarray(gradient)[np.asarray(weights) == 0].any()


def test_pair_sums_count_only_the_examples_that_are_there() -> None:
    logits = jnp.asarray([[[2.0, 0.0], [0.0, 1.0]], [[0.0, 3.0], [9.0, 9.0]]])
    labels, weights = jnp.asarray([[0, 0], [1, 0]]), jnp.asarray([[1.0, 1.0], [1.0, 0.0]])
    sums = sentence_pair_sums(logits, labels, weights)
    expected = np.log1p(np.exp(-2.0)) + np.log1p(np.exp(1.0)) + np.log1p(np.exp(-3.0))
    np.testing.assert_allclose(sums["pair"].value, expected, rtol=1e-6)
    assert (float(sums["pair"].count), float(sums["pair_accuracy"].value)) == (3.0, 2.0)


def test_the_unigram_baseline_is_a_distribution(objective: Mlm, vocabulary: Vocabulary) -> None:
    np.testing.assert_allclose(np.exp(-unigram_nll(objective.vocabulary).astype(np.float64)).sum(), 1.0, rtol=1e-6)
    assert (
        np.isfinite(unigram_nll(objective.vocabulary)).all()
        and unigram_nll(objective.vocabulary).argmin() == vocabulary.counts.argmax()
    )
