"""What a task may be told: every value is checked, with the key in the message."""

from __future__ import annotations

from typing import Any

import pytest

from bertjax.config.task import TaskConfig
from bertjax.errors import UserError

QA: dict[str, Any] = {"kind": "qa", "train": ("squad:a.json",), "max_len": 384}
TOKENS: dict[str, Any] = {"kind": "tokens", "train": ("conll:a",)}
CLASSES: dict[str, Any] = {"kind": "classification", "train": ("tsv:a",)}

WRONG = [
    (CLASSES | {"kind": "classifcation"}, r"task.kind .* did you mean 'classification'"),
    (CLASSES | {"train": ()}, r"task.train is empty: name at least one source, such as tsv:"),
    (CLASSES | {"train": ("tvs:a",)}, r"task.train: 'tvs:a' must begin with one of tsv:.*did you mean tsv:"),
    (CLASSES | {"train": ("data/a.csv.gz",)}, r"for this path write csv:data/a.csv.gz"),
    (CLASSES | {"train": ("tsv:",)}, r"task.train: 'tsv:' names nothing"),
    (CLASSES | {"train": ("tsv:a", "tsv:a")}, r"task.train names a source twice"),
    (CLASSES | {"eval": ("squad:a",)}, r"task.eval: 'squad:a' holds no task.kind=classification; .*tsv:, csv:"),
    (CLASSES | {"train": ("hub:glue:sst2",)}, r"task.train: 'hub:glue:sst2' must be hub:NAME\[:CONFIG\]@SPLIT"),
    (CLASSES | {"text": "a", "pair": "a"}, r"must be different columns"),
    (CLASSES | {"label": " "}, r"task.label is blank"),
    (CLASSES | {"swap_pairs": True}, r"task.swap_pairs=true needs two texts"),
    (CLASSES | {"cut": "only_second"}, r"task.cut=only_second: there is no second text"),
    (CLASSES | {"cut": "longest"}, r"task.cut .* did you mean 'longest_first'"),
    (CLASSES | {"labels": ("a", "b", "a")}, r"task.labels names a label twice"),
    (CLASSES | {"labels": ("a",)}, r"task.labels has one label"),
    (CLASSES | {"labels": ("a", " b")}, r"task.labels: a label is blank"),
    (CLASSES | {"kind": "regression", "labels": ("a", "b")}, r"task.labels: task.kind=regression has none"),
    (CLASSES | {"row_counts": 9}, r"task.row_counts must be 1 to 8, or None, not 9"),
    (CLASSES | {"max_len": 4}, r"task.max_len must be at least 8, not 4"),
    (CLASSES | {"batch_size": 0}, r"task.batch_size must be at least 1"),
    (CLASSES | {"epochs": 0.0}, r"task.epochs must be above 0"),
    (CLASSES | {"epochs": float("inf")}, r"task.epochs must be above 0"),
    (TOKENS | {"pair": "1"}, r"task.kind=tokens reads one text"),
    (TOKENS | {"tags": "bio"}, r"task.tags must be one of auto"),
    (QA | {"text": "q"}, r"task.text='q': the columns of task.kind=qa have fixed names"),
    (QA | {"doc_stride": -1}, r"task.doc_stride must not be negative"),
    (QA | {"max_len": 196}, r"task.max_len=196 leaves no room .* = 196"),
    (QA | {"n_best": 0}, r"task.n_best must be at least 1"),
    (QA | {"null_threshold": float("nan")}, r"task.null_threshold must be a number"),
]


@pytest.mark.parametrize(("values", "message"), WRONG)
def test_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        TaskConfig(**values)


def test_accepted() -> None:
    for values in (CLASSES, TOKENS, QA, QA | {"max_len": 197}, CLASSES | {"pair": "b", "cut": "only_second"}):
        TaskConfig(**values)
    config = TaskConfig(**CLASSES | {"eval": ("hub:nyu-mll/glue:sst2@validation[:10%]", "csv:x")})
    assert [source.kind for source in config.sources("eval")] == ["hub", "csv"]
    assert config.sources("eval")[0].hub_parts == ("nyu-mll/glue", "sst2", "validation[:10%]")
    assert not config.is_pair and TaskConfig(**QA).is_pair
