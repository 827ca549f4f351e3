"""Sequence to sequence: what is predicted from what, label smoothing, and that packing and meshes change nothing."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bertjax.config.distributed import MeshConfig
from bertjax.config.encoder_decoder import EncoderDecoderConfig
from bertjax.config.model import EncoderConfig
from bertjax.objectives.base import StepInputs
from bertjax.objectives.seq2seq import Seq2Seq
from bertjax.objectives.vocab_loss import vocab_loss_sums
from bertjax.training.flops import training_flops
from bertjax.training.sharding import make_mesh, put_batch, state_shardings
from bertjax.training.state import new_state
from bertjax.training.step import compile_train_step
from bertjax.types import Vocabulary

QUICK = {"xla_backend_optimization_level": 0}
jit = functools.partial(jax.jit, compiler_options=QUICK)  # compiling is the cost
S, T, START = 12, 10, 3
ENCODER = EncoderConfig(
    vocab_size=200,
    padded_vocab_size=256,
    hidden_size=16,
    num_layers=2,
    num_heads=2,
    intermediate_size=24,
    max_position_embeddings=S,
    type_vocab_size=0,
    mlm_head="bias",
    hidden_dropout=0.0,
    attention_dropout=0.0,
    initializer_range=0.3,
)
MODEL = EncoderDecoderConfig.symmetric(ENCODER, decoder_start_token_id=START)
SOURCES, TARGETS = [4, 6, 3, 5], [3, 5, 1, 4]


@pytest.fixture(scope="module")
def objective(vocabulary: Vocabulary) -> Seq2Seq:
    return Seq2Seq().with_model(MODEL, vocabulary)


@pytest.fixture(scope="module")
def batches(pack: Callable) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns four examples packed into two sequences, and one per sequence."""
    draw = np.random.default_rng(1).integers
    sources, targets = ([draw(5, 200, length) for length in lengths] for lengths in (SOURCES, TARGETS))

    def batch(rows: list[list[int]]) -> dict[str, np.ndarray]:
        source = pack([[sources[index] for index in row] for row in rows], S, rows)
        target = pack([[targets[index] for index in row] for row in rows], T, rows)
        names = {"target_ids": "input_ids", "target_segment_ids": "segment_ids", "target_position_ids": "position_ids"}
        return {**source, **{name: target[theirs] for name, theirs in names.items()}}

    return batch([[0, 1], [2, 3]]), batch([[0], [1], [2], [3]])


def test_the_decoder_reads_the_target_one_token_late(objective: Seq2Seq, batches: tuple) -> None:
    batch = objective.corrupt(jax.tree.map(jnp.asarray, batches[0]), jax.random.key(0), jnp.int32(0))
    ids, inputs = batch["target_ids"][0], batch["decoder_input_ids"][0]
    np.testing.assert_array_equal(inputs, [START, *ids[:2], START, *ids[3:7], 0, 0])
    np.testing.assert_array_equal(batch["target_weights"].sum(1), [8, 5])
    assert objective.counts(batch)["seq2seq"] == sum(TARGETS)


@pytest.mark.long
def test_packed_examples_have_the_losses_of_single_ones(objective: Seq2Seq, batches: tuple) -> None:
    params = jit(objective.init)(jax.random.key(0))
    values = []
    for batch in batches:
        ready = objective.corrupt(jax.tree.map(jnp.asarray, batch), jax.random.key(0), jnp.int32(0))
        sums, _ = jit(lambda params, batch: objective.loss(params, StepInputs({}, {}), batch, jax.random.key(0), True))(
            params, ready
        )
        assert set(sums) == {"seq2seq", "seq2seq_nll", "seq2seq_accuracy"}
        values.append([float(each.value) / float(each.count) for each in sums.values()])
    np.testing.assert_allclose(*values, rtol=2e-6)


def test_label_smoothing_is_the_formula_over_the_true_vocabulary() -> None:
    draw = np.random.default_rng(0)
    logits, ids, weights = draw.normal(size=(5, 8)).astype(np.float32), draw.integers(0, 6, 5), np.ones(5, np.float32)
    logits[:, 6:] = np.finfo(np.float32).min  # rows of padding
    sums = vocab_loss_sums("x", jnp.asarray(logits), jnp.asarray(ids), jnp.asarray(weights), 0.1, 6)
    log_p = np.log(np.exp(logits[:, :6]) / np.exp(logits[:, :6]).sum(1, keepdims=True))
    expected = np.where(np.arange(6) == ids[:, None], 0.9, 0.1 / 5)
    np.testing.assert_allclose(sums["x"].value, -(expected * log_p).sum(), rtol=1e-5)
    np.testing.assert_allclose(sums["x_nll"].value, -log_p[np.arange(5), ids].sum(), rtol=1e-5)


@pytest.mark.weekly
def test_steps_on_meshes_and_in_microbatches_are_the_same(objective: Seq2Seq, batches: tuple) -> None:
    """Also: a few steps learn the targets."""
    optimizer, histories = optax.adam(0.03), []
    start = jax.device_get(new_state(jit(objective.init)(jax.random.key(0)), {}, optimizer))
    for shape, microbatches in (((1, 1, 1), 1), ((1, 1, 1), 2), ((1, 2, 2), 1), ((2, 1, 1), 2)):
        mesh = make_mesh(MeshConfig(*shape))
        with jax.set_mesh(mesh):
            state = jax.device_put(start, state_shardings(start, mesh), may_alias=False)
            batch = put_batch(batches[1], mesh)
            step = compile_train_step(mesh, objective, optimizer, microbatches=microbatches, seed=0)
            step = step.compile(state, {}, batch, QUICK)
            losses = []
            for _ in range(12):
                state, metrics = step(state, {}, batch)
                losses.append(float(metrics["loss"]))
        histories.append(losses)
        assert int(metrics["real_tokens"]) == sum(SOURCES) + sum(TARGETS)
    for losses in histories[1:]:
        np.testing.assert_allclose(losses, histories[0], rtol=1e-3)
        np.testing.assert_allclose(losses[0], histories[0][0], rtol=1e-5)
    assert histories[0][-1] < 0.6 * histories[0][0]


def test_flops_count_the_matrices_of_cross_attention(objective: Seq2Seq) -> None:
    layer, cross = 4 * 16 * 16 + 2 * 16 * 24, 4 * 16 * 16
    head, scores = 16 * 256, 2 * 16 * 7
    encoder, decoder = 2 * (layer + scores), 2 * (layer + scores + cross + scores) + head
    assert training_flops(objective, 7.0) == pytest.approx(6 * (encoder + decoder) / 2)
