"""X-MOD under Hugging Face's names (transformers: models/xmod; arXiv:2205.06266): RoBERTa with adapters of languages.

A model here has the adapter of one language, `default_language`, and exports hold that one. Both orders of norms of
facebookresearch/fairseq:fairseq/models/xmod/model.py are read: after the blocks, where the norm of the feed-forward
block also follows the adapter, and before them, where the adapters have one of their own.
"""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError, comma_list
from bertjax.hf.keymap import Entry, KeyMap, Tensors
from bertjax.hf.keymaps import bert, roberta
from bertjax.hf.keymaps.family import change_defaults, linear, norm
from bertjax.hf.safe_files import refuse

log = logging.getLogger(__name__)

_PRE = bert.NormNames(last="encoder.LayerNorm")


def make_keymap(config: EncoderConfig) -> KeyMap:
    """Returns the names of an X-MOD's parameters; J: width inside the adapters, of which one is read."""
    keymap = roberta.make_keymap(config, "roberta", bert.AFTER if config.norm_placement == "post" else _PRE)
    language, is_pre = config.adapter_language, config.norm_placement == "pre"
    param, output = "encoder/layers/{L}/adapter", "roberta.encoder.layer.{L}.output"
    modules = f"{output}.adapter_modules"
    adapter: tuple[Entry, ...] = (
        *linear(f"{param}/intermediate", f"{modules}.{language}.dense1", "D J"),
        *linear(f"{param}/output", f"{modules}.{language}.dense2", "J D"),
        *(norm(f"{param}/norm", f"{output}.adapter_layer_norm", config) if is_pre else ()),
    )
    others = rf"\.adapter_modules\.(?!{language}\.)"
    return dataclasses.replace(
        keymap,
        entries=(*keymap.entries, *adapter),
        sizes={**keymap.sizes, "J": config.adapter_size or 0},
        ignored=(*keymap.ignored, others),
    )


def _extra_fields(values: dict[str, Any], fields: dict[str, Any], where: str) -> dict[str, Any]:
    language, languages = values.get("default_language"), values.get("languages", ("en_XX",))
    if not isinstance(languages, list | tuple) or not all(map(_is_name, languages)):
        raise UserError(f"{where}: languages must be a list of words, not {languages!r}")
    if language not in languages:
        raise UserError(f"{where}: default_language must name the adapter to read, one of {comma_list(languages, 8)}")
    factor, is_pre = values.get("adapter_reduction_factor", 2), values.get("pre_norm", False)
    if type(factor) is not int or not 1 <= factor <= fields["hidden_size"]:
        raise UserError(f"{where}: adapter_reduction_factor must be a whole number up to hidden_size, not {factor!r}")
    refuse(values, where, "pre_norm", (True, False), "it is true or false")
    for key, default, needed in (
        ("adapter_layer_norm", False, is_pre),
        ("ln_before_adapter", True, not is_pre),
        ("adapter_reuse_layer_norm", True, None if is_pre else True),  # not read next to adapter_layer_norm
    ):
        value = values.get(key, default)
        if value is not needed and needed is not None:
            reason = f"pre_norm = {str(is_pre).lower()} needs {str(needed).lower()}"
            raise UserError(f"{where}: {key} = {value!r} is not supported: {reason}")
    return {
        **roberta.split_positions(values, fields, where),
        "norm_placement": "pre" if is_pre else "post",
        "adapter_size": fields["hidden_size"] // factor,
        "adapter_language": language,
    }


def _is_name(language: Any) -> bool:
    return isinstance(language, str) and language.replace("-", "_").isidentifier()


def _extra_keys(config: EncoderConfig, architecture: str) -> dict[str, Any]:
    is_pre = config.norm_placement == "pre"
    return {
        "max_position_embeddings": config.position_offset + config.max_position_embeddings,
        "languages": [config.adapter_language],
        "default_language": config.adapter_language,
        "adapter_reduction_factor": config.hidden_size // (config.adapter_size or config.hidden_size),
        "pre_norm": is_pre,
        "adapter_layer_norm": is_pre,
        "adapter_reuse_layer_norm": not is_pre,
        "ln_before_adapter": not is_pre,
    }


def _warn_of_languages(config: EncoderConfig, tensors: Tensors, where: str) -> dict[str, Any]:
    start = "encoder.layer.0.output.adapter_modules."
    names = (name.removeprefix("roberta.") for name in tensors)
    languages = dict.fromkeys(name.removeprefix(start).split(".")[0] for name in names if name.startswith(start))
    if others := [language for language in languages if language != config.adapter_language]:
        log.warning(
            "%s: of the adapters that of %s is read, not those of %s (default_language in config.json)",
            where,
            config.adapter_language,
            comma_list(others, 8),
        )
    return {}


FAMILY = dataclasses.replace(
    roberta.FAMILY,
    name="xmod",
    model_type="xmod",
    make_keymap=make_keymap,
    architectures={name.replace("Roberta", "Xmod"): heads for name, heads in roberta.FAMILY.architectures.items()},
    fields=change_defaults(bert.BERT_FIELDS, pad_token_id=1),
    extra_fields=_extra_fields,
    extra_keys=_extra_keys,
    fields_of_tensors=_warn_of_languages,
)
