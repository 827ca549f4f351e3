"""Object stores: servers of S3 and of an emulator of Google Cloud Storage on the loopback, and failing requests."""

from __future__ import annotations

import errno
import hashlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFile
from ml_collections import ConfigDict
from stores import SECRET, bucket_of, free_port, s3_through_proxy

import bertjax.storage as storage
from bertjax.config.inputs import cache_folder
from bertjax.errors import UserError
from bertjax.io.staging import local_copy, output_path
from bertjax.io.store import Store, open_decompressed
from bertjax.storage import expand_url, filesystem, is_url, local_path, open_binary, request, size_of, to_url

NUMBERS = itertools.count()


@pytest.fixture(scope="module", params=["memory", "s3", "gs"])
def scheme(request: pytest.FixtureRequest) -> Iterator[str]:
    with bucket_of(request.param):
        yield request.param


@pytest.fixture
def store(scheme: str) -> Store:
    return Store(f"{scheme}://bucket/folder-{next(NUMBERS)}")


def test_objects_are_listed_read_written_and_deleted(store: Store, tmp_path: Path) -> None:
    assert store.list() == {}
    store.write("a/b.txt", b"one")
    store.write("c", b"two", new=True)
    assert list(store.list()) == ["a/b.txt", "c"] and list(store.list("a")) == ["a/b.txt"]
    tags = {info.tag for info in store.list().values()}
    store.write("c", b"TWO")
    assert store.read("c") == b"TWO" and store.list()["c"].size == 3 and store.list()["c"].tag not in tags
    with pytest.raises(FileNotFoundError, match="no such object"):
        store.read("d")
    for content in (b"\r", b"\n", b"\r\n", b"\n\r"):
        store.write("c", content)
        assert store.read("c") == content
    files = [(tmp_path / name, f"up/{name}") for name in ("x", "y")]
    for path, name in files:
        path.write_bytes(name.encode() * 300_000)
    store.upload(files)
    store.download((name for _, name in files), tmp_path / "down")
    assert [(tmp_path / "down" / name).read_bytes() == path.read_bytes() for path, name in files] == [True, True]
    store.remove(["up/y", "c", "never there"])
    assert list(store.list()) == ["a/b.txt", "up/x"]
    (tmp_path / "folder/b").mkdir(parents=True)
    for name in ("z", "a", "b/c"):
        (tmp_path / "folder" / name).write_text(name)
    listed: list[list[str]] = []
    names = store.upload_folder(tmp_path / "folder", "f", "a", lambda: listed.append(list(store.list("f"))))
    assert listed == [["f/b/c", "f/z"]] and sorted(names) == list(store.list("f")) == ["f/a", "f/b/c", "f/z"]


HOSTILE = {"memory": "evil/../../../PWNED", "s3": "evil/../../../PWNED", "gs": "a//b"}  # the emulator refuses ..
NOT_PLAIN = ["../x", "a/..", "..", "", ".", "a/./b", "a//b", "/x", "a\\..\\b", "C:/x", "a\0", "a\n", "\ud800"]


def test_only_plain_names_become_files(store: Store, scheme: str, tmp_path: Path) -> None:
    """A name in a store is text of whoever wrote it: nothing is read where one leads elsewhere."""
    for name in [HOSTILE[scheme], *NOT_PLAIN]:
        with pytest.raises(OSError, match=r"is not that of a file below it"):
            store.download([name], tmp_path / "copy")
    assert list(tmp_path.iterdir()) == []
    store.write("config.json", b"{}")
    write_as_a_stranger(store, "folder/")  # what consoles make for an empty folder
    assert list(store.list()) == ["config.json"]
    write_as_a_stranger(store, HOSTILE[scheme])
    with pytest.raises(OSError, match=rf"the name '{HOSTILE[scheme]}' is not that"):
        store.list()
    for url in (f"{store.url}/../x", f"{store.url}//x", f"{store.url}/a\\b"):
        with pytest.raises(OSError, match="has no empty part"):
            Store(url)


