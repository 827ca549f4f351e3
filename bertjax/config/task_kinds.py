"""Kinds of finetuning tasks: the settings that one kind alone reads, and facts about it. Imports no jax."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from ml_collections import ConfigDict

from bertjax.config.extensions import TASK_KINDS
from bertjax.config.fields import Settings, read_group, setting
from bertjax.errors import UserError

PLAIN_TAGS = "plain"

_RECORDS = ("jsonl", "parquet", "arrow", "hub")


@dataclasses.dataclass(frozen=True)
class TaskKind(Settings):
    """Base of the settings that one kind of task alone reads, with what other packages need to know of the kind.

    Attributes:
        name: Name of the kind, with which the names of its metrics begin.
        title: The kind in words.
        task_class: `"package.module:Class"` of the `TaskMethods`, imported only when it is used.
        head: Head of the model: sequence_classification, token_classification, question_answering or seq2seq, an
            encoder-decoder.
        objective_class: `"package.module:Class"` of the objective, imported only when it is used.
        evaluator_class: That of the `Evaluator` of held-out examples.
        main_metric: Metric of most tasks of the kind that selects the best checkpoint; see `metric`.
        metrics: Held-out metrics by name: (unit, meaning).
        label_array: Array of `Features.labels` that the loss reads.
        columns: Names of the columns of text and label by default.
        has_targets: Whether labels are texts, which a decoder predicts.
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
    objective_class: ClassVar[str] = "bertjax.finetuning.objective:TaskObjective"
    evaluator_class: ClassVar[str] = "bertjax.finetuning.evaluate:HeadEvaluator"
    main_metric: ClassVar[str]
    metrics: ClassVar[dict[str, tuple[str, str]]] = {}
    label_array: ClassVar[str]
    columns: ClassVar[tuple[str, str]] = ("text", "label")
    has_targets: ClassVar[bool] = False
    has_classes: ClassVar[bool] = False
    output_labels: ClassVar[tuple[str, ...] | None] = None
    per_token: ClassVar[bool] = False
    reads_texts: ClassVar[bool] = False
    source_kinds: ClassVar[tuple[str, ...]] = ("tsv", "csv", *_RECORDS)
    example_source: ClassVar[str] = "tsv:train.tsv"

    @classmethod
    def from_config(cls, cfg: ConfigDict) -> Self:
        """Reads the settings of the kind from a whole config."""
        return read_group(cfg, cls)

    @property
    def config_keys(self) -> Mapping[str, Any]:
        """Further keys of config.json of an export: what libraries make of the head's outputs."""
        return {}

    @property
    def tuning_fraction(self) -> float:
        """Share of the training examples that `TaskMethods.tune` gets instead of training; 0: nothing is tuned."""
        return 0.0

    @property
    def generation(self) -> dict[str, Any]:
        """Settings of the generation of texts, for generation_config.json; {} where no text is generated."""
        return {}

    @classmethod
    def metric(cls, task: Any) -> str:
        """Returns the metric that selects the best checkpoint unless `checkpoint.best_metric` is set.

        `task` holds the settings of the task, as a `TaskConfig` or as the group of a ConfigDict.
        """
        return cls.main_metric


@dataclasses.dataclass(frozen=True)
class ClassificationConfig(TaskKind, group="task.classification"):
    """Classes of texts or pairs of texts."""

    name, title, head = "classification", "classification", "sequence_classification"
    task_class = "bertjax.finetuning.tasks:Classification"
    main_metric, label_array = "accuracy", "class_labels"
    metrics: ClassVar[dict[str, tuple[str, str]]] = {
        "accuracy": ("share", "Examples with the right class."),
        "f1": ("share", "F1 of the second of two classes (GLUE)."),
        "macro_f1": ("share", "Mean F1 of the classes that occur."),
        "matthews": ("-1 to 1", "Matthews correlation (CoLA)."),
        "calibration_error": ("share", "Mean difference of confidence and accuracy, in 15 bins of confidence (ECE)."),
    }
    has_classes = reads_texts = True

    calibrate: bool = setting(
        False,
        help="Fit the temperature that makes probabilities right, on examples of `tune_fraction`: classes stay the "
        "same. Exports hold it in their last layer, so that every library computes calibrated probabilities.",
    )
    tune_fraction: float = setting(
        0.1, above=0.0, below=1.0, help="Share of the training examples that calibrate and are not trained on."
    )
    temperature: float = setting(
        1.0, above=0.0, resume=True, help="Scores are divided by it before the softmax. A fitted one replaces it."
    )

    @property
    def tuning_fraction(self) -> float:
        return self.tune_fraction if self.calibrate else 0.0


