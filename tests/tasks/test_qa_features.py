"""Windows over contexts, and the answers in them, are those of transformers' question answering example."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from tokens_lab import ALL_FAMILIES, sentences, task_config, theirs, trained

from bertjax.config.task import TaskConfig
from bertjax.data.special_tokens import FAMILIES
from bertjax.errors import UserError
from bertjax.tasks.qa_features import QaData, qa_data, tokenize_contexts
from bertjax.tasks.readers.examples import GoldAnswers, QaExamples

MAX_LEN, STRIDE = 48, 10
TEXT = "Amsterdam is in Holland"


def config(**values: Any) -> TaskConfig:
    return task_config(**{"kind": "qa", "train": ("squad:a",), "max_length": MAX_LEN, "doc_stride": STRIDE} | {
        "max_question_length": 20, "allow_no_answer": True} | values)  # fmt: skip


def questions(count: int = 40, seed: int = 0) -> QaExamples:
    """Returns questions on contexts from shorter to much longer than a window; every fourth has no answer."""
    rng = np.random.default_rng(seed)
    contexts = [text for text in sentences(count // 2, seed + 1, longest=130) if text]
    texts = [" ".join(text.split()[: rng.integers(1, 5)]) or "cat" for text in sentences(count, seed + 2)]
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
    return QaExamples(texts, contexts, context_of, answers, [f"q{i}" for i in range(count)], locations)


def expected(family: str, examples: QaExamples) -> dict[str, list[Any]]:
    """Returns the output of transformers' tokenizer, and labels: the tokens that overlap the answer."""
    tokenizer = theirs(family)
    context_first = FAMILIES[family].padding_side == "left"
    contexts = [examples.contexts[c] for c in examples.context_of]
    pair = (contexts, examples.questions) if context_first else (examples.questions, contexts)
    result = tokenizer(
        *pair,
        truncation="only_first" if context_first else "only_second",
        max_length=MAX_LEN,
        stride=STRIDE,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    out: dict[str, list[Any]] = {"ids": result["input_ids"], "example": result["overflow_to_sample_mapping"]}
    out |= {"start": [], "end": [], "position": [], "offsets": []}
    for window, example in enumerate(out["example"]):
        context = [i for i, s in enumerate(result.sequence_ids(window)) if s == (0 if context_first else 1)]
        offsets = result["offset_mapping"][window]
        cls = tokenizer.cls_token_id
        ids = result["input_ids"][window]
        summary_position = (len(ids) - 1) if family == "gpt2" else ids.index(cls)
        start = end = summary_position
        answers = examples.answers[example] if examples.answers else GoldAnswers((), ())
        if answers.texts and context:
            begin, stop = answers.starts[0], answers.starts[0] + len(answers.texts[0])
            if offsets[context[0]][0] <= begin and offsets[context[-1]][1] >= stop:
                start = max(i for i in context if offsets[i][0] <= begin)
                end = min(i for i in context if offsets[i][1] >= stop)
        out["start"].append(start)
        out["end"].append(end)
        out["position"].append(context[0] if context else None)
        out["offsets"].append([offsets[i] for i in context])
    return out


def window_of(data: QaData, index: int) -> list[int]:
    return data.features.tokens[data.features.offsets[index] : data.features.offsets[index + 1]].tolist()


@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_as_transformers(family: str) -> None:
    examples = questions()
    result = qa_data(config(), examples, trained(family))
    reference = expected(family, examples)
    features = result.features
    assert [window_of(result, i) for i in range(len(features))] == reference["ids"]
    assert features.example.tolist() == reference["example"]
    assert features.labels["start_labels"].tolist() == reference["start"]
    assert features.labels["end_labels"].tolist() == reference["end"]
    assert result.context_position.tolist() == reference["position"]
    for index, offsets in enumerate(reference["offsets"]):
        here = slice(result.first_token[index], result.first_token[index] + result.context_length[index])
        ours = zip(result.contexts.begins[here].tolist(), result.contexts.ends[here].tolist(), strict=True)
        assert list(ours) == list(map(tuple, offsets))
    counts = np.bincount(features.example)
    assert counts.max() > 3 and counts.min() == 1  # the test covers both
    with_answer = (features.labels["start_labels"] != features.summary_position).sum()
    assert result.notes == (
        f"40 questions in {len(features)} windows of at most {MAX_LEN} tokens, {with_answer} of which hold the answer",
    )


@pytest.mark.parametrize("family", ["bert", "roberta", "xlnet"])
def test_answers_read_back_from_their_tokens(family: str) -> None:
    examples = questions(seed=5)
    result = qa_data(config(), examples, trained(family))
    start, end = (result.features.labels[f"{name}_labels"].astype(int) for name in ("start", "end"))
    answered = set()
    for window in np.flatnonzero(start != result.features.summary_position):
        example = int(result.features.example[window])
        to_token = result.first_token[window] - result.context_position[window]
        begin, stop = result.contexts.begins[start[window] + to_token], result.contexts.ends[end[window] + to_token]
        text = examples.contexts[examples.context_of[example]][begin:stop]
        assert examples.answers is not None and text.strip() == examples.answers[example].texts[0]
        answered.add(example)
    assert len(answered) == 30  # every answer is complete in some window


@pytest.mark.parametrize("knows", [False, True])
@pytest.mark.parametrize("splits", [False, True])
def test_blanks_that_a_pre_tokenizer_added_are_no_characters(splits: bool, knows: bool) -> None:
    """A post-processor that does not know of them would cut off the first letters: "msterdam"."""
    engine = Tokenizer(models.BPE())
    level = pre_tokenizers.ByteLevel(add_prefix_space=True)
    engine.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), level]) if splits else level
    engine.train_from_iterator([TEXT], trainers.BpeTrainer(vocab_size=400, show_progress=False))
    engine.post_processor = processors.ByteLevel(trim_offsets=True, add_prefix_space=knows)
    contexts = tokenize_contexts(SimpleNamespace(engine=engine), [TEXT, TEXT[3:]])  # type: ignore[arg-type]
    covered = [TEXT[begin:end].strip() for begin, end in zip(contexts.begins, contexts.ends, strict=True)]
    assert covered[: contexts.lengths[0]] == TEXT.split()
    assert engine.post_processor is not None


