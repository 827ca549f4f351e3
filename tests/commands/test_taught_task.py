"""`task.teacher`: a task is learned from the scores of a finetuned model, which are computed once."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from lab import NOUNS, Finished

import bertjax
from bertjax.cli import main
from bertjax.experiment.task_teacher import FILE
from bertjax.report.run_record import read_run

pytestmark = pytest.mark.long


def write_texts(path: Path, count: int, seed: int, wrong: bool = False) -> None:
    """Writes sentences whose class is that of their noun; with `wrong` it is drawn."""
    draw, lines = np.random.default_rng(seed), ["text\tlabel"]
    for _ in range(count):
        number = int(draw.integers(0, 6))
        animal = bool(draw.integers(0, 2)) if wrong else number < 3
        lines.append(f"the {NOUNS[number]} is here.\t{'animal' if animal else 'thing'}")
    path.write_text("\n".join(lines) + "\n")


def finetune(model: Path, folder: Path, run: Path, *more: str) -> int:
    keys = [
        *(f"init_from={model}", f"task.train=tsv:{folder}/train.tsv", f"task.eval=tsv:{folder}/dev.tsv"),
        *("task.header=true", "task.text_column=text", "task.max_length=16", "task.batch_size=16"),
        *("task.epochs=16", "task.evals_per_epoch=0.25", "task.from_scratch=true", "platform=cpu", "mesh.data=1"),
        *("optimizer.learning_rate=2e-3", "schedule.warmup_steps=2", "logging.tensorboard=false", *more),
    ]
    keys = [f"--config.{each}" for each in keys]
    return main(["finetune", "--config", "finetune/classification", "--workdir", str(run), *keys])


@pytest.fixture(scope="module")
def teacher(finished: Finished, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the run of a model that knows the classes, in an order that is not that of the alphabet."""
    folder = tmp_path_factory.mktemp("teacher")
    write_texts(folder / "train.tsv", 200, 0)
    write_texts(folder / "dev.tsv", 60, 1)
    assert finetune(finished.workdir, folder, folder / "run", "task.labels=thing,animal", "report.enabled=false") == 0
    return folder / "run"


def test_a_student_learns_what_the_teacher_knows_from_wrong_labels(
    finished: Finished, teacher: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_texts(tmp_path / "train.tsv", 200, 2, wrong=True)
    write_texts(tmp_path / "dev.tsv", 60, 3)
    moved = tmp_path / "teacher"
    shutil.copytree(teacher / "export", moved)
    keys = (f"task.teacher={moved}", "task.teacher_weight=0.9", "task.teacher_temperature=1")
    assert finetune(finished.workdir, tmp_path, tmp_path / "run", *keys) == 0
    assert f"scoring 200 examples with {moved}" in capsys.readouterr().out
    scored = bertjax.predict(tmp_path / "run" / "export", tmp_path / "dev.tsv", score=True).metrics
    assert scored is not None and scored["accuracy"] > 0.95
    assert finetune(finished.workdir, tmp_path, tmp_path / "alone") == 0
    assert (read_run(tmp_path / "alone").metrics["eval/accuracy"].last or 0.0) < 0.8  # what the labels alone teach

    metrics = read_run(tmp_path / "run").metrics
    assert "train/classification_teacher_loss" in metrics and "eval/classification_teacher_loss" not in metrics
    assert metrics["eval/loss"].last == metrics["eval/classification_loss"].last
    stored = np.load(tmp_path / "run" / FILE)
    of_teacher = bertjax.predict(moved, tmp_path / "train.tsv")
    assert [int(row.argmax()) for row in stored] == [["animal", "thing"].index(each["label"]) for each in of_teacher]


def test_a_run_resumes_without_its_teacher(finished: Finished, teacher: Path, tmp_path: Path) -> None:
    write_texts(tmp_path / "train.tsv", 64, 4)
    write_texts(tmp_path / "dev.tsv", 20, 5)
    moved = tmp_path / "teacher"
    shutil.copytree(teacher / "export", moved)
    keys = (f"task.teacher={moved}", "task.epochs=4", "task.evals_per_epoch=1", "report.enabled=false")
    assert finetune(finished.workdir, tmp_path, tmp_path / "whole", *keys) == 0
    shutil.copytree(tmp_path / "whole", tmp_path / "run")
    steps = sorted((tmp_path / "run" / "checkpoints").iterdir(), key=lambda path: int(path.name))
    for path in steps[1:]:
        shutil.rmtree(path)
    shutil.rmtree(tmp_path / "run" / "export")
    shutil.rmtree(moved)
    assert finetune(finished.workdir, tmp_path, tmp_path / "run", *keys) == 0
    for name in ("whole", "run"):
        assert (tmp_path / name / "export" / "model.safetensors").is_file()
    whole, run = ((tmp_path / name / "export" / "model.safetensors").read_bytes() for name in ("whole", "run"))
    assert whole == run


def test_scores_without_a_checkpoint_are_computed_again(finished: Finished, teacher: Path, tmp_path: Path) -> None:
    """The run was stopped before its first checkpoint: another teacher, or other data, may follow."""
    write_texts(tmp_path / "train.tsv", 32, 4)
    write_texts(tmp_path / "dev.tsv", 20, 5)
    keys = (f"task.teacher={teacher}", "task.epochs=2", "report.enabled=false", "export.at_end=false")
    assert finetune(finished.workdir, tmp_path, tmp_path / "run", *keys) == 0
    right = np.load(tmp_path / "run" / FILE)
    np.save(tmp_path / "run" / FILE, np.zeros_like(right))
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    assert finetune(finished.workdir, tmp_path, tmp_path / "run", *keys) == 0
    np.testing.assert_array_equal(np.load(tmp_path / "run" / FILE), right)


def test_a_teacher_of_other_labels_is_refused(
    finished: Finished, teacher: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("train", "dev"):
        (tmp_path / f"{name}.tsv").write_text("text\tlabel\nthe dog is here.\tgood\nthe cat is here.\tbad\n")
    assert finetune(finished.workdir, tmp_path, tmp_path / "run", f"task.teacher={teacher}") == 2
    assert "knows the labels thing, animal, the data bad, good" in capsys.readouterr().err
    assert not (tmp_path / "run" / FILE).exists()
    assert finetune(finished.workdir, tmp_path, tmp_path / "run", f"task.teacher={finished.workdir}") == 2
    assert "the model has no task" in capsys.readouterr().err
    (tmp_path / "dry").mkdir()
    keys = (f"task.teacher={teacher}", "dry_run=true")
    assert finetune(finished.workdir, tmp_path, tmp_path / "dry", *keys) == 0 and not any((tmp_path / "dry").iterdir())
