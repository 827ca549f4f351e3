"""Where every part of a model goes in an export: the class of `transformers`, the side files, or our own format."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from bertjax.config.model import FREE_FIELDS, EncoderConfig
from bertjax.errors import UserError
from bertjax.hf import native_format
from bertjax.hf.keymap import KeyMap, Tensors, flatten, params_to_tensors, unflatten
from bertjax.hf.keymaps import FAMILIES
from bertjax.hf.keymaps.family import Family
from bertjax.models.model import HEADS
from bertjax.types import Params

# First key of a path -> the head that it belongs to.
HEAD_BY_MODULE = {
    "pooler": "pooler",
    "mlm_head": "mlm",
    "decoder_positions": "mlm",
    "pair_head": "pair",
    "rtd_head": "rtd",
    "span_head": "span_boundary",
    "sequence_head": "sequence_classification",
    "token_head": "token_classification",
    "answer_head": "question_answering",
}
# Fields that only heads read, and which.
OF_HEADS = {
    "pooler_act": ("pooler",),
    "mlm_head": ("mlm",),
    "mlm_act": ("mlm",),
    "mlm_bias": ("mlm",),
    "enhanced_decoder": ("mlm",),
    "head_dense_bias": ("mlm", "sequence_classification", "token_classification", "question_answering"),
    "rtd_head": ("rtd",),
    "span_positions": ("span_boundary",),
    "span_position_size": ("span_boundary",),
    "pooling": ("pooler", "pair", "sequence_classification"),
    "classifier_dense": ("sequence_classification",),
    "classifier_act": ("sequence_classification", "token_classification", "question_answering"),
    "classifier_norm": ("sequence_classification", "token_classification", "question_answering"),
    "token_classifier_dense": ("token_classification", "question_answering"),
}
# Fields that bertjax.json may hold though a head of the class reads them: the class does without the enhanced decoder,
# whose positions lie beside, and a classifier that rides along in another class has labels that are not the class's.
_OF_SIDE_PARTS = ("enhanced_decoder", "labels")


@dataclasses.dataclass(frozen=True)
class ExportPlan:
    """An export's files.

    family, architecture  whose class the folder is of; family None = our own format
    side                  paths of the parameters in bertjax.safetensors
    side_fields           fields of the config that only bertjax.json holds
    lost                  what made our own format necessary: fields, or the family's reason
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

    @property
    def has_sidecar(self) -> bool:
        return bool(self.sidecar_paths or self.sidecar_fields)

    @property
    def pooled(self) -> bool:
        """Whether classes of the family have a pooler."""
        return any(entry.head == "pooler" for entry in self.keymap.entries)

    @property
    def config_json(self) -> dict[str, Any]:
        """What config.json holds."""
        if self.family is None:
            return native_format.render_config(
                dataclasses.replace(self.config, family=native_format.MODEL_TYPE), self.heads
            )
        return self.family.render_config(self.config, self.architecture)

    def tensors(self, params: Params) -> tuple[Tensors, Tensors]:
        """(model.safetensors, bertjax.safetensors); raises `UserError` for parameters that are not the config's."""
        leaves = flatten(params)
        beside = {path: leaves.pop(path) for path in self.sidecar_paths if path in leaves}
        named = params_to_tensors(self.keymap, unflatten(leaves), self.config, self.stored_heads)
        if self.family is not None:
            named = {self.family.rename_for(self.architecture, name): array for name, array in named.items()}
        if not self.sidecar_paths:
            return named, {}
        shapes = native_format.param_shapes(self.config, self.heads)
        names = native_format.make_keymap({path: shapes[path] for path in self.sidecar_paths})
        return named, params_to_tensors(names, unflatten(beside), self.config, ())


def plan_export(config: EncoderConfig, heads: tuple[str, ...]) -> ExportPlan:
    """The class of the config's family that holds the model, or our own format where none does.

    Raises `UserError` for a family that there is not.
    """
    if config.family == native_format.MODEL_TYPE:
        return _plan_native(config, heads, ())
    if config.family not in FAMILIES:
        raise UserError(
            f"model.family must be one of {', '.join(FAMILIES)}, {native_format.MODEL_TYPE}, not {config.family!r}"
        )
    family = FAMILIES[config.family]
    architecture = family.architecture_for(heads)
    keymap = family.make_keymap(config)
    named = select_stored_heads(keymap, family.architectures[architecture], heads)
    try:
        held = family.parse_config(family.render_config(config, architecture), "config.json")
    except UserError as error:
        return _plan_native(config, heads, (str(error),))
    except KeyError as error:  # a table of the family has no word for it
        return _plan_native(config, heads, (f"{error.args[0]}",))
    differing, beside = compare_configs(config, held, heads, keymap, family.architectures[architecture])
    if beside != differing:
        return _plan_native(config, heads, tuple(name for name in differing if name not in beside))
    sidecar_paths = find_sidecar_paths(config, heads, named, family, keymap)
    return ExportPlan(config, heads, family, architecture, keymap, named, sidecar_paths, beside)


