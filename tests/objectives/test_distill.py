"""Distillation: every loss against the original's formula, and which parameters receive gradients."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.models.model import bind, init_params
from bertjax.objectives.base import Network, StepInputs
from bertjax.objectives.distillation import losses
from bertjax.objectives.distillation.losses import (
    cosine_distance,
    kd_divergence,
    kd_loss_sum,
    relation_divergence,
    relation_heads,
)
from bertjax.objectives.distillation.objective import Distillation
from bertjax.objectives.masking.settings import Masking
from bertjax.training.state import new_state
from bertjax.training.step import train_step
from bertjax.types import Params, Sum, Vocabulary

torch = pytest.importorskip("torch")
F = torch.nn.functional
jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})  # compilation dominates
S, SIZE = 24, 200
STUDENT = EncoderConfig(
    vocab_size=SIZE,
    padded_vocab_size=256,
    hidden_size=24,
    num_layers=2,
    num_heads=3,
    intermediate_size=32,
    max_position_embeddings=S,
    initializer_range=0.3,
)
TEACHER = Network(
    dataclasses.replace(STUDENT, num_layers=4, intermediate_size=40, hidden_dropout=0.4), ("pooler", "mlm", "pair")
)
NARROW = dataclasses.replace(STUDENT, hidden_size=18, num_layers=1)
MASKING = Masking(max_predictions=8, mask_rate=0.3)
EVERYTHING = Distillation(
    MASKING,
    seq_len=S,
    relations_weight=1.0,
    relations=("attention", "qq", "kv", "vv"),
    relation_heads=2,
    relation_layer=2,
    hidden_states_weight=1.0,
    attention_weight=1.0,
)


@pytest.fixture(scope="module")
def objective(vocabulary: Vocabulary) -> Distillation:
    return EVERYTHING.build({"model": STUDENT}, vocabulary, TEACHER)


@pytest.fixture(scope="module")
def narrow(vocabulary: Vocabulary) -> Distillation:
    """TinyBERT's losses alone, on unmasked text, widths 18 and 24."""
    config = Distillation(
        MASKING,
        seq_len=S,
        mask_inputs=False,
        kd_weight=0.0,
        mlm_weight=0.0,
        cosine_weight=0.0,
        hidden_states_weight=1.0,
        attention_weight=1.0,
    )
    return config.build({"model": NARROW}, vocabulary, TEACHER)


@pytest.fixture(scope="module")
def teacher_params() -> Params:
    return jit(lambda key: init_params(TEACHER.config, TEACHER.heads, key))(jax.random.key(7))


@pytest.fixture(scope="module")
def params(objective: Distillation) -> Params:
    return jit(objective.init)(jax.random.key(0))


@pytest.fixture(scope="module")
def raw(pack: Callable, example: Callable) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    lengths = [[10, 12], [S], [13], [9, 6]]
    return pack([[example(rng, n) for n in row] for row in lengths], S, [[3, 4], [5], [6], [8, 9]])


@pytest.fixture(scope="module")
def batch(objective: Distillation, raw: dict) -> dict[str, jax.Array]:
    return dict(jit(objective.corrupt)(raw, jax.random.key(0), np.int32(0)))


@pytest.fixture(scope="module")
def loss_of(teacher_params: Params) -> Callable[[Distillation], Callable[..., dict[str, Sum]]]:
    @functools.cache
    def make(objective: Distillation) -> Callable[..., dict[str, Sum]]:
        def sums(params: Params, batch: dict) -> dict[str, Sum]:
            extra = StepInputs(objective.frozen(teacher_params), {})
            return objective.loss(params, extra, batch, jax.random.key(0), False)[0]

        return jit(sums)

    return make


@pytest.fixture(scope="module")
def sums(objective: Distillation, loss_of: Callable, params: Params, batch: dict) -> dict[str, Sum]:
    return jax.device_get(loss_of(objective)(params, batch))


