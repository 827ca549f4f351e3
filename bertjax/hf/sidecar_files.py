"""Files beside model.safetensors, for the parts of a model that its class in `transformers` has no place for.

`bertjax.json` holds the complete config and the heads, `bertjax.safetensors` the parameters under our own names.
`transformers` does not look at either. They count only as long as they agree with config.json.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.hf import native_format
from bertjax.hf.export_plan import ExportPlan, compare_configs
from bertjax.hf.keymap import Tensors, flatten, tensors_to_params
from bertjax.hf.keymaps.family import Family
from bertjax.hf.safe_files import CONFIG, read_json, read_safetensors
from bertjax.types import Params

SIDECAR_CONFIG = "bertjax.json"
SIDECAR_WEIGHTS = "bertjax.safetensors"
# Keys that `transformers` changes when it saves a model as another class or in another precision.
_UNSETTLED = {"architectures", "dtype", "use_cache"}
_WAY = f"remove {SIDECAR_CONFIG} and {SIDECAR_WEIGHTS} to load what {CONFIG} says"


def write_sidecar(folder: Path, plan: ExportPlan, tensors: Tensors) -> None:
    """Writes the side files, where the layout has any."""
    if plan.has_sidecar:
        text = json.dumps(native_format.render_fields(plan.config, plan.heads), indent=2, sort_keys=True)
        (folder / SIDECAR_CONFIG).write_text(text + "\n", encoding="utf-8")
    if tensors:
        from safetensors.numpy import save_file

        save_file(tensors, folder / SIDECAR_WEIGHTS, metadata={"format": "bertjax"})


def read_sidecar(
    folder: Path, family: Family, values: dict[str, Any], held: EncoderConfig
) -> tuple[EncoderConfig, tuple[str, ...]] | None:
    """(config, heads) from bertjax.json; None where there is none. `held` is what config.json alone says.

    Raises `UserError` where it contradicts config.json: one of the two was changed, and we cannot know which is true.
    """
    if not (folder / SIDECAR_CONFIG).exists():
        if (folder / SIDECAR_WEIGHTS).exists():
            raise UserError(f"{folder} holds {SIDECAR_WEIGHTS} without {SIDECAR_CONFIG}, which says what is in it")
        return None
    where = f"{folder / SIDECAR_CONFIG}"
    config, heads = native_format.parse_fields(read_json(folder, SIDECAR_CONFIG), where)
    if config.family != family.name:
        raise UserError(f"{where}: family = {config.family!r}; {CONFIG} is of the family {family.name!r}")
    architecture = family.architecture_for(heads)
    mine = family.render_config(config, architecture)
    for key in sorted((mine.keys() & values.keys()) - _UNSETTLED):
        if values[key] != mine[key]:
            raise UserError(f"{where} contradicts {CONFIG}: {key} is {mine[key]!r} here, {values[key]!r} there; {_WAY}")
    differing, beside = compare_configs(
        config, held, heads, family.make_keymap(config), family.architectures[architecture]
    )
    for name in differing:  # keys that config.json leaves out have defaults, too
        if name not in beside:
            here, there = getattr(config, name), getattr(held, name)
            raise UserError(f"{where} contradicts {CONFIG}: {name} is {here!r} here, {there!r} there; {_WAY}")
    return config, heads


def merge_sidecar(folder: Path, params: Params, config: EncoderConfig, heads: tuple[str, ...]) -> Params:
    """The parameters with those of bertjax.safetensors, which must be the ones that are missing."""
    found = flatten(params)
    shapes = {path: shape for path, shape in native_format.param_shapes(config, heads).items() if path not in found}
    if not shapes and not (folder / SIDECAR_WEIGHTS).exists():
        return params
    tensors = read_safetensors(folder, SIDECAR_WEIGHTS)
    return _joined(
        params, tensors_to_params(native_format.make_keymap(shapes), tensors, (), f"{folder / SIDECAR_WEIGHTS}")
    )


def _joined(params: Params, more: Params) -> Params:
    both = dict(params)
    for key, value in more.items():
        both[key] = _joined(both[key], value) if isinstance(both.get(key), dict) else value
    return both
