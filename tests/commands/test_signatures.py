"""The command line reads signatures from source: they are those of the functions, and messages spell them."""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
from pathlib import Path

import pytest

from bertjax import cli
from bertjax.commands import signatures
from bertjax.commands.arguments import Flag
from bertjax.commands.signatures import Parameter, read_signature
from bertjax.config.fields import settings_of
from bertjax.config.generation import GenerationConfig
from bertjax.errors import UserError, as_key, named, spelling


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_what_is_read_is_what_python_sees(name: str) -> None:
    read = read_signature(name)
    page = importlib.import_module(f"bertjax.commands.{read.module}")
    assert read.takes_overrides == ("overrides" in inspect.signature(getattr(page, read.module)).parameters)
    parameters = dict(inspect.signature(getattr(page, "main", getattr(page, read.module))).parameters)
    parameters.pop("overrides", None)
    if parameters.pop("settings", None) is not None:  # of `**`
        free = inspect.Parameter("free", inspect.Parameter.KEYWORD_ONLY, default=None)
        parameters |= dict.fromkeys(settings_of(GenerationConfig), free)
    assert list(read.parameters) == list(parameters)
    for each in read.parameters.values():
        default = parameters[each.name].default
        assert each.required == (default is inspect.Parameter.empty) and (
            each.required or each.default == (each.declared.default if default is None else default)
        )
        assert each.help, f"--{each.name} has no help"
    assert read.summary and f"{read.example} ".startswith(f"bertjax {name} ")
    assert read.summary.split()[0] in cli.command_parser(name).format_help()


def test_a_setting_has_one_name_and_three_spellings() -> None:
    spell = read_signature("predict").spell
    assert named("task.header", True) == as_key("task.header", True) == "task.header=true"
    with spelling(spell):
        assert [named("task.header", each) for each in (True, False)] == ["--header", "--no-header"]
        assert (
            named("task.max_length", 9) == "--max-length=9" and named("task.qa.allow_no_answer", True) == "--no-answer"
        )
        assert named("task.train") == named("inputs") == "--in" and named("train.num_steps") == "train.num_steps"
    assert read_signature("inspect-data").spell("task.max_length") == "task.max_length", "keys stay keys with --config"
    for name in ("predict", "inspect-data"):
        assert read_signature(name).spell("config.seed", 1) == "--config.seed=1"
    assert named("config.seed", 1) == "seed=1"


def test_errors_are_spelled_for_their_reader(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import bertjax

    with pytest.raises(UserError, match=r"^max_length must be at least 8, not 3$"):
        bertjax.predict(tmp_path, ["a"], max_length=3)
    assert cli.main(["predict", "--model", str(tmp_path), "--in", "a", "--out", "-", "--max-length", "3"]) == 2
    assert capsys.readouterr().err == "bertjax predict: --max-length must be at least 8, not 3\n"


def test_a_type_that_no_flag_can_have_is_refused() -> None:
    parameter = Parameter("choices", dict[str, str], Flag(), None, False, "")
    with pytest.raises(TypeError, match="choices: the command line cannot take dict"):
        parameter.add_to(argparse.ArgumentParser())


@pytest.mark.parametrize("annotation", ["open('x')", "[str][0]", "NoSuchName | None", "Annotated[str, print(1)]"])
def test_annotations_are_read_and_never_run(annotation: str) -> None:
    with pytest.raises(TypeError, match=r"the command line cannot read the type .*; see bertjax.commands.arguments"):
        signatures._value(ast.parse(annotation, mode="eval").body)


def test_a_misspelled_flag_is_answered_by_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["embed", "--model", "m", "--in", "a", "--out", "b.npy", "--txt-column=x"]) == 2
    assert capsys.readouterr().err.endswith("unknown argument --txt-column=x; did you mean --text-column?\n")
