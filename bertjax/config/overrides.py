"""Config files, `--config.KEY=VALUE` arguments and config.json: loading and checking. Every error is one line."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import json
import linecache
import os
import re
import traceback
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from bertjax.config.defaults import base_config
from bertjax.config.extensions import REGISTRIES, SOURCES
from bertjax.config.fields import Setting, Settings, dotted, settings_of, values_of
from bertjax.config.names import name_for, resolve, run_file
from bertjax.config.nodes import declared_settings
from bertjax.config.registry import PACKAGES, Choices, require_packages
from bertjax.errors import USER_CODE_ERRORS, UserError, require_regular_file

_PREFIX = "--config."
SOURCE_KEYS = ("data.sources", "data.eval_sources", "task.train", "task.eval")


def declared(config: ConfigDict | None = None) -> Mapping[str, Setting]:
    """Returns the declaration of every key of a config by dotted name; without one, of all but extensions' keys."""
    return _declared() if config is None else _declared() | declared_settings(config)


@functools.cache
def _declared() -> dict[str, Setting]:
    return declared_settings(base_config())


def load_config(spec: str) -> ConfigDict:
    """Returns the config of a name or file: `bert:base` (`bertjax configs` lists the names), `PATH.py:ARGUMENT`.

    The file is Python and is executed: `get_config()` or `get_config(ARGUMENT)` is called. Run no file you don't trust.

    Raises:
        UserError: The file is missing or fails, or it sets a key or a value that is not allowed.
    """
    path, argument = resolve(spec)
    get_config = execute(path).get("get_config")
    if not isinstance(get_config, types.FunctionType):
        raise UserError(f"{path} defines no function get_config()")
    if argument is not None and not get_config.__code__.co_argcount:
        raise UserError(f"{path} takes no argument, but was given {argument!r}: leave out :{argument}")
    config = _call(path, get_config, [] if argument is None else [argument])
    if not isinstance(config, ConfigDict):
        raise UserError(f"{path}: get_config() must return a ConfigDict, not {type(config).__name__}")
    try:
        check_keys(config)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    return config


def apply_overrides(config: ConfigDict, arguments: Sequence[str]) -> ConfigDict:
    """Sets `--config.KEY=VALUE` arguments in a config; nothing is set unless all of them are allowed.

    A value is read by the declared type of its key: `1e3` is a whole number, a tuple is `a,b` (`\\,` is a comma inside
    an item, nothing is the empty tuple). The last of several values of a key counts.

    Returns:
        The same config.

    Raises:
        UserError: A key is not declared, or a value is not allowed.
    """
    return set_values(config, [split_override(argument) for argument in arguments])


def set_values(config: ConfigDict, values: Mapping[str, Any] | Sequence[tuple[str, Any]]) -> ConfigDict:
    """Sets values by dotted key; nothing is set unless all of them are allowed.

    Args:
        config: The config, which is changed.
        values: Python values or paths, or text as on the command line: `{"data.sources": "text:a.txt,lines:b.txt"}`;
            for a key that names an extension also an instance, with all of its settings: `{"objective.name": Mine()}`.

    Returns:
        The same config.

    Raises:
        UserError: A key is not declared, or a value is not allowed.
    """
    pairs = list(values.items()) if isinstance(values, Mapping) else values
    pairs = [pair for key, value in pairs for pair in _with_instance(key, value)]
    known: Mapping[str, Setting] = declared()
    if any(key not in known for key, _ in pairs):  # of an extension, which may be chosen here
        trial = copy_config(config)
        for key, value in pairs:
            if _chooses(key):
                _assign(trial, key, _read_value(key, value, known[key]))
        known = declared(trial)
    checked = []
    for key, value in pairs:
        if key not in known:
            raise UserError(unknown_key(key, known))
        checked.append((key, _read_value(key, value, known[key])))
    for key, value in sorted(checked, key=lambda each: not _chooses(each[0])):
        _assign(config, key, value)
    return config


def _with_instance(key: str, value: Any) -> list[tuple[str, Any]]:
    """Returns the key and its value; of an instance of an extension the path of its class, and its settings."""
    if not isinstance(value, Settings) or key not in REGISTRIES:
        return [(key, value)]
    cls, registry = type(value), REGISTRIES[key]
    path = f"{cls.__module__}:{cls.__qualname__}"
    if "<locals>" in path:
        raise UserError(f"{key}: define {cls.__name__} in a module, by whose name a run finds it when it is resumed")
    name = next((name for name, builtin in registry.builtin.items() if builtin == path), path)
    return [(key, name), *_settings_in(value)]


def _settings_in(group: Settings) -> Iterator[tuple[str, Any]]:
    """Yields key and value of every setting of a group and of the groups in it."""
    known = settings_of(type(group))
    for field in dataclasses.fields(group):
        value = getattr(group, field.name)
        if isinstance(value, Settings):
            yield from _settings_in(value)
        elif field.name in known and known[field.name].key:
            yield dotted(group.group, field.name), value


