"""The training step of a config, compiled for devices that need not be present."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import jax

from bertjax.commands.arguments import Config, Flag, Out, Overrides
from bertjax.commands.signatures import command
from bertjax.errors import UserError, named
from bertjax.experiment.config import command_config
from bertjax.io.atomic import write_json
from bertjax.io.output import Results, require_output
from bertjax.tools.compile_report import format_metrics, step_metrics
from bertjax.tools.compile_step import compile_step, estimate_step
from bertjax.tools.topology import topology_devices, virtual_devices


@command
def compile(
    config: Config,
    overrides: Overrides = None,
    *,
    topology: Annotated[str | None, Flag(metavar="CHIPS")] = None,
    devices: int | None = None,
    no_estimate: bool = False,
    out: Out = None,
) -> Results:
    """Compile the training step of a config for devices that need not be present.

    Args:
        topology: TPU slice or GPUs: v5e-256, v5e:4x4, v4:2x2x4, h100:1x8
        devices: that many virtual CPU devices instead
        no_estimate: compile once, without an estimate of the time
        out: JSON file for all metrics

    Returns:
        Memory, FLOPs and collectives of a step of the last phase.

    Raises:
        UserError: neither devices nor a topology are chosen, or both, or the folder of `out` does not exist.

    Example:
        bertjax compile --config bert:base --topology v5e-256
    """
    if (topology is None) == (devices is None):
        raise UserError(
            f"set {named('topology')}, such as v5e-16 or h100:1x8, or {named('devices')} for virtual CPU devices"
        )
    if out is not None:
        require_output(out)
    cfg = command_config(config, overrides)
    # nothing runs, so no accelerator is opened; jax, which is imported already, does not read the environment again
    os.environ["JAX_PLATFORMS"] = "cpu"
    jax.config.update("jax_platforms", "cpu")
    cfg.platform = "any"  # the platform of the topology, not of this machine
    chosen = topology_devices(topology) if topology is not None else virtual_devices(devices or 0)
    compiled = compile_step(cfg, chosen)
    metrics = {"topology": topology} | step_metrics(compiled, None if no_estimate else estimate_step(cfg, chosen))
    lines = format_metrics(metrics)
    if out is not None:
        write_json(Path(out), metrics, indent=2)
        lines = [*lines, f"all metrics: {out}"]
    return Results(metrics, lines)
