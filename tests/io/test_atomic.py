"""Files and folders appear complete, or not at all."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
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


KILLED = """
import os, signal, sys
from pathlib import Path
from bertjax.io import atomic

folder, rename = Path(sys.argv[1]), os.rename

def kill_between(source, target):
    if Path(target) == folder / "export":
        os.kill(os.getpid(), signal.SIGKILL)
    rename(source, target)

os.rename = kill_between
(folder / "export").mkdir()
(folder / "export" / "old").touch()
with atomic.atomic_file(folder / "report.html") as file, atomic.atomic_folder(folder / "half"):
    file.write(b"half")
    with atomic.atomic_folder(folder / "export") as temporary:
        (temporary / "new").touch()
"""


def test_leftovers_of_a_killed_writer_are_swept_and_a_folder_between_its_names_comes_back(tmp_path: Path) -> None:
    process = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    assert process.returncode == -signal.SIGKILL and len(names(tmp_path)) == 4 and "export" not in names(tmp_path)
    others = [".a.tmp", ".report.html.01234567.tmp2", "report.html.01234567.tmp"]
    for name in others:
        (tmp_path / name).touch()
    (tmp_path / ".link.01234567.tmp").symlink_to(tmp_path / ".a.tmp")
    with atomic.atomic_file(tmp_path / "alive"), atomic.atomic_folder(tmp_path / "living") as living:
        atomic.sweep(tmp_path, "report.html")
        assert len([name for name in names(tmp_path) if name.startswith(".report.html.")]) == 1
        atomic.sweep(tmp_path)
        assert living.is_dir() and len(names(tmp_path)) == len(others) + len(("link", "alive", "living", "export"))
    assert names(tmp_path / "export") == ["old"]
    assert {"alive", "living", "export", ".link.01234567.tmp", *others} == set(names(tmp_path))