def _read_value(key: str, value: Any, setting: Setting) -> Any:
    value = os.fspath(value) if isinstance(value, os.PathLike) else value
    return setting.parse(key, value) if isinstance(value, str) else setting.check(key, value)


def check_keys(config: ConfigDict) -> None:
    """Raises `UserError` for keys that are not declared, for missing ones, and for values that are not allowed."""
    values, known = values_of(config), declared(config)
    for key, value in values.items():
        if key not in known:
            raise UserError(unknown_key(key, known))
        known[key].check(key, value)
    for key in known:
        if key not in values:
            raise UserError(f"key {key} is missing: start the config from base_config()")


def copy_config(config: ConfigDict) -> ConfigDict:
    """Returns a copy whose values no longer follow each other, and are checked when they are set."""
    copied = base_config()
    for key, value in sorted(values_of(config).items(), key=lambda each: not _chooses(each[0])):
        _assign(copied, key, value)
    return copied


def flatten(config: ConfigDict) -> dict[str, Any]:
    """Returns {dotted key: value} in order of the keys, references resolved, tuples as lists: what JSON can hold."""
    return {key: list(value) if isinstance(value, tuple) else value for key, value in values_of(config).items()}


def to_json(config: ConfigDict) -> str:
    """Returns the resolved config as nested JSON; equal configs give equal text."""
    nested: dict[str, Any] = {PACKAGES: packages} if (packages := extension_packages(config)) else {}
    for key, value in flatten(config).items():
        *groups, leaf = key.split(".")
        node = nested
        for group in groups:
            node = node.setdefault(group, {})
        node[leaf] = value
    return json.dumps(nested, indent=2, ensure_ascii=False) + "\n"


def from_json(text: str) -> ConfigDict:
    """Returns the config that `to_json` wrote; a key that is newer than the text keeps its default.

    Raises:
        UserError: The text is not a JSON object of declared keys and allowed values, or a package is missing.
    """
    try:
        nested = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"the stored config is not JSON: {error}") from None
    if not isinstance(nested, dict):
        raise UserError("the stored config is not a JSON object")
    require_packages(nested.pop(PACKAGES, []))
    config = base_config()
    for key, value in sorted(values_of(nested).items(), key=lambda each: not _chooses(each[0])):
        setting = declared(config).get(key) if key not in declared() else declared()[key]
        if setting is None:
            raise UserError(f"{unknown_key(key, declared(config))} (was it written by another version of bertjax?)")
        _assign(config, key, setting.check(key, value))
    return config


