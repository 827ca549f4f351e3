"""Folders in object stores: the local copy follows the store, the store follows a run, and a lease excludes others."""

from __future__ import annotations

import itertools
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFile

from bertjax.data.text_store import open_downloads
from bertjax.errors import UserError
from bertjax.io import staging
from bertjax.io.run_lock import LEASE, LOCK, DirectoryInUseError, RunLock
from bertjax.io.staging import display_path, local_copy, output_path, stored_folder
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

    def noted(self: Store, files, *folder: Path) -> None:
        files = list(files)
        moved.extend(f"{method} {each if isinstance(each, str) else each[1]}" for each in files)
        original(self, files, *folder)

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
    assert (folder / "config.json").read_text() == "3" and not (folder / "tokenizer").exists()
    for name in ("checkpoints/4/bertjax.json", "export/a/b"):
        store.write(name, b"1")
    local_copy(url)
    store.remove(store.list())
    assert list(local_copy(url).iterdir()) == []  # a new run may begin here


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


@pytest.mark.parametrize(
    "state", ["", "[1]", '{"b": 7}', "{" * 100_000, "\udcff", '{"../../precious.txt": [1, "", 1, 1]}']
)
def test_a_damaged_state_of_the_copy_costs_a_download(url: str, state: str, tmp_path: Path) -> None:
    (tmp_path / "cache/bertjax/stores").mkdir(parents=True)
    precious = tmp_path / "cache/bertjax/precious.txt"
    precious.write_text("mine")
    Store(url).write("b", b"stored")
    folder = local_copy(url)
    folder.with_name(f"{folder.name}.json").write_bytes(state.encode(errors="surrogateescape"))
    (folder / "b").write_text("damaged")
    assert (local_copy(url) / "b").read_text() == "stored" and precious.read_text() == "mine"


def test_what_lies_in_a_folder_does_not_say_where_it_belongs(url: str, tmp_path: Path) -> None:
    """Neither a local folder with the bookkeeping of earlier versions, nor a copy that no command here names."""
    for marker in (".store.json", ".shards.json"):
        (tmp_path / marker).write_text(json.dumps({"url": url, "files": {"../precious.txt": [1, "", 1, 1]}}))
    assert local_copy(tmp_path) == tmp_path and stored_folder(tmp_path) is None
    assert open_downloads(tmp_path) is None
    folder = local_copy(url)
    other = folder.with_name("copied")
    folder.rename(other)
    assert stored_folder(other) is None and display_path(other) == str(other)


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
        held = Store(url).read(LEASE)
        Store(url).write(LEASE, lease(200))
        with pytest.raises(PermissionError, match="process 7 on elsewhere"):
            stored.publish("checkpoints/4", step, "bertjax.json")
        assert not [name for name in names(url) if name.startswith("checkpoints/4")]
        Store(url).remove([LEASE])
        with pytest.raises(PermissionError, match="it was deleted"):
            stored.publish("checkpoints/4", step, "bertjax.json")
        Store(url).write(LEASE, held)


def lease(seconds: float, holder: str = "process 7 on elsewhere", token: object = "0" * 32) -> bytes:
    """Returns the lease of another process, which ends in some seconds."""
    return f'{{"token": "{token}", "holder": "{holder}", "expires": {time.time() + seconds:.0f}}}'.encode()


