"""`task.kind=multilabel` from the data to predictions: tuned thresholds are stored with the run and with its export."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lab import NOUNS, Finished
from sklearn import metrics

import bertjax
from bertjax.cli import main
from bertjax.commands.evaluate import evaluate
from bertjax.experiment.workdir import read_config
from bertjax.report.run_record import read_run

NAMES = ("animal", "likes", "plain")


def write_texts(path: Path, count: int) -> list[set[str]]:
    """Writes sentences about animals or things, liked or not, with a list of labels each; returns these."""
    draw, rows, gold = np.random.default_rng(count), [], []
    for _ in range(count):
        animal, likes = draw.random(2) < 0.5
        noun = NOUNS[draw.integers(0, 3)] if animal else NOUNS[draw.integers(3, len(NOUNS))]
        labels = ["animal"] * bool(animal) + ["likes"] * bool(likes)
        rows.append({"text": f"the {noun} {'likes' if likes else 'sees'} it.", "labels": labels})
        gold.append({*labels})
    rows[0]["labels"], gold[0] = [*rows[0]["labels"], "plain"], gold[0] | {"plain"}
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return gold


def finetune_arguments(finished: Finished, folder: Path, workdir: Path, *more: str) -> list[str]:
    keys = [
        *(f"init_from={finished.workdir}", f"task.train=jsonl:{folder}/train.jsonl", "task.label_column=labels"),
        *("task.max_length=16", "task.batch_size=16", "task.from_scratch=true", "platform=cpu", "mesh.data=1"),
        *("optimizer.learning_rate=2e-3", "schedule.warmup_steps=2", "logging.tensorboard=false", *more),
    ]
    return [
        "finetune",
        "--config",
        "finetune/multilabel",
        "--workdir",
        str(workdir),
        *(f"--config.{each}" for each in keys),
    ]


def scores(records: list[dict[str, Any]], gold: list[set[str]]) -> dict[str, float]:
    predicted = np.array([[name in record["labels"] for name in NAMES] for record in records])
    right = np.array([[name in labels for name in NAMES] for labels in gold])
    micro, macro = (metrics.f1_score(right, predicted, average=each, zero_division=0) for each in ("micro", "macro"))
    return {"micro_f1": micro, "macro_f1": macro, "exact_match": float((right == predicted).all(1).mean())}


@pytest.mark.long
def test_thresholds_are_tuned_and_stored(
    finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_texts(tmp_path / "train.jsonl", 200)
    gold = write_texts(tmp_path / "dev.jsonl", 60)
    more = (f"task.eval=jsonl:{tmp_path}/dev.jsonl", "task.epochs=16", "task.evals_per_epoch=0.25", "seed=2")
    more += ("train.compute_dtype=float32",)  # the same on every processor, but for rounding
    more += (
        "task.multilabel.tune_thresholds=per_label",
        "task.multilabel.tune_fraction=0.3",
        "task.class_weights=2,3,1",
        "checkpoint.best_metric=eval/map",
    )
    arguments = finetune_arguments(finished, tmp_path, tmp_path / "run", *more, "task.export_checkpoint=best")
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert "task: multilabel, 140 examples, labels animal, likes, plain" in printed
    thresholds = list(read_config(tmp_path / "run").task.multilabel.thresholds)
    assert len(thresholds) == 3 and len({*thresholds}) > 1
    config = json.loads((tmp_path / "run" / "export" / "config.json").read_text())
    assert config["problem_type"] == "multi_label_classification" and config["thresholds"] == thresholds
    assert config["id2label"] == dict(zip("012", NAMES, strict=True))

    of_export = bertjax.predict(tmp_path / "run" / "export", tmp_path / "dev.jsonl", label_column="labels", score=True)
    assert of_export.metrics is not None
    expected = scores(of_export, gold)
    assert {name: of_export.metrics[name] for name in expected} == pytest.approx(expected, abs=1e-9)
    assert expected["micro_f1"] > 0.9
    for record in of_export:
        reached = zip(NAMES, record["probabilities"].values(), thresholds, strict=True)
        assert record["labels"] == [name for name, each, threshold in reached if each >= threshold]
    held_out = printed.rpartition("held out, ")[2]
    assert (
        f"micro_f1 {expected['micro_f1']:.4f}" in held_out and f"exact_match {expected['exact_match']:.4f}" in held_out
    )

    rows = read_run(tmp_path / "run").newest("classes")[-1]["rows"]  # of the best weights, after those of the last step
    assert [row["label"] for row in rows] == [*NAMES] and {"threshold", "average_precision"} <= rows[0].keys()
    assert "average precision</th>" in (tmp_path / "run" / "report.html").read_text()

    before = (tmp_path / "run" / "config.json").read_bytes()
    assert main(arguments) == 0  # a finished run: exported again, with the same thresholds
    assert (tmp_path / "run" / "config.json").read_bytes() == before


@pytest.mark.long
def test_without_held_out_examples_and_with_one_threshold(finished: Finished, tmp_path: Path) -> None:
    write_texts(tmp_path / "train.jsonl", 80)
    gold = write_texts(tmp_path / "dev.jsonl", 30)
    more = ("task.epochs=1", "report.enabled=false", "task.packing=false")
    assert main(finetune_arguments(finished, tmp_path, tmp_path / "run", *more)) == 0
    (threshold,) = read_config(tmp_path / "run").task.multilabel.thresholds
    assert threshold != 0.5
    of_run = bertjax.predict(tmp_path / "run", tmp_path / "dev.jsonl")
    assert of_run == bertjax.predict(tmp_path / "run" / "export", tmp_path / "dev.jsonl")
    result = evaluate(tmp_path / "run", inputs=[f"jsonl:{tmp_path}/dev.jsonl"])
    expected = scores(of_run, gold)
    assert {name: result[f"eval/{name}"] for name in expected} == pytest.approx(expected, abs=1e-9)