@dataclasses.dataclass(frozen=True)
class MultilabelConfig(TaskKind, group="task.multilabel"):
    """Any number of labels per text or pair of texts (GoEmotions, arXiv:2005.00547)."""

    name, title, head = "multilabel", "multi-label classification", "sequence_classification"
    task_class = "bertjax.finetuning.multilabel:MultilabelTask"
    main_metric, label_array = "micro_f1", "multi_labels"
    metrics: ClassVar[dict[str, tuple[str, str]]] = {
        "micro_f1": ("share", "F1 of all decisions together."),
        "macro_f1": ("share", "Mean F1 of the labels (of classification: of those that occur)."),
        "samples_f1": ("share", "Mean F1 of the examples."),
        "map": ("share", "Mean average precision of the labels: needs no threshold."),
        "exact_match": ("share", "Examples whose labels are all right."),
    }
    has_classes = reads_texts = True

    separator: str = setting(
        ",", help="Separates the labels of an example where `label_column` holds text; lists need none."
    )
    label_columns: tuple[str, ...] = setting(
        (),
        help="Columns with a label each, 0 or 1 per example, in the order of their ids; they name the labels unless "
        "`task.labels` does. (): `label_column` holds the labels.",
    )
    thresholds: tuple[float, ...] = setting(
        (0.5,),
        above=0.0,
        below=1.0,
        resume=True,
        help="Probability from which a label is predicted: one for all, or one per label. Tuned ones replace it.",
    )
    tune_thresholds: str = setting(
        "none",
        choices=("none", "one", "per_label"),
        help="one: the threshold with the best micro F1; per_label: of every label that with its best F1. Examples of "
        "`tune_fraction` decide; the run and its export store the thresholds of the exported weights.",
    )
    tune_fraction: float = setting(
        0.1, above=0.0, below=1.0, help="Share of the training examples that tune thresholds and are not trained on."
    )

    def check(self) -> None:
        if not self.separator:
            raise UserError("task.multilabel.separator is empty: name the text between two labels, such as ,")
        if not self.thresholds:
            raise UserError("task.multilabel.thresholds is empty: give one number, or one per label")
        if len(set(self.label_columns)) < len(self.label_columns):
            raise UserError("task.multilabel.label_columns names a column twice")

    @property
    def config_keys(self) -> Mapping[str, Any]:
        tuned = {} if self.thresholds == (0.5,) else {"thresholds": list(self.thresholds)}
        return {"problem_type": "multi_label_classification", **tuned}

    @property
    def tuning_fraction(self) -> float:
        return 0.0 if self.tune_thresholds == "none" else self.tune_fraction


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

    @property
    def config_keys(self) -> Mapping[str, Any]:
        # Without them a pipeline and a CrossEncoder take the sigmoid of a single output.
        activation = {"activation_fn": "torch.nn.modules.linear.Identity"}
        return {"problem_type": "regression", "sentence_transformers": activation}


