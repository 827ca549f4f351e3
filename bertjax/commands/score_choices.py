"""Classes by likelihood: zero-shot and few-shot classification with a model that generates."""

from __future__ import annotations

import dataclasses
import string
import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, NamedTuple

import numpy as np

from bertjax.commands.arguments import BatchTokens, Flag, Model, Out
from bertjax.commands.signatures import command
from bertjax.compression import bare_name
from bertjax.config.sources import parse_task_source
from bertjax.errors import UserError, comma_list, named, require_at_least, require_one_of, shortened
from bertjax.experiment.load import Generative
from bertjax.experiment.load import batch_tokens as tokens_per_batch
from bertjax.experiment.open_model import open_generative
from bertjax.inference.choices import NORMS, normalize, score_continuations
from bertjax.inference.text_files import JsonRecord, as_list, require_input_text
from bertjax.io.output import Summary, open_records, require_output
from bertjax.io.progress_bar import ProgressBar
from bertjax.tasks.metrics.classification import ClassificationScores, classification_scores
from bertjax.tasks.readers.tables import read_rows

CHOICE = "choice"


@dataclasses.dataclass(frozen=True)
class ChoiceTask:
    """A prompt for every example, and its possible ends.

    Attributes:
        template: text with fields of the examples in braces, which ends with {choice}.
        choices: words of every label, by label.
        label_column: field of the label.
        norm: what log-likelihoods are divided by, one of `inference.choices.NORMS`.
        separator: text between the examples of a prompt.

    Raises:
        UserError: the template or the choices cannot be used.
    """

    template: str
    choices: Mapping[str, str]
    label_column: str = "label"
    norm: str = "tokens"
    separator: str = "\n\n"

    def __post_init__(self) -> None:
        require_one_of(named("norm"), self.norm, NORMS)
        if len(self.choices) < 2:
            raise UserError(f"{named('choices')} must name at least two labels, as LABEL or LABEL=WORDS")
        for label, words in self.choices.items():
            require_input_text(f"{named('choices')} {label}", words)
        require_input_text(named("template"), self.template)
        try:
            parts = list(string.Formatter().parse(self.template))
        except ValueError as error:
            raise UserError(f"{named('template')} {self.template!r}: {error}; write {{{{ for a brace") from None
        if not parts or parts[-1][1] != CHOICE or sum(part[1] == CHOICE for part in parts) != 1:
            raise UserError(f"{named('template')} must end with {{{CHOICE}}} and hold it once, not {self.template!r}")
        if not self.fields:
            raise UserError(f"{named('template')} holds no field of the examples, such as {{text}}")

    @property
    def fields(self) -> list[str]:
        """Fields of the examples that the template reads."""
        names = [part[1] for part in string.Formatter().parse(self.template)]
        return list(dict.fromkeys(name for name in names if name and name != CHOICE))

    def prompt(self, values: Mapping[str, str], where: str) -> tuple[str, str]:
        """Returns the text before the choice, and the space between the two; `where` locates the example."""
        if not isinstance(values, Mapping):
            raise UserError(f"{where}: give a dict of fields, not {shortened(values)}")
        record = JsonRecord(where, dict(values))
        text = self.template.format(**{name: record.text(name) for name in self.fields}, **{CHOICE: ""})
        return text.rstrip(" "), text[len(text.rstrip(" ")) :]


class ChoiceResult(NamedTuple):
    """Score of every choice of every example [n, C], and metrics where the examples have labels."""

    labels: list[str]
    scores: np.ndarray
    predicted: list[str]
    metrics: ClassificationScores | None


class _Examples(NamedTuple):
    values: list[dict[str, str]]
    labels: list[str | None]


@command
def score_choices(
    model: Model,
    inputs: Sequence[Mapping[str, str]],
    *,
    template: str,
    choices: Mapping[str, str],
    labels: Sequence[str] | None = None,
    examples: Sequence[tuple[Mapping[str, str], str]] = (),
    norm: Literal["tokens", "characters", "none"] = "tokens",
    batch_tokens: BatchTokens = None,
) -> ChoiceResult:
    """Classify texts by the likelihood of each class, without or with few examples in the prompt.

    Args:
        inputs: labeled tsv, csv or jsonl, or KIND:WHERE; in Python the fields of every example, by name
        template: prompt with columns in braces, which ends with {choice}
        choices: labels, and what stands for them
        labels: labels of the inputs, for metrics
        examples: fields and label of examples that every prompt begins with
        norm: what log-likelihoods are divided by

    Returns:
        Labels, scores [n, classes], the best label of every example, and metrics where `labels` are known.

    Raises:
        UserError: the model has no likelihood, a text is too long, or the template cannot be used.

    Example:
        bertjax score-choices --model hub:gpt2 --in test.tsv --template 'Review: {text} It was {choice}' \\
            --choices negative=terrible positive=great
    """
    require_at_least(1, batch_tokens=batch_tokens)
    task, values = ChoiceTask(template, dict(choices), norm=norm), as_list("inputs", inputs)
    return _score(open_generative(model), task, values, labels, list(examples), batch_tokens)


