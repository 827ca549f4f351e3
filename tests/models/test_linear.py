"""Products and their gradients, dropout, activations and initial values against plain arithmetic."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from bertjax.config.model import EncoderConfig
from bertjax.models import linear
from bertjax.models.dropout import dropout
from bertjax.models.linear import KeyStream, Linear, activation, dot, initializer, make_norm, recompute


def operands(transposed: bool) -> tuple[jax.Array, jax.Array]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3, 5, 8)).astype(np.float32)
    kernel = rng.normal(size=(8, 6)).astype(np.float32)
    return jnp.asarray(x), jnp.asarray(kernel.T if transposed else kernel)


def test_groups_are_blocks_on_the_diagonal() -> None:
    x, kernel = operands(False)
    groups, (width, out) = 2, kernel.shape
    shares = kernel[: width // groups]

    def dense(x: jax.Array, shares: jax.Array) -> jax.Array:
        blocks = jnp.split(shares, groups, axis=-1)
        return x @ jax.scipy.linalg.block_diag(*blocks)

    expected = value_and_grads(dense, x, shares)
    actual = value_and_grads(lambda *both: linear.grouped_dot(*both, "float32", "float32", groups), x, shares)
    assert shares.shape == (width // 2, out)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), actual, expected)


def value_and_grads(product, x: jax.Array, kernel: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return jax.value_and_grad(lambda *both: jnp.sin(product(*both).astype(jnp.float32)).sum(), argnums=(0, 1))(
        x, kernel
    )


@pytest.mark.parametrize("transposed", [False, True])
def test_dot_is_a_matrix_product_forward_and_backward(transposed: bool) -> None:
    x, kernel = operands(transposed)
    plain = value_and_grads(lambda a, b: jnp.matmul(a, b.T if transposed else b), x, kernel)
    ours = value_and_grads(lambda a, b: dot(a, b, "float32", "float32", transposed), x, kernel)
    for expected, result in zip(jax.tree.leaves(plain), jax.tree.leaves(ours), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("result", ["float32", "bfloat16"])
def test_dot_in_bfloat16_rounds_its_operands_and_returns_gradients_in_the_types_of_the_inputs(
    transposed: bool, result: str
) -> None:
    x, kernel = operands(transposed)
    x_in = x.astype(result)
    assert dot(x_in, kernel, "bfloat16", result, transposed).dtype == result
    _, (grad_x, grad_kernel) = value_and_grads(lambda a, b: dot(a, b, "bfloat16", result, transposed), x_in, kernel)
    assert (grad_x.dtype, grad_kernel.dtype) == (result, jnp.float32)
    _, (exact_x, exact_kernel) = value_and_grads(lambda a, b: jnp.matmul(a, b.T if transposed else b), x, kernel)
    np.testing.assert_allclose(grad_x.astype(jnp.float32), exact_x, atol=0.15)
    np.testing.assert_allclose(grad_kernel, exact_kernel, atol=0.15)
    wide = dot(x, kernel, "bfloat16", "float32", transposed)
    rounded = [np.asarray(array.astype(jnp.bfloat16), np.float64) for array in (x, kernel)]
    np.testing.assert_allclose(wide, rounded[0] @ (rounded[1].T if transposed else rounded[1]), rtol=1e-5, atol=1e-5)


def test_linear_adds_its_bias() -> None:
    config = EncoderConfig(hidden_size=8, num_heads=1)
    layer = Linear(8, 6, config, nnx.Rngs(0))
    layer.bias[...] = jnp.arange(6.0)
    x, _ = operands(False)
    expected = np.asarray(x) @ np.asarray(layer.kernel[...]) + np.arange(6.0)
    np.testing.assert_allclose(layer(x), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(256, 1024), (1024, 255)])
@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_dropout_zeroes_its_share_and_scales_the_rest(shape: tuple[int, int], rate: float) -> None:
    x = jnp.ones(shape)
    dropped = np.asarray(dropout(x, rate, jax.random.key(1)))
    size = math.prod(shape)
    deviation = math.sqrt(rate * (1 - rate) / size)
    assert abs((dropped == 0).mean() - rate) < 4 * deviation
    values = np.unique(dropped[dropped != 0])
    np.testing.assert_allclose(values, [1 / (1 - rate)], rtol=1e-4)
    assert abs(dropped.mean() - 1.0) < 4 * deviation / (1 - rate)  # unbiased
    for axis in (0, 1):  # no row and no column is dropped as a whole, nor neighbors together
        assert np.abs((dropped == 0).mean(axis) - rate).max() < 8 * math.sqrt(rate * (1 - rate) / shape[axis])
    pairs = (dropped[:, :-1] == 0) & (dropped[:, 1:] == 0)
    assert abs(pairs.mean() - rate**2) < 10 * deviation


def test_dropout_follows_its_key_and_none_drops_nothing() -> None:
    x = jnp.arange(1.0, 1001.0).reshape(10, 100)
    same = [np.asarray(dropout(x, 0.3, jax.random.key(seed))) for seed in (1, 1, 2)]
    np.testing.assert_array_equal(same[0], same[1])
    assert (same[0] != same[2]).any()
    assert dropout(x, 0.3, None) is x
    assert dropout(x, 0.0, jax.random.key(0)) is x
    assert dropout(x.astype(jnp.bfloat16), 0.3, jax.random.key(0)).dtype == jnp.bfloat16


def test_dropout_passes_gradients_where_it_passed_values() -> None:
    x, key = jnp.ones((4, 64)), jax.random.key(3)
    np.testing.assert_array_equal(jax.grad(lambda x: dropout(x, 0.4, key).sum())(x), dropout(x, 0.4, key))


def test_activations_are_those_that_hugging_face_names() -> None:
    x = np.linspace(-4, 4, 81)
    erf = np.array([0.5 * v * (1 + math.erf(v / math.sqrt(2))) for v in x])
    tanh = np.array([0.5 * v * (1 + math.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3))) for v in x])
    assert np.abs(erf - tanh).max() > 4e-4  # so that the tolerance below distinguishes them
    for name, expected in (("gelu", erf), ("gelu_new", tanh), ("relu", np.maximum(x, 0))):
        np.testing.assert_allclose(activation(name)(jnp.asarray(x, jnp.float32)), expected, atol=2e-6)


def test_initial_values() -> None:
    config = EncoderConfig()
    draw = np.asarray(initializer(config)(jax.random.key(0), (1000, 1000), jnp.float32))
    assert abs(draw.std() - 0.01759) < 5e-5 and abs(draw.mean()) < 1e-4
    assert np.abs(draw).max() <= 0.04  # truncated at two sigma, not rescaled
    normal = initializer(dataclasses.replace(config, initializer="normal", initializer_range=0.05))
    draw = np.asarray(normal(jax.random.key(0), (1000, 1000), jnp.float32))
    assert abs(draw.std() - 0.05) < 2e-4 and np.abs(draw).max() > 0.15


def test_layer_norm_keeps_its_digits_far_from_zero() -> None:
    config = EncoderConfig()
    x = np.random.default_rng(0).normal(100.0, 0.1, (4, 256)).astype(np.float32)
    exact = x.astype(np.float64)
    exact = (exact - exact.mean(-1, keepdims=True)) / exact.std(-1, keepdims=True)
    np.testing.assert_allclose(make_norm(256, config, nnx.Rngs(0))(jnp.asarray(x)), exact, atol=2e-3)


def test_layer_norm_adds_the_epsilon_of_the_config() -> None:
    norm = make_norm(2, EncoderConfig(layer_norm_eps=3.0), nnx.Rngs(0))
    np.testing.assert_allclose(norm(jnp.asarray([[-1.0, 1.0]])), [[-0.5, 0.5]], rtol=1e-6)  # 1 / sqrt(1 + 3)


def test_a_key_stream_has_the_keys_of_flax() -> None:
    ours, theirs = KeyStream(jax.random.key(7)), nnx.Rngs(jax.random.key(7))
    for _ in range(3):
        assert (jax.random.key_data(ours.params()) == jax.random.key_data(theirs.params())).all()


def residual_bytes(function: Callable, *inputs: jax.Array) -> int:
    """Returns the bytes that the backward pass receives."""
    residuals = jax.eval_shape(lambda *inputs: jax.vjp(function, *inputs)[1], *inputs)
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(residuals))


@pytest.mark.long
@pytest.mark.parametrize("values", [{}, {"norm_bias": False}, {"norm_type": "rms_norm"}])
def test_norms_on_accelerators_have_the_same_gradients_and_keep_their_input_alone(
    monkeypatch: pytest.MonkeyPatch, values: dict
) -> None:
    config = EncoderConfig(hidden_size=64, num_heads=1, **values)
    graph, params = nnx.split(make_norm(64, config, nnx.Rngs(0)))
    draw = np.random.default_rng(0)
    params = jax.tree.map(lambda leaf: leaf + draw.normal(size=leaf.shape).astype(np.float32), params)
    x, weights = (jnp.asarray(draw.normal(1.0, 3.0, (2, 5, 64)), jnp.float32) for _ in range(2))

    def loss(params: nnx.State, x: jax.Array) -> jax.Array:
        return (nnx.merge(graph, params)(x) * weights).sum()

    expected = jax.value_and_grad(loss, (0, 1))(params, x)
    monkeypatch.setattr(linear, "target_platform", lambda: "tpu")
    result = jax.value_and_grad(loss, (0, 1))(params, x)
    for ours, plain in zip(jax.tree.leaves(result), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(ours, plain, rtol=1e-5, atol=2e-5)
    narrow = x.astype(jnp.bfloat16)
    assert residual_bytes(lambda x: nnx.merge(graph, params)(x), narrow) <= narrow.nbytes + 8 * 10 + 4 * 128


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_activations_on_accelerators_keep_their_input_alone(monkeypatch: pytest.MonkeyPatch, platform: str) -> None:
    x = jnp.linspace(-4.0, 4.0, 256)
    plain, size = jax.grad(lambda x: activation("gelu")(x).sum())(x), residual_bytes(activation("gelu"), x)
    assert residual_bytes(recompute(activation("gelu")), x) == size > x.nbytes
    monkeypatch.setattr(linear, "target_platform", lambda: platform)
    assert residual_bytes(recompute(activation("gelu")), x) == x.nbytes
    np.testing.assert_array_equal(jax.grad(lambda x: recompute(activation("gelu"))(x).sum())(x), plain)


@pytest.mark.long
def test_bias_gradient_on_tpus_is_a_matmul_accumulated_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(0)
    x, weights = (jnp.asarray(draw.normal(1.0, 1.0, (4, 300, 16)), jnp.bfloat16) for _ in range(2))
    bias = jnp.asarray(draw.normal(size=16), jnp.float32)

    def gradients(x: jax.Array, bias: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jax.grad(lambda x, bias: (linear.add_bias(x, bias) * weights).astype(jnp.float32).sum(), (0, 1))(x, bias)

    def matmuls(x: jax.Array) -> int:
        jax.clear_caches()
        return jax.jit(gradients).lower(x, bias).as_text().count("stablehlo.dot_general")

    exact = np.asarray(weights, np.float64).sum((0, 1))
    assert matmuls(x) == 0
    monkeypatch.setattr(linear, "target_platform", lambda: "tpu")
    assert matmuls(x) == 1
    assert matmuls(x.astype(jnp.float32)) == 0  # which a TPU would multiply in bfloat16
    x_gradient, bias_gradient = gradients(x, bias)
    np.testing.assert_array_equal(x_gradient, weights)
    assert bias_gradient.dtype == jnp.float32
    np.testing.assert_allclose(bias_gradient, exact, rtol=1e-5)


@pytest.mark.long
def test_einsum_on_accelerators_multiplies_no_float32_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    config = EncoderConfig(vocab_size=8, compute_dtype="bfloat16")
    a, b = (jax.random.normal(jax.random.key(number), (2, 6, 3, 8)) for number in range(2))

    def gradients(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
        def loss(a: jax.Array, b: jax.Array) -> jax.Array:
            out = linear.einsum("bqnh,bknh->bnqk", a, b, config)
            assert out.dtype == jnp.float32
            return jnp.sin(out).sum()

        return jax.grad(loss, (0, 1))(a, b)

    def matmuls() -> list[str]:
        lines = jax.jit(gradients).lower(a, b).as_text().splitlines()
        return [line.split(" : ")[1].split("->")[0] for line in lines if "stablehlo.dot_general" in line]

    expected = gradients(a, b)
    assert sum("xf32>" in operands for operands in matmuls()) == 2
    monkeypatch.setattr(linear, "target_platform", lambda: "cuda")
    jax.clear_caches()
    assert len(matmuls()) == 3 and not any("xf32>" in operands for operands in matmuls())
    for result, exact in zip(gradients(a, b), expected, strict=True):
        assert result.dtype == jnp.float32 and np.abs(result - exact).max() <= 0.02 * np.abs(exact).max()


@pytest.mark.parametrize("kind", [pytest.param("layer_norm", marks=pytest.mark.long), "rms_norm"])
def test_norms_around_zero_multiply_by_one_more(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain_config = EncoderConfig(norm_type=kind, layer_norm_eps=1e-5)
    config = dataclasses.replace(plain_config, norm_zero_centered=True)
    plain, norm = (make_norm(6, each, KeyStream(jax.random.key(0))) for each in (plain_config, config))
    assert not np.any(norm.scale[...]) and np.all(plain.scale[...] == 1.0)
    x, scale = (jnp.asarray(np.random.default_rng(1).normal(size=shape), jnp.float32) for shape in ((4, 6), (6,)))

    def run(norm: nnx.Module, x: jax.Array, scale: jax.Array) -> jax.Array:
        graphdef, params = nnx.split(norm)
        return jnp.sin(nnx.merge(graphdef, nnx.to_pure_dict(params) | {"scale": scale})(x))

    def values(norm: nnx.Module, scale: jax.Array) -> list[jax.Array]:
        return [run(norm, x, scale), *jax.grad(lambda *both: run(norm, *both).sum(), (0, 1))(x, scale)]

    for result, expected in zip(values(norm, scale), values(plain, 1.0 + scale), strict=True):
        np.testing.assert_allclose(result, expected, atol=2e-6)
    monkeypatch.setattr(linear, "target_platform", lambda: "cuda")
    for result, expected in zip(values(norm, scale), values(plain, 1.0 + scale), strict=True):
        np.testing.assert_allclose(result, expected, atol=2e-6)
