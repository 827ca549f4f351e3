"""Runs everything that is measured on a GPU and writes the results and a table that compares them with targets.

    python scripts/on_gpu.py --out runs/on_gpu --text 'text:corpus/*.txt'
    python scripts/on_gpu.py --out runs/smoke --smoke            on a CPU, tiny sizes: does every job still run?

Each job is a process with a log, a time and a limit, most valuable first: fused attention against the reference,
training steps against those of the CPU, steps of the models with targets, the same in PyTorch, a BERT-base that trains
for some minutes and is exported, transformers reading that export, the quickstart, then the published dropout, scanned
layers, rematerialization, 16-bit moments, plain attention, XLA flags, other families, small models with several steps
per dispatch, the memory table, and the ordinary tests on the GPU and on the CPU of that machine. A job that measures
steps takes its rows one after the other (measure_steps.py) and goes on with the next row after a crash. OUT/table.md
and OUT/all.json (every metric and the end of every log) are rewritten after each job, and what XLA tuned for a job's
rows is in OUT/NAME.autotune.txt. The same command runs what is missing (`--again` repeats), `--minutes` starts nothing
after so long; `--only` takes names of jobs and rows, or beginnings that end with `*`; `--list` prints them. What failed
is reported and the others continue; the exit status is then 1.
"""

from __future__ import annotations

import argparse
import fnmatch
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from gpu_jobs import RATIO_TARGET, ROOT, TORCH, Job, Plan, Row

PACKAGES = ("jax", "jaxlib", "flax", "optax", "transformers", "torch", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13")
LOG_LINES, LEAST_SECONDS, TOO_LONG = 40, 20.0, 124


def do(job: Job, out: Path, limit: float, again: Collection[str] = ()) -> dict[str, Any]:
    """Runs a job to its end or time limit, its rows also past a crash, and writes `name.done.json`."""
    (out / f"{job.name}.log").write_text("", encoding="utf-8")
    _set_rows(job, out, again)
    began, begun = time.monotonic(), len(_lines(out / f"{job.name}.begun"))
    while (status := _start(job, out, limit - (time.monotonic() - began))) not in (0, TOO_LONG):
        before, begun = begun, len(_lines(out / f"{job.name}.begun"))
        if begun == before:
            break
    failed = missing(job, out) if job.rows else []
    saved: dict[str, Any] = {"status": status or int(bool(failed)), "seconds": time.monotonic() - began}
    saved |= {"flags": job.flags, "command": job.command}
    if saved["status"] != 0:
        last = [line for line in _lines(out / f"{job.name}.log") if line.strip()][-1:]
        message = {0: "no result", TOO_LONG: "took too long"}.get(status, "".join(last)[:200])
        saved["message"] = ": ".join([message, *([", ".join(failed)] if failed else [])])
    (out / f"{job.name}.done.json").write_text(json.dumps(saved, indent=1), encoding="utf-8")
    return saved


def _set_rows(job: Job, out: Path, again: Collection[str]) -> None:
    """Writes the rows, those that ended their process last, and forgets what failed and what is to be repeated."""
    measured = results(job, out)
    rows = sorted(job.rows, key=lambda row: row.name in measured)
    retained = [each for name, each in measured.items() if "error" not in each and name not in again]
    values = [
        {"name": row.name, "config": str(ROOT / "configs" / row.config), "overrides": row.overrides} for row in rows
    ]
    if rows:
        (out / f"{job.name}.json").write_text(json.dumps(values, indent=1), encoding="utf-8")
        (out / f"{job.name}.begun").write_text("".join(f"{each['name']}\n" for each in retained), encoding="utf-8")
        (out / f"{job.name}.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in retained), encoding="utf-8")


def _start(job: Job, out: Path, limit: float) -> int:
    environment = dict(os.environ) | dict(job.environment)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), environment.get("PYTHONPATH", ""))))
    if job.flags:
        environment["XLA_FLAGS"] = f"{environment.get('XLA_FLAGS', '')} {job.flags}".strip()
    with (out / f"{job.name}.log").open("a", encoding="utf-8") as log:
        try:
            return subprocess.run(
                job.command, stdout=log, stderr=subprocess.STDOUT, env=environment, cwd=ROOT, timeout=limit, check=False
            ).returncode
        except subprocess.TimeoutExpired:
            return TOO_LONG