def write_as_a_stranger(store: Store, name: str) -> None:
    """Writes an object under a name that the libraries would mend."""
    bucket, _, key = store.url.partition("://")[2].partition("/")
    if store.url.startswith("s3"):
        store._fs.call_s3("put_object", Bucket=bucket, Key=f"{key}/{name}", Body=b"")
    elif store.url.startswith("gs"):
        store._fs.pipe_file(f"{store.url}/{name}", b"-")
    else:
        path = f"/{bucket}/{key}/{name}"
        store._fs.store[path] = MemoryFile(store._fs, path, b"-")


def test_a_second_writer_of_a_new_object_is_refused(store: Store, scheme: str) -> None:
    store.write("lease", b"first", new=True)
    if scheme == "gs":
        pytest.skip("the emulator ignores the precondition that gcsfs sends")
    with pytest.raises(FileExistsError):
        store.write("lease", b"second", new=True)
    assert store.read("lease") == b"first"


def test_objects_are_read_as_files(store: Store, tmp_path: Path) -> None:
    import gzip

    content = bytes(range(256)) * 5000
    store.write("plain", content)
    store.write("packed.gz", gzip.compress(content))
    with open_binary(f"{store.url}/plain", 1000) as file:
        assert file.read(10) == content[:10]
        file.seek(-300, 2)
        assert file.read() == content[-300:] and file.read() == b"" and file.tell() == len(content)
        file.seek(77)
        assert file.read(5000) == content[77:5077]
    with open_decompressed(f"{store.url}/packed.gz") as (_, stream):
        assert stream.read() == content
    assert size_of(f"{store.url}/plain") == len(content)
    with pytest.raises(FileNotFoundError):
        open_binary(f"{store.url}/missing")


def test_patterns_match_objects_as_they_match_files(store: Store) -> None:
    for name in ("a.txt", "b.txt", "deep/er/c.txt", ".hidden/d.txt", "x.md", "odd[1].txt"):
        store.write(name, b"text")
    root = store.url

    def names(pattern: str) -> list[str]:
        return [url.removeprefix(f"{root}/") for url in expand_url(f"{root}/{pattern}")]

    assert names("*.txt") == ["a.txt", "b.txt", "odd[1].txt"]
    assert names("**/*.txt") == ["a.txt", "b.txt", "deep/er/c.txt", "odd[1].txt"]
    assert names("deep/*/c.*") == ["deep/er/c.txt"] and names("a.txt") == ["a.txt"]
    assert names("odd[1].txt") == ["odd[1].txt"]  # an object takes precedence over the pattern
    assert names("none*") == [] and names("deep") == []


def test_an_object_that_changes_while_it_is_read_is_an_error(store: Store) -> None:
    store.write("text", b"a" * 3000)
    with open_binary(f"{store.url}/text", 1000) as file:
        file.read(1000)
        store.write("text", b"b" * 2500)
        with pytest.raises(OSError, match=r"changed while it was read|bytes arrived"):
            file.read()


# --- requests that fail ---


def failing(*errors: Exception) -> Any:
    """Returns an action that raises these errors, one at a time, and then returns the number of its calls."""
    calls: list[None] = []

    def action() -> int:
        calls.append(None)
        if len(calls) <= len(errors):
            raise errors[len(calls) - 1]
        return len(calls)

    return action


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(0.0, 1.0)
    monkeypatch.setattr(storage.time, "sleep", lambda _: None)
    monkeypatch.setattr(storage.time, "monotonic", lambda: next(clock))


def test_what_may_pass_is_tried_again(no_pauses: None) -> None:
    reset, slow = ConnectionResetError(104, "Connection reset by peer"), OSError(16, "503 Slow Down")
    assert request("s3://b/a", failing(reset, slow, TimeoutError())) == 4
    with pytest.raises(OSError, match="503 Slow Down"):
        request("s3://b/a", failing(*[slow] * 100), patience=20)