class Parts:
    """Both networks run by hand, as torch tensors."""

    def __init__(self, objective: Distillation, params: Params, teacher_params: Params, batch: dict):
        names = ("input_ids", "segment_ids", "position_ids", "token_type_ids")
        rows = {name: batch[name] for name in names}

        @functools.partial(jit, static_argnums=0)
        def run(network: Network, network_params: Params) -> Any:
            model = bind(network.config, network.heads, network_params)
            parts = ("query", "key", "value", "scores")
            collected = [f"layers/{layer}/{part}" for layer in range(network.config.num_layers) for part in parts]
            encoded = model.encode(**rows, collect=("hidden_states", *collected))
            return encoded, model.mlm_logits(encoded.last_hidden_state) if "mlm" in network.heads else None

        self.real = torch.tensor(np.array(batch["segment_ids"]) > 0)
        segments = torch.tensor(np.array(batch["segment_ids"]))
        self.visible = (segments[:, :, None] == segments[:, None]) & self.real[:, None] & self.real[:, :, None]
        self.sides = []
        network_params = objective.network_params(params, "model"), objective.frozen(teacher_params)["teacher"]
        for network, part in zip((objective.networks["model"], objective.teacher_network), network_params, strict=True):
            encoded, logits = run(network, part)
            tensors = {name: torch.tensor(np.array(value)) for name, value in encoded.attention_tensors.items()}
            tensors["states"] = torch.tensor(np.array(encoded.hidden_states))
            tensors["logits"] = None if logits is None else torch.tensor(np.array(logits)[..., :SIZE])
            self.sides.append(tensors)


@pytest.fixture(scope="module")
def parts(objective: Distillation, params: Params, teacher_params: Params, batch: dict) -> Parts:
    return Parts(objective, params, teacher_params, batch)


@pytest.mark.long
def test_distilberts_losses_are_those_of_the_original(parts: Parts, batch: dict, sums: dict[str, Sum]) -> None:
    """huggingface/transformers: research_projects/distillation/distiller.py, step."""
    ours, theirs = parts.sides
    soft = F.kl_div(
        F.log_softmax(ours["logits"][parts.real] / 2.0, dim=-1),
        F.softmax(theirs["logits"][parts.real] / 2.0, dim=-1),
        reduction="batchmean",
    )
    np.testing.assert_allclose(sums["kd"].value / sums["kd"].count, 4.0 * soft, rtol=1e-4)
    labels = torch.full((4, S), -100)
    for row, slot in zip(*np.nonzero(np.asarray(batch["masked_weights"])), strict=True):
        labels[row, int(batch["masked_positions"][row, slot])] = int(batch["masked_ids"][row, slot])
    words = F.cross_entropy(ours["logits"].reshape(-1, SIZE), labels.reshape(-1))
    np.testing.assert_allclose(sums["mlm"].value / sums["mlm"].count, words, rtol=1e-4)
    last = ours["states"][-1][parts.real], theirs["states"][-1][parts.real]
    cosine = F.cosine_embedding_loss(*last, torch.ones(len(last[0])))
    np.testing.assert_allclose(sums["cosine"].value / sums["cosine"].count, cosine, rtol=1e-4)
    teacher = F.cross_entropy(theirs["logits"].reshape(-1, SIZE), labels.reshape(-1))
    np.testing.assert_allclose(sums["teacher_mlm_loss"].value / sums["mlm"].count, teacher, rtol=1e-4)


