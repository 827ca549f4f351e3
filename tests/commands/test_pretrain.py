"""The whole workflow on a tiny corpus: train, stop, resume, export, load with other libraries."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lab import Finished, Lab, sentences

import bertjax
from bertjax.cli import main
from bertjax.errors import UserError
from bertjax.experiment.workdir import hold_workdir
from bertjax.hf.pretrained import load_pretrained
from bertjax.io.run_lock import RunLock
from bertjax.training import logging


def weights_digest(workdir: Path) -> str:
    return hashlib.sha256((workdir / "export" / "model.safetensors").read_bytes()).hexdigest()


def records(workdir: Path) -> list[dict]:
    return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


def without_times(record: dict) -> dict:
    timed = ("tokens_per_second", "seconds_per_step", "eta_seconds")
    return {key: value for key, value in record.items() if not key.endswith(timed)}


def test_a_run_leaves_what_the_design_promises(finished: Finished) -> None:
    result = {path.name for path in finished.workdir.iterdir()}
    assert {"config.json", "metrics.jsonl", "checkpoints", "tokenizer", "export"} <= result
    names = {key for record in records(finished.workdir) for key in record}
    assert {"step", "train/loss", "train/mlm_loss", "train/pair_loss", "train/tokens_per_second"} <= names
    assert {"eval/loss", "eval/mlm_loss", "eval/mlm_accuracy", "eval/mlm_unigram_loss", "eval/pair_accuracy"} <= names
    assert "the cat [MASK] the dog." in finished.printed
    assert "than guessing by frequency" in finished.printed


def test_evaluation_knows_the_unigram_entropy(finished: Finished) -> None:
    evaluations = [record for record in records(finished.workdir) if "eval/mlm_loss" in record]
    assert [record["step"] for record in evaluations] == [4, 8]
    # the evaluation batches and masks are fixed: guessing by frequency costs the same at every evaluation
    assert evaluations[0]["eval/mlm_unigram_loss"] == evaluations[1]["eval/mlm_unigram_loss"]
    assert 1.0 < evaluations[0]["eval/mlm_unigram_loss"] < np.log(120)


def test_the_export_is_what_transformers_loads(finished: Finished) -> None:
    torch = pytest.importorskip("torch")
    from transformers import AutoTokenizer, BertForMaskedLM, BertForPreTraining, BertModel

    folder = str(finished.workdir / "export")
    theirs, loading = BertForPreTraining.from_pretrained(folder, output_loading_info=True)
    assert not loading["missing_keys"] and not loading["unexpected_keys"]
    for model_class in (BertForMaskedLM, BertModel):
        _, loading = model_class.from_pretrained(folder, output_loading_info=True)
        assert not loading["missing_keys"]
    inputs = AutoTokenizer.from_pretrained(folder)(
        ["The cat sees the dog.", "A bird!"], ["The river.", "No."], padding=True, return_tensors="np"
    )
    ours = bertjax.load_pretrained(folder)(**inputs)
    with torch.no_grad():
        expected = theirs.eval()(**{key: torch.tensor(value) for key, value in inputs.items()})
    np.testing.assert_allclose(ours.logits, expected.prediction_logits.numpy(), atol=1e-4)
    np.testing.assert_allclose(ours.pair_logits, expected.seq_relationship_logits.numpy(), atol=1e-4)


def test_tokenizer_ids_equal_those_of_the_export(finished: Finished) -> None:
    pytest.importorskip("torch")
    from transformers import AutoTokenizer

    from bertjax.data.tokenizer_io import load_tokenizer

    theirs = AutoTokenizer.from_pretrained(str(finished.workdir / "export"))
    ours = load_tokenizer(finished.workdir / "tokenizer")
    for text in ("The cat sees the dog.", "Unknown wörds, and 中文!", ""):
        assert theirs(text, add_special_tokens=False)["input_ids"] == ours.encode_batch([text])[0].tolist()


class Crash(RuntimeError):
    """Simulates a killed process: only the interpreter's clean-up runs after it."""


