"""`bertjax compile`: what it prints, writes and refuses, on virtual devices and on TPUs with libtpu."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import jax
import pytest

from bertjax.cli import main

CONFIG = str(Path(__file__).parents[2] / "configs" / "bert.py:smoke")
SMALL = ["--config.train.phases=", "--config.train.num_steps=10", "--config.data.seq_len=32"]
SMALL += ["--config.model.hidden_dropout=0.0", "--config.model.attention_dropout=0.0", "--config.compile_cache=false"]


def run(*arguments: str, monkeypatch: pytest.MonkeyPatch) -> int:
    assert len(jax.devices()) == 8  # jax has started with the devices of the tests
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")  # restored afterwards
    return main(["compile", "--config", CONFIG, *SMALL, *arguments])


@pytest.mark.long
def test_virtual_devices(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "metrics.json"
    mesh = ["--config.mesh.data=4", "--config.mesh.fsdp=2"]
    assert run("--devices", "8", "--out", str(out), *mesh, monkeypatch=monkeypatch) == 0
    output = capsys.readouterr().out
    assert "data=4 x fsdp=2 x tensor=1 = 8 x cpu, compiled only: nothing ran" in output
    assert "no estimate" in output and "MiB per chip" in output
    result = json.loads(out.read_text())
    assert result["devices"] == 8 and result["topology"] is None
    assert result["state_bytes"] > 0 and result["temporary_bytes"] > 0
    assert {each["kind"] for each in result["collectives"]} >= {"all-reduce", "all-gather"}
    assert result["estimated_mfu"] == dict.fromkeys(("as_compiled", "unrolled", "optimal", "roofline"))
    assert not list(tmp_path.glob("*/")), "nothing is prepared"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "set --topology, such as v5e-16 or h100:1x8, or --devices for"),
        (["--devices", "8", "--topology", "v5e-4"], "set --topology, such as v5e-16 or h100:1x8, or --devices for"),
        (["--topology", "b300"], "is not known"),
        (["--devices", "99"], "jax has started with 8 devices"),
        (["--devices", "8", "--config.mesh.data=4", "--config.mesh.fsdp=4"], "needs 16 devices"),
        (["--devices", "8", "--out", "/nowhere/metrics.json"], "no folder /nowhere for --out"),
        (["--devices", "8", "--config.objective.name=distillation"], "distill"),
    ],
)
def test_what_cannot_be_is_one_line(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(*arguments, monkeypatch=monkeypatch) == 2
    output = capsys.readouterr().err
    assert words in output and len(output.splitlines()) == 1


@pytest.mark.long
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs libtpu")
def test_a_slice_of_tpus(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention uses the TPU's kernel although this machine has no TPU, and products are bfloat16."""
    out = tmp_path / "metrics.json"
    rows = ["--config.train.batch_size=32", "--config.train.dropout_prng=rbg", "--config.data.seq_len=128"]
    rows += ["--config.model.max_position_embeddings=128"]
    assert run("--topology", "v5e-16", "--out", str(out), *rows, monkeypatch=monkeypatch) == 0
    result = json.loads(out.read_text())
    assert result["custom_calls"]["tpu_custom_call"] > 0 and result["compute_dtype"] == "bfloat16"
    assert all(0.0 < share < 1.0 for share in result["estimated_mfu"].values())
    assert "ESTIMATES of the compiler, not measured" in capsys.readouterr().out
    assert jax.devices()[0].platform == "cpu"
