"""A run with a non-finite loss at one batch, from the command line to the files that it writes (P21, P22, P23, P7)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from lab import Lab

from bertjax.config.overrides import load_config
from bertjax.errors import UserError
from bertjax.objectives.mlm import Mlm
from bertjax.runtime import platform
from bertjax.types import Sum

BAD = 5
QUIET = ["--config.export.at_end=false", "--config.eval.fill_mask="]


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch, fresh_programs: None) -> None:
    """Batch 5 has a loss of NaN."""
    corrupt, loss = Mlm.corrupt, Mlm.loss

    def marked(self: Any, batch: dict, key: jax.Array, cursor: jax.Array) -> dict:
        hidden = corrupt(self, batch, key, cursor)
        rows = len(hidden["input_ids"])
        return {**hidden, "poison": jnp.broadcast_to(jnp.where(cursor == BAD, jnp.nan, 0.0), (rows,))}

    def broken(self: Any, params: Any, extra: Any, batch: dict, key: jax.Array, train: bool) -> tuple:
        sums, carry = loss(self, params, extra, batch, key, train)
        return {**sums, "mlm": Sum(sums["mlm"].value + batch["poison"].sum(), sums["mlm"].count)}, carry

    monkeypatch.setattr(Mlm, "corrupt", marked)
    monkeypatch.setattr(Mlm, "loss", broken)


def trained(workdir: Path) -> list[dict]:
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if "train/loss" in line]


@pytest.mark.long
def test_a_batch_without_a_loss_is_reported_and_may_be_left_out(
    lab: Lab, tmp_path: Path, poisoned: None, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert lab.run("pretrain", "--workdir", run, *QUIET) == 2
    output = capsys.readouterr().err
    assert output.count("\n") == 1 and output.startswith(
        "bertjax pretrain: loss is nan at step 6 (batch 5; sums: mlm nan"
    )
    batch = run / "anomalies" / "step-6-batch-5.npz"
    assert str(batch) in output and "train.skip_batches=5" in output
    with np.load(batch) as written:
        assert written["input_ids"].shape == (8, 32) and json.loads(str(written["report"]))["loss"] == "nan"
    assert trained(run)[-1]["step"] == 5

    # As the message says: the same command without that batch.
    assert lab.run("pretrain", "--workdir", run, *QUIET, "--config.train.skip_batches=5") == 0
    assert "train.skip_batches: [] -> ['5']" in capsys.readouterr().out
    assert trained(run)[-1]["step"] == 8 and np.isfinite(trained(run)[-1]["train/loss"])


@pytest.mark.long
def test_a_batch_without_a_loss_is_skipped_or_gone_round(
    lab: Lab, tmp_path: Path, poisoned: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """The loop is tested elsewhere; this test checks that the keys reach it."""
    skipped, never = tmp_path / "skipped", tmp_path / "never"
    assert lab.run("pretrain", "--workdir", skipped, *QUIET, "--config.train.on_nonfinite=skip") == 0
    assert "skipped a batch: loss is nan at step 6 (batch 5;" in capsys.readouterr().out
    assert [line["train/skipped"] for line in trained(skipped)] == [0.0, 0.0, 1.0, 1.0]
    assert lab.run("pretrain", "--workdir", never, *QUIET, "--config.train.skip_batches=5") == 0
    assert trained(skipped)[-1]["train/loss"] == trained(never)[-1]["train/loss"]
    capsys.readouterr()

    back = tmp_path / "back"
    assert lab.run("pretrain", "--workdir", back, *QUIET, "--config.train.on_nonfinite=rollback") == 0
    assert "went back to step 4, on with batch 6" in capsys.readouterr().out
    assert trained(back)[-1]["train/rollbacks"] == 1.0 and trained(back)[-1]["step"] == 8


@pytest.mark.parametrize(
    ("flags", "right"),
    [
        ("", False),
        ("--xla_gpu_deterministic_ops=false", False),
        ("--xla_gpu_exclude_nondeterministic_ops=true", False),
        ("--xla_gpu_deterministic_ops=true --xla_gpu_deterministic_ops=false", False),
        ("--xla_cpu_x=1 --xla_gpu_deterministic_ops=true", True),
        ("--xla_gpu_deterministic_ops", True),
    ],
)
def test_a_gpu_is_deterministic_only_with_the_flag_of_xla(
    monkeypatch: pytest.MonkeyPatch, lab: Lab, flags: str, right: bool
) -> None:
    """P7: a run that cannot be deterministic does not start."""
    cfg = load_config(str(lab.config))
    monkeypatch.setenv("XLA_FLAGS", flags)
    monkeypatch.setattr(platform.jax, "default_backend", lambda: "gpu")
    platform.check_determinism(cfg)
    cfg.deterministic = True
    if right:
        platform.check_determinism(cfg)
    else:
        with pytest.raises(UserError, match=r"XLA_FLAGS=--xla_gpu_deterministic_ops=true"):
            platform.check_determinism(cfg)
    monkeypatch.setattr(platform.jax, "default_backend", lambda: "cpu")
    platform.check_determinism(cfg)


def test_fast_random_bits_are_not_deterministic(lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """P7."""
    arguments = ["--config.deterministic=true", "--config.train.dropout_prng=rbg"]
    assert lab.run("pretrain", "--workdir", tmp_path / "run", *arguments) == 2
    assert "deterministic=true: train.dropout_prng=rbg gives other numbers" in capsys.readouterr().err
