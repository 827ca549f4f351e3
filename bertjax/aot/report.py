"""What a step that was compiled ahead tells: figures to keep, and lines to read made of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import jax

from bertjax.aot.collectives import Collective, totals_by_kind
from bertjax.aot.compile import CompiledStep, StepEstimate
from bertjax.aot.topology import ChipSpec, chip_spec
from bertjax.config.model import EncoderConfig
from bertjax.training.flops import FLOPS_FORMULA, peak_flops, training_flops

SPLASH_RATE = 0.4
"""Share of the peak at which splash attention is taken to multiply: an assumption."""
_LANES = 128  # of a matrix unit: narrower heads fill it no faster
_PRODUCTS = 9  # of queries x keys x width: 2 forward, 3 for the slopes of queries, 4 for those of keys and values
_KERNEL = "tpu_custom_call"
_ESTIMATES = {
    "as_compiled": "the scheduler's cycles",
    "unrolled": "the scheduler's cycles, layers unrolled",
    "optimal": "operations and bytes at their best, unrolled",
}


def step_metrics(compiled: CompiledStep, estimate: StepEstimate | None) -> dict[str, Any]:
    """All figures, a chip's unless said otherwise; `estimate` is the compiler's, unrolled, if it made one."""
    exp = compiled.exp
    cfg, device = exp.programs[-1].phase.cfg, exp.mesh.devices.flat[0]
    chip, peak = chip_spec(device), peak_flops(device.device_kind)
    tokens = cfg.train.batch_size * cfg.data.seq_len
    flops = training_flops(exp.objective, cfg.data.seq_len)
    least = None if peak is None else flops * tokens / exp.mesh.size / peak
    found = compiled.find_collectives()
    splash = splash_seconds(compiled.custom_calls, exp.model, cfg.data.seq_len, tokens / exp.mesh.size, peak)
    seconds = {
        "as_compiled": None if chip is None or not compiled.cycles else compiled.cycles / chip.clock,
        "unrolled": None if chip is None or estimate is None else estimate.cycles / chip.clock,
        "optimal": None if estimate is None else estimate.optimal_seconds,
    }
    return {
        "objective": cfg.objective.name,
        "rows": cfg.train.batch_size,
        "microbatches": cfg.train.microbatches,
        "seq_len": cfg.data.seq_len,
        "compute_dtype": exp.model.compute_dtype,
        "remat": exp.model.remat,
        "unroll": exp.model.unroll,
        "dropout_prng": cfg.train.dropout_prng,
        "mesh": dict(exp.mesh.shape),
        "devices": exp.mesh.size,
        "device_kind": device.device_kind,
        "jax": jax.__version__,
        "compile_seconds": compiled.seconds,
        "state_bytes": compiled.state_bytes,
        "temporary_bytes": compiled.temporary_bytes,
        "memory_bytes": None if chip is None else chip.memory,
        "flops_per_token": flops,
        "tokens_per_step": tokens,
        "collectives": _kinds(found),
        "unknown_loops": sum(each.times is None for each in found),
        "wire_seconds": None if chip is None else collective_seconds(found, chip),
        "custom_calls": dict(compiled.custom_calls),
        "splash_seconds": splash,
        "estimated_seconds": seconds,
        "estimated_mfu": {name: _share(least, each, splash) for name, each in seconds.items()},
    }


def collective_seconds(found: list[Collective], chip: ChipSpec) -> float:
    """If each collective had one ring of chips to itself, both ways, and nothing ran beside it."""
    total = 0.0
    for each in found:
        size = each.group_size or 2
        passes = {"all-reduce": 2.0 * (size - 1) / size, "collective-permute": 1.0, "all-to-all": 0.25}
        share = passes.get(each.kind, (size - 1) / size)
        total += (each.times or 1) * share * each.bytes / (2 * chip.link)
    return total


def splash_seconds(
    calls: Counter[str], config: EncoderConfig, length: int, tokens: float, peak: float | None
) -> float | None:
    """What the kernels of attention would take at `SPLASH_RATE` of the peak, heads padded; None without any.

    They multiply queries and keys anew for each of the two slopes. Local layers are taken to see their window only.
    """
    if peak is None or not calls[_KERNEL]:
        return None
    heads = config.num_heads * -(-config.head_dim // _LANES) * _LANES
    local = sum(config.is_local(layer) for layer in range(config.num_layers))
    padded = -(-length // _LANES) * _LANES
    keys = (config.num_layers - local) * padded + local * min(padded, 3 * _LANES)
    return 2.0 * _PRODUCTS * tokens * heads * keys / (SPLASH_RATE * peak)


def format_metrics(figures: Mapping[str, Any]) -> list[str]:
    chips = figures["devices"]
    state, more = figures["state_bytes"], figures["temporary_bytes"]
    whole = figures["memory_bytes"]
    of = "" if whole is None else f" of {_gib(whole)} ({100 * (state + more) / whole:.0f} %)"
    flops = figures["flops_per_token"]
    work = flops * figures["tokens_per_step"] / chips
    several = "" if figures["microbatches"] == 1 else f" in {figures['microbatches']} microbatches"
    lines = [
        f"{figures['objective']}, {figures['rows']} rows of {figures['seq_len']} tokens{several}, products in "
        f"{figures['compute_dtype']}, remat {figures['remat']}, dropout bits by {figures['dropout_prng']}",
        f"mesh           {_mesh(figures['mesh'])} = {chips} x {figures['device_kind']}, compiled only: nothing ran",
        f"compile        {figures['compile_seconds']:.1f} s",
        f"memory a chip  state {_gib(state)} + temporary {_gib(more)} = {_gib(state + more)}{of}",
        f"model FLOPs    {flops / 1e6:,.1f} M a token, {work:.3e} a chip and step",
        f"               {FLOPS_FORMULA}; rows taken to be full",
        *_collective_lines(figures),
    ]
    return lines + _time_lines(figures)


def _collective_lines(figures: Mapping[str, Any]) -> list[str]:
    lines = [f"{'collectives a step':<24} {'along':<18} {'count':>7} {'MiB a chip':>12}"]
    for each in figures["collectives"]:
        axes = " ".join(each["axes"]) or "?"
        lines.append(f"  {each['kind']:<22} {axes:<18} {each['count']:>7,} {each['bytes'] / 2**20:>12,.2f}")
    if not figures["collectives"]:
        lines.append("  none")
    if figures["unknown_loops"]:
        lines.append(f"  {figures['unknown_loops']} of them in loops of unknown length, counted once")
    return lines


def _time_lines(figures: Mapping[str, Any]) -> list[str]:
    """Estimates, called so."""
    if figures["memory_bytes"] is None:
        return ["time           no estimate: the compiler for this device makes none"]
    lines = ["time           ESTIMATES of the compiler, not measured, without what chips send each other:"]
    for name, what in _ESTIMATES.items():
        seconds, share = figures["estimated_seconds"][name], figures["estimated_mfu"][name]
        told = "none" if seconds is None else f"{_ms(seconds):>10}   would be an MFU of {100 * share:.1f} %"
        lines.append(f"  {what:<46} {told}")
    if figures["splash_seconds"] is not None:
        lines.append(
            f"  {'+ splash kernels, no estimate':<46} {_ms(figures['splash_seconds']):>10}   assumed: "
            f"{100 * SPLASH_RATE:.0f} % of the peak; in each MFU"
        )
    wire = _ms(figures["wire_seconds"])
    lines.append(f"  {'collectives, if nothing hid them':<46} {wire:>10}   assumed: each has a ring of links")
    for target, count in figures["custom_calls"].items():
        lines.append(f"  no estimate for custom call {target}: {count:,} a step")
    return lines


def _kinds(found: list[Collective]) -> list[dict[str, Any]]:
    return [
        {"kind": kind, "axes": list(axes), "count": count, "bytes": size}
        for (kind, axes), (count, size) in totals_by_kind(found).items()
    ]


def _share(least: float | None, seconds: float | None, more: float | None) -> float | None:
    return None if least is None or seconds is None else least / (seconds + (more or 0.0))


def _mesh(sizes: Mapping[str, int]) -> str:
    return " x ".join(f"{name}={size}" for name, size in sizes.items())


def _gib(size: float) -> str:
    return f"{size / 2**30:,.2f} GiB" if size >= 2**29 else f"{size / 2**20:,.1f} MiB"


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:,.1f} ms"
