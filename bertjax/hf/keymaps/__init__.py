"""The families of models that can be loaded and saved: a module with a `FAMILY` each, or lines of one that has several.

`bertjax.config.extensions.FAMILIES` names them.
"""

from __future__ import annotations

from bertjax.config.extensions import FAMILIES as FAMILIES
from bertjax.hf.keymaps.family import Family


def find_family(model_type: str) -> Family | None:
    """Returns the family with this `model_type` in its config.json, if there is one."""
    return next((family for family in FAMILIES.usable() if family.model_type == model_type), None)
