"""Multiple choice: every choice is a window with the context, and the scores of an example's choices compete."""

from __future__ import annotations

import dataclasses
import functools
import string
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from bertjax.config.fields import setting
from bertjax.config.task import TaskConfig
from bertjax.data.tokenizer import Tokenizer
from bertjax.errors import UserError, named
from bertjax.tasks.base import rounded, softmax
from bertjax.tasks.calibration import CalibratedKind, Decisions
from bertjax.tasks.evaluate import EvalResult, ForwardPass, HeadEvaluator
from bertjax.tasks.features import TextData, text_data
from bertjax.tasks.readers.examples import ChoiceExamples, ReadRequest, TextExamples
from bertjax.tasks.readers.labels import is_whole
from bertjax.tasks.readers.tables import read_rows, require_distinct, require_field_text
from bertjax.types import Batch, Params, Sum

NOT_A_CHOICE = -1
"""Label of a window that only fills up an example with fewer choices than others."""
_LOWEST = float(np.finfo(np.float32).min)


@dataclasses.dataclass(frozen=True, eq=False)
class ChoiceData(TextData):
    """Features of choices: `group` windows per example, of which the first `counts[i]` are the choices of example i."""

    counts: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, np.int64))

    def by_example(self, scores: np.ndarray) -> np.ndarray:
        """Returns the scores of windows [n, 1] by example [n / group, group], that of no choice -inf."""
        rows = scores.reshape(-1, self.features.group).astype(np.float64)
        return np.where(np.arange(self.features.group) < self.counts[:, None], rows, -np.inf)


class ChoiceEvaluator(HeadEvaluator):
    """Held-out loss and metrics; windows of an example may come in several batches, so both follow from all scores."""

    @functools.cached_property
    def _forward(self) -> ForwardPass:
        return ForwardPass(self.objective, self.mesh, labeled=False)

    def __call__(self, params: Params, frozen: Any) -> dict[str, float]:
        scores = self._forward(params, self.batches).scores
        result = self._result(scores)
        self.on_result(result)
        data: Any = self.data
        answers = np.array(self.examples.answers)  # type: ignore[union-attr]
        rows = data.by_example(scores)
        of_right = softmax(rows)[np.arange(len(rows)), answers]
        loss = -np.log(np.maximum(of_right, np.finfo(np.float64).tiny))
        return self._named({self.config.spec.name: Sum(float(loss.sum()), float(len(loss)))}, result)


