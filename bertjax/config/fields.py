"""Settings: the fields of frozen dataclasses, declared once, next to the code that reads them.

    @dataclasses.dataclass(frozen=True)
    class Schedule(Settings, group="schedule"):
        name: str = setting("bert", help="Shape after warmup.", choices=tuple(SHAPES))  # the key schedule.name
        num_steps: int = linked("train.num_steps")          # the value of a key of another group
        peak: Optimizer                                     # another group as a whole

        def check(self) -> None:                            # only what needs several fields; raises UserError
            ...

        def rate(self, step): ...                           # the work that the settings are for

`Reader` makes such a dataclass from the values of a config. The root, `bertjax.experiment.config.Config`, names the
classes; `config/keys.json`, generated from them, lists the keys for whatever must not import them.

The type is the annotation: bool, int, float, str, or a tuple of one of these, with `| None` where None is allowed.
None has one meaning: the feature is off, or the value follows from others in the way that the help says.
`PRESET` has another: the value of the chosen model preset (networks only).
"""

from __future__ import annotations

import dataclasses
import math
import re
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Self, TypeVar

from ml_collections import ConfigDict

from bertjax.config.registry import Choices
from bertjax.errors import UserError, named, one_line, require_one_of, require_path, require_storable_text, shortened

PRESET = "preset"
"""The value of a key of `model` or `generator` that is taken from the preset."""

_EXPECTED = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
_TAG, _LINK = "setting", "link"
_LARGEST = {int: 2.0**31 - 1, float: 1e37}
"""Bounds of numbers whose declaration has none: devices count in 32 bits and compute in float32."""
_SMALLEST = 1e-37


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """The declaration of one field; made by `setting`, which documents the attributes.

    Attributes:
        kind: Type of the value, or of the items of a tuple.
        many: Whether the value is a tuple.
        nullable: Whether None is allowed.
    """

    default: Any = None
    help: str = ""
    choices: Sequence[str] = ()
    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None
    follows: tuple[str, Callable[[Any], Any]] | None = None
    hf: str | None = None
    resume: bool = False
    phase: bool = False
    changes_output: bool = True
    key: bool = True
    inherits: bool = False
    path: bool = False
    heads: tuple[str, ...] = ()
    read_if: Callable[[Any], bool] | None = None
    names: tuple[str, ...] = ()
    may_differ_from_init: bool = False
    kind: type = str
    many: bool = False
    nullable: bool = False

    @property
    def expected(self) -> str:
        """The kind of value that is expected, in words."""
        words = _EXPECTED[self.kind]
        if self.many:
            words = r"items separated by commas (\, is a comma inside an item)"
            words += "" if self.kind is str else f", each {_EXPECTED[self.kind]}"
        words += " or None" if self.nullable else ""
        return words + (f" or {PRESET}" if self.inherits else "")

    @property
    def bounds(self) -> str:
        """The allowed range in words, "" if there is none: "at least 1", "in [0, 1)"."""
        lower = self.at_least if self.above is None else self.above
        upper = self.at_most if self.below is None else self.below
        if lower is not None and upper is not None:
            first, last = "[" if self.above is None else "(", "]" if self.below is None else ")"
            return f"in {first}{lower:.15g}, {upper:.15g}{last}"
        if lower is not None:
            return f"{'at least' if self.above is None else 'above'} {lower:.15g}"
        return "" if upper is None else f"{'at most' if self.below is None else 'below'} {upper:.15g}"

    def check(self, key: str, value: Any) -> Any:
        """Checks type, finiteness, choices and range, and that text can be stored and passed to the system.

        `key` is the dotted name of the key, for the message.

        Returns:
            The value; a whole number as float where the type is float, a list as tuple where it is a tuple.

        Raises:
            UserError: The value is not allowed.
        """
        if (value is None and self.nullable) or (self.inherits and isinstance(value, str) and value == PRESET):
            return value
        if self.many and isinstance(value, (tuple, list)) and all(self._conforms(each) for each in value):
            value = tuple(map(self.kind, value))
        elif self.many or not self._conforms(value):
            raise UserError(f"{key} expects {self.expected}, not {shortened(value)}")
        else:
            value = self.kind(value)
        for each in value if self.many else (value,):
            self._check_item(key, each)
        return value

    def parse(self, key: str, text: str) -> Any:
        """Reads a value of the command line: `1e3` is a whole number, `a,b` a tuple, "" the empty tuple.

        `key` is the dotted name of the key, for the message.

        Raises:
            UserError: The text is not a value that the key may have.
        """
        if (self.nullable and text == "None") or (self.inherits and text == PRESET):
            return None if text == "None" else PRESET
        try:
            value = _split(text, self.kind) if self.many else _READERS[self.kind](text)
        except (ValueError, KeyError):
            raise UserError(f"{key} expects {self.expected}, not {shortened(text)}") from None
        return self.check(key, value)

    def _conforms(self, value: Any) -> bool:
        if self.kind is float:  # True is not a number, and an integer may be too large for a float
            return type(value) in (int, float) and value == value and abs(value) <= sys.float_info.max
        return type(value) is self.kind

    def _check_item(self, key: str, value: Any) -> None:
        if self.kind is str:
            self._check_text(key, value)
        elif self.kind is not bool:
            self._check_number(key, value)

    def _check_text(self, key: str, value: str) -> None:
        if isinstance(self.choices, Choices):
            self.choices.require(key, value)
        elif self.choices:
            require_one_of(key, value, self.choices)
        require_storable_text(key, value)
        if self.path:
            require_path(key, value)

    def _check_number(self, key: str, value: float) -> None:
        outside = (
            (self.at_least is not None and value < self.at_least)
            or (self.above is not None and value <= self.above)
            or (self.at_most is not None and value > self.at_most)
            or (self.below is not None and value >= self.below)
        )
        if outside:
            raise UserError(
                f"{key} must {'lie' if ', ' in self.bounds else 'be'} {self.bounds}, not {shortened(value)}"
            )
        largest = _LARGEST[self.kind] if self.at_most is None else self.at_most
        if abs(value) > largest:
            bound = f"at most {largest:.15g}" if value > 0 else f"at least -{largest:.15g}"
            raise UserError(f"{key} must be {bound}, not {shortened(value)}")
        if self.kind is float and 0 < abs(value) < _SMALLEST:
            raise UserError(f"{key} must be 0 or further from it than {_SMALLEST}, not {value}")


