"""The train step of a config, compiled for given devices without running anything, and what its program tells."""

from __future__ import annotations

import dataclasses
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
from ml_collections import ConfigDict

from bertjax.aot.collectives import Collective, find_collectives
from bertjax.aot.topology import chip_spec
from bertjax.config import parse_objective
from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.experiment import build
from bertjax.experiment.abstract_inputs import abstract_batch, placeholder_vocabulary
from bertjax.runtime import platform
from bertjax.runtime.hlo import Program, execution_counts, parse_hlo

_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_TARGET = re.compile(r'custom_call_target="([^"]*)"')
_QUICK = {"xla_backend_optimization_level": 0}  # of the code for a CPU, which nobody runs; collectives stay the same
_NO_ROOM = re.compile(r"Ran out of memory.*")


@dataclasses.dataclass(frozen=True)
class CompiledStep:
    """A compiled step: what its text, its memory and its costs say.

    optimal_seconds  of XLA's cost analysis, the body of a loop counted once, what it does not know not at all; None
                     where the backend makes no estimate
    cycles           of the scheduler's own estimates, every loop counted as often as it runs; 0 where there are none
    custom_calls     kernels of which the analysis knows nothing, by their target, as often as they run
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
        return find_collectives(self.text, dict(self.exp.mesh.shape))


def compile_step(cfg: ConfigDict, devices: Sequence[Any]) -> CompiledStep:
    """Of the last stage of a checked config; raises `UserError` when the devices have not the memory."""
    if cfg.objective.name == "distill":
        raise UserError(
            "objective.name=distill learns from a model on the disk, which compiling ahead does not read; look at "
            "objective.name=mlm, or at bertjax pretrain --config.dry_run=true"
        )
    exp = build.make_experiment(cfg, placeholder_vocabulary(cfg.data.vocab_size), devices=devices)
    last = exp.programs[-1]
    began = time.perf_counter()
    # The abstract mesh: nothing may be put on devices that are not there. What is compiled here suits another machine.
    with jax.sharding.use_abstract_mesh(exp.mesh.abstract_mesh), platform.compile_cache_disabled():
        lowered = last.train_step.lower(exp.abstract_state(), exp.frozen, abstract_batch(exp, last))
        try:
            compiled = lowered.compile(_QUICK if devices[0].platform == "cpu" else None)
        except jax.errors.JaxRuntimeError as error:
            raise UserError(_no_room(str(error))) from error
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
        optimal_seconds=_optimal(compiled),
        cycles=estimated_cycles(program),
        custom_calls=custom_calls(program),
    )


class StepEstimate(NamedTuple):
    """Of a step whose layers are not scanned: XLA's `optimal_seconds`, and the cycles of its scheduler."""

    optimal_seconds: float
    cycles: float


def estimate_step(cfg: ConfigDict, devices: Sequence[Any]) -> StepEstimate | None:
    """The compiler's own estimates of all of a step, None where it makes none, or for several microbatches.

    Its analysis counts the body of a loop once, and what a scan keeps for the way back whole in every turn. Therefore
    from steps of few layers, without scans: what one period of layers more costs, as often as the model has it.
    """
    if cfg.train.microbatches > 1 or chip_spec(devices[0]) is None:
        return None
    depths = _depths(cfg)
    shown = {group: least for group, (least, _, _) in depths.items()}
    first = _estimate_of(cfg, devices, shown)
    total = first
    for group, (least, period, whole) in depths.items():
        more = _estimate_of(cfg, devices, shown | {group: least + period})
        times = (whole - least) / period
        total = StepEstimate(*(sum_ + times * (b - a) for sum_, a, b in zip(total, first, more, strict=True)))
    return total


def _depths(cfg: ConfigDict) -> dict[str, tuple[int, int, int]]:
    """Of every network: (least number of layers that shows all its kinds, layers in a period, all layers)."""
    model = parse_objective.encoder_config(cfg)
    found = {"model": _depth(model)}
    if cfg.objective.name == "rtd":
        found["generator"] = _depth(parse_objective.generator_config(cfg))
    return found


def _depth(config: EncoderConfig) -> tuple[int, int, int]:
    period = config.global_attn_every_n_layers if config.local_attention else config.num_groups or 1
    least = config.num_layers % period + period
    if least < 2 and config.num_layers >= 3:
        least += period  # the first layer may be unlike all others
    return min(least, config.num_layers), period, config.num_layers


def _estimate_of(cfg: ConfigDict, devices: Sequence[Any], layers: Mapping[str, int]) -> StepEstimate:
    changed = ConfigDict(cfg.copy_and_resolve_references())
    for group, number in layers.items():
        changed[group].num_layers = changed[group].unroll = number
    compiled = compile_step(changed, devices)
    assert compiled.optimal_seconds is not None
    return StepEstimate(compiled.optimal_seconds, compiled.cycles)


def estimated_cycles(program: Program) -> int:
    """Of all instructions that have such an estimate; loops of unknown length count once."""
    counts = execution_counts(program)
    total = 0
    for name, instructions in program.computations.items():
        times = counts[name]
        for each in instructions:
            if found := _CYCLES.search(each.line):
                total += int(found[1]) * (1 if times is None else times)
    return total


def custom_calls(program: Program) -> Counter[str]:
    """Targets of custom calls and how often each runs; those that only name memory are left out."""
    counts = execution_counts(program)
    found: Counter[str] = Counter()
    for name, instructions in program.computations.items():
        for each in instructions:
            target = _TARGET.search(each.line)
            if each.opcode == "custom-call" and target and target[1] not in _NO_WORK:
                found[target[1]] += counts[name] or 0
    return +found


_NO_WORK = ("AllocateBuffer", "AssumeGatherIndicesInBound", "ConcatBitcast", "GatherScatterIndicesBitpacked")


def _optimal(compiled: Any) -> float | None:
    """XLA writes -1 s for every call that it does not know: added again."""
    costs = compiled.cost_analysis()
    seconds = costs.get("optimal_seconds") if costs else None
    if seconds is None:
        return None
    return seconds % 1.0 if seconds < 0 else seconds


def _no_room(message: str) -> str:
    found = _NO_ROOM.search(message)
    if found is None:
        return f"the compiler gives up: {message.splitlines()[0]}"
    return (
        f"the step does not fit: {found[0].split('; ')[0].rstrip('.')}; take fewer rows a chip (train.batch_size, "
        "train.microbatches), model.remat=dots or full, or more of mesh.fsdp"
    )