@dataclasses.dataclass(frozen=True)
class MultipleChoice(CalibratedKind, group="task.multiple_choice"):
    """The right one of several choices, as in SWAG (arXiv:1808.05326) and RACE (arXiv:1704.04683)."""

    name, title, head = "multiple_choice", "multiple choice", "multiple_choice"
    main_metric, label_array = "accuracy", "choice_labels"
    metrics: ClassVar[dict[str, tuple[str, str]]] = {
        "accuracy": ("share", "Examples whose choice is right."),
        **CalibratedKind.calibration_metric,
    }
    columns = ("context", "label")
    takes_pairs, is_pair = False, True
    examples, evaluator = ChoiceExamples, ChoiceEvaluator

    question_column: str | None = setting(
        None, help="Column of a question, which stands before every choice; None: there is none."
    )
    choices_column: str = setting(
        "choices", help="Column of the choices, a list of texts, or as in ARC {text: [...], label: [...]}."
    )
    choice_columns: tuple[str, ...] = setting(
        (), help="Columns with a choice each, in place of `choices_column`; empty fields at the end do not count."
    )

    def check(self) -> None:
        if len(set(self.choice_columns)) < len(self.choice_columns) or len(self.choice_columns) == 1:
            raise UserError("task.multiple_choice.choice_columns must name at least two columns, each once")

    def check_task(self, config: TaskConfig) -> None:
        if config.group_by_length:
            raise UserError("task.group_by_length sorts single texts: the choices of an example stay together")

    def read_examples(self, request: ReadRequest) -> ChoiceExamples:
        return read_choices(request)

    def make_features(
        self, config: TaskConfig, examples: Any, tokenizer: Tokenizer, labels: Sequence[str], training: bool
    ) -> ChoiceData:
        counts = np.array([len(each) for each in examples.choices])
        width = int(counts.max(initial=0))
        pairs = TextExamples(*_windows(examples, width), None, None, *_repeated(examples, width), examples.notes)
        data = text_data(config, pairs, tokenizer, (), training)
        number = np.repeat(np.arange(len(examples), dtype=np.int32), width)
        arrays: dict[str, np.ndarray] = {}
        if examples.answers is not None:
            choice = np.tile(np.arange(width), len(examples))
            right = (choice == np.repeat(examples.answers, width)).astype(np.int32)
            is_choice = choice < np.repeat(counts, width)
            arrays = {
                "choice_labels": np.where(is_choice, right, NOT_A_CHOICE).astype(np.int32),
                "choice_groups": number,
            }
        features = dataclasses.replace(data.features, example=number, labels=arrays, group=width)
        return ChoiceData(features, data.notes, data.num_truncated, counts)

    def count(self, batch: Batch, class_weights: np.ndarray) -> Array:
        return ((batch["choice_labels"] == 1) * batch["example_weights"]).sum()

    def loss(self, scores: Array, batch: Batch, class_weights: np.ndarray) -> dict[str, Sum]:
        """Sums the cross-entropy of the choices of every example, which may lie in several sequences of the batch.

        Of equal scores that of the first choice counts as predicted.
        """
        labels, groups, windows = (
            batch[name].reshape(-1) for name in ("choice_labels", "choice_groups", "example_ids")
        )
        values, is_window = scores.reshape(-1).astype(jnp.float32), batch["example_weights"].reshape(-1) > 0
        is_choice = is_window & (labels != NOT_A_CHOICE)
        rivals = (groups[:, None] == groups[None, :]) & is_choice[None, :]
        losses = jax.nn.logsumexp(jnp.where(rivals, values[None, :], _LOWEST), axis=1) - values
        earlier = windows[None, :] < windows[:, None]
        better = (values[None, :] > values[:, None]) | ((values[None, :] == values[:, None]) & earlier)
        is_best = ~(rivals & better).any(axis=1)
        is_right = is_choice & (labels == 1)
        count = is_right.sum().astype(jnp.float32)
        return {
            "loss": Sum(jnp.where(is_right, losses, 0.0).sum(), count),
            "accuracy": Sum((is_right & is_best).sum().astype(jnp.float32), count),
        }

    def compute_metrics(
        self, config: TaskConfig, examples: Any, data: Any, scores: np.ndarray, labels: tuple[str, ...]
    ) -> EvalResult:
        decided, reliable = self.decisions(data, scores), self.reliability(data, scores)
        accuracy = float((decided.scores.argmax(axis=1) == decided.right).mean())
        return EvalResult(
            {"accuracy": accuracy, "calibration_error": reliable.error}, labels=labels, reliability=reliable.bins
        )

    def decisions(self, data: Any, scores: np.ndarray) -> Decisions:
        right = data.features.labels["choice_labels"].reshape(-1, data.features.group).argmax(axis=1)
        return Decisions(data.by_example(scores), right)

    def records(
        self, config: TaskConfig, examples: Any, data: Any, scores: Any, labels: tuple[str, ...], top_k: int | None
    ) -> Iterator[dict[str, Any]]:
        """Yields the predicted choice of every example, and the probabilities of all. Args: as in the base class."""
        rows = softmax(data.by_example(self.calibrated(scores)))
        for choices, probabilities in zip(examples.choices, rows, strict=True):
            best = int(probabilities.argmax())
            shown = [rounded(each) for each in probabilities[: len(choices)]]
            yield {"choice": best, "text": choices[best], "score": shown[best], "probabilities": shown}


def _windows(examples: ChoiceExamples, width: int) -> tuple[list[str], list[str]]:
    """Returns the first and second texts of all windows; an example is filled up with its first choice."""
    firsts, seconds = list[str](), list[str]()
    for index, choices in enumerate(examples.choices):
        question = "" if examples.questions is None else examples.questions[index].strip()
        filled = [*choices, *[choices[0]] * (width - len(choices))]
        firsts += [examples.contexts[index]] * width
        seconds += [f"{question} {choice}".strip() for choice in filled]
    return firsts, seconds


def _repeated(examples: ChoiceExamples, width: int) -> tuple[list[str], list[str]]:
    lists = (examples.ids, examples.locations)
    ids, locations = ([value for value in values for _ in range(width)] for values in lists)
    return ids, locations


class NamedChoices(NamedTuple):
    """The choices of an example, and the names that the data has for them (ARC); () without."""

    texts: list[str]
    names: tuple[str, ...] = ()


