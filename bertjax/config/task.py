"""Settings of a finetuning task. Imports no jax, so that a wrong config is refused at once."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from ml_collections import ConfigDict

from bertjax.config.extensions import SOURCES, TASK_KINDS
from bertjax.config.fields import Settings, read_group, setting
from bertjax.config.registry import Choices
from bertjax.config.sources import Source, parse_task_source
from bertjax.errors import UserError

PLAIN_TAGS = "plain"
MAX_SPECIAL_TOKENS = 4  # <s> A </s></s> B </s>


@dataclasses.dataclass(frozen=True)
class TaskKind(Settings):
    """Base of the settings that one kind of task alone reads, with what other packages need to know of the kind.

    Attributes:
        name: Name of the kind, with which the names of its metrics begin.
        title: The kind in words.
        task_class: `"package.module:Class"` of the `TaskMethods`, imported only when it is used.
        head: Head of the model: sequence_classification, token_classification or question_answering.
        main_metric: Metric of most tasks of the kind that selects the best checkpoint; see `metric`.
        metrics: Held-out metrics by name: (unit, meaning).
        label_array: Array of `Features.labels` that the loss reads.
        has_classes: Whether labels are named classes (`task.labels`, `task.class_weights`).
        output_labels: Names of the outputs of a head without classes; None: those of the model stay.
        per_token: Whether the head scores tokens instead of examples.
        reads_texts: Whether an example is a text or a pair of texts in columns of the user's choice.
        source_kinds: Kinds of sources that can hold such examples.
        example_source: A source as it is written in `task.train`.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    task_class: ClassVar[str]
    head: ClassVar[str]
    main_metric: ClassVar[str]
    metrics: ClassVar[dict[str, tuple[str, str]]] = {}
    label_array: ClassVar[str]
    has_classes: ClassVar[bool] = False
    output_labels: ClassVar[tuple[str, ...] | None] = None
    per_token: ClassVar[bool] = False
    reads_texts: ClassVar[bool] = False
    source_kinds: ClassVar[tuple[str, ...]] = ("tsv", "csv", "jsonl", "hub")
    example_source: ClassVar[str] = "tsv:train.tsv"

    @classmethod
    def metric(cls, task: Any) -> str:
        """Returns the metric that selects the best checkpoint unless `checkpoint.best_metric` is set.

        `task` holds the settings of the task, as a `TaskConfig` or as the group of a ConfigDict.
        """
        return cls.main_metric


@dataclasses.dataclass(frozen=True)
class ClassificationConfig(TaskKind, group="task.classification"):
    """Classes of texts or pairs of texts; has no settings of its own."""

    name, title, head = "classification", "classification", "sequence_classification"
    task_class = "bertjax.finetuning.tasks:Classification"
    main_metric, label_array = "accuracy", "class_labels"
    metrics: ClassVar[dict[str, tuple[str, str]]] = {
        "accuracy": ("share", "Examples with the right class."),
        "f1": ("share", "F1 of the second of two classes (GLUE)."),
        "macro_f1": ("share", "Mean F1 of the classes that occur."),
        "matthews": ("-1 to 1", "Matthews correlation (CoLA)."),
    }
    has_classes = reads_texts = True


@dataclasses.dataclass(frozen=True)
class RegressionConfig(TaskKind, group="task.regression"):
    """A number per text or pair of texts; has no settings of its own."""

    name, title, head = "regression", "regression", "sequence_classification"
    task_class = "bertjax.finetuning.tasks:Regression"
    main_metric, label_array = "pearson", "score_labels"
    metrics: ClassVar[dict[str, tuple[str, str]]] = {
        "pearson": ("-1 to 1", "Pearson's correlation; nan where it is undefined."),
        "spearman": ("-1 to 1", "Spearman's rank correlation; nan where it is undefined."),
        "mse": ("squared label", "Mean squared error."),
    }
    output_labels = ("LABEL_0",)
    reads_texts = True


