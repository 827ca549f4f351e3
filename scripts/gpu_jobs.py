"""The jobs of on_gpu.py: what is measured and checked on a GPU, most valuable first."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
FLAGS = {
    "no-command-buffers": "--xla_gpu_enable_command_buffer=",
    "latency-hiding": "--xla_gpu_enable_latency_hiding_scheduler=true",
    "no-triton-gemm": "--xla_gpu_enable_triton_gemm=false",
    "autotune-4": "--xla_gpu_autotune_level=4",
}
SMOKE_TESTS = ["tests/models/test_linear.py"]


class Row(NamedTuple):
    """A training step to measure; floor and goal are targets in real tokens per second: required, and good."""

    name: str
    config: str
    batch: int
    length: int
    overrides: tuple[str, ...] = ()
    floor: float = 0.0
    goal: float = 0.0

    def change(self, name: str, *overrides: str) -> Row:
        """Returns the row under a longer name with further overrides."""
        return self._replace(name=f"{self.name}-{name}", overrides=(*self.overrides, *overrides))


class Job(NamedTuple):
    """A command; `flags` go to XLA. Its rows are written to OUT/NAME.json, their results to OUT/NAME.jsonl."""

    name: str
    command: list[str]
    flags: str = ""
    rows: tuple[Row, ...] = ()
    limit: float = 240.0  # seconds
    environment: tuple[tuple[str, str], ...] = ()

    @property
    def parts(self) -> list[str]:
        """Names of what succeeds or fails by itself."""
        return [row.name for row in self.rows] or [self.name]


PACKED = (
    "data.example_format=block",
    "data.packing=best_fit",
    "objective.masking.dynamic=true",
    "train.phases=",
)
NO_RAMP = ("train.initial_batch_size=None", "train.batch_ramp_steps=None")
# The best combination of the compiler's roofline: cuDNN's attention, which drops no probabilities, and fused norms.
FUSED = ("model.attention_dropout=0.0", "train.dropout_prng=hash", "model.norm_implementation=pallas")
MODELS = [
    Row("bert-base", "bert.py:base", 128, 512, (*PACKED, *FUSED), 500e3, 840e3),
    Row("bert-large", "bert.py:large", 64, 512, (*PACKED, *FUSED), 200e3, 247e3),
    Row("modernbert-base", "modernbert.py:base", 64, 1024, NO_RAMP, 400e3, 600e3),
]
FAMILIES = [  # without targets
    Row("modernbert-base-8192", "modernbert.py:base", 8, 8192, (*NO_RAMP, "model.max_position_embeddings=8192")),
    Row("deberta-v3-base", "deberta.py:v3-base", 64, 512),
    Row("deberta-v3-base-pallas", "deberta.py:v3-base", 64, 512, ("model.attention_implementation=pallas",)),
    Row("electra-base", "electra.py:base", 128, 512),
    Row("xlnet-base", "xlnet.py:base", 64, 512),
    Row("xlnet-base-pallas", "xlnet.py:base", 64, 512, ("model.attention_implementation=pallas",)),
]
SMALL = [Row(f"small-bert-{size}", f"bert.py:{size}", 256, 128, PACKED) for size in ("tiny", "mini", "small")]
PUBLISHED = ("published-dropout", "model.attention_dropout=0.1")
VARIANTS = (  # one thing each
    PUBLISHED,  # plain attention
    ("published-dropout-pallas", "model.attention_dropout=0.1", "model.attention_implementation=pallas"),
    ("scanned", "model.unroll=1"),
    ("remat-dots", "model.remat=dots"),
    ("remat-full", "model.remat=full"),
    ("2-microbatches", "train.microbatches=2"),
    ("moments-bfloat16", "optimizer.moments_dtype=bfloat16"),
    ("plain-attention", "model.attention_implementation=xla"),
    ("pallas-attention", "model.attention_implementation=pallas"),
    ("norms-by-xla", "model.norm_implementation=xla"),
    ("rbg", "train.dropout_prng=rbg", "model.norm_implementation=xla"),
    ("threefry", "train.dropout_prng=threefry", "model.norm_implementation=xla"),
    ("no-dropout", "model.hidden_dropout=0"),
)
AUTOTUNE = "--xla_gpu_dump_autotune_results_to="
TOGETHER = (1, 8, 32)
RATIO_TARGET, TORCH = 1.5, "torch-"
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
        export = [sys.executable, str(ROOT / "scripts" / "check_export.py"), str(self._workdir("curve") / "export")]
        berts = MODELS[: 1 if smoke else 2]
        peers = [*MODELS, *(bert.change(*PUBLISHED) for bert in berts)][: 1 if smoke else None]
        results = [
            Job("kernels", kernels, limit=120),
            Job("check-step", check, limit=180),
            self._measure("steps", MODELS),
            self._measure("torch", [row._replace(name=TORCH + row.name, floor=0.0) for row in peers], more=["--torch"]),
            Job("curve", self._train("curve", "bert.py:base", 10 if smoke else 2000, MODELS[0]), limit=900),
            Job("curve-export", export, limit=120),
            Job("quickstart", self._train("quickstart", "quickstart.py", 20 if smoke else 1000), limit=300),
            Job("pallas-kernels", [*kernels[:2], "--implementation", "pallas", *kernels[4:]], limit=120),
            *(self._measure(f"{bert.name}-variants", [bert.change(*each) for each in VARIANTS]) for bert in berts),
            *(self._measure(f"flag-{key}", [bert.change(key) for bert in berts], flag) for key, flag in FLAGS.items()),
            self._measure("families", FAMILIES),
            self._measure(
                "small",
                [
                    row.change(f"{count}-a-dispatch", f"train.steps_per_dispatch={count}")
                    for row in SMALL[: 1 if smoke else None]
                    for count in TOGETHER
                ],
            ),
            self._memory(),
            Job("tests", self._pytest(6), limit=900, environment=() if smoke else gpu),
        ]
        return [*results, *([] if smoke else [Job("tests-on-cpu", self._pytest(14), limit=1800)])]

    def _pytest(self, workers: int) -> list[str]:
        files = SMOKE_TESTS if self.options.smoke else []
        return [sys.executable, "-m", "pytest", "-q", "-n", "0" if files else str(workers), *files]

    def _train(self, name: str, config: str, num_steps: int, row: Row | None = None) -> list[str]:
        """Returns a run in OUT/runs/NAME that evaluates ten times and exports; `row` gives batches and text."""
        values = [f"platform={'cpu' if self.options.smoke else 'gpu'}", f"train.num_steps={num_steps}"]
        values += [f"eval.interval_steps={num_steps // 10}", f"train.log_interval_steps={-(-num_steps // 100)}"]
        values += ["export.at_end=true", f"checkpoint.interval_steps={num_steps}"]
        if row is not None:
            values += [*row.overrides, *self._size(row)]
        command = [sys.executable, "-m", "bertjax", "pretrain", "--config", str(ROOT / "configs" / config)]
        return [*command, "--workdir", str(self._workdir(name)), *(f"--config.{each}" for each in values)]

    def _workdir(self, name: str) -> Path:
        return self.options.out / "runs" / name

    def _size(self, row: Row) -> list[str]:
        """Returns values of the text and of the shape of a batch."""
        options = self.options
        batch, length = (8, 64) if options.smoke else (row.batch, row.length)
        values = [
            f"data.sources={options.text}",
            f"data.seq_len={length}",
            f"train.batch_size={batch}",
            f"data.cache_dir={options.out / 'cache'}",
        ]
        if options.smoke:  # kernels of Pallas would be interpreted, for minutes
            return [*values, *SMOKE_MODEL, "data.vocab_size=1000", "model.norm_implementation=xla"]
        return values + ([f"data.vocab_size={options.vocab_size}"] if options.vocab_size else [])

    def _measure(self, name: str, rows: Sequence[Row], flags: str = "", more: Sequence[str] = ()) -> Job:
        options, environment = self.options, (("JAX_PLATFORMS", "cpu"),) if more else ()  # the card is PyTorch's alone
        platform = f"platform={'cpu' if options.smoke else 'gpu'}"
        sized = [row._replace(overrides=(*row.overrides, platform, *self._size(row))) for row in rows]
        flags = flags if options.smoke or more else f"{flags} {AUTOTUNE}{options.out / name}.autotune.txt".strip()
        amounts = ("1", "2", "1") if options.smoke else (str(options.repeats), str(options.steps), "5")
        command = [sys.executable, str(ROOT / "scripts" / "measure_steps.py"), str(options.out / f"{name}.json"), *more]
        command += ["--repeats", amounts[0], "--steps", amounts[1], "--warmup", amounts[2]]
        return Job(name, command, flags, tuple(sized), 60.0 + 120.0 * len(rows), environment)

    def _memory(self) -> Job:
        command = [
            sys.executable,
            str(ROOT / "scripts" / "memory_table.py"),
            "--out",
            str(self.options.out / "memory.md"),
        ]
        small = ["--sizes", "tiny", "--rows", "4", "--length", "64", "--microbatches", "1", "--remat", "none"]
        return Job("memory", command + ([*small, "--config.platform=cpu"] if self.options.smoke else []), limit=600)
