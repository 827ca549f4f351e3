"""scripts/finetune_check.py: the settings that both sides receive, and how their results are compared."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from lab import load_script

SCRIPTS = Path(__file__).parents[2] / "scripts"
SCORES = {"accuracy": [0.75, 1.0], "f1": [0.5, 1.0]}  # of seeds 0 and 1
ANSWER = {"text": "Ann", "answer_start": 0}
ANSWERS = {"text": ["Ann"], "answer_start": [0]}


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script(SCRIPTS / "finetune_check.py")


@pytest.fixture
def options(tmp_path: Path) -> argparse.Namespace:
    (tmp_path / "train.tsv").write_text("text\tlabel\n" + "".join(f"it is {n}\t{n % 2}\n" for n in range(9)))
    (tmp_path / "dev.tsv").write_text("text\tlabel\na\t0\nb\t1\nc\t1\nd\t0\n")
    (tmp_path / "words.txt").write_text("Ann B-PER\nsees O\nRome B-LOC\n\nit O\n")
    (tmp_path / "several.jsonl").write_text('{"text": "a", "label": ["x", "y"]}\n{"text": "b", "label": ["y"]}\n')
    (tmp_path / "choices.jsonl").write_text('{"context": "a", "question": "b?", "choices": ["c", "d"], "label": 1}\n')
    paragraph = {"context": "Ann sees Rome.", "qas": [{"id": "q", "question": "Who?", "answers": [ANSWER]}]}
    (tmp_path / "squad.json").write_text(json.dumps({"data": [{"paragraphs": [paragraph]}]}))
    values = {"out": tmp_path / "out", "model": tmp_path / "model", "first": 6, "rows": 2, "epochs": 1, "rate": 1e-3}
    values |= {
        "max_len": 16,
        "platform": "cpu",
        "peer_python": "python",
        "seeds": [0, 1],
        "losses": None,
        "peer_dtypes": ["float32", "bfloat16"],
    }
    return argparse.Namespace(**values)


SOURCES = {
    "classification": ("tsv:{}/train.tsv", "tsv:{}/dev.tsv"),
    "tokens": ("conll:{}/words.txt",) * 2,
    "multilabel": ("jsonl:{}/several.jsonl",) * 2,
    "multiple_choice": ("jsonl:{}/choices.jsonl",) * 2,
    "qa": ("squad:{}/squad.json",) * 2,
}


def job_of(script: ModuleType, options: argparse.Namespace, kind: str, *settings: str) -> tuple:
    sources = [source.format(options.out.parent) for source in SOURCES[kind]]
    return script.prepare(f"{kind}={','.join([kind, *sources, *settings])}", options)


@pytest.fixture
def sides(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[dict]]:
    """`sides(predictions, losses)` -> the other side's jobs; ours returns SCORES, and the same losses up to 1e-6."""

    def set_up(predictions: list, losses: list[float] | None = None) -> list[dict]:
        jobs: list[dict] = []

        def call(command: list[str], environment: dict[str, str] | None = None) -> None:
            if command[0] == "python":
                jobs.append(json.loads(Path(command[2]).read_text()))
                result = {"ended": time.time() + 2, "predictions": predictions, "losses": losses}
                Path(jobs[-1]["out"]).write_text(json.dumps(result))
                return
            workdir = Path(command[command.index("--workdir") + 1])
            if command[3] == "suite":
                tasks = json.loads(Path(command[4]).read_text())["tasks"]
                results = [{"task": task["name"], "model": "model", "scores": SCORES} for task in tasks]
                for task in tasks:
                    (workdir / "model" / task["name"]).mkdir(parents=True)
                    (workdir / "model" / task["name"] / "result.json").write_text("{}")
                (workdir / "suite.json").write_text(json.dumps({"results": results}))
                return
            (workdir / "seed-0").mkdir(parents=True)
            lines = [{"step": 1 + n, "train/loss": loss + 1e-6} for n, loss in enumerate(losses or [])]
            (workdir / "seed-0" / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

        monkeypatch.setattr(script, "call", call)
        return jobs

    return set_up


def test_both_sides_get_the_same_examples(script: ModuleType, options: argparse.Namespace) -> None:
    job = job_of(script, options, "classification", "held_out=3")
    rows = [json.loads(line) for line in (job.folder / "train.jsonl").read_text().splitlines()]
    assert rows == [{"text": f"it is {n}", "label": str(n % 2)} for n in range(6)]
    assert len(job.gold) == 3 and job.labels == ("0", "1")
    words = job_of(script, options, "tokens")
    assert words.kind == "tokens" and set(words.labels) >= {"O", "B-LOC", "B-PER"}
    assert words.gold[0]["tags"] == ["B-PER", "O", "B-LOC"]


@pytest.mark.parametrize(
    ("kind", "row"),
    [
        ("multilabel", {"text": "a", "label": ["x", "y"]}),
        ("multiple_choice", {"context": "a", "question": "b?", "choices": ["c", "d"], "label": 1}),
        (
            "qa",
            {
                "id": "q",
                "question": "Who?",
                "context": "Ann sees Rome.",
                "answers": {"text": ["Ann"], "answer_start": [0]},
            },
        ),
    ],
)
def test_rows_of_other_kinds_are_read_again(
    script: ModuleType, options: argparse.Namespace, kind: str, row: dict
) -> None:
    """What is written is read to the same examples by the kind that it came from."""
    settings = ["multiple_choice.question_column=question"] if kind == "multiple_choice" else []
    job = job_of(script, options, kind, *settings, "first=1")
    assert job.gold[0] == row and len((job.folder / "train.jsonl").read_text().splitlines()) == 1
    values = {"task.train": f"jsonl:{job.folder}/train.jsonl", **script.settings_of(job, options)}
    values["task.max_length"] = 384
    config = script.task_config(script.load_config(f"finetune/{kind}", values))
    assert next(iter(script._rows(script.read_examples(config, "train")))) == row


@pytest.mark.parametrize(
    ("kind", "predictions", "expected"),
    [
        ("multilabel", [[0.9, 0.2], [0.1, 0.3]], 1.0),
        ("multilabel", [[0.2, 0.2], [0.9, 0.3]], 0.75),  # x: 1/2; y: all examples have it
        ("multiple_choice", [1], 1.0),
        ("qa", {"q": "Ann sees"}, 200 / 3),
    ],
)
def test_other_predictions_are_scored(
    script: ModuleType, options: argparse.Namespace, kind: str, predictions: Any, expected: float
) -> None:
    settings = ["multiple_choice.question_column=question"] if kind == "multiple_choice" else []
    assert script.score(job_of(script, options, kind, *settings), predictions) == pytest.approx(expected)


def test_a_line_of_the_table(script: ModuleType, options: argparse.Namespace, sides: Callable[..., list[dict]]) -> None:
    """0.75 and 1 here, 0.25 twice there: 0.625 apart; 2 sqrt(0.03125 / 2) = 0.25 are allowed."""
    jobs = sides(["0", "0", "0", "1"])
    job = job_of(script, options, "classification")
    line = script.compare(job, options, script.ours([job], options)["classification"])
    assert [(job["seed"], job["dtype"]) for job in jobs] == [(0, "float32"), (0, "bfloat16"), (1, jobs[-1]["dtype"])]
    assert line.startswith("| classification | 0.8750 ± 0.1768 | 0.2500 ± 0.0000")
    assert "| +0.6250 | 0.2500 | no |" in line
    assert float(line.split("|")[-2]) > 1.5  # four seconds there, none here


def test_entities_of_words_are_scored(
    script: ModuleType, options: argparse.Namespace, sides: Callable[..., list[dict]]
) -> None:
    sides([["B-PER", "O", "O"], ["O"]])
    assert script.theirs(job_of(script, options, "tokens"), options, 0, "float32").score == pytest.approx(2 / 3)


def test_the_peer_takes_our_order(
    script: ModuleType, options: argparse.Namespace, sides: Callable[..., list[dict]]
) -> None:
    options.losses = 3
    jobs = sides([], losses=[0.7, 0.6, 0.5])
    line = script.same_losses(job_of(script, options, "classification"), options)
    assert line == "| classification | 3 | 0.700001 | 0.500001 | 0.500000 | 1.0e-06 |"
    (job,) = jobs
    assert sorted(job["order"]) == list(range(6)) != job["order"] and job["dtype"] == "float32"
    assert job["start"].endswith("classification/start") and job["epochs"] == 1
