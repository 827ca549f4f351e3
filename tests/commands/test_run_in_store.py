"""Runs whose work directory is in an object store: resumed on another host, killed, of two hosts without a shared disk."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab import Finished, Lab

from bertjax.cli import main
from bertjax.io.storage import Store


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "host"))
    store = Store(f"memory://bucket/{tmp_path.name}")
    yield f"{store.url}/run"
    store.remove(store.list())


def new_host(tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "host")


def test_stopped_and_resumed_on_another_host_it_is_the_same_run(
    url: str, lab: Lab, finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["pretrain", "--workdir", url]
    assert lab.run(*arguments) == 0
    store = Store(url)
    assert {name.split("/")[0] for name in store.list()} == {path.name for path in finished.workdir.iterdir()}
    log = store.read("metrics.jsonl")
    later = [name for name in store.list() if name.startswith(("checkpoints/6", "checkpoints/8", "export/"))]
    store.remove(later)
    new_host(tmp_path)
    assert lab.run(*arguments) == 0
    assert store.read("metrics.jsonl").count(b"\n") == log.count(b"\n")
    printed = capsys.readouterr().out
    assert "resuming at step 4" in printed and f"report: {url}/report.html" in printed
    expected = (finished.workdir / "export/model.safetensors").read_bytes()
    assert hashlib.sha256(store.read("export/model.safetensors")).digest() == hashlib.sha256(expected).digest()


def test_every_command_takes_a_url(
    url: str, lab: Lab, finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that was copied to a store: loaded, evaluated, exported and read."""
    files = [path for path in finished.workdir.rglob("*") if path.is_file()]
    Store(url).upload((path, path.relative_to(finished.workdir).as_posix()) for path in files)
    before = Store(url).list()
    out = url.replace("/run", "/out")
    assert lab.run("export", "--workdir", url, "--out", out) == 0
    assert lab.run("export", "--workdir", url, "--out", out) == 2
    assert f"{out} is not empty" in capsys.readouterr().err
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(Store(out).list())
    assert lab.run("evaluate", "--workdir", url) == 0
    capsys.readouterr()
    for model in (url, out):
        assert main(["fill-mask", "--model", model, "the cat [MASK] the dog."]) == 0
        assert "the cat" in capsys.readouterr().out
    assert main(["report", url]) == 0
    init = ["--config.init_from=" + url, "--config.data.tokenizer=" + f"{url}/tokenizer", "--config.train.num_steps=1"]
    assert lab.run("pretrain", "--workdir", tmp_path / "next", *init) == 0
    assert Store(url).list() == before  # readers change nothing


def test_a_refused_run_leaves_nothing(url: str, lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["pretrain", "--workdir", url, "--config.data.sources=text:/nowhere.txt"]
    assert lab.run(*arguments) == 2
    assert "/nowhere.txt" in capsys.readouterr().err and not Store(url).list()
    Store(url).write("notes.txt", b"mine")
    assert lab.run("pretrain", "--workdir", url) == 2
    assert "holds files but no run" in capsys.readouterr().err and list(Store(url).list()) == ["notes.txt"]
