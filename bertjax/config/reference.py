"""The keys of the config in words: for `bertjax config` and for the reference page of the docs."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from typing import Any

from ml_collections import ConfigDict

from bertjax.config.fields import Setting
from bertjax.config.fields import format_value as format_value
from bertjax.config.keys import groups_read_by, objective_facts
from bertjax.config.model import NETWORK_GROUPS
from bertjax.config.objectives import objective_class
from bertjax.config.overrides import declared, flatten, unknown_key
from bertjax.errors import UserError


def describe_keys(cfg: ConfigDict, names: list[str]) -> Iterator[str]:
    """Yields the description of keys, each with its value, default, choices and help.

    Args:
        cfg: A config.
        names: Keys or groups; none: all keys but those of other objectives than the chosen one.

    Raises:
        UserError: A name is neither a key nor a group.
    """
    values, known, hidden = flatten(cfg), declared(cfg), () if names else _other_groups(cfg)
    for name in names:
        if not any(key == name or key.startswith(f"{name}.") for key in values):
            raise UserError(unknown_key(name, known))
    for key, value in values.items():
        chosen = any(key == name or key.startswith(f"{name}.") for name in names) if names else True
        if chosen and not key.startswith(hidden):
            each = known[key]
            details = f"{each.help} {_details(each, value)}".strip()
            yield f"{key} = {format_value(value)}\n{textwrap.indent(textwrap.fill(details, 96), '    ')}"


def markdown_reference() -> str:
    """Returns all keys by group as definition lists, in Markdown: help, type, default, bounds, when it may change.

    Keys in the text of others are links. Keys of `generator` and `decoder` that `model` has are not listed.
    """
    groups: dict[str, list[str]] = {"": []}
    for key, each in declared().items():
        if _is_listed(key):
            facts = [_kind(each), _default(each)]
            facts += [f"one of {', '.join(f'`{choice}`' for choice in each.choices)}"] if each.choices else []
            facts += [each.bounds] if each.bounds else []
            facts += ["may change on resume"] if each.resume else []
            facts += ["may differ between phases"] if each.phase else []
            group = key.rpartition(".")[0]
            text = f"`{key}`{{ #{key} }}\n:   {_with_links(each.help, group)}<br>*{'; '.join(facts)}*"
            groups.setdefault(group, []).append(text)
    parts = [f"## {f'`{group}`' if group else 'The run'}\n\n" + "\n\n".join(keys) for group, keys in groups.items()]
    return (
        "\n\n".join(parts)
        + "\n\nThe other keys of `generator` and `decoder` are those of `model`, with the same meaning.\n"
    )


def _is_listed(key: str) -> bool:
    group, _, name = key.partition(".")
    return key in declared() and not (group in NETWORK_GROUPS[1:] and f"model.{name}" in declared())


def _kind(each: Setting) -> str:
    kind = {str: "text", bool: "true or false"}.get(each.kind, each.kind.__name__)
    return f"{f'list of {kind}' if each.many else kind}{' or None' if each.nullable else ''}"


def _default(each: Setting) -> str:
    if each.follows:
        return f"follows [`{each.follows[0]}`](#{each.follows[0]})"
    return f"default `{format_value(each.default)}`" if format_value(each.default) else "default empty"


def _with_links(text: str, group: str) -> str:
    """Returns a help text as Markdown: special characters are escaped, names of keys are links.

    Args:
        text: The help of a key.
        group: Its group, where names without one are looked up.
    """

    def replace(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        key = next((each for each in (name, f"{group}.{name}") if _is_listed(each)), None)
        if key is None and match[2]:
            return re.sub(r"([*_])", r"\\\1", name)
        return f"[`{name}`](#{key})" if key else f"`{name}`"

    escaped = re.sub(r"[*<\[\]]|(?<!\w)_|_(?!\w)", r"\\\g<0>", text)
    return re.sub(r"`([^`]+)`|(?<![\w.`])(\w+(?:\.\w+)+)(?![\w`])", replace, escaped)


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
    chosen, facts = cfg.objective.name, objective_facts()
    reads = facts[chosen].reads if chosen in facts else groups_read_by(objective_class(chosen))
    if chosen not in facts or facts[chosen].is_finetuning:  # networks that follow from the kind of task, or unlisted
        reads += tuple(objective_class(chosen).read_encoders(cfg))
    of_objectives = {key.rpartition(".")[0] for key in declared() if key.startswith("objective.")} - {"objective"}
    others = {*of_objectives, *NETWORK_GROUPS, *(each.reads[0] for each in facts.values())} - {*reads}
    return tuple(f"{group}." for group in sorted(others))
