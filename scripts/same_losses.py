"""Compares held-out losses of the same runs with and without the speed-ups, over several seeds.

    python scripts/same_losses.py --out runs/same --train text:train.txt.gz --eval text:valid.txt.gz

BERT-tiny on masked tokens, 1,000 steps of 16 sequences of 128 tokens. Runs of one seed start from the same weights and
see the same examples and masks. The ways to compute:

plain             float32 matmuls, scanned layers, untiled attention, a threefry word for every element of dropout
speed-ups         bfloat16 matmuls, unrolled layers, 16 bits per element from rbg, attention by platform,
                  `--together` steps per dispatch
speed-ups, half   the same with optimizer.moments_dtype=bfloat16
bfloat16          speed-ups with train.result_dtype=bfloat16: results of matmuls, norms and the residual stream
kernels           speed-ups with bertjax's own attention kernel (interpreted on a CPU) and dropout by a hash

Prints and writes to OUT/table.md the mean of the final held-out losses, their standard error, the difference from the
plain one and whether it is within two standard errors (of both means, by the root of the sum of their squares). The
last column is the standard error of the difference, paired by seed. The same command resumes. Further arguments
(--config.KEY=VALUE) apply to all runs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

CONFIG = Path(__file__).parents[1] / "configs" / "bert.py"
PLAIN, FAST, HALF, SHORT, KERNELS = "plain", "speed-ups", "speed-ups, half", "bfloat16", "kernels"
WAYS = PLAIN, FAST, HALF, SHORT, KERNELS
RUN_PLAIN = "run-plain"
"""First argument of the process that trains with dropout as jax itself would do it."""


class Summary(NamedTuple):
    """Losses of the seeds of one way to compute, their mean and standard error."""

    losses: list[float]
    mean: float
    error: float


class Difference(NamedTuple):
    """Difference of one way from the plain one."""

    mean: float
    error: float
    paired_error: float

    @property
    def is_within(self) -> bool:
        return abs(self.mean) <= 2.0 * self.error


def settings(way: str, together: int) -> list[str]:
    """Returns the overrides of a way."""
    if way == PLAIN:
        results = ["--config.train.compute_dtype=float32", "--config.model.unroll=1"]
        return [*results, "--config.model.attention_implementation=xla"]
    results = ["--config.train.compute_dtype=bfloat16", "--config.model.unroll=2", "--config.train.dropout_prng=rbg"]
    results.append(f"--config.train.steps_per_dispatch={together}")
    if way == SHORT:
        return [*results, "--config.train.result_dtype=bfloat16"]
    if way == KERNELS:
        return [*results, "--config.train.dropout_prng=hash", "--config.model.attention_implementation=pallas"]
    return [*results, "--config.optimizer.moments_dtype=bfloat16"] if way == HALF else results


def recipe(options: argparse.Namespace) -> list[str]:
    """Returns the overrides that all runs share."""
    values = {
        "platform": options.platform,
        "data.sources": options.train,
        "data.eval_sources": options.eval,
        "data.vocab_size": 8192,
        "data.seq_len": 128,
        "data.example_format": "doc_sentences",
        "data.packing": "best_fit",
        "objective.masking.dynamic": "true",
        "train.phases": "",
        "train.num_steps": options.steps,
        "train.batch_size": 16,
        "train.log_interval_steps": max(options.steps // 10, 1),
        "optimizer.learning_rate": 1e-3,
        "optimizer.bias_correction": "true",
        "schedule.warmup_steps": options.steps // 10,
        "eval.interval_steps": 0,
        "eval.num_batches": 64,
        "eval.batch_size": 32,
        "checkpoint.interval_steps": max(options.steps // 2, 1),
        "checkpoint.keep": 1,
        "logging.tensorboard": "false",
    }
    return ["--config", options.config] + [f"--config.{key}={value}" for key, value in values.items()]


def final_loss(way: str, seed: int, options: argparse.Namespace, more: Sequence[str]) -> float:
    """Trains, resumes, or reads the finished run."""
    workdir = options.out / f"{way.replace(', ', '-')}-{seed}"
    if (workdir / "outcome.json").exists():
        return json.loads((workdir / "outcome.json").read_text())["loss"]
    command = [sys.executable, *([__file__, RUN_PLAIN] if way == PLAIN else ["-m", "bertjax"]), "pretrain"]
    command += ["--workdir", str(workdir), *recipe(options), *more, *settings(way, options.together)]
    began = time.monotonic()
    done = subprocess.run([*command, f"--config.seed={seed}"], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{way}, seed {seed}, did not train:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    loss = last_eval(workdir)
    (workdir / "outcome.json").write_text(json.dumps({"loss": loss, "seconds": time.monotonic() - began}))
    print(f"{way}, seed {seed}: {loss:.4f} after {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return loss


def last_eval(workdir: Path) -> float:
    records = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return next(record["eval/mlm_loss"] for record in reversed(records) if "eval/mlm_loss" in record)


def summary(losses: Sequence[float]) -> Summary:
    count = len(losses)
    error = float(np.std(losses, ddof=1)) / count**0.5 if count > 1 else float("nan")
    return Summary(list(losses), float(np.mean(losses)), error)


def difference(plain: Summary, other: Summary) -> Difference:
    """Compares losses paired by seed."""
    count = min(len(plain.losses), len(other.losses))
    paired = summary([theirs - ours for theirs, ours in zip(other.losses[:count], plain.losses[:count], strict=True)])
    return Difference(other.mean - plain.mean, float(np.hypot(plain.error, other.error)), paired.error)


def table(results: Mapping[str, Sequence[float]]) -> list[str]:
    """Returns a line for every way that has been run."""
    lines = [
        "| | held-out losses | mean, standard error | difference, standard error | within two | seed by seed |",
        "|---|---|---|---|---|---|",
    ]
    plain = summary(results[PLAIN])
    for way, losses in results.items():
        current = summary(losses)
        cells = [way, " ".join(f"{loss:.4f}" for loss in losses), f"{current.mean:.4f} ± {current.error:.4f}"]
        if way == PLAIN or len(losses) < 2:  # one run has no error
            cells += [""] * 3
        else:
            apart = difference(plain, current)
            cells += [f"{apart.mean:+.4f} ± {apart.error:.4f}", "yes" if apart.is_within else "**no**"]
            cells.append(f"± {apart.paired_error:.4f}")
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def compare(options: argparse.Namespace, more: Sequence[str]) -> dict[str, list[float]]:
    """Runs everything seed by seed, so that the table is useful before the end."""
    results: dict[str, list[float]] = {way: [] for way in WAYS if way == PLAIN or way in options.ways}
    for seed in range(options.seeds):
        for way, losses in results.items():
            losses.append(final_loss(way, seed, options, more))
            if results[PLAIN]:
                done = {name: losses for name, losses in results.items() if losses}
                (options.out / "table.md").write_text("\n".join(table(done)) + "\n", encoding="utf-8")
    return results


def run_plain(arguments: Sequence[str]) -> int:
    """Runs the command line with another dropout, installed before the models import it."""
    import jax
    import jax.numpy as jnp

    from bertjax.models import dropout as home

    def dropout(x: jax.Array, rate: float, key: jax.Array | None, by_row: bool = True) -> jax.Array:
        if key is None or rate == 0.0:
            return x
        return jnp.where(jax.random.bernoulli(key, 1.0 - rate, x.shape), x / (1.0 - rate), jnp.zeros((), x.dtype))

    home.dropout = dropout
    from bertjax.cli import main as command_line

    return command_line(list(arguments))


def main() -> int:
    if sys.argv[1:2] == [RUN_PLAIN]:
        return run_plain(sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs and of table.md")
    parser.add_argument("--train", required=True, help="data.sources, such as text:train.txt.gz")
    parser.add_argument("--eval", required=True, help="data.eval_sources")
    parser.add_argument("--config", default=f"{CONFIG}:tiny", help="a config file")
    parser.add_argument("--platform", default="any", help="cpu, gpu, tpu or any")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS, help="compared with plain (default: all)")
    parser.add_argument("--together", type=int, default=10, help="steps a dispatch of the speed-ups (default 10)")
    options, more = parser.parse_known_args()
    for name in ("steps", "seeds", "together"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} must be at least 1, not {getattr(options, name)}")
    options.out.mkdir(parents=True, exist_ok=True)
    print("\n".join(table(compare(options, more))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
