"""The kernel for dropout, residual and norm, interpreted: values, gradients and masks are those of the plain form."""

from __future__ import annotations

import dataclasses
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AbstractDevice, AbstractMesh, AxisType, PartitionSpec

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.models import dropout as dropouts
from bertjax.models.dropout import HASH, dropout
from bertjax.models.encoder import Encoder
from bertjax.models.layer_stack import _is_matmul
from bertjax.models.linear import normalize
from bertjax.models.pallas import norm
from bertjax.models.pallas.norm import NormWeights, add_and_normalize, choose_norm_kernel

KEY = jax.random.key(3, impl=HASH)
CONFIG = EncoderConfig(
    vocab_size=50, hidden_size=64, num_layers=2, num_heads=4, intermediate_size=96, max_position_embeddings=32
)


def inputs(shape: tuple[int, ...]) -> list[jax.Array]:
    """Returns the block's output, the residual, factors of both results, and three vectors."""
    draw = np.random.default_rng(0)
    shapes = [shape] * 4 + [shape[-1:]] * 3
    return [jnp.asarray(draw.normal(size=each), jnp.float32) for each in shapes]


@pytest.mark.long
@pytest.mark.parametrize(("present", "centered"), [((True, True, True), True), ((False, True, False), False)])
@pytest.mark.parametrize("keeps", [True, pytest.param(False, marks=pytest.mark.weekly)])
@pytest.mark.parametrize(
    ("shape", "rate"),
    [
        ((3, 5, 128), 0.1),
        pytest.param((2, 7, 768), 0.3, marks=pytest.mark.long),
        pytest.param((1, 3, 1024), 0.0, marks=pytest.mark.long),
        ((5, 333, 32), 0.5),
    ],
)
def test_it_is_the_plain_form(
    shape: tuple[int, ...], rate: float, keeps: bool, present: tuple[bool, ...], centered: bool, monkeypatch: Any
) -> None:
    """Also where tokens are not a multiple of a block, and a program has several blocks."""
    monkeypatch.setattr(norm, "_PROGRAMS", 3)
    x, residual, *factors = inputs(shape)
    vectors = [vector if there else None for vector, there in zip(factors[2:], present, strict=True)]

    def plain(x: jax.Array, residual: jax.Array, vectors: list[Any]) -> tuple[jax.Array, ...]:
        total = residual + dropout(x if vectors[0] is None else x + vectors[0][None, None], rate, KEY)
        return (normalize(total, vectors[1], vectors[2], centered, 1e-12, jnp.float32), total)[: 1 + keeps]

    def ours(x: jax.Array, residual: jax.Array, vectors: list[Any]) -> tuple[jax.Array, ...]:
        return add_and_normalize(x, residual, NormWeights(*vectors), rate, KEY, centered, 1e-12, keeps)

    def results(function: Any) -> list[Any]:
        def loss(*arguments: Any) -> tuple[jax.Array, Any]:
            out = function(*arguments)
            return sum((each * factor).sum() for each, factor in zip(out, factors, strict=False)), out

        (_, out), gradients = jax.jit(jax.value_and_grad(loss, (0, 1, 2), has_aux=True))(x, residual, vectors)
        return jax.tree.leaves((out, gradients))

    for mine, expected in zip(results(ours), results(plain), strict=True):
        assert np.abs(mine - expected).max() <= 1e-5 * max(1.0, float(np.abs(expected).max()))
    alone = ours(x, residual, vectors)  # without a gradient
    assert all(np.abs(a - b).max() <= 1e-5 for a, b in zip(alone, plain(x, residual, vectors), strict=True))


