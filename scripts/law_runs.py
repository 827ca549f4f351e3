"""Trains the recipe `bertjax` for points of the law of `bertjax plan`: constant rates, and decays from checkpoints.

    python scripts/law_runs.py --out runs/law --train text:train.txt --eval text:valid.txt.gz --size nano \\
        --at 800 1600 3200 6400 --what 'English Wikipedia, one core'

One run with a constant rate reaches the last of the steps `--at`; from each of these steps a decay of a quarter of them
ends in a point (1 - sqrt, `bertjax decay`). Prints rows of scripts/law_points.csv, decays of a run beneath each other.
The same command goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import subprocess
import sys
from pathlib import Path

from safetensors import safe_open

WARMUP = 200
TABLE = "embeddings.tok_embeddings.weight"


def call(*arguments: str) -> str:
    command = [sys.executable, "-m", "bertjax", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout


def train(options: argparse.Namespace) -> int:
    """Trains or resumes the run with the constant rate; returns the tokens of its text."""
    counted = options.out / "tokens.txt"
    if counted.exists():
        return int(counted.read_text())
    every = math.gcd(*options.at)
    settings = {
        "data.sources": options.train,
        "data.eval_sources": options.eval,
        "seed": options.seed,
        "train.num_steps": max(options.at),
        "train.batch_size": options.batch,
        "schedule.name": "constant",
        "schedule.warmup_steps": WARMUP,
        "eval.interval_steps": every,
        "eval.num_batches": 64,
        "checkpoint.interval_steps": every,
        "checkpoint.keep_every": every,
        "logging.tensorboard": "false",
    }
    flags = [f"--config.{key}={value}" for key, value in settings.items()]
    printed = call("pretrain", "--config", f"bertjax:{options.size}", "--workdir", str(options.out / "run"), *flags)
    tokens = re.search(r"^data: ([\d,]+) tokens", printed, re.MULTILINE)
    if tokens is None:
        sys.exit(f"no tokens of the text in\n{printed}")
    counted.write_text(tokens[1].replace(",", ""))
    return int(counted.read_text())


def point(at: int, unique: int, options: argparse.Namespace) -> str:
    """Decays from a step; returns the row of the table."""
    steps, workdir = at // 4, options.out / f"decay-{at}"
    call("decay", "--run", str(options.out / "run"), "--at", str(at), "--steps", str(steps), "--workdir", str(workdir))
    (folder,) = workdir.glob("step-*")
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    last = next(each for each in reversed(records) if "eval/mlm_loss" in each)
    config = json.loads((folder / "config.json").read_text())
    tokens = (at + steps) * config["train"]["batch_size"] * config["data"]["seq_len"]
    share = last["eval/mlm_loss"] / last["eval/mlm_unigram_loss"]
    what = f"{options.size}, {options.batch} x {config['data']['seq_len']}, decay from step {at}, {options.what}"
    return f'{body(folder / "export")},{tokens},{unique},{share:.4f},"{what}"'


def body(export: Path) -> int:
    """Returns the parameters without the word table, which the folder may hold twice."""
    with safe_open(export / "model.safetensors", "np") as file:
        shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    table = next(shape for name, shape in shapes.items() if name.endswith(TABLE))
    return sum(math.prod(shape) for shape in shapes.values() if shape != table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--train", required=True, help="as data.sources")
    parser.add_argument("--eval", required=True, help="as data.eval_sources")
    parser.add_argument("--size", default="nano")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--at", type=int, nargs="+", required=True, help="steps that decays start from")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--what", required=True, help="text and machine, for the table")
    options = parser.parse_args()
    unique = train(options)
    for at in options.at:
        print(point(at, unique, options), flush=True)


if __name__ == "__main__":
    main()