def crash_after(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    advance = logging.Console.advance

    def crash(self: logging.Console, reached: int) -> None:
        advance(self, reached)
        if reached == step:
            raise Crash

    monkeypatch.setattr(logging.Console, "advance", crash)


def test_a_resumed_run_is_the_run_that_was_never_stopped(
    lab: Lab, finished: Finished, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    workdir = lab.folder / "resumed"
    for step in (3, 6, 7):  # three times: an error in the restored state may show only after a second resume
        with monkeypatch.context() as patch, pytest.raises(Crash):
            crash_after(patch, step)
            lab.run("pretrain", "--workdir", workdir)
    assert lab.run("pretrain", "--workdir", workdir) == 0
    assert "resuming at step 6" in capsys.readouterr().out
    assert weights_digest(workdir) == weights_digest(finished.workdir)
    assert [without_times(r) for r in records(workdir) if "eval/loss" in r] == [
        without_times(r) for r in records(finished.workdir) if "eval/loss" in r
    ]


@pytest.mark.long
def test_groups_of_several_steps_are_the_same_run_stopped_or_not(
    lab: Lab, finished: Finished, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`train.steps_per_dispatch`: the loss of every step, bit-exact also across a crash within a group of steps."""
    arguments = ["--config.train.steps_per_dispatch=2", "--config.checkpoint.interval_steps=4"]
    whole, stopped = lab.folder / "groups", lab.folder / "groups-stopped"
    assert lab.run("pretrain", "--workdir", whole, *arguments) == 0
    with monkeypatch.context() as patch, pytest.raises(Crash):
        crash_after(patch, 6)
        lab.run("pretrain", "--workdir", stopped, *arguments)
    assert lab.run("pretrain", "--workdir", stopped, *arguments) == 0
    assert weights_digest(stopped) == weights_digest(whole)
    result, expected = ([r["train/loss"] for r in records(w) if "train/loss" in r] for w in (whole, finished.workdir))
    np.testing.assert_allclose(result, expected, rtol=1e-5)
    assert len(expected) == 4


def test_a_finished_run_has_nothing_left_to_train(
    lab: Lab, finished: Finished, capsys: pytest.CaptureFixture[str]
) -> None:
    before = weights_digest(finished.workdir)
    assert lab.run("pretrain", "--workdir", finished.workdir) == 0
    assert "nothing is left to train" in capsys.readouterr().out
    assert weights_digest(finished.workdir) == before


@pytest.mark.long
def test_sigterm_saves_and_the_same_command_resumes(
    lab: Lab, finished: Finished, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    workdir = lab.folder / "terminated"
    advance = logging.Console.advance

    def terminate(self: logging.Console, step: int) -> None:
        advance(self, step)
        if step == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(logging.Console, "advance", terminate)
        assert lab.run("pretrain", "--workdir", workdir) == 143
    assert "saved at step 3" in capsys.readouterr().err
    assert lab.run("pretrain", "--workdir", workdir) == 0
    assert weights_digest(workdir) == weights_digest(finished.workdir)


def test_another_experiment_is_refused_by_name(
    lab: Lab, finished: Finished, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.stat().st_mtime_ns for path in finished.workdir.rglob("*") if path.is_file()}
    arguments = ["--config.model.num_layers=3", "--config.data.seq_len=24"]
    assert lab.run("pretrain", "--workdir", finished.workdir, *arguments) == 2
    message = capsys.readouterr().err
    assert "model.num_layers: 2 there, 3 here" in message and "data.seq_len: 32 there, 24 here" in message
    assert {path: path.stat().st_mtime_ns for path in finished.workdir.rglob("*") if path.is_file()} == before


def test_a_work_directory_in_use_is_refused_with_its_holder(
    lab: Lab, finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    workdir = tmp_path / "run"
    shutil.copytree(finished.workdir, workdir)
    before = {path: path.stat().st_mtime_ns for path in workdir.rglob("*") if path.is_file()}
    lock = RunLock(workdir / ".lock")
    lock.acquire()
    assert lab.run("pretrain", "--workdir", workdir, "--config.train.num_steps=16") == 2
    assert main(["report", str(workdir), "--with-probes"]) == 2
    assert capsys.readouterr().err.count(f"{workdir} is in use by process {os.getpid()} on ") == 2
    lock.release()
    assert {path: path.stat().st_mtime_ns for path in workdir.rglob("*") if path.is_file()} == before


@pytest.mark.long
def test_more_steps_are_allowed_and_the_schedule_is_reported(
    lab: Lab, finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    workdir = tmp_path / "longer"
    shutil.copytree(finished.workdir, workdir)
    assert lab.run("pretrain", "--workdir", workdir, "--config.train.num_steps=10") == 0
    printed = capsys.readouterr().out
    assert "train.num_steps: 8 -> 10" in printed and "learning rate of the next step: 0.000e+00 before" in printed
    assert records(workdir)[-1]["step"] == 10


def test_nothing_held_out_leaves_no_folder(lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    workdir, text = tmp_path / "new" / "run", tmp_path / "one.txt"
    text.write_text("Word")
    arguments = [f"--config.data.sources=text:{text}", f"--config.data.cache_dir={tmp_path / 'cache'}"]
    assert lab.run("pretrain", "--workdir", workdir, *arguments, "--config.data.eval_fraction=0.0001") == 2
    assert "no text is held out, because there is too little" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("checkpoint.best_metric=eval/accuracy", "none of the metrics of an evaluation: eval/loss, eval/mlm_loss, "),
        ("logging.wandb_project=x", "wandb is missing"),
        ("data.cache_dir=/proc/x", "data.cache_dir=/proc/x cannot be written"),
    ],
)
def test_what_is_known_before_text_is_read(
    setting: str,
    message: str,
    lab: Lab,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def too_late(*_: Any) -> None:
        raise AssertionError("text was read")

    monkeypatch.setattr("bertjax.experiment.pretrain.prepare_on_first_process", too_late)
    find = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *more: None if name == "wandb" else find(name, *more))
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    assert lab.run("pretrain", "--workdir", tmp_path / "run", f"--config.{setting}") == 2
    assert message in capsys.readouterr().err and not (tmp_path / "run").exists()


def test_an_error_removes_only_folders_without_results(tmp_path: Path) -> None:
    def fail(workdir: Path, name: str, text: str) -> None:
        with pytest.raises(UserError), hold_workdir(workdir):
            (workdir / "tokenizer").mkdir()
            (workdir / name).write_text(text)
            raise UserError("broken")

    fail(tmp_path / "a", "metrics.jsonl", "")
    fail(tmp_path / "b" / "c", "config.json", "{}")
    fail(tmp_path / "d", "metrics.jsonl", '{"step": 1}\n')
    (tmp_path / "mine").mkdir()
    fail(tmp_path / "mine", "config.json", "{}")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["d", "mine"]
    assert sorted(each.name for each in (tmp_path / "mine").iterdir()) == ["config.json", "tokenizer"]


def test_changed_text_is_refused(lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus, workdir = tmp_path / "corpus.txt", tmp_path / "run"
    corpus.write_bytes(lab.corpus.read_bytes())
    arguments = ["--workdir", workdir, f"--config.data.sources=text:{corpus}"]
    assert lab.run("pretrain", *arguments) == 0
    corpus.write_text(corpus.read_text() + "\n\nA new document. It came later.\n")
    assert lab.run("pretrain", *arguments) == 2
    assert "the data of this run changed" in capsys.readouterr().err


@pytest.mark.long
def test_weights_come_from_an_export_or_a_work_folder(
    lab: Lab, finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = ["--config.train.num_steps=1"]  # all steps are warmup: the only step has rate 0
    for name, source in (("export", finished.workdir / "export"), ("workdir", finished.workdir)):
        workdir = tmp_path / name
        assert lab.run("pretrain", "--workdir", workdir, f"--config.init_from={source}", *steps) == 0
        assert weights_digest(workdir) == weights_digest(finished.workdir)
    cased = [*steps, "--config.data.lowercase=false"]  # as many tokens, but other ones
    assert lab.run("pretrain", "--workdir", tmp_path / "y", f"--config.init_from={finished.workdir}", *cased) == 2
    assert "other tokens than data.tokenizer has" in capsys.readouterr().err
    other = ["--config.model.num_layers=3", *steps]
    assert lab.run("pretrain", "--workdir", tmp_path / "x", f"--config.init_from={finished.workdir}", *other) == 2
    assert "num_layers 2 there, 3 here" in capsys.readouterr().err


@pytest.mark.weekly
def test_whole_words_static_masks_blocks_and_eight_devices(lab: Lab, tmp_path: Path) -> None:
    arguments = [
        "--config.objective.masking.mask_unit=whole_word",
        "--config.objective.masking.dynamic=false",
        "--config.data.example_format=block",
        "--config.train.microbatches=2",
        "--config.train.batch_size=16",
        "--config.mesh.data=2",
        "--config.mesh.fsdp=2",
        "--config.mesh.tensor=2",
        "--config.train.num_steps=2",
        "--config.logging.tensorboard=true",
    ]
    assert lab.run("pretrain", "--workdir", tmp_path / "run", *arguments) == 0
    config = json.loads((tmp_path / "run" / "export" / "config.json").read_text())
    assert config["architectures"] == ["BertForMaskedLM"]
    assert list((tmp_path / "run" / "tensorboard").iterdir())


@pytest.mark.long
def test_a_mixture_is_evaluated_by_source(lab: Lab, tmp_path: Path) -> None:
    other = tmp_path / "other.txt"
    other.write_text("\n\n".join("\n".join(sentences(6, seed)).upper() for seed in range(100, 140)))
    arguments = [f"--config.data.sources=text:{lab.corpus}@0.75,text:{other}@0.25", "--config.export.at_end=false"]
    assert lab.run("pretrain", "--workdir", tmp_path / "run", *arguments) == 0
    names = [record for record in records(tmp_path / "run") if "eval/mlm_loss" in record][-1]
    by_source = {key.split("/")[1] for key in names if key.count("/") == 2}
    assert len(by_source) == 2 and any(name.endswith("other") for name in by_source)


@pytest.mark.long
@pytest.mark.parametrize("objective", ["rtd", "plm"])
def test_pairs_next_to_any_objective_of_tokens_are_exported_and_resumed(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, objective: str
) -> None:
    arguments = [f"--config.objective.name={objective}", "--config.data.example_format=sop_pairs"]
    arguments += ["--config.eval.fill_mask=", "--config.checkpoint.interval_steps=4"]
    arguments += ["--config.model.preset=xlnet-base"] if objective == "plm" else []
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    assert lab.run("pretrain", "--workdir", whole, *arguments) == 0
    with monkeypatch.context() as patch, pytest.raises(Crash):
        crash_after(patch, 6)
        lab.run("pretrain", "--workdir", stopped, *arguments)
    assert lab.run("pretrain", "--workdir", stopped, *arguments) == 0
    assert weights_digest(stopped) == weights_digest(whole)
    assert {"pooler", "pair"} < set(load_pretrained(whole / "export").heads)
    result = [record["eval/pair_loss"] for record in records(whole) if "eval/pair_loss" in record]
    assert len(result) == 2 and np.isfinite(result).all()
