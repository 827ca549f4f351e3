"""The families of models that can be loaded and saved.

To add one: a module with a `FAMILY` here and its name in the list, or a line in `same_tensors.py`; and the name of the
family in `bertjax.config.architecture.FAMILIES`. From another package, before a config is read,
`FAMILIES[FAMILY.name] = FAMILY` and `bertjax.config.architecture.FAMILIES.append(FAMILY.name)`.
"""

from __future__ import annotations

import importlib

from bertjax.hf.keymaps import llama, rotary_bert, same_tensors
from bertjax.hf.keymaps.family import Family

_MODULES = (
    "bert",
    "roberta",
    "albert",
    "distilbert",
    "electra",
    "deberta",
    "deberta_v2",
    "modernbert",
    "modernbert_decoder",
    "neobert",
    "gpt2",
    "xlnet",
    "mpnet",
)  # fmt: skip

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        *(importlib.import_module(f"bertjax.hf.keymaps.{module}").FAMILY for module in _MODULES),
        *same_tensors.FAMILIES,
        *rotary_bert.FAMILIES,
        *llama.FAMILIES,
    )
}


def find_family(model_type: str) -> Family | None:
    """Returns the family with this `model_type` in its config.json, if there is one."""
    return next((family for family in FAMILIES.values() if family.model_type == model_type), None)