@pytest.mark.parametrize(
    "error",
    [PermissionError("Access Denied"), ValueError("bad"), Exception("InvalidAccessKeyId: no such key"), ImportError()],
    ids=lambda error: type(error).__name__,
)
def test_what_will_not_pass_is_raised_at_once(error: Exception, no_pauses: None) -> None:
    action = failing(error)
    with pytest.raises((OSError, ImportError)):
        request("s3://b/a", action)
    assert action() == 2


def test_no_message_holds_a_secret(monkeypatch: pytest.MonkeyPatch, no_pauses: None) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s3cr3t-of-mine")
    text = "403 Forbidden for key s3cr3t-of-mine at https://x/?X-Amz-Signature=abcdef&X-Amz-Credential=ghi"
    with pytest.raises(OSError) as caught:
        request("s3://b/a", failing(Exception(text)))
    assert not [word for word in ("s3cr3t", "abcdef", "ghi") if word in str(caught.value)]
    assert "check the credentials" in str(caught.value) and caught.value.errno == errno.EACCES


def test_missing_credentials_are_an_explained_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    type(filesystem("s3://bucket")).clear_instance_cache()
    with pytest.raises(OSError, match=r"(?i)credentials"):
        Store("s3://bucket/x").list()
    assert SECRET != ""


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import fsspec

    monkeypatch.setattr(fsspec, "filesystem", lambda *_, **__: failing(ImportError("Please install gcsfs"))())
    with pytest.raises(OSError, match=r"pip install 'bertjax\[gcs\]' \(Please install gcsfs\)"):
        filesystem("gs://bucket/x")


@pytest.mark.parametrize(
    ("path", "expected"),
    [("s3://b/x/", "s3://b/x"), (Path("s3://b/x"), "s3://b/x"), ("gs:/b/x", "gs://b/x"), ("S3://B/x", "s3://B/x")],
)
def test_urls_survive_pathlib(path: str | Path, expected: str) -> None:
    assert is_url(path) and to_url(path) == expected


def test_other_paths_are_local() -> None:
    paths = ["a/b", "/s3/b", "hub:owner/name", "C:/x", "./az:/x", "12:/x", "a:b"]
    assert not any(map(is_url, [*paths, "s3:", "s3://", "file:///a"]))
    assert [local_path(path) for path in paths] == paths
    assert [local_path(f"{scheme}/a/b") for scheme in ("file://", "file:", "FILE://")] == ["/a/b"] * 3


@pytest.mark.parametrize("path", ["az://c/x", "http://h/x", "https:/h", "hdfs://x", "S3A://b/x", "s3://", "GS://"])
def test_an_unknown_scheme_is_no_local_folder(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for spelled in (path, Path(path)):
        with pytest.raises(UserError, match=r"(is none of s3://, gs://, file://|names no bucket); .* write \./"):
            local_copy(spelled)
        with pytest.raises(UserError, match="; for a local folder"), output_path(Path(spelled)):
            pass
    cfg = ConfigDict({"data": {"cache_dir": path}})
    with pytest.raises(UserError, match=r"data.cache_dir=.*; for a local folder"):
        cache_folder(cfg)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
@pytest.mark.parametrize("megabytes", [8, 120])  # one request, and parts of 50 MB
def test_a_connection_reset_during_an_upload(megabytes: int, tmp_path: Path) -> None:
    content = np.random.default_rng(0).bytes(megabytes << 20)
    (tmp_path / "file").write_bytes(content)
    with s3_through_proxy() as proxy:
        store = Store("s3://bucket/a")
        store.write("file", b"before")
        proxy.resets = [megabytes << 18, 1 << 20]
        store.upload([(tmp_path / "file", "file")])
        assert len(proxy.has_reset) == 2
        assert hashlib.sha256(store.read("file")).digest() == hashlib.sha256(content).digest()
        assert list(store.list()) == ["file"]
