"""A run on packed rows, stopped and resumed."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from lab import Lab

from bertjax.training import logging

PACKED = ["--config.data.packing=best_fit", "--config.train.num_steps=18", "--config.train.batch_size=24"]
RARELY = ["--config.eval.interval_steps=18", "--config.checkpoint.interval_steps=3", "--config.data.dupe_factor=2"]


class Crash(BaseException):
    pass


def crash_after(patch: pytest.MonkeyPatch, step: int) -> None:
    advance = logging.Console.advance

    def crash(self: logging.Console, reached: int) -> None:
        advance(self, reached)
        if reached == step:
            raise Crash

    patch.setattr(logging.Console, "advance", crash)


def weights(workdir: Path) -> str:
    return hashlib.sha256((workdir / "export" / "model.safetensors").read_bytes()).hexdigest()


def last_loss(workdir: Path) -> tuple[int, float]:
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return next((line["step"], line["train/loss"]) for line in reversed(lines) if "train/loss" in line)


@pytest.mark.long  # tests/data/test_packed.py and test_sharded_format.py test the batches themselves
@pytest.mark.parametrize("shard_tokens", [1 << 26, 300])
def test_a_packed_run_resumes_exactly(
    lab: Lab, shard_tokens: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P1, P4, P8: in the first epoch, in the second and in the fourth; sequences are packed again in each."""
    whole, stopped = tmp_path / "packed", tmp_path / "packed and stopped"
    shards = [f"--config.data.shard_tokens={shard_tokens}", "--config.data.shuffle_shards=2"]
    assert lab.run("pretrain", "--workdir", whole, *PACKED, *RARELY, *shards) == 0
    for step in (1, 8, 17):
        with monkeypatch.context() as patch, pytest.raises(Crash):
            crash_after(patch, step)
            lab.run("pretrain", "--workdir", stopped, *PACKED, *RARELY, *shards)
    assert lab.run("pretrain", "--workdir", stopped, *PACKED, *RARELY, *shards) == 0
    assert weights(whole) == weights(stopped)
    assert last_loss(whole) == last_loss(stopped)
