"""A folder of `transformers` that is read and written again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from bertjax.hf import save as save_module
from bertjax.hf.pretrained import load_pretrained


def assert_comes_back(theirs: Path, **others: Any) -> tuple[Any, dict[str, np.ndarray]]:
    """Asserts that what is read from a folder is written byte for byte, with no key of config.json that it lacks.

    Args:
        theirs: The folder.
        **others: Keys that are written with other values than were read.

    Returns:
        The model, and the written tensors by name.
    """
    model, ours = load_pretrained(theirs), theirs.with_name("ours")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(save_module, "_compare_outputs", lambda *_: None)
        model.save_pretrained(ours)
    before, after = (load_file(each / "model.safetensors") for each in (theirs, ours))
    assert after.keys() == before.keys()
    assert all(after[name].tobytes() == before[name].tobytes() for name in before)
    values, written = (json.loads((each / "config.json").read_text()) for each in (theirs, ours))
    assert {key: (values | others).get(key) for key in written} == written
    return model, after
