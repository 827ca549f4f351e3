"""The families that can be loaded and saved, by the `model_type` of their config.json."""

from __future__ import annotations

from bertjax.hub.keymaps.bert import FAMILY as _BERT
from bertjax.hub.keymaps.family import Family

FAMILIES: dict[str, Family] = {family.model_type: family for family in (_BERT,)}
