"""Plans an export: which parts of a model go into the class of `transformers`, the sidecar files, the native format.

Sidecar files are for the parts of a model that its class in `transformers` cannot hold. `bertjax.json` holds the
complete config and the heads, `bertjax.safetensors` the parameters under bertjax's names. `transformers` ignores both.
They are used only as long as they agree with config.json.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertjax.config.fields import settings_of
from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.hf import native_format
from bertjax.hf.keymap import KeyMap, Tensors, params_to_tensors, tensors_to_params
from bertjax.hf.keymaps import FAMILIES
from bertjax.hf.keymaps.family import Family
from bertjax.hf.native_format import HEAD_BY_MODULE
from bertjax.hf.safe_files import CONFIG, read_json, read_safetensors, write_safetensors
from bertjax.io.tree_paths import flatten_tree, unflatten_tree
from bertjax.models.model import HEADS
from bertjax.types import Params

_CODE = "transformers runs it with trust_remote_code=True, by the code in the folder"
# Fields that bertjax.json may hold although a head of the class reads them: the class has no enhanced decoder, whose
# position table is in the sidecar; labels of a classifier that another class carries along; and a decoder that scores
# masked tokens where it scores the next one.
_SIDECAR_FIELDS = ("enhanced_decoder", "labels", "masked_next_token")


@dataclasses.dataclass(frozen=True)
class ExportPlan:
    """The files of an export.

    Attributes:
        config: the model.
        heads: its heads.
        family: the family of the class; None = the native format.
        architecture: the class; in the native format one of `remote_code/`.
        keymap: names of the parameters.
        stored_heads: heads in model.safetensors.
        sidecar_paths: paths of the parameters in bertjax.safetensors.
        sidecar_fields: fields of the config that only bertjax.json holds.
        dtype: type of the weights.
        unsupported: what made the native format necessary: fields, or the family's reason.
        config_keys: further keys of config.json.
    """

    config: EncoderConfig
    heads: tuple[str, ...]
    family: Family | None
    architecture: str
    keymap: KeyMap
    stored_heads: tuple[str, ...]
    sidecar_paths: tuple[str, ...] = ()
    sidecar_fields: tuple[str, ...] = ()
    unsupported: tuple[str, ...] = ()
    dtype: str = "float32"
    config_keys: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def has_sidecar(self) -> bool:
        """True if the export has sidecar files."""
        return bool(self.sidecar_paths or self.sidecar_fields)

    @property
    def lacks_pooler(self) -> bool:
        """True if `transformers` would draw a random pooler for the model."""
        has_names = any(entry.head == "pooler" for entry in self.keymap.entries)
        return self.family is not None and has_names and "pooler" not in self.heads

    @property
    def is_private(self) -> bool:
        """True if only bertjax can run the model: its attention is of another package, and no torch code exists."""
        return self.family is None and self.config.attention_class is not None

    @property
    def limitation(self) -> str:
        """Needs and gaps of `transformers`, on one line; empty where it runs all of the model by itself."""
        if self.is_private:
            return (
                f"only bertjax runs it: transformers has no code of model.attention_class={self.config.attention_class}"
            )
        if self.family is None and self.unsupported:
            reasons = ", ".join(self.unsupported)
            return f"{_CODE}: no class of the family {self.config.family} holds it ({reasons})"
        if self.family is None:
            missing = "" if self.config.family == native_format.MODEL_TYPE else ", which it has no class for"
            return f"{_CODE}: model.family={self.config.family}{missing}"
        parts = dict.fromkeys([*(path.split("/")[0] for path in self.sidecar_paths), *self.sidecar_fields])
        if parts:
            return f"transformers runs it without {', '.join(parts)}, which only bertjax reads"
        return self.requirement

    @property
    def requirement(self) -> str:
        """Condition under which `transformers` runs the class, a sentence without a full stop; empty if none."""
        values = self.config_json
        if values.get("is_causal") is False:
            return (
                "transformers 5 runs it as the encoder that it is; versions before 5 and other programs ignore "
                "is_causal in config.json and run a decoder"
            )
        if self.family is not None and values.get("use_bidirectional_attention"):
            return (
                "transformers 5 runs it as the encoder that it is; programs that do not know "
                "use_bidirectional_attention in config.json run a decoder"
            )
        foreign = self.family is not None and "auto_map" in values
        return "transformers needs trust_remote_code=True and the authors' code on the Hub" if foreign else ""

    @property
    def config_json(self) -> dict[str, Any]:
        """The content of config.json."""
        if self.family is None:
            rendered = native_format.render_config(self.config, self.heads)
            if self.is_private:
                del rendered["auto_map"]
        else:
            rendered = self.family.render_config(self.config, self.architecture)
        return {**rendered, **self.config_keys, "dtype": self.dtype}

    @property
    def computed_tensors(self) -> Tensors:
        """The tensors of model.safetensors that follow from the config; they are float32 in files of any type."""
        if self.family is None or not self.family.stores_computed:
            return {}
        return {self.family.rename_for(self.architecture, name): each for name, each in self.keymap.computed.items()}

    def tensors(self, params: Params) -> tuple[Tensors, Tensors]:
        """Returns the tensors of model.safetensors and of bertjax.safetensors.

        Raises:
            UserError: the parameters do not fit the config.
        """
        leaves = flatten_tree(params)
        sidecar = {path: leaves.pop(path) for path in self.sidecar_paths if path in leaves}
        tensors = params_to_tensors(self.keymap, unflatten_tree(leaves), self.config, self.stored_heads)
        if self.family is not None:
            absent = tuple(head for head in self.family.zero_heads if head not in self.stored_heads)
            tensors |= self.keymap.zeros(absent)
            tensors = {self.family.rename_for(self.architecture, name): array for name, array in tensors.items()}
            tensors |= self.computed_tensors
        if not self.sidecar_paths:
            return tensors, {}
        shapes = native_format.param_shapes(self.config, self.heads)
        keymap = native_format.make_keymap({path: shapes[path] for path in self.sidecar_paths})
        return tensors, params_to_tensors(keymap, unflatten_tree(sidecar), self.config, ())


def plan_export(
    config: EncoderConfig,
    heads: tuple[str, ...],
    dtype: str = "float32",
    config_keys: Mapping[str, Any] | None = None,
) -> ExportPlan:
    """Plans the export of a model as a class of its family, or in the native format where no class can hold it.

    Args:
        config: the model.
        heads: its heads.
        dtype: type of the weights.
        config_keys: further keys of config.json.
    """
    plan = _plan(config, heads)
    return dataclasses.replace(plan, dtype=dtype, config_keys=config_keys or {})


def _plan(config: EncoderConfig, heads: tuple[str, ...]) -> ExportPlan:
    if config.family == native_format.MODEL_TYPE:
        return plan_native(config, heads, ())
    family = FAMILIES[config.family]
    if not family.written:
        return plan_native(config, heads)
    architecture = family.architecture_for(heads, config)
    if architecture is None:
        return plan_native(config, heads, (f"heads: {', '.join(heads) or 'none'}",))
    keymap = family.keymap_for(architecture, config)
    required = family.heads_of(architecture) or ()
    try:
        rendered = family.render_config(config, architecture)
        flat = family.flatten(rendered, CONFIG)
        unset = {name for key, (name, default, _) in family.fields.items() if default is not None and flat[key] is None}
        if unset:
            return plan_native(config, heads, tuple(sorted(unset)))
        hf_config = family.parse_config(rendered)
        if family.stores_computed:
            of_tensors = family.fields_of_tensors(hf_config, dict(keymap.computed), "config.json")
            hf_config = dataclasses.replace(hf_config, **of_tensors)
    except UserError as error:
        return plan_native(config, heads, (str(error),))
    except KeyError as error:  # a table of the family has no word for the value
        return plan_native(config, heads, (f"{error.args[0]}",))
    stored = select_stored_heads(keymap, required, heads)
    differing, in_sidecar = compare_configs(config, hf_config, heads, stored)
    # a class for masked tokens would take the scores of the next token for theirs
    if "masked_next_token" in differing and not architecture.endswith("ForCausalLM"):
        return plan_native(config, heads, ("masked_next_token",))
    if in_sidecar != differing:
        return plan_native(config, heads, tuple(name for name in differing if name not in in_sidecar))
    paths = _find_sidecar_paths(config, heads, stored, family, keymap)
    return ExportPlan(config, heads, family, architecture, keymap, stored, paths, in_sidecar)


def plan_native(config: EncoderConfig, heads: tuple[str, ...], unsupported: tuple[str, ...] = ()) -> ExportPlan:
    keymap = native_format.make_keymap(native_format.param_shapes(config, heads))
    architecture = native_format.architecture_for(config, heads)
    return ExportPlan(config, heads, None, architecture, keymap, heads, unsupported=unsupported)


def select_stored_heads(keymap: KeyMap, required: tuple[str, ...], heads: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the heads that model.safetensors holds: the required ones, and others that their names identify.

    Two heads may share a name (`classifier.weight`): then only the class says whose it is.

    Args:
        keymap: names of the model.
        required: heads of its class.
        heads: its heads.
    """
    names = {head: {entry.tensor for entry in keymap.entries if entry.head == head} for head in HEADS}
    used = {name for head in required for name in names[head]}
    stored = list(required)
    for head in heads:
        shared = {name for other in HEADS if other != head for name in names[other]}
        if head not in stored and names[head] - shared and not names[head] & used:
            stored.append(head)
            used |= names[head]
    return tuple(head for head in HEADS if head in stored)


