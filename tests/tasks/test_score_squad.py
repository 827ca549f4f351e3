"""SQuAD metrics, compared with a second implementation from the scripts' description, and with the scripts' output."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertjax.errors import UserError
from bertjax.tasks.metrics.squad import normalized, squad_scores

PUNCTUATION = set("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")


def plain(text: str) -> list[str]:
    """Returns the words that count, by a second implementation that goes character by character."""
    cleaned = "".join(character for character in text.lower() if character not in PUNCTUATION)
    words = re.split(r"\b", cleaned)  # articles end at the borders of word characters
    return "".join(" " if word in ("a", "an", "the") else word for word in words).split()


def question(golds: Sequence[str], answer: str, version: str) -> tuple[float, float]:
    if version == "2.0":
        golds = [gold for gold in golds if plain(gold)] or [""]
    exact, f1 = 0.0, 0.0
    for gold in golds:
        right, predicted = plain(gold), plain(answer)
        exact = max(exact, 1.0 if right == predicted else 0.0)
        rest = list(right)
        for word in predicted:
            if word in rest:
                rest.remove(word)
        common = len(right) - len(rest)
        if version == "2.0" and not (right and predicted):
            f1 = max(f1, 1.0 if right == predicted else 0.0)
        elif common:
            f1 = max(f1, 2 * common / (len(right) + len(predicted)))
    return exact, f1


def best_by_trying(
    raw: Sequence[float], against: Sequence[float], answerable: Sequence[bool], answered: Sequence[bool]
) -> float:
    """Returns the best percentage over all prefixes of the questions in the order of their scores."""
    order = sorted(range(len(raw)), key=lambda index: against[index])  # stable
    totals = []
    for size in range(len(raw) + 1):
        with_answer = set(order[:size])
        total = 0.0
        for index in range(len(raw)):
            answers = index in with_answer and (answerable[index] or answered[index])
            total += raw[index] if answers and answerable[index] else 0.0
            total += 1.0 if not answerable[index] and not answers else 0.0
        totals.append(total)
    return 100.0 * max(totals) / len(raw)


WORDS = st.sampled_from(
    ["the", "a", "An", "cat", "Cat!", "sat-on", "mat", "", " ", "...", "été", "the.", "theatre", "3.5", "“the”"]
)
TEXT = st.lists(WORDS, max_size=4).map(" ".join)


@given(
    st.lists(
        st.tuples(st.lists(TEXT, max_size=3), TEXT, st.sampled_from([0.0, 0.1, 0.5, 0.5, 1.0])), min_size=1, max_size=9
    ),
    st.sampled_from([None, 0.0, 0.3, 0.5, 1.0]),
    st.sampled_from(["1.1", "2.0"]),
)
@settings(max_examples=150)
def test_as_described(drawn: list[tuple[list[str], str, float]], threshold: float | None, version: str) -> None:
    if version == "1.1":
        drawn = [(golds or ["cat"], answer, score) for golds, answer, score in drawn]
    gold = {f"q{index}": golds for index, (golds, _, _) in enumerate(drawn)}
    answers = {f"q{index}": answer for index, (_, answer, _) in enumerate(drawn)}
    against = {f"q{index}": score for index, (_, _, score) in enumerate(drawn)}
    scores = squad_scores(gold, answers, against, threshold, version)
    raw = [question(golds, answer, version) for golds, answer, _ in drawn]
    outcomes = raw
    if threshold is not None:
        none = [(float(not golds),) * 2 for golds, _, _ in drawn]
        outcomes = [none[i] if drawn[i][2] > threshold else raw[i] for i in range(len(drawn))]
    for prefix, chosen in (
        ("", [True] * len(drawn)),
        ("has_answer_", [bool(golds) for golds, _, _ in drawn]),
        ("no_answer_", [not golds for golds, _, _ in drawn]),
    ):
        mine = [pair for pair, take in zip(outcomes, chosen, strict=True) if take]
        if prefix and len(mine) in (0, len(drawn)):
            assert f"{prefix}f1" not in scores
            continue
        part = scores[f"{prefix}exact_match"], scores[f"{prefix}f1"]
        np.testing.assert_allclose(part, 100 * np.mean(mine, axis=0), rtol=0, atol=1e-9)
    facts = (
        [score for *_, score in drawn],
        [bool(golds) for golds, *_ in drawn],
        [bool(answer) for _, answer, _ in drawn],
    )
    assert scores["best_exact_match"] == pytest.approx(best_by_trying([e for e, _ in raw], *facts), abs=1e-9)
    assert scores["best_f1"] == pytest.approx(best_by_trying([f for _, f in raw], *facts), abs=1e-9)


# (gold answers, prediction, score against an answer), and what the scripts print for them.
HOSTILE = {
    "plain": (["Denver Broncos", "the Broncos"], "Denver  BRONCOS!", 0.1),
    "overlap": (["in the city of Santa Clara"], "Santa Clara, California", 0.2),
    "repeated": (["cat cat dog"], "cat dog dog dog", 0.3),
    "only an article": (["the", "a cat"], "An", 0.4),
    "only punctuation": (["..."], "", 0.5),
    "hyphen": (["well-known"], "well known", 0.5),
    "accents": (["Beyoncé Knowles"], "Beyonce Knowles", 0.5),
    "quotes": (["“the end”"], "the end", 0.6),
    "no answer, none given": ([], "", 0.9),
    "no answer, one given": ([], "Paris", 0.7),
    "no answer, an article given": ([], "the", 0.05),
    "an answer, none given": (["Paris"], "", 0.95),
}
# threshold -> exact, f1, HasAns_exact, HasAns_f1, NoAns_exact: the output of squad_evaluate of transformers 4.40, a
# copy of the script for 2.0; it also prints the best metrics and thresholds.
PRINTED = {
    None: (33.333333333333336, 46.42857142857142, 22.22222222222222, 39.682539682539684, 66.66666666666667),
    0.5: (41.666666666666664, 54.76190476190476, 22.22222222222222, 39.682539682539684, 100.0),
    0.45: (33.333333333333336, 42.26190476190476, 11.11111111111111, 23.01587301587302, 100.0),
}
BEST = (33.333333333333336, 0.5, 46.42857142857142, 0.5)
PRINTED_1_1 = (33.333333333333336, 28.571428571428573)


@pytest.mark.parametrize("threshold", PRINTED)
def test_hostile_answers_as_the_script_prints(threshold: float | None) -> None:
    gold = {name: golds for name, (golds, _, _) in HOSTILE.items()}
    predicted = {name: answer for name, (_, answer, _) in HOSTILE.items()}
    scores = squad_scores(gold, predicted, {name: score for name, (*_, score) in HOSTILE.items()}, threshold, "2.0")
    printed = ("exact_match", "f1", "has_answer_exact_match", "has_answer_f1", "no_answer_exact_match")
    np.testing.assert_allclose([scores[name] for name in printed], PRINTED[threshold], rtol=0, atol=1e-9)
    best = ("best_exact_match", "best_exact_match_threshold", "best_f1", "best_f1_threshold")
    np.testing.assert_allclose([scores[name] for name in best], BEST, rtol=0, atol=1e-9)
    assert set(scores) == {*printed, "no_answer_f1", *best}


def test_version_1_1_gives_no_overlap_to_empty_texts() -> None:
    answered = {name: case for name, case in HOSTILE.items() if case[0]}
    scores = squad_scores({name: case[0] for name, case in answered.items()}, {n: c[1] for n, c in answered.items()})
    assert set(scores) == {"exact_match", "f1"}
    np.testing.assert_allclose((scores["exact_match"], scores["f1"]), PRINTED_1_1, rtol=0, atol=1e-9)


def test_nothing_answered_needs_a_threshold_below_negative_scores() -> None:
    """Score differences may be negative: the script's 0 would not suppress the answer to such a question."""
    gold, predicted = {"a": [], "b": []}, {"a": "x", "b": "y"}
    best = squad_scores(gold, predicted, {"a": -3.0, "b": -1.0}, version="2.0")
    assert best["best_exact_match"] == 100.0 and best["best_f1_threshold"] < -3.0
    silenced = squad_scores(gold, predicted, {"a": -3.0, "b": -1.0}, best["best_f1_threshold"], "2.0")
    assert silenced["f1"] == 100.0
    probabilities = squad_scores(gold, predicted, {"a": 0.3, "b": 0.9}, version="2.0")
    assert probabilities["best_f1_threshold"] == 0.0


