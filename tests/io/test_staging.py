"""Folders in object stores: the local copy follows the store, the store follows a run, and a lease excludes others."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bertjax.errors import UserError
from bertjax.io import staging
from bertjax.io.run_lock import LOCK, DirectoryInUseError, RunLock
from bertjax.io.staging import LEASE, display_path, local_copy, output_path, stored_folder
from bertjax.io.store import Store


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A folder of the store in this process's memory, and an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    store = Store(f"memory://bucket/{tmp_path.name}")
    yield store.url
    store.remove(store.list())


def names(url: str) -> list[str]:
    return list(Store(url).list())


def noting(moved: list[str], method: str) -> Callable:
    """Returns the method of a store that also notes the names that it moves."""
    original = getattr(Store, method)

    def noted(self: Store, files) -> None:
        files = list(files)
        moved.extend(f"{method} {each}" for pair in files for each in pair if isinstance(each, str))
        original(self, files)

    return noted


def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, host: str) -> None:
    """Continues on another host: with another disk."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / host))


def test_a_path_stays_a_path(tmp_path: Path) -> None:
    assert local_copy(tmp_path) == tmp_path and stored_folder(tmp_path) is None
    assert display_path(tmp_path / "a") == str(tmp_path / "a")


def test_the_copy_follows_the_store(url: str) -> None:
    store = Store(url)
    store.write("config.json", b"1")
    store.write("tokenizer/vocab.txt", b"2")
    folder = local_copy(Path(url))  # pathlib drops a slash
    assert (folder / "config.json").read_text() == "1" and (folder / "tokenizer/vocab.txt").read_text() == "2"
    assert display_path(folder / "tokenizer") == f"{url}/tokenizer"
    store.write("config.json", b"3")
    store.remove(["tokenizer/vocab.txt"])
    assert local_copy(url) == folder
    assert (folder / "config.json").read_text() == "3" and not (folder / "tokenizer/vocab.txt").exists()


def test_only_what_changed_is_downloaded_and_uploaded(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store, moved = Store(url), list[str]()
    for name in "abc":
        store.write(name, name.encode())
    folder = local_copy(url)
    for method in ("download", "upload"):
        monkeypatch.setattr(Store, method, noting(moved, method))
    store.write("b", b"changed")
    local_copy(url)
    (folder / "c").write_text("changed here")
    (folder / "d").write_text("new")
    stored = stored_folder(folder)
    stored.push()
    stored.push()
    local_copy(url)
    assert moved == ["download b", "upload c", "upload d"]
    (folder / "a").unlink()
    stored.push()
    assert names(url) == ["b", "c", "d"]


def test_a_log_that_grew_after_the_last_upload_stays(url: str) -> None:
    store = Store(url)
    store.write("metrics.jsonl", b'{"step": 1}\n')
    store.write("other.jsonl", b'{"step": 1}\n')
    folder = local_copy(url)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2}\n')
    (folder / "other.jsonl").write_text('{"step": 7}\n{"step": 8}\n')
    local_copy(url)
    assert (folder / "metrics.jsonl").read_text() == '{"step": 1}\n{"step": 2}\n'
    assert (folder / "other.jsonl").read_text() == '{"step": 1}\n'  # not a continuation
    stored_folder(folder).push()
    assert store.read("metrics.jsonl") == b'{"step": 1}\n{"step": 2}\n'


def test_a_copy_in_use_is_not_changed(url: str) -> None:
    store = Store(url)
    store.write("metrics.jsonl", b"old")
    folder = local_copy(url)
    lock = RunLock(folder / LOCK)
    lock.acquire()
    (folder / "metrics.jsonl").write_text("newer, from the run")
    local_copy(url)
    assert (folder / "metrics.jsonl").read_text() == "newer, from the run"
    lock.release()


def test_manifests_are_downloaded_and_arrays_when_they_are_restored(url: str) -> None:
    store = Store(url)
    for name in ("4/bertjax.json", "4/state/a", "6/state/a"):
        store.write(f"checkpoints/{name}", name.encode())
    folder = local_copy(url)
    (folder / "checkpoints/9").mkdir()
    assert sorted(path.name for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".")) == [
        "bertjax.json"
    ]
    local_copy(url)
    assert not (folder / "checkpoints/9").exists()  # never uploaded as a whole
    stored = stored_folder(folder)
    stored.fetch("checkpoints/4", ["state/a", "state/missing"])
    assert (folder / "checkpoints/4/state/a").read_text() == "4/state/a"
    assert stored.incomplete("checkpoints", "bertjax.json") == ["6"]
    stored.set_aside("checkpoints/4", "checkpoints/damaged/4")
    assert [each for each in names(url) if "damaged" in each] == [
        "checkpoints/damaged/4/bertjax.json",
        "checkpoints/damaged/4/state/a",
    ]
    assert not [each for each in names(url) if each.startswith("checkpoints/4")]


