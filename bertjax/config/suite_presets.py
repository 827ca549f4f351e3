"""Suites that need no file: GLUE, SuperGLUE and BLiMP in their published layouts, and as they are on the Hub.

`{data}` is the folder that holds them, or `hub:NAME`. GLUE (arXiv:1804.07461): folders and columns as unpacked from
gluebenchmark.com/tasks, or configs and splits of nyu-mll/glue. SuperGLUE (arXiv:1905.00537): as from
super.gluebenchmark.com/tasks, or of aps/super_glue. BLiMP (arXiv:1912.00582): the folder `data` of
github.com/alexwarstadt/blimp. Metrics that count are those of the leaderboards; of two the mean counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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
        # idx of an example is its number in the test file
        "submit": {f"{folder}.jsonl": {"source": f"jsonl:{{data}}/{folder}/test.jsonl", "id_column": "idx"}},
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


def _on_hub(task: Task, text: str | None, pair: str | None, labels: Sequence[str], written: Sequence[str]) -> Task:
    """Returns a task with the config of its name and the columns of the Hub.

    Args:
        task: the task as it is read from a folder.
        text, pair: columns; None as text: those of the folder.
        labels: names of the classes in the order of their ids.
        written: what predictions for the leaderboard call them.
    """
    name, settings = task["name"], dict(task["settings"])
    if text is not None:
        settings = {"task.text_column": text, **({} if pair is None else {"task.pair_column": pair})}
    settings |= {"task.label_column": "label"} | ({"task.labels": tuple(labels)} if labels else {})
    files = {file: {key: each[key] for key in each if key == "id_column"} for file, each in task["submit"].items()}
    renamed = {"labels": dict(zip(labels, written, strict=True))} if list(labels) != list(written) else {}
    return task | {
        "train": f"{{data}}:{name}:train",
        "eval": f"{{data}}:{name}:validation",
        "settings": settings,
        "submit": {file: {"source": f"{{data}}:{name}:test", **each, **renamed} for file, each in files.items()},
        "where": "",
    }


_ENTAILMENT, _NUMBERS = ("entailment", "not_entailment"), ("0", "1")
_OF_MNLI, _OF_CB = ("entailment", "neutral", "contradiction"), ("entailment", "contradiction", "neutral")
_NAMED, _FLAGS = ("False", "True"), ("false", "true")
_ON_HUB: Mapping[str, Mapping[str, tuple[str | None, str | None, Sequence[str], Sequence[str]]]] = {
    "glue": {
        "cola": ("sentence", None, ("unacceptable", "acceptable"), _NUMBERS),
        "sst2": ("sentence", None, ("negative", "positive"), _NUMBERS),
        "mrpc": ("sentence1", "sentence2", ("not_equivalent", "equivalent"), _NUMBERS),
        "stsb": ("sentence1", "sentence2", (), ()),
        "qqp": ("question1", "question2", ("not_duplicate", "duplicate"), _NUMBERS),
        "mnli": ("premise", "hypothesis", _OF_MNLI, _OF_MNLI),
        "qnli": ("question", "sentence", _ENTAILMENT, _ENTAILMENT),
        "rte": ("sentence1", "sentence2", _ENTAILMENT, _ENTAILMENT),
    },
    "superglue": {
        "boolq": ("question", "passage", _NAMED, _FLAGS),
        "cb": ("premise", "hypothesis", _OF_CB, _OF_CB),
        "rte": ("premise", "hypothesis", _ENTAILMENT, _ENTAILMENT),
        "copa": (None, None, (), ()),
        "wic": (None, None, _NAMED, _FLAGS),
    },
}
_MNLI_SPLITS: Task = {
    "eval": "{data}:mnli:validation_matched",
    "evals": {"mm": ["{data}:mnli:validation_mismatched"]},
    "submit": {
        "MNLI-m.tsv": {"source": "{data}:mnli:test_matched"},
        "MNLI-mm.tsv": {"source": "{data}:mnli:test_mismatched"},
        "AX.tsv": {"source": "{data}:ax:test"},
    },
}
ON_HUB: dict[str, tuple[Task, ...]] = {
    suite: tuple(
        task if name not in tasks else _on_hub(task, *tasks[name]) | (_MNLI_SPLITS if name == "mnli" else {})
        for task in PRESETS[suite]
        for name in [task["name"]]
    )
    for suite, tasks in _ON_HUB.items()
} | {"blimp": tuple({**task, "missing": f"is read from a folder: {_BLIMP}"} for task in BLIMP)}
"""The same tasks with the names, columns and splits of the Hub."""
