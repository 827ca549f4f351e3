"""Bad settings end the command at once: status 2, one line with key, value and allowed values, no files (P25)."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from lab import Lab

import bertjax.experiment.pretrain as pretrain_module

# input -> words of the message: the key, the value, the allowed or nearest values
TYPING = {
    "--config.lrr=3": ["unknown key lrr; there are checkpoint, "],
    "--config.optimizer.lr=3": ["unknown key optimizer.lr", "did you mean optimizer.learning_rate?"],
    "config.optimizer.learning_rate=3": ["overrides start with two dashes", "--config.optimizer.learning_rate=3"],
    "-config.seed=3": ["overrides start with two dashes"],
    "leftover": ["unknown argument leftover", "--config.KEY=VALUE"],
    "--lr=3": ["unknown argument --lr=3"],
    "--config.seed": ["--config.seed has no value"],
    "--config.train.num_steps=True": ["train.num_steps expects a whole number, not 'True'"],
    "--config.train.num_steps=1.5": ["train.num_steps expects a whole number, not '1.5'"],
    "--config.train.num_steps=1e-3": ["train.num_steps expects a whole number, not '1e-3'"],
    "--config.data.lowercase=2": ["data.lowercase expects true or false, not '2'"],
    "--config.optimizer.learning_rate=inf": ["optimizer.learning_rate expects a number, not 'inf'"],
    "--config.data=3": ["data is a group of keys"],
}
RANGES = {
    "--config.train.num_steps=-1": ["train.num_steps must be at least 1, not -1"],
    "--config.train.num_steps=0": ["train.num_steps must be at least 1, not 0"],
    "--config.train.batch_size=0": ["train.batch_size must be at least 1, not 0"],
    "--config.train.microbatches=3": ["train.batch_size=8 is not divisible by 3", "nearest that are: 6, 9"],
    "--config.train.steps_per_dispatch=0": ["train.steps_per_dispatch must lie in [1, 10000], not 0"],
    "--config.train.microbatches=0": ["train.microbatches must be at least 1, not 0"],
    "--config.data.seq_len=4": ["data.seq_len must be at least 8, not 4"],
    "--config.data.vocab_size=1": ["data.vocab_size must lie in [8, 10000000], not 1"],
    "--config.data.eval_fraction=1.5": ["data.eval_fraction must lie in (0, 1), not 1.5"],
    "--config.data.dupe_factor=0": ["data.dupe_factor must be at least 1, not 0"],
    "--config.data.short_seq_prob=-0.1": ["data.short_seq_prob must lie in [0, 1], not -0.1"],
    "--config.data.packing=first_fit": ["data.packing", "none, best_fit", "'first_fit'"],
    "--config.data.encoding_errors=ignore": ["data.encoding_errors", "strict, replace", "'ignore'"],
    "--config.objective.masking.mask_rate=1.5": ["objective.masking.mask_rate", "1.5"],
    "--config.optimizer.b2=1": ["optimizer.b2 must lie in [0, 1), not 1.0"],
    "--config.optimizer.name=adam": ["optimizer.name", "did you mean 'adamw'?"],
    "--config.schedule.warmup_steps=-1": ["schedule.warmup_steps must be at least 0, not -1"],
    "--config.model.type_vocab_size=1": [
        "data.example_format=nsp_pairs has two segments",
        "set it to 2, or to 0",
    ],
    "--config.checkpoint.keep=0": ["checkpoint.keep must be at least 1, not 0"],
    "--config.mesh.data=0": ["mesh.data", "must be positive"],
    "--config.mesh.tensor=3": ["mesh.tensor=3 does not divide model.num_heads=4; 1, 2, 4 do"],
    "--config.model.num_heads=5": ["hidden_size 32 is not divisible by model.num_heads 5"],
    "--config.model.num_layers=0": ["num_layers", "0"],
    "--config.model.hidden_dropout=1.5": ["hidden_dropout", "1.5"],
    "--config.train.on_nonfinite=ignore": ["train.on_nonfinite", "raise, skip, rollback", "'ignore'"],
    "--config.train.skip_batches=5-3": ["train.skip_batches", "'5-3'"],
    "--config.train.phases=9:data.seq_len=4": ["data.seq_len"],
    "--config.data.tokenizer=3": ["data.tokenizer='3' is neither one of wordpiece, bpe, unigram"],
}
TOGETHER = {
    "--config.mesh.data=2 --config.train.batch_size=9": ["train.batch_size=9 is not divisible by 2", "8, 10"],
    "--config.mesh.data=-1 --config.train.batch_size=12": ["train.batch_size=12 is not divisible by 8", "8, 16"],
    "--config.mesh.data=16 --config.train.batch_size=16": ["needs 16 devices, but there are 8"],
    "--config.mesh.data=-1 --config.mesh.fsdp=3": ["8 devices cannot be split by 3"],
}
BAD = TYPING | RANGES | TOGETHER


@pytest.mark.parametrize("typed", BAD)
def test_a_bad_setting_is_answered_at_once(
    typed: str, lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def too_late(*_: Any) -> None:
        raise AssertionError("text was read, and a step would be compiled next")

    monkeypatch.setattr(pretrain_module, "prepare_on_first_process", too_late)
    began = time.monotonic()
    assert lab.run("pretrain", "--workdir", tmp_path / "run", *typed.split()) == 2
    assert time.monotonic() - began < 15
    output = capsys.readouterr().err
    assert output.count("\n") == 1 and not (tmp_path / "run").exists()
    for words in BAD[typed]:
        assert words in output


@pytest.mark.parametrize(
    ("typed", "key", "value"),
    [
        ("--config.train.num_steps=1e3", "train.num_steps", 1000),  # exactly an integer
        ("--config.data.tokenizer=bpe", "data.tokenizer", "bpe"),
        ("--config.optimizer.learning_rate=1", "optimizer.learning_rate", 1.0),
    ],
)
def test_what_is_meant_beyond_doubt_is_taken(typed: str, key: str, value: Any, lab: Lab) -> None:
    from bertjax.cli import _checked_config
    from bertjax.config.overrides import flatten

    result = flatten(_checked_config(str(lab.config), [typed]))[key]
    assert result == value and type(result) is type(value)
