"""A run with bfloat16 moments: killed and resumed, and the memory that it reports."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest
from lab import Lab

from bertjax.training import logging

HALF = "--config.optimizer.moments_dtype=bfloat16"


class Crash(BaseException):
    pass


def weights(workdir: Path) -> str:
    return hashlib.sha256((workdir / "export" / "model.safetensors").read_bytes()).hexdigest()


@pytest.mark.weekly
def test_a_killed_run_goes_on_with_the_same_rounding(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """P1: saved in bfloat16, rounded by the number of the step and not by a generator of the process."""
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    assert lab.run("pretrain", "--workdir", whole, HALF) == 0
    advance = logging.Console.advance

    def crash(self: logging.Console, reached: int) -> None:
        advance(self, reached)
        if reached == 5:
            raise Crash

    with monkeypatch.context() as patch, pytest.raises(Crash):
        patch.setattr(logging.Console, "advance", crash)
        lab.run("pretrain", "--workdir", stopped, HALF)
    assert lab.run("pretrain", "--workdir", stopped, HALF) == 0
    assert "resuming at step" in capsys.readouterr().out
    assert weights(whole) == weights(stopped)


@pytest.mark.long
def test_a_dry_run_tells_the_smaller_state(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    """Weights and two moments: 12 bytes per parameter, or 8."""
    sizes = []
    for options in ([], [HALF]):
        wide = "--config.model.intermediate_size=4096"
        assert lab.run("pretrain", "--config.dry_run=true", wide, *options) == 0
        result = re.search(r"^state +([\d,.]+) MiB", capsys.readouterr().out, re.MULTILINE)
        assert result is not None
        sizes.append(float(result[1]))
    assert sizes[1] / sizes[0] == pytest.approx(2 / 3, abs=0.02)
