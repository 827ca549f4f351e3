"""Building parameters from other parameters: composed rows, resized positions, selected layers, merged trees."""

from __future__ import annotations

import numpy as np
import pytest

from bertjax.checkpoint.surgery import (
    average_rows,
    collapse_paths,
    merge_params,
    replace_leaves,
    resize_position_table,
)
from bertjax.errors import UserError
from bertjax.io.tree_paths import flatten_tree


def table(rows: int, width: int = 3) -> np.ndarray:
    return np.random.default_rng(rows).normal(size=(rows, width)).astype(np.float32)


def test_one_part_is_that_row_and_several_are_their_mean() -> None:
    old = table(5)
    new = average_rows(old, [[3], [0], [1, 2], [4, 4, 1], [3]])
    assert new.dtype == old.dtype
    assert np.array_equal(new[[0, 1, 4]], old[[3, 0, 3]])
    assert np.allclose(new[2], (old[1] + old[2]) / 2, atol=1e-7)
    assert np.allclose(new[3], (2 * old[4] + old[1]) / 3, atol=1e-7)


def test_a_row_without_parts_is_the_mean_of_all() -> None:
    old, bias = table(5), np.array([1.0, 2.0, 6.0], np.float32)
    assert np.allclose(average_rows(old, [[2], []]), [old[2], old.mean(axis=0)], atol=1e-7)
    assert average_rows(bias, [[], [1], [0, 2]]).tolist() == [3.0, 2.0, 3.5]


def test_rows_without_parts_cost_known_words_little() -> None:
    """The sum under the softmax grows by at most that of as many average tokens, whatever the hidden state."""
    old, bias, hidden = table(50, 8).astype(np.float64) * 3, table(50, 1)[:, 0].astype(np.float64), table(200, 8)
    parts = [[position] for position in range(50)] + [[]] * 20

    def log_sum(rows: np.ndarray, biases: np.ndarray) -> np.ndarray:
        return np.log(np.exp(hidden @ rows.T + biases[None]).sum(axis=1))

    more = log_sum(average_rows(old, parts), average_rows(bias, parts)) - log_sum(old, bias)
    assert (more > -1e-12).all() and more.max() > 0.01 and (more <= np.log(1 + 20 / 50) + 1e-12).all()


def test_tiling_begins_again_and_keeps_what_was_there() -> None:
    old = table(6)  # two rows before the first position, as in RoBERTa
    new = resize_position_table(old, 9, 2, "tile")
    assert np.array_equal(new, old[[0, 1, 2, 3, 4, 5, 2, 3, 4, 5, 2]])


def test_interpolation_runs_from_the_first_to_the_last_position() -> None:
    old = np.array([[9.0], [0.0], [4.0], [8.0]], np.float32)
    new = resize_position_table(old, 5, 1, "interpolate")
    assert new.dtype == old.dtype and new[:, 0].tolist() == [9.0, 0.0, 2.0, 4.0, 6.0, 8.0]
    long = resize_position_table(table(50), 173, 0, "interpolate")
    assert np.array_equal(long[[0, -1]], table(50)[[0, -1]])
    assert resize_position_table(np.ones((1, 2), np.float32), 3, 0, "interpolate").tolist() == [[1.0, 1.0]] * 3


@pytest.mark.parametrize("how", ["tile", "interpolate"])
def test_a_shorter_table_is_cut_and_an_equal_one_stays(how: str) -> None:
    old = table(6)
    assert np.array_equal(resize_position_table(old, 3, 2, how), old[:5])
    assert np.array_equal(resize_position_table(old, 4, 2, how), old)


def stacked(layers: int) -> dict:
    """Returns shapes of a tree with every kind of leaf: stacked, without the first layer, and outside the layers."""
    encoder = {
        "layers": {"attention": {"kernel": np.arange(layers * 2).reshape(layers, 2)}},
        "attention_norms": {"layers": {"scale": np.arange(1, layers)[:, None]}},
        "norm": {"scale": np.ones(2)},
    }
    return {"encoder": encoder, "mlm_head": {"bias": np.zeros(4)}}


def test_merging_keeps_what_is_lacking_and_names_it() -> None:
    fresh = {"a": {"x": np.zeros((3, 2), np.float32), "y": np.ones(2)}, "b": np.ones(1)}
    merged = merge_params(fresh, {"a": {"x": np.full((2, 2), 5.0)}, "other": np.ones(7)})
    assert merged["a"]["x"].tolist() == [[5.0, 5.0], [5.0, 5.0], [0.0, 0.0]]
    assert merged["a"]["y"] is fresh["a"]["y"] and merged["b"] is fresh["b"] and fresh["a"]["x"].sum() == 0
    with pytest.raises(UserError, match=r"a/x has shape \(3, 3\) in the source, but \(3, 2\)"):
        merge_params(fresh, {"a": {"x": np.zeros((3, 3))}})


def test_paths_are_named_as_briefly_as_can_be() -> None:
    params = stacked(2)
    everything = set(flatten_tree(params))
    assert collapse_paths(params, everything) == ["encoder", "mlm_head"]
    assert collapse_paths(params, everything - {"encoder/norm/scale"}) == [
        "encoder/layers",
        "encoder/attention_norms",
        "mlm_head",
    ]
    changed = replace_leaves(params, {"mlm_head/bias": np.full(4, 2.0)})
    assert changed["mlm_head"]["bias"].sum() == 8 and params["mlm_head"]["bias"].sum() == 0
