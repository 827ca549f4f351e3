"""Replaced token detection: gradients of each network, labels by comparison, and Hugging Face's losses."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rtd_lab import NOTHING, assert_finite_differences, assert_same, build, by_part, jit, joined, random_params, total

from bertjax.config.model import EncoderConfig
from bertjax.config.presets import preset
from bertjax.hf.save import save_pretrained
from bertjax.objectives.masking.settings import Masking
from bertjax.objectives.rtd.networks import RtdNetworks
from bertjax.objectives.rtd.objective import Rtd, replace_masked, rtd_loss_sums
from bertjax.types import Params, Vocabulary

MASK, S = 4, 40
MASKING = Masking(max_predictions=6, mask_token_rate=0.85, random_token_rate=0.0, with_replacement=True)
CONFIG = Rtd(MASKING)
ELECTRA = EncoderConfig(
    family="electra",
    vocab_size=200,
    padded_vocab_size=256,
    hidden_size=24,
    num_layers=1,
    num_heads=2,
    intermediate_size=20,
    embedding_size=12,
    max_position_embeddings=S,
    hidden_act="gelu",
    mlm_act="gelu",
    classifier_dense="own",
    classifier_act="gelu",
    hidden_dropout=0.0,
    attention_dropout=0.0,
)
SMALL = dataclasses.replace(ELECTRA, hidden_size=8, intermediate_size=16)
DEBERTA = EncoderConfig(
    family="deberta-v2",
    vocab_size=200,
    padded_vocab_size=256,
    hidden_size=16,
    num_layers=3,
    num_heads=2,
    intermediate_size=24,
    max_position_embeddings=S,
    type_vocab_size=0,
    position_embedding="none",
    attention_position="disentangled",
    position_buckets=8,
    norm_relative_embeddings=True,
    share_att_key=True,
    embedding_norm="after",
    zero_pad_embeddings=True,
    enhanced_decoder=True,
    rtd_head="summary",
    hidden_dropout=0.0,
    attention_dropout=0.0,
)
SHALLOW = dataclasses.replace(DEBERTA, num_layers=2)
NETWORKS = {
    "embeddings": RtdNetworks(SMALL, ELECTRA, "embeddings"),
    "gdes": RtdNetworks(SMALL, ELECTRA, "gdes"),
    "all": RtdNetworks(ELECTRA, ELECTRA, "all"),
    "none": RtdNetworks(dataclasses.replace(SMALL, embedding_size=None), ELECTRA, "none"),
    "deberta": RtdNetworks(SHALLOW, DEBERTA, "gdes"),
}


@pytest.fixture(scope="module")
def objectives(vocabulary: Vocabulary) -> dict[str, Rtd]:
    return {name: build(CONFIG, networks, vocabulary) for name, networks in NETWORKS.items()}


@pytest.fixture(scope="module")
def objective(objectives: dict) -> Rtd:
    return objectives["embeddings"]


@pytest.fixture(scope="module")
def rows(pack: Callable, example: Callable) -> dict[str, jax.Array]:
    """Four rows: two examples, a full one, padding at the end, nothing but [CLS] and [SEP]."""
    rng = np.random.default_rng(0)
    examples = [[example(rng, n) for n in row] for row in ([18, 22], [40], [31])]
    batch = pack([*examples, [np.asarray([2, 3])]], S, [[3, 4], [5], [6], [7]])
    return {name: jnp.asarray(value) for name, value in batch.items()}


@pytest.fixture(scope="module")
def corrupt(objective: Rtd) -> Callable:
    return jit(objective.corrupt)


@pytest.fixture(scope="module")
def hidden(corrupt: Callable, rows: dict) -> dict[str, jax.Array]:
    """The input of every objective here: masks do not depend on the networks."""
    return dict(corrupt(rows, jax.random.key(0), jnp.int32(0)))


@pytest.mark.weekly
@pytest.mark.parametrize("name", [name for name in NETWORKS if name != "none"])
def test_every_parameter_gets_the_gradients_that_it_should_and_no_other(
    objectives: dict, hidden: dict, name: str
) -> None:
    """With "gdes" this is what DeBERTa's two consecutive passes compute: see rtd.py."""
    objective = objectives[name]
    params, counts = random_params(objective), objective.counts(hidden)
    replaced = jit(lambda params: objective.forward(params, hidden).input_ids)(params)
    assert (np.asarray(replaced) != hidden["original_ids"]).sum() > 5

    @jit
    def gradients(params: Params) -> tuple[tuple[jax.Array, Params], ...]:
        both = jax.value_and_grad(lambda params: total(objective, hidden, counts, params))(params)
        parts = by_part(objective, hidden, replaced)
        networks = (objective.network_params(params, name) for name in ("generator", "discriminator"))
        return both, *(jax.value_and_grad(part)(complete) for part, complete in zip(parts, networks, strict=True))

    (value, both), (first_value, first), (second_value, second) = gradients(params)
    np.testing.assert_allclose(value, first_value + second_value, rtol=1e-5)
    assert_finite_differences(objective, params, both, gradients)
    assert_same(both, joined(objective.encoders, first, second))
    shared = objective.encoders.shared_embeddings if objective.encoders.embedding_sharing != "none" else ()
    for part in shared:
        for tree in (first, second):
            assert max(jnp.abs(leaf).max() for leaf in jax.tree.leaves(tree["encoder"]["embeddings"][part])) > 1e-3


