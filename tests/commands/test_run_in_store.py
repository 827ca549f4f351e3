"""Runs in an object store: resumed on another host, killed, of two hosts without a shared disk."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
import pytest
from hosts import ended, start, wait_for
from lab import Finished, Lab
from stores import bucket_of, make_bucket, s3_server, use_servers

from bertjax.cli import main
from bertjax.experiment.load import load_run
from bertjax.io.staging import local_copy
from bertjax.io.store import Store


@pytest.fixture(params=["memory", *(pytest.param(each, marks=pytest.mark.long) for each in ("s3", "gs"))])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "host"))
    with bucket_of(request.param) as bucket:
        store = Store(f"{bucket}/{tmp_path.name}")
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
    there = {path.name for path in finished.workdir.iterdir()} - {"analyses"}  # of commands that other tests run on it
    assert {name.split("/")[0] for name in store.list()} == there
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


@pytest.mark.long
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


def test_a_folder_of_a_stranger_names_no_store(
    lab: Lab, finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bookkeeping inside a work directory, here that of earlier versions, uploads nothing and deletes nothing."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "host"))
    shutil.copytree(finished.workdir, tmp_path / "run")
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious/thesis.txt").write_text("years of work")
    marker = {"url": "memory://bucket/evil", "files": {"../precious/thesis.txt": [13, "tag", 1, 13]}}
    (tmp_path / "run/.store.json").write_text(json.dumps(marker))
    assert lab.run("pretrain", "--workdir", tmp_path / "run") == 0
    assert (tmp_path / "precious/thesis.txt").read_text() == "years of work"
    assert not Store("memory://bucket/evil").list()


def test_an_unknown_store_is_refused(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for arguments in (
        ["pretrain", "--workdir", "az://lab/run"],
        ["pretrain", "--workdir", tmp_path / "run", "--config.data.cache_dir=http://host/text"],
        ["pretrain", "--workdir", tmp_path / "run", "--config.data.sources=text:az://lab/a.txt"],
        ["pretrain", "--workdir", tmp_path / "run", "--config.data.tokenizer=s3://"],
    ):
        assert lab.run(*arguments) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "is none of s3://, gs://" in line or "names no bucket" in line
        assert list(tmp_path.iterdir()) == []


# --- real processes and a server of S3 ---


@pytest.fixture(scope="module")
def s3() -> Iterator[dict[str, str]]:
    with s3_server() as settings, pytest.MonkeyPatch.context() as patch:
        use_servers(settings, patch)
        make_bucket("s3://bucket")
        yield settings


def weights(workdir: str | Path) -> list[np.ndarray]:
    return jax.tree.leaves(load_run(local_copy(workdir)).params)


SHARDS = ["--config.data.shard_tokens=200", "--config.data.shuffle_shards=4"]


@pytest.fixture(scope="module")
def undisturbed(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> list[np.ndarray]:
    """The weights of a run on one host and its disk that nothing happens to."""
    folder = tmp_path_factory.mktemp("undisturbed")
    ended(start(lab, folder, folder / "local", 1, *SHARDS))
    return weights(folder / "local")


@pytest.mark.weekly
def test_killed_on_one_host_and_resumed_on_another_it_is_the_same_run(
    lab: Lab, s3: dict[str, str], undisturbed: list[np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    url, (run,) = "s3://bucket/killed", start(lab, tmp_path, "s3://bucket/killed", 1, *SHARDS)
    store = Store(url)
    wait_for(lambda: "checkpoints/6/bertjax.json" in store.list(), run)
    run.send_signal(signal.SIGKILL)
    run.communicate()
    shutil.rmtree(tmp_path / "host0")
    (second,) = start(lab, tmp_path, url, 1, *SHARDS)
    assert second.wait(timeout=280) == 2 and "in use by process" in second.communicate()[0]
    store.write(".lease.json", re.sub(rb'"expires": \d+', b'"expires": 1', store.read(".lease.json")))
    (output,) = ended(start(lab, tmp_path, url, 1, *SHARDS))
    assert "resuming at step" in output
    for stored, local in zip(weights(url), undisturbed, strict=True):
        assert np.asarray(stored).tobytes() == np.asarray(local).tobytes()


@pytest.mark.long
@pytest.mark.parametrize("text", [pytest.param("~/text", marks=pytest.mark.weekly), "s3://bucket/text"])
def test_two_hosts_train_without_a_shared_disk(
    lab: Lab,
    s3: dict[str, str],
    undisturbed: list[np.ndarray],
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Killed together, one of them replaced; with sharded parameters, whose checkpoints the first one collects.

    Their text is prepared by each or, in the store, once, and then each host reads its shards.
    """
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    url = f"s3://bucket/pair-{tmp_path.name}"
    settings = [f"--config.data.cache_dir={text}", *SHARDS]
    pair = start(lab, tmp_path, url, 2, *settings)
    store = Store(url)
    wait_for(lambda: "checkpoints/6/bertjax.json" in store.list(), *pair)
    for process in pair:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    shutil.rmtree(tmp_path / "host1")
    outputs = ended(start(lab, tmp_path, url, 2, *settings))
    assert "resuming at step" in outputs[0]
    if text != "~/text":
        shards = [shards_of(tmp_path / f"host{index}") for index in range(2)]
        assert shards[1] and shards[1] < shards[0]  # the first one has prepared the text
        assert "tokenized" not in outputs[0]
    for stored, local in zip(weights(url), undisturbed, strict=True):
        np.testing.assert_allclose(stored, local, rtol=1e-3, atol=1e-5)


def shards_of(home: Path) -> set[str]:
    return {path.name for path in home.glob(".cache/bertjax/stores/*/corpora/*/train/*.arrow")}
