"""Parameters addressed by name: every one of them, layer by layer."""

from __future__ import annotations

import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.io.tree_paths import flatten_tree
from bertjax.training.optimizer import Optimizer
from bertjax.training.param_rules import describe_rules, match_rule, num_stacked, resolve_multipliers, virtual_paths
from bertjax.types import Params

KERNEL = "encoder/layers/attention/query/kernel"


def test_a_stacked_leaf_stands_for_its_layers() -> None:
    assert num_stacked(KERNEL) and not num_stacked("encoder/players/kernel")
    assert virtual_paths("pooler/dense/bias", (7,)) == ["pooler/dense/bias"]
    assert virtual_paths(KERNEL, (2, 3, 3)) == [
        "encoder/layers/0/attention/query/kernel",
        "encoder/layers/1/attention/query/kernel",
    ]
    assert virtual_paths("layers/scale", (1,)) == ["layers/0/scale"]
    assert virtual_paths("a/players/layers/scale", (1,)) == ["a/players/layers/0/scale"]


def test_the_first_rule_that_matches_the_whole_path_wins() -> None:
    rules = [("a/b", 1.0), ("a/.*", 2.0), (".*", 3.0)]
    assert [match_rule(rules, path, "t") for path in ("a/b", "a/b/c", "xa/b")] == [1.0, 2.0, 3.0]


def test_a_parameter_that_no_rule_matches_is_an_error() -> None:
    with pytest.raises(UserError, match=r"no rule of the freeze table matches parameter b; add a last rule '\.\*'"):
        resolve_multipliers([("a", 1.0)], {"a": np.zeros(2), "b": np.zeros(3)}, "freeze")
    with pytest.raises(UserError, match="no rule of the freeze table matches parameter b"):
        describe_rules([("a", 1.0)], {"a": np.zeros(2), "b": np.zeros(3)}, "freeze")


def test_a_rule_for_one_layer_gives_a_vector_along_the_layers(tiny_params: Params) -> None:
    rules = [(r"encoder/layers/1/.*", 0.5), (r"encoder/layers/.*", 0.25), (r".*", 1.0)]
    result = flatten_tree(resolve_multipliers(rules, tiny_params, "rates"))
    assert result.keys() == flatten_tree(tiny_params).keys()
    for path, leaf in flatten_tree(tiny_params).items():
        if num_stacked(path):
            assert result[path].shape == (2, *[1] * (leaf.ndim - 1))
            assert result[path].ravel().tolist() == [0.25, 0.5]
        else:
            assert result[path].shape == () and result[path] == 1.0
        assert result[path].dtype == np.float32


def test_layers_that_agree_share_a_scalar(tiny_params: Params) -> None:
    rules = [(r".*/kernel", 2.0), (r".*", 1.0)]
    result = flatten_tree(resolve_multipliers(rules, tiny_params, "rates"))
    assert result[KERNEL].shape == () and result[KERNEL] == 2.0


def test_no_bias_and_no_norm_decays_and_everything_else_does(tiny_params: Params) -> None:
    result = flatten_tree(resolve_multipliers(Optimizer().decay_rules, tiny_params, "weight decay"))
    for path, factor in result.items():
        name = path.split("/")[-1]
        assert name in ("kernel", "embedding", "bias", "scale")
        assert factor == (0.0 if name in ("bias", "scale") else 1.0), path
    assert result["mlm_head/bias"] == 0.0 and result["encoder/embeddings/word_embeddings/embedding"] == 1.0


def test_a_description_counts_every_parameter_once(tiny_params: Params) -> None:
    rules = [(r"encoder/layers/0/.*", 0.5), (r"nothing", 2.0), (r".*", 1.0)]
    lines = describe_rules(rules, tiny_params, "rates")
    layers = sum(leaf.size for path, leaf in flatten_tree(tiny_params).items() if num_stacked(path))
    total = sum(leaf.size for _, leaf in flatten_tree(tiny_params).items())
    assert lines == [
        f"rates: encoder/layers/0/.* -> 0.5: {layers // 2:,} parameters",
        "rates: nothing -> 2.0: 0 parameters (matches nothing)",
        f"rates: .* -> 1.0: {total - layers // 2:,} parameters",
    ]
