"""The same numbers as `transformers`: every case, every class, both directions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file, save_file

pytest.importorskip("torch")
pytest.importorskip("transformers")

from bertjax.errors import UserError
from bertjax.hf import save as save_module
from bertjax.hf.pretrained import PretrainedModel, load_pretrained
from bertjax.hf.save import save_pretrained
from bertjax.parity import compare as compare_module
from bertjax.parity.cases import Case
from bertjax.parity.compare import DIRECTIONS, compare
from bertjax.parity.families import CASES
from bertjax.parity.families.bert import CASES as BERT

EVERY = [  # all classes are read; of those that a case writes, the ordinary suite has the first
    pytest.param(
        case,
        model_class,
        direction,
        id=f"{model_class}-{direction.replace(' -> ', '-')}-{case.name}",
        marks=pytest.mark.long if direction == DIRECTIONS[1] and model_class != case.classes[0] else (),
    )
    for case in CASES
    for model_class in case.classes
    for direction in DIRECTIONS
]


@pytest.fixture(autouse=True)
def unverified(monkeypatch: pytest.MonkeyPatch) -> None:
    """An export's own comparison of outputs compiles two more models; here transformers is the judge."""
    monkeypatch.setattr(save_module, "_compare_outputs", lambda *_: None)


@pytest.mark.parametrize(("case", "model_class", "direction"), EVERY)
def test_parity(case: Case, model_class: str, direction: str) -> None:
    found = compare(case, model_class, direction)
    assert not [str(each) for each in found if not each.agrees]
    quantities = {each.quantity for each in found}
    layers = sum(quantity.startswith("hidden_states[") for quantity in quantities)
    assert layers >= 2 and {each.padding for each in found} == set(case.paddings)


def test_names_are_unique() -> None:
    assert len({(case.family, case.name) for case in CASES}) == len(CASES)


def misses(direction: str) -> set[str]:
    found = compare(BERT[1], "BertForMaskedLM", direction)
    return {each.quantity for each in found if not each.agrees}


def test_a_swapped_name_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def swapped(folder: Path) -> PretrainedModel:
        model = load_pretrained(folder)
        attention = model.params["encoder"]["layers"]["attention"]
        attention["query"]["bias"], attention["key"]["bias"] = attention["key"]["bias"], attention["query"]["bias"]
        return model

    monkeypatch.setattr(compare_module, "load_pretrained", swapped)
    assert misses(DIRECTIONS[0]) == {"hidden_states[1]", "mlm_logits"}


def test_what_is_written_wrongly_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def spoiled(folder: Path, *arguments: Any, **options: Any) -> None:
        save_pretrained(folder, *arguments, **options)
        tensors = load_file(folder / "model.safetensors")
        tensors["bert.embeddings.LayerNorm.gain"] = tensors.pop("bert.embeddings.LayerNorm.weight")
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        values = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(values | {"layer_norm_eps": 0.5, "torch_dtype": "float32"}))

    monkeypatch.setattr(compare_module, "save_pretrained", spoiled)
    assert misses(DIRECTIONS[1]) == {"names", "config", "loaded"}


def test_another_class_and_a_refusal_are_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    def headless(folder: Path, params: Any, config: Any, heads: tuple[str, ...]) -> None:
        save_pretrained(folder, {"encoder": params["encoder"]}, config, heads=())

    def refused(folder: Path) -> PretrainedModel:
        raise UserError(f"{folder} is refused")

    monkeypatch.setattr(compare_module, "save_pretrained", headless)
    found = compare(BERT[1], "BertForMaskedLM", DIRECTIONS[1])
    assert [(each.quantity, each.note) for each in found] == [("names", "the class written is BertModel")]
    monkeypatch.setattr(compare_module, "load_pretrained", refused)
    (miss,) = compare(BERT[1], "BertForMaskedLM", DIRECTIONS[0])
    assert miss.quantity == "loaded" and "is refused" in str(miss)
