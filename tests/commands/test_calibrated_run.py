"""Calibrated tasks: the export of a run computes calibrated probabilities in any library."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from lab import NOUNS, Finished

import bertjax
from bertjax.cli import main
from bertjax.commands.evaluate import evaluate
from bertjax.experiment.workdir import read_config
from bertjax.report.run_record import read_run
from bertjax.tasks.calibration import reliability


def write_texts(path: Path, count: int) -> list[str]:
    """Writes sentences whose class is drawn: most say that of their noun. Returns the classes."""
    draw, lines, classes = np.random.default_rng(count), ["text\tlabel"], []
    for _ in range(count):
        number = int(draw.integers(0, 6))
        classes.append("animal" if (number < 3) == (draw.random() < 0.85) else "thing")
        lines.append(f"the {NOUNS[number]} is here.\t{classes[-1]}")
    path.write_text("\n".join(lines) + "\n")
    return classes


@pytest.mark.long
def test_the_export_is_calibrated(finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, count in (("train", 300), ("dev", 200), ("test", 199)):
        write_texts(tmp_path / f"{name}.tsv", count)
    keys = [
        *(f"init_from={finished.workdir}", f"task.train=tsv:{tmp_path}/train.tsv", "task.header=true"),
        *(f"task.eval=tsv:{tmp_path}/dev.tsv", f"task.test=tsv:{tmp_path}/test.tsv"),
        *("task.text_column=text", "task.label_column=label", "task.max_length=16", "task.batch_size=16"),
        *("task.from_scratch=true", "task.epochs=24", "task.evals_per_epoch=0.25", "platform=cpu", "mesh.data=1"),
        *("optimizer.learning_rate=2e-3", "schedule.warmup_steps=2", "logging.tensorboard=false"),
        *("task.classification.calibrate=true", "task.classification.tune_fraction=0.3"),
    ]
    run = tmp_path / "run"
    arguments = ["finetune", "--config", "finetune/classification", "--workdir", str(run)]
    arguments += [f"--config.{each}" for each in keys]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    temperature = read_config(run).task.classification.temperature
    assert temperature != 1.0 and "task: classification, 210 examples" in printed

    of_run = bertjax.predict(run, tmp_path / "dev.tsv", score=True)
    of_export = bertjax.predict(run / "export", tmp_path / "dev.tsv", score=True)
    for one, other in zip(of_run, of_export, strict=True):
        assert one["label"] == other["label"]
        assert one["probabilities"] == pytest.approx(other["probabilities"], abs=2e-6)
    texts = [line.split("\t")[0] for line in (tmp_path / "dev.tsv").read_text().splitlines()[1:]]
    theirs = transformers.pipeline("text-classification", model=str(run / "export"))(texts[:20])
    assert [each["score"] for each in theirs] == pytest.approx([each["score"] for each in of_run[:20]], abs=1e-5)

    gold = [line.split("\t")[1] for line in (tmp_path / "dev.tsv").read_text().splitlines()[1:]]
    confidence = np.array([each["score"] for each in of_run])
    right = np.array([each["label"] for each in of_run]) == np.array(gold)
    assert right.mean() > 0.75
    expected = reliability(confidence, right).error
    assert of_run.metrics is not None and of_run.metrics["calibration_error"] == pytest.approx(expected, abs=1e-5)
    assert f"calibration_error {expected:.4f}" in printed.rpartition("held out, ")[2]
    result = evaluate(run, inputs=[f"tsv:{tmp_path}/dev.tsv"])
    assert result["eval/calibration_error"] == pytest.approx(expected, abs=1e-5)

    (record,) = read_run(run).newest("reliability")
    assert sum(each[2] for each in record["bins"]) == 200
    assert "Reliability" in (run / "report.html").read_text()
    card = (run / "export" / "README.md").read_text()
    assert f"| Temperature of the probabilities | {temperature:.4g}, held by the last layer" in card
    assert "30% of the training examples" in card and "On the test data, by which nothing was chosen" in card
    assert f"tsv:{tmp_path}/test.tsv" in card

    before = {path.name: path.read_bytes() for path in (run / "export").glob("*.safetensors")}
    assert main(arguments) == 0  # a finished run is exported again, divided by the temperature once
    assert {path.name: path.read_bytes() for path in (run / "export").glob("*.safetensors")} == before


def write_records(kind: str, path: Path, count: int) -> None:
    """Writes examples of a kind, whose label is that of a noun, most of the time."""
    draw, rows = np.random.default_rng(count), []
    for _ in range(count):
        first, second = draw.permutation(6)[:2].tolist()
        wrong = bool(draw.random() < 0.2)
        text = f"the {NOUNS[first]} sees the {NOUNS[second]}."
        if kind == "multilabel":
            names = zip(("first", "second"), ((first < 3) != wrong, second < 3), strict=True)
            rows.append({"text": text, "label": [name for name, is_label in names if is_label]})
        else:
            choices = draw.permutation(["the end.", f"the {NOUNS[second]} is here."]).tolist()
            choices += ["it is here and here."] * wrong
            rows.append({"context": f"the {NOUNS[first]}.", "choices": choices})
            rows[-1]["label"] = choices.index("the end." if draw.random() < 0.8 else choices[-1])
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def finetune_kind(finished: Finished, kind: str, folder: Path, *keys: str) -> Path:
    write_records(kind, folder / "train.jsonl", 120)
    write_records(kind, folder / "dev.jsonl", 60)
    settings = [
        *(f"init_from={finished.workdir}", f"task.train=jsonl:{folder}/train.jsonl", "task.max_length=48"),
        *(f"task.eval=jsonl:{folder}/dev.jsonl", "task.batch_size=16", "task.from_scratch=true", "platform=cpu"),
        *("mesh.data=1", "optimizer.learning_rate=1e-3", "schedule.warmup_steps=2", "logging.tensorboard=false"),
        *("train.compute_dtype=float32", *keys),
    ]
    arguments = ["finetune", "--config", f"finetune/{kind}", "--workdir", str(folder / "run")]
    assert main(arguments + [f"--config.{each}" for each in settings]) == 0
    return folder / "run"


def probabilities(records: list[dict[str, Any]]) -> list[list[float]]:
    return [
        list(each["probabilities"].values()) if isinstance(each["probabilities"], dict) else each["probabilities"]
        for each in records
    ]


def of_transformers(kind: str, export: Path, rows: list[dict[str, Any]]) -> list[list[float]]:
    """Returns the probabilities of the pipeline of `transformers`, or, as it has none for choices, of its model."""
    if kind == "multilabel":
        pipe = transformers.pipeline("text-classification", model=str(export), top_k=None)
        names = json.loads((export / "config.json").read_text())["id2label"].values()
        scored = [{each["label"]: each["score"] for each in result} for result in pipe([row["text"] for row in rows])]
        return [[each[name] for name in names] for each in scored]
    model = transformers.AutoModelForMultipleChoice.from_pretrained(export).eval()
    tokenizer, results = transformers.AutoTokenizer.from_pretrained(export), []
    for row in rows:
        encoded = tokenizer([row["context"]] * len(row["choices"]), row["choices"], return_tensors="pt", padding=True)
        with torch.no_grad():
            logits = model(**{name: values[None] for name, values in encoded.items()}).logits[0]
        results.append(logits.softmax(-1).tolist())
    return results


@pytest.mark.parametrize("kind", ["multilabel", "multiple_choice"])
def test_the_last_layer_of_every_head_holds_the_temperature(finished: Finished, kind: str, tmp_path: Path) -> None:
    keys = (f"task.{kind}.temperature=0.25", "task.epochs=1", "report.enabled=false")
    keys += ("task.multilabel.tune_thresholds=none",) * (kind == "multilabel")
    run = finetune_kind(finished, kind, tmp_path, *keys)
    rows = [json.loads(line) for line in (tmp_path / "dev.jsonl").read_text().splitlines()[:10]]
    inputs = [{key: value for key, value in row.items() if key != "label"} for row in rows]
    of_run, of_export = (probabilities(bertjax.predict(folder, inputs)) for folder in (run, run / "export"))
    theirs = of_transformers(kind, run / "export", rows)
    for ours, exported, expected in zip(of_run, of_export, theirs, strict=True):
        assert ours == pytest.approx(exported, abs=2e-6) and ours == pytest.approx(expected, abs=1e-5)
    even = [0.5 if kind == "multilabel" else 1 / len(each) for each in of_run]
    assert np.abs([each[0] for each in of_run] - np.array(even)).max() > 1e-3, "a temperature changes nothing"


@pytest.mark.long
@pytest.mark.parametrize("kind", ["multilabel", "multiple_choice"])
def test_the_temperature_of_every_kind_is_fitted_and_reported(finished: Finished, kind: str, tmp_path: Path) -> None:
    keys = (f"task.{kind}.calibrate=true", f"task.{kind}.tune_fraction=0.3", "task.epochs=12")
    run = finetune_kind(finished, kind, tmp_path, *keys, "task.evals_per_epoch=0.25")
    stored = read_config(run).task[kind]
    assert stored.temperature != 1.0
    of_run, of_export = (
        bertjax.predict(folder, tmp_path / "dev.jsonl", score=True) for folder in (run, run / "export")
    )
    for ours, exported in zip(probabilities(of_run), probabilities(of_export), strict=True):
        assert ours == pytest.approx(exported, abs=2e-6)
    rows = [json.loads(line) for line in (tmp_path / "dev.jsonl").read_text().splitlines()]
    for ours, expected in zip(
        probabilities(of_run)[:10], of_transformers(kind, run / "export", rows[:10]), strict=True
    ):
        assert ours == pytest.approx(expected, abs=1e-5)
    if kind == "multilabel":
        assert [each["labels"] for each in of_run] == [each["labels"] for each in of_export]
        confidence = np.array(probabilities(of_run)).reshape(-1)
        names = list(of_run[0]["probabilities"])
        right = np.array([name in row["label"] for row in rows for name in names])
    else:
        confidence = np.array([each["score"] for each in of_run])
        right = np.array([each["choice"] == row["label"] for each, row in zip(of_run, rows, strict=True)])
    expected = reliability(confidence, right).error
    for metrics in (of_run.metrics, of_export.metrics):
        assert metrics is not None and metrics["calibration_error"] == pytest.approx(expected, abs=1e-5)
    assert evaluate(run)["eval/calibration_error"] == pytest.approx(expected, abs=1e-5)
    (record,) = read_run(run).newest("reliability")
    assert sum(each[2] for each in record["bins"]) == len(right)
    assert f"{len(right)} predictions in" in (run / "report.html").read_text()
    card = (run / "export" / "README.md").read_text()
    assert f"| Temperature of the probabilities | {stored.temperature:.4g}, held by the last layer" in card
