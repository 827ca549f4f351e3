"""Angles of distant positions equal torch's; rotations and their gradients are those of the definition."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.models import rope
from bertjax.models.rope import frequencies, rotate, rotation

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("base", [10_000.0, 160_000.0])
def test_frequencies_are_torchs_to_the_last_bit(base: float) -> None:
    expected = 1.0 / (base ** (torch.arange(0, 64, 2, dtype=torch.float) / 64))
    np.testing.assert_array_equal(frequencies(64, base), expected.numpy())


def test_rotations_at_the_end_of_a_long_row_are_torchs() -> None:
    positions = np.arange(8000, 8192)
    angles = torch.tensor(positions).float()[:, None] * torch.tensor(frequencies(64, 160_000.0))
    cosines, sines = jax.jit(lambda at: rotation(at, frequencies(64, 160_000.0)))(jnp.asarray(positions)[None])
    assert np.abs(np.asarray(cosines)[0, :, 0, :32] - torch.cos(angles).numpy()).max() <= 1e-6
    assert np.abs(np.asarray(sines)[0, :, 0, 32:] - torch.sin(angles).numpy()).max() <= 1e-6


@pytest.mark.parametrize("platform", ["cpu", "tpu"])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_rotations_and_gradients_are_those_of_the_definition(
    platform: str, dtype: jnp.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the last bit; on TPUs bfloat16 halves are exchanged by a matmul."""
    monkeypatch.setattr(rope, "target_platform", lambda: platform)
    x, grad = jax.random.normal(jax.random.key(0), (2, 3, 5, 4, 16), dtype)  # two of [B, S, N, H]
    by = rotation(jnp.arange(15).reshape(3, 5) * 7, frequencies(16, 10_000.0))

    def definition(x: jax.Array) -> jax.Array:
        first, second = x.astype(jnp.float32)[..., :8], x.astype(jnp.float32)[..., 8:]
        cosines, sines = (each[..., 8:] for each in by)
        rotated = first * cosines - second * sines, second * cosines + first * sines
        return jnp.concatenate(rotated, -1).astype(dtype)

    uses_matmul = "dot_general" in str(jax.make_jaxpr(lambda x: rotate(x, by))(x))
    assert uses_matmul == (platform == "tpu" and dtype == jnp.bfloat16)
    (result, backward), (expected, transposed) = jax.vjp(lambda x: rotate(x, by), x), jax.vjp(definition, x)
    np.testing.assert_array_equal(result, expected)
    np.testing.assert_array_equal(backward(grad)[0], transposed(grad)[0])
