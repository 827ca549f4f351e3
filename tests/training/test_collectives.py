"""Communication of devices in a step, read from the compiled program and compared with the theory.

Eight virtual CPU devices, the step of a config as `bertjax compile --devices 8` builds it, in float32, so that bytes do
not depend on the fast types of this machine's processor.
"""

from __future__ import annotations

import functools
import math
from pathlib import Path

import jax
import pytest

from bertjax.config.overrides import apply_overrides, load_config
from bertjax.experiment.config import parse as check
from bertjax.io.tree_paths import flatten_tree
from bertjax.tools.collectives import Collective
from bertjax.tools.compile_step import CompiledStep, compile_step
from bertjax.training.flops import bytes_per_device
from bertjax.training.sharding import state_shardings

CONFIG = Path(__file__).parents[2] / "configs" / "bert.py:smoke"
LAYERS, WIDTH, INNER, VOCABULARY, POSITIONS = 3, 64, 192, 384, 40  # no two sizes are equal, whole or in parts
BATCH_SIZE, LENGTH, PREDICTED = 16, 24, 4
SETTINGS = {
    "model.num_layers": LAYERS,
    "model.hidden_size": WIDTH,
    "model.num_heads": 8,
    "model.intermediate_size": INNER,
    "model.max_position_embeddings": POSITIONS,
    "model.hidden_dropout": 0.0,
    "model.attention_dropout": 0.0,
    "data.vocab_size": 380,
    "data.seq_len": LENGTH,
    "data.example_format": "block",
    "train.batch_size": BATCH_SIZE,
    "eval.batch_size": BATCH_SIZE,
    "train.phases": "",
    "train.num_steps": 10,
    "train.compute_dtype": "float32",
    "compile_cache": False,
}
MESHES = {"data": (8, 1, 1), "fsdp": (1, 8, 1), "tensor": (1, 1, 8), "mixed": (2, 2, 2)}
KERNELS = 4 * (4 * WIDTH * WIDTH + 2 * WIDTH * INNER)  # bytes of those of a layer
TABLE = 4 * VOCABULARY * WIDTH
DENSE = 4 * WIDTH * WIDTH
SCALARS = 4096  # bytes of losses, counts, norms
every_mesh = pytest.mark.parametrize(
    "mesh", [name if name == "mixed" else pytest.param(name, marks=pytest.mark.weekly) for name in MESHES]
)
both_ways = pytest.mark.parametrize(
    "unroll", [1, pytest.param(LAYERS, marks=pytest.mark.weekly)], ids=["scan", "unrolled"]
)


def step(mesh: str, unroll: int = 1, microbatches: int = 1) -> CompiledStep:
    return compiled_once(mesh, unroll, microbatches)  # one key, however the arguments are written


@functools.cache
def compiled_once(mesh: str, unroll: int, microbatches: int) -> CompiledStep:
    settings = SETTINGS | dict(zip(("mesh.data", "mesh.fsdp", "mesh.tensor"), MESHES[mesh], strict=True))
    settings |= {"model.unroll": unroll, "train.microbatches": microbatches}
    cfg = apply_overrides(load_config(str(CONFIG)), [f"--config.{key}={value}" for key, value in settings.items()])
    check(cfg)
    return compile_step(cfg, jax.devices("cpu")[:8])


def sent(compiled: CompiledStep, *axes: str, kind: str = "") -> list[Collective]:
    """Returns the bytes sent along exactly these axes (none: any), without the integers that masking moves."""
    return [
        each
        for each in compiled.find_collectives()
        if (not axes or each.axes == axes) and kind in each.kind and "/corruption/" not in each.op_name
    ]


def total(result: list[Collective]) -> int:
    assert all(each.times is not None for each in result)
    return sum((each.times or 0) * each.bytes for each in result)


def parameter_bytes(compiled: CompiledStep) -> int:
    return sum(4 * math.prod(leaf.shape) for _, leaf in flatten_tree(compiled.exp.abstract_state().params).items())


@pytest.mark.long
@both_ways
def test_along_data_gradients_are_reduced_once(unroll: int) -> None:
    """A step's bytes are those of the parameters; the tied word table has gradients from two uses.

    Where the compiler splits the rows itself, it reduces both gradients before it adds them.
    """
    compiled = step("data", unroll)
    result = sent(compiled)
    assert {each.kind for each in result} == {"all-reduce"}
    assert {each.axes for each in result} == {("data",)}
    assert 0 <= total(result) - parameter_bytes(compiled) - TABLE <= SCALARS


@pytest.mark.long
@both_ways
def test_along_data_no_microbatch_waits_for_the_others(unroll: int) -> None:
    compiled = step("data", unroll, microbatches=2)
    result = sent(compiled)
    assert {each.kind for each in result} == {"all-reduce"}
    assert {each.times for each in result} == {1}
    assert 0 <= total(result) - parameter_bytes(compiled) <= SCALARS


@pytest.mark.long
@both_ways
@pytest.mark.parametrize("microbatches", [1, 2])
def test_fsdp_puts_weights_together_forward_and_backward(unroll: int, microbatches: int) -> None:
    """Each of a layer's kernels twice per microbatch, the word and head tables once per step; no activation.

    Without a scan, the compiler stores gathered weights: once per step, for more memory.
    """
    compiled = step("fsdp", unroll, microbatches)
    gathered = sent(compiled, "fsdp", kind="all-gather")
    turns = 2 * microbatches if unroll == 1 else 1
    assert total(gathered) == turns * LAYERS * KERNELS + TABLE + DENSE
    reduced = total(sent(compiled, "fsdp", kind="reduce"))
    grads = microbatches * (parameter_bytes(compiled) + TABLE)
    assert 0 <= reduced - grads <= microbatches * SCALARS
    assert {each.kind for each in sent(compiled)} <= {"all-gather", "all-reduce", "reduce-scatter"}


