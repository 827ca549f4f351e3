"""Every command that reads a work directory refuses settings, tokenizers and text that differ from those of the run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from lab import Finished, Lab

from bertjax.cli import main

READERS = {
    "export": lambda run, new: ["export", "--workdir", run, "--out", new],
    "evaluate": lambda run, new: ["evaluate", "--workdir", run],
    "report": lambda run, new: ["report", run],
    "report with probes": lambda run, new: ["report", run, "--with-probes"],
    "compare": lambda run, new: ["compare", run],
    "fill-mask": lambda run, new: ["fill-mask", "--model", run, "the [MASK] sees."],
    "embed": lambda run, new: ["embed", "--model", run, "--in", new.parent / "texts.txt", "--out", new],
}
"""Commands that read the work directory `run`; those that write use `new`."""


def swap_ids(workdir: Path) -> None:
    path = workdir / "tokenizer" / "tokenizer.json"
    content = json.loads(path.read_text())
    vocabulary = content["model"]["vocab"]
    first, second = sorted(vocabulary, key=vocabulary.__getitem__)[-2:]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    path.write_text(json.dumps(content))


def change_architecture(workdir: Path) -> None:
    path = workdir / "config.json"
    content = json.loads(path.read_text())
    content["model"]["max_position_embeddings"] = 48
    path.write_text(json.dumps(content))


CHANGES = {
    "tokenizer is not the tokenizer of this run, by its checkpoint of step 8": swap_ids,
    "belongs to another run (model.max_position_embeddings: 64 there, 48 here)": change_architecture,
}


@pytest.mark.long
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("message", CHANGES, ids=["tokenizer", "config"])
def test_readers_refuse_what_was_changed(
    finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str], reader: str, message: str
) -> None:
    run, new = tmp_path / "run", tmp_path / "new.npy"
    shutil.copytree(finished.workdir, run)
    CHANGES[message](run)
    (tmp_path / "texts.txt").write_text("The cat sees.\n")
    assert main([str(each) for each in READERS[reader](run, new)]) == 2
    assert message in capsys.readouterr().err
    assert not new.exists()


@pytest.mark.long
@pytest.mark.parametrize("key", ["init_from", "objective.distillation.teacher"])
def test_training_from_a_changed_run_is_refused(
    lab: Lab, finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str], key: str
) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished.workdir, run)
    swap_ids(run)
    arguments = [f"--config.{key}={run}"]
    arguments += ["--config.objective.name=distillation"] if "teacher" in key else []
    assert lab.run("pretrain", "--workdir", tmp_path / "new", *arguments) == 2
    assert "is not the tokenizer of this run" in capsys.readouterr().err
