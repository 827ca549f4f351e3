"""`task.classification.calibrate`: the export of a run computes calibrated probabilities in any library."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from lab import NOUNS, Finished

import bertjax
from bertjax.cli import main
from bertjax.commands.evaluate import evaluate
from bertjax.experiment.workdir import read_config
from bertjax.report.run_record import read_run
from bertjax.tasks.classification import reliability


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
    from transformers import pipeline  # which takes seconds

    theirs = pipeline("text-classification", model=str(run / "export"))(texts[:20])
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
