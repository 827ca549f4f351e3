"""What a finetuning task can be told, checked once. Needs no jax, so that a wrong config is refused at once."""

from __future__ import annotations

import dataclasses
import math

from bertjax.config.task_sources import TaskSource, parse_task_source
from bertjax.errors import UserError, require_one_of

KINDS = ("classification", "regression", "tokens", "qa")
CUTS = ("longest_first", "only_first", "only_second")
TAG_SCHEMES = ("auto", "iob2", "iob1", "plain")
SOURCES_OF = {
    "classification": ("tsv", "csv", "jsonl", "hub"),
    "regression": ("tsv", "csv", "jsonl", "hub"),
    "tokens": ("conll", "jsonl", "hub"),
    "qa": ("squad", "jsonl", "hub"),
}
_EXAMPLES = {
    "classification": "tsv:train.tsv",
    "regression": "tsv:train.tsv",
    "tokens": "conll:train.txt",
    "qa": "squad:train-v1.1.json",
}
MAIN_FIGURE = {"classification": "accuracy", "regression": "pearson", "tokens": "f1", "qa": "f1"}
"""The figure by which the best weights are chosen, where the config names none."""
MOST_ROW_COUNTS = 8
MOST_SPECIALS = 4  # <s> A </s></s> B </s>


@dataclasses.dataclass(frozen=True)
class TaskConfig:
    """What `task` of a config says; every field is a key, explained in `bertjax/config/defaults/task.py`.

    kind: one of `KINDS` · train, eval: sources, `KIND:WHERE` (`readers/sources.py`) · text, pair, label, id: columns by
    name, or by number where the file has no name for them (0 = the first, -1 = the last); None: the habit of the kind
    (text, no pair, label; tokens and tags, in CoNLL files columns 0 and -1), ids are numbers of examples · labels:
    names in the order of their numbers, () = sorted from the training data · header: whether the first line of tsv and
    csv files names their columns · swap_pairs: train on every pair a second time, the other way round (ELECTRA's MRPC
    and STS) · tags: what the tags of words are (`readers/tags.py`).

    max_len: tokens of a window, special pieces included · cut: which text gives way where an example is longer ·
    doc_stride: tokens that two windows of a context share, as in transformers' run_qa (BERT's flag of that name is the
    step between windows) · max_question_len: tokens of a question, the rest is cut · max_answer_len: tokens of an
    answer · n_best: answers kept of every question · no_answer: questions may have none (SQuAD 2.0) · null_threshold:
    by how much the score of no answer must exceed that of the best answer to be given.

    batch_size: windows of an update · epochs: passes over the training data, need not be whole · packing: whether
    windows share rows · row_counts: different numbers of rows that batches come in, None = by the number of updates.
    """

    kind: str
    train: tuple[str, ...]
    eval: tuple[str, ...] = ()
    text: str | None = None
    pair: str | None = None
    label: str | None = None
    id: str | None = None
    labels: tuple[str, ...] = ()
    header: bool = True
    swap_pairs: bool = False
    tags: str = "auto"
    max_len: int = 128
    cut: str = "longest_first"
    doc_stride: int = 128
    max_question_len: int = 64
    max_answer_len: int = 30
    n_best: int = 20
    no_answer: bool = False
    null_threshold: float = 0.0
    batch_size: int = 32
    epochs: float = 3.0
    packing: bool = True
    num_batch_shapes: int | None = None

    def __post_init__(self) -> None:
        require_one_of("task.kind", self.kind, KINDS)
        require_one_of("task.cut", self.cut, CUTS)
        require_one_of("task.tags", self.tags, TAG_SCHEMES)
        self._check_sources()
        self._check_columns()
        self._check_labels()
        self._check_numbers()
        if self.kind == "qa":
            self._check_windows()

    @property
    def is_pair(self) -> bool:
        """Whether a window holds two texts."""
        return self.kind == "qa" or self.pair is not None

    def sources(self, split: str) -> tuple[TaskSource, ...]:
        """The parsed sources of `train` or `eval`."""
        return tuple(parse_task_source(text, f"task.{split}") for text in getattr(self, split))

    def _check_sources(self) -> None:
        if not self.train:
            raise UserError(f"task.train is empty: name at least one source, such as {_EXAMPLES[self.kind]}")
        for split in ("train", "eval"):
            found = self.sources(split)
            for source in found:
                if source.kind not in SOURCES_OF[self.kind]:
                    raise UserError(
                        f"task.{split}: {source.text!r} holds no task.kind={self.kind}; for that write one of "
                        f"{', '.join(f'{name}:' for name in SOURCES_OF[self.kind])}"
                    )
            if len({source.text for source in found}) < len(found):
                raise UserError(f"task.{split} names a source twice")

    def _check_columns(self) -> None:
        chosen = {"text": self.text, "pair": self.pair, "label": self.label, "id": self.id}
        for key, column in chosen.items():
            if column is not None and not column.strip():
                raise UserError(f"task.{key} is blank: name a column, or set it to None")
            if column is not None and self.kind == "qa":
                raise UserError(
                    f"task.{key}={column!r}: the columns of task.kind=qa have fixed names (id, question, context, "
                    f"answers); set task.{key} to None"
                )
        if self.kind == "tokens" and self.pair is not None:
            raise UserError(f"task.pair={self.pair!r}: task.kind=tokens reads one text; set task.pair to None")
        named = [column for column in chosen.values() if column is not None]
        if len(set(named)) < len(named):
            raise UserError("task.text, task.pair, task.label and task.id must be different columns")
        if self.swap_pairs and self.pair is None:
            raise UserError("task.swap_pairs=true needs two texts: set task.pair")
        if self.cut == "only_second" and not self.is_pair:
            raise UserError("task.cut=only_second: there is no second text; set task.pair, or task.cut=longest_first")

    def _check_labels(self) -> None:
        if self.labels and self.kind in ("regression", "qa"):
            raise UserError(f"task.labels: task.kind={self.kind} has none; leave it empty")
        if len(set(self.labels)) < len(self.labels):
            raise UserError("task.labels names a label twice")
        if len(self.labels) == 1:
            raise UserError("task.labels has one label: a task needs two to tell apart")
        if any(label != label.strip() or not label for label in self.labels):
            raise UserError("task.labels: a label is blank, or has blanks around it")

    def _check_numbers(self) -> None:
        at_least = {"max_len": 8, "max_question_len": 1, "max_answer_len": 1, "n_best": 1, "batch_size": 1}
        for key, least in at_least.items():
            if getattr(self, key) < least:
                raise UserError(f"task.{key} must be at least {least}, not {getattr(self, key)}")
        if self.num_batch_shapes is not None and not 1 <= self.num_batch_shapes <= MOST_ROW_COUNTS:
            raise UserError(f"task.row_counts must be 1 to {MOST_ROW_COUNTS}, or None, not {self.num_batch_shapes}")
        if self.doc_stride < 0:
            raise UserError(f"task.doc_stride must not be negative, not {self.doc_stride}")
        if not (self.epochs > 0 and math.isfinite(self.epochs)):
            raise UserError(f"task.epochs must be above 0, not {self.epochs}")
        if math.isnan(self.null_threshold):
            raise UserError("task.null_threshold must be a number")

    def _check_windows(self) -> None:
        needed = self.max_question_len + self.doc_stride + MOST_SPECIALS
        if self.max_len <= needed:
            raise UserError(
                f"task.max_len={self.max_len} leaves no room for the context: it must exceed task.max_question_len + "
                f"task.doc_stride + {MOST_SPECIALS} special pieces = {needed}"
            )
