"""Muon on stacked kernels against the published one on every layer's matrix; all other parameters by Adam."""

from __future__ import annotations

from collections.abc import Callable

import jax
import numpy as np
import optax
import pytest
from descent import SCHEDULE, Flat, apart, assert_same, gradients, jit, nested, start, trained

from bertjax.errors import UserError
from bertjax.io.tree_paths import flatten_tree
from bertjax.training.optimizer import Optimizer
from bertjax.types import Params


def reference(config: Optimizer, consistent_rms: float | None = 0.2, beta: float = 0.95) -> Flat:
    """Applies the published momentum and optax's Muon to a tree of separate matrices, and its AdamW to the rest."""
    schedule, params = SCHEDULE.rate, jax.tree.map(np.float32, apart(start()))
    decayed = {path: not {"bias", "scale"} & set(path.split("/")) for path in params}
    adam = optax.adamw(schedule, config.b1, config.b2, config.eps, weight_decay=config.weight_decay, mask=_of(decayed))
    decay = {"weight_decay": config.weight_decay, "consistent_rms": consistent_rms}
    orthogonal = optax.contrib.muon(schedule, beta=0.0, nesterov=False, **decay)
    muon = optax.chain(optax.trace(beta, nesterov=True), orthogonal)  # mu M + G, then G + mu M
    optimizer = optax.partition(
        {"muon": muon, "adam": adam}, {path: "muon" if "layers/kernel" in path else "adam" for path in params}
    )
    state, update = jit(optimizer.init)(params), jit(optimizer.update)
    for grads in gradients():
        updates, state = update(jax.tree.map(np.float32, apart(grads)), state, params)
        params = optax.apply_updates(params, updates)
    return params


def _of(decayed: dict[str, bool]) -> Callable[[Params], Params]:
    """`optax.partition` passes a tree with gaps to its parts."""
    return lambda tree: {path: decayed[path] if hasattr(leaf, "shape") else leaf for path, leaf in tree.items()}


def test_every_matrix_of_a_stack_is_orthogonalized_by_itself() -> None:
    config = Optimizer(name="muon", bias_correction=True, weight_decay=0.3, clip_norm=0.0)
    assert_same(trained(config), reference(config))


def test_the_first_scaling_and_another_momentum() -> None:
    config = Optimizer(name="muon", bias_correction=True, clip_norm=0.0, muon_rms=0.0, muon_momentum=0.8)
    assert_same(trained(config), reference(config, consistent_rms=None, beta=0.8))


def test_embeddings_heads_norms_and_biases_are_left_to_adam(tiny_params: Params) -> None:
    optimizer = Optimizer(name="muon").make(lambda step: 1.0, tiny_params)
    muon, adam = jax.eval_shape(optimizer.init, tiny_params)[1]
    orthogonal = set(flatten_tree(muon.inner_state[0].mu))
    others = set(flatten_tree(adam.inner_state.mu))
    assert orthogonal | others == set(flatten_tree(tiny_params)) and not orthogonal & others
    indices = ("attention/query", "attention/key", "attention/value", "attention/output")
    indices += ("feed_forward/intermediate", "feed_forward/output")
    assert orthogonal == {f"encoder/layers/{index}/kernel" for index in indices}


@pytest.mark.parametrize(
    ("include", "words"),
    [
        ((r"encoder/layers/0/.*kernel",), "matches some layers of encoder/layers/attention/key/kernel only"),
        ((r".*bias",), "which is not a matrix"),
        ((r"nowhere/.*",), "matches no parameter"),
    ],
)
def test_what_muon_cannot_take_is_refused(include: tuple[str, ...], words: str, tiny_params: Params) -> None:
    with pytest.raises(UserError, match=words):
        Optimizer(name="muon", muon_include=include).make(lambda step: 1.0, tiny_params)


def test_muon_updates_have_the_size_of_adams() -> None:
    """Root mean square 0.2 sqrt(max(in, out)) / sqrt(max(in, out)) of an orthogonal matrix, within Newton-Schulz."""
    rng = np.random.default_rng(0)
    params = nested({"layers/kernel": rng.normal(size=(2, 32, 64))})
    config = Optimizer(name="muon", weight_decay=0.0, clip_norm=0.0)
    optimizer = config.make(lambda step: 1.0, params)
    grads = nested({"layers/kernel": rng.normal(size=(2, 32, 64)) * [[[1.0]], [[1e-3]]]})
    updates, _ = jit(optimizer.update)(grads, optimizer.init(params), params)
    rms = np.sqrt((np.asarray(updates["layers"]["kernel"]) ** 2).mean((1, 2)))
    np.testing.assert_allclose(rms, 0.2, rtol=0.35)


@pytest.mark.parametrize(
    "shape", [(2, 2, 2), *(pytest.param(shape, marks=pytest.mark.weekly) for shape in ((8, 1, 1), (1, 8, 1)))], ids=str
)
def test_sharded_matrices_are_orthogonalized_whole(
    run_steps: Callable, mesh_of: Callable, tiny_params: Params, shape: tuple[int, ...]
) -> None:
    optimizer = Optimizer(name="muon", bias_correction=True).make(lambda step: 1e-2, tiny_params)
    expected, alone, _ = run_steps(mesh_of(1), optimizer, steps=3)
    state, losses, _ = run_steps(mesh_of(*shape), optimizer, steps=3)
    np.testing.assert_allclose(losses, alone, rtol=1e-5)
    for path, array in flatten_tree(expected.params).items():
        np.testing.assert_allclose(flatten_tree(state.params)[path], array, atol=5e-4, err_msg=path)
