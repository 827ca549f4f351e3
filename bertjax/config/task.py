"""Settings of a finetuning task, whatever its kind; those of a kind are the fields of its class in `bertjax.tasks`."""

from __future__ import annotations

import dataclasses
from typing import Any, Self

from ml_collections import ConfigDict

from bertjax.config.extensions import SOURCES, TASK_KINDS
from bertjax.config.fields import Reader, Settings, setting
from bertjax.config.registry import Choices
from bertjax.config.sources import Source, parse_task_source
from bertjax.errors import UserError, named


@dataclasses.dataclass(frozen=True)
class TaskConfig(Settings, group="task"):
    """Settings of `bertjax finetune`: data, training and scoring (objective.name=task).

    Attributes:
        spec: The `TaskKind` that `kind` names, with its settings; None, or another kind: with its defaults.
    """

    kind: str = setting(
        "classification",
        choices=Choices(TASK_KINDS),
        help="classification of texts or pairs of texts, multilabel (any number of labels per text), regression, "
        "multiple_choice (the right one of several texts), tokens (a label per word), qa (the answer is a span of a "
        "context) or seq2seq (a text that follows from a "
        "text: translations, summaries).",
    )
    train: tuple[str, ...] = setting(
        (),
        help="Labeled data, KIND:PATH. Kinds: tsv, csv, jsonl, parquet, arrow, hub:NAME[:CONFIG[:SPLIT]], conll for "
        "tokens, squad for qa, parallel:SOURCE:TARGET or parallel:PREFIX:en-de (two files with an example per line) "
        "for seq2seq. Paths may be patterns; text may be compressed (.gz, .bz2, .xz, .zst).",
    )
    eval: tuple[str, ...] = setting(
        (), help="Held-out data of the same form, scored `evals_per_epoch` times per epoch; (): none."
    )
    test: tuple[str, ...] = setting(
        (),
        help="Labeled data that is scored once, at the end, with the weights that are exported; nothing is chosen by "
        "it, neither weights nor thresholds nor a point of a grid. (): none.",
        resume=True,
    )
    text_column: str | None = setting(
        None,
        help="Column of the text, by name or number (0: the first, -1: the last). None: text, or the only column of "
        "texts besides label and id; for seq2seq source, for tokens the column tokens, in CoNLL files column 0. "
        "translation.en is a field inside another one.",
    )
    pair_column: str | None = setting(None, help="Column of the second text; None: single texts.")
    label_column: str | None = setting(
        None,
        help="Column of the label. None: label; for seq2seq target, for tokens the column tags, in CoNLL files the "
        "last column.",
    )
    id_column: str | None = setting(None, help="Column of the id; None: examples are numbered.")
    labels: tuple[str, ...] = setting(
        (), help="Names of the labels in the order of their ids; (): those of the training data, sorted."
    )
    header: bool | None = setting(
        None,
        help="The first line of tsv and csv files names their columns. None: it does where a column is given by name; "
        "where all are given by number it must be set.",
    )
    swap_pairs: bool = setting(
        False, help="Train on every pair a second time with its texts swapped (ELECTRA on MRPC and STS-B)."
    )
    max_length: int = setting(128, at_least=8, help="Tokens of an example, special tokens included.")
    truncation: str = setting(
        "longest_first",
        choices=("longest_first", "only_first", "only_second"),
        help="Text that is truncated where a pair is longer than `max_length`.",
    )
    batch_size: int = setting(
        32,
        at_least=1,
        help="Examples per step. `train.batch_size`, the sequences into which they are packed, follows from it.",
    )
    epochs: float = setting(
        3.0, above=0.0, help="Passes over the training data, may be fractional; `train.num_steps` follows from it."
    )
    packing: bool = setting(
        True, help="Pack several examples into a sequence, of the length up to `max_length` that costs least."
    )
    group_by_length: bool = setting(
        False,
        help="Without `packing`: batches of examples of similar length, in sequences as long as the longest of them, "
        "rounded to one of `num_batch_shapes` lengths.",
    )
    num_batch_shapes: int | None = setting(
        None,
        at_least=1,
        at_most=8,
        help="Number of batch shapes. 1: every batch has as many sequences as the fullest one needs; 2 or 3: less "
        "padding, and the step is compiled that many times. None: 1 below 150 steps on a CPU (1,500 elsewhere), 2 "
        "below ten times as many, else 3.",
    )
    evals_per_epoch: float = setting(1.0, above=0.0, help="Evaluations and checkpoints per epoch.")
    unfreeze_epochs: float | None = setting(
        None,
        above=0.0,
        help="Gradual unfreezing: the last layer is trained after this many epochs, the next one after twice as many, "
        "and so on. None: as `optimizer.unfreeze_every` says.",
    )
    from_scratch: bool = setting(
        False,
        help="Initialize the weights at random, and take architecture and tokenizer of `init_from`; without it those "
        "of `model`, `decoder` and `data.tokenizer`: a tokenizer to train is trained on the texts of `train`.",
    )
    teacher: str | None = setting(
        None,
        help="A finetuned model with the same labels, a folder, a run or hub:NAME, whose scores of the training texts "
        "are learned, too (distillation). Any family and tokenizer; a resumed run keeps the scores that it has stored. "
        "None: the labels alone.",
        path=True,
        resume=True,
    )
    export_checkpoint: str = setting(
        "last",
        choices=("last", "best"),
        help="Weights that are scored at the end and exported. best: by `checkpoint.best_metric`, by default accuracy, "
        "pearson or f1 on `eval` (load_best_model_at_end in transformers' Trainer).",
    )
    spec: Any = None

    def __post_init__(self) -> None:
        kind = TASK_KINDS.load(self.kind)
        if not isinstance(self.spec, kind):
            object.__setattr__(self, "spec", kind())
        super().__post_init__()

    @classmethod
    def read(cls, reader: Reader) -> Self:
        return cls(spec=reader(TASK_KINDS.load(reader.values["task.kind"])), **reader.fields_of(cls))

    @property
    def column_names(self) -> tuple[str, str]:
        """Names of the columns of text and label."""
        text, label = self.spec.columns
        return self.text_column or text, self.label_column or label

    @property
    def is_pair(self) -> bool:
        """True if a window holds two texts."""
        return self.spec.is_pair or self.pair_column is not None

    def sources(self, split: str) -> tuple[Source, ...]:
        """Returns the parsed sources of `train`, `eval` or `test`."""
        return tuple(parse_task_source(text, f"task.{split}") for text in getattr(self, split))

    def check(self) -> None:
        self._check_sources()
        self._check_columns()
        self._check_labels()
        self.spec.check_task(self)
        if self.group_by_length and self.packing:
            raise UserError("task.group_by_length=true is for sequences of one example: set task.packing=false")

    def _check_sources(self) -> None:
        if not self.train:
            raise UserError(f"task.train is empty: name at least one source, such as {self.spec.example_source}")
        for split in ("train", "eval", "test"):
            sources = self.sources(split)
            for source in sources:
                if source.kind not in self.spec.source_kinds and not SOURCES.is_extension(source.kind):
                    raise UserError(
                        f"{named(f'task.{split}')}: {source.text!r} cannot hold examples of "
                        f"{named('task.kind', self.kind)}; write one of "
                        f"{', '.join(f'{name}:' for name in self.spec.source_kinds)}"
                    )
            if len({source.text for source in sources}) < len(sources):
                raise UserError(f"task.{split} names a source twice")

    def _check_columns(self) -> None:
        columns = {name: getattr(self, name) for name in ("text_column", "pair_column", "label_column", "id_column")}
        for key, column in columns.items():
            if column is not None and not column.strip():
                raise UserError(f"{named(f'task.{key}')} is blank: name a column, or set it to None")
        if self.pair_column is not None and not self.spec.takes_pairs:
            key, kind = named("task.pair_column"), named("task.kind", self.kind)
            raise UserError(f"{key}={self.pair_column!r}: {kind} reads one text; set {key} to None")
        chosen = [column for column in columns.values() if column is not None]
        if len(set(chosen)) < len(chosen):
            first, second, third, last = (named(f"task.{key}") for key in columns)
            raise UserError(f"{first}, {second}, {third} and {last} must be different columns")
        if self.swap_pairs and self.pair_column is None:
            raise UserError("task.swap_pairs=true needs two texts: set task.pair_column")
        if self.truncation == "only_second" and not self.is_pair:
            raise UserError(
                "task.truncation=only_second: a second text is missing; set task.pair_column, or "
                "task.truncation=longest_first"
            )

    def _check_labels(self) -> None:
        if self.labels and not self.spec.has_classes:
            raise UserError(f"task.labels: task.kind={self.kind} has none; leave it empty")
        if len(set(self.labels)) < len(self.labels):
            raise UserError("task.labels names a label twice")
        if len(self.labels) == 1 and not self.spec.many_labels:
            raise UserError("task.labels has one label: a task needs at least two")
        if any(label != label.strip() or not label for label in self.labels):
            raise UserError("task.labels: a label is blank, or has blanks around it")
        if self.export_checkpoint == "best" and not self.eval:
            raise UserError("task.export_checkpoint=best needs held-out scores: set task.eval, or choose last")


def task_kind(cfg: ConfigDict) -> Any:
    """Returns the `TaskKind` that `task.kind` names, with its settings."""
    return Reader(cfg)(TASK_KINDS.load(cfg.task.kind))


def task_config(cfg: ConfigDict) -> TaskConfig:
    """Returns the settings of `task`, with those of its kind."""
    return Reader(cfg)(TaskConfig)
