"""Every family on eight devices: loss and gradients of a classifier equal those on one device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cells import MODELS, common, with_decoder

from bertjax.config.distributed import MeshConfig
from bertjax.config.extensions import FAMILIES
from bertjax.config.model import EncoderConfig, encoder_config
from bertjax.data.tokenizer_io import load_tokenizer
from bertjax.hf.forward import check_inputs, run_model
from bertjax.io.tree_paths import flatten_tree, map_with_path
from bertjax.models.model import abstract_params
from bertjax.training.sharding import make_mesh, put_batch, state_shardings

HEAD = "sequence_classification"
QUICK = {"xla_backend_optimization_level": 0}  # compilation dominates
ORDINARY = ("squeezebert", "bart", "mpnet")  # groups of channels, a decoder, a table of relative positions


def model_of(family: str) -> tuple[EncoderConfig, tuple[str, ...]]:
    cfg = common(family)
    cfg.model.update({"layer_norm_eps": 1e-3} | with_decoder(family, HEAD))
    config = encoder_config(cfg, load_tokenizer(cfg.data.tokenizer).vocabulary())
    return config, ("pooler", HEAD) if config.classifier_dense == "pooler" else (HEAD,)


def draw(shapes: Any) -> Any:
    rng = np.random.default_rng(0)

    def each(path: str, leaf: jax.ShapeDtypeStruct) -> np.ndarray:
        return rng.normal(float(path.endswith("scale")), 0.2, leaf.shape).astype(leaf.dtype)

    return map_with_path(each, shapes)


def check(family: str) -> None:
    config, heads = model_of(family)
    params = draw(abstract_params(config, heads))
    ids = np.random.default_rng(1).integers(5, min(40, config.vocab_size), (8, 16))
    mask = np.arange(16) < np.arange(9, 17)[:, None]
    if config.eos_token_id is not None:
        ids[:, -1] = config.eos_token_id
    inputs = {name: np.asarray(array) for name, array in check_inputs(config, heads, ids, mask).items()}

    def loss(params: Any, inputs: Any) -> jax.Array:
        outputs = run_model(config, heads, params, inputs)
        states = jnp.where(inputs["segment_ids"][..., None] > 0, outputs.last_hidden_state, 0.0)
        return (states**2).mean() + (outputs.sequence_logits**2).mean()

    results = []
    for shape in ((1, 1, 1), (2, 2, 2)):
        mesh = make_mesh(MeshConfig(*shape))
        with jax.set_mesh(mesh):
            placed = jax.device_put(params, state_shardings(params, mesh))
            step: Callable = jax.jit(jax.value_and_grad(loss), compiler_options=QUICK)
            results.append(jax.device_get(step(placed, put_batch(inputs, mesh))))
    (value, gradients), (split_value, split_gradients) = results
    assert np.isfinite(value) and value == pytest.approx(split_value, rel=1e-5)
    others = flatten_tree(split_gradients)
    for path, gradient in flatten_tree(gradients).items():
        np.testing.assert_allclose(others[path], gradient, atol=2e-5 * max(1.0, np.abs(gradient).max()), err_msg=path)
    assert sum(bool(np.any(each)) for each in others.values()) > len(others) / 2


@pytest.mark.parametrize("family", [pytest.param(each, marks=pytest.mark.matrix) for each in MODELS])
def test_every_family_on_a_mesh(family: str) -> None:
    check(family)


@pytest.mark.parametrize("family", ORDINARY)
def test_groups_and_a_decoder_on_a_mesh(family: str) -> None:
    assert family in FAMILIES.builtin
    check(family)
