"""`bertjax configs`: every config with what it needs, at any width; and `bertjax env`."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import pytest

from bertjax.cli import main
from bertjax.config.names import shipped_configs


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["configs", *arguments]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_the_list_fits_the_terminal(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = printed(capsys).splitlines()
    assert [line for line in lines if line in shipped_configs()] == [
        "quickstart",
        *(name for name in shipped_configs() if name != "quickstart" and "/" not in name),
        *(name for name in shipped_configs() if "/" in name),
    ]
    assert max(map(len, lines)) <= min(columns, 120)


def test_the_list_loads_no_config(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("bertjax.config.catalog.load_config")
    assert "Sizes and parameters: tiny 4.4M" in printed(capsys)


def test_facts_are_those_of_the_config(capsys: pytest.CaptureFixture[str]) -> None:
    facts = {each["name"]: each for each in json.loads(printed(capsys, "--json"))}
    base = facts["bert:base"]
    assert (base["parameters"], base["objective"], base["seq_lens"]) == (110_106_428, "mlm", [128, 512])
    assert (base["batch_size"], base["num_steps"], base["tokenizer"]) == (256, 1_000_000, "wordpiece")
    assert base["hardware"].startswith("by the paper (A.2), base took 4 days") and base["needs"] == []
    assert facts["modernbert:base-8192"]["needs"] == facts["simcse:base"]["needs"] == ["init_from"]
    assert facts["minilm:6x384"]["needs"] == ["objective.distillation.teacher"]
    squad = facts["finetune/qa:electra"]
    assert (squad["objective"], squad["epochs"], squad["needs"]) == ("qa", 2.0, ["init_from", "task.train"])


def test_one_config(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    text = printed(capsys, "bert")
    assert text.startswith("BERT, masked tokens") and "    bertjax pretrain --config bert:base --workdir" in text
    assert "\nbert:large        336,226,108  mlm        128, 512  256    1,000,000  wordpiece 30,522\n" in text
    assert "bert:tiny" not in printed(capsys, "bert:base")
    part = tmp_path / "mine.py"
    part.write_text("'''My run.'''\nfrom bertjax.config.defaults import base_config as get_config\n")
    assert printed(capsys, str(part)).startswith("My run.\n")
    assert main(["configs", "bert:bse"]) == 2 and "did you mean 'base'?" in capsys.readouterr().err
    assert main(["configs", "bret"]) == 2 and "did you mean bert?" in capsys.readouterr().err


def test_env_has_versions_settings_and_devices(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    assert main(["env"]) == 0
    facts = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert (facts["jax"], facts["NCCL_DEBUG"]) == (jax.__version__, "INFO")
    assert facts["devices"].strip() == f"{jax.device_count()} x cpu (cpu)"