def test_normalization_goes_in_this_order() -> None:
    assert normalized("The  A-Team, an\tU.S. “the” theatre") == "ateam us “ ” theatre"
    assert normalized("a.n. apple") == "apple"  # without its dots it is an article


@pytest.mark.parametrize(
    ("gold", "predicted", "more", "message"),
    [
        ({}, {}, {}, "nothing to score"),
        ({"a": ["x"]}, {"a": "x", "b": "y"}, {}, "1 gold questions, but 2"),
        ({"a": ["x"]}, {"b": "x"}, {}, "question 'a' has no prediction"),
        ({"a": []}, {"a": "x"}, {}, "question 'a' has no answer: score it with version 2.0"),
        ({"a": ["x"]}, {"a": "x"}, {"version": "3"}, "version must be one of"),
        ({"a": ["x"]}, {"a": "x"}, {"threshold": 0.5}, "needs the scores of no answer"),
        ({"a": ["x"]}, {"a": "x"}, {"no_answer_scores": {}}, "has no score of no answer"),
        ({"a": ["x"]}, {"a": "x"}, {"no_answer_scores": {"a": float("nan")}}, "question 'a' is nan"),
    ],
)
def test_refused(gold: dict, predicted: dict, more: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        squad_scores(gold, predicted, **more)
