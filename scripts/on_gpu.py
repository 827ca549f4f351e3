"""Runs everything that is measured on a GPU and writes the results and a table that compares them with targets.

    python scripts/on_gpu.py --out runs/on_gpu --text 'text:corpus/*.txt'
    python scripts/on_gpu.py --out runs/smoke --smoke            on a CPU, tiny sizes: does every job still run?

Each job is its own process with a log, results, a time and a limit, most valuable first: fused attention against the
reference, training steps against those of the CPU, `bertjax benchmark` of the models with targets and against PyTorch,
a BERT-base that trains for some minutes and is exported, the quickstart, then the published dropout, scanned layers,
rematerialization, 16-bit moments, plain attention, XLA flags, other families, small models with several steps per
dispatch, the memory table, and the ordinary tests on the GPU and on the CPU of that machine. OUT/table.md and
OUT/all.json (every metric and the end of every log) are rewritten after each job, and what XLA tuned for a benchmark is
in OUT/NAME.autotune.txt. The same command runs what is missing (`--again` repeats a job), `--minutes` starts nothing
after so long; `--only` takes names, or beginnings of names that end with `*`; `--list` prints them. A failed job is
reported and the others continue; the exit status is then 1.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
FLAGS = {
    "no-command-buffers": "--xla_gpu_enable_command_buffer=",
    "latency-hiding": "--xla_gpu_enable_latency_hiding_scheduler=true",
    "no-triton-gemm": "--xla_gpu_enable_triton_gemm=false",
    "autotune-4": "--xla_gpu_autotune_level=4",
}
SMOKE_TESTS = ["tests/models/test_linear.py"]
LOG_LINES, LEAST_SECONDS = 40, 20.0


class Model(NamedTuple):
    """A model with targets in real tokens per second: required, and good."""

    config: str
    rows: int
    length: int
    overrides: tuple[str, ...] = ()
    floor: float = 0.0
    goal: float = 0.0


class Job(NamedTuple):
    """A command; `flags` go to XLA. A benchmark writes `OUT/name.json`."""

    name: str
    command: list[str]
    flags: str = ""
    model: Model | None = None
    ratio_target: float = 0.0
    limit: float = 240.0  # seconds
    environment: tuple[tuple[str, str], ...] = ()


PACKED = (
    "data.example_format=block",
    "data.packing=best_fit",
    "objective.masking.dynamic=true",
    "train.phases=",
)
# The best combination of the compiler's roofline: cuDNN's attention, which drops no probabilities, and fused norms.
FUSED = ("model.attention_dropout=0.0", "train.dropout_prng=hash", "model.norm_implementation=pallas")
MODELS = {
    "bert-base": Model("bert.py:base", 128, 512, (*PACKED, *FUSED), 500e3, 840e3),
    "bert-large": Model("bert.py:large", 64, 512, (*PACKED, *FUSED), 200e3, 247e3),
    "modernbert-base": Model(
        "modernbert.py:base", 64, 1024, ("train.initial_batch_size=None", "train.batch_ramp_steps=None"), 400e3, 600e3
    ),
}
FAMILIES = {  # without targets
    "modernbert-base-8192": Model(
        "modernbert.py:base", 8, 8192, (*MODELS["modernbert-base"].overrides, "model.max_position_embeddings=8192")
    ),
    "deberta-v3-base": Model("deberta.py:v3-base", 64, 512),
    "deberta-v3-base-pallas": Model("deberta.py:v3-base", 64, 512, ("model.attention_implementation=pallas",)),
    "electra-base": Model("electra.py:base", 128, 512),
    "xlnet-base": Model("xlnet.py:base", 64, 512),
    "xlnet-base-pallas": Model("xlnet.py:base", 64, 512, ("model.attention_implementation=pallas",)),
}
SMALL = {
    "bert-tiny": Model("bert.py:tiny", 256, 128, PACKED),
    "bert-mini": Model("bert.py:mini", 256, 128, PACKED),
    "bert-small": Model("bert.py:small", 256, 128, PACKED),
}
AUTOTUNE = "--xla_gpu_dump_autotune_results_to="
TOGETHER = (1, 8, 32)
RATIO_TARGET = 1.5
SMOKE_MODEL = ("model.num_layers=4", "model.hidden_size=64", "model.num_heads=2", "model.intermediate_size=128")


class Plan:
    """The jobs for the given options."""

    def __init__(self, options: argparse.Namespace):
        self.options = options

    def jobs(self) -> list[Job]:
        smoke, gpu = self.options.smoke, (("BERTJAX_TEST_PLATFORM", "gpu"),)
        kernels = [sys.executable, str(ROOT / "scripts" / "check_kernels.py")]
        kernels += ["--implementation", "interpret", "--lengths", "128", "--heads", "2"] if smoke else []
        check = [sys.executable, str(ROOT / "scripts" / "check_step.py"), "--cache", str(self.options.out / "cache")]
        check += ["--smoke"] if smoke else []
        results = [
            Job("kernels", kernels, limit=120),
            Job("check-step", check, limit=180),
            *(self._benchmark(name, model) for name, model in MODELS.items()),
            *(
                self._benchmark(f"{name}-against-hf", model, ratio_target=RATIO_TARGET, more=["--baseline", "hf"])
                for name, model in MODELS.items()
            ),
            Job("curve", self._train("curve", "bert.py:base", 10 if smoke else 2000, MODELS["bert-base"]), limit=900),
            Job("quickstart", self._train("quickstart", "quickstart.py", 20 if smoke else 3000), limit=300),
            Job("pallas-kernels", [*kernels[:2], "--implementation", "pallas", *kernels[4:]], limit=120),
        ]
        for name in ("bert-base", "bert-large")[: 1 if self.options.smoke else 2]:
            results += self._variants(name)
        results += [self._benchmark(name, model) for name, model in FAMILIES.items()]
        for name, model in list(SMALL.items())[: 1 if self.options.smoke else 3]:
            for count in TOGETHER:
                together = model._replace(overrides=(*model.overrides, f"train.steps_per_dispatch={count}"))
                results.append(self._benchmark(f"small-{name}-{count}-a-dispatch", together))
        results += [self._memory(), Job("tests", self._pytest(6), limit=900, environment=() if smoke else gpu)]
        return [*results, *([] if smoke else [Job("tests-on-cpu", self._pytest(14), limit=1800)])]

    def _pytest(self, workers: int) -> list[str]:
        files = SMOKE_TESTS if self.options.smoke else []
        return [sys.executable, "-m", "pytest", "-q", "-n", "0" if files else str(workers), *files]

    def _train(self, name: str, config: str, num_steps: int, model: Model | None = None) -> list[str]:
        """Returns a run in OUT/runs/NAME that evaluates ten times and exports; `model` gives batches and text."""
        values = [f"platform={'cpu' if self.options.smoke else 'gpu'}", f"train.num_steps={num_steps}"]
        values += [f"eval.interval_steps={num_steps // 10}", f"train.log_interval_steps={-(-num_steps // 100)}"]
        values += ["export.at_end=true", f"checkpoint.interval_steps={num_steps}"]
        if model is not None:
            values += [*model.overrides, *self._size(model)]
        command = [sys.executable, "-m", "bertjax", "pretrain", "--config", str(ROOT / "configs" / config)]
        return [*command, "--workdir", str(self.options.out / "runs" / name), *(f"--config.{each}" for each in values)]

    def _size(self, model: Model) -> list[str]:
        """Returns values of the text and of the shape of a batch."""
        options = self.options
        rows, length = (8, 64) if options.smoke else (model.rows, model.length)
        values = [
            f"data.sources={options.text}",
            f"data.seq_len={length}",
            f"train.batch_size={rows}",
            f"data.cache_dir={options.out / 'cache'}",
        ]
        if options.smoke:  # kernels of Pallas would be interpreted, for minutes
            return [*values, *SMOKE_MODEL, "data.vocab_size=1000", "model.norm_implementation=xla"]
        return values + ([f"data.vocab_size={options.vocab_size}"] if options.vocab_size else [])

    def _variants(self, name: str) -> list[Job]:
        """Returns variants that change one thing each."""
        model = MODELS[name]
        changes = {
            "published-dropout": ("model.attention_dropout=0.1",),  # plain attention
            "published-dropout-pallas": ("model.attention_dropout=0.1", "model.attention_implementation=pallas"),
            "scanned": ("model.unroll=1",),
            "remat-dots": ("model.remat=dots",),
            "remat-full": ("model.remat=full",),
            "2-microbatches": ("train.microbatches=2",),
            "moments-bfloat16": ("optimizer.moments_dtype=bfloat16",),
            "plain-attention": ("model.attention_implementation=xla",),
            "pallas-attention": ("model.attention_implementation=pallas",),
            "norms-by-xla": ("model.norm_implementation=xla",),
            "rbg": ("train.dropout_prng=rbg", "model.norm_implementation=xla"),
            "threefry": ("train.dropout_prng=threefry", "model.norm_implementation=xla"),
            "no-dropout": ("model.hidden_dropout=0",),
        }
        results = [
            self._benchmark(f"{name}-{key}", model._replace(overrides=(*model.overrides, *values)))
            for key, values in changes.items()
        ]
        return results + [self._benchmark(f"{name}-{key}", model, flags=flags) for key, flags in FLAGS.items()]

    def _benchmark(
        self, name: str, model: Model, flags: str = "", ratio_target: float = 0.0, more: Sequence[str] = ()
    ) -> Job:
        options = self.options
        values = [*model.overrides, f"platform={'cpu' if options.smoke else 'gpu'}", *self._size(model)]
        flags = flags if options.smoke else f"{flags} {AUTOTUNE}{options.out / name}.autotune.txt".strip()
        amounts = ("1", "2", "1") if options.smoke else (str(options.repeats), str(options.steps), "5")
        command = [sys.executable, "-m", "bertjax", "benchmark", "--config", str(ROOT / "configs" / model.config)]
        command += ["--repeats", amounts[0], "--steps", amounts[1], "--warmup", amounts[2], *more]
        command += ["--no-compile"] if options.smoke and more else []
        command += ["--out", str(options.out / f"{name}.json"), *(f"--config.{value}" for value in values)]
        return Job(name, command, flags, model, ratio_target, limit=480.0 if ratio_target else 240.0)

    def _memory(self) -> Job:
        command = [
            sys.executable,
            str(ROOT / "scripts" / "memory_table.py"),
            "--out",
            str(self.options.out / "memory.md"),
        ]
        small = ["--sizes", "tiny", "--rows", "4", "--length", "64", "--microbatches", "1", "--remat", "none"]
        return Job("memory", command + ([*small, "--config.platform=cpu"] if self.options.smoke else []), limit=600)


def do(job: Job, out: Path, limit: float) -> dict[str, Any]:
    """Runs a job to its end or time limit and writes `name.done.json`."""
    environment = dict(os.environ) | dict(job.environment)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), environment.get("PYTHONPATH", ""))))
    if job.flags:
        environment["XLA_FLAGS"] = f"{environment.get('XLA_FLAGS', '')} {job.flags}".strip()
    began = time.monotonic()
    with (out / f"{job.name}.log").open("w", encoding="utf-8") as log:
        try:
            status = subprocess.run(
                job.command, stdout=log, stderr=subprocess.STDOUT, env=environment, cwd=ROOT, timeout=limit, check=False
            ).returncode
        except subprocess.TimeoutExpired:
            status = 124
    saved = {"status": status, "seconds": time.monotonic() - began, "flags": job.flags, "command": job.command}
    if status != 0:
        lines = (out / f"{job.name}.log").read_text(encoding="utf-8").strip().splitlines() or [""]
        saved["message"] = "took too long" if status == 124 else lines[-1][:200]
    (out / f"{job.name}.done.json").write_text(json.dumps(saved, indent=1), encoding="utf-8")
    return saved


def done(name: str, out: Path) -> dict[str, Any] | None:
    file = out / f"{name}.done.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else None


def is_named(job: Job, names: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(job.name, name) for name in names)


def collect(jobs: Sequence[Job], out: Path) -> dict[str, Any]:
    """Returns status, metrics and the last lines of the log of every job that has run."""
    results: dict[str, Any] = {"machine": machine(out)}
    for job in jobs:
        saved = done(job.name, out)
        if saved is not None:
            lines = (out / f"{job.name}.log").read_text(encoding="utf-8", errors="replace").splitlines()
            results[job.name] = saved | {"metrics": _read_results(out, job.name), "log": lines[-LOG_LINES:]}
            curve = out / "runs" / job.name / "metrics.jsonl"
            if curve.exists():
                results[job.name]["curve"] = curve.read_text(encoding="utf-8").splitlines()
    return results


def table(jobs: Sequence[Job], out: Path, smoke: bool) -> list[str]:
    """Returns a line for every job that has run."""
    lines = [
        f"Machine: {machine(out)}",
        *(["", "A smoke test on a CPU, of tiny models: the numbers mean nothing."] if smoke else []),
        "",
        "| job | real tokens/s | floor, goal | reached | MFU | step ms | waits | compile s | peak GiB | over PyTorch |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    others = ["", "| job | status | seconds |", "|---|---|---|"]
    for job in jobs:
        saved = done(job.name, out)
        if saved is None:
            continue
        metrics = out / f"{job.name}.json"
        if saved["status"] == 0 and metrics.exists():
            lines.append(row(job, json.loads(metrics.read_text(encoding="utf-8"))))
        else:
            message = "passed" if saved["status"] == 0 else f"**failed**: {saved['message']}".replace("|", "/")
            others.append(f"| {job.name} | {message} | {saved['seconds']:.0f} |")
    compiled = [_read_results(out, name).get("compile_seconds", 0.0) for name in ("bert-base", "bert-large")]
    if all(compiled):
        ratio = compiled[1] / compiled[0]
        others += ["", f"Compiling BERT-large takes {ratio:.2f} times as long as BERT-base (target: at most 1.5)."]
    return [*lines, *others, ""]


def _read_results(out: Path, name: str) -> dict[str, Any]:
    file = out / f"{name}.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def row(job: Job, metrics: dict[str, Any]) -> str:
    speed, model = metrics["tokens_per_second"]["median"], job.model
    target = reached = ratio = ""
    if model is not None and model.floor:
        target = f"{model.floor / 1e3:,.0f} k, {model.goal / 1e3:,.0f} k"
        reached = f"{speed / model.floor:.2f}, {speed / model.goal:.2f}"
    if "baseline" in metrics:
        results = metrics["baseline"]["ratio"]["median"]
        ratio = f"{results:.2f} (target {job.ratio_target:g})"
    mfu = "" if metrics["mfu"] is None else f"{100 * metrics['mfu']:.1f} %"
    step, peak = 1e3 * metrics["seconds_per_step"]["median"], metrics["peak_bytes"] / 2**30
    return (
        f"| {job.name} | {speed:,.0f} | {target} | {reached} | {mfu} | {step:.1f} | {100 * metrics['data_wait']:.2f} % "
        f"| {metrics['compile_seconds']:.0f} | {peak:.1f} | {ratio} |"
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
        code = "import jax, flax, optax; print('jax', jax.__version__, 'flax', flax.__version__)"
        versions = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        file.write_text(f"{message}; {versions.stdout.strip()}", encoding="utf-8")
    return file.read_text(encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="directory of results, logs and table.md")
    parser.add_argument("--text", default="builtin:python-docs", help="data.sources (default builtin:python-docs)")
    parser.add_argument("--vocab-size", type=int, default=0, help="tokens of the tokenizer (default: the config's)")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes on a CPU: does everything run?")
    parser.add_argument("--only", nargs="+", default=[], help="names of jobs, or beginnings with a *")
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
        print("\n".join(job.name for job in jobs))
        return 0
    for inputs in (*options.only, *options.again):
        if not any(is_named(job, [inputs]) for job in jobs):
            parser.error(f"unknown job {inputs}; --list prints them")
    options.out.mkdir(parents=True, exist_ok=True)
    selected = [job for job in jobs if not options.only or is_named(job, options.only)]
    end = time.monotonic() + 60 * options.minutes
    for job in selected:
        left = end - time.monotonic()
        if left < LEAST_SECONDS:
            print(f"{job.name} and those after it were not started: --minutes={options.minutes:g} are over")
            break
        saved = None if is_named(job, options.again) else done(job.name, options.out)
        if saved is None or saved["status"] != 0:
            saved = do(job, options.out, min(options.slower * job.limit, left))
            print(f"{job.name}: {saved.get('message', 'done')} ({saved['seconds']:.0f} s)", flush=True)
        text = "\n".join(table(jobs, options.out, options.smoke))
        (options.out / "table.md").write_text(text, encoding="utf-8")
        (options.out / "all.json").write_text(json.dumps(collect(jobs, options.out), indent=1), encoding="utf-8")
    print(text)
    return int(any((done(job.name, options.out) or {"status": 1})["status"] for job in selected))


if __name__ == "__main__":
    sys.exit(main())
