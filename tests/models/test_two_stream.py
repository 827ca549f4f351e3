"""Two streams: targets do not see themselves, memory is text before the row, packing and compilation change nothing."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.models.model import bind, init_params
from bertjax.models.two_stream import TwoStreamOutput, run_two_streams
from bertjax.types import Params

jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})  # compilation dominates
B, S, T = 2, 10, 4
HEADS = ("mlm",)
CONFIG = EncoderConfig(
    vocab_size=40,
    hidden_size=12,
    num_layers=3,
    num_heads=3,
    intermediate_size=14,
    position_embedding="none",
    type_vocab_size=0,
    embedding_norm="none",
    attention_position="relative",
    relative_segments=True,
    attention_bias="none",
    hidden_dropout=0.0,
    attention_dropout=0.0,
    initializer="normal",
    initializer_range=0.4,
)
Batch = dict[str, jax.Array]


@pytest.fixture(scope="module")
def params() -> Params:
    return jit(lambda key: init_params(CONFIG, HEADS, key))(jax.random.key(0))


def make_batch(rows: int = B, length: int = S, seed: int = 0) -> Batch:
    draw = np.random.default_rng(seed).integers
    ones = np.ones((rows, length), np.int32)
    types = np.tile(np.arange(length) >= length // 2, (rows, 1)).astype(np.int32)
    result = {"input_ids": draw(1, 40, ones.shape), "segment_ids": ones, "position_ids": 0 * ones}
    return {name: jnp.asarray(array, jnp.int32) for name, array in (result | {"token_type_ids": types}).items()}


def order(rows: int = B, length: int = S, seed: int = 0) -> dict[str, jax.Array]:
    """The last T of a random order are targets; each sees the tokens before it in the order, others see no target."""
    rng = np.random.default_rng(seed)
    ranks = np.stack([rng.permutation(length) for _ in range(rows)])
    hidden = np.maximum(ranks - (length - T), -1)
    visible = (hidden[:, None, :] < 0) | (hidden[:, :, None] > hidden[:, None, :])
    targets = np.argsort(ranks, axis=1)[:, -T:]
    return {"visible": jnp.asarray(visible), "targets": jnp.asarray(targets, jnp.int32)}


def runner(config: EncoderConfig = CONFIG, **fixed: Any) -> Callable[..., TwoStreamOutput]:
    @jit
    def run(params: Params, batch: Batch, more: dict[str, jax.Array]) -> TwoStreamOutput:
        return run_two_streams(bind(config, HEADS, params).encoder, **batch, **more, **fixed)

    return run


@pytest.fixture(scope="module")
def run() -> Callable[..., TwoStreamOutput]:
    return runner()


def changed(batch: Batch, row: int, position: int) -> Batch:
    ids = batch["input_ids"]
    return batch | {"input_ids": ids.at[row, position].set((ids[row, position] + 7) % 40)}


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_a_target_sees_what_comes_before_it_in_the_order_and_never_itself(
    run: Callable, params: Params, seed: int
) -> None:
    batch, permutation = make_batch(seed=seed), order(seed=seed)
    base = run(params, batch, permutation).targets
    for step in range(T):  # targets are listed in the order in which they are predicted
        other = run(params, changed(batch, 0, int(permutation["targets"][0, step])), permutation).targets
        np.testing.assert_array_equal(other[1], base[1])
        np.testing.assert_array_equal(other[0, : step + 1], base[0, : step + 1])
        if step + 1 < T:
            assert (np.abs(other[0, step + 1 :] - base[0, step + 1 :]).max(-1) > 1e-5).all()
    free = next(i for i in range(S) if i not in np.asarray(permutation["targets"][0]))
    assert (np.abs(run(params, changed(batch, 0, free), permutation).targets[0] - base[0]).max(-1) > 1e-5).all()


def test_targets_know_their_positions(run: Callable, params: Params) -> None:
    batch, permutation = make_batch(), order()
    swapped = permutation | {"targets": permutation["targets"][:, ::-1]}
    np.testing.assert_allclose(
        run(params, batch, swapped).targets[:, ::-1], run(params, batch, permutation).targets, atol=1e-6
    )
    # the same visibility for all, so that only positions distinguish two targets
    permutation = permutation | {
        "visible": jnp.broadcast_to(permutation["visible"][:, :1], permutation["visible"].shape)
    }
    result = np.asarray(run(params, batch, permutation).targets[0])
    assert min(np.abs(result[i] - result[j]).max() for i in range(T) for j in range(i)) > 1e-3


def test_the_content_stream_is_the_ordinary_encoder(run: Callable, params: Params) -> None:
    batch = make_batch()
    alone = jit(lambda params, batch: bind(CONFIG, HEADS, params).encode(**batch).last_hidden_state)(params, batch)
    np.testing.assert_allclose(run(params, batch, {}).content, alone, atol=1e-6)
    # no query sees the targets
    unrestricted = {"targets": order()["targets"], "visible": jnp.ones((B, S, S), bool)}
    with_targets = run(params, batch, unrestricted)
    np.testing.assert_allclose(with_targets.content, alone, atol=1e-6)


def test_a_memory_is_the_text_before_the_row(params: Params) -> None:
    """Causal layers lose nothing if a row is split: the second half, with memory, equals that of the whole row."""
    config = dataclasses.replace(CONFIG, causal=True)
    batch = make_batch() | {"token_type_ids": jnp.zeros((B, S), jnp.int32)}
    cut = 6
    halves = [{name: array[:, part] for name, array in batch.items()} for part in (slice(0, cut), slice(cut, S))]
    causal = runner(config)
    whole, first = causal(params, batch, {}), causal(params, halves[0], {})
    second = causal(params, halves[1], {"memory": first.memory})
    np.testing.assert_allclose(first.content, whole.content[:, :cut], atol=2e-6)
    np.testing.assert_allclose(second.content, whole.content[:, cut:], atol=2e-6)
    np.testing.assert_allclose(second.memory, whole.memory, atol=2e-6)


@pytest.mark.long
def test_a_memory_holds_the_inputs_of_the_layers(params: Params) -> None:
    config, batch, permutation = dataclasses.replace(CONFIG, mem_len=5, reuse_len=4), make_batch(), order()
    keeping = runner(config, collect=("hidden_states",))
    first = keeping(params, batch, permutation)
    assert first.hidden_states.shape == (4, B, S, 12) and first.target_states.shape == (4, B, T, 12)
    np.testing.assert_array_equal(first.hidden_states[-1], first.content)
    np.testing.assert_array_equal(first.target_states[-1], first.targets)
    np.testing.assert_array_equal(first.memory, first.hidden_states[:-1, :, :4])
    second = keeping(params, batch, permutation | {"memory": first.memory})
    expected = np.concatenate([first.memory, second.hidden_states[:-1, :, :4]], axis=2)[:, :, -5:]
    np.testing.assert_array_equal(second.memory, expected)
    lean = runner(config)(params, batch, permutation | {"memory": first.memory})
    assert lean.hidden_states is None
    np.testing.assert_allclose(lean.memory, second.memory, atol=1e-6)


def test_no_gradient_flows_into_the_rows_before(params: Params) -> None:
    batch, permutation = make_batch(), order()

    @jit
    @jax.grad
    def gradient(params: Params) -> jax.Array:
        return run_two_streams(bind(CONFIG, HEADS, params).encoder, **batch, **permutation).memory.sum()

    assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(gradient(params))) == 0.0


def test_packed_examples_are_as_alone(run: Callable, params: Params) -> None:
    """Targets and tokens of two examples in a row, compared with each example in a separate row, left and right."""
    packed = make_batch(1)
    packed["segment_ids"] = jnp.asarray([[1] * 4 + [2] * 5 + [0]])
    permutation = order(1)
    permutation["targets"] = jnp.asarray([[1, 3, 4, 7]])
    permutation["visible"] = jnp.ones((1, S, S), bool).at[:, :, jnp.asarray([1, 3, 4, 7])].set(False)
    together = run(params, *repeated(packed, permutation))
    for start, stop, targets, left in ((0, 4, [1, 3], 0), (4, 9, [4, 7], 3)):
        row = {name: np.zeros((1, S), np.int32) for name in packed}
        for name in packed:
            row[name][0, left : left + stop - start] = 1 if name == "segment_ids" else packed[name][0, start:stop]
        positions = np.asarray(targets) - start + left
        visible = np.ones((1, S, S), bool)
        visible[:, :, positions] = False
        more = {"targets": jnp.asarray([[*positions, 0, 0]], jnp.int32), "visible": jnp.asarray(visible)}
        alone = run(params, *repeated({name: jnp.asarray(array) for name, array in row.items()}, more))
        indices = [[1, 3, 4, 7].index(target) for target in targets]
        np.testing.assert_allclose(together.targets[0, indices], alone.targets[0, :2], atol=2e-6)
        np.testing.assert_allclose(
            together.content[0, start:stop], alone.content[0, left : left + stop - start], atol=2e-6
        )


def repeated(*trees: dict[str, jax.Array]) -> Any:
    """Returns arrays [1, ...] as [B, ...], the shape that is already compiled."""
    return jax.tree.map(lambda array: jnp.repeat(array, B, axis=0), trees)


def gradient_of(config: EncoderConfig, batch: Batch, permutation: dict) -> Callable:
    @jit
    @jax.value_and_grad
    def run(params: Params) -> jax.Array:
        out = run_two_streams(bind(config, HEADS, params).encoder, **batch, **permutation)
        return (out.targets**3).sum() + (out.content**3).sum()

    return run


@pytest.mark.long
def test_scans_and_rematerialization_change_nothing(params: Params) -> None:
    batch = make_batch()
    permutation = order() | {
        "memory": jnp.asarray(np.random.default_rng(5).standard_normal((3, B, 4, 12)), jnp.float32)
    }
    value, plain = gradient_of(CONFIG, batch, permutation)(params)
    for changes in ({"unroll": 3}, {"remat": "full"}):
        other, gradient = gradient_of(dataclasses.replace(CONFIG, **changes), batch, permutation)(params)
        np.testing.assert_allclose(other, value, rtol=1e-5)
        for one, two in zip(jax.tree.leaves(gradient), jax.tree.leaves(plain), strict=True):
            np.testing.assert_allclose(one, two, rtol=1e-3, atol=1e-4 * np.abs(two).max())
    # every parameter but the head's has an effect
    assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(plain["encoder"]))


@pytest.mark.long
@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"norm_placement": "pre"}, marks=pytest.mark.long),
        pytest.param({"num_groups": 1, "embedding_size": 6}, marks=pytest.mark.weekly),
        pytest.param({"local_attention": 4, "global_attn_every_n_layers": 2}, marks=pytest.mark.weekly),
        {"num_layers": 4, "relative_segments": False, "feed_forward": "glu"},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_other_stacks_run_two_streams_too(changes: dict) -> None:
    config = dataclasses.replace(CONFIG, **changes, mem_len=S)
    params = jit(lambda key: init_params(config, HEADS, key))(jax.random.key(0))
    batch, run = make_batch(), runner(config)
    permutation = order() | {"memory": jnp.zeros((config.num_layers, B, S, 12))}
    first = run(params, batch, permutation)
    memory = first.memory
    assert memory.shape == (config.num_layers, B, S, 12)
    last = int(permutation["targets"][0, -1])
    other = run(params, changed(batch, 0, last), permutation)
    np.testing.assert_array_equal(other.targets[0], first.targets[0])
    second = run(params, batch, permutation | {"memory": memory})
    assert np.isfinite(second.targets).all() and np.abs(second.targets - first.targets).max() > 1e-4


@pytest.mark.long
def test_dropout_falls_on_targets_and_tokens(params: Params) -> None:
    config = dataclasses.replace(CONFIG, hidden_dropout=0.2, attention_dropout=0.2, output_dropout=0.5)
    batch, permutation = make_batch(), order()
    run = jit(lambda key: run_two_streams(bind(config, HEADS, params).encoder, **batch, key=key, **permutation))
    first, again, other = (run(jax.random.key(seed)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first.targets, again.targets)
    for one, two in ((first.targets, other.targets), (first.content, other.content)):
        assert 0.3 < (np.asarray(one) == 0).mean() < 0.7
        assert np.abs(one - two).max() > 1e-3
    assert (np.asarray(first.memory) == 0).mean() < 0.3


@pytest.mark.parametrize(
    ("config", "with_memory", "words"),
    [
        (EncoderConfig(num_layers=1), False, "need attention_position=relative, not none"),
        (dataclasses.replace(CONFIG, conv_kernel_size=3), False, "conv_kernel_size"),
        (dataclasses.replace(CONFIG, num_groups=1, inner_layers=2), True, "inner_layers must be 1"),
    ],
)
def test_encoders_that_cannot_are_refused(config: EncoderConfig, with_memory: bool, words: str) -> None:
    from bertjax.models.two_stream import check_two_streams

    with pytest.raises(UserError, match=words):
        check_two_streams(config, with_memory)
