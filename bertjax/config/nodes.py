"""The ConfigDict of declared fields: checked values, references between keys, and the settings of extensions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ml_collections import ConfigDict, FieldReference

from bertjax.config.fields import PRESET, Setting, Settings, dotted, settings_of
from bertjax.config.registry import Choices
from bertjax.errors import UserError


class CheckedReference(FieldReference):
    """A field of the ConfigDict that checks every value that is assigned to it."""

    def __init__(self, key: str, setting: Setting, default: Any):
        self.key, self.setting = key, setting
        super().__init__(default, field_type=tuple if setting.many else setting.kind)

    def set(self, value: Any, type_safe: bool = True) -> None:
        """Sets a value, or a reference to another field; raises `UserError` for one that is not allowed."""
        if not isinstance(value, FieldReference):
            value = self.setting.check(self.key, value)
        elif not issubclass(value.get_type(), self.get_type()):
            raise UserError(f"{self.key} expects {self.setting.expected}, not a reference to {value.get()!r}")
        super().set(value, type_safe=False)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


class GroupNode(ConfigDict):
    """A group of the config. A key that chooses an extension adds the extension's settings, in a group of their own."""

    def __setitem__(self, key: str, value: Any) -> None:
        field = self._fields.get(key)
        if not (isinstance(field, CheckedReference) and isinstance(field.setting.choices, Choices)):
            super().__setitem__(key, value)
            return
        before = _extension_group(field)
        super().__setitem__(key, value)
        after = _extension_group(field)
        if before is not after:
            self._exchange(field, before, after)

    def _exchange(self, field: CheckedReference, before: type[Settings] | None, after: type[Settings] | None) -> None:
        with self.unlocked():
            if before is not None:
                del self[_last(before.group)]
            if after is not None:
                group = dotted(field.key.rpartition(".")[0], _last(after.group))
                if _last(after.group) in self:
                    raise UserError(f"{field.key}={field.get()} declares settings in {group}, which is bertjax's own")
                self[_last(after.group)] = GroupNode()
                for name, each in settings_of(after).items():
                    if each.key:
                        self[_last(after.group)][name] = CheckedReference(dotted(group, name), each, each.default)


def _extension_group(field: CheckedReference) -> type[Settings] | None:
    """Returns the dataclass that declares the settings of the extension that a field names, if it names one."""
    choices, value = field.setting.choices, field.get()
    if not isinstance(choices, Choices) or value in (None, PRESET, *choices.others, *choices.registry.builtin):
        return None
    cls = choices.registry.load(value)
    cls = getattr(cls, "settings_class", cls)
    if not (isinstance(cls, type) and issubclass(cls, Settings)):
        return None
    of_base = {name for each in choices.registry.builtins() if each.group == cls.group for name in settings_of(each)}
    return None if of_base and of_base >= {*settings_of(cls)} else cls


def _last(group: str) -> str:
    return group.rpartition(".")[2]


class Derivation(NamedTuple):
    """An operation of a `FieldReference`."""

    fn: Callable[[Any], Any]
    args: tuple[Any, ...] = ()


def derived(config: ConfigDict, key: str, function: Callable[[Any], Any]) -> FieldReference:
    """Returns a reference whose value is a function of another key's value.

    Args:
        config: The whole config.
        key: Dotted name of the key that is followed.
        function: Makes the value.
    """
    source = reference(config, key)
    return FieldReference(source, field_type=source.get_type(), op=Derivation(function))


def reference(config: ConfigDict, key: str) -> FieldReference:
    """Returns the reference to a dotted key."""
    *path, leaf = key.split(".")
    for name in path:
        config = config[name]
    return config.get_ref(leaf)


def new_config(declared: Mapping[str, Setting]) -> ConfigDict:
    """Returns an unlocked ConfigDict with these keys and their defaults."""
    config: ConfigDict = GroupNode()
    for key in sorted(declared, key=lambda key: declared[key].follows is not None):  # what they follow comes first
        *path, leaf = key.split(".")
        node, each = config, declared[key]
        for name in path:
            if name not in node:
                node[name] = GroupNode()
            node = node[name]
        default = derived(config, *each.follows) if each.follows else each.default
        node[leaf] = CheckedReference(key, each, default)
    return config


def declared_settings(config: ConfigDict) -> dict[str, Setting]:
    """Returns the declaration of every key of a base config."""
    settings: dict[str, Setting] = {}
    for field in config.values(preserve_field_references=True):
        if isinstance(field, ConfigDict):
            settings |= declared_settings(field)
        elif isinstance(field, CheckedReference):
            settings[field.key] = field.setting
    return settings
