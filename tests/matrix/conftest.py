"""What cells leave out because other tests have it: a cell takes a few seconds."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from bertjax.experiment import build
from bertjax.hf import save
from bertjax.training.sharding import state_shardings
from bertjax.training.state import TrainState
from bertjax.training.step import abstract_state


@pytest.fixture(autouse=True)
def unverified(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skips the comparison of outputs on export, which compiles two more models; here transformers compares."""
    monkeypatch.setattr(save, "_compare_outputs", lambda *_: None)


@pytest.fixture(autouse=True)
def drawn_by_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws initial weights with numpy: the program that draws them takes a third of the compile time."""

    def draw_state(mesh: Mesh, objective: Any, optimizer: Any, seed: int, batch_size: int = 1) -> TrainState:
        shapes, rng = abstract_state(objective, optimizer, batch_size), np.random.default_rng(seed)

        def draw(path: Any, leaf: jax.ShapeDtypeStruct) -> np.ndarray:
            mean = float(getattr(path[-1], "key", None) == "scale")
            return rng.normal(mean, 0.3, leaf.shape).astype(leaf.dtype)

        zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
        state = zeros._replace(params=jax.tree_util.tree_map_with_path(draw, shapes.params))
        return jax.device_put(state, state_shardings(shapes, mesh))

    monkeypatch.setattr(build, "init_state", draw_state)
