"""Files that commands write."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from bertjax.errors import UserError
from bertjax.io.output import open_output, open_records, require_output


def test_a_pipe_is_written_directly(tmp_path: Path) -> None:
    """As /dev/null and the shell's >(command): a file that appears at the end would take its name."""
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_text(encoding="utf-8")))
    reader.start()
    with open_records(pipe) as write:
        write({"text": "naïve"})
    reader.join(10)
    assert read == ['{"text": "naïve"}\n'] and stat.S_ISFIFO(pipe.stat().st_mode)


def test_devices_need_no_folder_that_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(key: str, folder: Path) -> None:
        raise UserError(f"{folder} cannot be written")

    monkeypatch.setattr("bertjax.io.output.require_writable", refuse)
    require_output("/dev/null")
    with pytest.raises(UserError, match="cannot be written"), open_output(tmp_path / "file"):
        pass
    assert not list(tmp_path.iterdir())
