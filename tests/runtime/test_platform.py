"""Start of jax's backend: plugins of hardware that this machine lacks print nothing."""

from __future__ import annotations

import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params

from bertjax.config.model import EncoderConfig, encoder_config
from bertjax.config.overrides import load_config, set_values
from bertjax.errors import UserError
from bertjax.experiment.abstract_inputs import placeholder_vocabulary
from bertjax.experiment.config import parse as check
from bertjax.models import attention_kernels, dropout, linear
from bertjax.models.model import bind, init_params
from bertjax.runtime import platform


@pytest.mark.parametrize(("devices", "printed"), [((), ""), (("/dev/null",), "no TPU")])
def test_plugins_are_quiet_without_their_hardware(
    devices: tuple[str, ...], printed: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def backend() -> str:
        os.write(2, b"no TPU")
        return "cpu"

    monkeypatch.setattr(platform.jax, "default_backend", backend)
    monkeypatch.setattr(platform, "_ACCELERATORS", devices)
    platform._default_backend.cache_clear()
    assert platform.start_backend() == "cpu" and capfd.readouterr().err == printed
    platform._default_backend.cache_clear()


def test_settings_of_jax_that_change_weights_get_their_defaults(caplog: pytest.LogCaptureFixture) -> None:
    try:
        for name, value in {"jax_enable_x64": True, "jax_random_seed_offset": 3}.items():
            jax.config.update(name, value)
        platform.start_backend()
        assert jnp.asarray(np.ones(2)).dtype == jnp.float32 and not jax.config.values["jax_random_seed_offset"]
        assert "JAX_ENABLE_X64=True of jax would change all weights" in caplog.text
    finally:
        jax.config.update("jax_enable_x64", False)
        jax.config.update("jax_random_seed_offset", 0)


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_layers_are_unrolled_unless_rematerialized_or_configured(monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    monkeypatch.setattr(platform, "target_platform", lambda: target)
    unrolled = []
    for values in ({}, {"model.remat": "dots"}, {"model.unroll": 2}):
        cfg = set_values(load_config("bert:mini"), values)
        chosen = platform.platform_config(cfg, encoder_config(cfg, placeholder_vocabulary(1000)))
        unrolled.append(chosen.unroll)
        assert chosen.result_dtype == ("float32" if target == "cpu" else "bfloat16")
    assert unrolled == [4, 1, 2]


def chosen_model(**values: Any) -> EncoderConfig:
    """Returns BERT-tiny with the dtypes of the platform, after these keys of `train` are set."""
    cfg = set_values(load_config("bert:tiny"), {f"train.{name}": value for name, value in values.items()})
    return platform.platform_config(cfg, encoder_config(cfg, placeholder_vocabulary(1000)))


@pytest.mark.parametrize(
    ("target", "values", "expected"),
    [
        ("cuda", {}, ("bfloat16", "bfloat16")),
        ("cuda", {"compute_dtype": "float32"}, ("float32", "float32")),
        ("cuda", {"result_dtype": "float32"}, ("bfloat16", "float32")),
        ("cpu", {"compute_dtype": "bfloat16"}, ("bfloat16", "float32")),
        ("cpu", {"result_dtype": "bfloat16"}, ("bfloat16", "bfloat16")),
    ],
)
def test_results_have_the_configured_type(
    monkeypatch: pytest.MonkeyPatch, target: str, values: dict[str, str], expected: tuple[str, str]
) -> None:
    """The residual stream, norms and sums of a layer have it, on whatever platform."""
    for module in (attention_kernels, dropout, linear, platform):
        monkeypatch.setattr(module, "target_platform", lambda: target)
    monkeypatch.setattr(platform, "cpu_multiplies_bfloat16", lambda: False)
    config = chosen_model(**values)
    assert (config.compute_dtype, config.result_dtype) == expected
    params = jax.eval_shape(lambda key: init_params(config, ("mlm",), key), jax.random.key(0))
    ids = jnp.zeros((2, 16), jnp.int32)

    def encode(params: Any) -> jax.Array:
        return bind(config, ("mlm",), params).encode(ids, ids + 1, ids, ids).last_hidden_state

    with monkeypatch.context() as patch:
        patch.setattr(attention_kernels, "choose_kernel", lambda *_: "xla")
        program = jax.make_jaxpr(encode)(params)
    assert program.out_avals[0].dtype == expected[1]
    sums = {str(each) for each in _types_of_additions(program.jaxpr) if len(each.shape) == 3}
    assert {each.split("[")[0] for each in sums} >= {expected[1]}
    if expected[1] == "float32":
        assert not [each for each in sums if each.startswith("bfloat16")]


def _types_of_additions(jaxpr: Any) -> list[Any]:
    """Returns the types of all sums of two arrays in a program and the functions that it calls."""
    types = []
    for each in jaxpr.eqns:
        if each.primitive.name == "add":
            types.append(each.outvars[0].aval)
        for inner in jaxprs_in_params(each.params):
            types += _types_of_additions(inner)
    return types


def test_float32_matmuls_have_no_bfloat16_results() -> None:
    cfg = set_values(load_config("bert:tiny"), {"train.compute_dtype": "float32", "train.result_dtype": "bfloat16"})
    with pytest.raises(UserError, match=r"train\.result_dtype=bfloat16 and train\.compute_dtype=float32"):
        check(cfg)