@pytest.mark.long
def test_soft_targets_at_masked_words_alone(
    vocabulary: Vocabulary, loss_of: Callable, parts: Parts, params: Params, batch: dict
) -> None:
    config = Distillation(
        MASKING, seq_len=S, kd_positions="masked", kd_temperature=0.5, mlm_weight=0.0, cosine_weight=0.0
    )
    objective = config.build({"model": STUDENT}, vocabulary, TEACHER)
    assert objective.loss_weights == {"kd": 5.0}
    result = loss_of(objective)(params, batch)
    rows, slots = np.nonzero(np.asarray(batch["masked_weights"]))
    positions = np.asarray(batch["masked_positions"])[rows, slots]
    ours, theirs = (side["logits"][rows, positions] / 0.5 for side in parts.sides)
    expected = 0.25 * F.kl_div(F.log_softmax(ours, -1), F.softmax(theirs, -1), reduction="batchmean")
    np.testing.assert_allclose(result["kd"].value / result["kd"].count, expected, rtol=1e-4)
    assert result["kd"].count == objective.counts(batch)["kd"] == len(rows)
    assert {"mlm_loss", "mlm_accuracy", "mlm_unigram_loss", "teacher_mlm_loss"} <= set(result)


@pytest.mark.long
def test_relations_are_those_of_the_papers(parts: Parts, sums: dict[str, Sum]) -> None:
    """arXiv:2002.10957, equations 5 to 7; arXiv:2012.15828, equations 5 and 6: 2 heads of all vectors, by name."""

    def relation(side: dict, layer: int, name: str, row: int, span: slice) -> torch.Tensor:
        if name == "attention":
            return side[f"layers/{layer}/scores"][row, :, span, span]
        letters = {"q": "query", "k": "key", "v": "value"}
        one, other = (
            side[f"layers/{layer}/{letters[letter]}"][row, span].reshape(span.stop - span.start, 2, 12).transpose(0, 1)
            for letter in name
        )
        return one @ other.transpose(1, 2) / 12**0.5

    expected = 0.0
    for row, span in (
        (0, slice(0, 10)),
        (0, slice(10, 22)),
        (1, slice(0, 24)),
        (2, slice(0, 13)),
        (3, slice(0, 9)),
        (3, slice(9, 15)),
    ):
        for name in ("attention", "qq", "kv", "vv"):
            ours = relation(parts.sides[0], 1, name, row, span)
            theirs = relation(parts.sides[1], 2, name, row, span)
            total = F.kl_div(F.log_softmax(ours, -1), F.softmax(theirs, -1), reduction="sum")
            expected += float(total) / len(ours)
    np.testing.assert_allclose(sums["relations"].value, expected, rtol=1e-4)
    assert sums["relations"].count == 22 + 24 + 13 + 15


@pytest.mark.long
def test_tinyberts_losses_are_those_of_the_original(
    narrow: Distillation, teacher_params: Params, loss_of: Callable, raw: dict
) -> None:
    """TinyBERT/general_distill.py on a row without padding, where the original's means are means over tokens."""
    full = {name: jnp.asarray(value[1:2]) for name, value in raw.items()}
    fresh = jit(narrow.init)(jax.random.key(3))
    assert fresh["projection"]["kernel"].shape == (18, 24) and "projection" not in narrow.network_params(fresh, "model")
    parts, result = Parts(narrow, fresh, teacher_params, full), loss_of(narrow)(fresh, full)
    ours, theirs = parts.sides
    kernel = torch.tensor(np.array(fresh["projection"]["kernel"]))
    hidden = sum(F.mse_loss(ours["states"][i] @ kernel, theirs["states"][4 * i]) for i in (0, 1))
    np.testing.assert_allclose(result["hidden_states"].value / result["hidden_states"].count, hidden, rtol=1e-4)
    scores = F.mse_loss(ours["layers/0/scores"], theirs["layers/3/scores"])
    np.testing.assert_allclose(result["attention"].value / result["attention"].count, scores, rtol=1e-4)
    assert set(result) == {"hidden_states", "attention"}  # no head, nothing masked: no words to compare


