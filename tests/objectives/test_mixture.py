"""A mixture: every member sees only its rows, and the loss is the weighted sum of the members' losses."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.config.distributed import MeshConfig
from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.models.model import bind
from bertjax.objectives.base import StepInputs, encoder_inputs
from bertjax.objectives.clm import Clm
from bertjax.objectives.masking.settings import Masking
from bertjax.objectives.mixture import Member, ObjectiveMixture, member_batch, parse_members
from bertjax.objectives.mlm import Mlm
from bertjax.training.flops import flops_per_token, training_flops
from bertjax.training.sharding import make_mesh, put_batch
from bertjax.types import Params, Vocabulary

jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
S, ROWS = 24, 8
NOTHING = StepInputs(frozen={}, carry={})
MLM = Mlm(Masking(mask_rate=0.3, max_predictions=10), masked_next_token=True)


@pytest.fixture(scope="module")
def objective(vocabulary: Vocabulary) -> ObjectiveMixture:
    model = EncoderConfig(
        vocab_size=200,
        padded_vocab_size=256,
        hidden_size=32,
        num_layers=2,
        num_heads=4,
        intermediate_size=64,
        max_position_embeddings=S,
        hidden_dropout=0.0,
        attention_dropout=0.0,
    )
    members = (Member("mlm", 0.75, MLM), Member("clm", 0.25, Clm()))
    return ObjectiveMixture(members).build({"model": model}, vocabulary)


@pytest.fixture(scope="module")
def params(objective: ObjectiveMixture) -> Params:
    rng = np.random.default_rng(0)
    fresh = jit(objective.init)(jax.random.key(0))
    return jax.tree.map(lambda leaf: leaf + jnp.asarray(rng.normal(0.0, 0.1, leaf.shape), leaf.dtype), fresh)


@pytest.fixture(scope="module")
def rows(pack: Callable) -> dict[str, jax.Array]:
    rng = np.random.default_rng(1)
    texts = [[np.concatenate([[2], rng.integers(6, 200, n), [3]])] for n in rng.integers(3, S - 2, ROWS)]
    batch = pack(texts, S, [[i] for i in range(ROWS)])
    return {name: jnp.asarray(value) for name, value in batch.items()}


@pytest.fixture(scope="module")
def batch(objective: ObjectiveMixture, rows: dict) -> dict[str, jax.Array]:
    return dict(jit(objective.corrupt)(rows, jax.random.key(0), jnp.int32(0)))


@pytest.fixture(scope="module")
def loss(objective: ObjectiveMixture) -> Callable:
    return jit(lambda params, batch: objective.loss(params, NOTHING, batch, jax.random.key(0), train=False)[0])


@pytest.mark.long
def test_every_row_has_one_objective(objective: ObjectiveMixture, rows: dict, batch: dict) -> None:
    hidden, plain = member_batch(batch, "mlm"), member_batch(batch, "clm")
    assert len(hidden["input_ids"]) == 6 and len(plain["input_ids"]) == 2
    np.testing.assert_array_equal(hidden["original_ids"], rows["input_ids"][:6])
    np.testing.assert_array_equal(plain["input_ids"], rows["input_ids"][6:])
    assert set(objective.counts(batch)) == set(objective.loss_weights) == {"mlm", "clm"}


@pytest.mark.long
def test_the_loss_is_that_of_the_members(
    objective: ObjectiveMixture, params: Params, batch: dict, loss: Callable
) -> None:
    assert objective.loss_weights == {"mlm": 0.75, "clm": 0.25}
    sums = loss(params, batch)
    assert "mlm_unigram_loss" in sums and "clm_unigram_loss" in sums
    for name, member in objective.by_name.items():
        alone, _ = jit(lambda p, b, m=member: m.loss(p, NOTHING, b, jax.random.key(0), train=False))(
            params, member_batch(batch, name)
        )
        np.testing.assert_allclose(sums[name].value, alone[name].value, rtol=1e-6)
        assert float(sums[name].count) == float(objective.counts(batch)[name])


def test_causal_rows_see_one_side_and_masked_rows_both(objective: ObjectiveMixture, params: Params) -> None:
    ids = jnp.asarray(np.random.default_rng(3).integers(6, 200, (1, S)), jnp.int32)
    where = {
        "segment_ids": jnp.ones((1, S), jnp.int32),
        "position_ids": jnp.arange(S, dtype=jnp.int32)[None],
        "token_type_ids": jnp.zeros((1, S), jnp.int32),
    }
    changed = {}
    for name, member in objective.by_name.items():
        encode = jit(lambda x, m=member: bind(m.model, m.heads, params).encode(x, **where).last_hidden_state)
        moved = np.abs(np.asarray(encode(ids) - encode(ids.at[0, 10].set(7))))[0].max(-1) > 0
        changed[name] = moved
    assert changed["mlm"].all()
    assert not changed["clm"][:10].any() and changed["clm"][10:].all()


@pytest.mark.long
def test_a_hidden_word_is_predicted_from_the_state_before_it(
    objective: ObjectiveMixture, params: Params, batch: dict
) -> None:
    member_rows, member = member_batch(batch, "mlm"), objective.by_name["mlm"]
    there = np.asarray(member_rows["masked_weights"]) > 0
    assert there.sum() > 20
    positions = np.asarray(member_rows["masked_positions"])
    model = bind(member.model, member.networks["model"].heads, params)
    hidden = jit(lambda b: model.encode(**b).last_hidden_state)(encoder_inputs(member_rows))
    logits = np.asarray(model.mlm_logits(hidden), np.float64)
    rows, columns = np.nonzero(there)
    picked = logits[rows, positions[rows, columns] - 1]
    answer = np.take_along_axis(picked, np.asarray(member_rows["masked_ids"])[rows, columns][:, None], axis=1)[:, 0]
    high = picked.max(-1)
    expected = (np.log(np.exp(picked - high[:, None]).sum(-1)) + high - answer).sum()
    sums, _ = member.loss(params, NOTHING, member_rows, jax.random.key(0), train=False)
    np.testing.assert_allclose(float(sums["mlm"].value), expected, rtol=1e-5)


@pytest.mark.long
def test_the_first_token_of_an_example_has_no_state_before_it(
    vocabulary: Vocabulary, objective: ObjectiveMixture, pack: Callable
) -> None:
    everything = Masking(mask_rate=1.0, max_predictions=S, allow_mask_special=True, mask_rounding="bernoulli")
    config = ObjectiveMixture(
        (
            Member("mlm", 0.5, Mlm(everything, masked_next_token=True)),
            Member("clm", 0.5, Clm()),
        )
    )
    other = config.build({"model": objective.networks["model"].config}, vocabulary)
    ids = np.arange(10, 16)
    packed = pack([[ids, ids], [ids]], S, [[1, 2], [3]])
    out = member_batch(
        other.corrupt({k: jnp.asarray(v) for k, v in packed.items()}, jax.random.key(0), jnp.int32(0)), "mlm"
    )
    positions = np.asarray(out["masked_positions"])[np.asarray(out["masked_weights"]) > 0]
    assert sorted(positions.tolist()) == [1, 2, 3, 4, 5, 7, 8, 9, 10, 11]  # neither 0 nor 6


@pytest.mark.long
def test_nothing_to_predict_gives_no_gradient(objective: ObjectiveMixture, params: Params, batch: dict) -> None:
    empty = {name: value * 0 if name.endswith("_weights") else value for name, value in batch.items()}

    def total(params: Params) -> jax.Array:
        sums, _ = objective.loss(params, NOTHING, empty, jax.random.key(0), train=False)
        return sum(sums[name].value for name in objective.loss_weights)

    value, grads = jit(jax.value_and_grad(total))(params)
    assert float(value) == 0.0
    assert all(not np.asarray(leaf).any() for leaf in jax.tree.leaves(grads))


@pytest.mark.long
def test_unequal_shares_of_eight_devices_change_nothing(
    objective: ObjectiveMixture, params: Params, rows: dict, batch: dict, loss: Callable
) -> None:
    """Six rows and two on eight devices: the compiler pads the rest."""
    alone, mesh = loss(params, batch), make_mesh(MeshConfig(8, 1, 1))

    def spread(params: Params, rows: dict) -> dict:
        hidden = objective.corrupt(rows, jax.random.key(0), jnp.int32(0))
        return objective.loss(params, NOTHING, hidden, jax.random.key(0), train=False)[0]

    with jax.set_mesh(mesh):
        result = jit(spread)(params, put_batch(rows, mesh))
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-5), result, alone)


def test_flops_are_those_of_the_shares(objective: ObjectiveMixture) -> None:
    model = objective.networks["model"].config
    expected = 0.75 * flops_per_token(model, 0.3, S) + 0.25 * flops_per_token(model, 1.0, S)
    np.testing.assert_allclose(training_flops(objective, S), expected)


def test_shares_become_rows() -> None:
    def rows(batch_size: int, *texts: str) -> list[int]:
        members = tuple(Member(name, share, MLM if name == "mlm" else Clm()) for name, share in parse_members(texts))
        return ObjectiveMixture(members).batch_sizes(batch_size)

    assert rows(256, "mlm@15", "clm@1") == [240, 16]
    assert rows(8, "clm@1", "mlm@15") == [1, 7]
    with pytest.raises(
        UserError, match=r"gives mlm 240 of train\.batch_size=256 sequences, which train\.microbatches=32 "
    ):
        ObjectiveMixture((Member("mlm", 0.9375, MLM), Member("clm", 0.0625, Clm()))).check_batch_size(
            "train.batch_size", 256, 32
        )


@pytest.mark.parametrize("text", ["mlm", "mlm@0", "mlm@-1", "rtd@1", "mlm@x", "mlm@nan", "mlm@inf"])
def test_what_is_no_mixture_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="is not NAME@WEIGHT"):
        parse_members([text])


def test_a_mixture_of_one_is_refused() -> None:
    with pytest.raises(UserError, match="two objectives or more"):
        ObjectiveMixture((Member("mlm", 1.0, MLM),))