def select_stored_heads(keymap: KeyMap, required: tuple[str, ...], heads: tuple[str, ...]) -> tuple[str, ...]:
    """The heads that a file of a class holds: those that it requires, and others that a reader can tell by their names.

    Two heads may share a name (`classifier.weight`): then only the class says whose it is.
    """
    names = {head: {entry.tensor for entry in keymap.entries if entry.head == head} for head in HEADS}
    taken = {name for head in required for name in names[head]}
    found = list(required)
    for head in heads:
        others = {name for other in HEADS if other != head for name in names[other]}
        if head not in found and names[head] - others and not names[head] & taken:
            found.append(head)
            taken |= names[head]
    return tuple(head for head in HEADS if head in found)


def find_sidecar_paths(
    config: EncoderConfig, heads: tuple[str, ...], named: tuple[str, ...], family: Family, keymap: KeyMap
) -> tuple[str, ...]:
    """Paths of the parameters that the family has no names for; those of the encoder must all have one.

    A head with some names must have all of them, except for what the family lists in `sidecar_paths`: a forgotten row
    of its keymap must be an error.
    """
    if set(heads) <= set(named) and not config.enhanced_decoder and not family.sidecar_paths:
        return ()  # the usual case, without building the model
    covered = {path for entry in keymap.select(named) for path in entry.paths}
    free = [path for path in native_format.param_shapes(config, heads) if path not in covered]
    return tuple(
        path
        for path in free
        if any(re.fullmatch(pattern, path) for pattern in family.sidecar_paths)
        or HEAD_BY_MODULE.get(path.split("/")[0], "") not in (*named, "")
    )


def _plan_native(config: EncoderConfig, heads: tuple[str, ...], unsupported: tuple[str, ...]) -> ExportPlan:
    names = native_format.make_keymap(native_format.param_shapes(config, heads))
    return ExportPlan(config, heads, None, native_format.ARCHITECTURE, names, heads, unsupported=unsupported)


def compare_configs(
    config: EncoderConfig, held: EncoderConfig, heads: tuple[str, ...], keymap: KeyMap, required: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(fields in which two configs mean models of different outputs, those of them that only side parts read)."""
    named = select_stored_heads(keymap, required, heads)
    names = [field.name for field in dataclasses.fields(config)]
    found = [name for name in names if _meaning(config, name) != _meaning(held, name)]
    differing = tuple(name for name in found if _matters(config, held, name, heads))
    return differing, tuple(name for name in differing if _is_beside(name, heads, named))


def _is_beside(name: str, heads: tuple[str, ...], named: tuple[str, ...]) -> bool:
    readers = [head for head in OF_HEADS.get(name, ()) if head in heads]
    return name in _OF_SIDE_PARTS or (bool(readers) and not set(readers) & set(named))


def _meaning(config: EncoderConfig, name: str) -> Any:
    """The value of a field, an open one as what stands in for it."""
    if name == "head_size":
        return config.head_dim
    if name == "max_relative_positions":
        return config.max_distance
    if name == "mlm_act":
        return config.mlm_act or config.hidden_act
    if name == "pos_att_type":
        return frozenset(config.pos_att_type)
    return len(config.labels) if name == "labels" else getattr(config, name)


def _matters(config: EncoderConfig, held: EncoderConfig, name: str, heads: tuple[str, ...]) -> bool:
    if name == "labels":
        return bool({"sequence_classification", "token_classification"} & set(heads))
    if name in FREE_FIELDS:
        return False
    if name in OF_HEADS:
        return bool(set(OF_HEADS[name]) & set(heads))
    return any(_is_read(each, name) for each in (config, held))


def _is_read(config: EncoderConfig, name: str) -> bool:
    """Whether a model with this config looks at the field at all."""
    position = config.attention_position
    learned = config.position_embedding == "learned"
    conditions = {
        "global_rope_theta": position == "rotary",
        "local_rope_theta": position == "rotary" and config.local_attention > 0,
        "pos_att_type": position == "disentangled",
        "share_att_key": position == "disentangled",
        "position_buckets": position == "disentangled",
        "max_relative_positions": position == "disentangled",
        "norm_relative_embeddings": position == "disentangled",
        "relative_segments": position == "relative",
        "clamp_len": position == "relative",
        "mem_len": position == "relative",
        "reuse_len": position == "relative",
        "bi_data": position == "relative",
        "conv_act": config.conv_kernel_size > 0,
        "global_attn_every_n_layers": config.local_attention > 0,
        "max_position_embeddings": learned or config.enhanced_decoder,
        "position_offset": learned,
        "pad_token_id": learned and config.position_offset > 0,
        "embedding_projection_bias": config.embedding_size is not None,
        "inner_layers": config.num_groups is not None,
    }
    return conditions.get(name, True)
