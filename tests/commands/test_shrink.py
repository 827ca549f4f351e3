"""Parts of a model: which layers and units are chosen, what the smaller model computes, what is refused."""

from __future__ import annotations

import dataclasses
import itertools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from parity.compare import random_params
from test_growth import ALBERT, HEADS, LLAMA, POST, PRE, outputs

from bertjax.checkpoint.surgery import replace_leaves
from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.experiment.growth import grow
from bertjax.experiment.shrink import (
    choose_layers,
    choose_units,
    importance,
    layer_influence,
    parse_sparsity,
    require_layers,
    shrink,
    sparsify,
)
from bertjax.hf.pretrained import PretrainedModel
from bertjax.io.tree_paths import flatten_tree
from bertjax.models.model import bind
from bertjax.types import Batch, Params

XLNET = dataclasses.replace(
    POST, attention_position="relative", position_embedding="none", attention_bias="none", relative_segments=True
)
CONFIGS = {"post": POST, "pre": PRE, "albert": ALBERT, "llama": LLAMA, "xlnet": XLNET}


def batch(seed: int = 0, rows: int = 3, length: int = 9) -> Batch:
    draw = np.random.default_rng(seed)
    lengths = draw.integers(4, length + 1, rows)
    return {
        "input_ids": draw.integers(1, 30, (rows, length)).astype(np.int32),
        "segment_ids": (np.arange(length) < lengths[:, None]).astype(np.int32),
        "position_ids": np.tile(np.arange(length, dtype=np.int32), (rows, 1)),
        "token_type_ids": np.zeros((rows, length), np.int32),
    }


def states(config: EncoderConfig, params: Params, inputs: Batch) -> np.ndarray:
    params = jax.tree.map(jnp.asarray, params)
    encoded = bind(config, HEADS, params).encode(**{name: jnp.asarray(value) for name, value in inputs.items()})
    return np.asarray(encoded.last_hidden_state)


def cases(*ordinary: str) -> list[Any]:
    return [pytest.param(name, marks=[] if name in ordinary else pytest.mark.long) for name in CONFIGS]