def test_a_checkpoint_counts_when_its_last_file_is_there(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, uploaded = local_copy(url), list[str]()
    monkeypatch.setattr(Store, "upload", noting(uploaded, "upload"))
    step = tmp_path / "step"
    for name in ("z", "state/a", "bertjax.json"):
        (step / name).parent.mkdir(parents=True, exist_ok=True)
        (step / name).write_text(name)
    (folder / "metrics.jsonl").write_text("line")
    stored = stored_folder(folder)
    with stored.hold():
        stored.publish("checkpoints/3", step, "bertjax.json")
        assert uploaded[0] == "upload metrics.jsonl" and uploaded[-1] == "upload checkpoints/3/bertjax.json"
        assert len(uploaded) == 4
        Store(url).write(LEASE, json.dumps({"token": "other", "holder": "process 7 on elsewhere"}).encode())
        with pytest.raises(PermissionError, match="process 7 on elsewhere"):
            stored.publish("checkpoints/4", step, "bertjax.json")
        assert not [name for name in names(url) if name.startswith("checkpoints/4")]
        Store(url).remove([LEASE])
        with pytest.raises(PermissionError, match="it was deleted"):
            stored.publish("checkpoints/4", step, "bertjax.json")
        Store(url).write(LEASE, json.dumps({"token": staging._TOKENS[url]}).encode())


def test_one_run_at_a_time_on_any_host(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with stored_folder(local_copy(url)).hold():
        elsewhere(monkeypatch, tmp_path, "second")
        second = stored_folder(local_copy(url))
        with (
            pytest.raises(
                DirectoryInUseError, match=rf"{url} is in use by process {os.getpid()} on .* renewed \d s ago"
            ),
            second.hold(),
        ):
            pass
    with second.hold():  # it is free again
        assert LEASE in names(url)
    assert names(url) == []


@pytest.mark.parametrize(
    ("host", "pid", "age", "is_free"),
    [
        ("elsewhere", 1, 200, False),
        ("elsewhere", 1, 400, True),
        (None, 2**22 + 1, 0, True),
        (None, os.getpid(), 10, False),
    ],
    ids=["alive", "expired", "killed here", "alive here"],
)
def test_a_lease_without_a_process_expires(url: str, host: str | None, pid: int, age: float, is_free: bool) -> None:
    lease = {"holder": "a run", "host": host or socket.gethostname(), "pid": pid, "renewed": time.time() - age}
    Store(url).write(LEASE, json.dumps({**lease, "token": "other"}).encode())
    stored = stored_folder(local_copy(url))
    if is_free:
        with stored.hold():
            pass
    else:
        with pytest.raises(DirectoryInUseError), stored.hold():
            pass


def test_a_run_uploads_and_renews_while_it_works(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "SYNC_SECONDS", 0.02)
    folder, store = local_copy(url), Store(url)
    with stored_folder(folder).hold():
        first = json.loads(store.read(LEASE))["renewed"]
        (folder / "metrics.jsonl").write_text("line")
        end = time.monotonic() + 20
        while "metrics.jsonl" not in names(url) or json.loads(store.read(LEASE))["renewed"] == first:
            assert time.monotonic() < end
            time.sleep(0.01)
        (folder / "report.html").write_text("page")
    assert names(url) == ["metrics.jsonl", "report.html"]
    assert threading.active_count() < 50


def test_a_store_that_fails_for_a_while_is_tried_again(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(staging, "SYNC_SECONDS", 0.02)
    folder, failing = local_copy(url), threading.Event()
    upload = Store.upload

    def sometimes(self: Store, files) -> None:
        if failing.is_set():
            raise OSError(5, "503 Slow Down")
        upload(self, files)

    monkeypatch.setattr(Store, "upload", sometimes)
    with stored_folder(folder).hold():
        failing.set()
        (folder / "metrics.jsonl").write_text("line")
        end = time.monotonic() + 20
        while "trying again" not in caplog.text:
            assert time.monotonic() < end
            time.sleep(0.01)
        failing.clear()
    assert names(url) == ["metrics.jsonl"]
    failing.set()
    with (
        pytest.raises(UserError, match=r"cannot be written; the same command uploads the rest from .*503 Slow Down"),
        stored_folder(folder).hold(),
    ):
        (folder / "metrics.jsonl").write_text("lines")
    failing.clear()
    with stored_folder(folder).hold():
        pass
    assert Store(url).read("metrics.jsonl") == b"lines"


def test_results_are_written_to_a_store(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with output_path(Path(f"{url}/model")) as local:
        (local / "code").mkdir(parents=True)
        for name in ("config.json", "model.safetensors", "code/a.py"):
            (local / name).write_text(name)
    assert names(f"{url}/model") == ["code/a.py", "config.json", "model.safetensors"]
    assert capsys.readouterr().out == f"uploaded to {url}/model\n"
    with pytest.raises(UserError, match="is not empty"), output_path(Path(f"{url}/model")):
        raise AssertionError("nothing may be made that cannot be uploaded")
    with output_path(Path(f"{url}/model"), overwrite=True) as local:
        local.mkdir()
        (local / "config.json").write_text("2")
    assert names(f"{url}/model") == ["config.json"]
    with output_path(Path(f"{url}/vectors.npz")) as local:
        local.write_bytes(b"vectors")
    assert Store(url).read("vectors.npz") == b"vectors"
    with output_path(tmp_path / "local") as local:
        assert local == tmp_path / "local"
    with pytest.raises(ValueError), output_path(Path(f"{url}/never")) as local:
        local.mkdir()
        (local / "half").write_text("")
        raise ValueError
    assert names(f"{url}/never") == []
