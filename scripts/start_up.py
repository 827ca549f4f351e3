"""Measures the time from the command to the first step, and compile times at two depths.

    python scripts/start_up.py                      # the quickstart without caches, and again with them
    python scripts/start_up.py --compile base large # seconds to trace and to compile the step of these sizes

The first starts `bertjax pretrain` as its own process with an empty cache, waits for the line of its first step, stops
it, and starts it again with the caches. The second compiles `configs/bert.py:SIZE` at 512 tokens without any cache,
layers unrolled and scanned, interleaved, and compares the sizes.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jax

from bertjax.config.overrides import apply_overrides, load_config
from bertjax.errors import UserError
from bertjax.experiment import build
from bertjax.experiment.abstract_inputs import abstract_batch, placeholder_vocabulary

ROOT = Path(__file__).parents[1]


def first_step(workdir: Path, cache: Path) -> float:
    """Returns the seconds from the command to the line of the first step."""
    settings = [f"--config.data.cache_dir={cache}", "--config.train.log_interval_steps=1"]
    command = [sys.executable, "-u", "-m", "bertjax", "pretrain", "--config", str(ROOT / "configs/quickstart.py")]
    environment = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
    began = time.monotonic()
    with subprocess.Popen(
        [*command, "--workdir", str(workdir), *settings],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        env=environment,
    ) as process:
        assert process.stdout is not None
        text = []
        for line in process.stdout:
            text.append(line.strip())
            if line.startswith("step 1/"):
                seconds = time.monotonic() - began
                process.kill()
                return seconds
    raise UserError(f"the quickstart made no step: {' / '.join(text[-3:])}")


def start_ups(turns: int) -> None:
    results: dict[str, list[float]] = {"nothing prepared or compiled": [], "both there": []}
    for _ in range(turns):
        with tempfile.TemporaryDirectory(prefix="bertjax-start-up-") as folder:
            for number, times in enumerate(results.values()):
                times.append(first_step(Path(folder, f"run-{number}"), Path(folder, "cache")))
    print("| quickstart | seconds to the first step |\n|---|---|")
    for name, times in results.items():
        print(f"| {name} | {statistics.median(times):.1f} ({min(times):.1f} to {max(times):.1f}) |")


def seconds_to_compile(size: str, unroll: int | None, rows: int) -> tuple[float, float]:
    """Returns the seconds to trace and lower the step, and to compile it."""
    values = ["compile_cache=false", "mesh.data=1", "train.phases=", "data.seq_len=512", f"train.batch_size={rows}"]
    values += [] if unroll is None else [f"model.unroll={unroll}"]
    cfg = apply_overrides(load_config(f"{ROOT / 'configs/bert.py'}:{size}"), [f"--config.{each}" for each in values])
    exp = build.make_experiment(cfg, placeholder_vocabulary(cfg.data.vocab_size))
    with jax.set_mesh(exp.mesh):
        inputs = exp.abstract_state(), exp.frozen, abstract_batch(exp)
        began = time.perf_counter()
        lowered = exp.train_step.lower(*inputs)
        between = time.perf_counter()
        lowered.compile()
        return between - began, time.perf_counter() - between


def compile_times(sizes: list[str], turns: int, rows: int) -> None:
    ways = {"layers as the platform has them": None, "layers scanned": 1}
    results: dict[tuple[str, str], list[tuple[float, float]]] = {(way, size): [] for way in ways for size in sizes}
    for _ in range(turns):
        for way, size in results:
            results[way, size].append(seconds_to_compile(size, ways[way], rows))
    print("| step at 512 tokens | size | traced, s | compiled, s | over the first size |\n|---|---|---|---|---|")
    for way in ways:
        totals = {}
        for size in sizes:
            traced, compiled = (statistics.median(times) for times in zip(*results[way, size], strict=True))
            totals[size] = traced + compiled
            ratio = totals[size] / totals[sizes[0]]
            print(f"| {way} | {size} | {traced:.1f} | {compiled:.1f} | {ratio:.2f} |")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--compile", nargs="+", metavar="SIZE", help="compile the steps of these sizes instead")
    parser.add_argument("--rows", type=int, default=8, help="of the compiled steps (default 8)")
    options = parser.parse_args()
    try:
        if options.compile:
            compile_times(options.compile, options.repeats, options.rows)
        else:
            start_ups(options.repeats)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
