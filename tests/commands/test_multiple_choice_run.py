"""`task.kind=multiple_choice` from the data to predictions, resumed, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lab import NOUNS, Finished

import bertjax
from bertjax.cli import main
from bertjax.commands.evaluate import evaluate
from bertjax.errors import UserError
from bertjax.report.run_record import read_run

pytestmark = pytest.mark.long


def write_examples(path: Path, count: int) -> list[dict[str, Any]]:
    """Writes examples whose right choice repeats the noun of the context; two or three choices each."""
    draw, rows = np.random.default_rng(count), []
    for _ in range(count):
        nouns = [NOUNS[index] for index in draw.permutation(6)[: draw.integers(2, 4)]]
        right = int(draw.integers(0, len(nouns)))
        choices = [f"the {noun} is here." for noun in nouns]
        rows.append({"context": f"the {nouns[right]}.", "question": "so", "choices": choices, "label": right})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return rows


def arguments(finished: Finished, folder: Path, run: Path, *more: str) -> list[str]:
    keys = [
        *(f"init_from={finished.workdir}", f"task.train=jsonl:{folder}/train.jsonl", "task.max_length=24"),
        *(f"task.eval=jsonl:{folder}/dev.jsonl", "task.multiple_choice.question_column=question"),
        *("task.batch_size=16", "task.from_scratch=true", "platform=cpu", "mesh.data=1", "task.epochs=2"),
        *("optimizer.learning_rate=3e-3", "schedule.warmup_steps=2", "logging.tensorboard=false", *more),
    ]
    keys = [f"--config.{each}" for each in keys]
    return ["finetune", "--config", "finetune/multiple_choice", "--workdir", str(run), *keys]


def test_a_run_is_scored_predicted_and_resumed(
    finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_examples(tmp_path / "train.jsonl", 120)
    dev = write_examples(tmp_path / "dev.jsonl", 40)
    shutil.copy(tmp_path / "dev.jsonl", tmp_path / "test.jsonl")
    whole = arguments(
        finished, tmp_path, tmp_path / "whole", f"task.test=jsonl:{tmp_path}/test.jsonl", "checkpoint.keep=9"
    )
    assert main(whole) == 0
    printed = capsys.readouterr().out
    assert "task: multiple_choice, 120 examples" in printed
    of_export = bertjax.predict(tmp_path / "whole" / "export", tmp_path / "dev.jsonl", score=True)
    of_run = bertjax.predict(tmp_path / "whole", tmp_path / "dev.jsonl", score=True)
    assert [each["choice"] for each in of_run] == [each["choice"] for each in of_export]
    for record, row in zip(of_export, dev, strict=True):
        assert (
            len(record["probabilities"]) == len(row["choices"]) and record["text"] == row["choices"][record["choice"]]
        )
        assert sum(record["probabilities"]) == pytest.approx(1.0, abs=1e-5)
        assert record["choice"] == int(np.argmax(record["probabilities"]))
    accuracy = np.mean([each["choice"] == row["label"] for each, row in zip(of_export, dev, strict=True)])
    assert of_run.metrics is not None and {*of_run.metrics} == {"accuracy", "calibration_error"}
    assert of_export.metrics == pytest.approx(of_run.metrics, abs=1e-5)
    assert of_run.metrics["accuracy"] == pytest.approx(accuracy)
    assert f"accuracy {accuracy:.4f}" in printed.rpartition("held out, ")[2]
    assert "test: loss" in printed and f"accuracy {accuracy:.4f}" in printed.rpartition("test: ")[2]
    losses = [-np.log(each["probabilities"][row["label"]]) for each, row in zip(of_export, dev, strict=True)]
    result = evaluate(tmp_path / "whole")
    assert result["eval/loss"] == pytest.approx(np.mean(losses), abs=1e-4)
    assert result["eval/accuracy"] == pytest.approx(accuracy)
    assert read_run(tmp_path / "whole").metrics["train/multiple_choice_accuracy"].last is not None

    shutil.copytree(tmp_path / "whole", tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "export")
    last = max((tmp_path / "run" / "checkpoints").iterdir(), key=lambda path: int(path.name))
    shutil.rmtree(last)
    resumed = [each.replace("/whole", "/run") for each in whole]
    assert main(resumed) == 0
    assert "resuming at step" in capsys.readouterr().out
    one, other = (tmp_path / name / "export" / "model.safetensors" for name in ("whole", "run"))
    assert one.read_bytes() == other.read_bytes()


def test_packed_and_padded_batches_teach_the_same(finished: Finished, tmp_path: Path) -> None:
    write_examples(tmp_path / "train.jsonl", 32)
    write_examples(tmp_path / "dev.jsonl", 8)
    still = ("model.hidden_dropout=0.0", "model.attention_dropout=0.0", "report.enabled=false", "export.at_end=false")
    losses = []
    for packing in ("true", "false"):
        run = tmp_path / packing
        more = (*still, f"task.packing={packing}", "train.compute_dtype=float32", "train.log_interval_steps=1")
        assert main(arguments(finished, tmp_path, run, *more)) == 0
        losses.append(read_run(run).metrics["train/loss"].y)
    np.testing.assert_allclose(*losses, rtol=2e-4)


def test_what_is_refused(finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_examples(tmp_path / "train.jsonl", 16)
    (tmp_path / "dev.jsonl").write_text('{"context": "a", "question": "b", "choices": ["c", "d"], "label": 2}\n')
    assert main(arguments(finished, tmp_path, tmp_path / "run")) == 2
    assert f"{tmp_path}/dev.jsonl:1: label 2 is none of them" in capsys.readouterr().err
    write_examples(tmp_path / "dev.jsonl", 8)
    assert main(arguments(finished, tmp_path, tmp_path / "run", "train.microbatches=2")) == 2
    assert "train.microbatches=2 would divide the choices of an example" in capsys.readouterr().err
    assert main(arguments(finished, tmp_path, tmp_path / "run", "task.batch_size=4", "report.enabled=false")) == 0
    export = str(tmp_path / "run" / "export")
    assert main(["export", "--model", export, "--out", str(tmp_path / "graph"), "--onnx"]) == 2
    assert "a graph scores single texts" in capsys.readouterr().err
    with pytest.raises(UserError, match="choices are compared, which no explanation shows"):
        bertjax.explain(export, ["a text"])
    with pytest.raises(UserError, match="needs at least two choices"):
        bertjax.predict(export, [{"context": "a", "choices": ["b"]}])
    with pytest.raises(UserError, match="question"):
        bertjax.predict(tmp_path / "run", [{"context": "a", "choices": ["b", "c"]}])
    with pytest.raises(UserError, match="lines of text hold no choices"):
        (tmp_path / "lines.txt").write_text("a text\n")
        bertjax.predict(export, tmp_path / "lines.txt")
