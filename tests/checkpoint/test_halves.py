"""Weights, text position and journal belong to one step: a mix of two steps is not loaded as a checkpoint (P6)."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.checkpoint.manager import Checkpoints
from bertjax.checkpoint.manifest import MANIFEST
from bertjax.checkpoint.settings import Checkpointing


def state_of(step: int) -> dict[str, Any]:
    return {"params": {"kernel": jnp.full((4, 4), step, jnp.float32)}, "cursor": jnp.int32(step + 10)}


def exchange(name: str) -> Callable[[Path, Path], None]:
    """Replaces `name` in the newer step by the valid content of the older step."""

    def change(newer: Path, older: Path) -> None:
        if (newer / name).is_dir():
            shutil.rmtree(newer / name)
            shutil.copytree(older / name, newer / name)
        else:
            shutil.copy(older / name, newer / name)

    return change


def without(name: str) -> Callable[[Path, Path], None]:
    return lambda newer, _: shutil.rmtree(newer / name) if (newer / name).is_dir() else (newer / name).unlink()


def edited(newer: Path, _: Path) -> None:
    path = newer / MANIFEST
    path.write_text(path.read_text().replace('"spikes": 3', '"spikes": 0'))


@pytest.mark.parametrize(
    "change",
    [exchange("state"), exchange(MANIFEST), without("state"), without(MANIFEST), edited],
    ids=["old weights", "old journal", "no weights", "no journal", "edited journal"],
)
def test_a_step_with_one_half_changed_is_refused(tmp_path: Path, change: Callable[[Path, Path], None]) -> None:
    checkpoints = Checkpoints(tmp_path, Checkpointing(keep=3))
    for step in (2, 3):
        checkpoints.save(step, state_of(step), {"anomalies": {"spikes": step}})
    checkpoints.wait()
    change(tmp_path / "3", tmp_path / "2")
    abstract = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), state_of(0))
    restored = checkpoints.restore(abstract)
    assert restored is not None
    assert (restored.step, int(restored.state["cursor"]), restored.meta["anomalies"]["spikes"]) == (2, 12, 2)
    np.testing.assert_array_equal(restored.state["params"]["kernel"], np.full((4, 4), 2.0))
    assert (tmp_path / "damaged" / "3").is_dir()
    checkpoints.close()
