"""Layers that run as one scan, or unrolled: every layer once, in order, split where layers differ."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jaxtyping import Array

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.models.layer import Layer
from bertjax.models.layer_stack import ScanRun, init_attention_norms, init_layers, run_layers, scan_runs
from bertjax.models.model import abstract_params, init_params
from bertjax.types import Params

LOCAL, GLOBAL = True, False


def of(layers: int, **values: Any) -> list[ScanRun]:
    return scan_runs(EncoderConfig(num_layers=layers, **values))


def test_equal_layers_are_one_scan() -> None:
    assert of(12) == [ScanRun(0, 12, (GLOBAL,))]


def test_modernbert_is_a_first_layer_and_whole_periods() -> None:
    """22 = 1 + 7 x 3, 28 = 1 + 9 x 3."""
    values = {
        "local_attention": 128,
        "global_attn_every_n_layers": 3,
        "first_attention_norm": False,
        "norm_placement": "pre",
    }
    for layers, periods in ((22, 7), (28, 9)):
        assert of(layers, **values) == [ScanRun(0, 1, (GLOBAL,)), ScanRun(1, periods, (LOCAL, LOCAL, GLOBAL))]


def test_what_is_left_of_a_pattern_runs_last() -> None:
    assert of(8, local_attention=4, global_attn_every_n_layers=3) == [
        ScanRun(0, 2, (GLOBAL, LOCAL, LOCAL)),
        ScanRun(6, 1, (GLOBAL, LOCAL)),
    ]


def test_the_last_layers_of_a_period_can_be_global() -> None:
    """26 = 4 x 6 + 2, as in Gemma 3."""
    pattern = (LOCAL,) * 5 + (GLOBAL,)
    assert of(26, local_attention=4, global_attn_every_n_layers=6, first_global_layer=5) == [
        ScanRun(0, 4, pattern),
        ScanRun(24, 1, (LOCAL, LOCAL)),
    ]
    with pytest.raises(UserError, match="first_global_layer 6 must be less than global_attn_every_n_layers 6"):
        of(26, local_attention=4, global_attn_every_n_layers=6, first_global_layer=6)
    assert of(4, local_attention=4, global_attn_every_n_layers=0) == [ScanRun(0, 4, (LOCAL,))]
    with pytest.raises(UserError, match="first_global_layer=1 needs global layers"):
        of(4, local_attention=4, global_attn_every_n_layers=0, first_global_layer=1)


def test_groups_of_shared_layers_are_scans_of_their_own() -> None:
    assert of(5, num_groups=2, inner_layers=3) == [ScanRun(0, 3, (GLOBAL,), 0), ScanRun(3, 2, (GLOBAL,), 1)]
    assert of(12, num_groups=1) == [ScanRun(0, 12, (GLOBAL,), 0)]


def test_a_convolution_splits_after_the_first_layer() -> None:
    assert of(24, conv_kernel_size=3) == [ScanRun(0, 1, (GLOBAL,)), ScanRun(1, 23, (GLOBAL,))]


@pytest.mark.parametrize(("start", "stop"), [(0, 7), (2, 7), (0, 6), (3, 5), (4, 4)])
def test_any_stretch_runs_each_of_its_layers_once(start: int, stop: int) -> None:
    config = EncoderConfig(num_layers=7, local_attention=4, global_attn_every_n_layers=3)
    flags = [
        flag for segment in scan_runs(config, start, stop) for _ in range(segment.repeats) for flag in segment.pattern
    ]
    assert flags == [config.is_local(layer) for layer in range(start, stop)]


def gradient(unroll: int, start: int = 0, stop: int | None = None) -> tuple[Callable, dict[str, Params]]:
    """Returns the gradient of seven layers, local, global and the first one without a norm, and their parameters."""
    config = EncoderConfig(
        hidden_size=8,
        num_layers=7,
        num_heads=2,
        intermediate_size=12,
        local_attention=4,
        global_attn_every_n_layers=3,
        first_attention_norm=False,
        norm_placement="pre",
        unroll=unroll,
    )

    def params(module: nnx.Module) -> Params:
        return nnx.to_pure_dict(nnx.state(module))

    rngs = nnx.Rngs(0)
    weights = {
        "layers": params(init_layers(config, rngs)),
        "attention_norms": params(init_attention_norms(config, rngs)),
    }

    def apply(layer: Layer, x: Array, local: bool, key: Array | None, scale: Array) -> Array:
        normed = x if layer.attention.norm is None else layer.attention.norm(x)
        return x + scale * layer.attention.output(normed) * (3 if local else 1)

    def loss(weights: dict[str, Params]) -> tuple[Array, Array]:
        x, scales = jnp.linspace(-1, 1, 48).reshape(2, 3, 8), jnp.arange(1.0, 8.0)
        x, collected = run_layers(
            config, weights, x, apply, None, start=start, stop=stop, per_layer=scales, collect=jnp.sum
        )
        return (x**3).sum(), collected

    return jax.grad(loss, has_aux=True), weights


@pytest.mark.long
@pytest.mark.parametrize(("start", "stop"), [(0, 7), (2, 7), (0, 1), (3, 5)])
def test_unrolled_layers_are_the_scanned_ones(start: int, stop: int) -> None:
    (scanned, weights), (unrolled, _) = gradient(1, start, stop), gradient(7, start, stop)
    expected, result = jax.jit(scanned)(weights), jax.jit(unrolled)(weights)
    assert expected[1].shape == (stop - start,)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), result, expected)
    moved = {i for i in range(7) if np.any(expected[0]["layers"]["attention"]["output"]["kernel"][i])}
    assert moved == {*range(start, stop)}


def test_gradients_of_unrolled_layers_are_joined() -> None:
    """Not padded and summed, which would move each of them several times."""
    unrolled, weights = gradient(7)
    program = jax.jit(unrolled).lower(weights).as_text()
    stack = weights["layers"]["attention"]["output"]["kernel"].shape
    shape = "x".join(map(str, stack))
    assert re.search(rf"stablehlo\.concatenate .*tensor<{shape}xf32>$", program, re.MULTILINE)
    assert not re.search(rf"stablehlo\.(pad|add) .*tensor<{shape}xf32>$", program, re.MULTILINE)


@pytest.mark.parametrize(
    "values", [{"num_groups": 2, "inner_layers": 2}, {"first_attention_norm": False, "norm_placement": "pre"}]
)
def test_shapes_without_draws_are_those_of_the_draws(values: dict[str, Any]) -> None:
    config = EncoderConfig(num_layers=4, **values)
    drawn = jax.eval_shape(lambda: init_params(config, ("pooler", "mlm"), jax.random.key(0)))
    assert abstract_params(config, ("pooler", "mlm")) == drawn