def _find_sidecar_paths(
    config: EncoderConfig, heads: tuple[str, ...], stored: tuple[str, ...], family: Family, keymap: KeyMap
) -> tuple[str, ...]:
    """Returns the paths of the parameters that the family has no names for.

    The encoder must have names for all parameters, and a head with some names for all of them except
    `family.sidecar_paths`: a forgotten entry of a keymap must be an error.
    """
    if set(heads) <= set(stored) and not config.enhanced_decoder and not family.sidecar_paths:
        return ()  # the usual case, without building the model
    covered = {path for entry in keymap.select(stored) for path in entry.paths}
    return tuple(
        path
        for path in native_format.param_shapes(config, heads)
        if path not in covered
        and (
            any(re.fullmatch(pattern, path) for pattern in family.sidecar_paths)
            or HEAD_BY_MODULE.get(path.split("/")[0], "") not in (*stored, "")
        )
    )


def compare_configs(
    config: EncoderConfig, other: EncoderConfig, heads: tuple[str, ...], stored: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Compares two configs by what they compute.

    Args:
        config: the model.
        other: the model that its config.json describes.
        heads: its heads.
        stored: those that model.safetensors holds.

    Returns:
        (fields that change an output, those among them that only parts in the sidecar read).
    """
    differing = differing_fields(config, other, heads)
    return differing, tuple(name for name in differing if _is_in_sidecar(name, heads, stored))


def differing_fields(config: EncoderConfig, other: EncoderConfig, heads: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the fields by which two models compute something else.

    Args:
        config: a model.
        other: another model.
        heads: their heads.
    """
    return tuple(
        field.name
        for field in dataclasses.fields(config)
        if _effective_value(config, field.name) != _effective_value(other, field.name)
        and _matters(config, other, field.name, heads)
    )


def _is_in_sidecar(name: str, heads: tuple[str, ...], stored: tuple[str, ...]) -> bool:
    readers = [head for head in settings_of(EncoderConfig)[name].heads if head in heads]
    return name in _SIDECAR_FIELDS or (bool(readers) and not set(readers) & set(stored))


def _effective_value(config: EncoderConfig, name: str) -> Any:
    """Returns the value of a field; an open one as the value that it falls back to."""
    if name == "head_size":
        return config.head_dim
    if name == "num_key_value_heads":
        return config.kv_heads
    if name == "max_relative_positions":
        return config.max_distance
    if name == "mlm_act":
        return config.mlm_act or config.hidden_act
    if name == "pos_att_type":
        return frozenset(config.pos_att_type)
    if name == "attention_scale_size":
        return config.attention_scale_size or config.head_dim
    if name == "local_attention":
        return config.local_attention // 2, config.local_attention > 0
    if name in ("global_attn_every_n_layers", "first_global_layer"):
        return tuple(config.is_local(layer) for layer in range(config.num_layers))
    return len(config.labels) if name == "labels" else getattr(config, name)


def _matters(config: EncoderConfig, other: EncoderConfig, name: str, heads: tuple[str, ...]) -> bool:
    if name == "labels":
        return bool({"sequence_classification", "token_classification"} & set(heads))
    field = settings_of(EncoderConfig)[name]
    if not field.changes_output:
        return False
    if field.heads and not set(field.heads) & set(heads):
        return False
    return field.read_if is None or field.read_if(config) or field.read_if(other)


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
    assert architecture is not None  # a folder without a class of the family has no sidecar
    rendered = family.flatten(family.render_config(config, architecture), where)
    values = family.flatten(values, where)
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
