"""Contrastive learning: the loss against the original's formula, and the two views."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.models.model import bind
from bertjax.objectives.base import StepInputs
from bertjax.objectives.contrastive import Contrastive, contrastive_sums, uniformity
from bertjax.objectives.masking.settings import Masking
from bertjax.types import Params, Vocabulary

torch = pytest.importorskip("torch")
F = torch.nn.functional
jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})  # compilation dominates
S = 16
MODEL = EncoderConfig(
    vocab_size=200,
    padded_vocab_size=256,
    hidden_size=16,
    num_layers=2,
    num_heads=2,
    intermediate_size=24,
    max_position_embeddings=S,
    initializer_range=0.3,
)
NOTHING = StepInputs(frozen={}, carry={})


@pytest.fixture(scope="module")
def objective(vocabulary: Vocabulary) -> Contrastive:
    return Contrastive(Masking(), mlm_weight=0.1).build({"model": MODEL}, vocabulary)


@pytest.fixture(scope="module")
def params(objective: Contrastive) -> Params:
    return jit(objective.init)(jax.random.key(0))


@pytest.fixture(scope="module")
def raw(pack: Callable, example: Callable) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return pack([[example(rng, n) for n in row] for row in ([7, 8], [S], [9])], S, [[1, 2], [3], [4]])


@pytest.fixture(scope="module")
def batch(objective: Contrastive, raw: dict) -> dict[str, jax.Array]:
    return dict(jit(objective.corrupt)(raw, jax.random.key(0), np.int32(0)))


@pytest.fixture(scope="module")
def gradient(objective: Contrastive) -> Callable:
    @functools.partial(jit, static_argnums=3)
    def run(params: Params, batch: dict, key: jax.Array, train: bool) -> tuple:
        def total(params: Params) -> tuple[jax.Array, dict]:
            sums, _ = objective.loss(params, NOTHING, batch, key, train)
            return sums["contrastive"].value + sums["mlm"].value, sums

        return jax.value_and_grad(total, has_aux=True)(params)

    return run


@pytest.mark.long
def test_the_loss_is_that_of_the_original() -> None:
    """princeton-nlp/SimCSE: simcse/models.py, cl_forward, of the real examples."""
    rng = np.random.default_rng(0)
    one, noise = (rng.normal(size=(6, 5)).astype(np.float32) for _ in range(2))
    other = one + 2 * noise
    weights = np.array([1, 1, 0, 1, 0, 1], np.float32)
    sums = contrastive_sums(jnp.asarray(one), jnp.asarray(other), jnp.asarray(weights), 0.05)
    first, second = (torch.tensor(side[weights > 0]) for side in (one, other))
    cosines = F.cosine_similarity(first[:, None], second[None], dim=-1) / 0.05
    expected = F.cross_entropy(cosines, torch.arange(4), reduction="sum")
    np.testing.assert_allclose(sums["contrastive"].value, expected, rtol=1e-5)
    assert {float(total.count) for total in sums.values()} == {4.0}
    assert 0 < sums["contrastive_accuracy"].value == float((cosines.argmax(-1) == torch.arange(4)).sum())
    distances = (F.normalize(first) - F.normalize(second)).norm(dim=-1) ** 2
    np.testing.assert_allclose(sums["alignment"].value, distances.sum(), rtol=1e-5)
    pairs = torch.pdist(F.normalize(first)) ** 2
    result = uniformity(jnp.asarray(one), jnp.asarray(weights))
    np.testing.assert_allclose(result.value, torch.log(torch.exp(-2 * pairs).mean()), rtol=1e-5)


def test_negatives_are_those_of_all_devices() -> None:
    devices = jax.devices()
    assert len(devices) == 8
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    rng = np.random.default_rng(1)
    one, other = (rng.normal(size=(16, 5)).astype(np.float32) for _ in range(2))
    laid = [
        jax.device_put(side, NamedSharding(mesh, PartitionSpec("data")))
        for side in (one, other, np.ones(16, np.float32))
    ]
    run = jit(lambda *sides: contrastive_sums(*sides, 0.05)["contrastive"].value)
    np.testing.assert_allclose(run(*laid), run(jnp.asarray(one), jnp.asarray(other), jnp.ones(16)), rtol=1e-5)


@pytest.mark.long
def test_the_views_are_two_drops_of_the_text_as_it_was(
    objective: Contrastive, params: Params, batch: dict, raw: dict, gradient: Callable
) -> None:
    """By hand: every row encoded twice, the first tokens, a dense layer with tanh."""
    (_, sums), _ = gradient(params, batch, jax.random.key(5), True)

    @jit
    def views(key: jax.Array) -> jax.Array:
        model = bind(MODEL, ("mlm",), objective.network_params(params, "model"))
        names = ("input_ids", "segment_ids", "position_ids", "token_type_ids")
        twice = {name: jnp.repeat(jnp.asarray(raw[name]), 2, axis=0) for name in names}
        return model.encode(**twice, key=jax.random.split(key)[0]).last_hidden_state

    hidden = np.asarray(views(jax.random.key(5))).reshape(3, 2, S, 16)
    firsts = np.stack([hidden[0, :, 0], hidden[0, :, 7], hidden[1, :, 0], hidden[2, :, 0]])
    assert np.abs(firsts[:, 0] - firsts[:, 1]).max(-1).min() > 0.01
    dense = np.tanh(firsts @ np.asarray(params["projection"]["kernel"]))
    one, other = (torch.tensor(np.ascontiguousarray(dense[:, side])) for side in (0, 1))
    cosines = F.cosine_similarity(one[:, None], other[None], dim=-1) / 0.05
    expected = F.cross_entropy(cosines, torch.arange(4), reduction="sum")
    np.testing.assert_allclose(sums["contrastive"].value, expected, rtol=1e-4)
    assert sums["contrastive"].count == objective.counts(batch)["contrastive"] == 4


@pytest.mark.long
def test_held_out_views_drop_by_the_key_and_words_do_not(params: Params, batch: dict, gradient: Callable) -> None:
    one, other = (gradient(params, batch, jax.random.key(seed), False)[0][1] for seed in (1, 2))
    assert one["contrastive"].value != other["contrastive"].value and one["alignment"].value > 0
    for name in ("mlm", "uniformity"):
        assert one[name].value == other[name].value
    assert one["uniformity"].value < 0 and one["uniformity"].count == 1


@pytest.mark.long
def test_masks_touch_the_masked_word_loss_alone(params: Params, batch: dict, gradient: Callable) -> None:
    assert (batch["input_ids"] != batch["original_ids"]).any()
    other = {**batch, "input_ids": batch["original_ids"]}
    one, two = (gradient(params, rows, jax.random.key(1), False)[0][1] for rows in (batch, other))
    assert one["contrastive"].value == two["contrastive"].value and one["mlm"].value != two["mlm"].value


@pytest.mark.long
def test_the_dense_layer_is_trained_with_and_not_exported(
    objective: Contrastive, params: Params, batch: dict, gradient: Callable
) -> None:
    _, grads = gradient(params, batch, jax.random.key(0), True)
    assert all(np.asarray(leaf).any() for leaf in jax.tree.leaves(grads))
    assert set(objective.network_params(params, "model")) == {"encoder", "mlm_head"}
    assert set(params) == {"encoder", "mlm_head", "projection"}


@pytest.mark.long
def test_a_batch_of_nothing_gives_no_gradient(params: Params, batch: dict, gradient: Callable) -> None:
    empty = {name: jnp.zeros_like(value) for name, value in batch.items()}
    for train in (True, False):
        (value, sums), grads = gradient(params, empty, jax.random.key(0), train)
        assert value == 0.0 and all(np.isfinite(total.value) for total in sums.values())
        assert all((np.asarray(leaf) == 0.0).all() for leaf in jax.tree.leaves(grads))


@pytest.mark.long
def test_means_are_of_an_examples_own_tokens(vocabulary: Vocabulary, raw: dict) -> None:
    plain = dataclasses.replace(MODEL, hidden_dropout=0.0, attention_dropout=0.0)
    objective = Contrastive(Masking(), pooling="mean", mlm_weight=0.0).build({"model": plain}, vocabulary)
    assert objective.loss_weights == {"contrastive": 1.0} and objective.heads == ()
    assert [(each.passes, each.predictions) for each in objective.flops_terms] == [(2.0, 0.0)]
    fresh = jit(objective.init)(jax.random.key(0))
    assert set(fresh) == {"encoder"}
    rows = {name: jnp.asarray(value) for name, value in raw.items()}
    assert objective.corrupt(rows, jax.random.key(0), jnp.int32(0)) is rows
    sums, _ = jit(lambda params: objective.loss(params, NOTHING, rows, jax.random.key(0), False))(fresh)
    names = ("input_ids", "segment_ids", "position_ids", "token_type_ids")
    hidden = jit(lambda params: bind(plain, (), params).encode(*(rows[name] for name in names)).last_hidden_state)(
        fresh
    )
    hidden = np.asarray(hidden)
    means = [hidden[0, :7].mean(0), hidden[0, 7:15].mean(0), hidden[1].mean(0), hidden[2, :9].mean(0)]
    means = torch.tensor(np.stack(means))
    cosines = F.cosine_similarity(means[:, None], means[None], dim=-1) / 0.05
    expected = F.cross_entropy(cosines, torch.arange(4), reduction="sum")
    np.testing.assert_allclose(sums["contrastive"].value, expected, rtol=1e-4)
    np.testing.assert_allclose(sums["alignment"].value, 0.0, atol=1e-6)


def test_what_makes_no_sense_is_refused() -> None:
    config = Contrastive(Masking())
    config.check_model(MODEL)
    config.check_model(dataclasses.replace(MODEL, hidden_dropout=0.0))  # attention has dropout
    with pytest.raises(UserError, match=r"without any .* both are equal"):
        config.check_model(dataclasses.replace(MODEL, hidden_dropout=0.0, attention_dropout=0.0))
    with pytest.raises(UserError, match="reads text from both sides"):
        config.check_model(dataclasses.replace(MODEL, causal=True))
    with pytest.raises(UserError, match=r"needs data\.example_format to be one of block"):
        config.check_example_format("stream")
    for changes, message in (
        ({"pooling": "last"}, "pooling must be one of first, mean"),
        ({"temperature": 0.0}, "temperature must be above 0"),
        ({"mlm_weight": -0.1}, "mlm_weight must be at least 0"),
        ({"microbatches": 2}, r"train\.microbatches=2 would split"),
    ):
        with pytest.raises(UserError, match=message):
            dataclasses.replace(config, **changes)
