"""Metrics of a benchmark, and their lines on the console."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from bertjax.experiment.abstract_inputs import format_step, step_settings
from bertjax.io.output import format_bytes, format_seconds
from bertjax.tools.bertjax_runner import BertjaxRunner
from bertjax.tools.hlo import DIRECTIONS, StepScope
from bertjax.tools.interleaved_timing import TimedRun, median_range, speed_ratios
from bertjax.tools.torch_baseline import TorchProcess, TrialResult
from bertjax.training.flops import FLOPS_FORMULA, peak_flops, training_flops


def bertjax_metrics(runner: BertjaxRunner, runs: Sequence[TimedRun]) -> dict[str, Any]:
    """Returns the metrics of timed runs; FLOPs and MFU count real tokens only."""
    exp = runner.exp
    cfg, settings = exp.programs[-1].phase.cfg, step_settings(exp)
    metrics = run_metrics(runs)
    flops = training_flops(exp.objective, (1.0 - metrics["padding"]) * cfg.data.seq_len)
    flops_per_second = flops * metrics["tokens_per_second"]["median"]
    peak = peak_flops(settings["device_kind"])
    num_cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return (
        metrics
        | settings
        | {
            "example_format": cfg.data.example_format,
            "packing": cfg.data.packing,
            "cpu_cores": num_cpus,
            "jax": jax.__version__,
            "compile_seconds": runner.compile_seconds,
            "flops_per_token": flops,
            "flops_per_second": flops_per_second,
            "mfu": None if peak is None else flops_per_second / (peak * settings["devices"]),
            "state_bytes": runner.state_bytes,
            "step_bytes": runner.step_bytes,
            "peak_bytes": runner.peak_bytes,
        }
    )


def format_bertjax(metrics: Mapping[str, Any]) -> list[str]:
    """Formats `bertjax_metrics` for the console."""
    kind, mfu = metrics["device_kind"], metrics["mfu"]
    utilization = f"no MFU: the peak of {kind} is unknown"
    if mfu is not None:
        utilization = f"MFU {100 * mfu:.1f} % of the dense bfloat16 peak"
    memory = f"state {format_bytes(metrics['state_bytes'])}"
    if metrics["step_bytes"] is not None:
        memory += f", buffers of the step {format_bytes(metrics['step_bytes'])}"
    return [
        f"{format_step(metrics)}, example format {metrics['example_format']}, packing {metrics['packing']}",
        f"{metrics['devices']} x {kind}, {metrics['cpu_cores']} CPU cores, jax {metrics['jax']}",
        f"compile        {metrics['compile_seconds']:.1f} s without a cache",
        f"step           {_step(metrics)}, {metrics['repeats']} repeats of {metrics['steps_per_repeat']} steps",
        f"speed          {_speed(metrics)}",
        f"model FLOPs    {metrics['flops_per_token'] / 1e6:,.1f} M per real token, "
        f"{metrics['flops_per_second'] / 1e12:,.3f} TFLOP/s ({utilization})",
        f"               {FLOPS_FORMULA}",
        f"data           the devices wait for the next batch {100 * metrics['data_wait']:.2f} % of the time",
        f"memory         {memory} per device; peak {format_bytes(metrics['peak_bytes'])}",
    ]


def format_scopes(scopes: Mapping[StepScope, float]) -> list[str]:
    """Formats seconds by scope as a table of shares."""
    total = sum(scopes.values())
    if not total:
        return ["time           the trace of this backend names no operations"]
    titles: dict[str, float] = {}
    for scope, seconds in scopes.items():
        titles[scope.title] = titles.get(scope.title, 0.0) + seconds
    lines = [f"{'share of the work in a traced step':<36} {'all':>7} {'forward':>9} {'backward':>9} {'neither':>9}"]
    for title, seconds in sorted(titles.items(), key=lambda item: -item[1]):
        shares = [100 * scopes.get(StepScope(title, direction), 0.0) / total for direction in DIRECTIONS]
        cells = " ".join(f"{share:8.1f}%" if share >= 0.05 else " " * 9 for share in shares)
        lines.append(f"  {title:<34} {100 * seconds / total:6.1f}% {cells}".rstrip())
    return lines


def torch_metrics(
    process: TorchProcess, trials: Sequence[TrialResult], runs: Sequence[TimedRun], baseline: Sequence[TimedRun]
) -> dict[str, Any]:
    """Returns the metrics of the baseline, and the ratio of real tokens per second.

    Args:
        process: the baseline.
        trials: the modes that it tried.
        runs: runs of bertjax.
        baseline: runs of the baseline, interleaved with `runs`.
    """
    return run_metrics(baseline) | {
        "versions": process.versions,
        "attention": process.attention,
        "mode": str(process.mode),
        "trials": {str(trial.mode): trial.error or trial.seconds for trial in trials},
        "ratio": speed_ratios(runs, baseline),
    }


def format_torch(metrics: Mapping[str, Any]) -> list[str]:
    """Formats `torch_metrics` for the console."""
    ratio = metrics["ratio"]
    lines = [f"baseline {metrics['versions']}: {metrics['attention']} attention, fused AdamW, interleaved with bertjax"]
    for mode, trial in metrics["trials"].items():
        text = trial if isinstance(trial, str) else f"{format_seconds(trial)} per step"
        lines.append(f"  {mode:<28} {text}{'  <- used' if mode == metrics['mode'] else ''}")
    return [
        *lines,
        f"  step         {_step(metrics)}, {100 * metrics['data_wait']:.1f} % of it to make the batch",
        f"  speed        {_speed(metrics)}",
        f"ratio          {ratio['median']:.2f} in real tokens/s ({ratio['low']:.2f} to {ratio['high']:.2f})",
    ]


def run_metrics(runs: Sequence[TimedRun]) -> dict[str, Any]:
    """Returns medians and ranges of at least one timed run, and the shares of padding and of waiting for data."""
    return {
        "repeats": len(runs),
        "steps_per_repeat": runs[0].steps,
        "seconds_per_step": median_range([run.seconds_per_step for run in runs]),
        "tokens_per_second": median_range([run.tokens_per_second for run in runs]),
        "padding": 1.0 - sum(run.real_tokens for run in runs) / sum(run.slots for run in runs),
        "data_wait": sum(run.data_wait for run in runs) / sum(run.seconds for run in runs),
    }


def _step(metrics: Mapping[str, Any]) -> str:
    median, low, high = (format_seconds(metrics["seconds_per_step"][name]) for name in ("median", "low", "high"))
    return f"{median} (median; {low} to {high})"


def _speed(metrics: Mapping[str, Any]) -> str:
    speed, padding = metrics["tokens_per_second"]["median"], metrics["padding"]
    return f"{speed:,.0f} real tokens/s; {100 * padding:.2f} % padding"
