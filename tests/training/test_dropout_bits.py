"""Dropout masks are the same on every mesh, unless the config names another generator (P20)."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bertjax.config.defaults import base_config
from bertjax.models import dropout as dropout_module
from bertjax.models.dropout import dropout, keep_mask
from bertjax.training.state import purpose_key

GENERATORS = ["threefry2x32", "hash"]
SHAPES = [(1, 1, 1), (2, 1, 1), (8, 1, 1), (1, 4, 1), (2, 2, 2), (1, 1, 8)]


def stored(mesh: Mesh, key: jax.Array) -> np.ndarray:
    """Returns ones [16, 8, 32] that are sharded, rows over two axes and columns over the third."""
    laid = NamedSharding(mesh, PartitionSpec(("data", "fsdp"), None, "tensor"))
    ones = jax.device_put(jnp.ones((16, 8, 32)), laid)
    with jax.set_mesh(mesh):
        return np.asarray(jax.jit(lambda x: dropout(x, 0.1, key), out_shardings=laid)(ones))


@pytest.mark.parametrize("impl", GENERATORS)
@pytest.mark.parametrize(
    "shape",
    [pytest.param(shape, marks=[] if shape == (2, 2, 2) else pytest.mark.weekly) for shape in SHAPES[1:]],
    ids=str,
)
def test_dropout_is_the_same_on_every_mesh(mesh_of: Callable[..., Mesh], shape: tuple[int, ...], impl: str) -> None:
    key = purpose_key(3, "dropout", impl)
    alone, result = stored(mesh_of(1), key), stored(mesh_of(*shape), key)
    np.testing.assert_array_equal(result, alone)
    assert 0.07 < (alone == 0).mean() < 0.13


@pytest.mark.long
@pytest.mark.parametrize("shape", [pytest.param((8, 1, 1), marks=pytest.mark.long), (2, 2, 2)], ids=str)
@pytest.mark.parametrize("width", [pytest.param(32, marks=pytest.mark.weekly), 7])
@pytest.mark.parametrize("impl", GENERATORS)
def test_rows_split_by_hand_keep_what_they_keep_in_the_whole(
    mesh_of: Callable[..., Mesh], shape: tuple[int, ...], width: int, impl: str
) -> None:
    """Accumulation gives every device along `data` its rows (training/grad_accumulation.py)."""
    key, ones = purpose_key(3, "dropout", impl), jnp.ones((16, 3, width))
    rows = PartitionSpec("data")
    with jax.set_mesh(mesh_of(*shape)):
        split = jax.shard_map(
            lambda x: dropout(x, 0.1, key), in_specs=rows, out_specs=rows, axis_names={"data"}, check_vma=False
        )
        result = jax.jit(split)(ones)
    np.testing.assert_array_equal(result, dropout(ones, 0.1, key))


@pytest.mark.long
def test_hashed_bits_look_random() -> None:
    """Rates, and correlations of neighbors in a mask, of masks of neighboring keys, and of derived keys."""
    keys = [purpose_key(seed, "dropout", "hash") for seed in range(2)]
    keys += [jax.random.fold_in(keys[0], number) for number in range(2)] + list(jax.random.split(keys[1], 2))
    shape, rate = (64, 128, 64), 0.1
    keep = np.stack([np.asarray(keep_mask(key, rate, shape)[0]) for key in keys]).astype(np.float64)
    spread = np.sqrt(rate * (1 - rate) / keep[0].size)
    assert np.abs(keep.mean((1, 2, 3)) - (1 - rate)).max() < 5 * spread
    centered = (keep - keep.mean((1, 2, 3), keepdims=True)) / np.sqrt(rate * (1 - rate))
    limit = 5 / np.sqrt(keep[0].size)
    for axis in range(1, 4):
        for distance in (1, 2, 32):
            assert np.abs((centered * np.roll(centered, distance, axis)).mean((1, 2, 3))).max() < limit
    between = np.corrcoef(centered.reshape(len(keys), -1)) - np.eye(len(keys))
    assert np.abs(between).max() < limit


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
def test_hashed_masks_are_drawn_again_for_the_gradient(monkeypatch: pytest.MonkeyPatch, platform: str) -> None:
    """The gradient uses the mask of the forward pass; accelerators store none between them."""
    monkeypatch.setattr(dropout_module, "target_platform", lambda: platform)
    key, x = purpose_key(3, "dropout", "hash"), jnp.linspace(1.0, 2.0, 16 * 64).reshape(16, 64)
    result, pull = jax.vjp(lambda x: dropout(x, 0.3, key), x)
    keep, scale = keep_mask(key, 0.3, x.shape)
    np.testing.assert_array_equal(result, jnp.where(keep, x * scale, 0))
    np.testing.assert_allclose(pull(jnp.ones_like(x))[0], jnp.where(keep, scale, 0), rtol=1e-6)
    stored = [leaf.dtype for leaf in jax.tree.leaves(pull) if leaf.size == x.size]
    assert (jnp.bool_ in stored) == (platform == "cpu")


@pytest.mark.parametrize("impl", ["threefry2x32", "hash"])
def test_bfloat16_is_scaled_exactly_on_gpus(monkeypatch: pytest.MonkeyPatch, impl: str) -> None:
    """The same elements are kept as on a CPU, and 1 / (1 - rate) is not rounded before it multiplies them."""
    monkeypatch.setattr(dropout_module, "target_platform", lambda: "cuda")
    key, x = purpose_key(3, "dropout", impl), jnp.linspace(-2.0, 2.0, 16 * 64).reshape(16, 64).astype(jnp.bfloat16)
    keep, scale = keep_mask(key, 0.1, x.shape)
    result, pull = jax.vjp(lambda x: dropout(x, 0.1, key), x)
    expected = jnp.where(keep, x.astype(jnp.float32) * scale, 0.0).astype(jnp.bfloat16)
    np.testing.assert_array_equal(result, expected)
    np.testing.assert_array_equal(pull(x)[0], expected)


def test_another_generator_differs_from_device_to_device(mesh_of: Callable[..., Mesh]) -> None:
    """rbg guarantees nothing about meshes; two devices must not use the same mask."""
    key, rows = purpose_key(3, "dropout", "rbg"), PartitionSpec("data")
    with jax.set_mesh(mesh_of(8)):
        split = jax.shard_map(
            lambda x: dropout(x, 0.5, key), in_specs=rows, out_specs=rows, axis_names={"data"}, check_vma=False
        )
        result = np.asarray(jax.jit(split)(jnp.ones((8, 64))))
    assert len({row.tobytes() for row in result}) == 8


@pytest.mark.parametrize("purpose", ["init", "corrupt", "dropout", "eval"])
def test_jax_settings_do_not_change_a_run(purpose: str) -> None:
    """An environment variable of jax can select another generator; the same command must not become another run."""
    expected = jax.random.key_data(purpose_key(5, purpose))
    with jax.default_prng_impl("rbg"):
        result = purpose_key(5, purpose)
        assert str(jax.random.key_impl(result)) == "threefry2x32"
    np.testing.assert_array_equal(jax.random.key_data(result), expected)


def test_another_generator_only_by_name() -> None:
    """tests/commands/test_nonfinite_run.py tests the effect: `deterministic=true` refuses it."""
    assert base_config().train.dropout_prng == "threefry"
    assert jax.config.jax_threefry_partitionable
    assert str(jax.random.key_impl(purpose_key(0, "dropout", "rbg"))) == "rbg"
