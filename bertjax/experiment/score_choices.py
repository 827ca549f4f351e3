"""Classes by likelihood: zero-shot and few-shot classification with a model that generates."""

from __future__ import annotations

import dataclasses
import string
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from bertjax.compression import bare_name
from bertjax.config.sources import parse_task_source
from bertjax.errors import UserError, comma_list, require_one_of, shortened
from bertjax.experiment.load import Generative, batch_tokens, load_generative, require_batch_tokens
from bertjax.finetuning.metrics.classification import ClassificationScores, classification_scores
from bertjax.finetuning.readers.tables import read_rows
from bertjax.inference.choices import NORMS, normalize, score_continuations
from bertjax.inference.text_files import JsonRecord, require_text
from bertjax.io.jsonl import STDIN
from bertjax.io.output import open_records
from bertjax.io.progress_bar import ProgressBar

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
        require_one_of("--norm", self.norm, NORMS)
        if len(self.choices) < 2:
            raise UserError("--choices must name at least two labels, as LABEL or LABEL=WORDS")
        for label, words in self.choices.items():
            require_text(f"--choices {label}", words)
        require_text("--template", self.template)
        try:
            parts = list(string.Formatter().parse(self.template))
        except ValueError as error:
            raise UserError(f"--template {self.template!r}: {error}; write {{{{ for a brace") from None
        if not parts or parts[-1][1] != CHOICE or sum(part[1] == CHOICE for part in parts) != 1:
            raise UserError(f"--template must end with {{{CHOICE}}} and hold it once, not {self.template!r}")
        if not self.fields:
            raise UserError("--template holds no field of the examples, such as {text}")

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


def score_examples(
    opened: Generative,
    task: ChoiceTask,
    values: Sequence[Mapping[str, str]],
    gold: Sequence[str] | None = None,
    examples: Sequence[tuple[Mapping[str, str], str]] = (),
    tokens: int | None = None,
) -> ChoiceResult:
    """Scores the choices of every example by their likelihood after the prompt.

    Args:
        opened: the model with its tokenizer.
        task: template and choices.
        values: fields of the examples.
        gold: their labels, for metrics.
        examples: examples with labels that every prompt begins with.
        tokens: tokens per batch.
    """
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
            *opened, prompts, continuations, tokens=batch_tokens(tokens), on_progress=progress.update
        )
    scores = normalize(likelihoods, continuations, task.norm).reshape(len(values), len(labels))
    predicted = [labels[index] for index in scores.argmax(axis=1)]
    metrics = None if gold is None else classification_scores(gold, predicted, labels)
    return ChoiceResult(labels, scores, predicted, metrics)


def score_choices(
    folder: Path,
    source: str,
    task: ChoiceTask,
    train: str | None,
    shots: int,
    seed: int,
    out: str | None,
    tokens: int | None,
) -> ChoiceResult:
    """Prints accuracy and macro-F1, and writes the scores of every example.

    Args:
        folder: a Hugging Face folder, an export or a work directory.
        source: the examples, as a file or KIND:WHERE as in task.train.
        task: template and choices.
        train: labelled examples that prompts begin with; None: none.
        shots: number of them.
        seed: seed of their choice.
        out: a .jsonl file; "-": standard output; None: none.
        tokens: tokens per batch.

    Raises:
        UserError: a file or the model cannot be read, or a text is too long.
    """
    require_batch_tokens(tokens)
    if shots < 0 or (shots > 0) != (train is not None):
        raise UserError("--shots and --train belong together: the number of examples in a prompt, and their file")
    examples = _read(source, task, "--in")
    drawn = draw_examples(_read(train, task, "--train"), shots, seed) if train is not None else []
    opened, began = load_generative(folder), time.monotonic()
    gold = [label for label in examples.labels if label is not None]
    result = score_examples(opened, task, examples.values, gold, drawn, tokens)
    if out is not None:
        with open_records(out) as write:
            for index, fields in enumerate(examples.values):
                scores = dict(zip(result.labels, np.round(result.scores[index], 6).tolist(), strict=True))
                write(
                    fields | {"label": examples.labels[index], "predicted": result.predicted[index], "scores": scores}
                )
    shown: IO[str] = sys.stderr if out == STDIN else sys.stdout
    shot = f"{shots} examples in the prompt" if shots else "no example in the prompt"
    took = time.monotonic() - began
    print(f"{len(gold):,} examples of {len(task.choices)} classes, {shot}, in {took:.1f} s", file=shown)
    assert result.metrics is not None
    print(f"accuracy {result.metrics.accuracy:.4f}  macro_f1 {result.metrics.macro_f1:.4f}", file=shown)
    return result


def draw_examples(examples: _Examples, count: int, seed: int) -> list[tuple[dict[str, str], str]]:
    """Returns `count` examples in the order of the draw, as a function of the seed.

    Args:
        examples: labelled examples.
        count: number of examples.
        seed: seed of the draw.

    Raises:
        UserError: there are fewer examples.
    """
    if count > len(examples.values):
        raise UserError(f"--shots {count} examples are more than the {len(examples.values)} of --train")
    order = np.random.default_rng(seed).permutation(len(examples.values))[:count]
    return [(examples.values[index], str(examples.labels[index])) for index in order]


def _read(text: str, task: ChoiceTask, flag: str) -> _Examples:
    """Reads the fields and labels of a file; raises `UserError` for a label without choice."""
    source = parse_task_source(text if ":" in text else f"{_kind(text, flag)}:{text}", flag)
    columns = [("--template", name) for name in task.fields] + [("--label-column", task.label_column)]
    examples = _Examples([], [])
    for where, row in read_rows(source, columns):
        *values, label = ("" if each is None else str(each) for each in row)
        if label not in task.choices:
            raise UserError(f"{where}: label {label!r} is not one of --choices {comma_list(task.choices)}")
        examples.values.append(dict(zip(task.fields, values, strict=True)))
        examples.labels.append(label)
    if not examples.values:
        raise UserError(f"{flag} {text} holds no example")
    return examples


def _kind(path: str, flag: str) -> str:
    ending = bare_name(path).rpartition(".")[2]
    require_one_of(f"the ending of {flag} {path}", ending, ("jsonl", "parquet", "tsv", "csv"))
    return ending
