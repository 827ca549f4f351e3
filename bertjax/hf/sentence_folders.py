"""Reads how a folder of sentence-transformers makes vectors: the library's settings, each used or refused by name."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import erf

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError, comma_list
from bertjax.hf.forward import max_input_length
from bertjax.hf.keymap import Tensors
from bertjax.hf.safe_files import (
    LIBRARY_FILE,
    MODULES_FILE,
    SETTINGS_FILES,
    WEIGHTS,
    JsonKeys,
    read_json,
    read_modules,
    read_safetensors,
    refuse,
)
from bertjax.hf.sentence_transformers import MODE_KEYS, POOLING_MODES, Layer, Pooling, scale_to_unit_length

_TOKENIZER_CONFIG = "tokenizer_config.json"
_UNLIMITED = 2**24  # `model_max_length` of a tokenizer without a limit is 1e30
_STEPS = ("Transformer", "Pooling", "Dense", "LayerNorm", "Dropout", "Normalize")
_IN_AND_OUT = ("sentence_embedding", None)
# The only values that `Transformer` of the library may have: those of a text encoder, read from the folder itself.
_TEXT_ENCODER: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "transformer_task": (("feature-extraction",), "vectors are made of hidden states"),
    "modality_config": (
        (None, {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}),
        "only texts are read",
    ),
    "module_output_name": ((None, "token_embeddings"), "vectors are made of the last hidden states"),
    "tokenizer_name_or_path": ((None,), "the tokenizer is that of the folder"),
    **{
        key: ((None, {}), "arguments of other libraries are not read")
        for kind in ("model", "processor", "tokenizer", "config")
        for key in (f"{kind}_kwargs", f"{kind}_args")
    },
    "processing_kwargs": ((None, {}), "arguments of other libraries are not read"),
}
# Kernels, and settings of `encode_query` and `encode_document`.
_INERT_OF_TRANSFORMER = ("unpad_inputs", "query_length", "document_length", "query_expansion")
_INERT_OF_LIBRARY = ("__version__", "requirements", "similarity_fn_name")


def read_pooling(folder: Path, config: EncoderConfig | None = None) -> Pooling:
    """Reads how a sentence-transformers folder makes vectors.

    Args:
        folder: the folder.
        config: the model, which limits the length of texts.

    Raises:
        UserError: the library did not write the folder, or a setting of it is not supported; names file and key.
    """
    modules = read_modules(folder)
    kinds = [kind for kind, _ in modules]
    if kinds[:2] != ["Transformer", "Pooling"] or not {*kinds[2:]} <= {*_STEPS[2:]}:
        raise UserError(
            f"{folder / MODULES_FILE}: type: supported are Transformer, Pooling, and then any of "
            f"{', '.join(_STEPS[2:])}, not {comma_list(kinds)}"
        )
    if modules[0][1]:
        raise UserError(f"{folder / MODULES_FILE}: path: the Transformer must lie in the folder, not {modules[0][1]!r}")
    layers = [layer for kind, path in modules[2:] if (layer := _READERS[kind](folder, path)) is not None]
    normalize = bool(layers) and layers[-1] is scale_to_unit_length
    mode, include_prompt = _read_mode(folder, modules[1][1])
    return Pooling(
        mode=mode,
        normalize=normalize,
        include_prompt=include_prompt,
        layers=tuple(layers[: len(layers) - normalize]),
        **_read_library_file(folder),
        **_read_transformer(folder, config),
    )


def _read_mode(folder: Path, path: str) -> tuple[str, bool]:
    """Returns the modes, joined by +, and whether the tokens of a prompt count."""
    values, where = _read_keys(folder, f"{path}/config.json")
    old = {key: _flag(values, key, where, False) for key in MODE_KEYS.values()}
    modes: Any = [mode for mode, key in MODE_KEYS.items() if old[key]] or ["mean"]
    if "pooling_mode" in values:
        modes = values["pooling_mode"] if isinstance(values["pooling_mode"], list) else [values["pooling_mode"]]
    if not modes or not all(mode in POOLING_MODES for mode in modes):
        known = ", ".join(POOLING_MODES)
        raise UserError(f"{where}: pooling_mode must be of {known}, not {comma_list(list(map(str, modes)))}")
    include_prompt = _flag(values, "include_prompt", where, True)
    values.refuse_unread(where, ("embedding_dimension", "word_embedding_dimension"))
    return "+".join(modes), include_prompt


def _read_library_file(folder: Path) -> dict[str, Any]:
    """Returns the default prompt and the size of the vectors."""
    if not (folder / LIBRARY_FILE).is_file():
        return {}
    values, where = _read_keys(folder, LIBRARY_FILE)
    refuse(values, where, "model_type", (None, "SentenceTransformer"), "it makes no vectors of sentences")
    prompts, name = {"query": None, "document": None} | (values.get("prompts") or {}), values.get("default_prompt_name")
    if name is not None and name not in prompts:
        raise UserError(f"{where}: default_prompt_name {name!r} is not one of its prompts, {comma_list(list(prompts))}")
    prompt = None if name is None else prompts[name]
    if not isinstance(prompt, str | None):
        raise UserError(f"{where}: prompts: {name!r} must be a text, not {prompt!r}")
    size = _positive(values, "truncate_dim", where)
    values.refuse_unread(where, _INERT_OF_LIBRARY)
    return {"prompt": prompt or "", "truncate_dim": size}


def _read_transformer(folder: Path, config: EncoderConfig | None) -> dict[str, Any]:
    """Returns how texts are read: the settings of the module count more than those of the tokenizer."""
    limit, lowercase = None, False
    for name in SETTINGS_FILES:
        if (folder / name).is_file():
            values, where = _read_keys(folder, name)
            for key, (allowed, reason) in _TEXT_ENCODER.items():
                refuse(values, where, key, allowed, reason)
            limit, lowercase = _positive(values, "max_seq_length", where), _flag(values, "do_lower_case", where, False)
            values.refuse_unread(where, _INERT_OF_TRANSFORMER)
            break
    longest = None if config is None else max_input_length(config)
    of_tokenizer = _read_tokenizer_config(folder, config)
    if limit is None:
        limit, longest = of_tokenizer, longest or (None if config is None else config.max_position_embeddings)
    limits = [each for each in (limit, longest) if each is not None]  # the library fails for texts beyond the table
    return {"max_length": min(limits, default=None), "lowercase": lowercase}


def _read_tokenizer_config(folder: Path, config: EncoderConfig | None) -> int | None:
    """Returns the greatest length."""
    if not (folder / _TOKENIZER_CONFIG).is_file():
        return None
    values, where = _read_keys(folder, _TOKENIZER_CONFIG)
    limit = values.get("model_max_length")
    if limit is not None and (type(limit) not in (int, float) or not limit >= 1):
        raise UserError(f"{where}: model_max_length must be a positive number, not {limit!r}")
    sees_padding = config is not None and config.position_embedding != "none" and config.position_offset == 0
    if sees_padding:
        reason = "positions would depend on the other texts of a batch"
        refuse(values, where, "padding_side", ("right", None), reason)
    if "attention_mask" not in values.get("model_input_names", ["attention_mask"]):
        raise UserError(f"{where}: model_input_names lacks attention_mask: padding would be read as text")
    return None if limit is None or limit > _UNLIMITED else int(limit)


def _read_dense(folder: Path, path: str) -> Layer:
    values, where = _read_keys(folder, f"{path}/config.json")
    name = values.get("activation_function", "torch.nn.modules.activation.Tanh")
    function = _ACTIVATIONS.get(str(name).rpartition(".")[2]) if str(name).startswith("torch.nn.") else None
    if function is None:
        raise UserError(f"{where}: activation_function {name!r} is not supported: torch's {comma_list(_ACTIVATIONS)}")
    residual = _flag(values, "use_residual", where, False)
    sizes = [_positive(values, key, where) for key in ("in_features", "out_features")]
    shapes = {"linear.weight": sizes[::-1]}
    if _flag(values, "bias", where, True):
        shapes["linear.bias"] = sizes[1:]
    if residual and sizes[0] != sizes[1]:
        shapes["residual.weight"] = sizes[::-1]
    _refuse_names(values, where)
    return functools.partial(_dense, _read_weights(folder, path, shapes), function, residual)


def _dense(weights: Tensors, function: Layer, residual: bool, vectors: np.ndarray) -> np.ndarray:
    result = function(vectors @ weights["linear.weight"].T + weights.get("linear.bias", np.float32(0.0)))
    if not residual:
        return result
    return result + (vectors @ weights["residual.weight"].T if "residual.weight" in weights else vectors)


def _read_layer_norm(folder: Path, path: str) -> Layer:
    values, where = _read_keys(folder, f"{path}/config.json")
    size = _positive(values, "dimension", where)
    values.refuse_unread(where)
    weights = _read_weights(folder, path, {"norm.weight": [size], "norm.bias": [size]})

    def normalize(vectors: np.ndarray) -> np.ndarray:
        centered = vectors - vectors.mean(axis=-1, keepdims=True)
        deviation = np.sqrt(np.square(centered).mean(axis=-1, keepdims=True) + np.float32(1e-5))
        return centered / deviation * weights["norm.weight"] + weights["norm.bias"]

    return normalize


def _read_normalize(folder: Path, path: str) -> Layer:
    if (folder / path / "config.json").is_file():
        _refuse_names(*_read_keys(folder, f"{path}/config.json"))
    return scale_to_unit_length


def _read_dropout(folder: Path, path: str) -> None:
    values, where = _read_keys(folder, f"{path}/config.json")
    values.refuse_unread(where, ("dropout",))


_READERS: Mapping[str, Callable[[Path, str], Layer | None]] = {
    "Dense": _read_dense,
    "LayerNorm": _read_layer_norm,
    "Dropout": _read_dropout,
    "Normalize": _read_normalize,
}


def _gelu(values: np.ndarray) -> np.ndarray:
    return values * (erf(values / np.sqrt(np.float32(2.0))) + 1.0) / 2.0


_ACTIVATIONS: Mapping[str, Layer] = {
    "Identity": lambda values: values,
    "Tanh": np.tanh,
    "ReLU": lambda values: np.maximum(values, 0.0),
    "GELU": _gelu,
    "SiLU": lambda values: values / (1.0 + np.exp(-values)),
    "Sigmoid": lambda values: 1.0 / (1.0 + np.exp(-values)),
}


def _refuse_names(values: JsonKeys, where: str) -> None:
    """Refuses layers that read or write anything but the vectors, and unknown keys."""
    for key in ("module_input_name", "module_output_name"):
        refuse(values, where, key, _IN_AND_OUT, "it must read and write the vectors of sentences")
    values.refuse_unread(where)


def _read_weights(folder: Path, path: str, shapes: Mapping[str, list[int | None]]) -> Tensors:
    if not (folder / path / WEIGHTS).is_file():
        raise UserError(f"{folder / path} has no {WEIGHTS}, and no other weights are read; save the folder again")
    tensors = read_safetensors(folder, f"{path}/{WEIGHTS}")
    stored = {name: list(array.shape) for name, array in tensors.items()}
    if stored != shapes:
        raise UserError(f"{folder / path / WEIGHTS} holds {stored}; by its config.json it must hold {dict(shapes)}")
    return tensors


def _read_keys(folder: Path, name: str) -> tuple[JsonKeys, str]:
    return JsonKeys(read_json(folder, name)), f"{folder / name}"


def _flag(values: JsonKeys, key: str, where: str, default: bool) -> bool:
    value = values.get(key, default)
    if type(value) is not bool:
        raise UserError(f"{where}: {key} must be true or false, not {value!r}")
    return value


def _positive(values: JsonKeys, key: str, where: str) -> int | None:
    value = values.get(key)
    if value is not None and (type(value) is not int or value < 1):
        raise UserError(f"{where}: {key} must be a positive whole number, not {value!r}")
    return value
