"""Attention in blocks with a window equals attention over the whole row with its mask."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.config.model import EncoderConfig
from bertjax.models import attention as attention_module
from bertjax.models.attention import dot_product_attention
from bertjax.models.attention_context import AttentionContext, attention_mask, has_visible_key
from bertjax.models.encoder import Encoder
from bertjax.models.local_attention import block_size, merge_blocks, should_block, split_blocks
from bertjax.models.model import bind, init_params

QUICK = {"xla_backend_optimization_level": 0}  # compilation dominates
WIDE = EncoderConfig(hidden_size=16, num_heads=2, hidden_dropout=0.0, attention_dropout=0.0)


def draw(rows: int, length: int, count: int) -> list[jax.Array]:
    shape = (count, rows, length, WIDE.num_heads, WIDE.head_dim)
    return [jnp.asarray(each, jnp.float32) for each in np.random.default_rng(0).normal(size=shape)]


def packed_ids(rows: int, length: int) -> jax.Array:
    """Returns a full row of three examples, and one with padding on both sides, two thirds of it."""
    ids = np.zeros((rows, length), np.int32)
    ids[0, : length // 4], ids[0, length // 4 : length // 2], ids[0, length // 2 :] = 1, 2, 3
    ids[1, length // 3 : 2 * length // 3] = 1
    return jnp.asarray(ids)


@pytest.mark.parametrize(
    ("window", "length"),
    [(1, 257), *(pytest.param(*each, marks=pytest.mark.long) for each in ((2, 320), (7, 257), (64, 320))), (130, 257)],
)
@pytest.mark.parametrize("causal", [False, True])
def test_blocks_are_the_whole_row(window: int, length: int, causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values and gradients, also at padding."""
    q, k, v, weights = draw(2, length, 4)
    context = AttentionContext(packed_ids(2, length), window, causal)
    assert should_block(length, window)
    result = []
    for whole in (False, True):
        monkeypatch.setattr(attention_module, "should_block", lambda *_, whole=whole: not whole)

        def loss(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
            out = dot_product_attention(q, k, v, context, WIDE, None)
            return (out * weights).sum(), out

        text = jax.make_jaxpr(loss)(q, k, v).pretty_print(use_color=False)
        assert (f"{length},{length}]" in text) == whole
        (_, out), gradients = jax.jit(jax.value_and_grad(loss, (0, 1, 2), has_aux=True))(q, k, v)
        result.append([np.asarray(each) for each in (out, *gradients)])
    for name, blocks, rows in zip(("out", "dq", "dk", "dv"), *result, strict=True):
        assert np.abs(blocks - rows).max() <= 2e-6, name


@pytest.mark.long
@pytest.mark.parametrize("block", [8, 16, 24])
def test_any_block_that_the_window_reaches_over_once_is_exact(block: int) -> None:
    q, k, v = draw(2, 50, 3)
    context = AttentionContext(packed_ids(2, 50), 16)
    blocks = split_blocks(q, k, v, context, block)
    assert blocks.mask.shape == (2 * -(-50 // block), 1, block, 3 * block)
    counts = merge_blocks(jnp.swapaxes(blocks.mask.sum(-1), 1, 2)[..., None].astype(jnp.float32), 2, 50)[:, :, 0, 0]
    np.testing.assert_array_equal(counts, attention_mask(context.segment_ids, 16)[:, 0].sum(-1))


def test_blocks_reach_over_the_window_and_fill_a_matrix_unit() -> None:
    assert [block_size(window) for window in (1, 128, 129, 256, 1000)] == [64, 64, 64, 128, 504]
    assert not should_block(512, 0) and not should_block(192, 128) and should_block(193, 128)


def test_dropout_in_blocks_keeps_the_mean() -> None:
    """Equal values: every query's output is the remaining probability, one on average."""
    config = dataclasses.replace(WIDE, attention_dropout=0.3)
    q, k, _ = draw(2, 300, 3)
    context = AttentionContext(jnp.ones((2, 300), jnp.int32), 40)
    run = jax.jit(lambda key: dot_product_attention(q, k, jnp.ones_like(q), context, config, key))
    out = np.asarray(run(jax.random.key(0)))
    assert abs(out.mean() - 1.0) < 0.01 and out.std() > 0.05


@pytest.mark.parametrize(("window", "causal"), [(0, False), (0, True), (5, False), (6, False), (5, True)])
def test_queries_that_see_nothing_are_known_without_the_matrix(window: int, causal: bool) -> None:
    ids = jnp.asarray(np.random.default_rng(0).choice([0, 0, 0, 0, 0, 0, 1, 2], (6, 40)), jnp.int32).at[5].set(0)
    expected = attention_mask(ids, window, causal)[:, 0].any(-1)
    np.testing.assert_array_equal(jax.jit(lambda ids: has_visible_key(ids, window, causal))(ids), expected)
    q, k, v = draw(6, 40, 3)
    attend = jax.jit(lambda ids: dot_product_attention(q, k, v, AttentionContext(ids, window, causal), WIDE, None))
    out = np.abs(attend(ids)).sum((2, 3))
    np.testing.assert_array_equal(out > 0, expected)


@pytest.mark.long
def test_packed_examples_with_rotations_and_windows_are_as_if_alone(rows: Callable[..., dict[str, np.ndarray]]) -> None:
    config = dataclasses.replace(
        WIDE,
        vocab_size=50,
        num_layers=3,
        intermediate_size=24,
        position_embedding="none",
        type_vocab_size=0,
        attention_position="rotary",
        global_rope_theta=300.0,
        local_rope_theta=30.0,
        local_attention=10,
        global_attn_every_n_layers=3,
        norm_placement="pre",
        first_attention_norm=False,
        feed_forward="glu",
        initializer_range=0.3,
    )
    params = jax.jit(lambda key: init_params(config, (), key), compiler_options=QUICK)(jax.random.key(0))
    encoder: Encoder = bind(config, (), params).encoder
    batch = rows([[60, 100, 60]], seq_len=224)
    names = ("input_ids", "segment_ids", "position_ids", "token_type_ids")
    run = jax.jit(lambda *inputs: encoder(*inputs).last_hidden_state[0], compiler_options=QUICK)
    together = run(*(jnp.asarray(batch[name]) for name in names))
    for index, part in enumerate((slice(0, 60), slice(60, 160), slice(160, 220))):
        alone = [jnp.asarray(batch[name][:, part]) for name in names]
        alone[1] = jnp.ones_like(alone[1])
        expected = run(*alone)
        assert np.abs(np.asarray(together[part]) - np.asarray(expected)).max() <= 1e-5, index