@pytest.mark.parametrize("name", cases("albert", "llama"))
def test_units_and_heads_that_add_nothing_can_be_removed(name: str) -> None:
    """Those with zeros in the matrix that reads them, other ones in every layer."""
    config = CONFIGS[name]
    params = jax.device_get(random_params(config, HEADS))
    leaves, remaining, changed = flatten_tree(params), {}, {}
    draw = np.random.default_rng(1)
    groups = config.kv_heads
    for field, part, units, count in (
        ("intermediate_size", "feed_forward/output", config.intermediate_size, 7),
        ("num_heads", "attention/output", groups, groups - 1),
    ):
        (path,) = (path for path in leaves if path.endswith(f"layers/{part}/kernel"))
        kernel = np.array(leaves[path])
        stack = kernel.shape[:-2]
        remaining[field] = np.sort(draw.random((*stack, units)).argsort(-1)[..., :count], -1)
        stays = np.zeros((*stack, units), bool)
        np.put_along_axis(stays, remaining[field], True, -1)
        changed[path] = kernel * np.repeat(stays, kernel.shape[-2] // units, axis=-1)[..., None]
    params = replace_leaves(params, changed)
    smaller, fewer = shrink(params, HEADS, config, remaining=remaining)
    assert fewer.intermediate_size == 7 and fewer.kv_heads == groups - 1 and fewer.head_dim == config.head_dim
    assert fewer.num_heads // fewer.kv_heads == config.num_heads // config.kv_heads
    for result, expected in zip(outputs(fewer, smaller), outputs(config, params), strict=True):
        np.testing.assert_allclose(result, expected, rtol=0, atol=1e-5)


@pytest.mark.long
def test_layers_that_add_nothing_can_be_removed() -> None:
    """Of six layers 0, 2 and 4 are global; without 1 and 2 the pattern is the same."""
    config = dataclasses.replace(PRE, num_layers=6)
    params = jax.device_get(random_params(config, HEADS))
    zeros = {}
    for path, leaf in flatten_tree(params).items():
        if path.endswith(("output/kernel", "output/bias")):
            zeros[path] = np.array(leaf)
            zeros[path][[1, 2]] = 0.0
    params = replace_leaves(params, zeros)
    smaller, fewer = shrink(params, HEADS, config, layers=(0, 3, 4, 5))
    for result, expected in zip(outputs(fewer, smaller), outputs(config, params), strict=True):
        np.testing.assert_allclose(result, expected, rtol=0, atol=1e-5)


LAST = {"pre": "/output/", "sandwich": "/output_norm/", "normformer": "attention/output_norm/|feed_forward/output/"}


@pytest.mark.parametrize("placement", LAST)
@pytest.mark.parametrize("centered", [False, True])
def test_other_layers_add_what_they_did_where_the_number_of_layers_divides_it(placement: str, centered: bool) -> None:
    config = dataclasses.replace(POST, norm_placement=placement, norm_zero_centered=centered, residual_depth=5)
    params = jax.device_get(random_params(config, HEADS))
    leaves, changed = flatten_tree(params), {}
    for path in (path for path in leaves if re.search(LAST[placement], path)):
        changed[path] = np.array(leaves[path])
        changed[path][1] = -1.0 if centered and path.endswith("/scale") else 0.0
    params = replace_leaves(params, changed)
    smaller, fewer = shrink(params, HEADS, config, layers=(0, 2))
    for result, expected in zip(outputs(fewer, smaller), outputs(config, params), strict=True):
        np.testing.assert_allclose(result, expected, rtol=0, atol=1e-5)
    if placement == "pre":
        grown = grow(smaller, HEADS, fewer, dataclasses.replace(fewer, num_layers=4), "identity")
        for result, expected in zip(
            outputs(dataclasses.replace(fewer, num_layers=4), grown), outputs(config, params), strict=True
        ):
            np.testing.assert_allclose(result, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("count", [1, 2, 4, 7])
def test_the_chosen_layers_are_the_best_that_fit_the_pattern(count: int) -> None:
    config = dataclasses.replace(PRE, num_layers=8, global_attn_every_n_layers=3)
    influence = np.random.default_rng(count).random(8)
    allowed = []
    for layers in itertools.combinations(range(8), count):
        kinds = [(layer % 3 == 0, layer == 0) for layer in layers]
        if kinds == [(position % 3 == 0, position == 0) for position in range(count)]:
            allowed.append(layers)
    if not allowed:
        with pytest.raises(UserError, match=f"no {count} layers of 8"):
            choose_layers(config, influence, count)
        return
    best = max(allowed, key=lambda layers: sum(influence[layer] for layer in layers))
    assert choose_layers(config, influence, count) == best
    require_layers(config, best)


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ((0, 3), "layers 0, 3 are not some of the model's, 0 to 2"),
        ((1, 0), "each once and in order"),
        ((), "not some of the model's"),
        ((1, 2), "layer 1 cannot be number 0 of 2: it is local and would have to be global, the first"),
    ],
)
def test_layers_that_are_not_there_or_do_not_fit_are_refused(layers: tuple[int, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        require_layers(PRE, layers)


@pytest.mark.long
def test_the_influence_of_a_layer_is_the_angle_between_its_input_and_its_output() -> None:
    params, text = random_params(POST, HEADS), [batch(0), batch(1)]
    expected = np.zeros(3)
    for each in text:
        inputs = {name: jnp.asarray(value) for name, value in each.items()}
        hidden = np.asarray(bind(POST, HEADS, params).encode(**inputs, collect=("hidden_states",)).hidden_states)
        for layer, row, position in itertools.product(range(3), *map(range, each["input_ids"].shape)):
            if each["segment_ids"][row, position]:
                one, other = hidden[layer, row, position], hidden[layer + 1, row, position]
                expected[layer] += 1 - one @ other / np.linalg.norm(one) / np.linalg.norm(other)
    expected /= sum(each["segment_ids"].sum() for each in text)
    np.testing.assert_allclose(layer_influence(PretrainedModel(POST, params, HEADS), text), expected, atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("name", cases("post"))
def test_the_importance_of_a_unit_is_how_far_the_states_move_to_first_order(name: str) -> None:
    """The mean over 200 directions (chi-square: within a few times sqrt(2 / 200)) and finite differences."""
    config, text = CONFIGS[name], batch(2, rows=2, length=6)
    params = jax.device_get(random_params(config, HEADS))
    model = PretrainedModel(config, jax.tree.map(jnp.asarray, params), HEADS)
    scores = importance(model, [text] * 200, seed=3)
    before, is_text = states(config, params, text), text["segment_ids"] > 0
    for field, part in (("intermediate_size", "feed_forward"), ("num_heads", "attention")):
        (path,) = (path for path in flatten_tree(params) if path.endswith(f"layers/{part}/output/kernel"))
        kernel = flatten_tree(params)[path]
        mean = scores[field] / 200
        unit = kernel.shape[-2] // mean.shape[-1]
        for index in [(*(0,) * (mean.ndim - 1), 1), (*(size - 1 for size in mean.shape[:-1]), 2)]:
            scaled = np.array(kernel)
            scaled[(*index[:-1], slice(index[-1] * unit, (index[-1] + 1) * unit))] *= 1 - 1e-2
            after = states(config, replace_leaves(params, {path: scaled}), text)
            moved = ((after - before)[is_text] ** 2).sum() / 1e-4
            assert mean[index] == pytest.approx(moved, rel=0.4), (path, index)


def test_shared_tables_of_heads_are_refused() -> None:
    config = dataclasses.replace(POST, attention_position="relative_bias", position_embedding="none")
    remaining = {"num_heads": np.zeros((3, 1), np.int64)}
    with pytest.raises(UserError, match="all layers share encoder/relative_attention_bias/embedding"):
        shrink(jax.device_get(random_params(config, HEADS)), HEADS, config, remaining=remaining)


def test_units_are_chosen_by_score_and_stay_in_their_order() -> None:
    scores = np.array([[3.0, 1.0, 2.0, 2.0], [0.0, 0.0, 5.0, 1.0]])
    np.testing.assert_array_equal(choose_units(scores, 2), [[0, 2], [2, 3]])


@pytest.mark.parametrize("pattern", ["2:4", "1:2", "0.5", "0.9"])
def test_the_smallest_weights_become_zero(pattern: str) -> None:
    config = dataclasses.replace(POST, intermediate_size=8)
    params = jax.device_get(random_params(config, HEADS))
    sparse, zeros = sparsify(params, pattern)
    before, after = flatten_tree(params), flatten_tree(sparse)
    for path, leaf in before.items():
        if "/layers/" not in path or not path.endswith("kernel"):
            assert after[path] is leaf or np.array_equal(after[path], leaf)
            continue
        for matrix, result in zip(np.asarray(leaf), after[path], strict=True):
            expected = np.array(matrix)
            if ":" in pattern:
                count, group = map(int, pattern.split(":"))
                for column, start in itertools.product(range(matrix.shape[1]), range(0, len(matrix), group)):
                    part = slice(start, start + group)
                    smallest = np.argsort(np.abs(matrix[part, column]))[: group - count]
                    expected[part, column][smallest] = 0.0
            else:
                limit = np.sort(np.abs(matrix).ravel())[round(float(pattern) * matrix.size)]
                expected[np.abs(matrix) < limit] = 0.0
            np.testing.assert_array_equal(result, expected)
    assert zeros == pytest.approx({"2:4": 0.5, "1:2": 0.5}.get(pattern) or float(pattern), abs=0.01)


@pytest.mark.parametrize("pattern", ["4:4", "0:2", "1", "0", "-0.5", "nan", "half", "2:4:8", ":", ""])
def test_a_wrong_sparsity_is_refused(pattern: str) -> None:
    with pytest.raises(UserError, match="neither N:M with N below M"):
        parse_sparsity(pattern)


def test_a_matrix_that_the_pattern_does_not_divide_is_refused() -> None:
    with pytest.raises(UserError, match=r"the 10 inputs of .* are not a multiple of 4"):
        sparsify(jax.device_get(random_params(POST, HEADS)), "2:4")
