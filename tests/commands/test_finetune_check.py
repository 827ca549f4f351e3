"""scripts/finetune_check.py: the settings that both sides receive, and how their results are compared."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from lab import load_script

SCRIPTS = Path(__file__).parents[2] / "scripts"
SCORES = {"accuracy": (0.75, 1.0), "f1": (0.5, 1.0)}  # of seeds 0 and 1


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script(SCRIPTS / "finetune_check.py")


@pytest.fixture
def options(tmp_path: Path) -> argparse.Namespace:
    (tmp_path / "train.tsv").write_text("text\tlabel\n" + "".join(f"it is {n}\t{n % 2}\n" for n in range(9)))
    (tmp_path / "dev.tsv").write_text("text\tlabel\na\t0\nb\t1\nc\t1\nd\t0\n")
    (tmp_path / "words.txt").write_text("Ann B-PER\nsees O\nRome B-LOC\n\nit O\n")
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


def job_of(script: ModuleType, options: argparse.Namespace, kind: str) -> tuple:
    folder = options.out.parent
    texts = f"texts=tsv:{folder}/train.tsv,tsv:{folder}/dev.tsv"
    return script.prepare(
        texts if kind == "classification" else f"words=conll:{folder}/words.txt,conll:{folder}/words.txt", options
    )


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
            for seed in command[command.index("--seeds") + 1].split(","):
                workdir = Path(command[command.index("--workdir") + 1], f"seed-{seed}")
                workdir.mkdir(parents=True)
                lines = [{"step": 1 + n, "train/loss": loss + 1e-6} for n, loss in enumerate(losses or [])]
                lines += [{"step": 9, **{f"eval/{name}": values[int(seed)] for name, values in SCORES.items()}}]
                (workdir / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

        monkeypatch.setattr(script, "call", call)
        return jobs

    return set_up


def test_both_sides_get_the_same_examples(script: ModuleType, options: argparse.Namespace) -> None:
    job = job_of(script, options, "classification")
    rows = [json.loads(line) for line in (job.folder / "train.jsonl").read_text().splitlines()]
    assert rows == [{"text": f"it is {n}", "label": str(n % 2)} for n in range(6)]
    assert len((job.folder / "eval.jsonl").read_text().splitlines()) == 4 and job.labels == ("0", "1")
    words = job_of(script, options, "tokens")
    assert words.kind == "tokens" and set(words.labels) >= {"O", "B-LOC", "B-PER"}
    assert json.loads((words.folder / "eval.jsonl").read_text().splitlines()[0])["tags"] == ["B-PER", "O", "B-LOC"]


def test_a_line_of_the_table(script: ModuleType, options: argparse.Namespace, sides: Callable[..., list[dict]]) -> None:
    """0.75 and 1 here, 0.25 twice there: 0.625 apart; 2 sqrt(0.03125 / 2) = 0.25 are allowed."""
    jobs = sides(["0", "0", "0", "1"])
    line = script.compare(job_of(script, options, "classification"), options)
    assert [(job["seed"], job["dtype"]) for job in jobs] == [(0, "float32"), (0, "bfloat16"), (1, jobs[-1]["dtype"])]
    assert line.startswith("| texts | 0.8750 ± 0.1768 | 0.2500 ± 0.0000") and "| +0.6250 | 0.2500 | no |" in line
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
    assert line == "| texts | 3 | 0.700001 | 0.500001 | 0.500000 | 1.0e-06 |"
    (job,) = jobs
    assert sorted(job["order"]) == list(range(6)) != job["order"] and job["dtype"] == "float32"
    assert job["start"].endswith("texts/start") and job["epochs"] == 1
