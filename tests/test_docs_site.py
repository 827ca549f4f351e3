"""The generated pages of the documentation have every command, key, metric and model."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import urllib.parse
from pathlib import Path

import pytest

import bertjax
from bertjax.cli import command_parsers
from bertjax.config.extensions import TASK_KINDS
from bertjax.config.objectives import OBJECTIVES
from bertjax.config.overrides import declared
from bertjax.config.presets import PRESETS

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "scripts"))
from docs_site.generators import GENERATORS  # noqa: E402
from docs_site.metric_names import undescribed  # noqa: E402
from docs_site.model_zoo import SOURCES  # noqa: E402


def test_every_command_has_its_flags() -> None:
    page = GENERATORS["commands"]()
    sections = dict(re.findall(r"## bertjax (\S+)\n(.*?)(?=\n## |\Z)", page, flags=re.DOTALL))
    assert list(sections) == list(command_parsers())
    for name, parser in command_parsers().items():
        for action in parser._actions:
            for flag in set(action.option_strings) - {"-h", "--help"}:
                assert re.search(rf"\| `[^|]*{flag}\b", sections[name]), (name, flag)


def test_every_objective_and_kind_of_task_is_listed() -> None:
    page = GENERATORS["objectives_and_tasks"]()
    names = re.findall(r"^\| `(\w+)` \|", page, flags=re.MULTILINE)
    assert names == [name for name, each in OBJECTIVES.items() if not each.is_finetuning] + list(TASK_KINDS)


def test_every_public_name_and_protocol_is_referenced() -> None:
    page = GENERATORS["public_names"]()
    assert page.count("::: ") == len([name for name in bertjax.__all__ if not name.startswith("__")])
    for path in re.findall(r"^::: (\S+)$", page + "\n" + GENERATORS["protocols"](), flags=re.MULTILINE):
        module = path.rpartition(".")[0]
        assert path in sys.modules or hasattr(__import__(module, fromlist=["_"]), path.rpartition(".")[2]), path


def test_every_preset_has_a_source() -> None:
    assert [name for name in PRESETS if not any(re.match(pattern, name) for pattern, *_ in SOURCES)] == []


def test_metrics_are_distinguished() -> None:
    assert undescribed(["step", "eval/mlm_loss", "eval/wiki/pair_accuracy", "train/grad_norm", "eval/f1"]) == []
    assert undescribed(["train/mlm_speed", "eval/loss_scale"]) == ["train/mlm_speed", "eval/loss_scale"]


def test_links_out_of_the_site_are_well_formed() -> None:
    """Links within it are checked by the strict build; these are not followed, because tests need no network."""
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    links = {link for page in pages for link in re.findall(r"\]\((\w+:[^)]*)\)", page.read_text(encoding="utf-8"))}
    assert len(links) > 2
    for link in links:
        parts = urllib.parse.urlsplit(link)
        assert parts.scheme == "https" and re.fullmatch(r"[a-z0-9-]+(\.[a-z0-9-]+)+", parts.netloc), link
        assert not re.search(r"[\s<>]", link), link


@pytest.mark.weekly
def test_the_site_has_no_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1", "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    models = (tmp_path / "site" / "reference" / "models" / "index.html").read_text()
    assert "109,514,298" in models and "<!-- generate" not in models
    outside = re.compile(r'<(?:script|link|img|iframe)[^>]+(?:src|href)="?(?:https?:)?//')
    assert not [page for page in (tmp_path / "site").rglob("*.html") if outside.search(page.read_text())]


def _of_network(key: str) -> str:
    group, _, name = key.partition(".")
    return f"model.{name}" if group in ("generator", "decoder") else ""


def test_the_reference_names_every_key_once_and_links_others() -> None:
    page = GENERATORS["config"]()
    ids = re.findall(r"\{ #(\S+) \}", page)
    assert len(ids) == len(set(ids))
    assert {key for key in declared() if key not in ids} == {
        key for key in declared() if not key.startswith("model.") and _of_network(key) in declared()
    }
    assert set(re.findall(r"\]\(#(\S+?)\)", page)) <= set(ids)
    assert "`optimizer.name`{ #optimizer.name }\n:   adamw: Adam" in page
    assert "one of `adamw`, `lamb`, `stable_adamw`, `muon`" in page
