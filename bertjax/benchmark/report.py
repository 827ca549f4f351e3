"""What a benchmark found: figures to keep, and lines to read made of them."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from bertjax.benchmark.bertjax_runner import BertjaxRunner
from bertjax.benchmark.interleaved_timing import TimedRun, median_range, speed_ratios
from bertjax.benchmark.torch_baseline import TrialResult
from bertjax.benchmark.torch_subprocess import TorchProcess
from bertjax.benchmark.trace import StepScope
from bertjax.experiment import build
from bertjax.training.flops import FLOPS_FORMULA, peak_flops, training_flops

WAYS = ("forward", "backward", "update")


def bertjax_metrics(exp: build.Experiment, ours: BertjaxRunner, turns: Sequence[TimedRun]) -> dict[str, Any]:
    """Of our side; FLOPs and MFU count real tokens alone."""
    cfg, mesh = exp.programs[-1].phase.cfg, exp.mesh
    kind = mesh.devices.flat[0].device_kind
    figures = _of_turns(turns)
    flops = training_flops(exp.objective, (1.0 - figures["padding"]) * cfg.data.seq_len)
    reached, peak = flops * figures["tokens_per_second"]["median"], peak_flops(kind)
    return figures | {
        "objective": cfg.objective.name,
        "form": cfg.data.example_format,
        "packing": cfg.data.packing,
        "rows": cfg.train.batch_size,
        "microbatches": cfg.train.microbatches,
        "seq_len": cfg.data.seq_len,
        "compute_dtype": exp.model.compute_dtype,
        "devices": mesh.size,
        "device_kind": kind,
        "processors": _processors(),
        "jax": jax.__version__,
        "compile_seconds": ours.compile_seconds,
        "flops_per_token": flops,
        "flops_per_second": reached,
        "mfu": None if peak is None else reached / (peak * mesh.size),
        "state_bytes": ours.state_bytes,
        "step_bytes": ours.step_bytes,
        "peak_bytes": ours.peak_bytes,
    }


def format_bertjax(figures: Mapping[str, Any]) -> list[str]:
    step = figures["seconds_per_step"]
    kind, mfu = figures["device_kind"], figures["mfu"]
    share = f"no MFU: the peak of {kind} is not known"
    if mfu is not None:
        share = f"MFU {100 * mfu:.1f} % of the dense bfloat16 peak"
    several = "" if figures["microbatches"] == 1 else f" in {figures['microbatches']} microbatches"
    memory = f"state {_mib(figures['state_bytes'])}"
    if figures["step_bytes"] is not None:
        memory += f", buffers of the step {_mib(figures['step_bytes'])}"
    return [
        f"{figures['objective']}, {figures['rows']} rows of {figures['seq_len']} tokens{several}, form "
        f"{figures['form']}, packing {figures['packing']}, products in {figures['compute_dtype']}",
        f"{figures['devices']} x {kind}, {figures['processors']} processor cores, jax {figures['jax']}",
        f"compile        {figures['compile_seconds']:.1f} s without a cache",
        f"step           {_ms(step['median'])} (median of {figures['turns']} turns of {figures['steps_per_turn']} "
        f"steps; {_ms(step['low'])} to {_ms(step['high'])})",
        f"speed          {_speed(figures)}",
        f"model FLOPs    {figures['flops_per_token'] / 1e6:,.1f} M a real token, "
        f"{figures['flops_per_second'] / 1e12:,.3f} TFLOP/s ({share})",
        f"               {FLOPS_FORMULA}",
        f"data           the devices wait for the next batch {100 * figures['waited']:.2f} % of the time",
        f"memory         {memory} a device; peak {_mib(figures['peak_bytes'])}",
    ]


def format_scopes(parts: Mapping[StepScope, float]) -> list[str]:
    """A table of where the work of a step is; `parts` in seconds."""
    total = sum(parts.values())
    if not total:
        return ["time           the trace of this backend names no operations"]
    titles: dict[str, float] = {}
    for part, seconds in parts.items():
        titles[part.title] = titles.get(part.title, 0.0) + seconds
    lines = [f"{'share of the work in a traced step':<36} {'all':>7} {'forward':>9} {'backward':>9} {'neither':>9}"]
    for title, seconds in sorted(titles.items(), key=lambda item: -item[1]):
        shares = [100 * parts.get(StepScope(title, way), 0.0) / total for way in WAYS]
        cells = " ".join(f"{share:8.1f}%" if share >= 0.05 else " " * 9 for share in shares)
        lines.append(f"  {title:<34} {100 * seconds / total:6.1f}% {cells}".rstrip())
    return lines


def torch_metrics(
    peer: TorchProcess, trials: Sequence[TrialResult], ours: Sequence[TimedRun], theirs: Sequence[TimedRun]
) -> dict[str, Any]:
    """Of the other side, and the ratio of real tokens a second."""
    return _of_turns(theirs) | {
        "versions": peer.versions,
        "attention": peer.attention,
        "setting": str(peer.setting),
        "trials": {str(trial.setting): trial.fault or trial.seconds for trial in trials},
        "ratio": speed_ratios(ours, theirs)._asdict(),
    }


def format_torch(figures: Mapping[str, Any]) -> list[str]:
    step, ratio = figures["seconds_per_step"], figures["ratio"]
    lines = [f"against {figures['versions']}: {figures['attention']} attention, fused AdamW, in turns with ours"]
    for setting, found in figures["trials"].items():
        told = found if isinstance(found, str) else f"{_ms(found)} a step"
        lines.append(f"  {setting:<28} {told}{'  <- taken' if setting == figures['setting'] else ''}")
    return [
        *lines,
        f"  step         {_ms(step['median'])} ({_ms(step['low'])} to {_ms(step['high'])}), "
        f"{100 * figures['waited']:.1f} % of it to make the batch",
        f"  speed        {_speed(figures)}",
        f"ratio          {ratio['median']:.2f} in real tokens/s ({ratio['low']:.2f} to {ratio['high']:.2f})",
    ]


def _of_turns(turns: Sequence[TimedRun]) -> dict[str, Any]:
    seconds = sum(run.seconds for run in turns)
    return {
        "turns": len(turns),
        "steps_per_turn": turns[0].steps,
        "seconds_per_step": median_range([run.seconds_per_step for run in turns])._asdict(),
        "tokens_per_second": median_range([run.tokens_per_second for run in turns])._asdict(),
        "padding": 1.0 - sum(run.real_tokens for run in turns) / sum(run.slots for run in turns),
        "waited": sum(run.waited for run in turns) / seconds,
    }


def _speed(figures: Mapping[str, Any]) -> str:
    speed, padding = figures["tokens_per_second"]["median"], figures["padding"]
    return f"{speed:,.0f} real tokens/s; {100 * padding:.2f} % of the places are padding"


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _ms(seconds: float) -> str:
    if math.isinf(seconds):
        return "never"
    return f"{1000 * seconds:,.0f} ms" if seconds >= 0.1 else f"{1000 * seconds:.1f} ms"


def _mib(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB"