@dataclasses.dataclass(frozen=True)
class MultipleChoiceConfig(TaskKind, group="task.multiple_choice"):
    """The right one of several choices, as in SWAG (arXiv:1808.05326) and RACE (arXiv:1704.04683)."""

    name, title, head = "multiple_choice", "multiple choice", "multiple_choice"
    task_class = "bertjax.finetuning.multiple_choice:MultipleChoiceTask"
    evaluator_class = "bertjax.finetuning.multiple_choice:ChoiceEvaluator"
    main_metric, label_array = "accuracy", "choice_labels"
    metrics: ClassVar[dict[str, tuple[str, str]]] = {"accuracy": ("share", "Examples whose choice is right.")}
    columns: ClassVar[tuple[str, str]] = ("context", "label")

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
    source_kinds, example_source = ("conll", *_RECORDS), "conll:train.txt"

    tag_scheme: str = setting(
        "auto",
        choices=("auto", "iob2", "iob1", "bioes", "bilou", "bmes", PLAIN_TAGS),
        help="Scheme of the labels. iob1 is converted to IOB2; plain: labels that mark no entities, scored word by "
        "word; auto: recognized and printed.",
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
    source_kinds, example_source = ("squad", *_RECORDS), "squad:train-v1.1.json"

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
class Seq2SeqTaskConfig(TaskKind, group="task.seq2seq"):
    """Texts that follow from texts: translations, summaries; see also `decoder` and `objective.seq2seq`."""

    name, title, head = "seq2seq", "sequence to sequence", "seq2seq"
    task_class = "bertjax.finetuning.seq2seq:SequenceToSequenceTask"
    objective_class = "bertjax.finetuning.seq2seq:Seq2SeqTaskObjective"
    evaluator_class = "bertjax.finetuning.seq2seq_evaluation:GenerationEvaluator"
    main_metric, label_array = "seq2seq_nll", "target_ids"
    metrics: ClassVar[dict[str, tuple[str, str]]] = {
        "seq2seq_nll": ("nats", "Mean negative log-likelihood of the target tokens, without label smoothing."),
        "perplexity": ("1", "exp of that."),
        "bleu": ("0 to 100", "BLEU of the generated texts (sacrebleu)."),
        "chrf": ("0 to 100", "chrF2 of the generated texts (sacrebleu)."),
        "rouge1": ("0 to 100", "F1 of words (rouge-score)."),
        "rouge2": ("0 to 100", "F1 of pairs of words (rouge-score)."),
        "rougeL": ("0 to 100", "F1 of the longest common subsequence of words (rouge-score)."),
        "generated_length": ("tokens", "Mean length of the generated texts."),
    }
    columns = ("source", "target")
    has_targets = reads_texts = True
    source_kinds, example_source = ("parallel", "tsv", "csv", *_RECORDS), "parallel:train:en-de"

    max_target_length: int = setting(128, at_least=2, help="Tokens of a target, its end token included.")
    source_prefix: str = setting(
        "", help='Text before every source, such as T5\'s "translate English to German: "; "": none.'
    )
    text_metrics: tuple[str, ...] = setting(
        ("bleu", "chrf"),
        choices=("bleu", "chrf", "rouge"),
        help="Metrics of generated texts; the first one selects the best checkpoint. (): nothing is generated.",
    )
    num_generated: int | None = setting(
        None,
        at_least=1,
        help="Held-out examples, the first ones, whose targets are generated per evaluation; None: all.",
    )
    num_beams: int = setting(1, at_least=1, at_most=64, help="Beams of the search at evaluation; 1: greedy.")
    length_penalty: float = setting(
        1.0, help="Power of the length by which scores of beams are divided; above 0 favors long texts."
    )
    max_new_tokens: int | None = setting(
        None, at_least=1, help="Tokens of a generated text at most; None: max_target_length."
    )
    min_new_tokens: int | None = setting(None, at_least=1, help="Tokens of a generated text at least; None: 1.")
    no_repeat_ngram_size: int = setting(
        0, at_least=0, help="No n-gram of this size occurs twice in a generated text; 0: any may."
    )
    bleu_tokenizer: str = setting(
        "13a",
        choices=("13a", "intl", "zh", "ja-mecab", "ko-mecab", "char", "none"),
        help="Words of BLEU, as sacrebleu names its tokenizers: 13a for most languages, zh, ja-mecab and ko-mecab for "
        "Chinese, Japanese (pip install 'sacrebleu[ja]') and Korean.",
    )

    starts_with_end: bool = setting(
        False, key=False, help="Decoders start with the end token, and targets with the first token of a source (BART)."
    )

    @classmethod
    def from_config(cls, cfg: ConfigDict) -> Self:
        return read_group(cfg, cls, starts_with_end=cfg.decoder.start_token == "sep")

    @property
    def generation(self) -> dict[str, Any]:
        values: dict[str, Any] = {"max_new_tokens": self.max_new_tokens or self.max_target_length}
        values["num_beams"] = self.num_beams
        if self.num_beams > 1:
            values["length_penalty"] = self.length_penalty
        if self.min_new_tokens is not None:
            values["min_new_tokens"] = self.min_new_tokens
        return values | {"no_repeat_ngram_size": self.no_repeat_ngram_size}

    @classmethod
    def metric(cls, task: Any) -> str:
        first = next(iter(task.seq2seq.text_metrics), cls.main_metric)
        return "rougeL" if first == "rouge" else first


def task_settings(cfg: ConfigDict) -> TaskKind:
    """Returns the settings of the kind that `task.kind` chooses."""
    settings: TaskKind = TASK_KINDS.load(cfg.task.kind).from_config(cfg)
    return settings
