"""Paths and texts that no file system accepts: every flag of every command answers with one line and status 2."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import bertjax.cli as cli


def flags() -> Iterator[tuple[str, argparse.Action]]:
    """Yields (command, flag that takes text) for the whole command line."""
    for name, command in cli.command_parsers().items():
        for action in command._actions:
            if action.nargs != 0 and not action.choices and action.type not in (int, float):
                yield name, action


def arguments(name: str, value: str, flag: argparse.Action) -> list[str]:
    """Returns the command with this value of a flag, and with a value for each required flag."""
    result = [name]
    for action in cli.command_parsers()[name]._actions:
        if action.dest == flag.dest or action.required:
            other = next(iter(action.choices)) if action.choices else 1 if action.type in (int, float) else "missing"
            result += [*action.option_strings[:1], value if action.dest == flag.dest else str(other)]
    return result


@pytest.mark.parametrize(
    "value",
    ["n" * 5000, pytest.param("a\0b", marks=pytest.mark.long), "\udcff", "/proc/bertjax/x.json"],
    ids=["long", "nul", "utf8", "proc"],
)
def test_every_flag(
    value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, flag in flags():
        is_path = flag.type is Path or flag.dest == "config"
        if (len(value) == 5000 and not is_path) or (value.startswith("/proc") and flag.dest != "out"):
            continue
        assert cli.main(arguments(name, value, flag)) == 2, (name, flag.dest)
        output = capsys.readouterr()
        assert output.err.count("\n") == 1 and len(output.err) < 2200 and output.err.isascii(), (name, flag.dest)
    assert not list(tmp_path.iterdir())


@pytest.mark.weekly
def test_many_tiny_documents_and_a_line_of_20_megabytes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["cat", "dog", "house", "river"]
    tiny = "".join(f"{words[index % 4]} {index % 1000}\n" for index in range(200_000))
    (tmp_path / "tiny.txt").write_text(tiny + " ".join(words * 1_000_000) + "\n")
    settings = {"sources": f"lines:{tmp_path}/tiny.txt", "cache_dir": tmp_path / "cache", "vocab_size": 400}
    settings |= {"example_format": "block", "eval_fraction": 0.1}
    overrides = [f"--config.data.{key}={value}" for key, value in settings.items()]
    config = str(Path(__file__).parents[2] / "configs" / "quickstart.py")
    assert cli.main(["prepare", "--config", config, *overrides]) == 0
    counts = [int(text.replace(",", "")) for text in re.findall(r"([\d,]+) documents", capsys.readouterr().out)]
    assert sum(counts[-2:]) >= 200_001