def setting(default: Any = dataclasses.MISSING, **declaration: Any) -> Any:
    """Declares a field of the configuration.

    Args:
        default: Default value.
        **declaration: Any of
            help: One or two sentences for the reader of `bertjax config`.
            choices: Allowed texts, of a tuple: of its items; `Choices` where packages can add some.
            at_least, above, at_most, below: Bounds of a number, of a tuple: of its items.
            follows: (key, function): the default is the function of that key's value, as long as it is not set.
            hf: Name of the field in Hugging Face's config.json, where it differs.
            resume: The value may change when a run is resumed.
            phase: A phase of `train.phases` may set it.
            changes_output: False: the field changes how something is computed, drawn or named, never the result.
            key: False: checked, but not a key of the config; other code sets it.
            path: The value may be the path of a file or folder.
            inherits: The value may be `PRESET`.
            heads: Heads that read the field; () = the encoder.
            read_if: Function of the config: whether a model with these other values reads the field at all.
            names: Values of the group's `name` that read the field; with others it must be None.
            may_differ_from_init: Weights keep their meaning where the value differs from that of the model that they
                were trained in.

    Returns:
        A dataclass field with a `Setting` in its metadata.
    """
    stored = None if default is dataclasses.MISSING else default
    return dataclasses.field(default=default, metadata={_TAG: Setting(default=stored, **declaration)})


def linked(key: str, default: Any = dataclasses.MISSING) -> Any:
    """Declares a field that has the value of a key of another group, for checks and methods that need both."""
    return dataclasses.field(default=default, metadata={_LINK: key}, kw_only=True)


def phase_setting(default: Any, **declaration: Any) -> Any:
    """Declares a field that a phase of `train.phases` may set; see `setting`."""
    return setting(default, phase=True, **declaration)


@dataclasses.dataclass(frozen=True)
class Settings:
    """Base of the dataclasses that declare a group of the config: checks every field, then calls `check`.

    `resume=True` in the class statement lets every field of the class change when a run is resumed.
    """

    group: ClassVar[str] = ""
    resume: ClassVar[bool] = False

    def __init_subclass__(cls, group: str | None = None, resume: bool | None = None) -> None:
        cls.group = cls.group if group is None else group
        cls.resume = cls.resume if resume is None else resume

    def __post_init__(self) -> None:
        for name, each in settings_of(type(self)).items():
            key, value = named(dotted(self.group, name)), getattr(self, name)
            each.check(key, value)
            if each.names and value is not None and self.name not in each.names:  # type: ignore[attr-defined]
                raise UserError(
                    f"{key} has no effect with {self.group}.name={self.name} "  # type: ignore[attr-defined]
                    f"(it is for {', '.join(each.names)}); set it to None"
                )
        self.check()

    @classmethod
    def read(cls, reader: Reader) -> Self:
        """Makes the group from the values of a config; raises `UserError` for a value that is not allowed."""
        return cls(**reader.fields_of(cls))

    def check(self) -> None:
        """Raises `UserError` for values that do not go together."""

    def replace(self, **changes: Any) -> Self:
        """Returns a copy with other values, checked again."""
        return dataclasses.replace(self, **changes)


