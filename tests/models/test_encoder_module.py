"""`bertjax.Encoder` in the hands of a user: plain jax transformations of its call give the same numbers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from bertjax import Encoder, EncoderConfig, UserError

SIZES = {"num_layers": 2, "hidden_size": 16, "num_heads": 2, "intermediate_size": 24, "vocab_size": 50}


OTHERS = [pytest.param(name, marks=pytest.mark.weekly) for name in ("roberta-base", "modernbert-base")]


@pytest.fixture(scope="module", params=["bert-base", *OTHERS])
def encoder(request: pytest.FixtureRequest) -> Encoder:
    return Encoder(EncoderConfig.from_preset(request.param, **SIZES), rngs=nnx.Rngs(0))


@pytest.fixture(scope="module")
def inputs(encoder: Encoder) -> tuple[jax.Array, jax.Array]:
    mask = np.arange(12) < np.asarray([12, 7, 12, 3, 12, 12, 9, 5])[:, None]
    ids = np.random.default_rng(0).integers(5, 50, (8, 12))
    return jnp.asarray(np.where(mask, ids, encoder.config.pad_token_id)), jnp.asarray(mask, jnp.int32)


def hidden(encoder: Encoder, ids: jax.Array, mask: jax.Array) -> jax.Array:
    return encoder(ids, attention_mask=mask).last_hidden_state * mask[..., None]


def loss(encoder: Encoder, ids: jax.Array, mask: jax.Array) -> jax.Array:
    return (hidden(encoder, ids, mask)[..., 0] ** 2).sum()


def close(one: object, other: object) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5, rtol=2e-5), one, other)


@pytest.mark.long
def test_jit_vmap_and_a_sharded_call_agree(encoder: Encoder, inputs: tuple[jax.Array, jax.Array]) -> None:
    expected = hidden(encoder, *inputs)
    assert expected.shape == (8, 12, 16)
    close(jax.jit(hidden)(encoder, *inputs), expected)
    each = jax.vmap(lambda ids, mask: hidden(encoder, ids[None], mask[None])[0])
    close(each(*inputs), expected)
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    split = jax.device_put(inputs, NamedSharding(mesh, PartitionSpec("data")))
    copied = jax.device_put(encoder, NamedSharding(mesh, PartitionSpec()))
    with jax.set_mesh(mesh):
        sharded = jax.jit(hidden)(copied, *split)
    assert len(sharded.sharding.device_set) == 8
    close(sharded, expected)


@pytest.mark.long
def test_gradients_agree_with_differences(encoder: Encoder, inputs: tuple[jax.Array, jax.Array]) -> None:
    plain, jitted = (gradient(encoder, *inputs) for gradient in (jax.grad(loss), jax.jit(jax.grad(loss))))
    close(jax.tree.leaves(jitted), jax.tree.leaves(plain))
    total = sum((leaf**2).sum() for leaf in jax.tree.leaves(plain))
    step = 1e-3 / jnp.sqrt(total)
    moved = [jax.tree.map(lambda a, g, s=s: a + s * step * g, encoder, plain) for s in (1, -1)]
    difference = (loss(moved[0], *inputs) - loss(moved[1], *inputs)) / (2 * step)
    np.testing.assert_allclose(difference, total, rtol=2e-2)


def test_it_is_shown_on_a_screen(encoder: Encoder) -> None:
    lines = str(encoder).splitlines()
    assert lines == repr(encoder).splitlines() and 2 < len(lines) < 8 and max(map(len, lines)) < 120
    assert lines[0].startswith(f"Encoder({encoder.config.family}: 2 layers of 16, 2 heads, 50 tokens; ")
    assert eval(repr(encoder.config), {"EncoderConfig": EncoderConfig}) == encoder.config


def test_unknown_fields_and_presets_are_refused() -> None:
    with pytest.raises(UserError, match="no field 'num_layer'; did you mean 'num_layers'"):
        EncoderConfig.from_preset("bert-base", num_layer=2)
    with pytest.raises(UserError, match="unknown model preset 'bert-bse'"):
        EncoderConfig.from_preset("bert-bse")
