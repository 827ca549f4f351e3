"""Objectives are independent: no other package compares their names or those of their losses."""

from __future__ import annotations

import ast
import dataclasses
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bertjax.config.defaults import base_config
from bertjax.config.extensions import OBJECTIVES as OBJECTIVES_REGISTRY
from bertjax.config.extensions import TASK_KINDS
from bertjax.config.objectives import OBJECTIVES, loss_titles, objective_class
from bertjax.config.overrides import apply_overrides
from bertjax.errors import UserError
from bertjax.experiment import build
from bertjax.experiment.config import parse, read_objective
from bertjax.models.model import HEADS
from bertjax.objectives.base import Objective
from bertjax.objectives.clm import Clm
from bertjax.types import Vocabulary

ROOT = Path(__file__).parents[2]
OWNERS = ("bertjax/objectives/", "bertjax/config/objectives/")
OTHERS = [
    path for path in sorted((ROOT / "bertjax").rglob("*.py")) if not str(path.relative_to(ROOT)).startswith(OWNERS)
]
# names of losses with a second meaning: heads of a model, an argument, a column
NAMES = {*OBJECTIVES, *loss_titles()} - {*HEADS, "attention", "hidden_states", "pair"}


def compared_names(path: Path) -> Iterator[str]:
    """Returns names of objectives or losses in a comparison, and comparisons of `objective.name`."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Compare):
            continue
        sides = [node.left, *node.comparators]
        texts = {each.value for side in sides for each in ast.walk(side) if isinstance(each, ast.Constant)}
        result = sorted(str(text) for text in texts if text in NAMES)
        if any(ast.unparse(side).endswith("objective.name") for side in sides):
            result.append("objective.name")
        yield from (f"{path.relative_to(ROOT)}:{node.lineno}: compares {name}" for name in result)


def test_no_other_package_compares_names_of_objectives() -> None:
    assert len(OTHERS) > 100 and {"clm", "plm", "distillation", "kd", "rtd_accuracy"} & NAMES
    assert [error for path in OTHERS for error in compared_names(path)] == []


def test_a_comparison_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    for line in ("cfg.objective.name == other", 'name in ("plm", "x")', '"contrastive" != name'):
        (tmp_path / "a.py").write_text(f"if {line}:\n    pass\n")
        assert len(list(compared_names(tmp_path / "a.py"))) == 1


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_objective_says_what_others_ask(name: str) -> None:
    config = objective_class(name)
    assert config.title and config.example_formats
    assert config.group == "task" or config.group == f"objective.{name}"


def test_unknown_names_are_refused_with_a_suggestion() -> None:
    with pytest.raises(UserError, match=r"objective\.name must be one of .*did you mean 'mlm'\?"):
        objective_class("mmlm")
    names = {"electra": "rtd", "Masked-LM": "mlm", "xlnet": "plm", "t5": "span_corruption", "gpt2": "clm"}
    for other, name in names.items():
        with pytest.raises(UserError, match=rf"did you mean '{name}'\?"):
            objective_class(other)
    for registry in (OBJECTIVES_REGISTRY, TASK_KINDS):
        assert {*registry.hints.values()} <= {*registry.builtin} and not {*registry.hints} & {*registry.builtin}
    for name, words in {
        "no_such_package:A": "the package no_such_package is not installed",
        "math:no": "cannot be imported",
        "math:pi": "must be a subclass",
    }.items():
        with pytest.raises(UserError, match=words):
            objective_class(name)


def test_an_objective_of_another_package(monkeypatch: pytest.MonkeyPatch, vocabulary: Vocabulary) -> None:
    @dataclasses.dataclass(frozen=True)
    class Other(Clm):
        title = "next tokens, elsewhere"

    module: Any = types.ModuleType("elsewhere")
    module.Other = Other
    monkeypatch.setitem(sys.modules, "elsewhere", module)
    cfg = base_config()
    keys = ["objective.name=elsewhere:Other", "data.example_format=block", "model.causal=true"]
    apply_overrides(cfg, [f"--config.{key}" for key in keys])
    parse(cfg)
    assert read_objective(cfg).summary == "next tokens, elsewhere"
    made: Objective = build.make_objective(parse(cfg), vocabulary)
    assert type(made) is Other