Group = TypeVar("Group", bound=Settings)


def dotted(group: str, name: str) -> str:
    """Returns the full key of a field: `train.num_steps`."""
    return f"{group}.{name}" if group else name


_cache: dict[type, Mapping[str, Setting]] = {}
_hints: dict[type, dict[str, Any]] = {}


def _type_hints(cls: type) -> dict[str, Any]:
    """Returns the types of the fields; to compile the text of all annotations takes a quarter of reading a config."""
    if cls not in _hints:
        _hints[cls] = typing.get_type_hints(cls)
    return _hints[cls]


def settings_of(cls: type[Settings]) -> Mapping[str, Setting]:
    """Returns the declared fields of a dataclass by name, in their order, each with its type."""
    if cls not in _cache:
        hints = _type_hints(cls)
        tagged = {field.name: field.metadata[_TAG] for field in dataclasses.fields(cls) if _TAG in field.metadata}
        _cache[cls] = {
            name: dataclasses.replace(each, resume=each.resume or cls.resume, **_kind_of(hints[name]))
            for name, each in tagged.items()
        }
    return _cache[cls]


def names_where(cls: type[Settings], test: Callable[[Setting], bool]) -> tuple[str, ...]:
    """Returns the names of the fields whose declaration passes a test."""
    return tuple(name for name, each in settings_of(cls).items() if test(each))


class Reader:
    """Makes the dataclasses of a config, each once.

    Args:
        cfg: The whole config.

    Attributes:
        values: Value of every key by its dotted name.
    """

    def __init__(self, cfg: ConfigDict) -> None:
        self.values, self.cfg = values_of(cfg), cfg
        self._groups: dict[type[Settings], Any] = {}

    def __call__(self, cls: type[Group]) -> Group:
        """Returns a group; raises `UserError` for a value that is not allowed."""
        if cls not in self._groups:
            self._groups[cls] = cls.read(self)
        group: Group = self._groups[cls]
        return group

    def fields_of(self, cls: type[Settings]) -> dict[str, Any]:
        """Returns the fields of a group that are keys, links to keys, or other groups."""
        fields, hints = {}, _type_hints(cls)
        for field in dataclasses.fields(cls):
            if (declared := field.metadata.get(_TAG)) is not None and declared.key:
                fields[field.name] = self._value(dotted(cls.group, field.name))
            elif _LINK in field.metadata:
                fields[field.name] = self._value(field.metadata[_LINK])
            elif isinstance(hints[field.name], type) and issubclass(hints[field.name], Settings):
                fields[field.name] = self(hints[field.name])
        return fields

    def _value(self, key: str) -> Any:
        if key not in self.values:
            raise UserError(f"{key} is not in config/keys.json: run python -m bertjax.experiment.config")
        return self.values[key]


def values_of(config: ConfigDict | Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns {dotted key: value} in order of the keys, each after `prefix`, references resolved."""
    values: dict[str, Any] = {}
    for name in sorted(config.keys()):
        try:
            value = config[name]
        except (ArithmeticError, ValueError, TypeError) as error:
            raise UserError(f"{prefix}{name} cannot be computed from the keys it follows: {one_line(error)}") from None
        if isinstance(value, (ConfigDict, dict)):
            values |= values_of(value, f"{prefix}{name}.")
        else:
            values[prefix + name] = value
    return values


def declare(groups: Iterable[type[Settings]]) -> dict[str, Setting]:
    """Returns {dotted key: declaration} of the keys of these dataclasses."""
    return {dotted(cls.group, name): each for cls in groups for name, each in settings_of(cls).items() if each.key}


def _kind_of(hint: Any) -> dict[str, Any]:
    """`{"kind": int, "many": False, "nullable": True}` for `int | None`."""
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    kind = next(each for each in options if each is not type(None))
    many = typing.get_origin(kind) is tuple
    return {"kind": typing.get_args(kind)[0] if many else kind, "many": many, "nullable": type(None) in options}


def _read_int(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        number = float(text)  # 1e6
        if not (math.isfinite(number) and number.is_integer()):
            raise
        return int(number)


def _read_float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number


_READERS: dict[type, Callable[[str], Any]] = {str: str, int: _read_int, float: _read_float}
_READERS[bool] = lambda text: {"true": True, "1": True, "false": False, "0": False}[text.lower()]


def _split(text: str, kind: type) -> tuple[Any, ...]:
    if not text.strip():
        return ()
    items = [item.strip().replace("\\,", ",") for item in re.split(r"(?<!\\),", text)]
    if "" in items:
        raise ValueError(text)
    return tuple(map(_READERS[kind], items))


def format_value(value: Any) -> str:
    """Returns a value as it is written on the command line."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return ",".join(str(each).replace(",", "\\,") for each in value)
    return str(value)