@dataclasses.dataclass(frozen=True)
class TokensConfig(TaskKind, group="task.tokens"):
    """A label per word: named entities, parts of speech."""

    name, title, head = "tokens", "token classification", "token_classification"
    task_class = "bertjax.finetuning.tasks:TokenClassification"
    main_metric, label_array = "f1", "token_labels"
    metrics: ClassVar[dict[str, tuple[str, str]]] = {
        "precision": ("share", "Predicted entities that are right: type and both ends."),
        "recall": ("share", "Gold entities that are predicted."),
        "f1": ("share", "F1 of entities, as in seqeval."),
        "macro_f1": ("share", "Mean F1 of the types; of plain labels, of the labels."),
        "accuracy": ("share", "Words with the right label."),
    }
    has_classes = per_token = True
    source_kinds, example_source = ("conll", "jsonl", "hub"), "conll:train.txt"

    tag_scheme: str = setting(
        "auto",
        choices=("auto", "iob2", "iob1", "bioes", "bilou", "bmes", PLAIN_TAGS),
        help="Scheme of the labels. iob1 is converted to IOB2; plain: labels that mark no entities, scored word by "
        "word; auto: recognised and printed.",
    )

    @classmethod
    def metric(cls, task: Any) -> str:
        return "accuracy" if task.tokens.tag_scheme == PLAIN_TAGS else cls.main_metric


@dataclasses.dataclass(frozen=True)
class QaConfig(TaskKind, group="task.qa"):
    """Questions that are answered with a span of a context (SQuAD)."""

    name, title, head = "qa", "extractive question answering", "question_answering"
    task_class = "bertjax.finetuning.tasks:QuestionAnswering"
    main_metric, label_array = "f1", "start_labels"
    metrics: ClassVar[dict[str, tuple[str, str]]] = {
        "exact_match": ("percent", "Answers that equal a gold answer, as in SQuAD's scripts."),
        "f1": ("percent", "Mean F1 of the words of the answers, as in SQuAD's scripts."),
        "has_answer_exact_match": ("percent", "The same of the questions that have an answer."),
        "has_answer_f1": ("percent", "The same of the questions that have an answer."),
        "no_answer_exact_match": ("percent", "The same of the questions that have none."),
        "no_answer_f1": ("percent", "The same of the questions that have none."),
        "best_exact_match": ("percent", "With the threshold for no answer that is best on these questions."),
        "best_exact_match_threshold": ("logits", "That threshold."),
        "best_f1": ("percent", "With the threshold for no answer that is best on these questions."),
        "best_f1_threshold": ("logits", "That threshold."),
    }
    per_token = True
    source_kinds, example_source = ("squad", "jsonl", "hub"), "squad:train-v1.1.json"

    doc_stride: int = setting(
        128,
        at_least=0,
        help="Tokens that two windows of a context share, as in transformers' run_qa (google-research/bert's flag of "
        "this name is the step between windows).",
    )
    max_question_length: int = setting(64, at_least=1, help="Tokens of a question; the rest is cut off.")
    max_answer_length: int = setting(30, at_least=1, help="Tokens of an answer.")
    n_best_size: int = setting(20, at_least=1, help="Candidate answers kept per question.")
    allow_no_answer: bool = setting(
        False, help="Questions may have no answer (SQuAD 2.0; version_2_with_negative in transformers' run_qa)."
    )
    skip_invalid: bool = setting(
        False,
        help="Leave out questions that cannot be read (no answer, an answer that is not text) and print how many; "
        "false: the first one is an error.",
    )
    null_score_diff_threshold: float = setting(
        0.0, help="Margin by which the score of no answer must exceed that of the best span to predict no answer."
    )


