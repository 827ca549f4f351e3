"""Prints the memory of a training step on one device: rematerialization (model.remat) by microbatches, as a table.

    python scripts/memory_table.py --sizes base large --rows 32 --microbatches 1 2 4 8 --out memory.md

Nothing is trained or allocated: the step is compiled for one device of the current platform and the compiler's own
account of its buffers is read, as `--config.dry_run=true` does. The state (weights, two moments) is a separate column.
Layers are scanned (`--unroll 1`), as rematerialization needs. FLOPs are those of all matmuls of the traced step, loops
counted by their trip counts, relative to the step without rematerialization. A CPU keeps activations in float32, an
accelerator in bfloat16, so the numbers of one do not apply to the other: the table names its platform.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr
from ml_collections import ConfigDict

from bertjax.config.fields import settings_of
from bertjax.config.model import EncoderConfig
from bertjax.config.overrides import apply_overrides, copy_config, load_config
from bertjax.errors import UserError
from bertjax.experiment import build
from bertjax.experiment.config import parse
from bertjax.experiment.dry_run import abstract_batch
from bertjax.training.flops import bytes_per_device
from bertjax.types import Vocabulary, padded_vocab_size

CONFIG = Path(__file__).parents[1] / "configs" / "bert.py"
GIB = 2.0**30


class Cell(NamedTuple):
    """One way to run the step: bytes per device without the state, FLOPs of its matmuls."""

    step_bytes: int
    flops: float


def products(jaxpr: Jaxpr) -> float:
    """Returns the FLOPs of all matmuls, loops counted by their trip counts."""
    total = 0.0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            left: Any = equation.invars[0].aval
            result: Any = equation.outvars[0].aval
            total += 2.0 * math.prod(result.shape) * math.prod(left.shape[axis] for axis in contracted)
        repeats = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
        total += repeats * sum(products(inner) for value in equation.params.values() for inner in _programs(value))
    return total


def _programs(value: Any) -> list[Jaxpr]:
    """Returns the programs in a parameter of an operation."""
    if isinstance(value, ClosedJaxpr):
        return [value.jaxpr]
    if isinstance(value, Jaxpr):
        return [value]
    if isinstance(value, (tuple, list)):
        return [inner for each in value for inner in _programs(each)]
    return []


def vocabulary(size: int) -> Vocabulary:
    """Returns a stand-in vocabulary of that size."""
    ones = np.ones(size, bool)
    return Vocabulary(size, padded_vocab_size(size), 0, 1, 2, 3, 4, (0, 1, 2, 3, 4), ones, ones.astype(np.int64))


def config_of(size: str, options: argparse.Namespace, overrides: Sequence[str]) -> ConfigDict:
    cfg = load_config(f"{options.config}:{size}" if size else options.config)
    cfg.train.phases = ()
    cfg.train.initial_batch_size = cfg.train.batch_ramp_steps = None
    cfg.data.seq_len, cfg.train.batch_size, cfg.model.unroll = options.length, options.rows, options.unroll
    cfg.mesh.data = cfg.mesh.fsdp = cfg.mesh.tensor = 1
    return apply_overrides(cfg, overrides)


def state_bytes(cfg: ConfigDict) -> int:
    exp = build.make_experiment(cfg, vocabulary(cfg.data.vocab_size))
    return bytes_per_device(exp.abstract_state(), exp.mesh)


def measure(cfg: ConfigDict) -> Cell:
    """Compiles the step of a config for the device."""
    parse(cfg)
    exp = build.make_experiment(cfg, vocabulary(cfg.data.vocab_size))
    with jax.set_mesh(exp.mesh):
        traced = exp.train_step.trace(exp.abstract_state(), exp.frozen, abstract_batch(exp))
        on_cpu = exp.mesh.devices.flat[0].platform == "cpu"
        # LLVM's optimizations change no buffer, and are most of the time.
        compiled = traced.lower().compile({"xla_backend_optimization_level": 0} if on_cpu else None)
    analysis = compiled.memory_analysis()
    if analysis is None:
        raise UserError("this backend does not tell the memory of a compiled step")
    return Cell(analysis.temp_size_in_bytes, products(traced.jaxpr.jaxpr))


def table(size: str, options: argparse.Namespace, overrides: Sequence[str]) -> list[str]:
    """Returns the lines of a size, in Markdown."""
    cfg = config_of(size, options, overrides)
    held = state_bytes(cfg)
    half = state_bytes(apply_overrides(copy_config(cfg), ["--config.optimizer.moments_dtype=bfloat16"]))
    cells: dict[tuple[str, int], Cell] = {}
    for remat in options.remat:
        for parts in options.microbatches:
            cfg.model.remat, cfg.train.microbatches = remat, parts
            began = time.monotonic()
            cells[remat, parts] = cell = measure(cfg)
            seconds = time.monotonic() - began
            print(
                f"  {size} remat={remat} microbatches={parts}: {cell.step_bytes / GIB:.2f} GiB without the state "
                f"({seconds:.0f} s)",
                file=sys.stderr,
                flush=True,
            )
    minimum = min(cell.flops for cell in cells.values())
    kind = jax.devices()[0].device_kind
    several = " | ".join(f"{parts} microbatch{'es' if parts > 1 else ''}" for parts in options.microbatches)
    lines = [
        f"{cfg.model.preset}, {cfg.train.batch_size} rows of {cfg.data.seq_len} tokens, compiled for {kind} by jax "
        f"{jax.__version__}; state {held / GIB:.2f} GiB ({half / GIB:.2f} with `optimizer.moments_dtype=bfloat16`); "
        "GiB of a device, state included:",
        "",
        f"| `model.remat` | FLOPs | {several} |",
        "|---|---" + "|---" * len(options.microbatches) + "|",
    ]
    for remat in options.remat:
        row = [cells[remat, parts] for parts in options.microbatches]
        sizes = " | ".join(f"{(held + cell.step_bytes) / GIB:.1f}" for cell in row)
        lines.append(f"| {remat} | {row[0].flops / minimum:.2f} | {sizes} |")
    return [*lines, ""]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, epilog="--config.KEY=VALUE as ever"
    )
    parser.add_argument("--config", default=str(CONFIG), help="a config file, without its size")
    parser.add_argument("--sizes", nargs="+", default=["base", "large"], help="arguments of the config file; '' = none")
    parser.add_argument("--rows", type=int, default=32, help="sequences per batch")
    parser.add_argument("--length", type=int, default=512, help="tokens of a row")
    parser.add_argument("--microbatches", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument(
        "--remat",
        nargs="+",
        default=list(settings_of(EncoderConfig)["remat"].choices),
        choices=settings_of(EncoderConfig)["remat"].choices,
    )
    parser.add_argument("--unroll", type=int, default=1, help="layers unrolled")
    parser.add_argument("--out", type=Path, help="write the tables to this file, too")
    options, overrides = parser.parse_known_args()
    try:
        lines: list[str] = []
        for size in options.sizes:
            lines += table(size, options, overrides)
            if options.out is not None:
                options.out.write_text("\n".join(lines), encoding="utf-8")
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
