"""Config files and `--config.KEY=VALUE`: loading, typing, checking, and config.json. Every fault is one line.

`reference` is everywhere the config that declares keys and types; it defaults to `base_config()`.
"""

from __future__ import annotations

import copy
import difflib
import json
import linecache
import math
import re
import traceback
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from ml_collections import ConfigDict, FieldReference

from bertjax.config.defaults import base_config
from bertjax.errors import UserError

Declared = Mapping[str, tuple[type, bool]]  # dotted key -> its type, and whether it may be None

_PREFIX = "--config."
_EXPECTED = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    tuple: r"items separated by commas (\, is a comma inside an item)",
}


def load_config(spec: str, reference: ConfigDict | None = None) -> ConfigDict:
    """The config that `PATH.py` or `PATH.py:ARGUMENT` describes, checked against the declared keys.

    The file is Python and is executed: `get_config()` or `get_config(ARGUMENT)` is called. Run no file you don't trust.
    """
    path, argument = _split_spec(spec)
    reference = base_config() if reference is None else reference
    declared = _declared(reference)
    get_config = _execute(path, declared).get("get_config")
    if not isinstance(get_config, types.FunctionType):
        raise UserError(f"{path} defines no function get_config()")
    if argument is not None and not get_config.__code__.co_argcount:
        raise UserError(f"{path} takes no argument, but was given {argument!r}: use --config {path}")
    config = _call(path, get_config, [] if argument is None else [argument], declared)
    if not isinstance(config, ConfigDict):
        raise UserError(f"{path}: get_config() must return a ConfigDict, not {type(config).__name__}")
    try:
        check_keys(config, reference)
    except UserError as fault:
        raise UserError(f"{path}: {fault}") from None
    return config


def apply_overrides(config: ConfigDict, arguments: Sequence[str], reference: ConfigDict | None = None) -> ConfigDict:
    """Set `--config.KEY=VALUE` arguments in `config`, which is returned; nothing is set unless all of them are right.

    A value is read by the declared type of its key: `1e3` is a whole number, a tuple is `a,b` (`\\,` is a comma,
    nothing is the empty tuple), and `None` is allowed where None is the default. The last of several counts.
    """
    declared = _declared(base_config() if reference is None else reference)
    parsed = [_parse_argument(argument, declared) for argument in arguments]
    for key, value in parsed:
        _assign(config, key, value)
    return config


def check_keys(config: ConfigDict, reference: ConfigDict | None = None) -> None:
    """Refuse keys that are not declared, missing ones, and values of another type than the declared one."""
    declared = _declared(base_config() if reference is None else reference)
    values = dict(_leaves(config))
    for key, value in values.items():
        if key not in declared:
            raise UserError(unknown_key(key, declared))
        kind, nullable = declared[key]
        if not _conforms(value, kind, nullable):
            _refuse(key, value, kind, nullable)
    for key in declared:
        if key not in values:
            raise UserError(f"key {key} is missing: start the config from base_config()")


def flatten(config: ConfigDict) -> dict[str, Any]:
    """Dotted key -> value in order of the keys, references resolved, tuples as lists: what JSON can hold."""
    return {key: list(value) if isinstance(value, tuple) else value for key, value in _leaves(config)}


def to_json(config: ConfigDict) -> str:
    """The resolved config as nested JSON; equal configs give equal text."""
    nested: dict[str, Any] = {}
    for key, value in flatten(config).items():
        *groups, leaf = key.split(".")
        place = nested
        for group in groups:
            place = place.setdefault(group, {})
        place[leaf] = value
    return json.dumps(nested, indent=2, ensure_ascii=False) + "\n"


