"""Compares pretraining objectives at equal FLOPs: runs of configs/shoot_out.py and a linear probe of each.

    python scripts/shoot_out.py --out runs/shoot_out --train text:train.txt.gz --eval text:valid.txt
        --tags eng.train eng.testa --sentences train.tsv dev.tsv

Every objective gets as many steps as the FLOPs of `--steps` steps of mlm pay for (analytic: attention, feed-forward and
vocabulary matmuls, forward and backward). Their own losses are not comparable; the frozen features of all get the same
probe (`bertjax probe`, its best layer). The two best objectives get two more seeds; a difference below the range of
these is a tie. Runs resume with the same command. Writes `table.md`, and the page of `bertjax compare`: `compare.html`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import bertjax

ROOT = Path(__file__).parents[1]
OBJECTIVES = ("mlm", "whole_word", "span", "sop", "rtd", "plm", "causal", "hybrid")
MORE_SEEDS = (1, 2)


class Outcome(NamedTuple):
    """A row of the table."""

    objective: str
    seed: int
    steps: int
    flops: float
    minutes: float
    loss: str
    tags: float
    sentences: float

    @property
    def mean(self) -> float:
        return (self.tags + self.sentences) / 2


def shoot_out(options: argparse.Namespace) -> list[Outcome]:
    budget = options.steps * flops_of_a_step("mlm", options)
    outcomes = [run("untrained", "mlm", 0, 1, 0.0, options)]
    for objective in options.objectives:
        outcomes.append(contend(objective, 0, budget, options))
        write_table(outcomes, budget, options.out)
    best = sorted(outcomes[1:], key=lambda outcome: -outcome.mean)[:2]
    for outcome in best:
        for seed in MORE_SEEDS[: options.more_seeds]:
            outcomes.append(contend(outcome.objective, seed, budget, options))
            write_table(outcomes, budget, options.out)
    return outcomes


def contend(objective: str, seed: int, budget: float, options: argparse.Namespace) -> Outcome:
    per_step = flops_of_a_step(objective, options)
    steps = round(budget / per_step)
    return run(objective, objective, seed, steps, steps * per_step, options)


def run(name: str, objective: str, seed: int, steps: int, flops: float, options: argparse.Namespace) -> Outcome:
    """Trains (or resumes, or reads the finished run), exports and probes."""
    workdir = options.out / f"{name}-{seed}"
    if not (workdir / "outcome.json").exists():
        settings = [f"--config.seed={seed}", f"--config.train.num_steps={steps}", "--config.logging.tensorboard=false"]
        if name == "untrained":
            settings += ["--config.optimizer.learning_rate=1e-12"]
        began = time.monotonic()
        command(options, objective, "--workdir", str(workdir), *settings)
        minutes = (time.monotonic() - began) / 60
        scores = probe(workdir / "export", options)
        outcome = Outcome(name, seed, steps, flops, minutes, eval_losses(workdir), *scores)
        named = {"tags": outcome.tags, "sentences": outcome.sentences}
        (workdir / "probe.json").write_text(json.dumps({"scores": named}))  # for `bertjax compare`
        (workdir / "outcome.json").write_text(json.dumps(outcome._asdict()))
    results = Outcome(**json.loads((workdir / "outcome.json").read_text()))
    print(f"{results.objective} (seed {seed}): tags {results.tags:.3f}, sentences {results.sentences:.3f}", flush=True)
    return results


def command(options: argparse.Namespace, objective: str, *more: str) -> str:
    arguments = [sys.executable, "-m", "bertjax", "pretrain", "--config", f"{ROOT}/configs/shoot_out.py:{objective}"]
    arguments += [f"--config.data.sources={options.train}", f"--config.data.eval_sources={options.eval}", *more]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(arguments)}\n{done.stdout}{done.stderr}")
    return done.stdout


def flops_of_a_step(objective: str, options: argparse.Namespace) -> float:
    """Returns the FLOPs that `dry_run` prints."""
    line = next(
        line
        for line in command(options, objective, "--config.dry_run=true").splitlines()
        if line.startswith("model FLOPs")
    )
    return float(line.split(" per token, ")[1].split(" per step")[0])


def eval_losses(workdir: Path) -> str:
    """Returns the last held-out losses by name."""
    records = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    last = next(record for record in reversed(records) if "eval/loss" in record)
    names = [key for key in last if key.endswith("_loss") and key.count("/") == 1 and key.startswith("eval/")]
    return ", ".join(f"{key[5:-5]} {last[key]:.3f}" for key in names)


def probe(folder: Path, options: argparse.Namespace) -> tuple[float, float]:
    tags = [f"conll:{path}" for path in options.tags]
    texts = [f"tsv:{path}" for path in options.sentences]
    return (
        _best(bertjax.probe(str(folder), tags[:1], tags[1:], seeds="0", max_examples=options.most), "f1"),
        _best(
            bertjax.probe(str(folder), *texts, text_column="sentence", seeds="0", max_examples=options.most), "accuracy"
        ),
    )


def _best(scores: dict[str, Any], name: str) -> float:
    (layers,) = scores.values()
    return max(each[name][0] for each in layers)


def write_table(outcomes: list[Outcome], budget: float, out: Path) -> None:
    """Writes a line per objective, with means and ranges (max - min) over seeds."""
    lines = [
        f"Budget: {budget:.3g} FLOPs each.",
        "",
        "| objective | steps | FLOPs | minutes | held-out losses | tags F1 | sentences accuracy | seeds |",
        "|---|---:|---:|---:|---|---:|---:|---:|",
    ]
    names = list(dict.fromkeys(outcome.objective for outcome in outcomes))
    groups = {name: [outcome for outcome in outcomes if outcome.objective == name] for name in names}
    for name, group in sorted(groups.items(), key=lambda item: -np.mean([outcome.mean for outcome in item[1]])):
        first = group[0]
        minutes = np.mean([outcome.minutes for outcome in group])
        cells = [name, f"{first.steps:,}", f"{first.flops:.3g}", f"{minutes:.1f}", first.loss]
        cells += [_spread([getattr(outcome, field) for outcome in group]) for field in ("tags", "sentences")]
        lines.append(f"| {' | '.join([*cells, str(len(group))])} |")
    (out / "table.md").write_text("\n".join(lines) + "\n")


def _spread(values: list[float]) -> str:
    mean = f"{100 * np.mean(values):.1f}"
    return mean if len(values) == 1 else f"{mean} ± {100 * (max(values) - min(values)) / 2:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs and of table.md")
    parser.add_argument("--train", required=True, help="data.sources")
    parser.add_argument("--eval", required=True, help="data.eval_sources")
    parser.add_argument("--tags", type=Path, nargs=2, required=True, metavar=("TRAIN", "DEV"), help="CoNLL columns")
    parser.add_argument("--sentences", type=Path, nargs=2, required=True, metavar=("TRAIN", "DEV"), help="tsv")
    parser.add_argument("--steps", type=int, default=1000, help="steps of mlm that set the budget (default 1000)")
    parser.add_argument("--most", type=int, default=3000, help="sentences of the probe's parts (default 3000)")
    parser.add_argument("--objectives", nargs="+", choices=OBJECTIVES, default=OBJECTIVES)
    parser.add_argument("--more-seeds", type=int, default=2, help="of the two best (default 2)")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    shoot_out(options)
    workdirs = sorted(str(path.parent) for path in options.out.glob("*/outcome.json"))
    page = ["compare", *workdirs, "--out", str(options.out / "compare.html")]
    subprocess.run([sys.executable, "-m", "bertjax", *page], check=True)
    print((options.out / "table.md").read_text())


if __name__ == "__main__":
    main()
