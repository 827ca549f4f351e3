"""Start of jax's backend: plugins of hardware that this machine lacks print nothing."""

from __future__ import annotations

import os

import pytest

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
