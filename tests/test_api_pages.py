"""The pages of the Python API: their snippets run in order, and the lines of the comparison are those of its blocks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
GUIDE, COMPARISON = ((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("python-api.md", "comparison.md"))
BLOCK = re.compile(r"(?P<before>[^\n]*)\n\n?```python\n(?P<code>.*?)```", re.DOTALL)
LIBRARIES = ("bertjax", "transformers", "keras-hub")


def line_count(code: str) -> int:
    return sum(bool(line.strip()) and not line.lstrip().startswith("#") for line in code.splitlines())


def jobs() -> dict[str, dict[str, str]]:
    """The code of every library by job."""
    code_of: dict[str, dict[str, str]] = {}
    for section in COMPARISON.split("\n## ")[1:]:
        blocks = {match["before"].split(" ")[0].rstrip(":"): match["code"] for match in BLOCK.finditer(section)}
        code_of[section.partition("\n")[0]] = blocks
    return code_of


def test_the_table_counts_the_lines_of_the_blocks() -> None:
    rows = re.findall(r"^\| \[(.*?)\]\(.*?\) \| (.*?) \| (.*?) \| (.*?) \| .*? \|$", COMPARISON, re.MULTILINE)
    counts = {
        job: tuple(str(line_count(blocks[name])) if name in blocks else None for name in LIBRARIES)
        for job, blocks in jobs().items()
    }
    assert [job for job, *_ in rows] == list(counts) and len(rows) == 10
    for job, *cells in rows:
        shown = [cell if cell.isdecimal() else None for cell in cells]
        assert shown == list(counts[job]), (job, counts[job])


@pytest.mark.long
def test_the_snippets_run_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours, in small: the quickstart has two layers of 32 and trains a few steps."""
    monkeypatch.setenv("STEPS", "4")
    small = (
        "from bertjax.config.defaults import base_config\nfrom bertjax.config.overrides import load_config\n"
        "def get_config():\n    config = load_config('quickstart')\n"
        "    config.data.cache_dir = 'cache'\n    config.model.num_layers = 2\n    config.model.hidden_size = 32\n"
        "    config.model.intermediate_size = 64\n    config.train.num_steps = 4\n    config.train.batch_size = 8\n"
        "    config.eval.interval_steps = 4\n    config.eval.num_batches = 1\n    config.report.enabled = False\n"
        "    config.mesh.data = 1\n    return config\n"
    )
    ours = [blocks["bertjax"] for job, blocks in jobs().items() if job != "Continue a public checkpoint"]
    guide = [match["code"] for match in BLOCK.finditer(GUIDE) if "needs a download" not in match["before"]]
    for number, page in enumerate((guide, ours)):
        folder = tmp_path / str(number)
        folder.mkdir()
        monkeypatch.chdir(folder)
        Path("small.py").write_text(small, encoding="utf-8")
        lines = [
            f"the file of number {index} is open, and a list of {index} names may be empty" for index in range(200)
        ]
        Path("corpus.txt").write_text("\n\n".join(lines), encoding="utf-8")
        rows = "text\tlabel\n" + "".join(f"a text of number {i}\t{'xy'[i % 2]}\n" for i in range(16))
        for name in ("train.tsv", "dev.tsv"):
            Path(name).write_text(rows, encoding="utf-8")
        names: dict[str, Any] = {}
        for code in page:
            code = code.replace('"quickstart"', '"small.py"').replace("run.show_report()", "")
            exec(compile(code, "snippet", "exec"), names)
    assert names["classifier"].metrics["eval/accuracy"] >= 0.0
    masking, encoders = names["objective"].masking, {"model": names["objective"].model}
    penalized = names["Penalized"](masking).build(encoders, names["batches"].vocabulary)
    batch, key = names["batches"][0], names["jax"].random.key(0)
    plain, more = (float(each.mean_loss(names["params"], batch, key)[0]) for each in (names["objective"], penalized))
    assert more > plain
