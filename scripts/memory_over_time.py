"""Measures resident memory, open files and threads of `bertjax pretrain` over a long run.

    python scripts/memory_over_time.py --out memory --config quickstart --config.train.num_steps=5000 \\
        --config.eval.interval_steps=250 --config.checkpoint.interval_steps=100

Runs the command in a temporary work directory and reads its /proc every `--every` steps. Writes OUT.csv and a chart,
OUT.svg, and prints the growth of the resident size by least squares over the second half of the run, in KiB per 1,000
steps; the first half contains one-time allocations. Linux only.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 300, 64, 40, 34, 36  # of the picture
COLORS = {"resident MiB": "#1f6fb4", "open files": "#c25b12"}


class Sample(NamedTuple):
    """Resources of a process after a step."""

    step: int
    seconds: float
    resident_kib: int
    open_files: int
    threads: int


def sample(pid: int, step: int, seconds: float) -> Sample:
    process = Path("/proc") / str(pid)
    status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines() if ":" in line)
    resident, threads = (int(status[name].split()[0]) for name in ("VmRSS", "Threads"))
    return Sample(step, seconds, resident, len(os.listdir(process / "fd")), threads)


def watch(command: list[str], workdir: Path, every: int) -> list[Sample]:
    """Runs the command to its end and samples it every so many steps."""
    process = subprocess.Popen([*command, "--workdir", str(workdir)], stdout=subprocess.DEVNULL)
    begin, next_step, samples = time.monotonic(), 1, []
    while process.poll() is None:
        step = last_step(workdir / "metrics.jsonl")
        if step >= next_step:
            try:
                samples.append(sample(process.pid, step, time.monotonic() - begin))
            except (OSError, KeyError):  # it has just ended
                break
            next_step = step + every
        time.sleep(0.02)
    if process.wait() != 0:
        raise SystemExit(process.returncode)
    return samples


def last_step(file: Path) -> int:
    """Returns the step of the last complete line; 0 before the first."""
    if not file.exists():
        return 0
    with file.open("rb") as handle:
        handle.seek(max(0, file.stat().st_size - 8192))
        lines = handle.read().split(b"\n")[1:-1]
    return json.loads(lines[-1])["step"] if lines else 0


def growth(samples: Sequence[Sample]) -> float:
    """Returns KiB per 1,000 steps, by least squares over the second half of the steps."""
    late = [each for each in samples if each.step > samples[-1].step / 2]
    return float(np.polyfit([each.step for each in late], [each.resident_kib for each in late], 1)[0]) * 1000


def picture(samples: Sequence[Sample], title: str) -> str:
    """Returns an SVG of resident size (left axis) and open files (right axis) over the steps."""
    sizes, files = [each.resident_kib / 1024 for each in samples], [each.open_files for each in samples]
    last, max_size, max_files = samples[-1].step, _ceiling(max(sizes)), _ceiling(max(files))
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM

    def across(step: float) -> float:
        return LEFT + (right - LEFT) * step / last

    def up(maximum: float) -> Callable[[float], float]:
        return lambda value: bottom - (bottom - TOP) * value / maximum

    def line(values: Sequence[float], maximum: float, name: str) -> str:
        points = " ".join(f"{across(s.step):.1f},{up(maximum)(v):.1f}" for s, v in zip(samples, values, strict=True))
        return f'<polyline points="{points}" fill="none" stroke="{COLORS[name]}" stroke-width="1.5"/>'

    def label(x: float, y: float, words: object, anchor: str = "middle", color: str = "#333") -> str:
        return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" fill="{color}">{words}</text>'

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="11">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        label(LEFT, 14, title, "start"),
    ]
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y, x = bottom - (bottom - TOP) * share, across(last * share)
        parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(label(LEFT - 6, y + 4, f"{max_size * share:,.0f}", "end", COLORS["resident MiB"]))
        parts.append(label(right + 6, y + 4, f"{max_files * share:.0f}", "start", COLORS["open files"]))
        parts.append(label(x, bottom + 15, f"{last * share:,.0f}"))
    parts.append(label((LEFT + right) / 2, HEIGHT - 6, "steps"))
    parts.append(label(LEFT, TOP - 6, "resident MiB", "start", COLORS["resident MiB"]))
    parts.append(label(right, TOP - 6, "open files", "end", COLORS["open files"]))
    parts += [line(sizes, max_size, "resident MiB"), line(files, max_files, "open files")]
    return "\n".join([*parts, "</svg>", ""])


def _ceiling(value: float) -> float:
    """Returns the next number above that ends an axis well."""
    unit = 10.0 ** np.floor(np.log10(max(value, 1.0)))
    return float(next(unit * factor for factor in (1, 1.2, 1.6, 2, 4, 6, 8, 10) if unit * factor >= value))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the files' names without .csv and .svg")
    parser.add_argument("--every", type=int, default=20, help="steps between two samples (default 20)")
    options, arguments = parser.parse_known_args()
    command = [sys.executable, "-m", "bertjax", "pretrain", *arguments, "--config.train.log_interval_steps=5"]
    with tempfile.TemporaryDirectory() as folder:
        samples = watch(command, Path(folder) / "run", options.every)
    if len(samples) < 4:
        print("too few samples; more steps, or a smaller --every", file=sys.stderr)
        return 1
    with options.out.with_suffix(".csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(Sample._fields)
        writer.writerows(each._replace(seconds=round(each.seconds, 2)) for each in samples)
    first, last = samples[0], samples[-1]
    middle = next(each for each in samples if each.step > last.step / 2)
    text = f"{growth(samples):+.0f} KiB per 1,000 steps over the second half"
    options.out.with_suffix(".svg").write_text(picture(samples, f"{last.step:,} steps: {text}"), encoding="utf-8")
    print(f"{len(samples)} samples in {last.step} steps, {last.seconds:.0f} s")
    for name, at in (("first", first), ("half", middle), ("last", last)):
        print(f"{name:6} {at.resident_kib / 1024:8.1f} MiB {at.open_files:4} open files {at.threads:4} threads")
    print(f"resident size: {text}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
