"""An example that occurs twice in a batch, or in two epochs, has two masks; the same draw has the same mask."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from recipes_lab import epoch_of, objective_of

from bertjax.types import Vocabulary

jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})  # compilation dominates
DRAWN = ("masked_positions", "prediction_order", "sample_noise")


@pytest.mark.long
@pytest.mark.parametrize(
    "recipe", ["electra", *(pytest.param(name, marks=pytest.mark.weekly) for name in ("roberta", "xlnet"))]
)
def test_copies_of_an_example_differ(recipe: str, vocabulary: Vocabulary) -> None:
    objective, example_format, _ = objective_of(recipe, vocabulary, packing="none")
    batch = {
        name: np.repeat(np.asarray(array)[:8], 2, axis=0) for name, array in epoch_of(example_format, "none").items()
    }
    batch["example_epochs"][1::2] = 1
    masked = jit(objective.corrupt)(batch, jax.random.key(1), jnp.asarray(3))
    drawn = [name for name in DRAWN if name in masked]
    assert drawn
    for name in drawn:
        one, other = np.asarray(masked[name])[::2], np.asarray(masked[name])[1::2]
        assert (one != other).reshape(8, -1).any(axis=1).sum() >= 4, name  # short ones may agree by chance
    batch["example_epochs"][1::2] = 0
    again = jit(objective.corrupt)(batch, jax.random.key(1), jnp.asarray(3))
    for name in drawn:
        np.testing.assert_array_equal(again[name][::2], again[name][1::2])
