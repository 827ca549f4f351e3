"""Sidecar files for the parts of a model that its class in `transformers` cannot hold.

`bertjax.json` holds the complete config and the heads, `bertjax.safetensors` the parameters under bertjax's names.
`transformers` ignores both. They are used only as long as they agree with config.json.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.hf import native_format
from bertjax.hf.export_plan import ExportPlan, compare_configs, select_stored_heads
from bertjax.hf.keymap import Tensors, tensors_to_params
from bertjax.hf.keymaps.family import Family
from bertjax.hf.safe_files import CONFIG, read_json, read_safetensors, write_safetensors
from bertjax.io.tree_paths import flatten_tree, unflatten_tree
from bertjax.types import Params

SIDECAR_CONFIG = "bertjax.json"
SIDECAR_WEIGHTS = "bertjax.safetensors"
# Keys that `transformers` changes when it saves a model as another class or in another precision.
_CHANGED_BY_TRANSFORMERS = {"architectures", "dtype", "use_cache"}
_REMEDY = f"remove {SIDECAR_CONFIG} and {SIDECAR_WEIGHTS} to load what {CONFIG} says"


def write_sidecar(folder: Path, plan: ExportPlan, tensors: Tensors) -> None:
    """Writes the sidecar files, where the plan has any.

    Args:
        folder: an export that is being written.
        plan: its plan.
        tensors: the second result of `plan.tensors`.
    """
    if plan.has_sidecar:
        text = json.dumps(native_format.render_fields(plan.config, plan.heads), indent=2, sort_keys=True)
        (folder / SIDECAR_CONFIG).write_text(text + "\n", encoding="utf-8")
    if tensors:
        write_safetensors(folder / SIDECAR_WEIGHTS, tensors, {"format": "bertjax"})


def read_sidecar(
    folder: Path, family: Family, values: dict[str, Any], hf_config: EncoderConfig
) -> tuple[EncoderConfig, tuple[str, ...]] | None:
    """Reads the config and the heads from bertjax.json; None where the file is absent.

    Args:
        folder: the folder of the model.
        family: its family.
        values: its config.json.
        hf_config: the config that config.json alone describes.

    Raises:
        UserError: the two files contradict each other: one was changed, and it is unknown which is right.
    """
    if not (folder / SIDECAR_CONFIG).exists():
        if (folder / SIDECAR_WEIGHTS).exists():
            raise UserError(f"{folder} holds {SIDECAR_WEIGHTS} without {SIDECAR_CONFIG}, which says what is in it")
        return None
    where = f"{folder / SIDECAR_CONFIG}"
    config, heads = native_format.parse_fields(read_json(folder, SIDECAR_CONFIG), where)
    if config.family != family.name:
        raise UserError(f"{where}: family = {config.family!r}; {CONFIG} is of the family {family.name!r}")
    architecture = family.architecture_for(heads, config)
    rendered = family.render_config(config, architecture)
    keymap, required = family.keymap_for(architecture, config), family.heads_of(architecture) or ()
    stored = select_stored_heads(keymap, required, heads)
    differing, in_sidecar = compare_configs(config, hf_config, heads, stored)
    contradictions = [
        (key, rendered[key], values[key])
        for key in sorted((rendered.keys() & values.keys()) - _CHANGED_BY_TRANSFORMERS)
        if values[key] != rendered[key]
    ]
    # keys that config.json leaves out have defaults, too
    contradictions += [
        (name, getattr(config, name), getattr(hf_config, name)) for name in differing if name not in in_sidecar
    ]
    if contradictions:
        key, here, there = contradictions[0]
        raise UserError(f"{where} contradicts {CONFIG}: {key} is {here!r} here, {there!r} there; {_REMEDY}")
    return config, heads


def merge_sidecar(folder: Path, params: Params, config: EncoderConfig, heads: tuple[str, ...]) -> Params:
    """Returns the parameters together with those of bertjax.safetensors.

    Args:
        folder: the folder of the model.
        params: parameters from model.safetensors.
        config: config from bertjax.json.
        heads: heads from bertjax.json and from model.safetensors.

    Raises:
        UserError: the sidecar file does not hold exactly the missing parameters.
    """
    leaves = flatten_tree(params)
    shapes = {path: shape for path, shape in native_format.param_shapes(config, heads).items() if path not in leaves}
    if not shapes and not (folder / SIDECAR_WEIGHTS).exists():
        return params
    tensors = read_safetensors(folder, SIDECAR_WEIGHTS)
    sidecar = tensors_to_params(native_format.make_keymap(shapes), tensors, (), f"{folder / SIDECAR_WEIGHTS}")
    return unflatten_tree(leaves | flatten_tree(sidecar))