@pytest.mark.long
def test_labels_compare_and_do_not_ask_what_was_masked(objective: Rtd, hidden: dict, vocabulary: Vocabulary) -> None:
    """A generator that always predicts the most frequent masked word: its correct guesses count as originals."""
    there = np.asarray(hidden["masked_weights"]) > 0
    word = int(np.bincount(np.asarray(hidden["masked_ids"])[there]).argmax())
    params = random_params(objective)
    params["generator"]["mlm_head"]["bias"] = jnp.zeros(256).at[word].set(1e4)
    guesses = jit(lambda params: objective.forward(params, hidden))(params)
    expected = np.asarray(hidden["original_ids"]).copy()
    for row, slot in zip(*np.nonzero(there), strict=True):
        expected[row, hidden["masked_positions"][row, slot]] = word
    np.testing.assert_array_equal(guesses.input_ids, expected)
    sums = jit(lambda params: objective.loss(params, NOTHING, hidden, jax.random.key(0), False)[0])(params)
    differing = (np.asarray(hidden["masked_ids"]) != word) & there
    assert 0 < differing.sum() < there.sum()
    assert sums["replaced_share"].value == differing.sum()
    assert sums["rtd"].count == objective.counts(hidden)["rtd"] == 18 + 22 + 40 + 31 + 2


def test_metrics_are_those_of_plain_counting() -> None:
    logits = jnp.asarray([[2.0, -1.0, 0.5, -3.0, 4.0]])
    replaced_there = jnp.asarray([[True, True, False, False, True]])
    sums = rtd_loss_sums(logits, replaced_there, jnp.asarray([[1, 1, 1, 2, 0]]))
    result = {name: (float(each.value), float(each.count)) for name, each in sums.items()}
    losses = np.log1p(np.exp([-2.0, 1.0, 0.5, -3.0])).sum()
    np.testing.assert_allclose(result.pop("rtd"), (losses, 4.0), rtol=1e-6)
    assert result == {
        "rtd_accuracy": (2.0, 4.0),
        "rtd_precision": (1.0, 2.0),
        "rtd_recall": (1.0, 2.0),
        "replaced_share": (2.0, 4.0),
    }


