"""Sentence embeddings from the command line."""

from __future__ import annotations

import json

import numpy as np
import pytest
from lab import Finished, Lab

from bertjax.experiment.load import load_run
from bertjax.hf.pretrained import load_pretrained

ARGUMENTS = (
    "--config.objective.name=contrastive",
    "--config.objective.contrastive.mlm_weight=0",
    "--config.eval.fill_mask=",
    "--config.train.num_steps=2",
)


@pytest.mark.long
def test_a_run_goes_on_from_a_trained_model_and_exports_an_encoder(
    lab: Lab, finished: Finished, capsys: pytest.CaptureFixture[str]
) -> None:
    workdir = lab.folder / "contrastive"
    start = f"--config.init_from={finished.workdir}"
    assert lab.run("pretrain", "--workdir", workdir, *ARGUMENTS, start) == 0
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    result = next(line for line in reversed(lines) if "eval/loss" in line)
    assert result["eval/loss"] == result["eval/contrastive_loss"] and result["eval/uniformity"] < 0
    assert {"eval/contrastive_accuracy", "eval/alignment"} <= set(result)
    assert set(load_run(workdir).params) == {"encoder", "projection"}
    model = load_pretrained(workdir / "export")
    assert model.heads == () and set(model.params) == {"encoder"}
    ids = np.array([[2, 8, 9, 3]])
    assert np.isfinite(model(ids).last_hidden_state).all()
    capsys.readouterr()
    assert lab.run("evaluate", "--workdir", workdir) == 0
    assert f"{result['eval/contrastive_loss']:.3f}" in capsys.readouterr().out


def test_what_would_make_twins_equal_or_batches_small_is_refused(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    still = ("--config.model.hidden_dropout=0", "--config.model.attention_dropout=0")
    assert lab.run("pretrain", "--workdir", lab.folder / "z", *ARGUMENTS, *still) == 2
    assert "makes two views of a text by dropout" in capsys.readouterr().err
    assert lab.run("pretrain", "--workdir", lab.folder / "z", *ARGUMENTS, "--config.train.microbatches=2") == 2
    assert "train.microbatches=2 would split" in capsys.readouterr().err
