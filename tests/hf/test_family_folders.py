"""Every family's folders: round trips, and errors for every kind of damage. Needs neither torch nor transformers."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from parity.families import CASES
from safetensors.numpy import load_file, save_file

from bertjax.config.model import EncoderConfig
from bertjax.config.presets import PRESETS, preset
from bertjax.errors import UserError
from bertjax.hf import save as save_module
from bertjax.hf.export_plan import compare_configs, plan_export, select_stored_heads
from bertjax.hf.keymap import params_to_tensors
from bertjax.hf.keymaps import FAMILIES
from bertjax.hf.keymaps.family import Family
from bertjax.hf.pretrained import load_pretrained
from bertjax.hf.safe_files import auto_class
from bertjax.hf.save import save_pretrained
from bertjax.models.model import abstract_params
from bertjax.types import Params

CONFIGS = {
    name: next(each.config for each in CASES if not family.architectures.keys().isdisjoint(each.classes))
    for name, family in FAMILIES.items()
    if "auto_map" not in family.constants and family.written
}
CONFIGS["neobert"] = {"vocab_size": 30, "hidden_size": 12, "num_hidden_layers": 3, "num_attention_heads": 2}
CONFIGS["mosaic_bert"] = CONFIGS["jina_bert"] = {**CONFIGS["neobert"], "intermediate_size": 14}
CONFIGS["luke"] = CONFIGS["ibert"] = {**CONFIGS["mosaic_bert"], "max_position_embeddings": 23}
CONFIGS["nucleotide_transformer"] = CONFIGS["esm"]
CONFIGS["ltg_bert"] = {**CONFIGS["mosaic_bert"], "max_position_embeddings": 23, "position_bucket_size": 6}
CONFIGS["convbert"] = {**CONFIGS["convbert"], "summary_type": "first"}
CONFIGS["gpt_bert"] = {**CONFIGS["ltg_bert"], "share_att_key": True}
CONFIGS["neobert"] |= {"intermediate_size": 12, "max_length": 20}


def heads_of(family: Family) -> tuple[str, ...]:
    """Returns the heads of the family's masked-word class, or of the transform before the head in a bare encoder.

    Where every class has a decoder, the heads are those of the first.
    """
    if family.architectures.keys() == set(family.decoder_classes):
        return next(iter(family.architectures.values()))
    return next((required for required in family.architectures.values() if required == ("mlm",)), ("mlm",))


def config_of(name: str, *architectures: str) -> EncoderConfig:
    return FAMILIES[name].parse_config(json.loads(json.dumps({**CONFIGS[name], "architectures": architectures})))


def random_params(config: EncoderConfig, heads: tuple[str, ...]) -> Params:
    draw = np.random.default_rng(0).standard_normal
    return jax.tree.map(lambda leaf: draw(leaf.shape).astype(leaf.dtype), abstract_params(config, heads))


FURTHER_FILES = {"roc_bert"}  # without which its folders cannot be read: tests/hf/test_roc_bert.py


@pytest.fixture(params=[name for name in FAMILIES if name not in FURTHER_FILES])
def family(request: pytest.FixtureRequest) -> Family:
    return FAMILIES[request.param]


@pytest.fixture
def folder(tmp_path: Path, family: Family, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(save_module, "verify_export", lambda *_, **__: None)
    config, heads = config_of(family.name), heads_of(family)
    params, path = random_params(config, heads), tmp_path / "out"
    if family.written:
        save_pretrained(path, params, config, heads=heads)
        return path
    path.mkdir()
    architecture = family.architecture_for(heads, config) or ""
    save_file(params_to_tensors(family.make_keymap(config), params, config, heads), path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(family.render_config(config, architecture)))
    return path


def refused(path: Path, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        load_pretrained(path)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 900


def test_there_and_back(folder: Path, family: Family) -> None:
    config, heads = config_of(family.name), heads_of(family)
    model = load_pretrained(folder)
    labels = tuple(f"LABEL_{index}" for index in range(family.num_labels))
    assert model.config == dataclasses.replace(config, labels=labels) and model.heads == heads
    jax.tree.map(np.testing.assert_array_equal, model.params, random_params(config, heads))
    assert json.loads((folder / "config.json").read_text())["model_type"] == family.model_type


def test_damage_is_named(folder: Path, family: Family) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    name = next(name for name in sorted(tensors) if tensors[name].ndim == 2 and tensors[name].any())  # zeros: no head
    named = f"({family.prefix})?{name}"  # which files of the bare model lack
    damages: list[tuple[dict[str, np.ndarray], str]] = [
        ({key: value for key, value in tensors.items() if key != name}, f"missing: {named}"),
        ({**tensors, name: tensors[name][1:]}, f"misshapen: {named}"),
        ({**tensors, name: np.full_like(tensors[name], np.inf)}, f"not finite: {named}"),
        ({**tensors, name: tensors[name].astype(np.int8)}, ""),  # numbers, although unusual ones
    ]
    for broken, message in damages:
        save_file(broken, path)
        if message:
            refused(folder, message)
    path.unlink()
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    architecture = json.loads((folder / "config.json").read_text())["architectures"][0]
    refused(folder, f"which is not read.*transformers.{auto_class(architecture)}.from_pretrained")


def test_old_names_of_norms_are_read(folder: Path, family: Family) -> None:
    tensors = load_file(folder / "model.safetensors")
    old = {re.sub(r"LayerNorm\.weight$", "LayerNorm.gamma", name): tensor for name, tensor in tensors.items()}
    old = {re.sub(r"LayerNorm\.bias$", "LayerNorm.beta", name): tensor for name, tensor in old.items()}
    save_file(old, folder / "model.safetensors")
    jax.tree.map(
        np.testing.assert_array_equal,
        load_pretrained(folder).params,
        random_params(config_of(family.name), heads_of(family)),
    )


def test_sizes_beyond_all_files_are_refused(folder: Path, family: Family) -> None:
    values = json.loads((folder / "config.json").read_text())
    held = family.parse_config(values)
    for key, value in values.items():
        if type(value) is not int or value not in (held.num_layers, held.hidden_size, held.vocab_size):
            continue
        (folder / "config.json").write_text(json.dumps({**values, key: 10**12}))
        try:
            load_pretrained(folder)
        except UserError as error:
            assert "\n" not in str(error)
        (folder / "config.json").write_text(json.dumps(values))
    load_pretrained(folder)


def test_no_two_tensors_of_one_class_share_a_name(family: Family) -> None:
    for architecture, required in family.architectures.items():
        config = config_of(family.name, architecture)
        params = random_params(config, required)
        plan = plan_export(config, required)
        if plan.architecture == architecture:
            assert plan.tensors(params)[0]
        assert params_to_tensors(family.make_keymap(config), params, config, required)
        assert plan.architecture == architecture or architecture not in family.decoder_classes


@pytest.mark.parametrize("name", [name for name in PRESETS if preset(name).get("family", "bert") in FAMILIES])
def test_published_models_fit_the_classes_of_their_family(name: str) -> None:
    """Only keys that side files restore are lost on the way through config.json."""
    config: Any = EncoderConfig(**preset(name) | {"vocab_size": 130_000, "question_token_id": 104})
    family = FAMILIES[config.family]
    for architecture, heads in family.architectures.items():
        held = family.parse_config(family.render_config(config, architecture))
        stored = select_stored_heads(family.make_keymap(config), heads, heads)
        differing, extra = compare_configs(config, held, heads, stored)
        assert differing == extra, architecture
