"""X-MOD: the adapter that is read and written, and the variants that are refused."""

from __future__ import annotations

import dataclasses
import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from parity.compare import random_transformers_model
from parity.families.xmod import CASES
from safetensors.numpy import load_file

from bertjax.config.model import EncoderConfig
from bertjax.config.presets import preset
from bertjax.errors import UserError
from bertjax.hf.export_plan import plan_export
from bertjax.hf.keymaps import FAMILIES
from bertjax.hf.pretrained import load_pretrained

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

IDS = np.random.default_rng(0).integers(5, 57, (2, 9))
SEVERAL = ("en_XX", "de_DE", "sw")


def make(folder: Path, **changes: Any) -> Any:
    case = dataclasses.replace(CASES[0], config=CASES[0].config | {"languages": list(SEVERAL)} | changes)
    theirs = random_transformers_model(case, "XmodForMaskedLM")
    theirs.save_pretrained(folder)
    return theirs


def test_the_adapter_of_the_default_language_is_read_and_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    theirs = make(tmp_path / "theirs", default_language="de_DE")
    with caplog.at_level(logging.WARNING):
        ours = load_pretrained(tmp_path / "theirs")
    (warning,) = caplog.messages
    assert "of the adapters that of de_DE is read, not those of en_XX, sw (default_language" in warning
    with torch.no_grad():
        expected = theirs(torch.from_numpy(IDS)).logits
    np.testing.assert_allclose(ours(IDS).logits, expected.numpy(), atol=2e-5)
    ours.save_pretrained(tmp_path / "ours")
    back = transformers.XmodForMaskedLM.from_pretrained(tmp_path / "ours").eval()
    assert (back.config.languages, back.config.default_language) == (["de_DE"], "de_DE")
    with torch.no_grad():
        np.testing.assert_allclose(back(torch.from_numpy(IDS)).logits.numpy(), expected.numpy(), atol=2e-5)
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("theirs", "ours"))
    missing = {name for name in before if ".en_XX." in name or ".sw." in name}
    assert before.keys() - after.keys() == missing and after.keys() <= before.keys()
    assert all(array.tobytes() == before[name].tobytes() for name, array in after.items())


REFUSED = [
    ({"default_language": None}, "default_language must name the adapter to read, one of en_XX, de_DE, sw"),
    ({"default_language": "fr_FR"}, "default_language must name the adapter to read"),
    ({"languages": "en_XX"}, "languages must be a list of words"),
    ({"languages": ["a.*"]}, "languages must be a list of words"),
    ({"adapter_layer_norm": True}, "adapter_layer_norm = True is not supported: pre_norm = false needs false"),
    ({"adapter_reuse_layer_norm": False}, "adapter_reuse_layer_norm = False is not supported: pre_norm = false needs"),
    ({"ln_before_adapter": False}, "ln_before_adapter = False is not supported"),
    ({"pre_norm": True}, "adapter_layer_norm = False is not supported: pre_norm = true needs true"),
    ({"pre_norm": True, "adapter_layer_norm": True}, "ln_before_adapter = True is not supported"),
    ({"pre_norm": None}, "pre_norm = None is not supported"),
    ({"adapter_reduction_factor": 2.5}, "adapter_reduction_factor must be a whole number up to hidden_size, not 2.5"),
    ({"adapter_reduction_factor": 31}, "adapter_reduction_factor must be a whole number up to hidden_size"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_other_orders_of_norms_and_an_unknown_language_are_refused(changes: dict[str, Any], message: str) -> None:
    config = transformers.XmodConfig(**CASES[0].config | {"languages": list(SEVERAL), "default_language": "sw"})
    values = json.loads(config.to_json_string(use_diff=False))
    assert FAMILIES["xmod"].parse_config(dict(values)).adapter_language == "sw"
    with pytest.raises(UserError, match=message):
        FAMILIES["xmod"].parse_config(values | changes)


def test_a_width_that_no_factor_gives_is_not_written_as_the_class() -> None:
    config = EncoderConfig(**preset("xmod-base"))
    assert plan_export(config, ("mlm",)).architecture == "XmodForMaskedLM"
    for changes, reason in ({"adapter_size": 383}, "adapter_size"), ({"adapter_language": None}, "languages must be"):
        plan = plan_export(dataclasses.replace(config, **changes), ("mlm",))
        assert plan.family is None and reason in " ".join(plan.unsupported)
