"""The notebook of `examples`: its commands and keys are those that there are, its outputs are clean, and it runs."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bertjax.cli import build_parser
from bertjax.config.overrides import apply_overrides, load_config
from bertjax.config.parse import check

ROOT = Path(__file__).parents[1]
NOTEBOOK = ROOT / "examples" / "pretrain_and_finetune.ipynb"
BOOK: dict[str, Any] = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
CODE = ["".join(cell["source"]) for cell in BOOK["cells"] if cell["cell_type"] == "code"]
OUTPUTS = [output for cell in BOOK["cells"] for output in cell.get("outputs", [])]
SMALL = {"STEPS": "2", "EPOCHS": "0.05", "SEEDS": "0"}

# a path from the root of a disk, of two parts or more; 75/1500, tokens/s and https://x/y are none
_ABSOLUTE = re.compile(r"(?<![\w.:/~$-])/[\w.-]+/[\w.-]|\b[A-Za-z]:\\|file://")


def magic(source: str) -> tuple[str, str]:
    """The first line of a cell if it is a magic, such as `%%bash`, and the rest."""
    first, _, rest = source.partition("\n")
    return (first, rest) if first.startswith("%%") else ("", source)


def written_files() -> dict[str, str]:
    cells = [magic(source) for source in CODE]
    return {line.split()[1]: text for line, text in cells if line.startswith("%%writefile ")}


def commands() -> list[list[str]]:
    """The words of every bertjax command, with the sizes that the first cell sets in place of variables."""
    sizes = dict(re.findall(r'os\.environ\.setdefault\("(\w+)", "([^"]*)"\)', CODE[0]))
    result = []
    for source in CODE:
        line, text = magic(source)
        if line == "%%bash":
            for name, value in sizes.items():
                text = text.replace(f"${name}", value)
            assert "$" not in text
            lines = text.replace("\\\n", " ").split("\n")
            result += [shlex.split(each.split(" | ")[0]) for each in lines if each.startswith("bertjax")]
    return result


def test_it_is_a_notebook() -> None:
    assert (BOOK["nbformat"], BOOK["nbformat_minor"]) >= (4, 5)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    assert BOOK["metadata"] == {"kernelspec": kernel, "language_info": {"name": "python"}}
    keys = {"code": {"execution_count", "outputs"}, "markdown": set()}
    for cell in BOOK["cells"]:
        assert set(cell) == {"cell_type", "id", "metadata", "source", *keys[cell["cell_type"]]}
        assert not cell["metadata"] and cell.get("execution_count") is None
    ids = [cell["id"] for cell in BOOK["cells"]]
    assert len(set(ids)) == len(ids)
    assert NOTEBOOK.stat().st_size < 60_000


def test_every_cell_is_python_or_a_known_magic() -> None:
    for source in CODE:
        line, text = magic(source)
        assert re.fullmatch(r"|%%bash|%%writefile runs/\w+\.py", line), line
        if line != "%%bash":
            ast.parse(text)
    shells = [text for line, text in map(magic, CODE) if line == "%%bash"]
    assert all("set -o pipefail" in text for text in shells if " | " in text)  # a failure in front of a pipe must show


def test_every_command_and_key_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("runs").mkdir()
    for path, text in (written_files() | {"runs/corpus.txt": "a text\n"}).items():
        Path(path).write_text(text, encoding="utf-8")
    named = set()
    for words in commands():
        options, rest = build_parser().parse_known_args(words[1:])
        named.add(options.command)
        if options.command in ("pretrain", "finetune"):
            check(apply_overrides(load_config(options.config), rest))
        else:
            assert rest == []
    assert named == {"pretrain", "finetune", "fill-mask", "predict"}


def test_outputs_are_clean_and_name_no_path() -> None:
    assert len(OUTPUTS) > 8
    assert all((output["output_type"], output["name"]) == ("stream", "stdout") for output in OUTPUTS)
    printed = ["".join(output["text"]) for output in OUTPUTS]
    for text in printed:
        assert not re.search(r"[\x1b\r\u2588]|Traceback|\berror\b", text), text
    for text in printed + ["".join(cell["source"]) for cell in BOOK["cells"]]:
        assert not _ABSOLUTE.search(text), _ABSOLUTE.search(text)


@pytest.mark.parametrize("text", ["in /home/me/x", "('/tmp/a')", "C:\\Users", "=/a/b", "file:///x"])
def test_absolute_paths_are_seen(text: str) -> None:
    assert _ABSOLUTE.search(text)
    assert not _ABSOLUTE.search("75/1500 tokens/s runs/a/b https://x.org/y/z it/they 1 / 2")


def as_script() -> str:
    """All cells as one Python file, for a machine without Jupyter."""
    parts = ["import pathlib", "import subprocess"]
    for source in CODE:
        line, text = magic(source)
        if line == "%%bash":
            parts.append(f"subprocess.run(['bash', '-eu', '-c', {text!r}], check=True)")
        elif line:
            parts.append(f"pathlib.Path({line.split()[1]!r}).write_text({text!r}, encoding='utf-8')")
        else:
            parts.append(text)
    return "\n\n".join(parts)


@pytest.mark.long
@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash to run its commands")
def test_it_runs(tmp_path: Path) -> None:
    """From the first cell to the last, in small: every command ends well, and `transformers` agrees."""
    pytest.importorskip("transformers")
    pytest.importorskip("torch")
    (tmp_path / "bin").mkdir()
    ours = tmp_path / "bin" / "bertjax"
    ours.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m bertjax "$@"\n')
    ours.chmod(0o755)
    (tmp_path / "cells.py").write_text(as_script(), encoding="utf-8")
    environment = os.environ | SMALL | {"HOME": str(tmp_path), "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    environment["PATH"] = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
    environment["XLA_FLAGS"] = "--xla_backend_optimization_level=0"
    options = {"cwd": tmp_path, "env": environment, "capture_output": True, "text": True, "timeout": 600}
    done = subprocess.run([sys.executable, "cells.py"], check=False, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("the same tags as bertjax: True") == 2
    assert re.search(r"^always O +0\.3\d\d$", done.stdout, flags=re.MULTILINE)
    assert (tmp_path / "runs" / "punctuation" / "seed-0" / "export" / "model.safetensors").is_file()
    assert (tmp_path / "runs" / "punctuation" / "seed-0" / "report.html").is_file()