@pytest.mark.long  # test_on_three_axes_every_axis_has_its_own counts them on a mixed mesh
@both_ways
def test_tensor_reduces_activations_and_gathers_nothing(unroll: int) -> None:
    """Per layer two forward, and backward one for the feed-forward and one for each of queries, keys and values."""
    compiled = step("tensor", unroll)
    result = sent(compiled)
    assert {each.kind for each in result} == {"all-reduce"}
    activations, predicted = 4 * BATCH_SIZE * LENGTH * WIDTH, 4 * BATCH_SIZE * PREDICTED * WIDTH
    more = total(result) - (6 * LAYERS + 1) * activations
    assert 0 <= more <= 2 * predicted + SCALARS


@pytest.mark.long
@both_ways
@every_mesh
def test_no_activations_and_no_logits_are_gathered(mesh: str, unroll: int) -> None:
    """Neither whole rows of hidden states, nor the predicted ones, nor arrays with tokens and the vocabulary."""
    data, fsdp, tensor = MESHES[mesh]
    for each in sent(step(mesh, unroll)):
        moved = each.kind != "all-reduce"
        for shape in each.shapes:
            tokens = LENGTH in shape or PREDICTED in shape
            wide = not {WIDTH, WIDTH // fsdp, WIDTH // tensor}.isdisjoint(shape)
            assert not (moved and tokens and wide), each
            assert not (tokens and {VOCABULARY, VOCABULARY // tensor, VOCABULARY // (fsdp * tensor)} & {*shape}), each
            if tokens and wide:  # sums over the parts of a product, of the local rows
                assert each.axes == ("tensor",) and shape[0] == BATCH_SIZE // (data * fsdp), each


@pytest.mark.long
@both_ways
def test_on_three_axes_every_axis_has_its_own(unroll: int) -> None:
    compiled = step("mixed", unroll)
    gathered = total(sent(compiled, "fsdp", kind="all-gather"))
    once, twice = ((turns * LAYERS * KERNELS + TABLE) // 2 for turns in (1, 2))
    assert gathered == twice if unroll == 1 else once <= gathered <= twice
    activations = 4 * (BATCH_SIZE // 4) * LENGTH * WIDTH
    reduced = [each for each in sent(compiled, "tensor", kind="all-reduce") if LENGTH in each.shapes[0]]
    assert 0 <= total(reduced) - (6 * LAYERS + 1) * activations <= SCALARS
    along_data = [each for each in sent(compiled) if "data" in each.axes]
    grads = bytes_of_parameters_here(compiled)
    assert grads <= total(along_data) <= 2 * grads + TABLE
    assert {each.kind for each in along_data} == {"all-reduce"}


def bytes_of_parameters_here(compiled: CompiledStep) -> int:
    return bytes_per_device(compiled.exp.abstract_state().params, compiled.exp.mesh)


@pytest.mark.long
@every_mesh
def test_the_program_holds_the_share_of_the_state_that_the_maths_says(mesh: str) -> None:
    """No device receives more than its share of weights and moments, and its rows."""
    compiled = step(mesh)
    data, fsdp, _ = MESHES[mesh]
    state = compiled.exp.abstract_state()
    rows = 4 * (4 * LENGTH + 4) * BATCH_SIZE // (data * fsdp)
    held = compiled.state_bytes - bytes_per_device(state, compiled.exp.mesh)
    assert rows - 1024 // (data * fsdp) <= held <= rows  # unused arguments are not passed


@pytest.mark.long
def test_moments_are_split_as_their_weights(abstract: object) -> None:
    """Arrays that the sharding table splits use 1/ways of the bytes, weights and both moments; norms stay whole."""
    for mesh in MESHES:
        exp = step(mesh).exp
        state = exp.abstract_state()
        split = {path: sharding for path, sharding in flatten_tree(state_shardings(state, exp.mesh).params).items()}
        _, fsdp, tensor = MESHES[mesh]
        for path, leaf in flatten_tree(state.params).items():
            share = math.prod(split[path].shard_shape(leaf.shape)) / math.prod(leaf.shape)
            if "layers" in path and path.endswith("kernel"):
                assert share == 1 / (fsdp * tensor), path
        local = bytes_per_device(state.params, exp.mesh)
        assert bytes_per_device(state.opt_state, exp.mesh) - 2 * local in range(0, 64), mesh


@pytest.mark.long
def test_memory_falls_with_the_devices_that_share() -> None:
    """The state of eight fsdp devices is an eighth, except for arrays that are too small to split."""
    whole, split = step("data", microbatches=2), step("fsdp")
    small = 3 * (parameter_bytes(split) - LAYERS * KERNELS - TABLE - DENSE)
    state = 3 * parameter_bytes(whole)
    assert bytes_per_device(whole.exp.abstract_state(), whole.exp.mesh) == pytest.approx(state, abs=64)
    held = bytes_per_device(split.exp.abstract_state(), split.exp.mesh)
    assert held == pytest.approx((state - small) / 8 + small, abs=64)
    assert split.state_bytes < 0.3 * whole.state_bytes
