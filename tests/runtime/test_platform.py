"""Start of jax's backend: plugins of hardware that this machine lacks print nothing."""

from __future__ import annotations

import os

import pytest

from bertjax.config.model import encoder_config
from bertjax.config.overrides import load_config, set_values
from bertjax.experiment.abstract_inputs import placeholder_vocabulary
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
    assert platform.start_backend() == "cpu" and capfd.readouterr().err == printed


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_layers_are_unrolled_unless_rematerialised_or_configured(monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    monkeypatch.setattr(platform, "target_platform", lambda: target)
    unrolled = []
    for values in ({}, {"model.remat": "dots"}, {"model.unroll": 2}):
        cfg = set_values(load_config("bert:mini"), values)
        chosen = platform.platform_config(cfg, encoder_config(cfg, placeholder_vocabulary(1000)))
        unrolled.append(chosen.unroll)
        assert chosen.result_dtype == ("float32" if target == "cpu" else "bfloat16")
    assert unrolled == [4, 1, 2]
