"""A student from the command line: which teachers it accepts, and how it trains without one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import pytest
from lab import Finished, Lab

from bertjax.data.tokenizer_io import load_tokenizer
from bertjax.experiment.load import load_run, stored_teacher
from bertjax.experiment.teacher import read_teacher
from bertjax.experiment.workdir import read_config
from bertjax.hf.pretrained import load_pretrained


class Taught(NamedTuple):
    teacher: Path
    workdir: Path
    arguments: tuple[str, ...]
    printed: str


@pytest.fixture(scope="module")
def taught(lab: Lab, finished: Finished) -> Taught:
    """One layer, initialized from the teacher's last layer of two."""
    import contextlib
    import io

    teacher, workdir, printed = lab.folder / "teacher", lab.folder / "student", io.StringIO()
    shutil.copytree(finished.workdir, teacher)
    arguments = (
        "--config.objective.name=distillation",
        f"--config.objective.distillation.teacher={teacher}",
        f"--config.data.tokenizer={finished.workdir}/tokenizer",
        "--config.model.num_layers=1",
        "--config.objective.distillation.teacher_layers=1",
    )
    with contextlib.redirect_stdout(printed):
        assert lab.run("pretrain", "--workdir", workdir, *arguments) == 0
    return Taught(teacher, workdir, arguments, printed.getvalue())


def last_metrics(workdir: Path) -> dict[str, float]:
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    return next(record for line in reversed(lines) if "eval/loss" in (record := json.loads(line)))


@pytest.mark.long
def test_a_student_is_trained_and_exported(taught: Taught, finished: Finished) -> None:
    assert f"the student starts as layers 1 of {taught.teacher}" in taught.printed
    result = last_metrics(taught.workdir)
    for name in ("kd_loss", "cosine_loss", "mlm_loss", "mlm_unigram_loss", "teacher_mlm_loss"):
        assert np.isfinite(result[f"eval/{name}"]), name
    np.testing.assert_allclose(
        result["eval/loss"],
        5 * result["eval/kd_loss"] + result["eval/mlm_loss"] + result["eval/cosine_loss"],
        rtol=1e-5,
    )
    model = load_pretrained(taught.workdir / "export")
    assert model.config.num_layers == 1 and model.heads == ("mlm",)
    assert set(load_run(taught.workdir).params) == {"encoder", "mlm_head"}  # no weights of the teacher are saved
    description = stored_teacher(taught.workdir)
    assert (
        description is not None
        and description.config.num_layers == 2
        and description.heads == ("pooler", "mlm", "pair")
    )


@pytest.mark.long
def test_the_first_batch_finds_the_teachers_layer(taught: Taught, lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    """At a rate of zero, a student keeps its initial weights."""
    workdir = lab.folder / "still"
    rates = ("--config.optimizer.learning_rate=1e-30", "--config.train.num_steps=1")
    assert lab.run("pretrain", "--workdir", workdir, *taught.arguments, *rates) == 0
    capsys.readouterr()
    ours, theirs = load_run(workdir).params, load_run(taught.teacher).params
    jax.tree.map(
        lambda one, other: np.testing.assert_array_equal(one, other[1:]),
        ours["encoder"]["layers"],
        theirs["encoder"]["layers"],
    )
    jax.tree.map(np.testing.assert_array_equal, ours["encoder"]["embeddings"], theirs["encoder"]["embeddings"])
    jax.tree.map(np.testing.assert_array_equal, ours["mlm_head"], theirs["mlm_head"])


@pytest.mark.long
def test_a_work_folder_and_its_export_are_one_teacher(taught: Taught) -> None:
    cfg = read_config(taught.workdir)
    tokenizer = load_tokenizer(taught.workdir / "tokenizer")
    teacher = read_teacher(cfg, tokenizer)
    cfg.objective.distillation.teacher = str(taught.teacher / "export")
    export = read_teacher(cfg, tokenizer)
    assert teacher is not None and export is not None
    assert teacher.network.heads == export.network.heads
    jax.tree.map(np.testing.assert_array_equal, teacher.params, export.params)


@pytest.mark.long
def test_without_its_teacher_a_student_is_itself(
    lab: Lab, taught: Taught, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    gone = tmp_path / "gone"
    assert lab.run("evaluate", "--workdir", taught.workdir) == 0
    with_teacher = capsys.readouterr().out
    assert "kd" in with_teacher and "by itself" not in with_teacher
    taught.teacher.rename(gone)
    try:
        assert lab.run("evaluate", "--workdir", taught.workdir) == 0
        alone = capsys.readouterr().out
        assert lab.run("export", "--workdir", taught.workdir, "--out", tmp_path / "exported") == 0
        assert lab.run("pretrain", "--workdir", lab.folder / "no-teacher", *taught.arguments) == 2
    finally:
        gone.rename(taught.teacher)
    assert "evaluating the student without its teacher" in alone and "kd" not in alone
    loss = f"{last_metrics(taught.workdir)['eval/mlm_loss']:.3f}"
    assert loss in with_teacher and loss in alone
    assert f"{taught.teacher} holds no model" in capsys.readouterr().err
    assert not (lab.folder / "no-teacher").exists()


@pytest.mark.long
def test_another_teacher_cannot_take_over(lab: Lab, taught: Taught, capsys: pytest.CaptureFixture[str]) -> None:
    current = f"teacher={taught.teacher}"
    other = [argument.replace(current, f"teacher={taught.workdir}/export") for argument in taught.arguments]
    assert lab.run("pretrain", "--workdir", taught.workdir, *other) == 2
    assert "changed since its checkpoint (teacher)" in capsys.readouterr().err
    shutil.copytree(taught.teacher, lab.folder / "moved")
    moved = [argument.replace(current, f"teacher={lab.folder}/moved") for argument in taught.arguments]
    assert lab.run("pretrain", "--workdir", taught.workdir, *moved) == 0


@pytest.mark.long
def test_teachers_of_other_vocabularies_are_refused(
    lab: Lab, taught: Taught, capsys: pytest.CaptureFixture[str]
) -> None:
    untokenized = [argument for argument in taught.arguments if "tokenizer" not in argument]
    assert lab.run("pretrain", "--workdir", lab.folder / "x", *untokenized, "--config.data.vocab_size=100") == 2
    assert "has other tokens than data.tokenizer" in capsys.readouterr().err
    none = [argument for argument in untokenized if not argument.startswith("--config.objective.distillation.teacher=")]
    assert lab.run("pretrain", "--workdir", lab.folder / "x", *none) == 2
    assert "objective.name=distillation needs a teacher" in capsys.readouterr().err
    both = [*taught.arguments, f"--config.init_from={taught.teacher}"]
    assert lab.run("pretrain", "--workdir", lab.folder / "x", *both) == 2
    assert "use one of them" in capsys.readouterr().err


@pytest.mark.long
def test_what_a_run_would_cost_and_see(lab: Lab, taught: Taught, capsys: pytest.CaptureFixture[str]) -> None:
    assert lab.run("pretrain", "--workdir", lab.folder / "y", *taught.arguments, "--config.dry_run=true") == 0
    assert "teacher           " in capsys.readouterr().out
    assert lab.run("inspect-data", *taught.arguments, "--batches", 1) == 0
    assert "predictions" in capsys.readouterr().out
    plain = ("--config.objective.distillation.mask_inputs=false", "--config.objective.distillation.mlm_weight=0")
    assert lab.run("inspect-data", *taught.arguments, *plain, "--batches", 1) == 0
    assert "predictions" not in capsys.readouterr().out
