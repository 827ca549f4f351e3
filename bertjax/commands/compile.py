"""Compile the training step of a config for devices that need not be present."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from bertjax.errors import UserError

REQUIRES_CONFIG = True
EXAMPLE = "bertjax compile --config bert:base --topology v5e-256"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the flags of the command."""
    parser.add_argument("--topology", metavar="CHIPS", help="TPU slice or GPUs: v5e-256, v5e:4x4, v4:2x2x4, h100:1x8")
    parser.add_argument("--devices", type=int, metavar="N", help="N virtual CPU devices instead")
    parser.add_argument("--no-estimate", action="store_true", help="compile once, without an estimate of the time")
    parser.add_argument("--out", type=Path, metavar="FILE", help="JSON file for all metrics")


def run(options: argparse.Namespace) -> None:
    """Prints memory, FLOPs and collectives of the last phase of a run on a TPU slice, GPUs or virtual devices.

    Raises:
        UserError: neither devices nor a topology are chosen, or the folder of `--out` does not exist.
    """
    cfg, out = options.config, options.out
    if (options.topology is None) == (options.devices is None):
        raise UserError("set --topology, such as v5e-16 or h100:1x8, or --devices N for N virtual CPU devices")
    if out is not None and not out.resolve().parent.is_dir():
        raise UserError(f"--out {out}: the folder {out.resolve().parent} does not exist")
    import jax

    # nothing runs, so no accelerator is opened; a jax that is imported already does not read the environment
    os.environ["JAX_PLATFORMS"] = "cpu"
    jax.config.update("jax_platforms", "cpu")
    from bertjax.aot.compile import compile_step, estimate_step
    from bertjax.aot.report import format_metrics, step_metrics
    from bertjax.aot.topology import topology_devices, virtual_devices

    cfg.platform = "any"  # the platform of the topology, not of this machine
    devices = topology_devices(options.topology) if options.topology is not None else virtual_devices(options.devices)
    compiled = compile_step(cfg, devices)
    metrics = step_metrics(compiled, None if options.no_estimate else estimate_step(cfg, devices))
    print("\n".join(format_metrics(metrics)))
    if out is not None:
        out.write_text(json.dumps({"topology": options.topology} | metrics, indent=2) + "\n", encoding="utf-8")
        print(f"all metrics: {out}")
