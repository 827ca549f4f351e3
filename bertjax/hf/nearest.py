"""The supported family that a folder of an unknown model resembles most, for the error that refuses it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from bertjax.errors import UserError, comma_list
from bertjax.hf.keymaps import FAMILIES
from bertjax.hf.keymaps.family import IGNORED_KEYS, Family

_MIN_TENSORS, _MIN_KEYS, _MIN_NAME = 0.3, 0.5, 0.5  # shares from which on a likeness says something
_MAX_NAMED = 4


class _Likeness(NamedTuple):
    """Likeness of a folder and a family, as shares in [0, 1], and the differences.

    unknown   keys of config.json that the family does not have
    foreign   tensors that it does not have
    missing   tensors of its encoder that the folder does not have
    """

    family: Family
    tensors: float
    keys: float
    name: float
    unknown: list[str]
    foreign: list[str]
    missing: list[str]

    @property
    def score(self) -> float:
        return 2.0 * self.tensors + self.keys + 0.5 * self.name

    @property
    def is_close(self) -> bool:
        if self.foreign or self.missing:
            return self.tensors >= _MIN_TENSORS
        return self.tensors == 1.0 or self.keys >= _MIN_KEYS or self.name >= _MIN_NAME

    def __str__(self) -> str:
        differences = [
            f"{what} {comma_list(names, _MAX_NAMED)}"
            for what, names in (
                ("without the keys", self.unknown),
                ("without the tensors", self.foreign),
                ("with the tensors", self.missing),
            )
            if names
        ]
        name = self.family.model_type
        if differences:
            return f"the nearest is {name}, {', '.join(differences)}"
        return f"the nearest is {name}, with the same keys and tensors: to read it as one, set model_type = {name}"


def describe_nearest(values: Mapping[str, Any], tensors: Collection[str]) -> str:
    """Returns the family that a model resembles most and how it differs, in words; empty if it resembles none.

    Args:
        values: its config.json.
        tensors: names of its tensors; () = not known.
    """
    likenesses = [each for family in FAMILIES.usable() if (each := _compare(family, values, tensors))]
    best = max(likenesses, key=lambda each: each.score)
    return str(best) if best.is_close else ""


def _compare(family: Family, values: Mapping[str, Any], tensors: Collection[str]) -> _Likeness | None:
    try:
        config = family.parse_config({})
    except UserError:  # a family whose config.json has no defaults
        return None
    model_type = str(values.get("model_type"))
    keys = values.keys() - IGNORED_KEYS - {"id2label", "num_labels", "auto_map"}
    refused = {key for key, *_ in (*family.unsupported, *family.training_only)}
    known = {*family.render_config(config, next(iter(family.architectures))), *family.fields, *family.aliases}
    known |= {*family.ignored_keys.split(), *refused}
    entries = family.make_keymap(config).entries
    every = {_without_index(entry.tensor.removeprefix(family.prefix)) for entry in entries}
    encoder = {_without_index(entry.tensor.removeprefix(family.prefix)) for entry in entries if not entry.head}
    names = max(_spellings(tensors), key=lambda each: len(each & every))
    return _Likeness(
        family,
        len(names & every) / len(names | encoder),
        len(keys & known) / max(1, len(keys | family.fields.keys())),
        len(family.model_type) / len(model_type) if family.model_type in model_type else 0.0,
        sorted(keys - known),
        sorted(names - every),
        sorted(encoder - names) if names else [],
    )


def _spellings(tensors: Collection[str]) -> list[set[str]]:
    """Returns the names with and without what most of them begin with: a prefix, or a part of a model without one."""
    names = {_without_index(name) for name in tensors}
    prefix = next(iter(Counter(name.partition(".")[0] for name in names).most_common(1)), ("", 0))[0]
    return [names, {name.removeprefix(f"{prefix}.") for name in names}]


def _without_index(name: str) -> str:
    return re.sub(r"\{\w[^}]*\}|(?<=\.)\d+(?=\.)", "N", name)