@pytest.mark.long
def test_padding_and_other_examples_count_nothing(parts: Parts, sums: dict[str, Sum]) -> None:
    hidden = attention = 0.0
    ours, theirs = parts.sides
    for one, other in ((0, 0), (1, 2), (2, 4)):
        hidden += float(((ours["states"][one] - theirs["states"][other]) ** 2).mean(-1)[parts.real].sum())
    for one, other in ((0, 1), (1, 3)):
        errors = (ours[f"layers/{one}/scores"] - theirs[f"layers/{other}/scores"]) ** 2
        attention += float(errors.mean(1)[parts.visible].sum())
    np.testing.assert_allclose(sums["hidden_states"].value, hidden, rtol=1e-4)
    np.testing.assert_allclose(sums["attention"].value, attention, rtol=1e-4)
    assert sums["attention"].count == float(parts.visible.sum())


def test_counts_are_known_before_the_loss(objective: Distillation, batch: dict, sums: dict[str, Sum]) -> None:
    counts = objective.counts(batch)
    assert (
        set(counts) == set(objective.loss_weights) == {"kd", "mlm", "cosine", "relations", "hidden_states", "attention"}
    )
    assert {name: float(count) for name, count in counts.items()} == {name: sums[name].count for name in counts}


@pytest.mark.long
def test_a_student_that_is_its_teacher_has_nothing_to_learn(
    vocabulary: Vocabulary, teacher_params: Params, batch: dict
) -> None:
    config = dataclasses.replace(EVERYTHING, mlm_weight=0.0, relation_layer=None)
    twin = config.build({"model": dataclasses.replace(TEACHER.config, hidden_dropout=0.0)}, vocabulary, TEACHER)
    frozen = twin.frozen(teacher_params)

    def total(network_params: Params) -> tuple[jax.Array, dict]:
        sums, _ = twin.loss(network_params, StepInputs(frozen, {}), batch, jax.random.key(0), False)
        return sum(sums[name].value for name in twin.loss_weights), sums

    (_, sums), gradient = jit(jax.value_and_grad(total, has_aux=True))(frozen["teacher"])
    for name in twin.loss_weights:
        np.testing.assert_allclose(sums[name].value, 0.0, atol=2e-3, err_msg=name)
    assert max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(gradient)) < 2e-2


@pytest.fixture(scope="module")
def gradients(objective: Distillation) -> Callable:
    """Returns the gradients of the weighted losses in the student and in the teacher."""

    def total(both: tuple[Params, Any], batch: dict) -> jax.Array:
        sums, _ = objective.loss(both[0], StepInputs(both[1], {}), batch, jax.random.key(1), True)
        counts = objective.counts(batch)
        return sum(
            weight * sums[name].value / jnp.maximum(counts[name], 1.0)
            for name, weight in objective.loss_weights.items()
        )

    return jit(jax.value_and_grad(total))


@pytest.mark.long
def test_no_gradient_reaches_the_teacher_and_dropout_neither(
    objective: Distillation, gradients: Callable, params: Params, teacher_params: Params, batch: dict
) -> None:
    frozen = objective.frozen(teacher_params)
    assert set(frozen["teacher"]) == {"encoder", "mlm_head"}
    _, (ours, theirs) = gradients((params, frozen), batch)
    assert all(not np.asarray(leaf).any() for leaf in jax.tree.leaves(theirs))
    silent = [path for path, leaf in jax.tree_util.tree_leaves_with_path(ours) if not np.asarray(leaf).any()]
    assert not silent


@pytest.mark.long
def test_the_step_trains_the_student_alone(
    objective: Distillation, params: Params, teacher_params: Params, raw: dict
) -> None:
    optimizer = optax.adam(1e-3)
    state = new_state(params, {}, optimizer)
    step = functools.partial(train_step, objective=objective, optimizer=optimizer, microbatches=1, seed=0)
    rows = {name: jnp.asarray(value) for name, value in raw.items()}
    after, metrics = jax.eval_shape(step, state, objective.frozen(teacher_params), rows)
    assert [leaf.shape for leaf in jax.tree.leaves(after)] == [leaf.shape for leaf in jax.tree.leaves(state)]
    student = {leaf.shape for leaf in jax.tree.leaves(params)}
    assert {leaf.shape for leaf in jax.tree.leaves(after.opt_state)} <= {*student, ()}
    assert set(objective.loss_weights) <= set(metrics["sums"])


