"""The command line of a page: its flags, help and defaults, from the signature and the docstring of its function.

They are read from the source: to import a page takes seconds, because it imports jax, and help must not.
"""

from __future__ import annotations

import argparse
import ast
import collections.abc
import dataclasses
import functools
import importlib
import itertools
import re
import sys
import textwrap
import types
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar, Union

from bertjax.commands import arguments
from bertjax.commands.arguments import Flag
from bertjax.errors import as_key, spelling
from bertjax.training.signals import StoppedBySignal

P = ParamSpec("P")
R = TypeVar("R")
_ENTRY = re.compile(r"^    (\w+): (.*(?:\n     +.*)*)", re.MULTILINE)
_NAMES = {**vars(typing), **vars(collections.abc), **vars(arguments), "Path": Path}
_NAMES |= {each.__name__: each for each in (bool, int, float, str)}


def command(function: Callable[P, R]) -> Callable[P, R]:
    """Makes a function of a page a command: errors of a call name arguments, and Ctrl-C is a KeyboardInterrupt.

    The command line calls `function.__wrapped__` in its own spelling.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with spelling(functools.partial(_spell_argument, function.__module__.rpartition(".")[2])):
            try:
                return function(*args, **kwargs)
            except StoppedBySignal as stopped:
                message = str(stopped).replace("the same command", "the same call")
                if stopped.exit_code == 130:
                    raise KeyboardInterrupt(message) from None
                print(message, file=sys.stderr)
                raise SystemExit(stopped.exit_code) from None

    return call


def _spell_argument(name: str, setting: str, *value: object) -> str:
    parameter = read_signature(name).find(setting)
    return as_key(setting, *value) if parameter is None else "=".join([parameter.name, *map(str, value)])


@dataclasses.dataclass(frozen=True)
class Parameter:
    """An argument of a function, as `name` in Python and as `flag` on the command line."""

    name: str
    kind: Any
    declared: Flag
    default: Any
    required: bool
    help: str
    group: str = ""

    @property
    def flag(self) -> str:
        """The flag, or the name of a positional argument."""
        return self.declared.name or "--" + self.name.replace("_", "-")

    @property
    def positional(self) -> str | None:
        """Name under which argparse keeps words without a flag that are values of this argument."""
        if self.declared.typed:
            return f"{self.name}_typed"
        return self.name if self.declared.nargs == "*" and not self.flag.startswith("-") else None

    def spelled(self, *value: object) -> str:
        """Returns the flag with its value: `--header`, `--no-header`, `--max-length=64`."""
        if self.kind is bool and value:
            return self.flag if value[0] or self.declared.const else f"--no-{self.name.replace('_', '-')}"
        return "=".join([self.flag, *map(str, value)])

    def add_to(self, parser: argparse._ActionsContainer) -> None:
        """Declares the flag."""
        is_flag, declared = self.flag.startswith("-"), self.declared
        options: dict[str, Any] = {"help": self.help.replace("%", "%%"), "default": self.default}
        if declared.const is not None:
            options |= {"action": "store_const", "const": declared.const}
        elif self.kind is bool:
            options |= {"action": argparse.BooleanOptionalAction if self.default is None else "store_true"}
        elif typing.get_origin(self.kind) is Literal:
            options |= {"choices": typing.get_args(self.kind)}
        else:
            is_list = typing.get_origin(self.kind) is collections.abc.Sequence
            item = typing.get_args(self.kind)[0] if is_list else self.kind
            if item not in (str, int, float, Path) and declared == Flag():
                raise TypeError(f"{self.name}: the command line cannot take {self.kind}; say how by a Flag")
            convert = item if item in (int, float, Path) else declared.type
            metavar = declared.metavar or ("N" if convert in (int, float) else self.name.rpartition("_")[2].upper())
            nargs = declared.nargs or ("+" if is_list and declared == Flag() else None)
            options |= {"type": convert, "metavar": metavar, "nargs": nargs}
            options |= {"action": "append"} if declared.repeated else {}
        if is_flag and self.default not in (None, False, ()) and "default" not in self.help:
            options["help"] += f" (default {self.default})"
        if is_flag:
            is_required = declared.required or (self.required and not declared.typed)
            options |= {"dest": self.name, "required": is_required}
        parser.add_argument(self.flag if is_flag else self.name, **options)
        if declared.typed:
            about = f"instead of {self.flag}"
            parser.add_argument(f"{self.name}_typed", metavar=declared.typed, nargs="*", default=(), help=about)


@dataclasses.dataclass(frozen=True)
class Signature:
    """Function of a page, as the command line sees it; `shown` are arguments of its `show`, which prints the result.

    The flags are those of `main`, which the command line calls in its stead, if the page has one.
    """

    name: str
    summary: str
    description: str
    example: str
    parameters: dict[str, Parameter]
    shown: dict[str, Parameter]
    takes_overrides: bool

    @property
    def module(self) -> str:
        """Name of the page and of its function."""
        return self.name.replace("-", "_")

    @property
    def takes_config(self) -> bool:
        """True if it has --config, to which overrides (--config.KEY=VALUE) belong."""
        return "config" in self.parameters

    def find(self, setting: str) -> Parameter | None:
        """Returns the argument that a name or, in commands without a config, a config key stands for."""
        if "." in setting and self.takes_config:
            return None
        name = setting.rpartition(".")[2]
        of_key = (each for each in self.parameters.values() if each.declared.key == setting)
        return next(of_key, None) or {**self.parameters, **self.shown}.get(name)

    def spell(self, setting: str, *value: object) -> str:
        """Spells a setting for messages of the command line; see `bertjax.errors.named`."""
        if setting.startswith("config."):
            return f"--config.{as_key(setting, *value)}"
        parameter = self.find(setting)
        return as_key(setting, *value) if parameter is None else parameter.spelled(*value)

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        """Declares the flags of the command."""
        parameters = (*self.parameters.values(), *self.shown.values())
        for group, members in itertools.groupby(parameters, lambda each: each.group):
            container = parser.add_argument_group(group) if group else parser
            for each in members:
                each.add_to(container)


@functools.cache
def read_signature(name: str) -> Signature:
    """Reads a page of `bertjax.commands` by the name of its command."""
    module = name.replace("-", "_")
    tree = ast.parse(Path(__file__).with_name(f"{module}.py").read_text(encoding="utf-8"))
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    text = ast.get_docstring(functions[module]) or ""
    description = re.split(r"\n\n(?=Args:|Returns:|Raises:|Example:)", text)[0]
    example = textwrap.dedent(text.partition("\nExample:\n")[2].partition("\n\n")[0]).strip()
    entries = _entries(functions[module])
    parameters = _parameters(functions.get("main", functions[module]), entries)
    shown = _parameters(functions["show"], {}, first=1) if "show" in functions else {}
    summary = description.partition("\n")[0].removesuffix(".")
    takes_overrides = any(argument.arg == "overrides" for argument in functions[module].args.args)
    return Signature(name, summary, description, example, parameters, shown, takes_overrides)


def _entries(function: ast.FunctionDef) -> dict[str, str]:
    """Returns what the docstring says of every argument."""
    text = ast.get_docstring(function) or ""
    return dict(_ENTRY.findall(text.partition("\nArgs:\n")[2].partition("\n\n")[0]))


def _parameters(function: ast.FunctionDef, entries: dict[str, str], first: int = 0) -> dict[str, Parameter]:
    args, entries = function.args, entries | _entries(function)
    declared = [*args.args, *args.kwonlyargs]
    defaults = [*[None] * (len(args.args) - len(args.defaults)), *args.defaults, *args.kw_defaults]
    result = {}
    for argument, default in list(zip(declared, defaults, strict=True))[first:]:
        assert argument.annotation is not None, f"{argument.arg} has no type"
        annotation = _value(argument.annotation)
        if annotation == arguments.Overrides:  # they come with --config
            continue
        kind, flag = annotation, Flag()
        while (origin := typing.get_origin(kind)) in (typing.Annotated, Union, types.UnionType):
            kind, flag = typing.get_args(kind)[:2] if origin is typing.Annotated else (typing.get_args(kind)[0], flag)
        result[argument.arg] = Parameter(
            name=argument.arg,
            kind=kind,
            declared=flag,
            default=flag.default if default is None or (value := ast.literal_eval(default)) is None else value,
            required=default is None,
            help=" ".join(entries.get(argument.arg, flag.help).split()).partition("; in Python")[0],
        )
    if args.kwarg is not None and args.kwarg.annotation is not None:
        result |= _fields(_value(args.kwarg.annotation), entries.get(args.kwarg.arg, ""))
    return result


def _fields(annotation: Any, group: str) -> dict[str, Parameter]:
    """Returns the settings that `**` takes as arguments without a default; none unless a `Flag` names their class."""
    if typing.get_origin(annotation) is not typing.Annotated:
        return {}
    from bertjax.config.fields import settings_of

    module, _, name = typing.get_args(annotation)[1].fields.partition(":")
    declared = settings_of(getattr(importlib.import_module(module), name))
    return {
        name: Parameter(
            name=name,
            kind=bool if each.kind is bool else str,  # text, which the page parses as it does any setting
            declared=Flag(metavar="IDS" if each.many else "VALUE"),
            default=None,
            required=False,
            help=each.help,
            group=group,
        )
        for name, each in declared.items()
    }


def _value(node: ast.expr) -> Any:
    """Returns the value of an annotation without running it: names, literals, `X[Y]`, `X | Y` and `Flag(...)`."""
    match node:
        case ast.Name(name) if name in _NAMES:
            return _NAMES[name]
        case ast.Subscript(generic, arguments_):
            return _value(generic)[_value(arguments_)]
        case ast.Tuple(items):
            return tuple(map(_value, items))
        case ast.BinOp(left, ast.BitOr(), right):
            return Union[_value(left), _value(right)]  # noqa: UP007 (a string has no operator)
        case ast.Call(ast.Name("Flag"), positional, keywords):
            return Flag(*map(_value, positional), **{each.arg: _value(each.value) for each in keywords if each.arg})
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise TypeError(
            f"the command line cannot read the type {ast.unparse(node)}; see bertjax.commands.arguments"
        ) from None