def masks(shape: tuple[int, ...], split: str, monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """Returns the dropout of ones, by the plain form and by the kernel, with `shard_map` over an axis or without."""
    ones = jnp.ones(shape)
    weights = NormWeights(None, jnp.ones(shape[-1]), None)

    def run(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        kernel = add_and_normalize(x, jnp.zeros_like(x), weights, 0.3, KEY, True, 1e-12, True)
        return dropout(x, 0.3, KEY), kernel[1]

    mesh = jax.make_mesh((2, 2, 2), ("data", "fsdp", "tensor"), axis_types=(AxisType.Auto,) * 3)
    with jax.set_mesh(mesh):
        if split:
            spec = PartitionSpec(split)
            run = jax.shard_map(run, in_specs=spec, out_specs=spec, axis_names={split}, check_vma=False)
        return [np.asarray(each) for each in jax.jit(run)(ones)]


@pytest.mark.parametrize("split", ["", "fsdp"])
def test_masks_are_those_of_dropout_on_every_mesh(split: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, kernel = masks((4, 6, 32), split, monkeypatch)
    assert np.array_equal(plain, kernel)
    assert np.array_equal(plain, dropout(jnp.ones((4, 6, 32)), 0.3, KEY))
    assert 0.5 < (plain > 0).mean() < 0.9


def test_masks_carry_into_the_upper_half_of_the_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a shard begins within 2^32 elements and ends beyond them."""
    start = jnp.uint32(1), jnp.uint32(2**32 - 100)
    for module in (dropouts, norm):
        monkeypatch.setattr(module, "shard_start", lambda shape: start)
    plain, kernel = masks((4, 6, 32), "data", monkeypatch)
    assert np.array_equal(plain, kernel)


@pytest.mark.long
@pytest.mark.parametrize(
    "values",
    [
        {},
        *(
            pytest.param({"norm_placement": placement}, marks=pytest.mark.weekly)
            for placement in ("pre", "sandwich", "parallel", "normformer")
        ),
        {"norm_placement": "pre", "norm_type": "rms_norm", "feed_forward_bias": False, "attention_bias": "none"},
        {"norm_placement": "pre", "norm_zero_centered": True},
        pytest.param({"norm_placement": "pre", "residual_depth": 9}, marks=pytest.mark.weekly),
        pytest.param({"remat": "dots", "norm_bias": False}, marks=pytest.mark.weekly),
    ],
)
def test_an_encoder_computes_the_same(values: dict[str, Any]) -> None:
    alone = encoder_results({"norm_implementation": "xla", **values})
    for mine, expected in zip(encoder_results({"norm_implementation": "pallas", **values}), alone, strict=True):
        assert np.abs(mine - expected).max() <= 1e-5 * max(1.0, float(np.abs(expected).max()))


@pytest.mark.long
def test_a_mesh_computes_the_same() -> None:
    alone = encoder_results({"norm_implementation": "pallas"})
    mesh = jax.make_mesh((2, 2, 2), ("data", "fsdp", "tensor"), axis_types=(AxisType.Auto,) * 3)
    with jax.set_mesh(mesh):
        shared = encoder_results({"norm_implementation": "pallas"})
    for mine, expected in zip(shared, alone, strict=True):
        assert np.abs(mine - expected).max() <= 1e-5 * max(1.0, float(np.abs(expected).max()))


@pytest.mark.long
def test_without_dropout_any_key_will_do() -> None:
    values, key = {"hidden_dropout": 0.0, "attention_dropout": 0.0}, jax.random.key(0)
    alone = encoder_results({"norm_implementation": "xla", **values}, key)
    for mine, expected in zip(encoder_results({"norm_implementation": "pallas", **values}, key), alone, strict=True):
        assert np.abs(mine - expected).max() <= 1e-5 * max(1.0, float(np.abs(expected).max()))


def encoder_results(values: dict[str, Any], key: jax.Array = KEY) -> list[np.ndarray]:
    """Returns the hidden states of an encoder with dropout, and the gradients of its weights."""
    config = dataclasses.replace(CONFIG, **values)
    graph, weights = nnx.split(Encoder(config, nnx.Rngs(0)))
    draw = np.random.default_rng(1)
    weights = jax.tree.map(lambda x: x + jnp.asarray(draw.normal(scale=0.1, size=x.shape), x.dtype), weights)
    ids, factors = jnp.arange(44).reshape(4, 11), jnp.asarray(draw.normal(size=(4, 11, 64)), jnp.float32)

    def loss(weights: Any) -> tuple[jax.Array, jax.Array]:
        out = nnx.merge(graph, weights)(ids, key=key).last_hidden_state
        return (out * factors).sum(), out

    (_, out), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))(weights)
    return [np.asarray(each) for each in (out, *jax.tree.leaves(gradients))]


@pytest.mark.parametrize(("shape", "rate"), [((2, 77, 768), 0.1), ((2, 64, 1024), 0.0)])
def test_it_lowers_for_gpus(shape: tuple[int, ...], rate: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(norm, "target_platform", lambda: "cuda")

    def loss(x: jax.Array, vector: jax.Array, key: jax.Array) -> jax.Array:
        weights = NormWeights(vector, vector, vector)
        out, total = add_and_normalize(x, x, weights, rate, key, True, 1e-12, True)
        return (out.astype(jnp.float32) + total.astype(jnp.float32)).sum()

    x, vector = jax.ShapeDtypeStruct(shape, jnp.bfloat16), jax.ShapeDtypeStruct(shape[-1:], jnp.float32)
    device = AbstractDevice("NVIDIA H100 80GB HBM3", None, "gpu")
    with jax.sharding.use_abstract_mesh(AbstractMesh((1,), ("data",), (AxisType.Auto,), abstract_device=device)):
        text = jax.jit(jax.grad(loss, (0, 1))).trace(x, vector, KEY).lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("custom_call @__gpu$xla.gpu.triton") == 2


def test_it_is_taken_by_name_and_refused_where_it_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    other, named = jax.random.key(0, impl="threefry2x32"), dataclasses.replace(CONFIG, norm_implementation="pallas")
    assert not choose_norm_kernel(CONFIG, KEY)
    assert choose_norm_kernel(named, None) and choose_norm_kernel(named, KEY)
    with monkeypatch.context() as patch, pytest.raises(UserError, match=r"needs a GPU of compute capability 8\.0"):
        patch.setattr(jax, "local_devices", lambda: [types.SimpleNamespace(compute_capability="7.5")])
        patch.setattr(norm, "target_platform", lambda: "cuda")
        choose_norm_kernel(named, KEY)
    with monkeypatch.context() as patch, pytest.raises(UserError, match="for NVIDIA's GPUs, not for tpu; set xla"):
        patch.setattr(norm, "target_platform", lambda: "tpu")
        choose_norm_kernel(named, KEY)
    with pytest.raises(UserError, match=r"norm_implementation=pallas draws the masks of train\.dropout_prng=hash"):
        choose_norm_kernel(named, other)
    with pytest.raises(UserError, match="a multiple of 16 and at most 4096, not 40"):
        choose_norm_kernel(dataclasses.replace(named, hidden_size=40, num_heads=4), None)


def test_rematerialization_computes_it_again() -> None:
    weights = NormWeights(None, jnp.ones(16), None)
    run = jax.make_jaxpr(lambda x: add_and_normalize(x, x, weights, 0.0, None, True, 1e-5))(jnp.ones((1, 2, 16)))
    [call] = [each for each in run.eqns[0].params["call_jaxpr"].eqns if each.primitive.name == "pallas_call"]
    assert not _is_matmul(call.primitive, **call.params)
    assert _is_matmul(call.primitive, **call.params | {"name": "attention_forward"})
