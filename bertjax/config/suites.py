"""Suites of tasks: what a file or preset says about each, checked before anything runs."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bertjax.config.suite_presets import ON_HUB, PRESETS, Task
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
        submit: Test files to predict, by the name of the file of predictions: .tsv in GLUE's format, .jsonl in
            SuperGLUE's. `source`, and `text_column`, `pair_column`, `id_column` and `header` where they differ from
            those of the training data; `labels`, what is written for a label.
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


def read_suites(names: Sequence[str], on_hub: bool = False) -> list[SuiteTask]:
    """Reads presets and files.

    Args:
        names: presets, or .json files with `tasks`, a list of objects with the attributes of `SuiteTask`, and perhaps
            `preset`, whose tasks they change by name or extend.
        on_hub: whether presets read the layouts of the Hub.

    Returns:
        The tasks of all of them, in order.

    Raises:
        UserError: a name is neither a preset nor a file, or a file does not describe tasks; names file and task.
    """
    presets = PRESETS | ON_HUB if on_hub else PRESETS
    tasks = [task for name in names for task in _read_suite(name, presets)]
    twice = [name for name, count in Counter(task.name for task in tasks).items() if count > 1]
    if twice:
        raise UserError(f"{', '.join(names)}: two tasks are named {twice[0]!r}; rename one")
    for index, task in enumerate(tasks):
        if task.start is not None and task.start not in {each.name for each in tasks[:index]}:
            raise UserError(f"task {task.name}: from={task.start} is not an earlier task of the suite; list it before")
    return tasks


def _read_suite(name: str, presets: Mapping[str, Sequence[Task]]) -> list[SuiteTask]:
    if name in presets:
        return [_read_task(task, f"preset {name}") for task in presets[name]]
    path = Path(name).expanduser()
    if not path.is_file():
        if path.suffix or "/" in name:
            raise UserError(f"{name}: no such file; a suite is a .json file, or one of {', '.join(presets)}")
        require_one_of("the suite", name, presets)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise UserError(f"{name}: not a JSON file ({error}); a suite looks like {_EXAMPLE}") from None
    if not isinstance(content, dict) or not isinstance(content.get("tasks", []), list) or {*content} - _FILE_KEYS:
        raise UserError(f"{name}: a suite has the keys tasks (a list) and perhaps preset, such as {_EXAMPLE}")
    entries: dict[str, dict[str, Any]] = {}
    if "preset" in content:
        require_one_of(f"{name}: preset", content["preset"], presets)
        entries = {task["name"]: task for task in presets[content["preset"]]}
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
        if not isinstance(submitted.get("labels", {}), dict) or not key.endswith((".tsv", ".jsonl")):
            raise UserError(f"{where}: submit.{key} must be named .tsv or .jsonl, and its labels be an object")
    for key, sources in task.evals.items():
        if not isinstance(sources, tuple | list) or not all(isinstance(each, str) for each in sources):
            raise UserError(f"{where}: evals.{key} must be a list of sources")
    return task
