"""Suites as they are on the Hub, and the files of predictions that SuperGLUE takes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import datasets
import pytest
from lab import NOUNS, Finished

import bertjax
from bertjax.commands.suite import _glue_rows, _superglue_rows
from bertjax.config.suites import SuiteTask, read_suites
from bertjax.config.task import task_config
from bertjax.errors import UserError
from bertjax.experiment.config import load_config
from bertjax.experiment.suite_data import fill_templates, fill_test_file, why_missing
from bertjax.tasks.readers.examples import read_examples

OVERRIDES: dict[str, Any] = {"task.max_length": 32, "task.batch_size": 16, "task.epochs": 1.0, "platform": "cpu"}
OVERRIDES |= {"task.from_scratch": True, "mesh.data": 1, "logging.tensorboard": False, "report.enabled": False}

# config: (columns of texts, names of the classes; none: numbers), as the cards of nyu-mll/glue and aps/super_glue say
GLUE: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "cola": (("sentence",), ("unacceptable", "acceptable")),
    "sst2": (("sentence",), ("negative", "positive")),
    "mrpc": (("sentence1", "sentence2"), ("not_equivalent", "equivalent")),
    "stsb": (("sentence1", "sentence2"), ()),
    "qqp": (("question1", "question2"), ("not_duplicate", "duplicate")),
    "mnli": (("premise", "hypothesis"), ("entailment", "neutral", "contradiction")),
    "qnli": (("question", "sentence"), ("entailment", "not_entailment")),
    "rte": (("sentence1", "sentence2"), ("entailment", "not_entailment")),
    "ax": (("premise", "hypothesis"), ("entailment", "neutral", "contradiction")),
}
SUPERGLUE: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "boolq": (("question", "passage"), ("False", "True")),
    "cb": (("premise", "hypothesis"), ("entailment", "contradiction", "neutral")),
    "rte": (("premise", "hypothesis"), ("entailment", "not_entailment")),
    "copa": (("premise", "choice1", "choice2", "question"), ("choice1", "choice2")),
    "wic": (("word", "sentence1", "sentence2"), ("False", "True")),
}
SPLITS: dict[str, tuple[str, ...]] = {"ax": ("test",)}
SPLITS["mnli"] = ("train", *(f"{name}_{part}" for name in ("validation", "test") for part in ("matched", "mismatched")))
COUNT = 12


def text_of(column: str, index: int) -> str:
    return f"the {NOUNS[(index + len(column)) % 12]} {column}."


def write_repository(folder: Path, configs: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]) -> None:
    """Writes a data set as the Hub stores it: parquet files, and the card that names them; test labels are -1."""
    lines = []
    for config, (columns, classes) in configs.items():
        lines += [f"- config_name: {config}", "  data_files:"]
        kind = datasets.ClassLabel(names=list(classes)) if classes else datasets.Value("float32")
        features = datasets.Features(
            {**dict.fromkeys(columns, datasets.Value("string")), "label": kind, "idx": datasets.Value("int32")}
        )
        for split in SPLITS.get(config, ("train", "validation", "test")):
            labels: list[Any] = [index % len(classes) if classes else index % 6 * 0.9 for index in range(COUNT)]
            if split.startswith("test"):
                labels = [-1] * COUNT
            rows = {column: [text_of(column, index) for index in range(COUNT)] for column in columns}
            rows |= {"label": labels, "idx": list(range(COUNT))}
            (folder / config).mkdir(parents=True, exist_ok=True)
            name = f"{config}/{split}-00000-of-00001.parquet"
            datasets.Dataset.from_dict(rows, features=features).to_parquet(folder / name)
            lines += [f"  - split: {split}", f"    path: {name}"]
    (folder / "README.md").write_text("\n".join(["---", "configs:", *lines, "---", ""]))


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which `datasets` takes a relative path for the name of a data set."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    write_repository(tmp_path / "nyu-mll/glue", GLUE)
    write_repository(tmp_path / "aps/super_glue", SUPERGLUE)
    write_repository(tmp_path / "aps/partial", {name: SUPERGLUE[name] for name in SUPERGLUE if name != "cb"})
    return tmp_path


def tasks_of(suite: str, data: str) -> dict[str, SuiteTask]:
    return {task.name: task.with_data(data) for task in read_suites([suite], on_hub=True) if not task.missing}


@pytest.mark.parametrize(
    ("suite", "data", "layout"), [("glue", "hub:nyu-mll/glue", GLUE), ("superglue", "hub:aps/super_glue", SUPERGLUE)]
)
def test_layouts_of_the_hub(hub: Path, suite: str, data: str, layout: Any) -> None:
    tasks = tasks_of(suite, data)
    assert {*tasks} == {*layout} - {"ax"}
    for name, task in tasks.items():
        columns, classes = layout[name]
        assert why_missing(task) == ""
        filled = fill_templates(task, hub / "filled" / name)
        keys = {"task.train": filled.train, "task.eval": filled.eval, **filled.settings}
        config = task_config(load_config(task.recipe, keys))
        for read in (read_examples(config), read_examples(config, "eval")):
            examples: Any = read
            texts = [[text_of(column, index) for index in range(COUNT)] for column in columns]
            if name == "copa":
                assert [examples.contexts, *map(list, zip(*examples.choices, strict=True))] == texts[:3]
                assert examples.answers == [index % 2 for index in range(COUNT)]
                continue
            if name == "wic":
                texts = [[f"{word}: {text}" for word, text in zip(*texts[:2], strict=True)], texts[2]]
            assert [examples.texts, *([] if examples.pairs is None else [examples.pairs])] == texts
            if name == "stsb":
                assert examples.scores == pytest.approx([index % 6 * 0.9 for index in range(COUNT)])
            else:
                assert examples.labels == [classes[index % len(classes)] for index in range(COUNT)]
                assert config.spec.collect_labels(config, examples) == classes, "F1 is that of the second class"


def test_what_the_hub_does_not_have_is_missing(hub: Path) -> None:
    reasons = {name: why_missing(task) for name, task in tasks_of("superglue", "hub:aps/partial").items()}
    assert [name for name, reason in reasons.items() if reason] == ["cb"]
    assert re.search(r"config cb, split train.*BuilderConfig 'cb' not found", reasons["cb"])
    (hub / "aps/partial/rte/validation-00000-of-00001.parquet").unlink()
    card = (hub / "aps/partial/README.md").read_text()
    split = "  - split: validation\n    path: rte/validation-00000-of-00001.parquet\n"
    (hub / "aps/partial/README.md").write_text(card.replace(split, ""))
    reason = why_missing(tasks_of("superglue", "hub:aps/partial")["rte"])
    assert re.search(r"config rte, split validation.*Unknown split", reason)


def test_the_hub_is_not_reached(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise ConnectionError("no network")

    monkeypatch.setattr(datasets, "load_dataset", fails)
    with pytest.raises(UserError, match=r"config cola, split train\) failed at the start: no network"):
        why_missing(tasks_of("glue", "hub:nyu-mll/glue")["cola"])
    (blimp,) = read_suites(["blimp"], on_hub=True)
    assert why_missing(blimp).startswith("is read from a folder: clone")


def test_a_file_changes_a_preset_of_the_hub(tmp_path: Path) -> None:
    changes = {"preset": "glue", "tasks": [{"name": "cola", "train": "tsv:mine.tsv"}, {"name": "rte", "from": "mnli"}]}
    (tmp_path / "suite.json").write_text(json.dumps(changes))
    tasks = {task.name: task.with_data("hub:a/b") for task in read_suites([str(tmp_path / "suite.json")], True)}
    assert tasks["cola"].train == ("tsv:mine.tsv",) and tasks["cola"].eval == ("hub:a/b:cola:validation",)
    assert tasks["rte"].start == "mnli" and tasks["mnli"].evals == {"mm": ("hub:a/b:mnli:validation_mismatched",)}
    changes["tasks"] = [{"name": "rte", "submit": {"RTE.csv": {"source": "tsv:x"}}}]
    (tmp_path / "suite.json").write_text(json.dumps(changes))
    with pytest.raises(UserError, match=r"submit.RTE.csv must be named .tsv or .jsonl"):
        read_suites([str(tmp_path / "suite.json")])


def test_test_files_of_the_hub_and_of_a_folder(hub: Path) -> None:
    wic = tasks_of("superglue", "hub:aps/super_glue")["wic"]
    entry = fill_test_file(wic, "WiC.jsonl", hub / "filled")
    rows = [json.loads(line) for line in (hub / "filled/test-WiC.jsonl").read_text().splitlines()]
    text = f"{text_of('word', 3)}: {text_of('sentence1', 3)}"
    assert rows[3] == {"text": text, "pair": text_of("sentence2", 3), "id": 3} and entry["id_column"] == "id"
    (hub / "WiC").mkdir()
    row = {"word": "cat", "sentence1": "a cat.", "sentence2": "the cat.", "idx": 7, "start1": 2}
    (hub / "WiC/test.jsonl").write_text(json.dumps(row) + "\n")
    local = next(task for task in read_suites(["superglue"]) if task.name == "wic").with_data(str(hub))
    fill_test_file(local, "WiC.jsonl", hub / "filled")
    written = (hub / "filled/test-WiC.jsonl").read_text()
    assert json.loads(written) == {"text": "cat: a cat.", "pair": "the cat.", "id": 7}
    rte = tasks_of("superglue", "hub:aps/super_glue")["rte"]
    assert fill_test_file(rte, "RTE.jsonl", hub / "none") == rte.submit["RTE.jsonl"] and not (hub / "none").exists()


def test_rows_of_submissions() -> None:
    labels = {"False": "false", "True": "true"}
    rows = _superglue_rows([{"id": "3", "label": "True"}, {"id": "4", "label": "False"}], labels)
    assert list(rows) == ['{"idx": 3, "label": "true"}', '{"idx": 4, "label": "false"}']
    rows = _superglue_rows([{"id": "0", "label": "not_entailment"}, {"id": "1", "choice": 1, "text": "x"}], {})
    assert list(rows) == ['{"idx": 0, "label": "not_entailment"}', '{"idx": 1, "label": 1}']
    numbers = {"unacceptable": "0", "acceptable": "1"}
    assert list(_glue_rows([{"id": "0", "label": "acceptable"}], numbers)) == ["index\tprediction", "0\t1"]
    assert list(_glue_rows([{"id": "0", "score": 5.5}], {})) == ["index\tprediction", "0\t5.000"]


FORMS = {"CoLA": "[01]", "SST-2": "[01]", "MRPC": "[01]", "QQP": "[01]", "STS-B": r"[0-5]\.\d{3}"}
FORMS |= dict.fromkeys(("QNLI", "RTE"), "(not_)?entailment")
FORMS |= dict.fromkeys(("MNLI-m", "MNLI-mm", "AX"), "entailment|neutral|contradiction")


@pytest.mark.long
def test_glue_from_the_hub(hub: Path, finished: Finished) -> None:
    submitted = hub / "submitted"
    scores = bertjax.suite(
        ["glue"], [str(finished.workdir)], hub / "suite", OVERRIDES, data="hub:nyu-mll/glue", submit=submitted
    )
    results = {task: result for (task, _), result in scores.results.items()}
    assert [name for name, each in results.items() if each.status == "done"] == [name for name in GLUE if name != "ax"]
    assert "mm/accuracy" in results["mnli"].scores and scores.exit_code == 0
    assert sorted(path.name for path in submitted.iterdir()) == sorted(f"{name}.tsv" for name in FORMS)
    for name, form in FORMS.items():
        expected = "index\tprediction\n" + "".join(f"{index}\t({form})\n" for index in range(COUNT))
        assert re.fullmatch(expected, (submitted / f"{name}.tsv").read_text()), name


SUPERGLUE_LABELS: dict[str, tuple[Any, ...]] = {
    "BoolQ": ("false", "true"),
    "CB": ("entailment", "contradiction", "neutral"),
    "RTE": ("entailment", "not_entailment"),
    "COPA": (0, 1),
    "WiC": ("false", "true"),
}


def write_archive(folder: Path) -> None:
    """Writes SuperGLUE as its archive has it: labels are words, booleans or numbers, and test files have none."""
    for (config, (columns, _)), (name, labels) in zip(SUPERGLUE.items(), SUPERGLUE_LABELS.items(), strict=True):
        assert config == name.lower()
        flags = {"false": False, "true": True}
        (folder / name).mkdir(parents=True)
        for split, first in (("train", 0), ("val", 0), ("test", 100)):
            rows: list[dict[str, Any]] = [
                {column: text_of(column, index) for column in columns} | {"idx": first + index}
                for index in range(COUNT)
            ]
            for index, row in enumerate(rows if split != "test" else []):
                label = labels[index % len(labels)]
                row["label"] = flags.get(label, label)
            (folder / name / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.long
@pytest.mark.parametrize("on_hub", [True, False])
def test_superglue_is_submitted(hub: Path, finished: Finished, on_hub: bool) -> None:
    data, submitted = "hub:aps/partial" if on_hub else str(hub / "archive"), hub / "submitted"
    if not on_hub:
        write_archive(hub / "archive")
    scores = bertjax.suite(
        ["superglue"], [str(finished.workdir)], hub / "suite", OVERRIDES, data=data, submit=submitted
    )
    results = {task: result for (task, _), result in scores.results.items()}
    names = [name for name in SUPERGLUE_LABELS if not (on_hub and name == "CB")]
    assert [name for name, each in results.items() if each.status == "done"] == [name.lower() for name in names]
    assert scores.exit_code == 0 and (results["cb"].status == "missing") == on_hub
    assert sorted(path.name for path in submitted.iterdir()) == sorted(f"{name}.jsonl" for name in names)
    for name in names:
        rows = [json.loads(line) for line in (submitted / f"{name}.jsonl").read_text().splitlines()]
        assert [row["idx"] for row in rows] == [(0 if on_hub else 100) + index for index in range(COUNT)]
        assert all(row.keys() == {"idx", "label"} for row in rows)
        expected = {(type(label), label) for label in SUPERGLUE_LABELS[name]}
        assert {(type(row["label"]), row["label"]) for row in rows} <= expected, rows
