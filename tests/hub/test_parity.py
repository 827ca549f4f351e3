"""The same numbers as `transformers`: every case, every class, both directions."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from bertjax.hub.parity.cases import Case
from bertjax.hub.parity.families import CASES
from bertjax.hub.parity.measure import DIRECTIONS, measure

EVERY = [
    pytest.param(case, model_class, direction, id=f"{model_class}-{direction.replace(' -> ', '-')}-{case.name}")
    for case in CASES
    for model_class in case.classes
    for direction in DIRECTIONS
]


@pytest.mark.parametrize(("case", "model_class", "direction"), EVERY)
def test_parity(case: Case, model_class: str, direction: str) -> None:
    found = measure(case, model_class, direction)
    assert not [str(each) for each in found if not each.agrees]
    quantities = {each.quantity for each in found}
    layers = sum(quantity.startswith("hidden_states[") for quantity in quantities)
    assert layers >= 2 and {each.padding for each in found} == set(case.paddings)


def test_names_are_unique() -> None:
    assert len({(case.family, case.name) for case in CASES}) == len(CASES)
