"""Permutation language modeling: the loss of transformers, answers that no query sees, a memory of earlier rows."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from plm_lab import CLS, CONFIG, MODEL, SEP, B, R, Rows, S, corrupted, drawn_rows, jit, losses

from bertjax.config.model import EncoderConfig
from bertjax.config.overrides import apply_overrides, load_config
from bertjax.errors import UserError
from bertjax.experiment.config import parse
from bertjax.models.model import bind
from bertjax.models.two_stream import run_two_streams
from bertjax.objectives.base import StepInputs
from bertjax.objectives.plm.objective import Plm
from bertjax.objectives.plm.permutation import permutation_ranks
from bertjax.objectives.vocab_loss import unigram_nll
from bertjax.types import Params, Vocabulary


@pytest.fixture(scope="module")
def objective(vocabulary: Vocabulary) -> Plm:
    return CONFIG.build({"model": MODEL}, vocabulary)


@pytest.fixture(scope="module")
def params(objective: Plm) -> Params:
    return jit(objective.init)(jax.random.key(2))


@pytest.fixture(scope="module")
def batch(objective: Plm) -> Rows:
    return corrupted(objective, drawn_rows(backward=True))


@pytest.fixture(scope="module")
def run(objective: Plm) -> Callable:
    """`losses`, compiled once."""
    return losses(objective)


def logits_of(objective: Plm) -> Callable[[Params, Rows], tuple[jax.Array, jax.Array]]:
    """Returns logits of the targets, and the last states of the tokens."""

    @jit
    def run(params: Params, batch: Rows) -> tuple[jax.Array, jax.Array]:
        model = bind(objective.model, objective.heads, params)
        functional = (batch["input_ids"] == CLS) | (batch["input_ids"] == SEP)
        names = ("input_ids", "segment_ids", "position_ids", "token_type_ids")
        streams = run_two_streams(
            model.encoder,
            **{name: batch[name] for name in names},
            visible=permutation_ranks(batch["prediction_order"], functional, objective.part_lengths),
            targets=batch["masked_positions"],
            backward=batch.get("backward"),
        )
        return model.mlm_logits(streams.targets), streams.content

    return run


@pytest.mark.long
def test_what_is_predicted(objective: Plm, batch: Rows) -> None:
    assert batch["masked_positions"].shape == (B, 7)
    for row in range(B):
        present = np.asarray(batch["masked_weights"][row]) > 0
        positions = np.asarray(batch["masked_positions"][row])[present]
        ids = np.asarray(batch["input_ids"][row])
        assert (
            (positions < R).sum() == 4
            and (np.diff(positions) > 0).all()
            and not np.isin(ids[positions], (CLS, SEP)).any()
        )
        np.testing.assert_array_equal(batch["masked_ids"][row][present], ids[positions])
        hidden = np.flatnonzero((np.asarray(batch["prediction_order"][row]) >= 0) & ~np.isin(ids, (CLS, SEP)))
        np.testing.assert_array_equal(positions, hidden)
    assert objective.counts(batch)["plm"] == batch["masked_weights"].sum()
    again, later = (corrupted(objective, drawn_rows(backward=True), cursor) for cursor in (0, 1))
    np.testing.assert_array_equal(again["masked_positions"], batch["masked_positions"])
    assert (np.asarray(later["masked_positions"]) != np.asarray(batch["masked_positions"])).any()


@pytest.mark.long
def test_a_row_is_hidden_alike_wherever_it_stands(objective: Plm, batch: Rows) -> None:
    turned = {name: value[::-1] for name, value in drawn_rows(backward=True).items()}
    result = corrupted(objective, turned)
    for name in ("prediction_order", "masked_positions", "masked_weights"):
        np.testing.assert_array_equal(result[name][::-1], batch[name])


def test_backward_rows_begin_their_spans_where_words_begin(vocabulary: Vocabulary) -> None:
    """In text of two-token words, read backwards, the first token of a span is the second of a word."""
    config = Plm((255,), 8, 255, mem_len=8, max_ngram=2, example_format="stream")
    objective = config.build({"model": MODEL}, vocabulary)
    opening = int(np.flatnonzero(vocabulary.starts_word)[-1])
    inside = int(np.flatnonzero(~vocabulary.starts_word)[-1])
    forward = np.tile([opening, inside], (200, 128))[:, :255].astype(np.int32)
    rows = {
        "input_ids": np.concatenate([forward, forward[:, ::-1]]),
        "segment_ids": np.ones((400, 255), np.int32),
        "example_ids": np.arange(400, dtype=np.uint32)[:, None],
        "example_epochs": np.zeros((400, 1), np.uint32),
        "backward": np.arange(400) >= 200,
    }
    result = corrupted(objective, {name: jnp.asarray(value) for name, value in rows.items()})
    positions = np.asarray(result["masked_positions"])
    assert (result["masked_weights"] == 1).all()
    ids = np.take_along_axis(rows["input_ids"], positions, axis=1)
    for half, reading in ((slice(0, 200), 1), (slice(200, 400), -1)):
        pairs = np.diff(positions[half], axis=1) == 1
        first = (ids[half][:, :-1] if reading == 1 else ids[half][:, 1:])[pairs]
        assert (first == opening).mean() > 0.9 and pairs.sum() > 100


@pytest.mark.long
def test_no_logit_sees_its_own_word_nor_one_that_comes_later(objective: Plm, params: Params, batch: Rows) -> None:
    run = logits_of(objective)
    base, content = run(params, batch)
    row = 2
    order = np.asarray(batch["prediction_order"][row])
    present = np.asarray(batch["masked_weights"][row]) > 0
    positions = np.asarray(batch["masked_positions"][row])
    for position in positions[present]:
        changed = batch | {"input_ids": batch["input_ids"].at[row, position].set(7)}
        other, moved = run(params, changed)
        np.testing.assert_array_equal(np.delete(other, row, 0), np.delete(base, row, 0))
        must_not = np.where(positions // R == position // R, order[positions] <= order[position], positions < position)
        np.testing.assert_array_equal(other[row][must_not & present], base[row][must_not & present])
        may = present & ~must_not
        assert (np.abs(other[row][may] - base[row][may]).max(-1) > 0).all()
        ordinary = (order < 0) & (np.arange(S) // R == position // R)
        np.testing.assert_array_equal(moved[row][ordinary], content[row][ordinary])
    free = int(np.flatnonzero(order < 0)[0])
    other, _ = run(params, batch | {"input_ids": batch["input_ids"].at[row, free].set(7)})
    assert (np.abs(other[row] - base[row])[present].max(-1) > 0).all()


@pytest.mark.long
def test_the_memory_is_what_the_layers_read_of_the_first_part(
    objective: Plm, params: Params, batch: Rows, run: Callable
) -> None:
    first = objective.init_carry(B)
    assert first["memory"].shape == (B, 2, 16, 12) and not first["memory"].any()
    (value, (_, carry)), _ = run(params, first, batch)
    # the first part sees nothing of the second: no word after it can reach the memory
    second = batch | {"input_ids": batch["input_ids"].at[:, R:].set(9)}
    (_, (_, other)), _ = run(params, first, second)
    np.testing.assert_array_equal(other["memory"], carry["memory"])
    assert not carry["memory"][:, :, : 16 - R].any() and carry["memory"][:, :, 16 - R :].any()
    words = np.asarray(params["encoder"]["embeddings"]["word_embeddings"]["embedding"])
    np.testing.assert_allclose(carry["memory"][:, 0, 16 - R :], words[batch["input_ids"][:, :R]], rtol=1e-6)
    (later, (_, more)), _ = run(params, carry, batch)
    assert later != value
    np.testing.assert_array_equal(more["memory"][:, 0, : 16 - R], carry["memory"][:, 0, R:])


@pytest.mark.long
def test_a_row_reads_its_own_memory(params: Params, batch: Rows, run: Callable) -> None:
    """Rows and memories permuted together give permuted memories and the same sum."""
    memory = jnp.asarray(np.random.default_rng(0).standard_normal((B, 2, 16, 12)), jnp.float32)
    order = jnp.asarray([2, 0, 3, 1])
    (value, (_, carry)), _ = run(params, {"memory": memory}, batch)
    turned = {name: array[order] for name, array in batch.items()}
    (other, (_, moved)), _ = run(params, {"memory": memory[order]}, turned)
    np.testing.assert_allclose(other, value, rtol=1e-6)
    np.testing.assert_allclose(moved["memory"], carry["memory"][order], atol=1e-5)


@pytest.mark.long
def test_microbatches_change_nothing(objective: Plm, params: Params, batch: Rows, vocabulary: Vocabulary) -> None:
    """Loss, gradient and memory of one batch as a whole and in two parts, with backward rows and a memory."""
    import optax

    from bertjax.training.step import train_step

    memory = jnp.asarray(np.random.default_rng(0).standard_normal((B, 2, 16, 12)), jnp.float32)
    optimizer = optax.sgd(1.0)

    def run(microbatches: int) -> tuple[Any, Any]:
        from bertjax.training.state import new_state

        state = new_state(params, {"memory": memory}, optimizer)
        step = functools.partial(
            train_step, objective=objective, optimizer=optimizer, microbatches=microbatches, seed=0
        )
        with jax.set_mesh(jax.make_mesh((1, 1), ("data", "fsdp"), axis_types=(jax.sharding.AxisType.Auto,) * 2)):
            return jit(step)(state, {}, drawn_rows(backward=True))

    (one, metrics), (two, others) = run(1), run(2)
    np.testing.assert_allclose(others["loss"], metrics["loss"], rtol=1e-5)
    np.testing.assert_allclose(two.carry["memory"], one.carry["memory"], atol=1e-5)
    for a, b in zip(jax.tree.leaves(one.params), jax.tree.leaves(two.params), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5 * max(1.0, float(np.abs(a).max())))


@pytest.mark.long
def test_nothing_to_predict_gives_no_gradient(vocabulary: Vocabulary) -> None:
    """Empty rows, rows of specials, and a block without memory."""
    objective = Plm((S,), 4, S).build({"model": MODEL}, vocabulary)
    params = jit(objective.init)(jax.random.key(2))
    rows = drawn_rows()
    rows["segment_ids"] = jnp.asarray((np.arange(S) < np.array([[0], [3], [0], [3]])).astype(np.int32))
    rows["input_ids"] = rows["input_ids"].at[:, :3].set(jnp.asarray([CLS, 9, SEP])[None])
    batch = corrupted(objective, rows)
    assert batch["masked_weights"].sum() == 0 and objective.init_carry(B) == {}
    (value, (sums, carry)), gradient = losses(objective, train=True)(params, {}, batch)
    assert value == 0 and carry == {} and all(np.isfinite(jax.tree.leaves(sums)))
    assert all((np.asarray(leaf) == 0).all() for leaf in jax.tree.leaves(gradient))


@pytest.mark.long
def test_every_target_of_a_short_block_sees_something(vocabulary: Vocabulary) -> None:
    """The most targets possible: one word remains to predict them from, and every target sees something."""
    objective = Plm((S,), S - 4, S).build({"model": MODEL}, vocabulary)
    rows = drawn_rows(rows=60)
    lengths = np.arange(60) % 20 + 4
    rows["segment_ids"] = jnp.asarray((np.arange(S) < lengths[:, None]).astype(np.int32))
    ids = np.asarray(rows["input_ids"]).copy()
    ids[ids == SEP] = 9
    ids[:, 0], ids[np.arange(60), lengths - 1] = CLS, SEP
    batch = corrupted(objective, rows | {"input_ids": jnp.asarray(ids)})
    functional = jnp.asarray(np.isin(ids, (CLS, SEP)))
    visible = np.asarray(permutation_ranks(batch["prediction_order"], functional, (S,)).visible()) & (
        np.asarray(batch["segment_ids"])[:, None] > 0
    )
    for row in range(60):
        positions = np.asarray(batch["masked_positions"][row])[np.asarray(batch["masked_weights"][row]) > 0]
        assert (positions < lengths[row]).all() and visible[row, positions].any(1).all()
        assert not visible[row, positions, positions].any()
        assert len(positions) >= 1 or lengths[row] < 6


@pytest.mark.long
def test_unigram_loss_and_dropout(
    objective: Plm, params: Params, batch: Rows, run: Callable, vocabulary: Vocabulary
) -> None:
    (plain, (sums, _)), _ = run(params, objective.init_carry(B), batch)
    expected = (unigram_nll(vocabulary)[np.asarray(batch["masked_ids"])] * np.asarray(batch["masked_weights"])).sum()
    np.testing.assert_allclose(sums["plm_unigram_loss"].value, expected, rtol=1e-5)
    count = objective.counts(batch)["plm"]
    assert sums["plm"].count == sums["plm_unigram_loss"].count == sums["plm_accuracy"].count == count
    shaken = CONFIG.build({"model": dataclasses.replace(MODEL, hidden_dropout=0.3)}, vocabulary)
    extra = StepInputs({}, objective.init_carry(B))
    still, moved = (
        jit(functools.partial(shaken.loss, train=train))(params, extra, batch, jax.random.key(3))[0]
        for train in (False, True)
    )
    np.testing.assert_allclose(still["plm"].value, plain, rtol=1e-6)
    assert abs(moved["plm"].value - plain) > 1e-3 and "plm_unigram_loss" not in moved


def test_exports_forget_how_they_were_trained(vocabulary: Vocabulary) -> None:
    objective = CONFIG.build({"model": dataclasses.replace(MODEL, bi_data=True, mem_len=16)}, vocabulary)
    config = objective.networks["model"].config
    assert (config.mem_len, config.reuse_len, config.bi_data) == (None, None, False)
    assert (objective.model.mem_len, objective.model.reuse_len) == (16, R)
    assert objective.flops_terms[0].passes == 1 + 7 / S and objective.flops_terms[0].predictions == 7 / S


@pytest.mark.parametrize(
    ("changes", "form", "words"),
    [
        ({"causal": True}, "stream", r"model\.causal must be false"),
        ({"conv_kernel_size": 3}, "stream", "conv_kernel_size must be 0"),
        ({"type_vocab_size": 2}, "segments", "must be 0 .* or at least 3"),
        ({"position_embedding": "sinusoidal"}, "stream", "position_embedding must be none"),
        ({"bi_data": True}, "block", r"model\.bi_data needs data\.example_format to be segments or stream"),
        ({"num_groups": 1, "inner_layers": 2}, "stream", "inner_layers must be 1"),
    ],
)
def test_models_that_do_not_fit_are_refused(changes: dict[str, Any], form: str, words: str) -> None:
    config = Plm((S,), 4, S, mem_len=0 if form == "block" else 8, example_format=form)
    config.check_model(MODEL)
    with pytest.raises(UserError, match=words):
        config.check_model(dataclasses.replace(MODEL, **changes))
    with pytest.raises(UserError, match="attention_position must be relative"):
        config.check_model(EncoderConfig())


def checked(*overrides: str) -> Plm:
    cfg = load_config(f"{Path(__file__).parents[2]}/configs/xlnet.py:base")
    cfg = apply_overrides(cfg, [f"--config.{each}" for each in overrides])
    objective = parse(cfg).objective
    assert isinstance(objective, Plm)
    return objective


def test_lengths_follow_the_row() -> None:
    """The published lengths for 512 tokens, their shares for other rows, and those of the config."""
    published = checked()
    assert (published.part_lengths, published.num_predict_by_part, published.block_size) == ((256, 256), (43, 42), 256)
    assert (published.mem_len, published.max_ngram, published.mask_alpha, published.mask_beta) == (384, 5, 6, 1)
    short = checked("data.seq_len=64", "model.mem_len=20", "model.reuse_len=40", "objective.plm.perm_size=8")
    assert (short.part_lengths, short.num_targets, short.mem_len) == ((40, 24), 10, 20)
    stream = checked("data.example_format=stream", "data.seq_len=64")
    assert (stream.part_lengths, stream.mem_len, stream.block_size) == ((64,), 64, 64)
    block = checked("data.example_format=block", "model.bi_data=false")
    assert (block.part_lengths, block.mem_len) == ((512,), 0)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["data.sources=builtin:python-docs,text:*.md"], "streams need a single source, not 2"),
        (["train.batch_size=9"], r"train\.batch_size=9 must be even"),
        (["eval.batch_size=9"], r"eval\.batch_size=9 must be even"),
        (["data.example_format=stream", "model.reuse_len=100"], "continues after the whole sequence"),
        (["data.example_format=block"], r"model\.bi_data needs data\.example_format to be segments or stream"),
        (["model.preset=bert-base", "model.bi_data=false"], "attention_position must be relative"),
    ],
)
def test_configs_that_do_not_fit_are_refused(overrides: list[str], words: str) -> None:
    with pytest.raises(UserError, match=words):
        checked(*overrides)