def test_training_leaves_out_answers_that_are_not_there() -> None:
    examples = questions()
    assert examples.answers is not None
    text, start = examples.answers[4].texts[0], examples.answers[4].starts[0]
    examples.answers[4] = GoldAnswers(("elsewhere",), (start,))
    examples.answers[6] = GoldAnswers((examples.answers[6].texts[0],), (10_000,))
    examples.answers[8] = GoldAnswers((" ",), (examples.contexts[examples.context_of[8]].index(" "),))
    result = qa_data(config(), examples, trained("bert"), training=True)
    assert set(range(40)) - set(result.features.example.tolist()) == {4, 6, 8}
    assert result.notes[0] == (
        f"3 of 40 questions are left out: no answer is at its answer_start (first {examples.locations[4]}, "
        f"{examples.ids[4]!r})"
    )
    scored = qa_data(config(), examples, trained("bert"))
    assert set(scored.features.example.tolist()) == set(range(40)) and "scored by their texts" in scored.notes[0]
    windows = np.isin(scored.features.example, [4, 6, 8])
    assert (scored.features.labels["start_labels"] == scored.features.summary_position)[windows].all()
    examples.answers[4] = GoldAnswers(("elsewhere", text), (-1, start))
    result = qa_data(config(), examples, trained("bert"), training=True)
    assert result.notes[0].startswith("2 of 40") and 4 in result.features.example, "the second answer is at its offset"
    examples.answers[:] = [GoldAnswers((text + "?",), (start,))] * 40
    with pytest.raises(UserError, match="no answer stands at its answer_start"):
        qa_data(config(), examples, trained("bert"), training=True)


def test_long_questions_are_cut() -> None:
    examples = questions(4)
    examples.questions[1] = " ".join(["dogs"] * 200)
    result = qa_data(config(max_question_length=5), examples, trained("bert"))
    assert result.features.lengths.max() <= MAX_LEN
    whole = theirs("bert")(examples.questions[1], add_special_tokens=False)["input_ids"]
    window = window_of(result, int(np.flatnonzero(result.features.example == 1)[0]))
    assert window[1:7] == [*whole[:5], trained("bert").sep_id]
    assert result.notes[0] == "1 of 4 questions (25.0%) are too long and were cut (task.qa.max_question_length=5)"


def test_without_answers() -> None:
    examples = questions(8)
    examples.answers = None
    assert qa_data(config(), examples, trained("bert")).features.labels == {}


def test_a_context_without_tokens() -> None:
    examples = questions(2)
    examples.contexts[:] = [""] * len(examples.contexts)
    result = qa_data(config(), examples, trained("bert"))
    assert result.features.labels["start_labels"].tolist() == [0, 0] == result.context_length.tolist()
