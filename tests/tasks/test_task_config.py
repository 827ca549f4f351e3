"""Task settings: every value is checked, and messages name the key."""

from __future__ import annotations

from typing import Any

import pytest
from tokens_lab import task_config

from bertjax.errors import UserError

QA: dict[str, Any] = {"kind": "qa", "train": ("squad:a.json",), "max_length": 384}
TOKENS: dict[str, Any] = {"kind": "tokens", "train": ("conll:a",)}
CLASSES: dict[str, Any] = {"kind": "classification", "train": ("tsv:a",)}

WRONG = [
    (CLASSES | {"kind": "classifcation"}, r"task.kind .* did you mean 'classification'"),
    (CLASSES | {"train": ()}, r"task.train is empty: name at least one source, such as tsv:"),
    (CLASSES | {"train": ("tvs:a",)}, r"task.train: 'tvs:a' must begin with one of tsv:.*did you mean tsv:"),
    (CLASSES | {"train": ("data/a.csv.gz",)}, r"for this path write csv:data/a.csv.gz"),
    (CLASSES | {"train": ("tsv:",)}, r"task.train: 'tsv:' names nothing"),
    (CLASSES | {"train": ("tsv:a", "tsv:a")}, r"task.train names a source twice"),
    (
        CLASSES | {"eval": ("squad:a",)},
        r"task.eval: 'squad:a' cannot hold examples of task.kind=classification; .*tsv:, csv:",
    ),
    (CLASSES | {"test": ("conll:a",)}, r"task.test: 'conll:a' cannot hold examples of task.kind=classification"),
    (CLASSES | {"train": ("hub:a/b/c",)}, r"task.train: 'hub:a/b/c': write hub:NAME\[:CONFIG\[:SPLIT\]\]"),
    (CLASSES | {"text_column": "a", "pair_column": "a"}, r"must be different columns"),
    (CLASSES | {"label_column": " "}, r"task.label_column is blank"),
    (CLASSES | {"swap_pairs": True}, r"task.swap_pairs=true needs two texts"),
    (CLASSES | {"truncation": "only_second"}, r"task.truncation=only_second: a second text is missing"),
    (CLASSES | {"truncation": "longest"}, r"task.truncation .* did you mean 'longest_first'"),
    (CLASSES | {"labels": ("a", "b", "a")}, r"task.labels names a label twice"),
    (CLASSES | {"labels": ("a",)}, r"task.labels has one label"),
    (CLASSES | {"labels": ("a", " b")}, r"task.labels: a label is blank"),
    (CLASSES | {"kind": "regression", "labels": ("a", "b")}, r"task.labels: task.kind=regression has none"),
    (CLASSES | {"num_batch_shapes": 9}, r"task.num_batch_shapes must lie in \[1, 8\], not 9"),
    (CLASSES | {"max_length": 4}, r"task.max_length must be at least 8, not 4"),
    (CLASSES | {"batch_size": 0}, r"task.batch_size must be at least 1"),
    (CLASSES | {"epochs": 0.0}, r"task.epochs must be above 0"),
    (CLASSES | {"epochs": float("inf")}, r"task.epochs expects a number"),
    (TOKENS | {"pair_column": "1"}, r"task.kind=tokens reads one text"),
    (TOKENS | {"tag_scheme": "bio"}, r"task.tokens.tag_scheme must be one of auto"),
    (QA | {"text_column": "q"}, r"task.text_column='q': the columns of task.kind=qa have fixed names"),
    (QA | {"doc_stride": -1}, r"task.qa.doc_stride must be at least 0"),
    (QA | {"max_length": 196}, r"task.max_length=196 leaves no tokens .* = 196"),
    (QA | {"n_best_size": 0}, r"task.qa.n_best_size must be at least 1"),
    (QA | {"null_score_diff_threshold": float("nan")}, r"task.qa.null_score_diff_threshold expects a number"),
]


@pytest.mark.parametrize(("values", "message"), WRONG)
def test_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        task_config(**values)


def test_accepted() -> None:
    for values in (
        CLASSES,
        TOKENS,
        QA,
        QA | {"max_length": 197},
        CLASSES | {"pair_column": "b", "truncation": "only_second"},
    ):
        task_config(**values)
    config = task_config(**CLASSES | {"eval": ("hub:nyu-mll/glue:sst2:validation[:10%]", "csv:x")})
    assert [source.kind for source in config.sources("eval")] == ["hub", "csv"]
    assert config.sources("eval")[0].hub_parts == ("nyu-mll/glue", "sst2", "validation[:10%]")
    assert not config.is_pair and task_config(**QA).is_pair
