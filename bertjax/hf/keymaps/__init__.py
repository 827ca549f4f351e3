"""The families of models that can be loaded and saved.

To add one: a module with a `FAMILY` here, its name in the list, and the family's name in
`bertjax.config.architecture.FAMILIES`; from another package, before a config is read, `FAMILIES[FAMILY.name] = FAMILY`
and `bertjax.config.architecture.FAMILIES.append(FAMILY.name)`.
"""

from __future__ import annotations

import importlib

from bertjax.hf.keymaps.family import Family

_MODULES = (
    "bert",
    "roberta",
    "roberta_prelayernorm",
    "albert",
    "distilbert",
    "electra",
    "deberta",
    "deberta_v2",
    "modernbert",
    "gpt2",
    "xlnet",
)  # fmt: skip

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (importlib.import_module(f"bertjax.hf.keymaps.{module}").FAMILY for module in _MODULES)
}


def find_family(model_type: str) -> Family | None:
    """Returns the family with this `model_type` in its config.json, if there is one."""
    return next((family for family in FAMILIES.values() if family.model_type == model_type), None)
