"""The keys of the config in words: for `bertjax config` and for the reference page of the docs."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

from ml_collections import ConfigDict

from bertjax.config.fields import Setting
from bertjax.config.objectives import GROUPS as OBJECTIVE_GROUPS
from bertjax.config.objectives import objective_class
from bertjax.config.objectives.base import ObjectiveChoice
from bertjax.config.overrides import declared, flatten, unknown_key
from bertjax.errors import UserError


def describe_keys(cfg: ConfigDict, names: list[str], width: int = 100) -> Iterator[str]:
    """Yields the description of keys, each with its value, default, choices and help.

    Args:
        cfg: A config.
        names: Keys or groups; none: all keys but those of other objectives than the chosen one.
        width: Longest line in characters.

    Raises:
        UserError: A name is neither a key nor a group.
    """
    values, hidden = flatten(cfg), () if names else _other_groups(cfg)
    for name in names:
        if not any(key == name or key.startswith(f"{name}.") for key in values):
            raise UserError(unknown_key(name, declared()))
    for key, value in values.items():
        chosen = any(key == name or key.startswith(f"{name}.") for name in names) if names else True
        if chosen and not key.startswith(hidden):
            each = declared()[key]
            details = f"{each.help} {_details(each, value)}".strip()
            yield f"{key} = {format_value(value)}\n{textwrap.indent(textwrap.fill(details, width - 4), '    ')}"


def markdown_reference() -> str:
    """Returns a table of all keys per group, in Markdown."""
    groups: dict[str, list[str]] = {}
    for key, each in declared().items():
        group = key.rpartition(".")[0]
        row = f"| `{key}` | `{format_value(each.default)}` | {each.help} {_limits(each)} |".replace("  ", " ")
        groups.setdefault(group, ["| key | default | |", "| --- | --- | --- |"]).append(row)
    return "\n\n".join(f"## {group or 'Run'}\n\n" + "\n".join(rows) for group, rows in groups.items()) + "\n"


def format_value(value: Any) -> str:
    """Returns a value as it is written on the command line."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return ",".join(str(each).replace(",", "\\,") for each in value)
    return str(value)


def _details(each: Setting, value: Any) -> str:
    default = list(each.default) if isinstance(each.default, tuple) else each.default
    if each.follows:
        shown = f"(Follows {each.follows[0]}.)"
    else:
        shown = "" if value == default else f"(Default: {format_value(default) or 'empty'}.)"
    return f"{_limits(each)} {shown}".strip()


def _limits(each: Setting) -> str:
    choices = f"Choices: {', '.join(each.choices)}." if each.choices else ""
    return f"{choices} {each.bounds.capitalize()}.".strip() if each.bounds else choices


def _other_groups(cfg: ConfigDict) -> tuple[str, ...]:
    """Prefixes of the keys that the chosen objective does not read."""
    chosen = objective_class(cfg.objective.name)
    read = {ObjectiveChoice.group, chosen.group, *(each.group for each in chosen.uses), *chosen.read_encoders(cfg)}
    groups = {*(each.group for each in OBJECTIVE_GROUPS), "generator"} - read
    return tuple(f"{group}." for group in sorted(groups))
