"""ELECTRA's two encoders: one shared embedding that both train and both exports contain."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.config.model import EncoderConfig
from bertjax.config.presets import preset
from bertjax.errors import UserError
from bertjax.hf.pretrained import load_pretrained
from bertjax.hf.save import save_pretrained
from bertjax.models.model import bind, count_params
from bertjax.objectives.rtd.networks import (
    DISCRIMINATOR_HEADS,
    GENERATOR_HEADS,
    RtdNetworks,
    discriminator_params,
    generator_params,
    init_networks,
)
from bertjax.types import Params

jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})  # compilation dominates
DISCRIMINATOR = EncoderConfig(
    family="electra",
    vocab_size=40,
    hidden_size=24,
    num_layers=2,
    num_heads=2,
    intermediate_size=20,
    embedding_size=12,
    max_position_embeddings=16,
    hidden_act="gelu",
    mlm_act="gelu",
    classifier_dense="own",
    classifier_act="gelu",
    hidden_dropout=0.0,
    attention_dropout=0.0,
)
GENERATOR = dataclasses.replace(DISCRIMINATOR, hidden_size=8, intermediate_size=16)
NETWORKS = RtdNetworks(GENERATOR, DISCRIMINATOR)
SHARED = ("word_embeddings", "position_embeddings", "token_type_embeddings", "norm")


@pytest.fixture(scope="module")
def params() -> Params:
    return jit(lambda key: init_networks(NETWORKS, key))(jax.random.key(0))


def size(tree: Params) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize("name", ["small", "base", "large"])
def test_what_is_shared_is_counted_once(name: str) -> None:
    generator, discriminator = (EncoderConfig(**preset(f"electra-{name}{end}")) for end in ("-generator", ""))
    joint = jax.eval_shape(lambda key: init_networks(RtdNetworks(generator, discriminator), key), jax.random.key(0))
    width = discriminator.embedding_dim
    shared = (30522 + 512 + 2 + 2) * width
    alone = count_params(generator, GENERATOR_HEADS) + count_params(discriminator, DISCRIMINATOR_HEADS)
    assert size(joint) == alone - shared
    apart = RtdNetworks(generator, discriminator, "none")
    assert size(jax.eval_shape(lambda key: init_networks(apart, key), jax.random.key(0))) == alone


@pytest.mark.long
def test_shared_tables_get_the_gradients_of_both(params: Params) -> None:
    ids = jnp.asarray([[5, 6, 7, 8]])
    rows = (ids, jnp.ones_like(ids), jnp.arange(4)[None], jnp.zeros_like(ids))

    def of_generator(params: Params) -> jax.Array:
        model = bind(GENERATOR, GENERATOR_HEADS, generator_params(NETWORKS, params))
        return jax.nn.log_softmax(model.mlm_logits(model.encode(*rows).last_hidden_state))[..., 3].sum()

    def of_discriminator(params: Params) -> jax.Array:
        model = bind(DISCRIMINATOR, DISCRIMINATOR_HEADS, params["discriminator"])
        hidden = model.encode(*rows).last_hidden_state
        return jax.nn.sigmoid(model.rtd_logits(hidden, jnp.zeros((1, 1), jnp.int32), rows[1])).sum()

    @jit
    def gradients(params: Params) -> tuple[Params, ...]:
        both = jax.grad(lambda params: of_generator(params) + of_discriminator(params))
        return tuple(function(params) for function in (both, jax.grad(of_generator), jax.grad(of_discriminator)))

    result = [tree["discriminator"]["encoder"]["embeddings"] for tree in gradients(params)]
    for name in SHARED:
        for leaf in result[0][name]:
            both, first, second = (np.asarray(tree[name][leaf]) for tree in result)
            np.testing.assert_allclose(both, first + second, atol=1e-6)
            assert np.abs(first).max() > 0 and np.abs(second).max() > 0, (name, leaf)
    assert np.abs(result[1]["projection"]["kernel"]).max() == 0  # the projection is not shared


@pytest.mark.long
def test_both_folders_hold_the_shared_tables(params: Params, tmp_path: Path) -> None:
    save_pretrained(tmp_path / "g", generator_params(NETWORKS, params), GENERATOR, heads=GENERATOR_HEADS)
    save_pretrained(tmp_path / "d", params["discriminator"], DISCRIMINATOR, heads=DISCRIMINATOR_HEADS)
    loaded = [load_pretrained(tmp_path / name).params["encoder"]["embeddings"] for name in "gd"]
    for name in SHARED:
        for leaf, values in loaded[0][name].items():
            np.testing.assert_array_equal(values, loaded[1][name][leaf])


def test_every_shared_part_has_one_owner() -> None:
    """ELECTRA's scope includes all tables and their norm; DeBERTa's hook only the word and position tables."""
    assert NETWORKS.shared_embeddings == SHARED
    assert dataclasses.replace(NETWORKS, embedding_sharing="gdes").shared_embeddings == SHARED[:2]
    plain = {"position_embedding": "none", "type_vocab_size": 0, "embedding_norm": "after"}
    bare = RtdNetworks(*(dataclasses.replace(each, **plain) for each in (GENERATOR, DISCRIMINATOR)))
    assert bare.shared_embeddings == ("word_embeddings",)
    alone = sum(
        count_params(each, heads)
        for each, heads in ((bare.generator, GENERATOR_HEADS), (bare.discriminator, DISCRIMINATOR_HEADS))
    )
    assert size(jax.eval_shape(lambda key: init_networks(bare, key), jax.random.key(0))) == alone - 40 * 12


@pytest.mark.long
def test_gdes_adds_to_the_generators_tables() -> None:
    networks = dataclasses.replace(NETWORKS, embedding_sharing="gdes")
    params = jit(lambda key: init_networks(networks, key))(jax.random.key(0))
    deltas = params["discriminator"]["encoder"]["embeddings"]
    assert all(not np.asarray(deltas[name]["delta"]).any() for name in SHARED[:2])
    deltas["word_embeddings"]["delta"] = jnp.full((40, 12), 0.5)
    first, second = (complete(networks, params) for complete in (generator_params, discriminator_params))
    tables = [tree["encoder"]["embeddings"]["word_embeddings"]["embedding"] for tree in (first, second)]
    np.testing.assert_array_equal(tables[0] + 0.5, tables[1])
    for tree, config, heads in (
        (first, GENERATOR, GENERATOR_HEADS),
        (second, DISCRIMINATOR, DISCRIMINATOR_HEADS),
    ):
        assert size(tree) == count_params(config, heads)


@pytest.mark.long
def test_tied_networks_are_one_encoder() -> None:
    networks = RtdNetworks(DISCRIMINATOR, DISCRIMINATOR, "all")
    params = jit(lambda key: init_networks(networks, key))(jax.random.key(0))
    assert params["generator"].keys() == {"mlm_head"}
    encoders = [complete(networks, params)["encoder"] for complete in (generator_params, discriminator_params)]
    assert encoders[0] is encoders[1]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"embedding_size": 8}, "embedding_dim is 8 and 12"),
        ({"type_vocab_size": 0}, "type_vocab_size is 0 and 2"),
        ({"vocab_size": 41}, "vocab_size is 41 and 40"),
    ],
)
def test_what_cannot_be_shared_is_refused(changes: dict, words: str) -> None:
    with pytest.raises(UserError, match=words):
        RtdNetworks(dataclasses.replace(GENERATOR, **changes), DISCRIMINATOR)