def from_json(text: str, reference: ConfigDict | None = None) -> ConfigDict:
    """The config that `to_json` wrote; a key that is younger than the text keeps its default. Executes nothing."""
    config = copy.deepcopy(base_config() if reference is None else reference)
    declared = _declared(config)
    try:
        nested = json.loads(text)
    except (ValueError, RecursionError) as fault:
        raise UserError(f"the stored config is not JSON: {fault}") from None
    if not isinstance(nested, dict):
        raise UserError("the stored config is not a JSON object")
    for key, value in _leaves(nested):
        if key not in declared:
            raise UserError(f"{unknown_key(key, declared)} (was it written by another version of bertjax?)")
        kind, nullable = declared[key]
        value = tuple(value) if isinstance(value, list) else value
        if not _conforms(value, kind, nullable):
            _refuse(key, value, kind, nullable)
        _assign(config, key, value)
    return config


def differences(old: ConfigDict, new: ConfigDict) -> list[tuple[str, Any, Any]]:
    """(key, old value, new value) of every key that differs; a key that one of them lacks is None there."""
    before, after = flatten(old), flatten(new)
    keys = sorted({*before, *after})
    return [(key, before.get(key), after.get(key)) for key in keys if before.get(key) != after.get(key)]


def unknown_key(key: str, declared: Mapping[str, Any]) -> str:
    """One line that names the declared key which was most likely meant."""
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
    return ", ".join(known for known in declared if known.startswith(f"{group}."))


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


def _declared(reference: ConfigDict) -> Declared:
    return {key: (kind, value is None) for key, value, kind in _typed_leaves(reference)}


