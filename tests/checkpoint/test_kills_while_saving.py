"""Forty kills of a process that saves continuously: named checkpoints are complete, and one always exists (P9, P12)."""

from __future__ import annotations

import random
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kill_lab import kill_after_lines

from bertjax.checkpoint.manager import Checkpoints
from bertjax.checkpoint.settings import Checkpointing

KILLS = 40
SAVING = """
    import sys, jax.numpy as jnp
    from bertjax.checkpoint.manager import Checkpoints
    from bertjax.checkpoint.settings import Checkpointing
    checkpoints = Checkpoints(sys.argv[1], Checkpointing(keep=1))
    for step in range((checkpoints.latest_step() or 0) + 1, 10**6):
        state = {f"array {i}": jnp.full((64, 64), step + i, jnp.float32) for i in range(8)}
        checkpoints.save(step, state, {"step": step})
        print(step, flush=True)
"""
EXPECTED = {f"array {i}": jax.ShapeDtypeStruct((64, 64), jnp.float32) for i in range(8)}


@pytest.mark.weekly  # tests/checkpoint/test_manager.py has a short version with three kills
def test_forty_kills_leave_a_whole_checkpoint_each_time(tmp_path: Path) -> None:
    draw, last, inside = random.Random(0), 0, 0
    for _ in range(KILLS):
        kill_after_lines(SAVING, tmp_path, 2, draw.uniform(0.0, 0.03))  # by then the first of the two is complete
        inside += any("tmp" in entry.name for entry in tmp_path.iterdir())
        checkpoints = Checkpoints(tmp_path, Checkpointing(keep=1))
        restored = checkpoints.restore(EXPECTED)
        checkpoints.close()
        assert restored is not None and restored.step > last
        assert not (tmp_path / "damaged").exists()
        assert restored.meta == {"step": restored.step}
        for name, array in restored.state.items():
            assert np.all(np.asarray(array) == restored.step + int(name.split()[1]))
        assert not [entry for entry in tmp_path.iterdir() if "tmp" in entry.name]
        last = restored.step
    assert inside > KILLS // 4  # the kills hit a write in progress
