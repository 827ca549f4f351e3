"""scripts/same_losses.py: its verdict, and a very short run of each implementation."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from lab import Lab, load_script

from bertjax.cli import main


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script(Path(__file__).parents[2] / "scripts" / "same_losses.py")


def test_the_verdict_is_two_standard_errors_of_the_difference_of_means(script: ModuleType) -> None:
    plain, near, far = [3.0, 3.1, 2.9], [3.05, 3.17, 2.95], [3.3, 3.4, 3.2]
    error = 0.1 / 3**0.5  # of each mean
    result = script.difference(script.summary(plain), script.summary(far))
    assert result.mean == pytest.approx(0.3) and result.error == pytest.approx(2**0.5 * error)
    assert result.paired_error == pytest.approx(0, abs=1e-9) and not result.is_within
    assert script.difference(script.summary(plain), script.summary(near)).is_within
    lines = script.table({"plain": plain, "speed-ups": near, "speed-ups, half": far})
    assert lines[2].startswith("| plain | 3.0000 3.1000 2.9000 | 3.0000 ± 0.0577 |")
    assert "| yes |" in lines[3] and "| +0.3000 ± 0.0816 | **no** |" in lines[4]


@pytest.mark.weekly
def test_very_short_runs_learn_the_same(
    lab: Lab, script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A sanity check: the real comparison takes three implementations, three seeds and 1,000 steps."""

    def run(command: list[str], **_: object) -> SimpleNamespace:  # in this process: another one costs ten seconds
        start = command.index("pretrain")
        assert command[1:start] == (
            [script.__file__, "run-plain"] if "float32" in " ".join(command) else ["-m", "bertjax"]
        )
        return SimpleNamespace(returncode=main([*command[start:], "--config.eval.num_batches=2"]), stdout="", stderr="")

    monkeypatch.setattr(script.subprocess, "run", run)
    monkeypatch.setattr(script, "WAYS", (script.PLAIN, script.HALF))
    arguments = ["--out", str(tmp_path), "--train", f"text:{lab.corpus}", "--eval", f"text:{lab.corpus}"]
    arguments += ["--config", str(lab.config), "--steps", "6", "--seeds", "1", "--together", "3"]
    arguments += ["--config.data.seq_len=32", "--config.data.vocab_size=120", "--config.train.log_interval_steps=6"]
    arguments += ["--config.export.at_end=false", "--config.eval.fill_mask="]
    monkeypatch.setattr(sys, "argv", ["same_losses.py", *arguments])
    assert script.main() == 0
    table = (tmp_path / "table.md").read_text()
    assert table.strip() in capsys.readouterr().out
    losses = {line.split(" | ")[0].strip("| "): float(line.split(" | ")[1]) for line in table.splitlines()[2:]}
    assert set(losses) == set(script.WAYS)
    assert 2.0 < losses["plain"] < 5.0 and all(abs(loss - losses["plain"]) < 0.1 for loss in losses.values())

    monkeypatch.setattr(script.subprocess, "run", None)  # the same command again: all jobs are finished
    assert script.main() == 0


def test_the_plain_dropout_is_that_of_jax(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    import jax
    import jax.numpy as jnp

    from bertjax import cli
    from bertjax.models import dropout as home

    monkeypatch.setattr(home, "dropout", home.dropout)  # restored afterwards
    monkeypatch.setattr(cli, "main", lambda arguments: arguments == ["pretrain"])
    assert script.run_plain(["pretrain"])
    key, ones = jax.random.key(0), jnp.ones((64, 64))
    result = home.dropout(ones, 0.25, key)
    assert (result == jnp.where(jax.random.bernoulli(key, 0.75, ones.shape), 1 / 0.75, 0.0)).all()
    assert home.dropout(ones, 0.25, None) is ones
