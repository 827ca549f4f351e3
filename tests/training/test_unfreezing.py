"""Gradual unfreezing: which layers train at which step, and that frozen layers have no effect."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from descent import jit

from bertjax.checkpoint.manager import Checkpoints
from bertjax.checkpoint.settings import Checkpointing
from bertjax.errors import UserError
from bertjax.io.tree_paths import flatten_tree
from bertjax.training.optimizer import Optimizer, ema_params
from bertjax.training.param_rules import match_rule
from bertjax.training.state import COUNTER_DEFAULTS, new_state
from bertjax.types import Params

LAYERS = 3
STORED = Path(__file__).with_name("unfreezing_e881f67.state")
STORED_CONFIG = Optimizer(
    learning_rate=0.1, bias_correction=True, unfreeze=(r"encoder/embeddings/.*=6", r"encoder/layers/1/.*=2")
)


def params_of(seed: int = 0) -> Params:
    draw = np.random.default_rng(seed).normal
    return {
        "encoder": {
            "embeddings": {"word_embeddings": {"embedding": jnp.asarray(draw(size=(5, 4)), jnp.float32)}},
            "layers": {"query": {"kernel": jnp.asarray(draw(size=(LAYERS, 4, 4)), jnp.float32)}},
        },
        "sequence_head": {"output": {"kernel": jnp.asarray(draw(size=(4, 2)), jnp.float32)}},
    }


def moved(before: Params, after: Params) -> list[str]:
    """Returns which of embeddings, layers from the first on, and head have changed."""
    names = []
    for path, leaf in flatten_tree(jax.tree.map(lambda old, new: np.asarray(old != new), before, after)).items():
        if "layers" in path:
            names += [f"layer {layer}" for layer in range(LAYERS) if leaf[layer].any()]
        elif leaf.any():
            names.append("embeddings" if "embeddings" in path else "head")
    return names


def course(updates: int, grads: Any = None, **settings: Any) -> tuple[list[list[str]], Params, Any]:
    """Returns what moved at every step, the parameters after the last, and the optimizer's state."""
    params = params_of()
    config = Optimizer(learning_rate=0.1, **settings)
    optimizer = config.make(lambda step: 0.1, params)
    step, state, result = jit(optimizer.update), optimizer.init(params), []
    for number in range(updates):
        gradients = params_of(number + 1) if grads is None else grads(number)
        change, state = step(gradients, state, params)
        after = jax.tree.map(jnp.add, params, change)
        result.append(moved(params, after))
        params = after
    return result, params, state


@pytest.mark.parametrize("name", ["adamw", "lamb", "stable_adamw"])
def test_one_group_more_every_two_updates(name: str) -> None:
    """ULMFiT's order: head, last layer, ..., first layer, embeddings; decay does not move frozen layers."""
    result, _, _ = course(10, name=name, unfreeze_every=2, weight_decay=0.1)
    groups = ["head", *(f"layer {layer}" for layer in reversed(range(LAYERS))), "embeddings"]
    assert [sorted(each) for each in result] == [sorted(groups[: 1 + number // 2]) for number in range(10)]


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, "float32") for name in ("adamw", "lamb", "stable_adamw", "muon")), ("adamw", "bfloat16")],
)
def test_thawed_at_step_40_it_moves_as_in_a_run_that_begins_there(name: str, dtype: str) -> None:
    """Bias correction begins with the first step of a parameter, or of a layer of a stack, as in torch."""
    settings: Any = {"name": name, "bias_correction": True, "clip_norm": 0.0, "moments_dtype": dtype}
    _, begun, _ = course(4, lambda number: params_of(number + 41), **settings)
    _, thawed, state = course(44, unfreeze=(r"encoder/(embeddings|layers/1)/.*=40",), **settings)
    atol = 1e-6 if dtype == "float32" else 0.02  # other random bits round the moments
    for before, after in zip(late(begun), late(thawed), strict=True):
        np.testing.assert_allclose(after, before, rtol=0, atol=atol)
    ranks = [[leaf.ndim for leaf in jax.tree.leaves(tree)] for tree in (state[0].frozen_steps, begun)]
    assert ranks[0] == ranks[1]  # sharding rules name axes


def late(params: Params) -> tuple[Any, Any]:
    """Returns the embeddings, and the layer in the middle."""
    encoder = params["encoder"]
    return encoder["embeddings"]["word_embeddings"]["embedding"], encoder["layers"]["query"]["kernel"][1]


