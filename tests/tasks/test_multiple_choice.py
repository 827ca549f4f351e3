"""Multiple choice: reading choices and answers, losses as in torch, choices that stay together in a batch."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from tokens_lab import make_features, trained

from bertjax.config.fields import settings_of
from bertjax.config.suite_presets import COPA_SETTINGS
from bertjax.config.task import TaskConfig, task_config
from bertjax.errors import UserError
from bertjax.experiment.config import load_config
from bertjax.experiment.suite_data import hold_out
from bertjax.inference.predict_inputs import read_inputs
from bertjax.tasks.batches import EvalBatches, TaskBatches
from bertjax.tasks.multiple_choice import (
    NOT_A_CHOICE,
    ChoiceData,
    MultipleChoice,
    NamedChoices,
    parse_answer,
    parse_choices,
)
from bertjax.tasks.readers.examples import ChoiceExamples, read_examples

METHODS = MultipleChoice()


def config(source: str = "jsonl:x", **settings: Any) -> TaskConfig:
    keys = {name: settings.pop(name) for name in [*settings] if name in settings_of(MultipleChoice)}
    return TaskConfig("multiple_choice", (source,), spec=MultipleChoice(**keys), **settings)


def examples(sizes: list[int], seed: int = 0) -> ChoiceExamples:
    draw = np.random.default_rng(seed)
    words = ["cat", "dog", "tea", "house"]
    texts = lambda count: [" ".join(draw.choice(words, draw.integers(1, 5))) for _ in range(count)]  # noqa: E731
    choices = [texts(size) for size in sizes]
    answers = [int(draw.integers(0, size)) for size in sizes]
    names = list(map(str, range(len(sizes))))
    return ChoiceExamples(texts(len(sizes)), texts(len(sizes)), choices, answers, names, names)


def features(sizes: list[int], seed: int = 0) -> ChoiceData:
    data = make_features(config(max_length=64), examples(sizes, seed), trained("bert"), training=True)
    assert isinstance(data, ChoiceData)
    return data


# -- reading -----------------------------------------------------------------------------------------------------------

THREE = NamedChoices(["a fox", "No", "2"])


@pytest.mark.parametrize(
    ("value", "choices", "expected"),
    [
        (1, THREE, 1),
        ("A", NamedChoices(["x", "y"]), 0),
        ("b", NamedChoices(["x", "y"]), 1),
        (" no ", NamedChoices(["yes", "no"]), 1),
        ("1", NamedChoices(["x", "y"]), 1),
        ("3", NamedChoices(["x", "y", "z"], ("1", "2", "3")), 2),
        ("B", NamedChoices(["A", "B"], ("A", "B")), 1),
        ("b", NamedChoices(["b", "a"]), 0),  # a text before a letter
        ("2", THREE, 2),
        ("z", NamedChoices([str(number) for number in range(26)]), 25),
    ],
)
def test_answers(value: Any, choices: NamedChoices, expected: int) -> None:
    assert parse_answer(value, choices, "x:1") == expected


@pytest.mark.parametrize(
    ("value", "choices", "reason"),
    [
        (2, NamedChoices(["x", "y"]), "is none of them: give the number of the right one of 2 choices, 0 to 1"),
        (-1, NamedChoices(["x", "y"]), "is none of them"),
        (True, NamedChoices(["x", "y"]), "is none of them"),
        (None, NamedChoices(["x", "y"]), "is none of them"),
        ("c", NamedChoices(["x", "y"]), "is none of them"),
        ("ﬁ", NamedChoices(["x", "y"]), "is none of them"),
        ("same", NamedChoices(["same", "same"]), "could be more than one"),
        ("1", NamedChoices(["1", "0"]), "could be more than one"),
        ("1.0", NamedChoices(["x", "y"]), "is none of them"),
    ],
)
def test_answers_that_name_no_choice(value: Any, choices: NamedChoices, reason: str) -> None:
    with pytest.raises(UserError, match=f"x:1: label .* {reason}"):
        parse_answer(value, choices, "x:1")


@pytest.mark.parametrize(
    "value", [None, [], ["one"], ["one", "", None], "ab", {"text": ["one"]}, {"label": ["A", "B"]}]
)
def test_fewer_than_two_choices(value: Any) -> None:
    with pytest.raises(UserError, match="x:1: an example needs at least two choices"):
        parse_choices(value, "x:1")


def test_choices_of_arc_numbers_and_empty_ones() -> None:
    assert parse_choices({"text": ["x", "y"], "label": ["A", "B"]}, "x:1") == NamedChoices(["x", "y"], ("A", "B"))
    assert parse_choices(["", "y", ""], "x:1").texts == ["", "y"]
    assert parse_choices([1, 2.5], "x:1").texts == ["1", "2.5"]
    with pytest.raises(UserError, match="2 choices have 1 names"):
        parse_choices({"text": ["x", "y"], "label": ["A"]}, "x:1")
    with pytest.raises(UserError, match=r"a choice must be text, not \['z'\]"):
        parse_choices(["x", ["z"]], "x:1")


def test_layouts_of_published_data(tmp_path: Path) -> None:
    race = {"article": "It rains.", "question": "What?", "options": ["rain", "sun"], "answer": "B", "id": "7"}
    (tmp_path / "race.jsonl").write_text(json.dumps(race) + "\n")
    read: Any = read_examples(
        config(
            f"jsonl:{tmp_path}/race.jsonl",
            text_column="article",
            question_column="question",
            choices_column="options",
            label_column="answer",
            id_column="id",
        )
    )
    assert (read.contexts, read.questions, read.choices) == (["It rains."], ["What?"], [["rain", "sun"]])
    assert read.answers == [1] and read.ids == ["7"] and read.locations == [f"{tmp_path}/race.jsonl:1"]
    dream = {"dialogue": ["M: Tea?", "W: Yes."], "question": "Who?", "choice": ["M", "W"], "answer": "W"}
    (tmp_path / "dream.jsonl").write_text(json.dumps(dream) + "\n")
    cfg = load_config("finetune/multiple_choice:dream", {"task.train": (f"jsonl:{tmp_path}/dream.jsonl",)})
    read = read_examples(task_config(cfg))
    assert read.contexts == ["M: Tea?\nW: Yes."] and read.answers == [1]
    (tmp_path / "swag.csv").write_text("sent1,sent2,e0,e1,e2,label\nHe runs.,He,falls.,flies.,,1\n")
    read = read_examples(
        config(
            f"csv:{tmp_path}/swag.csv", text_column="sent1", question_column="sent2", choice_columns=("e0", "e1", "e2")
        )
    )
    assert read.choices == [["falls.", "flies."]] and read.answers == [1] and read.questions == ["He"]


@pytest.mark.parametrize(("columns", "label", "expected"), [("x y z", "y", 1), ("x y z", "1", 1), ("1 2 3", "1", 1)])
def test_a_label_may_name_a_column(tmp_path: Path, columns: str, label: str, expected: int) -> None:
    names = columns.split()
    row = {"premise": "it rains.", **dict(zip(names, ("he falls.", "he flies.", ""), strict=True)), "label": label}
    (tmp_path / "data.jsonl").write_text(json.dumps(row) + "\n")
    settings = config(f"jsonl:{tmp_path}/data.jsonl", text_column="premise", choice_columns=tuple(names))
    examples: Any = read_examples(settings)
    assert examples.answers == [expected] and examples.choices == [["he falls.", "he flies."]]
    (window,) = read_inputs(settings, [f"{tmp_path}/data.jsonl"], gold=True)
    assert window.examples.answers == [expected]  # type: ignore[union-attr]
    (tmp_path / "data.jsonl").write_text(json.dumps(row | {"label": names[2]}) + "\n")
    with pytest.raises(UserError, match="is none of them"):
        read_examples(settings)


def test_a_part_is_held_out_for_a_grid(tmp_path: Path) -> None:
    rows = [{"premise": f"p{index}", "choice1": "x", "choice2": f"y{index}", "label": index % 2} for index in range(20)]
    (tmp_path / "copa.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    cfg = load_config("finetune/multiple_choice", {"task.train": (f"jsonl:{tmp_path}/copa.jsonl",), **COPA_SETTINGS})
    keys = hold_out(cfg, tmp_path / "parts")
    parts: list[Any] = []
    for split in ("task.train", "task.eval"):
        parts.append(
            read_examples(task_config(load_config("finetune/multiple_choice", {**keys, "task.train": keys[split]})))
        )
    assert [len(each) for each in parts] == [18, 2]
    assert {text for each in parts for text in each.contexts} == {row["premise"] for row in rows}
    for each in parts:
        for context, choices, answer in zip(each.contexts, each.choices, each.answers, strict=True):
            assert choices == ["x", f"y{context[1:]}"] and answer == int(context[1:]) % 2


def test_settings_that_cannot_be() -> None:
    with pytest.raises(UserError, match=r"task.multiple_choice.choice_columns must name at least two columns"):
        MultipleChoice(choice_columns=("one",))
    with pytest.raises(UserError, match=r"task.group_by_length sorts single texts"):
        config(group_by_length=True)
    with pytest.raises(UserError, match="reads one text"):
        config(pair_column="pair")


# -- features and batches ----------------------------------------------------------------------------------------------


def test_windows_are_contexts_with_questions_and_choices() -> None:
    some, tokenizer = examples([2, 3]), trained("bert")
    data: Any = make_features(config(max_length=64), some, tokenizer)
    assert data.features.group == 3 and data.counts.tolist() == [2, 3]
    assert data.features.example.tolist() == [0, 0, 0, 1, 1, 1]
    labels = data.features.labels["choice_labels"].reshape(2, 3)
    assert labels[0, 2] == NOT_A_CHOICE and labels.max(axis=1).tolist() == [1, 1]
    assert labels.argmax(axis=1).tolist() == some.answers
    assert some.questions is not None
    first = f"{some.questions[0]} {some.choices[0][1]}"
    expected = tokenizer.engine.encode(some.contexts[0], first).ids
    begin, end = data.features.offsets[1:3]
    assert data.features.tokens[begin:end].tolist() == expected
    scores = np.array([[5.0], [1.0], [9.0], [1.0], [1.0], [0.0]], np.float32)
    assert data.by_example(scores).tolist() == [[5.0, 1.0, -np.inf], [1.0, 1.0, 0.0]]


@pytest.mark.parametrize("packing", [True, False])
def test_choices_stay_together(packing: bool) -> None:
    data = features([3, 2, 3, 4, 2, 3, 2])
    batches = TaskBatches(data.features, batch_size=2, epochs=2, seed=0, pad_id=0, vocab_size=1000, packing=packing)
    assert batches.steps_per_epoch == 4 and batches.num_steps == 8
    numbers: list[int] = []
    for cursor in range(4):
        batch = batches.batch(cursor)
        ids = np.sort(batch["example_ids"][batch["example_weights"] > 0]).reshape(-1, data.features.group)
        assert (ids == ids[:, :1] + np.arange(data.features.group)).all() and (
            ids[:, 0] % data.features.group == 0
        ).all()
        numbers += (ids[:, 0] // data.features.group).tolist()
    assert sorted(numbers) == list(range(7))


# -- loss --------------------------------------------------------------------------------------------------------------


def loss_of(data: ChoiceData, scores: np.ndarray, packing: bool) -> dict[str, Any]:
    """Returns the sums of one batch of all examples, whose windows have these scores [n, 1]."""
    count = len(data.counts)
    batches = TaskBatches(data.features, batch_size=count, epochs=1, seed=3, pad_id=0, vocab_size=1000, packing=packing)
    batch = batches.batch(0)
    of_windows = np.where(batch["example_weights"] > 0, scores[:, 0][batch["example_ids"]], 77.0)
    return METHODS.loss(jnp.asarray(of_windows, jnp.float32)[..., None], batch, np.ones(1, np.float32))


@pytest.mark.parametrize("packing", [True, False])
def test_the_loss_is_that_of_torch(packing: bool) -> None:
    data = features([3, 2, 4, 4, 2])
    scores = np.random.default_rng(1).normal(size=(20, 1)).astype(np.float32) * 3
    rows = torch.tensor(data.by_example(scores))
    answers = torch.tensor(data.features.labels["choice_labels"].reshape(5, 4).argmax(axis=1))
    sums = loss_of(data, scores, packing)
    expected = torch.nn.functional.cross_entropy(rows, answers, reduction="sum")
    assert float(sums["loss"].value) == pytest.approx(float(expected), rel=1e-5) and float(sums["loss"].count) == 5
    assert float(sums["accuracy"].value) == int((rows.argmax(1) == answers).sum())


def test_of_equal_scores_the_first_choice_is_predicted() -> None:
    data = features([3] * 9)
    sums = loss_of(data, np.zeros((27, 1), np.float32), packing=True)
    firsts = int((data.features.labels["choice_labels"].reshape(-1, 3).argmax(axis=1) == 0).sum())
    assert 0 < firsts < 9 and float(sums["accuracy"].value) == firsts
    some = examples([3] * 9)
    result = METHODS.compute_metrics(config(), some, data, np.zeros((27, 1), np.float32), ())
    error = abs(firsts / 9 - 1 / 3)
    assert result.metrics == {"accuracy": pytest.approx(firsts / 9), "calibration_error": pytest.approx(error)}


def test_held_out_windows_come_in_any_batch() -> None:
    data = features([3, 2, 3])
    batches = EvalBatches(data.features, batch_size=2, pad_id=0, vocab_size=1000, packing=False)
    numbers = np.concatenate([batch["example_numbers"].reshape(-1) for batch in batches])
    assert sorted(numbers[numbers >= 0].tolist()) == list(range(9))
    unlabeled = dataclasses.replace(examples([3, 2]), answers=None)
    without: Any = make_features(config(max_length=64), unlabeled, trained("bert"))
    assert without.features.labels == {}
