"""Next-token prediction: which tokens count, that chunks change nothing, and that no position sees later tokens."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.models.model import bind
from bertjax.objectives import vocab_loss as vocab_loss_module
from bertjax.objectives.base import StepInputs
from bertjax.objectives.clm import Clm
from bertjax.objectives.masking.settings import Masking
from bertjax.objectives.mlm import Mlm
from bertjax.objectives.vocab_loss import chunked_vocab_loss_sums
from bertjax.types import Params, Sum, Vocabulary

jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})  # compilation dominates
S = 13
MODEL = EncoderConfig(
    vocab_size=200,
    padded_vocab_size=256,
    hidden_size=16,
    num_layers=2,
    num_heads=2,
    intermediate_size=24,
    max_position_embeddings=S,
    type_vocab_size=0,
    norm_placement="pre",
    embedding_norm="none",
    mlm_head="tied",
    causal=True,
    hidden_dropout=0.0,
    attention_dropout=0.0,
    initializer_range=0.3,
)
NOTHING = StepInputs(frozen={}, carry={})


@pytest.fixture(scope="module")
def objective(vocabulary: Vocabulary) -> Clm:
    return Clm().build({"model": MODEL}, vocabulary)


@pytest.fixture(scope="module")
def batch(pack: Callable, objective: Clm) -> dict[str, jax.Array]:
    ids = np.random.default_rng(1).integers(5, 200, 40)
    rows = pack([[ids[:5], ids[5:11]], [ids[11:24]], [ids[24:25]]], S, [[1, 2], [3], [4]])
    on_device = {name: jnp.asarray(value) for name, value in rows.items()}
    return dict(jit(objective.corrupt)(on_device, jax.random.key(0), jnp.int32(0)))


@pytest.fixture(scope="module")
def params(objective: Clm) -> Params:
    return jit(objective.init)(jax.random.key(2))


def loss_of(objective: Clm) -> Callable[[Params, dict], dict[str, Sum]]:
    return jit(lambda params, batch: objective.loss(params, NOTHING, batch, jax.random.key(0), False)[0])


def test_every_token_but_the_last_of_an_example_predicts_the_next(batch: dict) -> None:
    np.testing.assert_array_equal(batch["next_weights"].sum(1), [4 + 5, 12, 0])
    first = np.flatnonzero(batch["next_weights"][0])
    np.testing.assert_array_equal(first, [0, 1, 2, 3, 5, 6, 7, 8, 9])
    np.testing.assert_array_equal(batch["next_ids"][0, first], batch["input_ids"][0, first + 1])


def test_sums_are_those_of_plain_arithmetic(
    objective: Clm, params: Params, batch: dict, vocabulary: Vocabulary
) -> None:
    sums = loss_of(objective)(params, batch)
    model = bind(MODEL, ("mlm",), params)
    inputs = {name: batch[name] for name in ("input_ids", "segment_ids", "position_ids", "token_type_ids")}
    run = jit(lambda inputs: model.mlm_logits(model.encode(**inputs).last_hidden_state))
    logits = np.asarray(run(inputs), np.float64)[..., :200]
    logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    chosen = np.take_along_axis(logs, np.asarray(batch["next_ids"])[..., None], axis=-1)[..., 0]
    weights = np.asarray(batch["next_weights"])
    np.testing.assert_allclose(sums["clm"].value, -(chosen * weights).sum(), rtol=1e-5)
    assert sums["clm"].count == objective.counts(batch)["clm"] == weights.sum()
    right = (logits.argmax(-1) == np.asarray(batch["next_ids"])) * weights
    assert sums["clm_accuracy"].value == right.sum()
    share = (vocabulary.counts + 1.0) / (vocabulary.counts + 1.0).sum()
    expected = -(np.log(share)[np.asarray(batch["next_ids"])] * weights).sum()
    np.testing.assert_allclose(sums["clm_unigram_loss"].value, expected, rtol=1e-5)


def test_chunks_change_neither_sums_nor_gradients(params: Params, batch: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of 13 in one chunk, and in chunks of 4: the last one is padded."""
    hidden = jax.random.normal(jax.random.key(3), (3, S, 16))

    def value(hidden: jax.Array) -> jax.Array:
        model = bind(MODEL, ("mlm",), params)
        return chunked_vocab_loss_sums("clm", model, hidden, batch["next_ids"], batch["next_weights"])["clm"].value

    whole = jit(jax.value_and_grad(value))(hidden)
    monkeypatch.setattr(vocab_loss_module, "_CHUNK_TOKENS", 12)
    for one, other in zip(whole, jit(jax.value_and_grad(lambda x: value(x)))(hidden), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_no_token_sees_what_is_to_come_nor_another_example(params: Params, batch: dict) -> None:
    names = ("input_ids", "segment_ids", "position_ids", "token_type_ids")
    run = jit(lambda rows: bind(MODEL, ("mlm",), params).encode(**rows).last_hidden_state)
    rows = {name: batch[name] for name in names}
    changed = {**rows, "input_ids": rows["input_ids"].at[0, 7].set(6).at[1, 4].set(6)}
    differs = np.abs(np.asarray(run(rows) - run(changed))).max(-1) > 0
    np.testing.assert_array_equal(np.flatnonzero(differs[0, :11]), [7, 8, 9, 10])
    np.testing.assert_array_equal(np.flatnonzero(differs[1]), range(4, S))


@pytest.mark.long
def test_rows_without_a_next_token_give_no_gradient(objective: Clm, params: Params, batch: dict) -> None:
    alone = {name: value[2:] for name, value in batch.items()}

    @jit
    @jax.grad
    def gradient(params: Params) -> jax.Array:
        return objective.loss(params, NOTHING, alone, jax.random.key(0), True)[0]["clm"].value

    assert all((np.asarray(leaf) == 0.0).all() for leaf in jax.tree.leaves(gradient(params)))


def test_models_and_rows_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UserError, match=r"clm needs model\.causal=true"):
        Clm().check_model(EncoderConfig())
    with pytest.raises(
        UserError,
        match=r"needs data\.example_format to be one of block, doc_sentences, full_sentences, not 'nsp_pairs'",
    ):
        Clm().check_example_format("nsp_pairs")
    with pytest.raises(UserError, match=r"objective\.name=mlm predicts from both sides"):
        Mlm(Masking()).check_model(EncoderConfig(causal=True))