def test_a_checkpoint_with_one_count_for_all_parameters_resumes(tmp_path: Path) -> None:
    """Step 4 of commit e881f67: what it trained goes on with the count of the run, what it froze begins with 1."""
    shutil.unpack_archive(STORED, tmp_path, "xztar", filter="data")
    params, stored = params_of(), np.load(tmp_path / "next.npy")
    optimizer = STORED_CONFIG.make(lambda step: 0.1, params)
    checkpoints = Checkpoints(tmp_path / "checkpoints", Checkpointing(keep=1), read_only=True)
    with contextlib.closing(checkpoints):
        restored = checkpoints.restore(jax.eval_shape(lambda: new_state(params, {}, optimizer)), 4, COUNTER_DEFAULTS)
    assert restored is not None
    step, (params, state, *_) = jit(optimizer.update), restored.state
    for number in range(4, 8):
        change, state = step(params_of(number + 1), state, params)
        params = jax.tree.map(jnp.add, params, change)
        if number == 4:
            np.testing.assert_allclose(params["encoder"]["layers"]["query"]["kernel"], stored, rtol=1e-6)
    assert [each.tolist() for each in late(state[0].frozen_steps)] == [[[6]], [[0]]]


def test_by_name_before_by_depth() -> None:
    named = (r"encoder/layers/1/.*=1", r"encoder/embeddings/.*=1000000")
    result, _, _ = course(8, unfreeze_every=2, unfreeze=named)
    assert result[1] == ["layer 1", "head"] and result[7] == ["layer 0", "layer 1", "layer 2", "head"]
    alone, _, _ = course(2, unfreeze=(r"encoder/.*=1",))
    assert alone == [["head"], ["embeddings", "layer 0", "layer 1", "layer 2", "head"]]


def test_what_waits_counts_neither_for_clipping_nor_in_moments() -> None:
    """Very large gradients of frozen layers do not affect trained ones, then or later."""

    def grads(number: int, scale: float) -> Params:
        gradients = params_of(number + 1)
        if number < 2:
            gradients["encoder"] = jax.tree.map(lambda leaf: leaf * scale, gradients["encoder"])
        return gradients

    settings: Any = {"unfreeze": (r"encoder/.*=2",), "clip_norm": 1.0}
    _, plain, state = course(4, lambda number: grads(number, 1.0), **settings)
    _, huge, _ = course(4, lambda number: grads(number, 1e6), **settings)
    jax.tree.map(np.testing.assert_array_equal, plain, huge)
    assert int(state[0].step) == 4


def test_once_open_the_same_as_without() -> None:
    """Everything unfreezes at step 0: the same numbers as the plain chain."""
    _, plain, _ = course(3)
    _, opened, _ = course(3, unfreeze=(r".*=0",))
    jax.tree.map(np.testing.assert_array_equal, plain, opened)


def test_the_average_follows_the_weights_that_there_are() -> None:
    """Suppressed decay does not affect the averaged weights."""
    _, params, state = course(1, unfreeze_every=5, ema_decay=0.5, weight_decay=0.5)
    average = ema_params(state)
    assert average is not None
    np.testing.assert_array_equal(
        average["encoder"]["layers"]["query"]["kernel"], params_of()["encoder"]["layers"]["query"]["kernel"]
    )
    assert moved(params_of(), params) == ["head"]


def test_rates_rise_by_equal_factors_to_the_head() -> None:
    """fastai's slice(1e-5, 1e-1) over embeddings, three layers and head."""
    rules = Optimizer(learning_rate=1e-1, bottom_lr=1e-5).lr_rules(params_of())
    paths = ["encoder/embeddings/word_embeddings/embedding", *(f"encoder/layers/{i}/query/kernel" for i in range(3))]
    result = [1e-1 * match_rule(rules, path, "rates") for path in [*paths, "sequence_head/output/kernel"]]
    np.testing.assert_allclose(result, [1e-5, 1e-4, 1e-3, 1e-2, 1e-1], rtol=1e-6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"unfreeze_every": 0}, "optimizer.unfreeze_every must be at least 1, not 0"),
        ({"bottom_lr": 2.0}, "optimizer.bottom_lr must be at most optimizer.learning_rate=0.0001, not 2.0"),
        ({"bottom_lr": 0.1, "layerwise_lr_decay": 0.5}, "exclude each other"),
    ],
)
def test_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Optimizer(**settings)


def test_a_broken_rule_names_its_key() -> None:
    with pytest.raises(UserError, match=r"optimizer\.unfreeze: 'encoder' is not REGEX=STEP"):
        Optimizer(unfreeze=("encoder",))
