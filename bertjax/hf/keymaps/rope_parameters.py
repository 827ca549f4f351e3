"""Rotations in config.json: `rope_parameters` of transformers 5, `rope_scaling` and `rope_theta` of earlier ones."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

from bertjax.config.model import EncoderConfig
from bertjax.config.rotation import ROPE_TYPES
from bertjax.errors import UserError
from bertjax.hf.keymaps.family import Fields, parse_fields
from bertjax.hf.safe_files import refuse

log = logging.getLogger(__name__)

GLOBAL, LOCAL = "full_attention", "sliding_attention"
"""Names of the tables of classes whose local layers have a rotation of their own."""

_LENGTH = "original_max_position_embeddings"
_FACTOR: Fields = {"factor": ("rope_factor", 1.0, float)}
_ORIGINAL: Fields = {_LENGTH: ("rope_original_length", 0, int)}
_ATTENTION: Fields = {"attention_factor": ("rope_attention_factor", None, float)}
_YARN: Fields = {
    "beta_slow": ("rope_slow_turns", 1.0, float),
    "beta_fast": ("rope_fast_turns", 32.0, float),
    "truncate": ("rope_truncate", True, bool),
}
_LLAMA3: Fields = {
    "low_freq_factor": ("rope_slow_turns", None, float),
    "high_freq_factor": ("rope_fast_turns", None, float),
}
_MSCALE: Fields = {"mscale": ("mscale", None, float), "mscale_all_dim": ("mscale_all_dim", None, float)}
_LISTS = {"short_factor": "rope_short_factors", "long_factor": "rope_long_factors"}
FIELDS: dict[str, Fields] = {
    "default": {},
    "linear": _FACTOR,
    "dynamic": _FACTOR,
    "yarn": {**_FACTOR, **_ORIGINAL, **_ATTENTION, **_YARN},
    "longrope": {**_ORIGINAL, **_ATTENTION},
    "llama3": {**_FACTOR, **_ORIGINAL, **_LLAMA3},
}
"""Type -> keys of its table that are fields."""
_COMPUTED = {"yarn": _MSCALE, "longrope": _FACTOR}
"""Type -> further keys, from which the attention factor follows."""


def parse_rope(values: Mapping[str, Any], fields: Mapping[str, Any], where: str, theta: float) -> dict[str, Any]:
    """Returns the rotation: of version 4's table if it is there, else of version 5's.

    The base is that of the table, else of version 4's own key, else the default.

    Args:
        values: config.json.
        fields: fields that are parsed already, with `max_position_embeddings`.
        where: the file to name in errors.
        theta: the default base of the family.

    Raises:
        UserError: the rotation is not supported.
    """
    key = "rope_scaling" if values.get("rope_scaling") else "rope_parameters"
    table = values.get(key) or {}
    if not isinstance(table, dict):
        raise UserError(f"{where}: {key} must be a table, not {table!r}")
    other = values.get("rope_parameters") or table
    if isinstance(other, dict) and {**table, "rope_theta": None} != {**other, "rope_theta": None}:
        log.warning("%s: rope_parameters differs from rope_scaling; the latter counts, as in transformers", where)
    bases: Fields = {"rope_theta": ("global_rope_theta", theta, float)}
    source = table if table.get("rope_theta") is not None else values
    base = parse_fields(source, bases, where)
    if base["global_rope_theta"] <= 0.0:
        raise UserError(f"{where}: rope_theta must be positive, not {base['global_rope_theta']}")
    if (length := values.get(_LENGTH)) is not None and table:
        table = table | ({_LENGTH: length} if _LENGTH in FIELDS.get(_kind(table), {}) else {})
    return base | parse_table(table, values, fields, f"{where}: {key}")


def parse_table(
    table: Mapping[str, Any], values: Mapping[str, Any], fields: Mapping[str, Any], where: str
) -> dict[str, Any]:
    """Returns the rescaling of a table of `rope_parameters`, without its base; {} for default frequencies.

    Args:
        table: the table.
        values, fields: as of `parse_rope`.
        where: file and key to name in errors.

    Raises:
        UserError: the rotation is not supported.
    """
    kind = _kind(table)
    if kind not in ROPE_TYPES:
        raise UserError(f"{where}: rope_type = {kind!r} is not supported: known are {', '.join(ROPE_TYPES)}")
    keys, computed = FIELDS[kind], _COMPUTED.get(kind, {})
    lists = _LISTS if kind == "longrope" else {}
    known = {"rope_theta", "rope_type", "type", *keys, *computed, *lists}
    for key in sorted(table.keys() - known):
        refuse(table, where, key, (), f"rotations of rope_type = {kind} do not have it")
    if kind == "default":
        return {}
    refuse(values, where, "partial_rotary_factor", (1.0, 1, None), "heads are rotated as a whole")
    longest = fields["max_position_embeddings"]
    present = {key: value for key, value in table.items() if value is not None}
    present |= {_LENGTH: present.get(_LENGTH, longest)} if _LENGTH in keys else {}
    if kind == "yarn":  # which takes its defaults for bounds of 0, and may say that its factor is a ratio of lengths
        present = {key: value for key, value in present.items() if value or not key.startswith("beta_")}
    is_ratio = kind == "yarn" and "factor" in table.keys() - present.keys()
    needed = {"low_freq_factor", "high_freq_factor", *(() if is_ratio else ("factor",))} & keys.keys()
    for key in sorted(needed - present.keys()):
        raise UserError(f"{where}: rope_type = {kind} needs {key}")
    parsed = {"rope_type": kind, **parse_fields(present, keys, where)}
    parsed |= {name: _numbers(present.get(key), key, where) for key, name in lists.items()}
    if kind == "dynamic":
        return parsed | {"rope_original_length": longest}
    if parsed.get("rope_original_length", 2) < 2:
        raise UserError(f"{where}: {_LENGTH} must be at least 2, not {parsed['rope_original_length']}")
    if is_ratio:
        parsed["rope_factor"] = longest / parsed["rope_original_length"]
    if "attention_factor" in keys and parsed["rope_attention_factor"] is None:
        others = parse_fields(present, computed, where) | {"longest": longest}
        parsed["rope_attention_factor"] = _attention_factor(parsed, others, present)
    return parsed


def parse_tables(
    tables: Mapping[str, Any], values: Mapping[str, Any], fields: Mapping[str, Any], where: str
) -> dict[str, Any]:
    """Returns the rescaling of a table for global and one for local layers: of all layers, or of the global ones alone.

    Args:
        tables: the tables by kind of layer.
        values, fields, where: as of `parse_rope`.

    Raises:
        UserError: the rotation is not supported.
    """
    of_global, of_local = (
        parse_table(tables.get(kind) or {}, values, fields, f"{where}: rope_parameters: {kind}")
        for kind in (GLOBAL, LOCAL)
    )
    if of_local and of_local != of_global:
        raise UserError(f"{where}: rope_parameters rescales {LOCAL} otherwise than {GLOBAL}, which is not supported")
    if not of_global.get("rope_truncate", True):  # which transformers looks for in the wrong table
        raise UserError(f"{where}: rope_parameters: truncate = false is not supported")
    return of_global | ({} if of_local or not of_global else {"rope_layers": "global"})


def render_rope(config: EncoderConfig) -> dict[str, Any]:
    """Returns the table of version 5; the attention factor is written as the number that it is."""
    return {"rope_theta": config.global_rope_theta, **render_table(config)}


def render_tables(config: EncoderConfig) -> dict[str, Any]:
    """Returns the tables for global and for local layers, with their bases."""
    thetas = {GLOBAL: config.global_rope_theta, LOCAL: config.local_rope_theta}
    return {kind: {"rope_theta": theta, **render_table(config, kind == LOCAL)} for kind, theta in thetas.items()}


def render_table(config: EncoderConfig, local: bool = False) -> dict[str, Any]:
    """Returns a table without its base.

    Args:
        config: the model.
        local: True for the layers with a window.
    """
    kind = "default" if local and config.rope_layers == "global" else config.rope_type
    table = {key: getattr(config, name) for key, (name, _, _) in FIELDS[kind].items()}
    if kind == "longrope":
        table |= {key: list(getattr(config, name)) for key, name in _LISTS.items()}
    return {"rope_type": kind, **table}


def render_length(config: EncoderConfig) -> dict[str, Any]:
    """Returns the keys besides the table: of dynamic rotations, the length beyond which they change."""
    return {"max_position_embeddings": config.rope_original_length} if config.rope_type == "dynamic" else {}


def _attention_factor(parsed: Mapping[str, Any], others: Mapping[str, Any], present: Mapping[str, Any]) -> float:
    """Returns the default of the attention factor (arXiv:2309.00071, section 3.4; arXiv:2402.13753, section 3.3)."""
    if parsed["rope_type"] == "longrope":
        original = parsed["rope_original_length"]
        factor = others["rope_factor"] if "factor" in present else others["longest"] / original
        return 1.0 if factor <= 1.0 else math.sqrt(1.0 + math.log(factor) / math.log(original))
    factor = parsed["rope_factor"]

    def scale(times: float) -> float:
        return 0.1 * times * math.log(factor) + 1.0 if factor > 1.0 else 1.0

    if others["mscale"] and others["mscale_all_dim"]:
        return scale(others["mscale"]) / scale(others["mscale_all_dim"])
    return scale(1.0)


def _kind(table: Mapping[str, Any]) -> Any:
    kind = table.get("rope_type") or table.get("type") or "default"
    return kind if isinstance(kind, str) else repr(kind)


def _numbers(value: Any, key: str, where: str) -> tuple[float, ...]:
    if not isinstance(value, list) or not all(type(each) in (int, float) for each in value):
        raise UserError(f"{where}: {key} must be a list of numbers, not {value!r}")
    return tuple(map(float, value))
