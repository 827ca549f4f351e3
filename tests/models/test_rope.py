"""Angles of distant positions equal torch's."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.models.rope import frequencies, rotation

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("base", [10_000.0, 160_000.0])
def test_frequencies_are_torchs_to_the_last_bit(base: float) -> None:
    expected = 1.0 / (base ** (torch.arange(0, 64, 2, dtype=torch.float) / 64))
    np.testing.assert_array_equal(frequencies(64, base), expected.numpy())


def test_rotations_at_the_end_of_a_long_row_are_torchs() -> None:
    positions = np.arange(8000, 8192)
    angles = torch.tensor(positions).float()[:, None] * torch.tensor(frequencies(64, 160_000.0))
    cosines, sines = jax.jit(lambda at: rotation(at, 64, 160_000.0))(jnp.asarray(positions)[None])
    assert np.abs(np.asarray(cosines)[0, :, 0, :32] - torch.cos(angles).numpy()).max() <= 1e-6
    assert np.abs(np.asarray(sines)[0, :, 0, 32:] - torch.sin(angles).numpy()).max() <= 1e-6