def done(name: str, out: Path) -> dict[str, Any] | None:
    file = out / f"{name}.done.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else None


def results(job: Job, out: Path) -> dict[str, Any]:
    """Returns the result of every row that was begun, by name."""
    outcomes: dict[str, Any] = {
        name: {"name": name, "error": "its process ended"} for name in _lines(out / f"{job.name}.begun")
    }
    return outcomes | {each["name"]: each for each in map(json.loads, _lines(out / f"{job.name}.jsonl"))}


def missing(job: Job, out: Path) -> list[str]:
    """Returns the names of the rows without a result, or that of the job unless it succeeded."""
    if job.rows:
        measured = results(job, out)
        return [name for name in job.parts if "error" in measured.get(name, {"error": ""})]
    saved = done(job.name, out)
    return [] if saved is not None and saved["status"] == 0 else [job.name]


def _lines(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8", errors="replace").splitlines() if file.exists() else []


def select(jobs: Sequence[Job], names: Sequence[str]) -> list[Job]:
    """Returns the jobs that are named, and those with rows that are, with these rows."""

    def is_named(name: str) -> bool:
        return any(fnmatch.fnmatchcase(name, each) for each in names)

    chosen = [
        job if is_named(job.name) else job._replace(rows=tuple(row for row in job.rows if is_named(row.name)))
        for job in jobs
    ]
    return [job for job in chosen if job.rows or is_named(job.name)]


def collect(jobs: Sequence[Job], out: Path) -> dict[str, Any]:
    """Returns status, metrics and the last lines of the log of every job that has run."""
    collected: dict[str, Any] = {"machine": machine(out)}
    for job in jobs:
        saved = done(job.name, out)
        if saved is not None:
            log = _lines(out / f"{job.name}.log")[-LOG_LINES:]
            collected[job.name] = saved | {"metrics": results(job, out), "log": log}
            curve = _lines(out / "runs" / job.name / "metrics.jsonl")
            if curve:
                collected[job.name]["curve"] = curve
    return collected


def table(jobs: Sequence[Job], out: Path, smoke: bool) -> list[str]:
    """Returns a line for every row that was begun, PyTorch's after ours, and for every job that has run."""
    lines = [
        f"Machine: {machine(out)}",
        *(["", "A smoke test on a CPU, of tiny models: the numbers mean nothing."] if smoke else []),
        "",
        "| step | real tokens/s | floor, goal | reached | MFU | step ms | waits | compile s | GiB | over PyTorch |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    others = ["", "| job or step | status | seconds |", "|---|---|---|"]
    measured = {name: each for job in jobs for name, each in results(job, out).items()}
    rows = {row.name: row for job in jobs for row in job.rows}
    names = list(rows)
    for name in sorted(names, key=lambda name: (names.index(name.removeprefix(TORCH)), name.startswith(TORCH))):
        if "error" in measured.get(name, {}):
            message = " ".join(measured[name]["error"].replace("|", "/").split())
            others.append(f"| {name} | **failed**: {message} | |")
        elif name in measured:
            ours = measured.get(name.removeprefix(TORCH), {})
            lines.append(line(rows[name], measured[name], ours, measured.get(TORCH + name, {})))
    for job in jobs:
        saved = done(job.name, out)
        if saved is not None:
            message = "passed" if saved["status"] == 0 else f"**failed**: {saved['message']}".replace("|", "/")
            others.append(f"| {job.name} | {message} | {saved['seconds']:.0f} |")
    compiled = [measured.get(name, {}).get("compile_seconds", 0.0) for name in ("bert-base", "bert-large")]
    if all(compiled):
        ratio = compiled[1] / compiled[0]
        others += ["", f"Compiling BERT-large takes {ratio:.2f} times as long as BERT-base (target: at most 1.5)."]
    return [*lines, *others, ""]


def line(row: Row, metrics: dict[str, Any], ours: dict[str, Any], torch: dict[str, Any]) -> str:
    """Returns a line of the table; PyTorch's FLOPs per token are those of our row."""
    speed, mfu = metrics["tokens_per_second"]["median"], ours.get("mfu")
    target = reached = ratio = ""
    if row.floor:
        target = f"{row.floor / 1e3:,.0f} k, {row.goal / 1e3:,.0f} k"
        reached = f"{speed / row.floor:.2f}, {speed / row.goal:.2f}"
    if "tokens_per_second" in torch:
        ratio = (
            f"{speed / torch['tokens_per_second']['median']:.2f}{f' (target {RATIO_TARGET:g})' if row.floor else ''}"
        )
    utilization = f"{100 * mfu * speed / ours['tokens_per_second']['median']:.1f} %" if mfu else ""
    step_bytes = metrics.get("step_bytes")  # the peak is that of all rows so far
    gibibytes = (metrics["peak_bytes"] if step_bytes is None else step_bytes + metrics["state_bytes"]) / 2**30
    size = metrics["batch_size"]
    name = row.name if size == ours.get("batch_size", size) else f"{row.name} ({size} sequences)"
    return (
        f"| {name} | {speed:,.0f} | {target} | {reached} | {utilization} "
        f"| {1e3 * metrics['seconds_per_step']['median']:.1f} | {100 * metrics['data_wait']:.2f} % "
        f"| {metrics['compile_seconds']:.0f} | {gibibytes:.1f} | {ratio} |"
    )


def machine(out: Path) -> str:
    """Returns the GPU, its driver and versions, queried once."""
    file = out / "machine.txt"
    if not file.exists():
        message = "no nvidia-smi"
        if shutil.which("nvidia-smi"):
            query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total,power.limit", "--format=csv,noheader"]
            message = (
                subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip().replace("\n", "; ")
            )
        installed = {each.name: each.version for each in importlib.metadata.distributions()}
        versions = [f"{name} {installed[name]}" for name in PACKAGES if name in installed]
        file.write_text(f"{message}; {', '.join(versions)}", encoding="utf-8")
    return file.read_text(encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="directory of results, logs and table.md")
    parser.add_argument("--text", default="builtin:python-docs", help="data.sources (default builtin:python-docs)")
    parser.add_argument("--vocab-size", type=int, default=0, help="tokens of the tokenizer (default: the config's)")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes on a CPU: does everything run?")
    parser.add_argument("--only", nargs="+", default=[], help="names of jobs and rows, or beginnings with a *")
    parser.add_argument("--again", nargs="+", default=[], help="those to repeat")
    parser.add_argument("--list", action="store_true", help="print the names of the jobs and end")
    parser.add_argument("--repeats", type=int, default=5, help="turns of a benchmark (default 5)")
    parser.add_argument("--steps", type=int, default=20, help="steps of a turn (default 20)")
    parser.add_argument("--slower", type=float, default=1.0, help="times the limit of every job (default 1)")
    parser.add_argument("--minutes", type=float, default=1e6, help="ends after so long; run again for the rest")
    options = parser.parse_args()
    options.out = options.out.resolve()
    jobs = Plan(options).jobs()
    if options.list:
        print("\n".join(": ".join([job.name, *([", ".join(job.parts)] if job.rows else [])]) for job in jobs))
        return 0
    for name in (*options.only, *options.again):
        if not select(jobs, [name]):
            parser.error(f"unknown job {name}; --list prints them")
    options.out.mkdir(parents=True, exist_ok=True)
    selected = select(jobs, options.only or ["*"])
    again = {name for job in select(jobs, options.again) for name in job.parts}
    end = time.monotonic() + 60 * options.minutes
    for job in selected:
        left = end - time.monotonic()
        if left < LEAST_SECONDS:
            print(f"{job.name} and those after it were not started: --minutes={options.minutes:g} are over")
            break
        if missing(job, options.out) or again.intersection(job.parts):
            saved = do(job, options.out, min(options.slower * job.limit, left), again)
            print(f"{job.name}: {saved.get('message', 'done')} ({saved['seconds']:.0f} s)", flush=True)
        text = "\n".join(table(jobs, options.out, options.smoke))
        (options.out / "table.md").write_text(text, encoding="utf-8")
        (options.out / "all.json").write_text(json.dumps(collect(jobs, options.out), indent=1), encoding="utf-8")
    print(text)
    return int(any(missing(job, options.out) for job in selected))


if __name__ == "__main__":
    sys.exit(main())