def test_words_depend_on_the_example_and_the_cursor_alone(corrupt: Callable, rows: dict, hidden: dict) -> None:
    turned = {name: value[::-1] for name, value in rows.items()}
    again = corrupt(turned, jax.random.key(0), jnp.int32(0))
    there = hidden["masked_weights"] > 0
    same = again["sample_noise"][::-1] == hidden["sample_noise"]
    assert bool(same[there].all())
    later = corrupt(rows, jax.random.key(0), jnp.int32(1))
    assert not np.isin(np.asarray(later["sample_noise"])[there], np.asarray(hidden["sample_noise"])[there]).any()
    noise = np.asarray(hidden["sample_noise"])[np.asarray(there)]
    assert len(np.unique(noise)) == noise.size


def test_static_masks_repeat_and_words_do_not(vocabulary: Vocabulary, rows: dict) -> None:
    masking = dataclasses.replace(MASKING, dynamic=False)
    objective = build(Rtd(masking), NETWORKS["embeddings"], vocabulary)
    corrupt = jit(objective.corrupt)
    one, other = (corrupt(rows, jax.random.key(0), jnp.int32(cursor)) for cursor in (0, 1))
    np.testing.assert_array_equal(one["input_ids"], other["input_ids"])
    assert (np.asarray(one["sample_noise"]) != other["sample_noise"]).all()


@pytest.mark.long
def test_microbatches_add_up(objective: Rtd, hidden: dict) -> None:
    """Rows 0 and 2, then 1 and 3, as the training step splits them: words, sums and gradients."""
    params, counts = random_params(objective), objective.counts(hidden)

    @jit
    def run(part: dict) -> tuple[Any, Any, jax.Array]:
        sums = objective.loss(params, NOTHING, part, jax.random.key(0), True)[0]
        gradient = jax.grad(lambda params: total(objective, part, counts, params))(params)
        return sums, gradient, objective.forward(params, part).input_ids

    whole = run(hidden)
    parts = [run({name: value[first::2] for name, value in hidden.items()}) for first in (0, 1)]
    for first, part in enumerate(parts):
        np.testing.assert_array_equal(part[2], whole[2][first::2])
    assert_same(jax.tree.map(jnp.add, parts[0][0], parts[1][0]), whole[0])
    assert_same(jax.tree.map(jnp.add, parts[0][1], parts[1][1]), whole[1])


@pytest.mark.parametrize("name", ["deberta"])
@pytest.mark.long
def test_nothing_to_predict_teaches_nothing(objectives: dict, hidden: dict, name: str) -> None:
    objective = objectives[name]
    params = random_params(objective)

    @jit
    def run(part: dict) -> tuple[jax.Array, Params]:
        counts = objective.counts(part)
        return jax.value_and_grad(lambda params: total(objective, part, counts, params))(params)

    loss, gradient = run({key: value[3:] for key, value in hidden.items()})  # [CLS] [SEP]: two originals to classify
    assert np.isfinite(loss) and loss > 0.0
    generator = gradient["generator"]
    assert all((np.asarray(leaf) == 0.0).all() for leaf in jax.tree.leaves(generator))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
    loss, gradient = run({key: jnp.zeros_like(value[3:]) for key, value in hidden.items()})  # nothing but padding
    assert loss == 0.0 and all((np.asarray(leaf) == 0.0).all() for leaf in jax.tree.leaves(gradient))