def require_stored_packages(path: Path) -> None:
    """Raises `UserError` for a config.json whose extensions are of a missing package; leaves other errors to others."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        nested = json.loads(path.read_text(encoding="utf-8"))
        require_packages(nested.get(PACKAGES, []) if isinstance(nested, dict) else [], str(path))


def extension_packages(config: ConfigDict) -> list[str]:
    """Returns the installed packages whose entry points a config names."""
    known, named = declared(config), set()
    for key, value in values_of(config).items():
        choices = known[key].choices
        if isinstance(choices, Choices) and isinstance(value, str):
            named.add(choices.registry.package(value))
        elif key in SOURCE_KEYS:
            named |= {SOURCES.package(text.partition(":")[0]) for text in value}
    return sorted(name for name in named if name)


def _chooses(key: str) -> bool:
    """Returns whether a key of bertjax names an extension, whose settings are keys themselves."""
    return key in declared() and isinstance(declared()[key].choices, Choices)


def differences(old: ConfigDict, new: ConfigDict) -> list[tuple[str, Any, Any]]:
    """Returns (key, old value, new value) of every key that differs; a missing key counts as None."""
    before, after = flatten(old), flatten(new)
    keys = sorted({*before, *after})
    return [(key, before.get(key), after.get(key)) for key in keys if before.get(key) != after.get(key)]


def unknown_key(key: str, declared: Mapping[str, Any]) -> str:
    """Returns a message that names the declared key that was most likely meant by an unknown key or group."""
    if any(known.startswith(f"{key}.") for known in declared):
        return f"{key} is a group of keys: set one of {_members(key, declared)}"
    nearest = _nearest(key, declared)
    if nearest:
        return f"unknown key {key}; did you mean {' or '.join(nearest)}?"
    group = key.split(".", maxsplit=1)[0]
    members = _members(group, declared)
    if members:
        return f"unknown key {key}; there are {members}"
    groups = dict.fromkeys(known.split(".", maxsplit=1)[0] for known in declared)
    return f"unknown key {key}; there are {', '.join(groups)}"


def _members(group: str, declared: Mapping[str, Any]) -> str:
    """Returns the keys of a group; of a group with subgroups, its own keys and the subgroups."""
    return ", ".join(dict.fromkeys(_below(known, group) for known in declared if known.startswith(f"{group}.")))


def _below(key: str, group: str) -> str:
    """Returns the part of a key one level below its group, as objective.mlm.* of objective.mlm.mask_rate."""
    name, _, rest = key.removeprefix(f"{group}.").partition(".")
    return f"{group}.{name}.*" if rest else f"{group}.{name}"


def _nearest(key: str, declared: Mapping[str, Any]) -> list[str]:
    """The declared key most like `key`, or several that are about as much like it; none if nothing is."""
    group, _, leaf = key.rpartition(".")
    scores = {}
    for known in declared:
        known_group, _, known_leaf = known.rpartition(".")
        likeness = max(_ratio(key, known), _leaf_likeness(leaf, known_leaf))
        if likeness >= 0.7:
            scores[known] = likeness + 0.2 * _ratio(group, known_group)
    best = max(scores.values(), default=0.0)
    return [known for known in sorted(scores, key=scores.__getitem__, reverse=True) if scores[known] > best - 0.05][:3]


def _leaf_likeness(leaf: str, known: str) -> float:
    """Likeness by spelling, raised for a part (`warmup` of warmup_steps) and for initials (`lr` of learning_rate)."""
    words = known.split("_")
    if leaf == "".join(word[0] for word in words):
        return 0.9
    partial = set(leaf.split("_")) <= set(words)
    return 0.7 + 0.3 * _ratio(leaf, known) if partial else _ratio(leaf, known)


def _ratio(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other).ratio()


def _assign(config: ConfigDict, key: str, value: Any) -> None:
    *groups, leaf = key.split(".")
    for group in groups:
        config = config[group]
    try:
        config[leaf] = value
    except TypeError:  # in a config of resolved values, a number in place of PRESET; it was checked
        with config.ignore_type():
            config[leaf] = value


def split_override(argument: str) -> tuple[str, str]:
    """Returns key and text of `--config.KEY=VALUE`; raises `UserError` for another word."""
    if not argument.startswith(_PREFIX):
        if argument.lstrip("-").startswith("config."):
            raise UserError(f"{argument}: overrides start with two dashes, --{argument.lstrip('-')}")
        raise UserError(f"unknown argument {argument}; a key of the config is set by {_PREFIX}KEY=VALUE")
    key, equals, text = argument.removeprefix(_PREFIX).partition("=")
    if not equals and key in declared():
        raise UserError(f"{argument} has no value: write {argument}=VALUE")
    return key, text


def execute(path: str) -> dict[str, Any]:
    """Runs a config file and returns its names; may raise `UserError`."""
    require_regular_file(path)
    try:
        source = Path(path).read_bytes()
    except OSError as error:
        name, others = name_for(path), ", ".join(sorted(map(str, Path(path).parent.glob("*.py"))))
        hint = f"; there are {others}" if others else f"; bertjax has that of --config {name}" if name else ""
        raise UserError(f"cannot read config {path}: {error.strerror}{hint}") from None
    try:
        return run_file(path, source)
    except USER_CODE_ERRORS as error:
        raise UserError(_explain(path, error)) from error


def _call(path: str, function: Any, arguments: Sequence[str]) -> Any:
    try:
        return function(*arguments)
    except USER_CODE_ERRORS as error:
        raise UserError(_explain(path, error)) from (None if isinstance(error, UserError) else error)


def _explain(path: str, error: BaseException) -> str:
    """One line for an exception out of a config file, with the line that raised it."""
    number = _line_number(path, error)
    where = f"{path}:{number}" if number else path
    line = linecache.getline(path, number).strip() if number else ""
    message = error.msg if isinstance(error, SyntaxError) else str(error)
    # ConfigDict answers an unknown key by an AttributeError that holds a KeyError, whether the key is set or read
    cause = error.args[0] if isinstance(error, AttributeError) and error.args else None
    absent = re.match(r"""(?:Key )?['"](\w+)['"]""", str(cause.args[0])) if isinstance(cause, KeyError) else None
    if absent:
        return f"{where}: {unknown_key(_dotted(absent[1], line), declared())}"
    if isinstance(error, UserError):
        return f"{where}: {error}"
    if isinstance(error, SystemExit):
        return f"{where}: the file ends the program (SystemExit: {error.code}); it must return a config"
    return f"{where}: {': '.join(filter(None, (type(error).__name__, ' '.join(message.split()))))}"


def _line_number(path: str, error: BaseException) -> int | None:
    if isinstance(error, SyntaxError) and error.filename == path:
        return error.lineno
    numbers = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    return numbers[-1] if numbers else None


def _dotted(leaf: str, line: str) -> str:
    """The full name of `leaf` as far as the source line shows it: `config.train.num_step = 5` -> train.num_step."""
    match = re.search(rf"((?:\w+\.)*){leaf}\b", line)
    groups = match[1].split(".")[:-1] if match else []
    for start in range(len(groups)):
        prefix = ".".join(groups[start:])
        if any(known.startswith(f"{prefix}.") for known in declared()):
            return f"{prefix}.{leaf}"
    return leaf
