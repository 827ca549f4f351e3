"""Functions that libraries apply to the output of a head, and the keys of config.json that name them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from scipy.special import expit

from bertjax.errors import UserError, comma_list
from bertjax.hf.safe_files import LIBRARY_FILE

CONFIG_KEYS = ("problem_type", "sentence_transformers", "sbert_ce_default_activation_function", "thresholds")
"""Keys of config.json that `transformers`, sentence-transformers (one before its version 4) or bertjax alone read."""

_FUNCTIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "Identity": lambda scores: scores,
    "Sigmoid": expit,
    "Tanh": np.tanh,
    "ReLU": lambda scores: np.maximum(scores, 0.0),
}


def select_keys(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the keys of a config.json that say what its head's outputs are."""
    return {key: values[key] for key in CONFIG_KEYS if values.get(key) is not None}


def stored_activation(
    config_keys: Mapping[str, Any], module_files: Mapping[str, bytes], num_outputs: int = 1
) -> Callable[[np.ndarray], np.ndarray]:
    """Returns the function that `CrossEncoder(folder).predict` applies to the scores of a head with one output.

    Where the folder names none, and for several outputs, it is the identity.

    Args:
        config_keys: `CONFIG_KEYS` of config.json.
        module_files: the library's files by path.
        num_outputs: outputs of the head.

    Raises:
        UserError: the folder names a function that bertjax does not know, or its file is broken.
    """
    if num_outputs > 1:
        return _FUNCTIONS["Identity"]
    try:
        of_library = dict(json.loads(module_files.get(LIBRARY_FILE, b"{}")))
    except (ValueError, TypeError) as error:
        raise UserError(f"{LIBRARY_FILE} holds no JSON object ({error}); copy the file again") from None
    entry = config_keys.get("sentence_transformers")
    path = of_library.get("activation_fn") or (entry.get("activation_fn") if isinstance(entry, Mapping) else None)
    path = path or config_keys.get("sbert_ce_default_activation_function") or "torch.nn.Identity"
    package, _, name = str(path).rpartition(".")
    if package.split(".")[0] != "torch" or name not in _FUNCTIONS:
        raise UserError(f"activation_fn {path!r} of sentence-transformers is not supported: {comma_list(_FUNCTIONS)}")
    return _FUNCTIONS[name]
