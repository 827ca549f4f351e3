"""The suites GLUE, SuperGLUE and BLiMP in their published layouts, `{data}` being the folder that holds them.

GLUE (arXiv:1804.07461): folders and columns as unpacked from gluebenchmark.com/tasks. SuperGLUE (arXiv:1905.00537): as
from super.gluebenchmark.com/tasks. BLiMP (arXiv:1912.00582): the folder `data` of github.com/alexwarstadt/blimp.
Metrics that count are those of the leaderboards; of two the mean counts.
"""

from __future__ import annotations

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
