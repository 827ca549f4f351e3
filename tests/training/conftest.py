"""A masked-LM objective that compiles in seconds, its batches, and meshes over the eight virtual devices."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import jax
import numpy as np
import optax
import pytest
from jax.sharding import Mesh

from bertjax.config.distributed import MeshConfig
from bertjax.config.model import EncoderConfig
from bertjax.objectives.masking.settings import Masking
from bertjax.objectives.mlm import Mlm
from bertjax.training.sharding import make_mesh, put_batch, state_shardings
from bertjax.training.state import TrainState, new_state, purpose_key
from bertjax.training.step import abstract_state, compile_train_step
from bertjax.types import Params, Vocabulary

QUICK = {"xla_backend_optimization_level": 0}  # compilation dominates
jit = functools.partial(jax.jit, compiler_options=QUICK)
BATCH_SIZE, SEQ_LEN = 16, 24


@pytest.fixture(scope="session")
def tiny_model() -> EncoderConfig:
    """Two layers of 32 without dropout, sizes that every axis of eight devices divides."""
    return EncoderConfig(
        vocab_size=60,
        padded_vocab_size=64,
        hidden_size=32,
        num_layers=2,
        num_heads=4,
        intermediate_size=64,
        max_position_embeddings=SEQ_LEN,
        hidden_dropout=0.0,
        attention_dropout=0.0,
    )


@pytest.fixture(scope="session")
def vocabulary() -> Vocabulary:
    return Vocabulary(60, 64, 0, 1, 2, 3, 4, (0, 1, 2, 3, 4), np.ones(60, bool), np.arange(60))


@pytest.fixture(scope="session")
def objective(tiny_model: EncoderConfig, vocabulary: Vocabulary) -> Mlm:
    return Mlm(Masking(mask_rate=0.3, max_predictions=8), example_format="nsp_pairs").build(
        {"model": tiny_model}, vocabulary
    )


@pytest.fixture(scope="session")
def tiny_params(objective: Mlm) -> Params:
    """Shapes only."""
    return jax.eval_shape(objective.init, jax.random.key(0))


@pytest.fixture(scope="session")
def batch_of() -> Callable[[int], dict[str, np.ndarray]]:
    """`batch_of(cursor)`: 16 rows of one pair each, from 3 to 24 tokens long, so that their numbers of masks differ."""

    def build(cursor: int) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(cursor)
        lengths = rng.permutation(np.linspace(3, SEQ_LEN, BATCH_SIZE).astype(int))[:, None]
        positions = np.arange(SEQ_LEN)[None]
        real = positions < lengths
        ids = rng.integers(5, 60, real.shape)
        ids = np.where(positions == 0, 2, np.where((positions == lengths - 1) | (positions == lengths // 2), 3, ids))
        one = np.ones((BATCH_SIZE, 1))
        return {
            "input_ids": np.where(real, ids, 0).astype(np.int32),
            "segment_ids": real.astype(np.int32),
            "position_ids": np.where(real, positions, 0).astype(np.int32),
            "token_type_ids": (real & (positions > lengths // 2)).astype(np.int32),
            "example_positions": (0 * one).astype(np.int32),
            "example_weights": one.astype(np.float32),
            "example_ids": (cursor * BATCH_SIZE + np.arange(BATCH_SIZE)[:, None]).astype(np.uint32),
            "example_epochs": (0 * one).astype(np.uint32),
            "example_draws": (0 * one).astype(np.uint32),
            "pair_labels": rng.integers(0, 2, (BATCH_SIZE, 1)).astype(np.int32),
        }

    return build


@pytest.fixture(scope="session")
def mesh_of() -> Callable[..., Mesh]:
    """`mesh_of(2, 2, 2)`: data, fsdp, tensor."""
    return functools.cache(lambda data=1, fsdp=1, tensor=1: make_mesh(MeshConfig(data, fsdp, tensor)))


@pytest.fixture(scope="session")
def fresh_params(objective: Mlm) -> Params:
    """Returns the parameters of seed 0, on the host."""
    return jax.device_get(jit(objective.init)(purpose_key(0, "init")))


@pytest.fixture(scope="session")
def start_on(fresh_params: Params) -> Callable[[Mesh, optax.GradientTransformation], TrainState]:
    """Returns a fresh state laid out on a mesh; to be called under `jax.set_mesh`."""

    def start(mesh: Mesh, optimizer: optax.GradientTransformation) -> TrainState:
        state = jax.device_get(new_state(fresh_params, {}, optimizer))
        return jax.device_put(state, state_shardings(state, mesh), may_alias=False)  # the step donates the buffers

    return start


@pytest.fixture(scope="session")
def run_steps(objective: Mlm, batch_of: Callable, start_on: Callable) -> Callable:
    """`run_steps(mesh, optimizer, steps=4, microbatches=1, unroll=1)` -> final state, losses, the step.

    Compiled ahead of time without LLVM's optimizations (half the time), unless `plain`; such a step refuses a state
    with another layout than before.
    """

    def run(
        mesh: Mesh,
        optimizer: optax.GradientTransformation,
        steps: int = 1,
        microbatches: int = 1,
        unroll: int = 1,
        plain: bool = False,
    ) -> tuple[TrainState, list[float], Callable]:
        model = dataclasses.replace(objective.model, unroll=unroll)
        local = objective.build({"model": model}, objective.vocabulary)
        with jax.set_mesh(mesh):
            state, batches = start_on(mesh, optimizer), [put_batch(batch_of(cursor), mesh) for cursor in range(steps)]
            step = compile_train_step(mesh, local, optimizer, microbatches=microbatches, seed=0)
            if not plain:
                step = step.compile(state, {}, batches[0], QUICK)
            losses = []
            for batch in batches:
                state, metrics = step(state, {}, batch)
                losses.append(float(metrics["loss"]))
        return state, losses, step

    return run


@pytest.fixture(scope="session")
def abstract(objective: Mlm) -> TrainState:
    """Returns the train state under plain Adam, shapes only."""
    return abstract_state(objective, optax.adam(1e-3))
