"""A small objective that can be poisoned batch by batch, and runs of the training loop with real checkpoints."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np
import optax
from jax.sharding import Mesh
from loop_lab import loop_settings
from ml_collections import ConfigDict

from bertjax.checkpoint.manager import Checkpoints
from bertjax.checkpoint.settings import Checkpointing
from bertjax.config.phases import Phase
from bertjax.io.jsonl import JsonlLog
from bertjax.objectives.base import StepInputs
from bertjax.training.logging import Console
from bertjax.training.loop import train
from bertjax.training.optimizer import Optimizer
from bertjax.training.run_context import PhaseProgram, RunContext
from bertjax.training.sharding import put_batch
from bertjax.training.state import COUNTER_DEFAULTS, TrainState
from bertjax.training.step import compile_train_step, init_state
from bertjax.types import Params, Sum

BATCH_SIZE, WIDTH, WORDS = 4, 4, 6
KINDS = ("loss_nan", "loss_inf", "gradient", "embedding_row", "carry", "spike")
KERNEL, TABLE = "encoder/layers/{}/feed_forward/output/kernel", "encoder/embeddings/word_embeddings/embedding"
RATES = optax.linear_schedule(0.02, 0.0, 40)


@jax.custom_vjp
def with_gradient(value: jax.Array, more: jax.Array) -> jax.Array:
    """Returns `value`, and adds `more` to its gradient."""
    return value


with_gradient.defvjp(lambda value, more: (value, more), lambda more, grad: (grad + more, jnp.zeros_like(more)))


class Poisonable:
    """A regression through an embedding and two stacked kernels, with noise of the cursor and a memory of its rows.

    `poison` in the batch selects the error: 0 for none, else 1 + the index in `KINDS`.
    """

    loss_weights: dict[str, float] = {"mlm": 1.0}  # noqa: RUF012
    networks: dict[str, Any] = {}  # noqa: RUF012

    def init(self, key: jax.Array) -> Params:
        table, kernel = jax.random.normal(key, (WORDS, WIDTH)), jax.random.normal(key, (2, WIDTH, WIDTH)) / 2
        layers = {"feed_forward": {"output": {"kernel": kernel, "bias": jnp.zeros((2, WIDTH))}}}
        return {"encoder": {"embeddings": {"word_embeddings": {"embedding": table}}, "layers": layers}}

    def init_carry(self, rows: int) -> dict:
        return {"memory": jnp.zeros((rows, WIDTH))}

    def corrupt(self, batch: dict, key: jax.Array, cursor: jax.Array) -> dict:
        noise = jax.random.uniform(jax.random.fold_in(key, cursor), (len(batch["input_ids"]), WIDTH))
        return {**batch, "noise": noise}

    def counts(self, batch: dict) -> dict[str, jax.Array]:
        return {"mlm": jnp.float32(batch["noise"].shape[0])}

    def loss(self, params: Params, extra: StepInputs, batch: dict, key: jax.Array, train: bool) -> tuple[dict, dict]:
        code = batch["poison"].max()

        def if_bad(kind: str, bad: float) -> jax.Array:
            return jnp.where(code == 1 + KINDS.index(kind), bad, 0.0)

        encoder = params["encoder"]
        table = encoder["embeddings"]["word_embeddings"]["embedding"]
        one_row = jnp.zeros_like(table).at[3].set(jnp.broadcast_to(if_bad("embedding_row", jnp.inf), (WIDTH,)))
        table = with_gradient(table, one_row)
        kernel = encoder["layers"]["feed_forward"]["output"]["kernel"]
        one_layer = jnp.zeros_like(kernel).at[1, 0, 0].set(if_bad("gradient", jnp.nan))
        kernel = with_gradient(kernel, one_layer)
        hidden = table[batch["input_ids"][:, 0]] + batch["noise"] + 0.1 * extra.carry["memory"]
        for layer in range(2):
            bias = encoder["layers"]["feed_forward"]["output"]["bias"][layer]
            hidden = jnp.tanh(hidden @ kernel[layer] + bias[None])
        value = jnp.square(hidden - 0.5).sum() + if_bad("loss_nan", jnp.nan) + if_bad("loss_inf", jnp.inf)
        memory = jax.lax.stop_gradient(hidden) + if_bad("carry", jnp.nan)
        return {"mlm": Sum(value + if_bad("spike", 1e4), jnp.float32(len(hidden)))}, {"memory": memory}


class Rows:
    """Batches by cursor; `poison` names the errors in some of them."""

    sequences_per_epoch: Mapping[str, int] = {"rows": 100}

    def __init__(self, poison: Mapping[int, str]):
        self.poison = dict(poison)
        self.requests: list[int] = []

    def batch(self, cursor: int) -> dict[str, np.ndarray]:
        code = 1 + KINDS.index(self.poison[cursor]) if cursor in self.poison else 0
        ids = np.random.default_rng(cursor).integers(0, WORDS, (BATCH_SIZE, 2)).astype(np.int32)
        poison = np.where(np.arange(BATCH_SIZE)[:, None] == 1, code, 0).astype(np.int32)  # in one microbatch only
        example_ids = (cursor * BATCH_SIZE + np.arange(BATCH_SIZE)[:, None]).astype(np.uint32)
        return {"input_ids": ids, "segment_ids": np.ones_like(ids), "poison": poison, "example_ids": example_ids}

    def prefetch(self, start_cursor: int, stop_cursor: int) -> Iterator[tuple[int, dict]]:
        for cursor in range(start_cursor, stop_cursor):
            self.requests.append(cursor)
            yield cursor, self.batch(cursor)


class Crash(RuntimeError):
    """Simulates a killed process."""


class Laid(Console):
    """A console that records lines, and ends the run when a step is reached, at once or (negative) the second time."""

    def __init__(self, num_steps: int, crash_at: int | None):
        super().__init__(0, num_steps, interactive=False)
        self.crash_at, self.lines = crash_at, list[str]()
        self.reached = set[int]()

    def print(self, text: str) -> None:
        self.lines.append(text)

    def train(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def advance(self, step: int) -> None:
        if step == self.crash_at or (-step == self.crash_at and step in self.reached):
            raise Crash
        self.reached.add(step)


OBJECTIVE = Poisonable()
COMPILER_OPTIONS: dict[str, int | bool] = {"xla_backend_optimization_level": 0}
if jaxlib.__version__.startswith("0.10."):  # later ones have no other emitters, and no such option
    COMPILER_OPTIONS["xla_cpu_use_fusion_emitters"] = True


@functools.cache
def optimizer_of(**changes: Any) -> optax.GradientTransformation:
    params = jax.eval_shape(OBJECTIVE.init, jax.random.key(0))
    return Optimizer(**{"weight_decay": 0.0, **changes}).make(RATES, params)


@functools.cache
def _fresh(mesh: Mesh, **changes: Any) -> tuple[TrainState, Any]:
    """Returns the state on the host, and its layout on the mesh."""
    with jax.set_mesh(mesh):
        state = init_state(mesh, OBJECTIVE, optimizer_of(**changes), seed=0, batch_size=BATCH_SIZE)
    return jax.device_get(state), jax.tree.map(lambda leaf: leaf.sharding, state)


def fresh(mesh: Mesh, **changes: Any) -> TrainState:
    state, shardings = _fresh(mesh, **changes)
    return jax.device_put(state, shardings, may_alias=False)  # the step donates the buffers


@functools.cache
def step_of(mesh: Mesh, skip: bool, microbatches: int = 1, **changes: Any) -> Callable:
    """Returns the step compiled ahead of time, with the emitters of a run, whose programs agree bit for bit."""
    step = compile_train_step(
        mesh,
        OBJECTIVE,
        optimizer_of(**changes),
        batch_size=BATCH_SIZE,
        microbatches=microbatches,
        seed=0,
        skip_nonfinite=skip,
    )
    with jax.set_mesh(mesh):
        inputs = fresh(mesh, **changes), {}, put_batch(Rows({}).batch(0), mesh)
        return step.compile(*inputs, COMPILER_OPTIONS)


def by_hand(mesh: Mesh, cursors: list[int]) -> TrainState:
    """Returns the state after these batches alone, none of them poisoned: no loop, no policy."""
    state, rows = fresh(mesh), Rows({})
    with jax.set_mesh(mesh):
        for cursor in cursors:
            state = state._replace(cursor=jax.device_put(np.int32(cursor), state.cursor.sharding))
            state, _ = step_of(mesh, False)(state, {}, put_batch(rows.batch(cursor), mesh))
    return state


def measured(*_: Any) -> dict[str, float]:
    return {"eval/loss": 1.0, "eval/mlm_loss": 1.0}


class Lab:
    """Runs in one work directory; the same call again resumes."""

    def __init__(self, mesh: Mesh, workdir: Path, poison: Mapping[int, str] = {}):
        self.mesh, self.workdir, self.rows = mesh, workdir, Rows(poison)
        self.console = Laid(0, None)

    def run(
        self,
        num_steps: int = 12,
        checkpoint: int = 4,
        log: int = 1,
        crash_at: int | None = None,
        boundary: int = 0,
        **anomalies: Any,
    ) -> TrainState:
        config = loop_settings(num_steps, log, 0, checkpoint, **anomalies)
        checkpoints = Checkpoints(self.workdir / "checkpoints", Checkpointing(keep=3))
        abstract = self.abstract()
        restored = checkpoints.restore(abstract, absent=COUNTER_DEFAULTS)
        state = fresh(self.mesh) if restored is None else restored.state
        step_function = step_of(self.mesh, config.train.on_nonfinite == "skip")
        programs = [
            PhaseProgram(Phase(start, ConfigDict()), OBJECTIVE, step_function, title=f"from {start}")
            for start in ([0, boundary] if boundary else [0])
        ]
        self.console = Laid(num_steps, crash_at)
        writer = JsonlLog(self.workdir / "metrics.jsonl", int(state.step))
        try:
            state, _ = train(
                RunContext(
                    config=config,
                    programs=programs,
                    frozen={},
                    schedule=RATES,
                    mesh=self.mesh,
                    batches=self.rows,
                    checkpoints=checkpoints,
                    meta={},
                    writers=[writer],
                    console=self.console,
                    workdir=self.workdir,
                    peak_flops=None,
                    restored_meta=None if restored is None else restored.meta,
                ),
                state,
            )
            return jax.device_get(state)
        finally:
            writer.close()
            checkpoints.close()

    def abstract(self) -> TrainState:
        return jax.tree.map(
            lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), *_fresh(self.mesh)
        )

    def records(self) -> list[dict]:
        return [json.loads(line) for line in (self.workdir / "metrics.jsonl").read_text().splitlines()]

    def trained(self) -> list[dict]:
        """Returns the lines of training; evaluations have separate lines."""
        return [record for record in self.records() if "train/loss" in record]

    def saved(self) -> dict[int, TrainState]:
        """Returns every checkpoint on the disk."""
        checkpoints = Checkpoints(self.workdir / "checkpoints", Checkpointing(keep=3), read_only=True)
        return {
            step: jax.device_get(checkpoints.restore(self.abstract(), step).state) for step in checkpoints.all_steps()
        }


def assert_same(ours: Any, theirs: Any) -> None:
    """Asserts bit-exact equality."""
    jax.tree.map(lambda one, other: np.testing.assert_array_equal(one, other), ours, theirs)


def assert_finite(tree: Any) -> None:
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(jax.device_get(tree)))
