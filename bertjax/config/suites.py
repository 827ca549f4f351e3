"""Suites of tasks: what a file or preset says about each, checked before anything runs.

The presets read published layouts, `{data}` being the folder that holds them. GLUE (arXiv:1804.07461): folders and
columns as unpacked from gluebenchmark.com/tasks. SuperGLUE (arXiv:1905.00537): as from super.gluebenchmark.com/tasks.
BLiMP (arXiv:1912.00582): the folder `data` of github.com/alexwarstadt/blimp. Metrics that count are those of the
leaderboards; of two the mean counts.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bertjax.errors import UserError, require_one_of

COMMANDS = ("finetune", "eval-minimal-pairs", "eval-sts")


@dataclasses.dataclass(frozen=True)
class SuiteTask:
    """A task of a suite.

    Attributes:
        name: Name in the table and of the directory of its runs.
        command: finetune, or the command that scores a model without training: eval-minimal-pairs, eval-sts.
        recipe: Config of `bertjax finetune`.
        train: Sources of the training examples, as in `task.train`.
        eval: Sources of the examples whose scores are reported; .jsonl files for eval-minimal-pairs.
        evals: Further sources to score by the name of the set, such as MNLI's mismatched ones.
        settings: Values by dotted key of the config; arguments of the command where nothing is trained.
        metric: The metric that counts, or several whose mean counts.
        show: Names of metrics to report in addition.
        start: Name of an earlier task, whose finetuned weights are the initial ones (`from` in a file).
        submit: Test files to predict, by the name of the file of predictions: `source`, and `text_column`,
            `pair_column` and `header` where they differ from those of the training data.
        missing: Why the suite cannot have this task.
        where: What to download.
    """

    name: str
    command: str = "finetune"
    recipe: str = "finetune/classification"
    train: tuple[str, ...] = ()
    eval: tuple[str, ...] = ()
    evals: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    metric: tuple[str, ...] = ("accuracy",)
    show: tuple[str, ...] = ()
    start: str | None = None
    submit: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    missing: str = ""
    where: str = ""

    @property
    def sources(self) -> tuple[str, ...]:
        """All sources that its scores need."""
        return (*self.train, *self.eval, *(source for each in self.evals.values() for source in each))

    def with_data(self, folder: str) -> SuiteTask:
        """Returns the task with a folder in place of `{data}` in all sources."""

        def filled(sources: Sequence[str]) -> tuple[str, ...]:
            return tuple(source.replace("{data}", folder) for source in sources)

        return dataclasses.replace(
            self,
            train=filled(self.train),
            eval=filled(self.eval),
            evals={name: filled(sources) for name, sources in self.evals.items()},
            submit={name: {**each, "source": filled([each["source"]])[0]} for name, each in self.submit.items()},
        )


_KEYS = {"from" if field.name == "start" else field.name: field.name for field in dataclasses.fields(SuiteTask)}
_TEXTS = {"name", "command", "recipe", "from", "missing", "where"}
_LISTS = {"train", "eval", "metric", "show"}


def read_suites(names: Sequence[str]) -> list[SuiteTask]:
    """Reads presets and files.

    Args:
        names: presets, or .json files with `tasks`, a list of objects with the attributes of `SuiteTask`, and perhaps
            `preset`, whose tasks they change by name or extend.

    Returns:
        The tasks of all of them, in order.

    Raises:
        UserError: a name is neither a preset nor a file, or a file does not describe tasks; names file and task.
    """
    tasks = [task for name in names for task in _read_suite(name)]
    twice = [name for name, count in Counter(task.name for task in tasks).items() if count > 1]
    if twice:
        raise UserError(f"{', '.join(names)}: two tasks are named {twice[0]!r}; rename one")
    for index, task in enumerate(tasks):
        if task.start is not None and task.start not in {each.name for each in tasks[:index]}:
            raise UserError(f"task {task.name}: from={task.start} is not an earlier task of the suite; list it before")
    return tasks


def _read_suite(name: str) -> list[SuiteTask]:
    if name in PRESETS:
        return [_read_task(task, f"preset {name}") for task in PRESETS[name]]
    path = Path(name).expanduser()
    if not path.is_file():
        if path.suffix or "/" in name:
            raise UserError(f"{name}: no such file; a suite is a .json file, or one of {', '.join(PRESETS)}")
        require_one_of("the suite", name, PRESETS)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise UserError(f"{name}: not a JSON file ({error}); a suite looks like {_EXAMPLE}") from None
    if not isinstance(content, dict) or not isinstance(content.get("tasks", []), list) or {*content} - _FILE_KEYS:
        raise UserError(f"{name}: a suite has the keys tasks (a list) and perhaps preset, such as {_EXAMPLE}")
    entries: dict[str, dict[str, Any]] = {}
    if "preset" in content:
        require_one_of(f"{name}: preset", content["preset"], PRESETS)
        entries = {task["name"]: task for task in PRESETS[content["preset"]]}
    changes = content.get("tasks", [])
    _require_names(changes, name)
    tasks = {**entries, **{each["name"]: entries.get(each["name"], {}) | each for each in changes}}
    if not tasks:
        raise UserError(f"{name}: the suite has no task; it looks like {_EXAMPLE}")
    return [_read_task(task, name) for task in tasks.values()]


_FILE_KEYS = {"tasks", "preset"}
_EXAMPLE = '{"tasks": [{"name": "sst2", "train": "tsv:train.tsv", "eval": "tsv:dev.tsv", "metric": "accuracy"}]}'


def _require_names(tasks: Sequence[Any], where: str) -> None:
    names: set[str] = set()
    for number, task in enumerate(tasks, 1):
        name = task.get("name") if isinstance(task, dict) else None
        if not isinstance(name, str) or not name or "/" in name or name.startswith("."):
            raise UserError(f"{where}: task {number} needs a name, which is that of a directory, such as sst2")
        if name in names:
            raise UserError(f"{where}: two tasks are named {name!r}; rename one")
        names.add(name)


def _read_task(entry: Mapping[str, Any], where: str) -> SuiteTask:
    where = f"{where}, task {entry['name']}"
    values: dict[str, Any] = {}
    for key, value in entry.items():
        require_one_of(f"{where}: a key", key, _KEYS)
        if key in _LISTS and isinstance(value, str):
            value = (value,)
        expected = str if key in _TEXTS else (tuple, list) if key in _LISTS else dict
        if not isinstance(value, expected) or (key in _LISTS and not all(isinstance(each, str) for each in value)):
            kind = "text" if key in _TEXTS else "a text or a list of texts" if key in _LISTS else "an object"
            raise UserError(f"{where}: {key} must be {kind}, not {value!r}")
        values[_KEYS[key]] = tuple(value) if key in _LISTS else value
    task = SuiteTask(**values)
    require_one_of(f"{where}: command", task.command, COMMANDS)
    needed = {"eval": task.eval, "metric": task.metric} | ({"train": task.train} if task.command == "finetune" else {})
    for key, value in needed.items():
        if not value and not task.missing:
            raise UserError(f"{where}: {key} is missing")
    for key, submitted in task.submit.items():
        if not isinstance(submitted, dict) or not isinstance(submitted.get("source"), str):
            raise UserError(f"{where}: submit.{key} needs source, such as tsv:test.tsv")
    for key, sources in task.evals.items():
        if not isinstance(sources, tuple | list) or not all(isinstance(each, str) for each in sources):
            raise UserError(f"{where}: evals.{key} must be a list of sources")
    return task


_GLUE = "unpack the archive of gluebenchmark.com/tasks into the folder of --data"
_SUPERGLUE = "unpack the archive of super.gluebenchmark.com/tasks into the folder of --data"
_BLIMP = "clone github.com/alexwarstadt/blimp; the folder of --data is its folder data"
Task = dict[str, Any]


def _columns(text: str, pair: str | None, label: str, header: bool = True) -> dict[str, Any]:
    pairs = {} if pair is None else {"task.pair_column": pair}
    return {"task.text_column": text, **pairs, "task.label_column": label, "task.header": header}


def _glue(name: str, folder: str, settings: dict[str, Any], metric: str = "accuracy", **more: Any) -> Task:
    return {
        "name": name,
        "train": f"tsv:{{data}}/{folder}/train.tsv",
        "eval": f"tsv:{{data}}/{folder}/dev.tsv",
        "settings": settings,
        "metric": metric.split(),
        "submit": {f"{folder}.tsv": {"source": f"tsv:{{data}}/{folder}/test.tsv"}},
        "where": _GLUE,
        **more,
    }


def _mnli_test(file: str) -> Task:
    return {"source": f"tsv:{{data}}/{file}"}


_COLA_TEST = {"CoLA.tsv": {"source": "tsv:{data}/CoLA/test.tsv", "text_column": "sentence", "header": True}}
_NLI = _columns("sentence1", "sentence2", "label")
GLUE = (
    _glue("cola", "CoLA", _columns("3", None, "1", header=False), "matthews", show=["accuracy"], submit=_COLA_TEST),
    _glue("sst2", "SST-2", _columns("sentence", None, "label")),
    # the first name of the header may begin with a byte order mark
    _glue("mrpc", "MRPC", _columns("#1 String", "#2 String", "0"), "f1 accuracy"),
    _glue(
        "stsb",
        "STS-B",
        _columns("sentence1", "sentence2", "score"),
        "pearson spearman",
        recipe="finetune/regression",
    ),
    _glue("qqp", "QQP", _columns("question1", "question2", "is_duplicate"), "f1 accuracy"),
    _glue(
        "mnli",
        "MNLI",
        _columns("sentence1", "sentence2", "gold_label"),
        eval="tsv:{data}/MNLI/dev_matched.tsv",
        evals={"mm": ["tsv:{data}/MNLI/dev_mismatched.tsv"]},
        show=["mm/accuracy"],
        submit={
            "MNLI-m.tsv": _mnli_test("MNLI/test_matched.tsv"),
            "MNLI-mm.tsv": _mnli_test("MNLI/test_mismatched.tsv"),
            "AX.tsv": _mnli_test("diagnostic/diagnostic.tsv"),
        },
    ),
    _glue("qnli", "QNLI", _columns("question", "sentence", "label")),
    _glue("rte", "RTE", _NLI),
    {
        "name": "wnli",
        "missing": "left out as usual: its dev set contradicts its training set, and papers submit the most frequent "
        "class (gluebenchmark.com/faq)",
    },
)


def _superglue(name: str, folder: str, text: str, pair: str, metric: str = "accuracy", **more: Any) -> Task:
    return {
        "name": name,
        "train": f"jsonl:{{data}}/{folder}/train.jsonl",
        "eval": f"jsonl:{{data}}/{folder}/val.jsonl",
        "settings": {"task.text_column": text, "task.pair_column": pair, "task.label_column": "label"},
        "metric": metric.split(),
        "where": _SUPERGLUE,
        **more,
    }


def _unsupported(name: str, reason: str) -> Task:
    return {"name": name, "missing": reason}


COPA_SETTINGS: dict[str, Any] = {
    "task.text_column": "premise",
    "task.multiple_choice.choice_columns": ("choice1", "choice2"),
    "task.label_column": "label",
}
"""COPA as a task of `finetune/multiple_choice`; the question (cause or effect) is not part of the input."""

SUPERGLUE = (
    _superglue("boolq", "BoolQ", "question", "passage"),
    _superglue("cb", "CB", "premise", "hypothesis", "macro_f1 accuracy"),
    _superglue("rte", "RTE", "premise", "hypothesis"),
    _superglue("copa", "COPA", "", "", recipe="finetune/multiple_choice", settings=COPA_SETTINGS),
    # the word is part of the first text; the positions of its occurrences are not used
    _superglue("wic", "WiC", "{word}: {sentence1}", "{sentence2}"),
    _unsupported("multirc", "needs answers grouped by question (F1a, exact match), which no kind of task has"),
    _unsupported("record", "needs a choice of entities of a passage, which no kind of task has"),
    _unsupported("wsc", "needs spans of a text as input, which no kind of task has"),
)
BLIMP = (
    {
        "name": "blimp",
        "command": "eval-minimal-pairs",
        "eval": "{data}/*.jsonl",
        "metric": "accuracy",
        "where": _BLIMP,
    },
)
PRESETS: dict[str, tuple[Task, ...]] = {"glue": GLUE, "superglue": SUPERGLUE, "blimp": BLIMP}
