"""Extensions that lack something: one line says what, and where."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from bertjax.config.defaults import base_config
from bertjax.config.extensions import OBJECTIVES
from bertjax.config.model import EncoderConfig
from bertjax.config.overrides import apply_overrides
from bertjax.config.sources import parse_source
from bertjax.errors import UserError
from bertjax.experiment.abstract_inputs import placeholder_vocabulary
from bertjax.experiment.build import make_objective
from bertjax.extensions import AttentionConfig, ObjectiveConfig, SourceKind, TaskKind, setting
from bertjax.finetuning.tasks import task_methods
from bertjax.models.layer import attention_class
from bertjax.objectives.clm import CausalLanguageModel
from bertjax.objectives.mlm import MaskedLanguageModel

Define = Callable[..., None]


@pytest.fixture
def define(monkeypatch: pytest.MonkeyPatch) -> Define:
    """Puts names into a module `mine`."""
    module = ModuleType("mine")
    monkeypatch.setitem(sys.modules, "mine", module)
    monkeypatch.setattr(OBJECTIVES, "_loaded", dict(OBJECTIVES._loaded))
    return lambda **names: vars(module).update(names)


def objective(path: str = "mine:Wrong") -> Any:
    return apply_overrides(base_config(), [f"--config.objective.name={path}"])


def declared(base: type, group: str, **names: Any) -> type:
    return dataclasses.dataclass(frozen=True)(type("Declared", (base,), names, group=group))


GOOD = {"title": "good", "objective_class": "mine:Implementation"}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (int, "must be a subclass of bertjax.extensions.ObjectiveConfig, not <class 'int'>"),
        (declared(ObjectiveConfig, "objective.x", title="x"), "lacks the attribute objective_class"),
        (declared(ObjectiveConfig, "objective.x"), "lacks the attribute title and objective_class"),
        (declared(ObjectiveConfig, "train", **GOOD), "must declare its settings in a group objective.NAME"),
        (type("Plain", (ObjectiveConfig,), {"rate": setting(0.5)}, group="objective.x"), "but is not a dataclass"),
        (
            declared(ObjectiveConfig, "objective.mlm", rate=setting(0.5), __annotations__={"rate": float}, **GOOD),
            "declares settings in objective.mlm, which is bertjax's own",
        ),
    ],
)
def test_wrong_declarations(define: Define, wrong: Any, message: str) -> None:
    define(Wrong=wrong)
    with pytest.raises(UserError, match=r"objective\.name=mine:Wrong") as caught:
        objective()
    assert message in str(caught.value)


def test_what_cannot_be_imported(define: Define, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "broken_one.py").write_text("import no_such_dependency\n")
    for path, message in {
        "absent.module:Name": "the package absent is not installed",
        "mine:Absent": "mine:Absent cannot be imported: AttributeError",
        "broken_one:Name": "cannot be imported: ModuleNotFoundError: No module named 'no_such_dependency'",
    }.items():
        with pytest.raises(UserError, match=f"objective.name={path}: .*{message}"):
            objective(path)


def implementation(**names: Any) -> type:
    return type("Implementation", (CausalLanguageModel,), names)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"Implementation": dict}, "mine:Implementation must be a subclass of bertjax.extensions.Objective"),
        (
            {"Implementation": implementation(counts=lambda self, batch, cursor: {})},
            "mine:Implementation.counts must take the parameters (self, batch)",
        ),
        ({"Implementation": None}, "lacks the method init and counts and loss of Objective"),
        ({}, "mine:Implementation cannot be imported: AttributeError"),
        (
            {"Implementation": MaskedLanguageModel},
            "which Declared does not declare; derive it from MlmConfig",
        ),
    ],
)
def test_wrong_objectives(define: Define, names: dict[str, Any], message: str) -> None:
    from bertjax.extensions import Objective

    if names.get("Implementation", int) is None:
        names = {"Implementation": type("Implementation", (Objective,), {})}
    define(Wrong=declared(ObjectiveConfig, "objective.wrong", **GOOD), **names)
    with pytest.raises(UserError, match=r"objective\.name=mine:Wrong") as caught:
        make_objective(objective(), placeholder_vocabulary(100))
    assert message in str(caught.value)


def test_wrong_attention_and_tasks(define: Define) -> None:
    from bertjax.extensions import Attention, TaskMethods

    define(Scores=type("Scores", (Attention,), {}), Task=type("Task", (TaskMethods,), {"loss": lambda self: {}}))
    define(Alone=declared(AttentionConfig, "model.alone", attention_class="mine:Scores"))
    kind = {"name": "k", "title": "k", "head": "token_classification", "main_metric": "f1", "task_class": "mine:Task"}
    define(Kind=declared(TaskKind, "task.kind_of_mine", **kind))
    with pytest.raises(UserError, match=r"model.attention_class=mine:Alone: mine:Scores lacks the method scores"):
        attention_class(EncoderConfig(attention_class="mine:Alone"))
    with pytest.raises(UserError, match=r"attention_class=mine:Alone needs model.attention_position to be one of none"):
        EncoderConfig(attention_class="mine:Alone", attention_position="relative_bias")
    with pytest.raises(UserError, match=r"model.attention_class=mine:Alone has no setting width"):
        EncoderConfig(attention_class="mine:Alone", attention_settings=("width=1",))
    with pytest.raises(UserError, match=r"task.kind=mine:Kind: mine:Task lacks the method compute_metrics"):
        task_methods("mine:Kind")


def test_wrong_sources(define: Define) -> None:
    define(ROWS=SourceKind("rows", rows="mine:read"))
    with pytest.raises(UserError, match=r"data.sources: 'mine.x:ROWS:a': the package mine.x is not installed"):
        parse_source("mine.x:ROWS:a")
    with pytest.raises(UserError, match="a SourceKind needs documents or rows"):
        SourceKind("nothing")


@pytest.mark.parametrize(
    ("packages", "name", "message"),
    [
        (["one"], "mlm", "the package one has an entry point of this name in the group bertjax.objectives, but"),
        (["one", "two"], "same", r"the packages one and two both have this name; write its path, such as \w+:Name"),
    ],
)
def test_names_that_clash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packages: list[str], name: str, message: str
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    for package in packages:
        folder = tmp_path / f"{package}-1.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1\n")
        (folder / "entry_points.txt").write_text(f"[bertjax.objectives]\n{name} = {package}:Name\n")
    with pytest.raises(UserError, match=f"objective.name={name}: {message}"):
        OBJECTIVES.load(name)
