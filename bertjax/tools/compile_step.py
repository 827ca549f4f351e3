"""Compiles the train step of a config for given devices without running anything, and reads costs from its program."""

from __future__ import annotations

import dataclasses
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
from ml_collections import ConfigDict

from bertjax.config.data import TOKENIZER_MODELS
from bertjax.config.model import EncoderConfig
from bertjax.config.objectives import objective_class, require_pretraining
from bertjax.config.overrides import copy_config
from bertjax.errors import UserError
from bertjax.experiment import build
from bertjax.experiment.abstract_inputs import abstract_batch, find_vocabulary, placeholder_vocabulary
from bertjax.runtime import platform
from bertjax.tools import topology
from bertjax.tools.collectives import Collective, find_collectives
from bertjax.tools.hlo import Program, execution_counts, parse_hlo
from bertjax.tools.topology import chip_spec

_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_NUMBER = re.compile(r"\.\d+$")
_TARGET = re.compile(r'custom_call_target="([^"]*)"')
_MEMORY_ONLY = ("AllocateBuffer", "AssumeGatherIndicesInBound", "ConcatBitcast", "GatherScatterIndicesBitpacked")
_OUT_OF_MEMORY = re.compile(r"Ran out of memory.*")
_NO_CYCLES = 2**62  # TPU v5p and v6e give INT64_MAX where they have no estimate
_COMPILER_OPTIONS = {
    "cpu": {"xla_backend_optimization_level": 0},  # code that a CPU never runs; collectives stay the same
    "gpu": topology.COMPILER_OPTIONS,
}


@dataclasses.dataclass(frozen=True)
class CompiledStep:
    """A compiled step with its memory and costs.

    optimal_seconds  of XLA's cost analysis, without the operations that it does not know; a loop body counts once. None
                     where the backend makes no estimate
    cycles           estimated by the scheduler, loop bodies as often as they run; 0 without estimates
    custom_calls     number of calls of kernels without an estimate, by target
    """

    exp: build.Experiment
    seconds: float
    text: str
    state_bytes: int
    temporary_bytes: int
    optimal_seconds: float | None
    cycles: int
    custom_calls: Counter[str]

    def find_collectives(self) -> list[Collective]:
        """Returns the collectives of the compiled step, with the axes of the mesh that they cross."""
        return find_collectives(self.text, dict(self.exp.mesh.shape))


def compile_step(cfg: ConfigDict, devices: Sequence[Any]) -> CompiledStep:
    """Compiles the step of the last phase.

    Args:
        cfg: a checked config.
        devices: devices of `tools.topology`, or real ones.

    Raises:
        UserError: the step does not fit the devices' memory, or the objective needs a model from the disk.
    """
    require_pretraining(cfg)
    if objective_class(cfg.objective.name).uses_teacher:
        raise UserError(
            f"objective.name={cfg.objective.name} learns from a model on the disk, which bertjax compile does not "
            "read; use objective.name=mlm, or bertjax pretrain --config.dry_run=true"
        )
    is_trained = cfg.data.tokenizer in TOKENIZER_MODELS  # on text, which is not read here
    vocabulary = placeholder_vocabulary(cfg.data.vocab_size) if is_trained else find_vocabulary(cfg)[0]
    exp = build.make_experiment(cfg, vocabulary, devices=devices)
    last = exp.programs[-1]
    began = time.perf_counter()
    # Under the abstract mesh nothing is put on devices that do not exist. The result suits other machines: no cache.
    with jax.sharding.use_abstract_mesh(exp.mesh.abstract_mesh), platform.compile_cache_disabled():
        lowered = last.train_step.lower(exp.abstract_state(), exp.frozen, abstract_batch(exp, last))
        try:
            compiled = lowered.compile(_COMPILER_OPTIONS.get(devices[0].platform))
        except jax.errors.JaxRuntimeError as error:
            raise UserError(_memory_message(str(error))) from error
    seconds = time.perf_counter() - began
    text = compiled.as_text()
    program = parse_hlo(text)
    memory = compiled.memory_analysis()
    return CompiledStep(
        exp=exp,
        seconds=seconds,
        text=text,
        state_bytes=memory.argument_size_in_bytes,
        temporary_bytes=memory.temp_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes,
        optimal_seconds=_optimal_seconds(compiled),
        cycles=estimated_cycles(program),
        custom_calls=custom_calls(program),
    )