def _leaves(config: ConfigDict | Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name in sorted(config.keys()):
        value = config[name]
        if isinstance(value, (ConfigDict, dict)):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _typed_leaves(config: ConfigDict, prefix: str = "") -> Iterator[tuple[str, Any, type]]:
    for name, field in config.items(preserve_field_references=True):
        if isinstance(field, ConfigDict):
            yield from _typed_leaves(field, f"{prefix}{name}.")
        elif isinstance(field, FieldReference):
            yield prefix + name, field.get(), field.get_type()
        else:
            yield prefix + name, field, type(field)


def _assign(config: ConfigDict, key: str, value: Any) -> None:
    *groups, leaf = key.split(".")
    for group in groups:
        config = config[group]
    config[leaf] = value


def _conforms(value: Any, kind: type, nullable: bool) -> bool:
    if value is None:
        return nullable
    if kind is float:
        return type(value) in (int, float)
    if kind is tuple:
        return isinstance(value, tuple) and all(isinstance(item, str) for item in value)
    return type(value) is kind  # so that True is no whole number


def _parse_argument(argument: str, declared: Declared) -> tuple[str, Any]:
    if not argument.startswith(_PREFIX):
        if argument.lstrip("-").startswith("config."):
            raise UserError(f"{argument}: overrides start with two dashes, --{argument.lstrip('-')}")
        raise UserError(f"unknown argument {argument}; a key of the config is set by {_PREFIX}KEY=VALUE")
    key, equals, text = argument.removeprefix(_PREFIX).partition("=")
    if key not in declared:
        raise UserError(unknown_key(key, declared))
    if not equals:
        raise UserError(f"{argument} has no value: write {argument}=VALUE")
    kind, nullable = declared[key]
    if nullable and text == "None":
        return key, None
    try:
        return key, _parse_value(text, kind)
    except ValueError:
        _refuse(key, text, kind, nullable)


def _parse_value(text: str, kind: type) -> Any:
    """Read `text` as a value of type `kind`; ValueError where it is none."""
    readers: dict[type, Callable[[str], Any]] = {
        str: str,
        bool: _parse_bool,
        int: _parse_int,
        float: _parse_float,
        tuple: _parse_tuple,
    }
    return readers[kind](text)


def _parse_bool(text: str) -> bool:
    values = {"true": True, "1": True, "false": False, "0": False}
    if text.lower() not in values:
        raise ValueError(text)
    return values[text.lower()]


def _parse_int(text: str) -> int:
    try:
        whole = int(text)
    except ValueError:
        number = _parse_float(text)  # 1e6
        if not number.is_integer():
            raise
        whole = int(number)
    if abs(whole) >= 2**63:  # nothing in arrays or files has room for it
        raise ValueError(text)
    return whole


def _parse_float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number


def _parse_tuple(text: str) -> tuple[str, ...]:
    if not text.strip():
        return ()
    items = tuple(item.strip().replace("\\,", ",") for item in re.split(r"(?<!\\),", text))
    if "" in items:
        raise ValueError(text)
    return items


def _refuse(key: str, value: Any, kind: type, nullable: bool) -> NoReturn:
    raise UserError(f"{key} expects {_EXPECTED[kind]}{' or None' if nullable else ''}, not {value!r}")


def _split_spec(spec: str) -> tuple[str, str | None]:
    if spec.endswith(".py"):
        return spec, None
    path, separator, argument = spec.partition(".py:")
    if not separator:
        raise UserError(f"{spec} is no config: give PATH.py or PATH.py:ARGUMENT, such as configs/bert.py:base")
    return f"{path}.py", argument


def _execute(path: str, declared: Declared) -> dict[str, Any]:
    """Run a config file afresh (no bytecode is read or left behind) and return its names."""
    try:
        source = Path(path).read_bytes()
    except OSError as fault:
        beside = ", ".join(sorted(map(str, Path(path).parent.glob("*.py"))))
        hint = f"; there are {beside}" if beside else ""
        raise UserError(f"cannot read config {path}: {fault.strerror}{hint}") from None
    names: dict[str, Any] = {"__name__": "bertjax_config", "__file__": path}
    try:
        exec(compile(source, path, "exec"), names)
    except Exception as fault:
        raise UserError(_explain(path, fault, declared)) from fault
    return names


def _call(path: str, function: Any, arguments: Sequence[str], declared: Declared) -> Any:
    try:
        return function(*arguments)
    except UserError as fault:
        raise UserError(f"{path}: {fault}") from None
    except Exception as fault:
        raise UserError(_explain(path, fault, declared)) from fault


def _explain(path: str, fault: Exception, declared: Declared) -> str:
    """One line for an exception out of a config file, with the line that raised it."""
    number = _line_number(path, fault)
    where = f"{path}:{number}" if number else path
    line = linecache.getline(path, number).strip() if number else ""
    message = fault.msg if isinstance(fault, SyntaxError) else str(fault)
    # ConfigDict answers an unknown key by an AttributeError that holds a KeyError, whether the key is set or read
    cause = fault.args[0] if isinstance(fault, AttributeError) and fault.args else None
    absent = re.match(r"""(?:Key )?['"](\w+)['"]""", str(cause.args[0])) if isinstance(cause, KeyError) else None
    if absent:
        return f"{where}: {unknown_key(_dotted(absent[1], line, declared), declared)}"
    mistyped = re.match(r"Could not override field '(\w+)'", message)
    key = _dotted(mistyped[1], line, declared) if mistyped else ""
    if key in declared:
        return f"{where}: {key} expects {_EXPECTED[declared[key][0]]}: {line}"
    return f"{where}: {type(fault).__name__}: {' '.join(message.split())}"


def _line_number(path: str, fault: Exception) -> int | None:
    if isinstance(fault, SyntaxError) and fault.filename == path:
        return fault.lineno
    numbers = [frame.lineno for frame in traceback.extract_tb(fault.__traceback__) if frame.filename == path]
    return numbers[-1] if numbers else None


def _dotted(leaf: str, line: str, declared: Mapping[str, Any]) -> str:
    """The full name of `leaf` as far as the source line shows it: `config.train.num_step = 5` -> train.num_step."""
    found = re.search(rf"((?:\w+\.)*){leaf}\b", line)
    groups = found[1].split(".")[:-1] if found else []
    for start in range(len(groups)):
        prefix = ".".join(groups[start:])
        if any(known.startswith(f"{prefix}.") for known in declared):
            return f"{prefix}.{leaf}"
    return leaf
