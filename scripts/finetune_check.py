"""Compares finetuning by bertjax and by `transformers`' Trainer: same data, learning rate, batch, epochs, seeds.

    python scripts/finetune_check.py --model FOLDER --out runs/finetune_check --first 3000 \\
        --task sst2=classification,tsv:train.tsv,tsv:dev.tsv,text=sentence \\
        --task conll=tokens,conll:eng.train,conll:eng.testa

A task is NAME=KIND,TRAIN,EVAL[,KEY=VALUE...]: sources and settings as in the `task` group of a config (text, pair and
label stand for text_column and so on). `first` and `held_out` limit its training and held-out examples, `--first` the
training examples of all tasks. Ours is one `bertjax suite` of all tasks and seeds, which share compiled programs (none
exists before); the baseline is one process per task and seed. Seconds are those of all seeds of a task, from its start
to the last prediction. The baseline runs the first seed of a task in float32 and bfloat16 (or in one of
`--peer_dtypes`) and the others in the faster. `--peer_python` names an interpreter that has torch and accelerate.

Prints and writes to OUT/table.md means and standard deviations of the scores (accuracy, F1 of entities, F1 of answers,
mean average precision of several labels), their difference next to 2 sqrt(s1^2 / n + s2^2 / n), and the ratio of the
seconds.

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
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.metrics import average_precision_score

from bertjax.config.task import task_config
from bertjax.data.counter_rng import permutation
from bertjax.errors import UserError
from bertjax.experiment.config import load_config
from bertjax.tasks.metrics.entities import entity_scores
from bertjax.tasks.metrics.squad import squad_scores
from bertjax.tasks.readers.examples import ChoiceExamples, QaExamples, WordExamples, read_examples

METRICS = {"tokens": "f1", "qa": "f1", "multilabel": "map"}  # of other kinds accuracy
COLUMNS = ("text", "pair", "label", "id")


class Job(NamedTuple):
    """A task as both sides read it: JSON lines, labels, and settings of ours by dotted key."""

    name: str
    kind: str
    folder: Path
    labels: tuple[str, ...]
    settings: Mapping[str, Any]

    @property
    def metric(self) -> str:
        return METRICS.get(self.kind, "accuracy")

    @property
    def gold(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "eval.jsonl").read_text().splitlines()]


class Run(NamedTuple):
    """Metric and time of one finetuning."""

    score: float
    seconds: float


def prepare(text: str, options: argparse.Namespace) -> Job:
    """Reads a task once and writes the files of both sides."""
    name, _, rest = text.partition("=")
    kind, train, held_out, *changes = rest.split(",")
    values = dict(change.split("=", 1) for change in changes)
    limits = {"train": values.pop("first", options.first), "eval": values.pop("held_out", None)}
    keys = {f"task.{key}_column" if key in COLUMNS else f"task.{key}": value for key, value in values.items()}
    cfg = load_config(f"finetune/{kind}", {"task.train": train, "task.eval": held_out, **keys})
    config = task_config(cfg)
    folder = options.out / name
    if folder.exists():  # runs in it would be taken up again
        raise UserError(f"{folder} is there already: give another --out")
    folder.mkdir(parents=True)
    labels: tuple[str, ...] = ()
    for split, limit in limits.items():
        examples = read_examples(config, split)
        labels = labels or tuple(config.spec.collect_labels(config, examples))
        rows = list(_rows(examples))[: None if limit is None else int(limit)]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = {key: value for key, value in keys.items() if not key.endswith("_column") and key != "task.header"}
    pair = {"task.pair_column": "pair"} if config.pair_column is not None else {}
    question = {"task.multiple_choice.question_column": "question"} if kind == "multiple_choice" else {}
    classes = {"task.labels": ",".join(labels)} if labels else {}
    return Job(name, kind, folder, labels, {**settings, **pair, **question, **classes})


def _rows(examples: Any) -> Iterator[dict[str, Any]]:
    if isinstance(examples, WordExamples):
        assert examples.tags is not None
        yield from ({"tokens": words, "tags": tags} for words, tags in zip(examples.words, examples.tags, strict=True))
    elif isinstance(examples, QaExamples):
        assert examples.answers is not None
        for index, (name, question, answer) in enumerate(
            zip(examples.ids, examples.questions, examples.answers, strict=True)
        ):
            answers = {"text": list(answer.texts), "answer_start": list(answer.starts)}
            context = examples.contexts[examples.context_of[index]]
            yield {"id": name, "question": question, "context": context, "answers": answers}
    elif isinstance(examples, ChoiceExamples):
        assert examples.answers is not None and examples.questions is not None
        for context, question, choices, right in zip(
            examples.contexts, examples.questions, examples.choices, examples.answers, strict=True
        ):
            yield {"context": context, "question": question, "choices": choices, "label": right}
    else:
        for index, (text, label) in enumerate(zip(examples.texts, examples.labels, strict=True)):
            pair = {} if examples.pairs is None else {"pair": examples.pairs[index]}
            yield {"text": text, **pair, "label": label if isinstance(label, str) else list(label)}


def settings_of(job: Job, options: argparse.Namespace) -> dict[str, Any]:
    """Returns the settings of a task by dotted key, but for its sources."""
    return {
        "task.epochs": options.epochs,
        "task.batch_size": options.rows,
        "task.max_length": options.max_len,
        "task.evals_per_epoch": 1 / options.epochs,
        "optimizer.learning_rate": options.rate,
        "optimizer.bias_correction": True,
        "optimizer.eps": 1e-8,
        "schedule.name": "linear",
        "checkpoint.interval_steps": 0,
        "logging.tensorboard": False,
        "export.at_end": False,
        "platform": options.platform,
        **({"task.multilabel.tune_thresholds": "none"} if job.kind == "multilabel" else {}),
        **job.settings,
    }


def ours(jobs: list[Job], options: argparse.Namespace) -> dict[str, list[Run]]:
    """Finetunes all tasks and seeds by one suite; each seed gets its share of the seconds of its task."""
    tasks = [
        {
            "name": job.name,
            "recipe": f"finetune/{job.kind}",
            "train": f"jsonl:{job.folder / 'train.jsonl'}",
            "eval": f"jsonl:{job.folder / 'eval.jsonl'}",
            "settings": settings_of(job, options),
            "metric": job.metric,
        }
        for job in jobs
    ]
    suite, workdir = options.out / "suite.json", options.out / "ours"
    suite.write_text(json.dumps({"tasks": tasks}, indent=1))
    command = [sys.executable, "-m", "bertjax", "suite", str(suite), "--model", str(options.model)]
    command += ["--workdir", str(workdir), "--seeds", ",".join(map(str, options.seeds))]
    ended = time.time()
    call([*command, f"--config.data.cache_dir={workdir / 'cache'}"])
    results = {}
    for job, entry in zip(jobs, json.loads((workdir / "suite.json").read_text())["results"], strict=True):
        if not entry["scores"]:
            raise UserError(f"{entry['task']}: {entry['note']}")
        began, ended = ended, (workdir / entry["model"] / job.name / "result.json").stat().st_mtime
        seconds = (ended - began) / len(options.seeds)
        results[job.name] = [Run(value, seconds) for value in entry["scores"][job.metric]]
    return results


def losses_of(job: Job, options: argparse.Namespace, start: Path, seed: int) -> list[float]:
    """Returns our losses without dropout, in float32, from the weights of a folder."""
    workdir = job.folder / "ours-start"
    quiet = {f"model.{name}_dropout": 0.0 for name in ("hidden", "attention", "classifier")}
    values = settings_of(job, options) | {
        "init_from": start,
        "task.train": f"jsonl:{job.folder / 'train.jsonl'}",
        "task.eval": f"jsonl:{job.folder / 'eval.jsonl'}",
        "task.epochs": 1,
        "train.compute_dtype": "float32",
        "data.cache_dir": workdir / "cache",
        **quiet,
    }
    command = [sys.executable, "-m", "bertjax", "finetune", "--config", f"finetune/{job.kind}"]
    command += ["--workdir", str(workdir), "--seeds", str(seed)]
    call([*command, *(f"--config.{key}={value}" for key, value in values.items())])
    lines = [json.loads(line) for line in (workdir / f"seed-{seed}" / "metrics.jsonl").read_text().splitlines()]
    return [line["train/loss"] for line in lines if "train/loss" in line]


def theirs(job: Job, options: argparse.Namespace, seed: int, dtype: str) -> Run:
    results, seconds = ask_peer(job, options, seed, dtype)
    return Run(score(job, results["predictions"]), seconds)


def score(job: Job, predictions: Any) -> float:
    """Scores what the baseline predicts: labels, tags, answers by id, or a probability per label."""
    gold = job.gold
    if job.kind == "tokens":
        return entity_scores([row["tags"] for row in gold], predictions).f1
    if job.kind == "qa":
        return squad_scores({row["id"]: row["answers"]["text"] for row in gold}, predictions)["f1"]
    if job.kind == "multilabel":
        truth = np.array([[label in row["label"] for label in job.labels] for row in gold])
        occur = truth.any(axis=0)
        return float(average_precision_score(truth[:, occur], np.array(predictions)[:, occur], average="macro"))
    return statistics.fmean(row["label"] == each for row, each in zip(gold, predictions, strict=True))


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
        "max_len": int(job.settings.get("task.max_length", options.max_len)),
        "stride": int(job.settings.get("task.qa.doc_stride", 128)),
        "truncation": job.settings.get("task.truncation", "longest_first"),
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
    here, there = np.array(losses_of(job, options, start, seed)), np.array(results["losses"])
    largest = np.abs(here - there).max()
    return f"| {job.name} | {len(here)} | {here[0]:.6f} | {here[-1]:.6f} | {there[-1]:.6f} | {largest:.1e} |"


def call(command: list[str], environment: dict[str, str] | None = None) -> None:
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | (environment or {}), check=False)
    if done.returncode:
        words = (done.stderr or done.stdout).strip().splitlines()
        raise UserError(f"{' '.join(command[:4])} ... ended with status {done.returncode}: {' / '.join(words[-3:])}")


def compare(job: Job, options: argparse.Namespace, here: list[Run]) -> str:
    """Returns a line of the table."""
    there, dtypes = [], list(options.peer_dtypes)
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
        jobs = [prepare(text, options) for text in options.task]
        here = ours(jobs, options) if options.losses is None else {}
        lines = [HEAD if options.losses is None else LOSSES_HEAD]
        for job in jobs:
            lines.append(compare(job, options, here[job.name]) if options.losses is None else same_losses(job, options))
            (options.out / f"{'table' if options.losses is None else 'losses'}.md").write_text("\n".join(lines) + "\n")
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