@pytest.mark.long
@pytest.mark.parametrize("missing", ["padding", "nothing to predict"])
def test_without_anything_to_learn_gradients_are_zero(
    missing: str, objective: Distillation, gradients: Callable, params: Params, teacher_params: Params, batch: dict
) -> None:
    empty = {name: jnp.zeros_like(value) for name, value in batch.items()}
    if missing == "nothing to predict":
        empty = {**batch, "masked_weights": empty["masked_weights"], "masked_positions": empty["masked_positions"]}
    value, (ours, _) = gradients((params, objective.frozen(teacher_params)), empty)
    assert np.isfinite(value)
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(ours)]
    assert all(np.isfinite(leaf).all() for leaf in leaves)
    assert (value == 0.0 and not any(leaf.any() for leaf in leaves)) == (missing == "padding")


@pytest.mark.long
def test_rows_add_up(objective: Distillation, loss_of: Callable, params: Params, batch: dict, sums: dict) -> None:
    halves = [loss_of(objective)(params, {name: value[i::2] for name, value in batch.items()}) for i in (0, 1)]
    for name, whole in sums.items():
        np.testing.assert_allclose(halves[0][name].value + halves[1][name].value, whole.value, rtol=1e-5, err_msg=name)
        assert halves[0][name].count + halves[1][name].count == whole.count


def test_neither_side_sees_what_is_hidden(
    objective: Distillation,
    loss_of: Callable,
    params: Params,
    raw: dict,
    batch: dict,
    sums: dict,
    vocabulary: Vocabulary,
) -> None:
    covered = (np.asarray(batch["input_ids"]) == vocabulary.mask_id) & (raw["input_ids"] != vocabulary.mask_id)
    assert covered.sum() > 8
    others = {**raw, "input_ids": np.where(covered, 5 + (raw["input_ids"] + 50) % 195, raw["input_ids"])}
    again = dict(jit(objective.corrupt)(others, jax.random.key(0), np.int32(0)))
    result = jax.device_get(loss_of(objective)(params, again))
    for name in ("kd", "cosine", "relations", "hidden_states", "attention"):
        assert result[name].value == sums[name].value, name
    assert result["mlm"].value != sums["mlm"].value


@pytest.mark.long
def test_chunks_change_neither_sums_nor_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    hidden, other, table = (
        jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((3, 7, 4), (3, 7, 4), (4, 9))
    )
    weights = jnp.asarray(rng.random((3, 7)), jnp.float32)
    vectors = [jnp.asarray(rng.normal(size=(5, 2, 6, 3)), jnp.float32) for _ in range(3)]
    visible = jnp.ones((2, 6, 6), bool)

    def soft(hidden: jax.Array) -> jax.Array:
        return kd_loss_sum((lambda x: x @ table, hidden), (lambda x: -x @ table, other), weights, 2.0, 8)

    def related(q: jax.Array) -> jax.Array:
        return relation_divergence((q, vectors[1]), (vectors[2], vectors[2]), visible).sum()

    def both() -> list:
        return [jit(jax.value_and_grad(soft))(hidden), jit(jax.value_and_grad(related))(vectors[0])]

    whole = both()
    monkeypatch.setattr(losses, "_CHUNK_TOKENS", 9)
    monkeypatch.setattr(losses, "_CHUNK_SCORES", 150)
    for one, two in zip(jax.tree.leaves(whole), jax.tree.leaves(both()), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-6)
    plain = (np.asarray(kd_divergence(hidden @ table, -other @ table, 2.0, 8)) * np.asarray(weights)).sum()
    np.testing.assert_allclose(whole[0][0], plain, rtol=1e-5)


