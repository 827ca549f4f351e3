"""`bertjax compile`: the step of a config, compiled for devices that need not be there, and what it would need."""

from __future__ import annotations

import json
from pathlib import Path

from ml_collections import ConfigDict

from bertjax.aot.compile import compile_step, estimate_step
from bertjax.aot.report import format_metrics, step_metrics
from bertjax.aot.topology import tpu_devices, virtual_devices
from bertjax.errors import UserError


def compile_ahead(
    cfg: ConfigDict, topology: str | None, devices: int | None, estimate: bool = True, out: Path | None = None
) -> None:
    """Prints what the last stage of a run would need on a TPU slice or on virtual devices; `out` keeps it as JSON."""
    if (topology is None) == (devices is None):
        raise UserError("say what to compile for: --topology, such as v5e-16, or --devices N for N virtual CPU devices")
    if out is not None and not out.resolve().parent.is_dir():
        raise UserError(f"--out {out}: there is no folder {out.resolve().parent}")
    cfg.platform = "any"  # that of the topology, whatever this machine is
    found = tpu_devices(topology) if topology is not None else virtual_devices(devices or 0)
    compiled = compile_step(cfg, found)
    figures = step_metrics(compiled, estimate_step(cfg, found) if estimate else None)
    print("\n".join(format_metrics(figures)))
    if out is not None:
        out.write_text(json.dumps({"topology": topology} | figures, indent=2) + "\n", encoding="utf-8")
        print(f"all figures: {out}")
