"""Files and folders appear complete, or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from bertjax.io import atomic


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_replaced_at_the_end_of_the_block(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    with atomic.atomic_file(path, "w", fsync=True) as file:
        file.write("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new" and names(tmp_path) == ["a.txt"]


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt), atomic.atomic_file(path) as file:
        file.write(b"half")
        raise KeyboardInterrupt
    assert path.read_text() == "old" and names(tmp_path) == ["a.txt"]


def test_text_bytes_and_json(tmp_path: Path) -> None:
    atomic.write_text(tmp_path / "text", "é\ud800", errors="replace")
    atomic.write_bytes(tmp_path / "bytes", b"\x00")
    atomic.write_json(tmp_path / "json", {"b": 1, "a": "é"}, sort_keys=True, ensure_ascii=False)
    assert (tmp_path / "text").read_bytes() == "é?".encode() and (tmp_path / "bytes").read_bytes() == b"\x00"
    assert (tmp_path / "json").read_text("utf-8") == '{\n "a": "é",\n "b": 1\n}\n'
    with pytest.raises(TypeError):
        atomic.write_json(tmp_path / "json", object())
    assert json.loads((tmp_path / "json").read_text("utf-8")) == {"a": "é", "b": 1}


def test_permissions_are_those_of_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        atomic.write_text(tmp_path / "file", "x")
        with atomic.atomic_folder(tmp_path / "folder"):
            pass
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "folder").stat().st_mode & 0o777 == 0o750


def test_a_link_instead_of_the_temporary_file_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atomic.secrets, "token_hex", lambda size: "0")
    (tmp_path / "victim").write_text("precious")
    (tmp_path / ".a.0.tmp").symlink_to(tmp_path / "victim")
    with pytest.raises(FileExistsError):
        atomic.write_text(tmp_path / "a", "x")
    assert (tmp_path / "victim").read_text() == "precious" and not (tmp_path / "a").exists()


@pytest.mark.parametrize("before", ["nothing", "empty", "full"])
def test_a_folder_appears_complete(tmp_path: Path, before: str) -> None:
    folder = tmp_path / "parent" / "folder"
    if before != "nothing":
        folder.mkdir(parents=True)
    if before == "full":
        (folder / "old").write_text("old")
    with atomic.atomic_folder(folder) as temporary:
        (temporary / "new").write_text("new")
        assert not (folder / "new").exists()
    assert names(folder) == ["new"] and names(folder.parent) == ["folder"]


def test_a_folder_that_is_there_can_be_kept(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "old").write_text("old")
    with atomic.atomic_folder(folder, replace=False) as temporary:
        (temporary / "new").write_text("new")
    assert names(folder) == ["old"] and names(tmp_path) == ["folder"]


@pytest.mark.parametrize("failing", ["the block", "the rename"])
def test_an_error_leaves_the_old_folder(tmp_path: Path, failing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, rename = tmp_path / "folder", os.rename
    folder.mkdir()
    (folder / "old").write_text("old")

    def refuses(source: Path, target: Path) -> None:
        if target == folder and any(Path(source).glob("new")):
            raise OSError("no")
        rename(source, target)

    with pytest.raises(OSError, match="no"), atomic.atomic_folder(folder) as temporary:
        (temporary / "new").write_text("new")
        if failing == "the block":
            raise OSError("no")
        monkeypatch.setattr(atomic.os, "rename", refuses)
    assert names(folder) == ["old"] and names(tmp_path) == ["folder"]