def test_relation_heads_are_slices_of_the_concatenated_heads() -> None:
    x = jnp.arange(24.0).reshape(1, 1, 3, 8)
    np.testing.assert_array_equal(relation_heads(x, 2)[:, 0, 0], np.arange(24.0).reshape(2, 12))


def test_the_cosine_of_nothing_is_finite() -> None:
    gradient = jax.grad(lambda x: cosine_distance(x, jnp.ones((2, 3))).sum())(jnp.zeros((2, 3)))
    assert np.isfinite(gradient).all()


def test_costs_count_both_sides(objective: Distillation, narrow: Distillation) -> None:
    student, teacher = objective.flops_terms
    assert (student.config, student.predictions, student.trained) == (STUDENT, 1.3, True)
    assert (teacher.config, teacher.predictions, teacher.trained) == (TEACHER.config, 1.0, False)
    assert [each.predictions for each in narrow.flops_terms] == [0.0, 0.0]
    assert (
        narrow.without_teacher() is None
        and objective.without_teacher().networks["model"] == objective.networks["model"]
    )


@pytest.mark.parametrize(
    ("changes", "student", "message"),
    [
        ({}, {"hidden_size": 18}, r"cosine_weight compares states of one width.*18.*24"),
        ({"hidden_states_weight": 1.0}, {"num_layers": 3}, r"num_layers=3 must divide 4"),
        ({"attention_weight": 1.0}, {"num_heads": 4}, r"head with head.*num_heads=4.*has 3"),
        (
            {"attention_weight": 1.0},
            {"local_attention": 4, "global_attn_every_n_layers": 2},
            r"one of them is local",
        ),
        (
            {"relations_weight": 1.0, "relation_layer": 4},
            {},
            r"relation_layer=4 is not a layer of the teacher, 0 to 3",
        ),
        ({"relations_weight": 1.0}, {"hidden_size": 20, "num_heads": 4}, r"relation_heads=3 must divide.*student.*20"),
        ({}, {"causal": True}, r"model\.causal=True, but the teacher has causal=False"),
    ],
)
def test_pairs_that_do_not_fit_are_refused(changes: dict, student: dict, message: str) -> None:
    losses = {} if not changes else {"cosine_weight": 0.0}
    config = Distillation(MASKING, **losses, **changes, seq_len=S)
    with pytest.raises(UserError, match=message):
        config.check_teacher(dataclasses.replace(STUDENT, **student), TEACHER.config, TEACHER.heads)


def test_what_makes_no_sense_is_refused() -> None:
    for changes, message in (
        ({"kd_weight": 0.0, "mlm_weight": 0.0, "cosine_weight": 0.0}, "has no loss"),
        ({"kd_weight": -1.0}, "kd_weight must be at least 0"),
        ({"kd_temperature": 0.0}, "kd_temperature must be above 0"),
        ({"kd_positions": "some"}, "kd_positions must be one of all, masked"),
        ({"relations": ("qq", "xy")}, "relations must be one of attention, qq"),
        ({"mask_inputs": False}, "mask_inputs=false leaves no token"),
    ):
        with pytest.raises(UserError, match=message):
            Distillation(MASKING, **changes)
    config = Distillation(MASKING, teacher_layers=(0, 1, 2), seq_len=S)
    with pytest.raises(UserError, match=r"names 3 layers, but the student has model\.num_layers=2"):
        config.check_model(STUDENT)
    with pytest.raises(UserError, match=r"needs data\.example_format to be one of block"):
        config.check_example_format("stream")
    with pytest.raises(UserError, match="has 24 positions, fewer than"):
        config.replace(seq_len=S + 1).check_teacher(STUDENT, TEACHER.config, TEACHER.heads)
    with pytest.raises(UserError, match="needs a teacher with a masked-LM head; this one has pooler"):
        config.check_teacher(STUDENT, TEACHER.config, ("pooler",))
