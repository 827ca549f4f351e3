"""Compares finetuning by bertjax and by `transformers`' Trainer: same data, learning rate, batch, epochs, seeds.

    python scripts/finetune_check.py --model FOLDER --out runs/finetune_check --task sst2=tsv:train.tsv,tsv:dev.tsv \\
        --task conll=conll:eng.train,conll:eng.testa --first 3000

A task is NAME=TRAIN,EVAL[,COLUMN=NAME...], with sources and columns as in the `task` group of a config (text, pair,
label); conll sources make it token classification. Only the first `--first` training examples are used. Ours is one
command for all seeds, which share compiled programs (none exists before); the baseline is one process per seed. Seconds
are those of all seeds, from the start of the processes to the last prediction. The baseline runs its first seed in
float32 and bfloat16 (or in one of `--peer_dtypes`) and the others in the faster. `--peer_python` names an interpreter
that has torch and accelerate.

Prints and writes to OUT/table.md means and standard deviations of the scores (accuracy; entity F1 for tokens), their
difference next to 2 sqrt(s1^2 / n + s2^2 / n), and the ratio of the seconds.

`--losses 20` compares the losses of the first 20 steps instead: dropout 0, float32, one epoch, the same batches, from
the same weights, head included.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bertjax.config.task import TaskConfig
from bertjax.data.counter_rng import permutation
from bertjax.errors import UserError
from bertjax.tasks.metrics.entities import entity_scores
from bertjax.tasks.readers.examples import TextExamples, WordExamples, read_examples
from bertjax.tasks.readers.labels import collect_labels

ROOT = Path(__file__).parents[1]


class Job(NamedTuple):
    """A task as both sides read it: JSON lines and its labels."""

    name: str
    kind: str
    folder: Path
    labels: tuple[str, ...]
    is_pair: bool


class Run(NamedTuple):
    """Metric and time of one finetuning."""

    score: float
    seconds: float


def prepare(text: str, options: argparse.Namespace) -> Job:
    """Reads a task once and writes the files of both sides."""
    name, _, rest = text.partition("=")
    train, held_out, *columns = rest.split(",")
    kind = "tokens" if train.startswith("conll:") else "classification"
    record = dict(column.split("=", 1) for column in columns)
    config = TaskConfig(kind=kind, train=(train,), eval=(held_out,), **record)
    folder = options.out / name
    if folder.exists():  # runs in it would be taken up again
        raise UserError(f"{folder} is there already: give another --out")
    folder.mkdir(parents=True)
    labels: tuple[str, ...] = ()
    for split in ("train", "eval"):
        examples = read_examples(config, split)
        labels = labels or collect_labels(config, examples)
        rows = list(_rows(examples))[: options.first if split == "train" else None]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Job(name, kind, folder, labels, "pair" in record)


def _rows(examples: Any) -> Any:
    if isinstance(examples, WordExamples):
        assert examples.tags is not None
        yield from ({"tokens": words, "tags": tags} for words, tags in zip(examples.words, examples.tags, strict=True))
        return
    assert isinstance(examples, TextExamples) and examples.labels is not None
    for index, (text, label) in enumerate(zip(examples.texts, examples.labels, strict=True)):
        pair = {} if examples.pairs is None else {"pair": examples.pairs[index]}
        yield {"text": text, **pair, "label": label}


def ours(job: Job, options: argparse.Namespace, workdir: Path, seeds: list[int], **changes: Any) -> list[Run]:
    """Finetunes all seeds with one command; each gets its share of the seconds."""
    values: dict[str, Any] = {
        "init_from": options.model,
        "task.train": f"jsonl:{job.folder / 'train.jsonl'}",
        "task.eval": f"jsonl:{job.folder / 'eval.jsonl'}",
        "task.labels": ",".join(job.labels),
        "task.epochs": options.epochs,
        "task.batch_size": options.rows,
        "task.max_length": options.max_len,
        "task.evals_per_epoch": 1 / options.epochs,
        "optimizer.learning_rate": options.rate,
        "optimizer.bias_correction": "true",
        "optimizer.eps": 1e-8,
        "schedule.name": "linear",
        "checkpoint.interval_steps": 0,
        "logging.tensorboard": "false",
        "export.at_end": "false",
        "platform": options.platform,
        "data.cache_dir": workdir / "cache",
    }
    values |= ({"task.pair_column": "pair"} if job.is_pair else {}) | changes
    config = ROOT / "configs" / "finetune" / f"{job.kind}.py"
    command = [sys.executable, "-m", "bertjax", "finetune", "--config", str(config), "--workdir", str(workdir)]
    command += ["--seeds", ",".join(map(str, seeds))]
    began = time.time()
    call([*command, *(f"--config.{key}={value}" for key, value in values.items())])
    seconds = (time.time() - began) / len(seeds)
    name = "eval/f1" if job.kind == "tokens" else "eval/accuracy"
    return [Run(eval_metrics(workdir / f"seed-{seed}", name)[-1], seconds) for seed in seeds]


def eval_metrics(workdir: Path, name: str) -> list[float]:
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    values = [line[name] for line in lines if name in line]
    if not values:
        raise UserError(f"{workdir} has no {name}; tokens are compared by entities, and these tags mark none")
    return values


def theirs(job: Job, options: argparse.Namespace, seed: int, dtype: str) -> Run:
    results, seconds = ask_peer(job, options, seed, dtype)
    gold = [json.loads(line) for line in (job.folder / "eval.jsonl").read_text().splitlines()]
    if job.kind == "tokens":
        score = entity_scores([row["tags"] for row in gold], results["predictions"]).f1
    else:
        score = statistics.fmean(
            row["label"] == message for row, message in zip(gold, results["predictions"], strict=True)
        )
    return Run(score, seconds)


def ask_peer(job: Job, options: argparse.Namespace, seed: int, dtype: str, **more: Any) -> tuple[dict[str, Any], float]:
    """Returns what the baseline writes, and the seconds until its last prediction."""
    folder = job.folder / f"theirs-{dtype}-{seed}"
    folder.mkdir(exist_ok=True)
    record = {
        "kind": job.kind,
        "model": str(options.model),
        "train": str(job.folder / "train.jsonl"),
        "eval": str(job.folder / "eval.jsonl"),
        "labels": job.labels,
        "rate": options.rate,
        "rows": options.rows,
        "epochs": options.epochs,
        "max_len": options.max_len,
        "seed": seed,
        "dtype": dtype,
        "cpu": options.platform == "cpu",
        "cache": str(folder),
        "out": str(folder / "found.json"),
        **more,
    }
    (folder / "job.json").write_text(json.dumps(record))
    began = time.time()
    environment = {"HF_HOME": str(folder), "HF_HUB_OFFLINE": "1"}
    call(
        [options.peer_python, str(Path(__file__).with_name("finetune_peer.py")), str(folder / "job.json")], environment
    )
    results = json.loads((folder / "found.json").read_text())
    return results, results["ended"] - began


def same_losses(job: Job, options: argparse.Namespace) -> str:
    """Returns a line of the table of losses: the baseline draws and saves the head and gets our order of examples."""
    seed, start = options.seeds[0], job.folder / "start"
    order = permutation(options.losses * options.rows, "order of windows", seed, 0).tolist()
    results, _ = ask_peer(job, options, seed, "float32", order=order, start=str(start), epochs=1)
    quiet = {f"model.{name}_dropout": 0.0 for name in ("hidden", "attention", "classifier")}
    changes = {"init_from": start, "task.epochs": 1, "train.compute_dtype": "float32", **quiet}
    ours(job, options, job.folder / "ours-start", [seed], **changes)
    here = np.array(eval_metrics(job.folder / "ours-start" / f"seed-{seed}", "train/loss"))
    there = np.array(results["losses"])
    largest = np.abs(here - there).max()
    return f"| {job.name} | {len(here)} | {here[0]:.6f} | {here[-1]:.6f} | {there[-1]:.6f} | {largest:.1e} |"


def call(command: list[str], environment: dict[str, str] | None = None) -> None:
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | (environment or {}), check=False)
    if done.returncode:
        words = (done.stderr or done.stdout).strip().splitlines()
        raise UserError(f"{' '.join(command[:4])} ... ended with status {done.returncode}: {' / '.join(words[-3:])}")


def compare(job: Job, options: argparse.Namespace) -> str:
    """Returns a line of the table."""
    there, dtypes = [], list(options.peer_dtypes)
    here = ours(job, options, job.folder / "ours", options.seeds)
    for number, seed in enumerate(options.seeds):
        tried = {dtype: theirs(job, options, seed, dtype) for dtype in dtypes}
        dtypes = [min(tried, key=lambda dtype: tried[dtype].seconds)] if number == 0 else dtypes
        there.append(tried[dtypes[0]])
        print(f"{job.name}, seed {seed}: here {here[number]}, there {tried}", flush=True)
    return row(job.name, here, there, dtypes[0])


def row(name: str, here: list[Run], there: list[Run], dtype: str) -> str:
    scores = [[run.score for run in side] for side in (here, there)]
    means = [statistics.fmean(side) for side in scores]
    spreads = [statistics.stdev(side) if len(side) > 1 else math.nan for side in scores]
    allowed = 2.0 * math.sqrt(sum(spread**2 / len(here) for spread in spreads))
    seconds = [sum(run.seconds for run in side) for side in (here, there)]
    record = [f"{mean:.4f} ± {spread:.4f}" for mean, spread in zip(means, spreads, strict=True)]
    within = "yes" if abs(means[0] - means[1]) <= allowed else "no"
    return (
        f"| {name} | {record[0]} | {record[1]} ({dtype}) | {means[0] - means[1]:+.4f} | {allowed:.4f} | {within} "
        f"| {seconds[0]:.0f} | {seconds[1]:.0f} | {seconds[1] / seconds[0]:.2f} |"
    )


LOSSES_HEAD = (
    "| task | steps | first loss | last loss here | last loss there | largest difference |\n|---|---|---|---|---|---|"
)
HEAD = (
    "| task | bertjax | Trainer | difference | allowed | within | s here | s there | times as fast |\n"
    "|---|---|---|---|---|---|---|---|---|"
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--task", action="append", required=True)
    parser.add_argument("--first", type=int, help="training examples (default: all)")
    parser.add_argument("--losses", type=int, metavar="N", help="compare the losses of the first N steps instead")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--rows", type=int, default=32, help="examples per step")
    parser.add_argument("--rate", type=float, default=1e-4)
    parser.add_argument("--max_len", type=int, default=128)
    parser.add_argument("--platform", default="cpu")
    parser.add_argument("--peer_dtypes", nargs="+", choices=("float32", "bfloat16"), default=["float32", "bfloat16"])
    parser.add_argument("--peer_python", default=sys.executable)
    options = parser.parse_args()
    options.out, options.model = options.out.absolute(), options.model.absolute()
    try:
        if options.losses is not None:
            options.first = options.losses * options.rows
        head, line = (HEAD, compare) if options.losses is None else (LOSSES_HEAD, same_losses)
        lines = [head]
        for text in options.task:
            lines.append(line(prepare(text, options), options))
            (options.out / f"{'table' if options.losses is None else 'losses'}.md").write_text("\n".join(lines) + "\n")
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
