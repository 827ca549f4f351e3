"""`inspect-data` on rows of several examples."""

from __future__ import annotations

import types
from typing import Any

import numpy as np

from bertjax.commands.inspect_data import describe, render_row

TOKENIZER: Any = types.SimpleNamespace(tokens=["pad", "cls", "sep", "a", "b", "c"], special_ids=(0, 1, 2))


def batch() -> dict[str, np.ndarray]:
    """A row of two pairs and a row of one pair; each row can hold three."""
    return {
        "input_ids": np.asarray([[1, 3, 2, 4, 2, 1, 5, 2, 5, 2], [1, 3, 2, 3, 2, 0, 0, 0, 0, 0]]),
        "segment_ids": np.asarray([[1] * 5 + [2] * 5, [1] * 5 + [0] * 5]),
        "token_type_ids": np.asarray([[0, 0, 0, 1, 1] * 2, [0, 0, 0, 1, 1] + [0] * 5]),
        "example_weights": np.asarray([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]], np.float32),
        "pair_labels": np.asarray([[0, 1, 0], [1, 0, 0]]),
    }


def test_shares_are_of_the_examples_that_are_there() -> None:
    assert describe(batch()) == (
        "2 sequences of 10, 1.50 examples per sequence, padding 25.0 %, 66.7 % of the pairs do not follow each other"
    )


def test_every_example_is_shown_with_its_label() -> None:
    shown = [render_row(batch(), row, TOKENIZER).plain for row in range(2)]
    assert shown[0].splitlines() == [
        "  (B follows A) cls a sep b sep ",
        "  & (B does not follow A) cls c sep c sep ",
    ]
    assert shown[1] == "  (B does not follow A) cls a sep a sep + 5 padding"


def test_rows_of_one_example_are_shown_as_ever() -> None:
    alone = {name: value[1:] for name, value in batch().items() if name != "pair_labels"}
    alone["example_weights"] = np.ones((1, 1), np.float32)
    assert describe(alone) == "1 sequences of 10, padding 50.0 %"
    assert render_row(alone, 0, TOKENIZER).plain == "cls a sep a sep + 5 padding"
