"""Generation with pretrained models, by the arguments of transformers' `generate`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Int

from bertjax.config.encoder_decoder import EncoderDecoderConfig
from bertjax.config.generation import GenerationConfig
from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.hf.safe_files import JsonKeys, read_json
from bertjax.models.generation import generate, start_token
from bertjax.types import Params

GENERATION_CONFIG = "generation_config.json"
# What else `GenerationConfig` of transformers has: form of the output, caches, speed, and what old versions wrote.
_INERT_KEYS = """
_from_model_config assistant_confidence_threshold assistant_early_exit assistant_ensemble_weight assistant_lookbehind
cache_config cache_implementation compile_config continuous_batching_config disable_compile is_assistant low_memory
max_cache_len max_matching_ngram_size num_assistant_tokens num_assistant_tokens_schedule output_attentions
output_hidden_states output_logits output_scores prefill_chunk_size prompt_lookup_num_tokens remove_invalid_values
return_dict_in_generate return_legacy_cache speculation_type target_lookbehind transformers_version use_model_defaults
use_mtp
"""


def read_generation(folder: Path, config_json: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of a folder's generation_config.json, else the settings that an old config.json holds.

    Args:
        folder: the folder.
        config_json: its config.json; where there are two networks, the decoder's settings count last.
    """
    names = GenerationConfig.names()
    if (folder / GENERATION_CONFIG).exists():
        values = JsonKeys(read_json(folder, GENERATION_CONFIG))
        values.warn_of_unread(f"{folder / GENERATION_CONFIG}", {*names, *_INERT_KEYS.split()})
        return {key: value for key, value in values.items() if key != "transformers_version"}
    decoder = config_json.get("decoder")
    configs = decoder if isinstance(decoder, dict) else {}, config_json
    return {name: config[name] for config in configs for name in sorted(names) if config.get(name) is not None}


def generation_file(values: Mapping[str, Any]) -> dict[str, bytes]:
    """Returns the file of these values by its name; no file without values."""
    return {GENERATION_CONFIG: (json.dumps(dict(values), indent=2, sort_keys=True) + "\n").encode()} if values else {}


def generation_settings(defaults: Mapping[str, Any], arguments: Mapping[str, Any]) -> GenerationConfig:
    """Returns the settings of a model's folder, changed by arguments.

    Args:
        defaults: values of generation_config.json.
        arguments: names and values as in `transformers`; None leaves the default.

    Raises:
        UserError: an argument is unknown, or a value is wrong or not supported.
    """
    GenerationConfig.require_names(arguments)
    changes = {name: value for name, value in arguments.items() if value is not None}
    try:
        settings = GenerationConfig.from_json({name: value for name, value in defaults.items() if name not in changes})
    except UserError as error:
        raise UserError(f"{GENERATION_CONFIG}: {error}") from None
    return settings.updated(changes)


def generate_ids(
    params: Params,
    config: EncoderDecoderConfig | EncoderConfig,
    inputs: Mapping[str, Any],
    settings: GenerationConfig,
    seed: int,
) -> Int[np.ndarray, "R T"]:
    """Returns whole sequences as `transformers` does: start token or prompt, then new tokens and padding.

    Args:
        params: parameters of the model.
        config: the model.
        inputs: as in `models.generation.generate`.
        settings: settings of generation.
        seed: seed of samples.
    """
    result = generate(params, config, inputs, settings, jax.random.key(seed))
    new = result.sequences.reshape(-1, result.sequences.shape[-1])
    if isinstance(config, EncoderDecoderConfig):
        prompt = np.full((len(new), 1), start_token(config, settings), np.int32)
    else:
        prompt = np.repeat(np.asarray(inputs["input_ids"], np.int32), len(new) // len(result.sequences), axis=0)
    return np.concatenate([prompt, new], axis=1)