def read_choices(request: ReadRequest) -> ChoiceExamples:
    """Reads all examples of tables and records, in order.

    Raises:
        UserError: an example cannot be read, has fewer than two choices, or none that the label names; names file and
            line.
    """
    config, sources, labeled, errors = request
    settings, (context, label) = config.spec, config.column_names
    columns = [("task.text_column", context)]
    columns += [("task.multiple_choice.question_column", each) for each in (settings.question_column,) if each]
    first = len(columns)
    columns += [("task.multiple_choice.choice_columns", each) for each in settings.choice_columns]
    columns += [("task.multiple_choice.choices_column", settings.choices_column)] * (not settings.choice_columns)
    last = len(columns)
    columns += [("task.id_column", config.id_column)] if config.id_column is not None else []
    columns += [("task.label_column", label)] if labeled else []
    examples = ChoiceExamples([], None if first == 1 else [], [], [] if labeled else None, [], [])
    for source in sources:
        for location, row in read_rows(source, columns, config.header, errors):
            row[0] = joined_turns(row[0])
            texts = [require_field_text(row[index], columns[index][1], location, errors) for index in range(first)]
            value = _of_columns(settings.choice_columns, row[first:last]) if settings.choice_columns else row[first]
            choices = parse_choices(value, location)
            examples.contexts.append(texts[0])
            if examples.questions is not None:
                examples.questions.append(texts[1])
            examples.choices.append(choices.texts)
            if examples.answers is not None:
                examples.answers.append(parse_answer(row[-1], choices, location))
            examples.ids.append(str(row[last]) if config.id_column is not None else str(len(examples.locations)))
            examples.locations.append(location)
    require_distinct(examples.ids, examples.locations)
    if empty := sum(not text.strip() for choices in examples.choices for text in choices):
        examples.notes.append(f"{empty:,} choices are empty")
    return examples


def joined_turns(context: Any) -> Any:
    """Returns the turns of a dialogue (DREAM), a list of texts, as lines of one text; anything else as it is."""
    is_dialogue = isinstance(context, list | tuple) and context and all(isinstance(turn, str) for turn in context)
    return "\n".join(context) if is_dialogue else context


def parse_choices(value: Any, where: str) -> NamedChoices:
    """Reads a list of texts, without empty fields at its end, or {text: [...], label: [...]}.

    Args:
        value: the choices.
        where: location of the example.

    Raises:
        UserError: they are not texts, or fewer than two.
    """
    names: list[Any] = []
    if isinstance(value, Mapping):
        value, names = value.get("text"), list(value.get("label") or ())
    texts = list(value) if isinstance(value, list | tuple) else []
    while texts and texts[-1] in (None, ""):
        names = names[: -1 if len(names) == len(texts) else None]
        texts.pop()
    if len(texts) < 2:
        raise UserError(
            f"{where}: an example needs at least two choices: a list in "
            f"{named('task.multiple_choice.choices_column')}, or columns in "
            f"{named('task.multiple_choice.choice_columns')}"
        )
    if not all(isinstance(text, str) for text in texts):
        texts = [text if isinstance(text, str) else _number(text, where) for text in texts]
    if names and len(names) != len(texts):
        raise UserError(f"{where}: {len(texts)} choices have {len(names)} names")
    return NamedChoices(
        [require_field_text(text, "choice", where) for text in texts], tuple(str(name) for name in names)
    )


def _of_columns(columns: Sequence[str], texts: Sequence[Any]) -> dict[str, Sequence[Any]]:
    """Returns choices of columns, whose names a label may have (COPA on the Hub) unless they are numbers."""
    return {"text": texts, "label": () if any(map(is_whole, columns)) else columns}


def _number(value: Any, where: str) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UserError(f"{where}: a choice must be text, not {value!r}")
    return str(value)


def parse_answer(value: Any, choices: NamedChoices, where: str) -> int:
    """Returns the index of the right choice: of its name or column, its number from 0, its letter, or its text.

    Args:
        value: the label.
        choices: the choices of the example.
        where: its location.

    Raises:
        UserError: the label is none of them, or could be two.
    """
    count, text = len(choices.texts), "" if value is None else str(value).strip()
    if text in choices.names:
        return choices.names.index(text)
    number = int(text) if is_whole(text) else None
    if isinstance(value, int) and not isinstance(value, bool):
        candidates = {number} if number is not None else set()
    else:
        candidates = {index for index, choice in enumerate(choices.texts) if choice.strip() == text}
        if number is not None and 0 <= number < count:
            candidates.add(number)
        elif not candidates and len(text) == 1 and text in string.ascii_letters:
            candidates = {string.ascii_lowercase.index(text.lower())}
    right = sorted(index for index in candidates if index is not None and 0 <= index < count)
    if len(right) == 1:
        return right[0]
    reason = "could be more than one of them" if right else "is none of them"
    raise UserError(
        f"{where}: label {value!r} {reason}: give the number of the right one of {count} choices, 0 to {count - 1}, "
        "its letter, or its text"
    )


def field_choices(config: TaskConfig, values: Mapping[str, Any]) -> Any:
    """Returns the choices in a record, as `parse_choices` takes them; None: there are none."""
    settings = config.spec
    if settings.choice_columns:
        return _of_columns(settings.choice_columns, [values.get(name) for name in settings.choice_columns])
    return values.get(settings.choices_column, values.get("choices"))
