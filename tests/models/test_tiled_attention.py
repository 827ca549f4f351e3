"""Attention in tiles: values, gradients and dropout of the plain form, on one device and on meshes."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.config.distributed import MeshConfig
from bertjax.config.model import EncoderConfig
from bertjax.models import tiled_attention
from bertjax.models.attention import dot_product_attention
from bertjax.models.attention_context import make_context
from bertjax.models.tiled_attention import MAX_TILE_SCORES, Tiles
from bertjax.training.sharding import make_mesh

jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
PLAIN = EncoderConfig(
    hidden_size=24, num_heads=6, attention_dropout=0.2, attention_implementation="xla", compute_dtype="float32"
)
SHAPES = {"rows": (8, 6), "one row": (6, 6), "heads": (3, 3), "one head": (1, 1)}  # scores of a tile, in heads


def inputs(rows: int = 4, length: int = 10, heads: int = 6, width: int = 4) -> tuple[Any, ...]:
    keys = jax.random.split(jax.random.key(0), 4)
    q, k, v, grad = (jax.random.normal(key, (rows, length, heads, width)) for key in keys)
    ids = np.repeat(np.array([[1] * 6 + [2] * 3 + [0]]), rows, axis=0).astype(np.int32)
    ids[0] = 1
    return q, k, v, grad, jnp.asarray(ids)


def output_and_gradients(config: EncoderConfig, dropping: bool, *arrays: jax.Array) -> tuple:
    """Returns the output, and the gradients in q, k and v for a gradient of the output."""
    q, k, v, grad, ids = arrays
    context = make_context(
        config, ids, jnp.broadcast_to(jnp.arange(q.shape[1])[None], ids.shape), config.local_attention > 0
    )
    key = jax.random.key(5) if dropping else None
    out, back = jax.vjp(lambda *heads: dot_product_attention(*heads, context, config, key), q, k, v)
    return out, *back(grad.astype(out.dtype))


@pytest.mark.parametrize("dropping", [False, True])
@pytest.mark.parametrize("tile", SHAPES)
def test_tiles_of_any_size_are_the_plain_form(monkeypatch: pytest.MonkeyPatch, tile: str, dropping: bool) -> None:
    arrays = inputs()
    heads, of_a_tile = SHAPES[tile]
    monkeypatch.setattr(tiled_attention, "MAX_TILE_SCORES", heads * 100)
    assert Tiles((4, 10, 6, 4), 10).heads == of_a_tile
    expected = jit(functools.partial(output_and_gradients, PLAIN, dropping))(*arrays)
    config = dataclasses.replace(PLAIN, attention_implementation="tiled")
    result = jit(functools.partial(output_and_gradients, config, dropping))(*arrays)
    for tiled, plain in zip(result, expected, strict=True):
        np.testing.assert_allclose(tiled, plain, rtol=0, atol=2e-6)
    assert float(jnp.abs(expected[1]).max()) > 0.01


def test_caps_of_scores_are_the_formula_in_every_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """softmax(c tanh(s / c)), with gradients of automatic differentiation; scores beyond the cap are common."""
    monkeypatch.setattr(tiled_attention, "MAX_TILE_SCORES", 300)
    q, k, v, grad, ids = inputs()
    mask = make_context(PLAIN, ids, ids, local=False).visible()

    def formula(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        scores = 0.7 * jnp.tanh(jnp.einsum("bqnh,bknh->bnqk", q, k) / 2.0 / 0.7)
        weights = jax.nn.softmax(jnp.where(mask, scores, -1e30), axis=-1)
        return jnp.einsum("bnqk,bknh->bqnh", weights, v)

    expected = jit(lambda *qkv: (lambda out, back: (out, *back(grad)))(*jax.vjp(formula, *qkv)))(q, k, v)
    for implementation in ("xla", "tiled"):
        config = dataclasses.replace(PLAIN, attention_implementation=implementation, attention_soft_cap=0.7)
        result = jit(functools.partial(output_and_gradients, config, False))(q, k, v, grad, ids)
        for mine, theirs in zip(result, expected, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=0, atol=2e-6)


def test_windows_in_blocks_are_tiled_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiled_attention, "MAX_TILE_SCORES", 1 << 14)
    keys = jax.random.split(jax.random.key(0), 4)
    arrays = (*(jax.random.normal(key, (2, 400, 6, 4)) for key in keys), jnp.ones((2, 400), jnp.int32))
    plain = dataclasses.replace(PLAIN, local_attention=16, global_attn_every_n_layers=2)
    config = dataclasses.replace(plain, attention_implementation="tiled")
    result, expected = (jit(functools.partial(output_and_gradients, each, True))(*arrays) for each in (config, plain))
    for tiled, other in zip(result, expected, strict=True):
        np.testing.assert_allclose(tiled, other, rtol=0, atol=2e-6)


def test_products_read_the_narrow_type_and_gradients_have_the_wide_one() -> None:
    config = dataclasses.replace(PLAIN, attention_implementation="tiled", compute_dtype="bfloat16")
    run = functools.partial(output_and_gradients, config, True)
    products = [
        line for line in str(jax.make_jaxpr(run)(*inputs())).splitlines() if "dot_general" in line and "= " in line
    ]
    assert len(products) == 7 and all("f32[" in line.split("=")[0] for line in products)
    text = jax.jit(run).lower(*inputs()).as_text()
    dots = [line for line in text.splitlines() if "dot_general" in line]
    assert len(dots) == 7 and all(line.count("bf16>") == 2 for line in dots), dots
    for tiled, plain in zip(
        jit(run)(*inputs()), jit(functools.partial(output_and_gradients, PLAIN, True))(*inputs()), strict=True
    ):
        assert tiled.dtype == jnp.float32
        np.testing.assert_allclose(tiled, plain, rtol=0, atol=0.06)


@pytest.mark.parametrize(
    "shape",
    [pytest.param((8, 1, 1), marks=pytest.mark.long), (2, 2, 2), pytest.param((1, 2, 2), marks=pytest.mark.long)],
    ids=str,
)
def test_devices_tile_their_own_rows_and_heads(monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int, int]) -> None:
    """Dropout is that of one device; four rows on eight devices are replicated."""
    monkeypatch.setattr(tiled_attention, "MAX_TILE_SCORES", 100)
    arrays, config = inputs(), dataclasses.replace(PLAIN, attention_implementation="tiled")
    expected = jit(functools.partial(output_and_gradients, config, True))(*arrays)
    with jax.set_mesh(make_mesh(MeshConfig(*shape))):
        result = jit(functools.partial(output_and_gradients, config, True))(*arrays)
    for tiled, alone in zip(result, expected, strict=True):
        np.testing.assert_allclose(tiled, alone, rtol=0, atol=1e-6)


def test_a_tile_fits_the_cache_and_divides_the_heads() -> None:
    """BERT-base at 512 tokens: three heads of a row; BERT-mini at 128: twelve rows do not divide 32, eight do."""
    base, mini = Tiles((4, 512, 12, 64), 512), Tiles((32, 128, 4, 64), 128)
    assert (base.sequences, base.heads) == (1, 3) and (mini.sequences, mini.heads) == (8, 4)
    for tiles, scores in ((base, 512 * 512), (mini, 128 * 128)):
        assert tiles.sequences * tiles.heads * scores <= MAX_TILE_SCORES