@pytest.mark.long
@pytest.mark.parametrize("name", ["deberta"])
def test_neither_network_sees_what_was_hidden(
    objectives: dict, corrupt: Callable, rows: dict, hidden: dict, name: str
) -> None:
    """Other words under the masks leave every logit, every drawn word and every score bit-exact."""
    objective = objectives[name]
    positions = np.asarray(hidden["masked_positions"])
    covered = np.zeros((4, S), bool)
    for row, slot in zip(*np.nonzero(np.asarray(hidden["masked_weights"]) > 0), strict=True):
        covered[row, positions[row, slot]] = True
    covered &= (np.asarray(hidden["input_ids"]) == MASK) & (np.asarray(rows["input_ids"]) != 1)
    assert covered.sum() > 8
    others = {**rows, "input_ids": jnp.where(covered, 5 + (rows["input_ids"] + 50) % 195, rows["input_ids"])}
    again = corrupt(others, jax.random.key(0), jnp.int32(0))
    assert (np.asarray(again["original_ids"]) != hidden["original_ids"]).sum() == covered.sum()
    params = random_params(objective)
    guess = jit(lambda batch: objective.forward(params, batch))
    for one, other in zip(guess(dict(again)), guess(hidden), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.long
def test_repeated_draws_are_averaged_as_ids(vocabulary: Vocabulary, rows: dict) -> None:
    config = Rtd(dataclasses.replace(MASKING, mask_rate=0.6, max_predictions=24), average_repeats=True)
    objective = build(config, NETWORKS["embeddings"], vocabulary)
    batch = dict(jit(objective.corrupt)(rows, jax.random.key(0), jnp.int32(0)))
    times = np.asarray(batch["masked_weights"]).astype(int)
    assert batch["sample_noise"].shape == (*times.shape, 3, 2) and (times == 2).sum() > 5 and (times == 3).sum() > 0
    logits = jax.random.normal(jax.random.key(0), (*times.shape, 256))
    words = np.asarray(objective._sample(logits, batch))
    single = [
        np.asarray(
            build(CONFIG, NETWORKS["embeddings"], vocabulary)._sample(
                logits, {**batch, "sample_noise": batch["sample_noise"][:, :, r : r + 1]}
            )
        )
        for r in range(3)
    ]
    for count in (1, 2, 3):
        mean = np.stack(single[:count]).sum(0) // count
        np.testing.assert_array_equal(words[times == count], mean[times == count])


@pytest.mark.long
def test_dropout_follows_the_key(objectives: dict, vocabulary: Vocabulary, hidden: dict) -> None:
    dropping = {"hidden_dropout": 0.2, "attention_dropout": 0.2}
    networks = RtdNetworks(dataclasses.replace(SMALL, **dropping), dataclasses.replace(ELECTRA, **dropping))
    objective = build(CONFIG, networks, vocabulary)
    params = random_params(objective)

    @jit
    def values(key: jax.Array) -> jax.Array:
        sums, _ = objective.loss(params, NOTHING, hidden, key, True)
        return jnp.stack([sums["mlm"].value, sums["rtd"].value])

    one, again, other = (np.asarray(values(jax.random.key(seed))) for seed in (0, 0, 1))
    assert (one == again).all() and (one != other).all()


@pytest.mark.long
def test_a_fresh_gdes_discriminator_has_the_generators_tables(objectives: dict) -> None:
    params = jit(objectives["gdes"].init)(jax.random.key(0))
    first, second = (objectives["gdes"].network_params(params, name) for name in ("generator", "discriminator"))
    for name in ("word_embeddings", "position_embeddings"):
        one, other = (tree["encoder"]["embeddings"][name]["embedding"] for tree in (first, second))
        np.testing.assert_array_equal(one, other)
        assert np.asarray(one).std() > 0.01
    types = [tree["encoder"]["embeddings"]["token_type_embeddings"]["embedding"] for tree in (first, second)]
    assert (np.asarray(types[0]) != types[1]).any()


@pytest.mark.long
@pytest.mark.parametrize("name", ["gdes"])
def test_exports_have_hugging_faces_losses(
    objectives: dict, pack: Callable, example: Callable, name: str, tmp_path: Path
) -> None:
    """Both networks, exported and loaded there: equal logits, and the losses of the same words and labels."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    objective, rng = objectives[name], np.random.default_rng(4)
    lengths = (S, 25, 11)
    batch = pack([[example(rng, length)] for length in lengths], S, [[1], [2], [3]])
    batch = dict(jit(objective.corrupt)(batch, jax.random.key(1), jnp.int32(0)))
    batch["masked_weights"] = jnp.minimum(batch["masked_weights"], 1.0)  # there, a label counts once
    params = random_params(objective)
    guesses = jit(lambda params: objective.forward(params, batch))(params)
    sums = jit(lambda params: objective.loss(params, NOTHING, batch, jax.random.key(0), False)[0])(params)
    for network, each in objective.networks.items():
        networks = jax.device_get(objective.network_params(params, network))
        networks["encoder"]["embeddings"]["word_embeddings"]["embedding"] = networks["encoder"]["embeddings"][
            "word_embeddings"
        ]["embedding"][:200]
        if "mlm_head" in networks:
            networks["mlm_head"]["bias"] = networks["mlm_head"]["bias"][:200]
        save_pretrained(
            tmp_path / network, networks, dataclasses.replace(each.config, padded_vocab_size=None), heads=each.heads
        )

    def tensor(array: Any) -> Any:
        return torch.tensor(np.asarray(array).astype(np.int64))

    shared = {"attention_mask": tensor(batch["segment_ids"]), "token_type_ids": tensor(batch["token_type_ids"])}
    labels = np.full((len(lengths), S), -100)
    there = np.asarray(batch["masked_weights"]) > 0
    at = np.nonzero(there)[0], np.asarray(batch["masked_positions"])[there]
    labels[at] = np.asarray(batch["masked_ids"])[there]
    with torch.no_grad():
        model = transformers.ElectraForMaskedLM.from_pretrained(tmp_path / "generator").eval()
        out = model(tensor(batch["input_ids"]), labels=tensor(labels), **shared)
        np.testing.assert_allclose(out.logits.numpy()[at], guesses.generator_logits[there][:, :200], atol=5e-6)
        np.testing.assert_allclose(out.loss, sums["mlm"].value / sums["mlm"].count, atol=5e-6)
        model = transformers.ElectraForPreTraining.from_pretrained(tmp_path / "discriminator").eval()
        is_replaced = tensor(guesses.input_ids != batch["original_ids"])
        out = model(tensor(guesses.input_ids), labels=is_replaced, **shared)
        real = np.asarray(batch["segment_ids"]) > 0
        np.testing.assert_allclose(out.logits.numpy()[real], guesses.discriminator_logits[real], atol=5e-6)
        np.testing.assert_allclose(out.loss, sums["rtd"].value / sums["rtd"].count, atol=5e-6)


FAMILIES = ("bert-tiny", "roberta-base", "albert-base-v2", "distilbert", "electra-small")
FAMILIES += ("deberta-base", "deberta-v3-xsmall", "modernbert-base", "xlnet-base", "transformer-base")


@pytest.mark.parametrize(
    "index", [pytest.param(index, marks=[] if index in (3, 7) else pytest.mark.long) for index in range(len(FAMILIES))]
)
def test_any_encoder_is_either_network(vocabulary: Vocabulary, hidden: dict, index: int) -> None:
    """Every family as the generator of the next one, by shapes alone."""
    generator, discriminator = (
        EncoderConfig(**preset(FAMILIES[slot]) | {"vocab_size": 200, "padded_vocab_size": 256, "pad_token_id": 0})
        for slot in (index, (index + 1) % len(FAMILIES))
    )
    objective = build(CONFIG, RtdNetworks(generator, discriminator, "none"), vocabulary)
    params = jax.eval_shape(objective.init, jax.random.key(0))
    sums, _ = jax.eval_shape(lambda params: objective.loss(params, NOTHING, hidden, jax.random.key(0), True), params)
    assert {"mlm", "rtd", "rtd_accuracy"} <= sums.keys() and all(leaf.shape == () for leaf in jax.tree.leaves(sums))


def test_words_stand_where_they_were_hidden() -> None:
    batch = {
        "original_ids": jnp.asarray([[9, 8, 7, 6]]),
        "masked_positions": jnp.asarray([[1, 3, 0]]),
        "masked_weights": jnp.asarray([[1.0, 2.0, 0.0]]),
    }
    np.testing.assert_array_equal(replace_masked(batch, jnp.asarray([[5, 6, 4]])), [[9, 5, 7, 6]])