def main(
    *,
    model: Model,
    inputs: Annotated[str, Flag("--in", metavar="FILE")],
    template: Annotated[str, Flag(metavar="TEXT")],
    choices: Annotated[Sequence[str], Flag(metavar="LABEL[=WORDS]", nargs="+")],
    label_column: Annotated[str, Flag(metavar="COLUMN")] = "label",
    train: Annotated[str | None, Flag(metavar="FILE")] = None,
    shots: Annotated[int, Flag(type=int, metavar="K")] = 0,
    seed: int = 0,
    norm: Literal["tokens", "characters", "none"] = "tokens",
    out: Out = None,
    batch_tokens: BatchTokens = None,
) -> Summary:
    """Scores the examples of a file.

    Args:
        label_column: name of the label column
        train: labeled examples to begin every prompt with
        shots: examples in the prompt (default 0)
        seed: seed of their selection
        out: a .jsonl file for the scores of every example; -: standard output
    """
    require_at_least(1, batch_tokens=batch_tokens)
    if out is not None:
        require_output(out)
    task = ChoiceTask(template, _read_choices(choices), label_column, norm)
    if shots < 0 or (shots > 0) != (train is not None):
        raise UserError(
            f"{named('shots')} and {named('train')} belong together: the number of examples in a prompt, and their file"
        )
    examples = _read(inputs, task, "inputs")
    drawn = draw_examples(_read(train, task, "train"), shots, seed) if train is not None else []
    opened, began = open_generative(model), time.monotonic()
    gold = [label for label in examples.labels if label is not None]
    result = _score(opened, task, examples.values, gold, drawn, batch_tokens)
    if out is not None:
        with open_records(out) as write:
            for index, fields in enumerate(examples.values):
                scores = dict(zip(result.labels, np.round(result.scores[index], 6).tolist(), strict=True))
                write(
                    fields | {"label": examples.labels[index], "predicted": result.predicted[index], "scores": scores}
                )
    shot = f"{shots} examples in the prompt" if shots else "no example in the prompt"
    took = time.monotonic() - began
    assert result.metrics is not None
    return Summary(
        f"{len(gold):,} examples of {len(task.choices)} classes, {shot}, in {took:.1f} s\n"
        f"accuracy {result.metrics.accuracy:.4f}  macro_f1 {result.metrics.macro_f1:.4f}"
    )


def _read_choices(texts: Sequence[str]) -> dict[str, str]:
    choices: dict[str, str] = {}
    for each in texts:
        label, equals, words = each.partition("=")
        if label in choices:
            raise UserError(f"{named('choices')} names {label} twice")
        choices[label] = words if equals else label
    return choices


def _score(
    opened: Generative,
    task: ChoiceTask,
    values: Sequence[Mapping[str, str]],
    gold: Sequence[str] | None = None,
    examples: Sequence[tuple[Mapping[str, str], str]] = (),
    tokens: int | None = None,
) -> ChoiceResult:
    """Scores the choices of every example by their likelihood after the prompt; `gold` are the labels."""
    labels = list(task.choices)
    for where, chosen in (("labels", gold or ()), ("examples", [label for _, label in examples])):
        for index, label in enumerate(chosen):
            if label not in labels:
                raise UserError(f"{where}[{index}]: label {label!r} is not one of choices {comma_list(labels)}")
    shots = [
        (*task.prompt(fields, f"examples[{index}]"), task.choices[label])
        for index, (fields, label) in enumerate(examples)
    ]
    before = "".join(f"{text}{space}{words}{task.separator}" for text, space, words in shots)
    prompts, continuations = [], []
    for index, fields in enumerate(values):
        text, space = task.prompt(fields, f"inputs[{index}]")
        prompts += [before + text] * len(labels)
        continuations += [space + task.choices[label] for label in labels]
    with ProgressBar("choices") as progress:
        likelihoods = score_continuations(
            *opened, prompts, continuations, tokens=tokens_per_batch(tokens), on_progress=progress.update
        )
    scores = normalize(likelihoods, continuations, task.norm).reshape(len(values), len(labels))
    predicted = [labels[index] for index in scores.argmax(axis=1)]
    metrics = None if gold is None else classification_scores(gold, predicted, labels)
    return ChoiceResult(labels, scores, predicted, metrics)


def draw_examples(examples: _Examples, count: int, seed: int) -> list[tuple[dict[str, str], str]]:
    """Returns `count` examples in the order of the draw, as a function of the seed.

    Args:
        examples: labeled examples.
        count: number of examples.
        seed: seed of the draw.

    Raises:
        UserError: there are fewer examples.
    """
    if count > len(examples.values):
        raise UserError(
            f"{named('shots')} {count} examples are more than the {len(examples.values)} of {named('train')}"
        )
    order = np.random.default_rng(seed).permutation(len(examples.values))[:count]
    return [(examples.values[index], str(examples.labels[index])) for index in order]


def _read(text: str, task: ChoiceTask, setting: str) -> _Examples:
    """Reads the fields and labels of a file; raises `UserError` for a label without choice."""
    flag = named(setting)
    source = parse_task_source(text if ":" in text else f"{_kind(text, flag)}:{text}", flag)
    columns = [(named("template"), name) for name in task.fields] + [(named("label_column"), task.label_column)]
    examples = _Examples([], [])
    for where, row in read_rows(source, columns):
        *values, label = ("" if each is None else str(each) for each in row)
        if label not in task.choices:
            raise UserError(f"{where}: label {label!r} is not one of {named('choices')} {comma_list(task.choices)}")
        examples.values.append(dict(zip(task.fields, values, strict=True)))
        examples.labels.append(label)
    if not examples.values:
        raise UserError(f"{flag} {text} holds no example")
    return examples


def _kind(path: str, flag: str) -> str:
    ending = bare_name(path).rpartition(".")[2]
    require_one_of(f"the ending of {flag} {path}", ending, ("jsonl", "parquet", "tsv", "csv"))
    return ending
