"""Entity scores compared with seqeval, on arbitrary sequences of tags, also malformed ones."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertjax.errors import UserError
from bertjax.tasks.metrics.classification import ClassScore
from bertjax.tasks.metrics.entities import Entity, entity_scores, find_entities

TAGS = [
    "O",
    "O",
    *[f"{mark}-{kind}" for mark in "BIBI" for kind in ("PER", "LOC")],
    "E-PER",
    "S-LOC",
    "I-x-y",
    "B",
    "I",
]
SENTENCES = st.lists(
    st.lists(st.tuples(st.sampled_from(TAGS), st.sampled_from(TAGS)), max_size=9), min_size=1, max_size=5
)


@given(SENTENCES.filter(any), st.booleans())
@settings(max_examples=150)
def test_entities_as_seqeval(pairs: list[list[tuple[str, str]]], nearly_right: bool) -> None:
    seqeval = pytest.importorskip("seqeval.metrics", reason="seqeval, the peer of entity scores, is not installed")
    gold = [[right for right, _ in sentence] for sentence in pairs]
    predicted = [[guess for _, guess in sentence] for sentence in pairs]
    if nearly_right:  # random guesses alone would match nothing
        predicted = [
            guess if index % 2 else right for index, (right, guess) in enumerate(zip(gold, predicted, strict=True))
        ]
    ours = entity_scores(gold, predicted)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = {
            "precision": seqeval.precision_score(gold, predicted),
            "recall": seqeval.recall_score(gold, predicted),
            "f1": seqeval.f1_score(gold, predicted),
            "accuracy": seqeval.accuracy_score(gold, predicted),
        }
        table = seqeval.classification_report(gold, predicted, output_dict=True) if ours.per_type else {}
    for name, value in expected.items():
        assert ours.metrics()[name] == pytest.approx(value, abs=1e-9), name
    if not ours.per_type:
        return
    assert ours.macro_f1 == pytest.approx(table["macro avg"]["f1-score"], abs=1e-9)
    for kind, score in ours.per_type.items():
        row = table[kind]
        np.testing.assert_allclose(score, (row["precision"], row["recall"], row["f1-score"], row["support"]), atol=1e-9)
    assert set(table) - {"micro avg", "macro avg", "weighted avg"} == set(ours.per_type)


@given(SENTENCES)
def test_the_same_entities_as_seqeval_finds(pairs: list[list[tuple[str, str]]]) -> None:
    labeling = pytest.importorskip("seqeval.metrics.sequence_labeling", reason="seqeval is not installed")
    for sentence in pairs:
        tags = [tag for tag, _ in sentence]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert [tuple(each) for each in find_entities(tags)] == labeling.get_entities(tags)


# The meaning of malformed or unusual tags, by hand.
READINGS = {
    "IOB2": ("B-PER I-PER O B-LOC", [("PER", 0, 1), ("LOC", 3, 3)]),
    "IOB1": ("I-PER I-PER B-PER O I-LOC", [("PER", 0, 1), ("PER", 2, 2), ("LOC", 4, 4)]),
    "another type inside": ("B-PER I-LOC I-LOC", [("PER", 0, 0), ("LOC", 1, 2)]),
    "neighbors": ("B-PER B-PER I-PER", [("PER", 0, 0), ("PER", 1, 2)]),
    "ends and singles": (
        "B-PER I-PER E-PER I-PER S-PER E-PER",
        [("PER", 0, 2), ("PER", 3, 3), ("PER", 4, 4), ("PER", 5, 5)],
    ),
    "BILOU": ("B-PER L-PER U-LOC U-LOC", [("PER", 0, 1), ("LOC", 2, 2), ("LOC", 3, 3)]),
    "BMES": ("B-PER M-PER M-PER E-PER S-LOC S-LOC O", [("PER", 0, 3), ("LOC", 4, 4), ("LOC", 5, 5)]),
    "segmentation": ("B E S B M E", [("_", 0, 1), ("_", 2, 2), ("_", 3, 5)]),
    "no types": ("B I O I", [("_", 0, 1), ("_", 3, 3)]),
    "a dash in the type": ("B-geo-loc I-geo-loc", [("geo-loc", 0, 1)]),
    "nothing": ("O O", []),
}


@pytest.mark.parametrize("name", READINGS)
def test_readings(name: str) -> None:
    tags, expected = READINGS[name]
    assert find_entities(tags.split()) == [Entity(*each) for each in expected]


def test_scores_by_hand() -> None:
    gold = [["B-PER", "I-PER", "O", "B-LOC"], [], ["O", "B-ORG"]]
    predicted = [["B-PER", "I-PER", "B-LOC", "I-LOC"], [], ["B-NEW", "B-ORG"]]
    scores = entity_scores(gold, predicted)
    assert (scores.precision, scores.recall, scores.f1) == (2 / 4, 2 / 3, pytest.approx(4 / 7))
    assert scores.per_type == {
        "LOC": ClassScore(0.0, 0.0, 0.0, 1),  # one tag too many
        "NEW": ClassScore(0.0, 0.0, 0.0, 0),  # no gold entity is of this type
        "ORG": ClassScore(1.0, 1.0, 1.0, 1),
        "PER": ClassScore(1.0, 1.0, 1.0, 1),
    }
    assert scores.macro_f1 == 0.5 and scores.accuracy == pytest.approx(3 / 6)


def test_an_entity_does_not_reach_into_the_next_sentence() -> None:
    assert entity_scores([["O", "B-PER"], ["I-PER"]], [["O", "B-PER"], ["I-PER"]]).per_type["PER"].support == 2


def test_without_entities_all_is_zero_but_accuracy() -> None:
    scores = entity_scores([["O", "O"]], [["O", "O"]])
    assert (scores.f1, scores.macro_f1, scores.accuracy, scores.per_type) == (0.0, 0.0, 1.0, {})


@pytest.mark.parametrize(
    ("gold", "predicted", "message"),
    [
        ([], [], "nothing to score"),
        ([[], []], [[], []], "no gold words"),
        ([["O"]], [], "1 gold sentences, but 0"),
        ([["O"], ["O", "O"]], [["O"], ["O"]], "sentence 2 has 2 gold tags, but 1"),
        ([["O"]], [["NOUN"]], "'NOUN' is not the tag of an entity"),
        ([["O"]], [["b-per"]], "'b-per' is not the tag"),
        ([["O"]], [[""]], "'' is not the tag"),
    ],
)
def test_refused(gold: list, predicted: list, message: str) -> None:
    with pytest.raises(UserError, match=message):
        entity_scores(gold, predicted)
