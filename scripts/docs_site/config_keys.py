"""The page of all keys of a config."""

from __future__ import annotations

import re

from bertjax.config.fields import Setting, format_value
from bertjax.config.model import NETWORK_GROUPS
from bertjax.config.overrides import declared


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