@dataclasses.dataclass(frozen=True)
class TaskConfig(Settings, group="task"):
    """Settings of `bertjax finetune`: data, training and scoring (objective.name=task)."""

    kind: str = setting(
        "classification",
        choices=Choices(TASK_KINDS),
        help="classification of texts or pairs of texts, regression, tokens (a label per word) or qa (the answer is a "
        "span of a context).",
    )
    train: tuple[str, ...] = setting(
        (),
        help="Labelled data, KIND:PATH. Kinds: tsv, csv, jsonl, hub:NAME[:CONFIG[:SPLIT]], conll for tokens, squad for "
        "qa. Paths may be patterns and end in .gz.",
    )
    eval: tuple[str, ...] = setting(
        (), help="Held-out data of the same form, scored `evals_per_epoch` times per epoch; (): none."
    )
    text_column: str | None = setting(
        None,
        help="Column of the text, by name or number (0: the first, -1: the last). None: text; for tokens the column "
        "tokens, in CoNLL files column 0.",
    )
    pair_column: str | None = setting(None, help="Column of the second text; None: single texts.")
    label_column: str | None = setting(
        None, help="Column of the label. None: label; for tokens the column tags, in CoNLL files the last column."
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
    packing: bool = setting(True, help="Pack several examples into a sequence of `max_length` tokens.")
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
        False, help="Take architecture and tokenizer of `init_from`, and initialise the weights at random."
    )
    export_checkpoint: str = setting(
        "last",
        choices=("last", "best"),
        help="Weights that are scored at the end and exported. best: by `checkpoint.best_metric`, by default accuracy, "
        "pearson or f1 on `eval` (load_best_model_at_end in transformers' Trainer).",
    )
    settings: TaskKind | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.settings, self.spec):
            object.__setattr__(self, "settings", self.spec())
        super().__post_init__()

    @property
    def spec(self) -> type[TaskKind]:
        """Facts about the kind; `settings` is an instance of it."""
        return TASK_KINDS.load(self.kind)

    @property
    def tokens(self) -> TokensConfig:
        """Settings of `task.tokens`, the defaults for other kinds."""
        return self.settings if isinstance(self.settings, TokensConfig) else TokensConfig()

    @property
    def qa(self) -> QaConfig:
        """Settings of `task.qa`, the defaults for other kinds."""
        return self.settings if isinstance(self.settings, QaConfig) else QaConfig()

    @property
    def is_pair(self) -> bool:
        """True if a window holds two texts."""
        return self.spec is QaConfig or self.pair_column is not None

    def sources(self, split: str) -> tuple[Source, ...]:
        """Returns the parsed sources of `train` or `eval`."""
        return tuple(parse_task_source(text, f"task.{split}") for text in getattr(self, split))

    def check(self) -> None:
        self._check_sources()
        self._check_columns()
        self._check_labels()
        if self.spec is QaConfig:
            self._check_windows()

    def _check_sources(self) -> None:
        if not self.train:
            raise UserError(f"task.train is empty: name at least one source, such as {self.spec.example_source}")
        for split in ("train", "eval"):
            sources = self.sources(split)
            for source in sources:
                if source.kind not in self.spec.source_kinds and not SOURCES.is_extension(source.kind):
                    raise UserError(
                        f"task.{split}: {source.text!r} cannot hold examples of task.kind={self.kind}; write one of "
                        f"{', '.join(f'{name}:' for name in self.spec.source_kinds)}"
                    )
            if len({source.text for source in sources}) < len(sources):
                raise UserError(f"task.{split} names a source twice")

    def _check_columns(self) -> None:
        columns = {name: getattr(self, name) for name in ("text_column", "pair_column", "label_column", "id_column")}
        for key, column in columns.items():
            if column is not None and not column.strip():
                raise UserError(f"task.{key} is blank: name a column, or set it to None")
            if column is not None and self.spec is QaConfig:
                raise UserError(
                    f"task.{key}={column!r}: the columns of task.kind=qa have fixed names (id, question, context, "
                    f"answers); set task.{key} to None"
                )
        if self.spec is TokensConfig and self.pair_column is not None:
            raise UserError(
                f"task.pair_column={self.pair_column!r}: task.kind=tokens reads one text; set task.pair_column to None"
            )
        named = [column for column in columns.values() if column is not None]
        if len(set(named)) < len(named):
            raise UserError(
                "task.text_column, task.pair_column, task.label_column and task.id_column must be different columns"
            )
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
        if len(self.labels) == 1:
            raise UserError("task.labels has one label: a task needs at least two")
        if any(label != label.strip() or not label for label in self.labels):
            raise UserError("task.labels: a label is blank, or has blanks around it")
        if self.export_checkpoint == "best" and not self.eval:
            raise UserError("task.export_checkpoint=best needs held-out scores: set task.eval, or choose last")

    def _check_windows(self) -> None:
        needed = self.qa.max_question_length + self.qa.doc_stride + MAX_SPECIAL_TOKENS
        if self.max_length <= needed:
            raise UserError(
                f"task.max_length={self.max_length} leaves no tokens for the context: it must exceed "
                f"task.qa.max_question_length + task.qa.doc_stride + {MAX_SPECIAL_TOKENS} special tokens = {needed}"
            )


def task_config(cfg: ConfigDict) -> TaskConfig:
    """Returns the settings of `task`, with those of its kind."""
    return read_group(cfg, TaskConfig, settings=read_group(cfg, TASK_KINDS.load(cfg.task.kind)))
