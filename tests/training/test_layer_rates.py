"""Rates that decrease from layer to layer, as rules of the table of rates."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from descent import jit

from bertjax.errors import UserError
from bertjax.io.tree_paths import flatten_tree
from bertjax.training.optimizer import Optimizer
from bertjax.training.param_rules import match_rule, resolve_multipliers
from bertjax.types import Params


def tree(shapes: dict[str, tuple[int, ...]]) -> Params:
    """Nested dicts of ones."""
    root: Params = {}
    for path, shape in shapes.items():
        *parents, name = path.split("/")
        node = root
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = np.ones(shape, np.float32)
    return root


def factors(shapes: dict[str, tuple[int, ...]], **settings: object) -> dict[str, list[float]]:
    params = tree(shapes)
    rules = Optimizer(**settings).lr_rules(params)
    result = flatten_tree(resolve_multipliers(rules, params, "rates")).items()
    return {path: pytest.approx(np.ravel(numbers).tolist(), rel=1e-6) for path, numbers in result}


BERT = {
    "encoder/embeddings/norm/scale": (4,),
    "encoder/embeddings/word_embeddings/embedding": (9, 4),
    "encoder/layers/attention/query/kernel": (12, 4, 4),
    "encoder/layers/feed_forward/norm/bias": (12, 4),
    "pooler/dense/kernel": (4, 4),
}


def test_finberts_rates() -> None:
    """finbert/finbert.py: layer i gets lr / 1.2^(12 - i), the embeddings lr / 1.2^13, pooler and classifier lr."""
    result = factors(BERT, layerwise_lr_decay=1 / 1.2)
    expected = [1.2 ** -(12 - layer) for layer in range(12)]
    assert result["encoder/layers/attention/query/kernel"] == expected
    assert result["encoder/layers/feed_forward/norm/bias"] == expected
    assert result["encoder/embeddings/word_embeddings/embedding"] == [1.2**-13]
    assert result["encoder/embeddings/norm/scale"] == [1.2**-13]
    assert result["pooler/dense/kernel"] == [1.0]


def test_electras_top_layer_has_the_square() -> None:
    """electra#51: lr d^(L + 2 - depth), embeddings at depth 0, layer i at depth i + 1."""
    result = factors(BERT, layerwise_lr_decay=0.8, layerwise_lr_decay_top=2)
    assert result["encoder/layers/attention/query/kernel"] == [0.8 ** (14 - (i + 1)) for i in range(12)]
    assert result["encoder/embeddings/word_embeddings/embedding"] == [0.8**14]


def test_ulmfit_leaves_the_last_layer_alone() -> None:
    result = factors(BERT, layerwise_lr_decay=1 / 2.6, layerwise_lr_decay_top=0)
    assert result["encoder/layers/attention/query/kernel"] == [2.6 ** -(11 - layer) for layer in range(12)]


def test_stacks_without_the_first_layer_groups_and_decoders() -> None:
    result = factors(
        {
            "encoder/attention_norms/layers/scale": (3, 4),
            "encoder/layers/attention/key/kernel": (4, 4, 4),
            "encoder/norm/scale": (4,),
            "encoder/relative/embedding": (8, 4),
            "encoder/convolution/kernel": (3, 4, 4),
            "generator/encoder/layers/attention/key/kernel": (2, 4, 4),
            "generator/encoder/embeddings/word_embeddings/embedding": (9, 4),
            "shared/groups/layers/kernel": (2, 2, 4),
            "embeddings/embedding": (9, 4),
        },
        layerwise_lr_decay=0.5,
    )
    assert result["encoder/layers/attention/key/kernel"] == [0.0625, 0.125, 0.25, 0.5]
    assert result["encoder/attention_norms/layers/scale"] == [0.125, 0.25, 0.5]
    assert result["encoder/norm/scale"] == [1.0]
    assert result["encoder/relative/embedding"] == [0.03125]
    assert result["encoder/convolution/kernel"] == [0.0625]
    assert result["generator/encoder/layers/attention/key/kernel"] == [0.25, 0.5]
    assert result["generator/encoder/embeddings/word_embeddings/embedding"] == [0.125]
    assert result["shared/groups/layers/kernel"] == [0.0625, 0.125, 0.25, 0.5]
    assert result["embeddings/embedding"] == [0.03125]


def test_named_rates_come_first() -> None:
    result = factors(BERT, layerwise_lr_decay=0.5, lr_mults=(r"encoder/layers/11/.*=3", r"pooler/.*=0"))
    assert result["encoder/layers/attention/query/kernel"] == [*(0.5 ** (12 - layer) for layer in range(11)), 3.0]
    assert result["pooler/dense/kernel"] == [0.0]


def test_without_decay_there_is_one_rule() -> None:
    assert Optimizer().lr_rules(tree(BERT)) == [(".*", 1.0)]


@pytest.mark.parametrize("name", ["adamw", "lamb", "stable_adamw", "muon"])
def test_every_optimizer_heeds_them(name: str) -> None:
    """The step of layer i is scaled by `rates` for any direction."""
    params = tree({"encoder/layers/query/kernel": (3, 4, 4)})
    grads = jax.tree.map(lambda leaf: np.full_like(leaf, 0.1), params)

    def update(**settings: object) -> np.ndarray:
        optimizer = Optimizer(name=name, **settings).make(lambda step: 1.0, params)
        updates, _ = jit(optimizer.update)(grads, optimizer.init(params), params)
        return np.asarray(updates["encoder"]["layers"]["query"]["kernel"])

    expected = update() * np.reshape([0.125, 0.25, 0.5], (3, 1, 1))
    np.testing.assert_allclose(update(layerwise_lr_decay=0.5), expected, rtol=1e-5)


def test_a_decay_is_a_share() -> None:
    with pytest.raises(UserError, match=r"layerwise_lr_decay must lie in \(0, 1\)"):
        Optimizer(layerwise_lr_decay=1.5)
    assert match_rule(Optimizer(layerwise_lr_decay=0.5).lr_rules(tree(BERT)), "mlm_head/bias", "rates") == 1.0
