"""The notebooks of `examples`: names and keys are those that there are, stored outputs are clean, and both run."""

from __future__ import annotations

import ast
import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from test_words import ALLOWED_PATTERN, PATTERNS

import bertjax
from bertjax.config.overrides import declared

ROOT = Path(__file__).parents[1]
PRETRAIN, CONTINUE = "pretrain_and_finetune", "continue_public_checkpoint"
BOOKS: dict[str, Any] = {
    path.stem: json.loads(path.read_text(encoding="utf-8")) for path in (ROOT / "examples").glob("*.ipynb")
}
SMALL = {"STEPS": "4", "EPOCHS": "0.05", "SEEDS": "0"}

# a path from the root of a disk, of two parts or more; 75/1500, tokens/s and https://x/y are none
_ABSOLUTE = re.compile(r"(?<![\w.:/~$<-])/[\w.-]+/[\w.-]|\b[A-Za-z]:\\|file://")


def code(name: str) -> list[str]:
    return ["".join(cell["source"]) for cell in BOOKS[name]["cells"] if cell["cell_type"] == "code"]


@pytest.fixture(params=[PRETRAIN, CONTINUE])
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def test_there_are_no_others() -> None:
    assert set(BOOKS) == {PRETRAIN, CONTINUE}


def test_it_is_a_notebook(name: str) -> None:
    book = BOOKS[name]
    assert (book["nbformat"], book["nbformat_minor"]) >= (4, 5)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    assert book["metadata"] == {"kernelspec": kernel, "language_info": {"name": "python"}}
    keys = {"code": {"execution_count", "outputs"}, "markdown": set()}
    for cell in book["cells"]:
        assert set(cell) == {"cell_type", "id", "metadata", "source", *keys[cell["cell_type"]]}
        assert not cell["metadata"] and cell.get("execution_count") is None
    ids = [cell["id"] for cell in book["cells"]]
    assert len(set(ids)) == len(ids)
    assert len(json.dumps(book)) < 60_000


def test_it_is_python_with_names_and_keys_that_exist(name: str) -> None:
    keys: list[str] = []
    for node in (node for source in code(name) for node in ast.walk(ast.parse(source))):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "bertjax":
            assert hasattr(bertjax, node.attr), node.attr
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("bertjax."):
            values = [*node.args, *(keyword.value for keyword in node.keywords)]
            dicts = [value for value in values if isinstance(value, ast.Dict)]
            keys += [key.value for each in dicts for key in each.keys if isinstance(key, ast.Constant)]
    assert len(keys) > 8
    assert [key for key in keys if key not in declared()] == []


def test_outputs_are_clean_and_name_no_directory_of_a_machine(name: str) -> None:
    cells = [cell for cell in BOOKS[name]["cells"] if cell["cell_type"] == "code"]
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert len(outputs) > 8 and {output["output_type"] for output in outputs} <= {
        "stream",
        "display_data",
        "execute_result",
    }
    texts = ["".join(cell["source"]) for cell in BOOKS[name]["cells"]]
    for output in outputs:
        assert output.get("name") != "stderr", output["text"]
        shown = [output.get("text", ""), *output.get("data", {}).values()]
        texts += ["".join(each) for each in shown]
        for text in map("".join, shown):
            assert not re.search(r"[\x1b\r\u2588]|Traceback|Error\b", text), text
    for text in texts:
        assert not _ABSOLUTE.search(text), text
        visible = ALLOWED_PATTERN.sub("", text)
        assert not [match[0] for pattern, _ in PATTERNS if (match := pattern.search(visible))], text


@pytest.mark.parametrize("text", ["in /home/me/x", "('/tmp/a')", "C:\\Users", "=/a/b", "file:///x"])
def test_absolute_paths_are_seen(text: str) -> None:
    assert _ABSOLUTE.search(text)
    assert not _ABSOLUTE.search("75/1500 tokens/s runs/a/b https://x.org/y/z it/they 1 / 2 </th></tr>")


def run(name: str, folder: Path, **sizes: str) -> str:
    """Runs the cells as one script in a folder; returns what they print."""
    (folder / "cells.py").write_text("\n\n".join(code(name)), encoding="utf-8")
    environment = os.environ | SMALL | sizes | {"HOME": str(folder), "PYTHONPATH": str(ROOT)}
    environment["XLA_FLAGS"] = os.environ["XLA_FLAGS"].replace("--xla_force_host_platform_device_count=8", "")
    options: dict[str, Any] = {"cwd": folder, "env": environment, "capture_output": True, "text": True, "timeout": 900}
    done = subprocess.run([sys.executable, "cells.py"], check=False, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.weekly
def test_both_run(tmp_path: Path) -> None:
    """In small; the second continues a random model with the tokenizer of the first, as there is no network."""
    pytest.importorskip("transformers")
    pytest.importorskip("torch")
    from parity.compare import random_params

    from bertjax.hf.save import save_pretrained

    printed = run(PRETRAIN, tmp_path)
    assert printed.count("the same tags as bertjax: True") == 2
    assert re.search(r"^always O +0\.3\d\d$", printed, flags=re.MULTILINE)
    assert (tmp_path / "runs" / "punctuation" / "seed-0" / "report.html").is_file()

    model = bertjax.load_pretrained(tmp_path / "runs" / "pretrained" / "export")
    config = dataclasses.replace(model.config, max_position_embeddings=64)
    heads = ("mlm",)
    save_pretrained(
        tmp_path / "public", random_params(config, heads), config, heads=heads, tokenizer=model.tokenizer_files
    )
    other = tmp_path / "other"
    other.mkdir()
    printed = run(CONTINUE, other, CHECKPOINT=str(tmp_path / "public"))
    assert re.search(r"^continued +\d+\.\d\d nats, accuracy 0\.\d{3}$", printed, flags=re.MULTILINE)
    assert re.search(r"^(next|other) 0\.\d+$", printed, flags=re.MULTILINE)