class StepEstimate(NamedTuple):
    """Estimates for a step with unrolled layers: XLA's `optimal_seconds`, and the cycles of its scheduler."""

    optimal_seconds: float
    cycles: float


def estimate_step(cfg: ConfigDict, devices: Sequence[Any]) -> StepEstimate | None:
    """Returns the compiler's estimates for the whole step; None where it makes none, or for several microbatches.

    Its analysis counts a loop body once, and in every iteration the whole of what a scan saves for the backward pass.
    The estimate is therefore extrapolated from unrolled steps with few layers: the cost of one more period of layers,
    times the periods of the model.
    """
    if cfg.train.microbatches > 1 or chip_spec(devices[0]) is None:
        return None
    depths = _depths(cfg)
    fewest = {group: minimum for group, (minimum, _, _) in depths.items()}
    base = _unrolled_estimate(cfg, devices, fewest)
    total = base
    for group, (minimum, period, layers) in depths.items():
        more = _unrolled_estimate(cfg, devices, fewest | {group: minimum + period})
        times = (layers - minimum) / period
        total = StepEstimate(*(each + times * (b - a) for each, a, b in zip(total, base, more, strict=True)))
    return total


def _depths(cfg: ConfigDict) -> dict[str, tuple[int, int, int]]:
    """Returns for each network: (fewest layers that include every kind, layers per period, all layers)."""
    encoders = objective_class(cfg.objective.name).read_encoders(cfg)
    return {group: _depth(encoder) for group, encoder in encoders.items()}


def _depth(config: EncoderConfig) -> tuple[int, int, int]:
    period = (config.global_attn_every_n_layers if config.local_attention else config.num_groups) or 1
    minimum = config.num_layers % period + period
    if minimum < 2 and (config.num_layers >= 3 or config.enhanced_decoder):
        minimum += period  # the first layer may differ from all others; an enhanced decoder needs two
    return min(minimum, config.num_layers), period, config.num_layers


def _unrolled_estimate(cfg: ConfigDict, devices: Sequence[Any], layers: Mapping[str, int]) -> StepEstimate:
    changed = copy_config(cfg)
    for group, number in layers.items():
        changed[group].num_layers = changed[group].unroll = number
    compiled = compile_step(changed, devices)
    assert compiled.optimal_seconds is not None
    return StepEstimate(compiled.optimal_seconds, compiled.cycles)


def estimated_cycles(program: Program) -> int:
    """Sums the scheduler's estimates of all instructions; loops of unknown length count once."""
    counts = execution_counts(program)
    total = 0
    for name, instructions in program.computations.items():
        times = counts[name]
        cycles = [int(match[1]) for each in instructions if (match := _CYCLES.search(each.line))]
        total += sum(each for each in cycles if each < _NO_CYCLES) * (1 if times is None else times)
    return total


def custom_calls(program: Program) -> Counter[str]:
    """Counts how often each target of a custom call runs, and other instructions whose cycles the compiler leaves open.

    Targets that only name memory are left out.
    """
    counts = execution_counts(program)
    calls: Counter[str] = Counter()
    for name, instructions in program.computations.items():
        for each in instructions:
            target = _TARGET.search(each.line)
            if each.opcode == "custom-call" and target and target[1] not in _MEMORY_ONLY:
                calls[target[1]] += counts[name] or 0
            cycles = _CYCLES.search(each.line)
            if cycles and int(cycles[1]) >= _NO_CYCLES:
                calls[_NUMBER.sub("", each.name)] += counts[name] or 0
    return +calls


def _optimal_seconds(compiled: Any) -> float | None:
    """Reads XLA's estimate, without the -1 s that it adds for each unknown call."""
    costs = compiled.cost_analysis()
    seconds = costs.get("optimal_seconds") if costs else None
    if seconds is None:
        return None
    return seconds % 1.0 if seconds < 0 else seconds


def _memory_message(message: str) -> str:
    match = _OUT_OF_MEMORY.search(message)
    if match is None:
        return f"compilation failed: {message.splitlines()[0]}"
    return (
        f"the step does not fit: {match[0].split('; ')[0].rstrip('.')}; lower the batch per chip (train.batch_size, "
        "train.microbatches), set model.remat=dots or full, or raise mesh.fsdp"
    )
