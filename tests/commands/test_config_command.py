"""`bertjax config`."""

from __future__ import annotations

import pytest

from bertjax import cli
from bertjax.commands.config import describe_keys
from bertjax.config.defaults import base_config


def test_a_key_is_printed_with_value_default_choices_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--config", "configs/quickstart.py", "optimizer.name", "mesh", "--config.optimizer.name=lamb"]
    assert cli.main(["config", *arguments]) == 0
    text = capsys.readouterr().out
    assert "optimizer.name = lamb\n    adamw: Adam with decoupled weight decay." in text
    assert "Choices: adamw, lamb, stable_adamw, muon. (Default: adamw.)" in " ".join(text.split())
    assert [line.split(" = ")[0] for line in text.splitlines() if line[0] != " "] == [
        "mesh.data",
        "mesh.fsdp",
        "mesh.tensor",
        "optimizer.name",
    ]


def test_an_unknown_key_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["config", "--config", "configs/quickstart.py", "optimizer.lr"]) == 2
    assert "did you mean optimizer.learning_rate?" in capsys.readouterr().err


def test_keys_of_other_objectives_are_left_out() -> None:
    config = base_config()
    config.objective.name = "rtd"
    shown = {text.split(" = ")[0] for text in describe_keys(config, [])}
    assert {"objective.rtd.embedding_sharing", "generator.preset", "objective.masking.mask_rate"} <= shown
    assert not any(key.startswith(("objective.plm.", "objective.distillation.", "task.")) for key in shown)
