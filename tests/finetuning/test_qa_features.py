"""Windows over contexts are those of transformers' question answering example, and so are the answers in them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tokens_lab import ALL_FAMILIES, sentences, task_config, theirs, trained

from bertjax.config.task import TaskConfig
from bertjax.data.special_tokens import FAMILIES
from bertjax.errors import UserError
from bertjax.finetuning.qa_features import QaData, qa_data
from bertjax.finetuning.readers.examples import GoldAnswers, QaExamples

MAX_LEN, STRIDE = 48, 10


def config(**values: Any) -> TaskConfig:
    return task_config(**{"kind": "qa", "train": ("squad:a",), "max_length": MAX_LEN, "doc_stride": STRIDE} | {
        "max_question_length": 20, "allow_no_answer": True} | values)  # fmt: skip


def questions(count: int = 40, seed: int = 0) -> QaExamples:
    """Questions on contexts from shorter to much longer than a window; every fourth has no answer."""
    rng = np.random.default_rng(seed)
    contexts = [text for text in sentences(count // 2, seed + 1, longest=130) if text]
    asked = [" ".join(text.split()[: rng.integers(1, 5)]) or "cat" for text in sentences(count, seed + 2)]
    context_of, answers, locations = [], [], [f"file: question {number + 1}" for number in range(count)]
    for number in range(count):
        context = int(rng.integers(len(contexts)))
        words = contexts[context].split()
        first = int(rng.integers(len(words)))
        last = int(rng.integers(first, min(first + 4, len(words))))
        begin = len(" ".join(words[:first])) + (first > 0)
        text = contexts[context][begin : len(" ".join(words[: last + 1]))]
        context_of.append(context)
        answers.append(GoldAnswers((), ()) if number % 4 == 3 else GoldAnswers((text,), (begin,)))
    return QaExamples(asked, contexts, context_of, answers, [f"q{i}" for i in range(count)], locations)


def expected(family: str, examples: QaExamples) -> dict[str, list[Any]]:
    """What transformers' tokenizer gives, and the labels by their meaning: the tokens that touch the answer."""
    tokenizer = theirs(family)
    context_first = FAMILIES[family].padding_side == "left"
    contexts = [examples.contexts[c] for c in examples.context_of]
    pair = (contexts, examples.questions) if context_first else (examples.questions, contexts)
    found = tokenizer(
        *pair,
        truncation="only_first" if context_first else "only_second",
        max_length=MAX_LEN,
        stride=STRIDE,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    out: dict[str, list[Any]] = {"ids": found["input_ids"], "example": found["overflow_to_sample_mapping"]}
    out |= {"start": [], "end": [], "place": [], "offsets": []}
    for window, example in enumerate(out["example"]):
        own = [i for i, s in enumerate(found.sequence_ids(window)) if s == (0 if context_first else 1)]
        offsets = found["offset_mapping"][window]
        cls = tokenizer.cls_token_id
        ids = found["input_ids"][window]
        summary_position = (len(ids) - 1) if family == "gpt2" else ids.index(cls)
        start = end = summary_position
        answers = examples.answers[example] if examples.answers else GoldAnswers((), ())
        if answers.texts and own:
            begin, stop = answers.starts[0], answers.starts[0] + len(answers.texts[0])
            if offsets[own[0]][0] <= begin and offsets[own[-1]][1] >= stop:
                start = max(i for i in own if offsets[i][0] <= begin)
                end = min(i for i in own if offsets[i][1] >= stop)
        out["start"].append(start)
        out["end"].append(end)
        out["place"].append(own[0] if own else None)
        out["offsets"].append([offsets[i] for i in own])
    return out


def window_of(data: QaData, index: int) -> list[int]:
    return data.features.tokens[data.features.offsets[index] : data.features.offsets[index + 1]].tolist()


@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_as_transformers(family: str) -> None:
    examples = questions()
    found = qa_data(config(), examples, trained(family))
    wanted = expected(family, examples)
    features = found.features
    assert [window_of(found, i) for i in range(len(features))] == wanted["ids"]
    assert features.example.tolist() == wanted["example"]
    assert features.labels["start_labels"].tolist() == wanted["start"]
    assert features.labels["end_labels"].tolist() == wanted["end"]
    assert found.context_position.tolist() == wanted["place"]
    for index, offsets in enumerate(wanted["offsets"]):
        here = slice(found.first_token[index], found.first_token[index] + found.context_length[index])
        ours = zip(found.contexts.begins[here].tolist(), found.contexts.ends[here].tolist(), strict=True)
        assert list(ours) == list(map(tuple, offsets))
    counts = np.bincount(features.example)
    assert counts.max() > 3 and counts.min() == 1  # the test sees both
    with_answer = (features.labels["start_labels"] != features.summary_position).sum()
    assert found.notes == (
        f"40 questions in {len(features)} windows of at most {MAX_LEN} tokens, {with_answer} of which hold the answer",
    )


@pytest.mark.parametrize("family", ["bert", "roberta", "xlnet"])
def test_answers_read_back_from_their_tokens(family: str) -> None:
    examples = questions(seed=5)
    found = qa_data(config(), examples, trained(family))
    start, end = (found.features.labels[f"{name}_labels"].astype(int) for name in ("start", "end"))
    seen = set()
    for window in np.flatnonzero(start != found.features.summary_position):
        example = int(found.features.example[window])
        to_token = found.first_token[window] - found.context_position[window]
        begin, stop = found.contexts.begins[start[window] + to_token], found.contexts.ends[end[window] + to_token]
        text = examples.contexts[examples.context_of[example]][begin:stop]
        assert examples.answers is not None and text.strip() == examples.answers[example].texts[0]
        seen.add(example)
    assert len(seen) == 30  # every answer is whole in some window


def test_training_leaves_out_answers_that_are_not_there() -> None:
    examples = questions()
    assert examples.answers is not None
    text, start = examples.answers[4].texts[0], examples.answers[4].starts[0]
    examples.answers[4] = GoldAnswers(("elsewhere",), (start,))
    examples.answers[6] = GoldAnswers((examples.answers[6].texts[0],), (10_000,))
    examples.answers[8] = GoldAnswers((" ",), (examples.contexts[examples.context_of[8]].index(" "),))
    found = qa_data(config(), examples, trained("bert"), training=True)
    assert set(range(40)) - set(found.features.example.tolist()) == {4, 6, 8}
    assert found.notes[0] == (
        f"3 of 40 questions are left out: no answer is at its answer_start (first {examples.locations[4]}, "
        f"{examples.ids[4]!r})"
    )
    scored = qa_data(config(), examples, trained("bert"))
    assert set(scored.features.example.tolist()) == set(range(40)) and "scored by their texts" in scored.notes[0]
    windows = np.isin(scored.features.example, [4, 6, 8])
    assert (scored.features.labels["start_labels"] == scored.features.summary_position)[windows].all()
    examples.answers[4] = GoldAnswers(("elsewhere", text), (-1, start))
    found = qa_data(config(), examples, trained("bert"), training=True)
    assert found.notes[0].startswith("2 of 40") and 4 in found.features.example, "the second answer is at its offset"
    examples.answers[:] = [GoldAnswers((text + "?",), (start,))] * 40
    with pytest.raises(UserError, match="no answer stands at its answer_start"):
        qa_data(config(), examples, trained("bert"), training=True)


def test_long_questions_are_cut() -> None:
    examples = questions(4)
    examples.questions[1] = " ".join(["dogs"] * 200)
    found = qa_data(config(max_question_length=5), examples, trained("bert"))
    assert found.features.lengths.max() <= MAX_LEN
    whole = theirs("bert")(examples.questions[1], add_special_tokens=False)["input_ids"]
    window = window_of(found, int(np.flatnonzero(found.features.example == 1)[0]))
    assert window[1:7] == [*whole[:5], trained("bert").sep_id]
    assert found.notes[0] == "1 of 4 questions (25.0%) are too long and were cut (task.qa.max_question_length=5)"


def test_without_answers() -> None:
    examples = questions(8)
    examples.answers = None
    assert qa_data(config(), examples, trained("bert")).features.labels == {}


def test_a_context_without_tokens() -> None:
    examples = questions(2)
    examples.contexts[:] = [""] * len(examples.contexts)
    found = qa_data(config(), examples, trained("bert"))
    assert found.features.labels["start_labels"].tolist() == [0, 0] == found.context_length.tolist()
