"""The same numbers as `transformers`: every case, every class, both directions."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file, save_file

pytest.importorskip("torch")
pytest.importorskip("transformers")

from parity import compare as compare_module
from parity.cases import Case
from parity.compare import DIRECTIONS, OUTPUT_FIELDS, compare, random_params
from parity.families import CASES
from parity.families.bert import CASES as BERT
from parity.families.same_tensors import CASES as SAME_TENSORS

from bertjax.config.extensions import FAMILIES
from bertjax.errors import UserError
from bertjax.hf import save as save_module
from bertjax.hf.forward import ModelOutput
from bertjax.hf.pretrained import PretrainedModel, load_pretrained
from bertjax.hf.save import save_pretrained
from bertjax.models.model import HEADS

HEADS_BY_OUTPUT = {
    "mlm_logits": ("mlm",),
    "pair_logits": ("pooler", "pair"),
    "rtd_logits": ("rtd",),
    "sequence_logits": ("sequence_classification",),
    "token_logits": ("token_classification",),
    "choice_logits": ("multiple_choice",),
    "start_logits": ("question_answering",),
    "pooler_output": ("pooler",),
}

ORDINARY_CASES = 1  # of a family; more only where they bring a class


def parameters() -> Iterator[Any]:
    """Yields every class, direction and case.

    Those that the ordinary suite omits are weekly, or long where no other has the case.

    The ordinary suite reads the first class of its cases and every class of `transformers` once (only the first of
    families with the tensors of another one), writes one class of the families that `tests/matrix` does not write,
    and makes the last of a case's extra calls, which includes the inputs of the others.
    """
    twins = {case.family for case in SAME_TENSORS}
    in_matrix = {name for name in FAMILIES.builtin if "family" not in FAMILIES.load(name).structure}
    covered: set[str] = set()
    counts: Counter[str] = Counter()
    for case in CASES:
        counts[case.family] += 1
        is_long = counts[case.family] > ORDINARY_CASES and {*case.classes} <= covered
        for model_class in case.classes:
            first = model_class == case.classes[0]
            reads = not is_long and (first or (model_class not in covered and case.family not in twins))
            writes = not is_long and first and case.family not in covered | in_matrix
            covered |= set() if is_long else {model_class, case.family}
            ordinary = dataclasses.replace(case, calls=case.calls[-1:])
            for direction, is_ordinary in zip(DIRECTIONS, (reads, writes), strict=True):
                name = f"{model_class}-{direction.replace(' -> ', '-')}-{case.name}"
                if is_ordinary:
                    yield pytest.param(ordinary, model_class, direction, id=name)
                mark = pytest.mark.long if is_long and first else pytest.mark.weekly
                if not is_ordinary or case.calls:
                    yield pytest.param(case, model_class, direction, id=f"{name}-all", marks=mark)


@pytest.fixture(autouse=True)
def unverified(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skips the comparison of outputs on export, which compiles two more models; here transformers compares."""
    monkeypatch.setattr(save_module, "_compare_outputs", lambda *_: None)


def heads_of(case: Case) -> tuple[str, ...]:
    """Returns the heads of all classes of a case."""
    heads: set[str] = set()
    for model_class in case.classes:
        fields = next(each for suffix, each in OUTPUT_FIELDS.items() if model_class.endswith(suffix))
        heads |= {head for output in fields.values() for head in HEADS_BY_OUTPUT.get(output, ())}
    heads |= {"pooler"} if "sequence_classification" in heads else set()  # which some of these classifiers read
    return tuple(head for head in HEADS if head in heads)


random_once = functools.cache(random_params)


def load_shared(case: Case) -> Callable[[Path], PretrainedModel]:
    """Returns a loader of models that run with the heads of all classes of the case: they share a compiled program."""
    heads = heads_of(case)

    class Shared(PretrainedModel):
        def __call__(self, *arguments: Any, **options: Any) -> ModelOutput:
            config = dataclasses.replace(self.config, family="bertjax")  # families may share the program as well
            every = tuple(head for head in HEADS if head in heads or head in self.heads)
            out = PretrainedModel(config, random_once(config, every) | self.params, every)(*arguments, **options)
            outputs = {output for output, needed in HEADS_BY_OUTPUT.items() if set(needed) <= set(self.heads)}
            outputs |= {"end_logits"} if "start_logits" in outputs else set()
            return out._replace(**{name: None for name in (*HEADS_BY_OUTPUT, "end_logits") if name not in outputs})

    def load(folder: Path) -> PretrainedModel:
        model = load_pretrained(folder)
        return Shared(model.config, model.params, model.heads, model.tokenizer_files)

    return load


@pytest.mark.parametrize(("case", "model_class", "direction"), parameters())
def test_parity(case: Case, model_class: str, direction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if len(case.classes) > 1 and not case.calls:
        monkeypatch.setattr(compare_module, "load_pretrained", load_shared(case))
    result = compare(case, model_class, direction)
    assert not [str(each) for each in result if not each.agrees]
    quantities = {each.quantity for each in result}
    layers = sum("hidden_states[" in quantity for quantity in quantities)
    assert layers >= 2 and {each.padding for each in result} == set(case.paddings)


def test_names_are_unique() -> None:
    names = {(case.family, case.name) for case in CASES}
    assert len(names) == len(CASES)


def misses(direction: str) -> set[str]:
    result = compare(BERT[1], "BertForMaskedLM", direction)
    return {each.quantity for each in result if not each.agrees}


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
    result = compare(BERT[1], "BertForMaskedLM", DIRECTIONS[1])
    assert [(each.quantity, each.note) for each in result] == [("names", "the class written is BertModel")]
    monkeypatch.setattr(compare_module, "load_pretrained", refused)
    (miss,) = compare(BERT[1], "BertForMaskedLM", DIRECTIONS[0])
    assert miss.quantity == "loaded" and "is refused" in str(miss)