def test_one_run_at_a_time_on_any_host(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with stored_folder(local_copy(url)).hold():
        elsewhere(monkeypatch, tmp_path, "second")
        second = stored_folder(local_copy(url))
        with (
            pytest.raises(
                DirectoryInUseError, match=rf"{url} is in use by process {os.getpid()} on .* this one in \d+ s"
            ),
            second.hold(),
        ):
            pass
    with second.hold():  # it is free again
        assert LEASE in names(url)
    assert names(url) == []


def test_a_lease_is_free_when_it_expires_or_its_process_has_ended_here(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by the name of a host, which another machine may have, too."""
    stored = stored_folder(local_copy(url))
    dead = lease(200, f"process {2**22 + 1} on {socket.gethostname()}")
    Store(url).write(LEASE, dead)
    with pytest.raises(DirectoryInUseError, match="in use by process 4194305"), stored.hold():
        pass
    assert Store(url).read(LEASE) == dead
    Store(url).write(LEASE, lease(-1))
    with stored.hold():
        with pytest.raises(DirectoryInUseError, match="in use by another process of this host"), stored.hold():
            pass
        killed = Store(url).read(LEASE)
    Store(url).write(LEASE, killed)
    elsewhere(monkeypatch, tmp_path, "second")
    with pytest.raises(DirectoryInUseError), stored_folder(local_copy(url)).hold():
        pass
    with stored.hold():  # the kernel has released the lock of the process that held this lease
        assert Store(url).read(LEASE) != killed
    assert names(url) == []


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{" * 100_000, b"\xff\xfe", b'{"token": 1}', b"9" * 5000, b"null", lease(10**12),
     lease(0, "a\x1b[2J"),
     lease(0, "x" * 999), lease(0, token=""), b'{"host": "here", "pid": "x", "renewed": "y", "token": "z"}'],
    ids=lambda content: repr(content[:12]),
)  # fmt: skip
def test_what_is_no_lease_is_left_alone(url: str, content: bytes) -> None:
    Store(url).write(LEASE, content)
    message = rf"{url} cannot be locked: its \.lease\.json is not the lease of a run; delete it if no run uses"
    with pytest.raises(UserError, match=message), stored_folder(local_copy(url)).hold():
        pass
    assert Store(url).read(LEASE) == content


def test_of_two_runs_that_start_together_one_has_the_lease(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stored, write = stored_folder(local_copy(url)), Store.write

    def second(self: Store, name: str, content: bytes, *, new: bool = False) -> None:
        write(self, name, lease(200))
        write(self, name, content, new=new)

    monkeypatch.setattr(Store, "write", second)
    with pytest.raises(UserError, match="another run has taken the lease: process 7 on elsewhere"), stored.hold():
        pass
    assert names(url) == [LEASE]


def test_a_folder_that_cannot_be_read_is_not_written(url: str) -> None:
    folder = local_copy(url)
    (folder / "old").write_text("of an earlier run")
    path = f"/{url.partition('://')[2]}/../evil"
    Store(url)._fs.store[path] = MemoryFile(Store(url)._fs, path, b"-")
    with pytest.raises(UserError, match=rf"{url}.*'\.\./evil' is not that of a file"), stored_folder(folder).hold():
        pass
    del Store(url)._fs.store[path]
    assert names(url) == [] and (folder / "old").exists()


def test_only_objects_that_were_seen_are_deleted(url: str) -> None:
    store, folder = Store(url), local_copy(url)
    with stored_folder(folder).hold():
        store.write("notes.txt", b"put there meanwhile")
        (folder / "metrics.jsonl").write_text("line")
    assert names(url) == ["metrics.jsonl", "notes.txt"]


def test_a_run_uploads_and_renews_while_it_works(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "SYNC_SECONDS", 0.02)
    monkeypatch.setattr("bertjax.io.run_lock.time.time", itertools.count(1_700_000_000).__next__)
    folder, store = local_copy(url), Store(url)
    with stored_folder(folder).hold():
        first = store.read(LEASE)
        (folder / "metrics.jsonl").write_text("line")
        end = time.monotonic() + 20
        while "metrics.jsonl" not in names(url) or store.read(LEASE) == first:
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
        pytest.raises(UserError, match=r"cannot be written; .* has what it lacks: 503 Slow Down"),
        stored_folder(folder).hold(),
    ):
        (folder / "metrics.jsonl").write_text("lines")
    failing.clear()
    assert (folder / "metrics.jsonl").read_text() == "lines"
    with stored_folder(folder).hold():
        pass
    assert LEASE not in names(url)


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
