"""Metrics of a step that was compiled ahead of time, and their lines on the console."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import jax

from bertjax.config.model import EncoderConfig
from bertjax.experiment.abstract_inputs import format_step, step_settings
from bertjax.io.output import format_bytes, format_seconds
from bertjax.tools.collectives import Collective, totals_by_kind
from bertjax.tools.compile_step import CompiledStep, StepEstimate
from bertjax.tools.hlo import parse_hlo
from bertjax.tools.roofline import (
    ATTENTION_SHARE,
    MATMUL_SHARE,
    kernel_totals,
    kernels,
    kernels_by_scope,
    matmuls_by_type,
)
from bertjax.tools.topology import ChipSpec, GpuSpec, chip_spec, gpu_spec
from bertjax.training.flops import FLOPS_FORMULA, peak_flops, training_flops

ATTENTION_RATE = 0.4
"""Fraction of the peak that attention kernels are assumed to reach."""
_LANES = 128  # of a matrix unit: narrower heads take as long
# Matmuls of queries x keys x width: 2 forward, 3 for the gradient of queries, 4 for those of keys and values. A term of
# distances adds two wherever scores are computed, and for its gradients; Mosaic reverses rows with matmuls.
_MATMULS = {"relative": 26, "disentangled": 41}
_PLAIN_MATMULS = 9
_KERNEL = "tpu_custom_call"
_CYCLE_ERROR = "a perfect chain of matmuls scores 88 % of v5e's peak; elementwise work is put at 2 to 4 times its time"
_ESTIMATES = {
    "as_compiled": "scheduler's cycles",
    "unrolled": "scheduler's cycles, layers unrolled",
    "optimal": "XLA's optimal time, layers unrolled",
}


def step_metrics(compiled: CompiledStep, estimate: StepEstimate | None) -> dict[str, Any]:
    """Returns all metrics of a compiled step, per chip where not said otherwise; `estimate` is of `estimate_step`."""
    exp = compiled.exp
    cfg, device = exp.programs[-1].phase.cfg, exp.mesh.devices.flat[0]
    chip, gpu, peak = chip_spec(device), gpu_spec(device), peak_flops(device.device_kind)
    tokens = cfg.train.batch_size * cfg.data.seq_len
    flops = training_flops(exp.objective, cfg.data.seq_len)
    minimum = None if peak is None else flops * tokens / exp.mesh.size / peak
    collectives = compiled.find_collectives()
    attention = attention_seconds(compiled.custom_calls, exp.model, cfg.data.seq_len, tokens / exp.mesh.size, peak)
    seconds = {
        "as_compiled": None if chip is None or not compiled.cycles else compiled.cycles / chip.clock,
        "unrolled": None if chip is None or estimate is None else estimate.cycles / chip.clock,
        "optimal": None if estimate is None else estimate.optimal_seconds,
    }
    by_kernel = {} if gpu is None or peak is None else _gpu_metrics(compiled, gpu, peak, cfg.data.seq_len)
    seconds["roofline"] = sum(each["seconds"] for each in by_kernel["kernels"]) if by_kernel else None
    sheet = gpu if chip is None else chip
    return step_settings(exp) | {
        "remat": exp.model.remat,
        "unroll": exp.model.unroll,
        "dropout_prng": cfg.train.dropout_prng,
        "mesh": dict(exp.mesh.shape),
        "jax": jax.__version__,
        "compile_seconds": compiled.seconds,
        "state_bytes": compiled.state_bytes,
        "temporary_bytes": compiled.temporary_bytes,
        "memory_bytes": None if sheet is None else sheet.memory,
        "flops_per_token": flops,
        "tokens_per_step": tokens,
        "collectives": [
            {"kind": kind, "axes": list(axes), "count": count, "bytes": size}
            for (kind, axes), (count, size) in totals_by_kind(collectives).items()
        ],
        "unknown_loops": sum(each.times is None for each in collectives),
        "collective_seconds": None if sheet is None else collective_seconds(collectives, sheet),
        "custom_calls": dict(compiled.custom_calls),
        "attention_seconds": attention,
        "estimated_seconds": seconds,
        "estimated_mfu": {
            name: None if minimum is None or each is None else minimum / (each + (attention or 0.0))
            for name, each in seconds.items()
        },
        **by_kernel,
    }


def _gpu_metrics(compiled: CompiledStep, gpu: GpuSpec, peak: float, length: int) -> dict[str, Any]:
    """Returns kernels by kind and by named scope, and matmuls by element types."""
    items = kernels(parse_hlo(compiled.text), gpu, peak, length)
    return {
        "kernels": [
            {"kind": kind, "count": count, "seconds": seconds, "bytes": size}
            for kind, (count, seconds, size) in kernel_totals(items).items()
        ],
        "scopes": [
            {**scope._asdict(), "kind": kind, "count": count, "seconds": seconds, "bytes": size}
            for (scope, kind), (count, seconds, size) in kernels_by_scope(items).items()
        ],
        "matmuls": [
            {"types": types, "count": count, "seconds": seconds}
            for types, (count, seconds) in matmuls_by_type(items).items()
        ],
    }


def collective_seconds(collectives: list[Collective], chip: ChipSpec | GpuSpec) -> float:
    """Returns the time of all collectives, each on a bidirectional ring of its own and overlapped with nothing.

    GPUs of several hosts are treated as if NVLink joined them: between hosts expect a multiple of this.

    Args:
        collectives: collectives of the program.
        chip: data sheet of its chips.
    """
    total = 0.0
    for each in collectives:
        size = each.group_size or 2
        passes = {"all-reduce": 2.0 * (size - 1) / size, "collective-permute": 1.0, "all-to-all": 0.25}
        share = passes.get(each.kind, (size - 1) / size)
        total += (each.times or 1) * share * each.bytes / (2 * chip.link)
    return total


def attention_seconds(
    calls: Counter[str], config: EncoderConfig, length: int, tokens: float, peak: float | None
) -> float | None:
    """Returns the time of splash or our kernels at `ATTENTION_RATE` of the peak, heads padded; None without kernels.

    They recompute queries x keys for each of their two gradients. Local layers are assumed to read their window only.

    Args:
        calls: custom calls of the program.
        config: number and size of heads, local layers.
        length: tokens per sequence.
        tokens: per chip and step.
        peak: FLOP/s of the chip; None = unknown.
    """
    if peak is None or not calls[_KERNEL]:
        return None
    heads = config.num_heads * -(-config.head_dim // _LANES) * _LANES
    local = sum(config.is_local(layer) for layer in range(config.num_layers))
    padded = -(-length // _LANES) * _LANES
    keys = (config.num_layers - local) * padded + local * min(padded, 3 * _LANES)
    keys += config.num_layers * (config.mem_len or 0)
    return (
        2.0 * _MATMULS.get(config.attention_position, _PLAIN_MATMULS) * tokens * heads * keys / (ATTENTION_RATE * peak)
    )


def format_metrics(metrics: Mapping[str, Any]) -> list[str]:
    """Returns the lines of `bertjax compile`."""
    chips, memory = metrics["devices"], metrics["memory_bytes"]
    state, temporary = metrics["state_bytes"], metrics["temporary_bytes"]
    used = "" if memory is None else f" of {format_bytes(memory)} ({100 * (state + temporary) / memory:.0f} %)"
    flops = metrics["flops_per_token"]
    mesh = " x ".join(f"{name}={size}" for name, size in metrics["mesh"].items())
    return [
        f"{format_step(metrics)}, remat {metrics['remat']}, dropout PRNG {metrics['dropout_prng']}",
        f"mesh             {mesh} = {chips} x {metrics['device_kind']}, compiled only: nothing ran",
        f"compile          {metrics['compile_seconds']:.1f} s",
        f"memory per chip  state {format_bytes(state)} + temporary {format_bytes(temporary)} = "
        f"{format_bytes(state + temporary)}{used}",
        f"model FLOPs      {flops / 1e6:,.1f} M per token, {flops * metrics['tokens_per_step'] / chips:.3e} per chip "
        "and step",
        f"                 {FLOPS_FORMULA}; sequences assumed full",
        *_collective_lines(metrics),
        *_time_lines(metrics),
    ]


def _collective_lines(metrics: Mapping[str, Any]) -> list[str]:
    lines = [f"{'collectives per step':<24} {'along':<18} {'count':>7} {'MiB per chip':>12}"]
    for each in metrics["collectives"]:
        axes = " ".join(each["axes"]) or "?"
        lines.append(f"  {each['kind']:<22} {axes:<18} {each['count']:>7,} {each['bytes'] / 2**20:>12,.2f}")
    if not metrics["collectives"]:
        lines.append("  none")
    if metrics["unknown_loops"]:
        lines.append(f"  {metrics['unknown_loops']} of them in loops of unknown length, counted once")
    return lines


def _time_lines(metrics: Mapping[str, Any]) -> list[str]:
    if metrics["memory_bytes"] is None:
        return ["time             no estimate: the compiler for this device makes none"]
    if "kernels" in metrics:
        return _gpu_time_lines(metrics)
    lines = ["time             ESTIMATES of the compiler, not measured, without communication:"]
    for name, title in _ESTIMATES.items():
        seconds, mfu = metrics["estimated_seconds"][name], metrics["estimated_mfu"][name]
        text = "none" if seconds is None else f"{format_seconds(seconds):>10}   would be an MFU of {100 * mfu:.1f} %"
        lines.append(f"  {title:<46} {text}")
    if metrics["attention_seconds"] is not None:
        lines.append(
            f"  {'+ attention kernels, without an estimate':<46} {format_seconds(metrics['attention_seconds']):>10}   "
            f"assumed: {100 * ATTENTION_RATE:.0f} % of the peak; included in each MFU"
        )
    lines += [f"  the cycles' own error: {_CYCLE_ERROR}", _communication_line(metrics)]
    for target, count in metrics["custom_calls"].items():
        lines.append(f"  no estimate for {target}: {count:,} per step")
    return lines


def _gpu_time_lines(metrics: Mapping[str, Any]) -> list[str]:
    seconds, mfu = metrics["estimated_seconds"]["roofline"], metrics["estimated_mfu"]["roofline"]
    lines = [f"{'kernels per step':<24} {'count':>7} {'GiB':>9} {'time':>10}"]
    for each in metrics["kernels"]:
        time = format_seconds(each["seconds"]) if each["kind"] != "collective" else "below"
        lines.append(f"  {each['kind']:<22} {each['count']:>7,} {each['bytes'] / 2**30:>9,.2f} {time:>10}")
    lines += [
        f"  matmul {each['types']:<15} {each['count']:>7,} {'':>9} {format_seconds(each['seconds']):>10}"
        for each in metrics["matmuls"]
    ]
    for each in metrics["scopes"]:
        if each["kind"] == "other":
            name, size = f"{each['title']}, {each['direction']}", f"{each['bytes'] / 2**30:>9,.2f}"
            lines.append(f"  other: {name:<37} {each['count']:>7,} {size} {format_seconds(each['seconds']):>10}")
    return [
        *lines,
        f"time             ROOFLINE, not measured: {format_seconds(seconds)}, would be an MFU of {100 * mfu:.1f} %",
        f"  assumed: matmuls at {100 * MATMUL_SHARE:.0f} % of the peak, fused attention at "
        f"{100 * ATTENTION_SHARE:.0f} %, all else by bytes at full bandwidth",
        "  not included: cuDNN's scratch memory, gaps between kernels, communication",
        _communication_line(metrics),
    ]


def _communication_line(metrics: Mapping[str, Any]) -> str:
    communication = format_seconds(metrics["collective_seconds"])
    return f"  {'collectives, if not overlapped':<46} {communication:>10}   assumed: each has a ring of links"
