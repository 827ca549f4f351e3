"""Compares `bertjax pretrain` with `transformers`' Trainer from a text file to the n-th step: real tokens per second.

    python scripts/end_to_end.py --text train.txt.gz --size mini --rows 32 --length 128 --steps 30 --repeats 5

The time includes the start of Python, imports, tokenization, compilation and the steps; `real tokens` exclude padding.
Both sides get the first `--bytes` of the text, the same WordPiece vocabulary (trained beforehand), sizes, dropout,
clipping and AdamW; every run is its own process without a prepared corpus. Ours runs without and with the code that an
earlier run compiled. The baseline is Trainer with its own tokenizer and collator: lines joined and cut into full
sequences, or one line per sequence with padding, each in float32 and in bfloat16 autocast; after the first round the
slower dtype of each is dropped. Runs are interleaved and medians compared. Trainer needs accelerate: `--peer_python`
names an interpreter that has it.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bertjax.config.model import encoder_config
from bertjax.config.overrides import apply_overrides, load_config
from bertjax.errors import UserError

ROOT = Path(__file__).parents[1]
COLD, WARM = "bertjax, nothing compiled before", "bertjax, compiled before"
FORMS = {"group": "joined and cut", "lines": "one line per sequence"}
POLL_SECONDS = 0.01


class Run(NamedTuple):
    """One process: seconds from its start to the end of the last step, and tokens trained by then."""

    seconds: float
    real_tokens: int

    @property
    def speed(self) -> float:
        return self.real_tokens / self.seconds


class Job(NamedTuple):
    """Inputs of both sides, below one directory."""

    folder: Path
    options: argparse.Namespace
    more: Sequence[str]

    @property
    def overrides(self) -> list[str]:
        options = self.options
        values = {
            "platform": options.platform,
            "data.sources": f"text:{self.folder / 'text.txt'}",
            "data.vocab_size": options.vocab_size,
            "data.seq_len": options.length,
            "data.example_format": "block",
            "data.eval_fraction": 0.1,  # a megabyte of Wikipedia is few articles
            "objective.masking.dynamic": "true",
            "train.phases": "",
            "train.num_steps": options.steps,
            "train.batch_size": options.rows,
            "train.log_interval_steps": options.steps,
            "schedule.warmup_steps": 0,
            "eval.interval_steps": 0,
            "eval.num_batches": 1,
            "checkpoint.interval_steps": 0,
            "logging.tensorboard": "false",
        }
        return [*(f"--config.{key}={value}" for key, value in values.items()), *self.more]

    @property
    def config(self) -> list[str]:
        return ["--config", f"{ROOT / 'configs' / 'bert.py'}:{self.options.size}", *self.overrides]


def prepare(job: Job) -> None:
    """Writes the text and the vocabulary that both sides use."""
    options = job.options
    if not options.text.exists():
        raise UserError(f"--text {options.text}: no such file")
    opener = gzip.open if options.text.suffix == ".gz" else open
    with opener(options.text, "rb") as file:
        results = file.read(options.bytes)
    (job.folder / "text.txt").write_bytes(results[: results.rfind(b"\n") + 1])
    cache = f"--config.data.cache_dir={job.folder / 'tokenizer-cache'}"
    call([sys.executable, "-m", "bertjax", "tokenizer", *job.config, cache, "--out", str(job.folder / "tokenizer")])


def ours(job: Job, name: str, compiled: Path) -> Run:
    """Runs bertjax; `compiled` holds the compilation cache of earlier runs, or nothing yet."""
    folder = job.folder / name
    command = [sys.executable, "-m", "bertjax", "pretrain", "--workdir", str(folder / "run"), *job.config]
    command += [f"--config.data.tokenizer={job.folder / 'tokenizer'}", f"--config.data.cache_dir={folder / 'cache'}"]
    began = time.time()
    log = job.folder / f"{name}.log"
    with log.open("w") as out:
        environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(compiled)}
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=environment)
        file, ended, padding = folder / "run" / "metrics.jsonl", None, 0.0
        while ended is None and process.poll() is None:
            time.sleep(POLL_SECONDS)
            if file.exists() and "\n" in (text := file.read_text()):  # one line: log_interval_steps is the whole run
                ended, padding = time.time(), json.loads(text.splitlines()[0])["train/padding"]
        process.wait()
    if process.returncode or ended is None:
        raise UserError(f"bertjax pretrain did not train: {' / '.join(log.read_text().splitlines()[-3:])}")
    options = job.options
    return Run(ended - began, round((1.0 - padding) * options.steps * options.rows * options.length))


def theirs(job: Job, name: str, form: str, dtype: str) -> Run:
    options = job.options
    folder = job.folder / name
    folder.mkdir()
    model = encoder_config(apply_overrides(load_config(job.config[1]), job.overrides))
    sizes = {
        "vocab_size": len(json.loads((job.folder / "tokenizer" / "tokenizer.json").read_text())["model"]["vocab"]),
        "hidden_size": model.hidden_size,
        "num_hidden_layers": model.num_layers,
        "num_attention_heads": model.num_heads,
        "intermediate_size": model.intermediate_size,
        "max_position_embeddings": model.max_position_embeddings,
        "hidden_dropout_prob": model.hidden_dropout,
        "attention_probs_dropout_prob": model.attention_dropout,
    }
    message = {
        "text": str(job.folder / "text.txt"),
        "tokenizer": str(job.folder / "tokenizer"),
        "cache": str(folder),
        "model": sizes,
        "form": form,
        "dtype": dtype,
        "compile": options.peer_compile,
        "rows": options.rows,
        "seq_len": options.length,
        "steps": options.steps,
        "out": str(folder / "found.json"),
    }
    (folder / "job.json").write_text(json.dumps(message))
    began = time.time()
    call(
        [options.peer_python, str(Path(__file__).with_name("trainer_peer.py")), str(folder / "job.json")],
        {"HF_HOME": str(folder), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "true"},
    )
    results = json.loads((folder / "found.json").read_text())
    return Run(results["ended"] - began, results["real_tokens"])


def call(command: Sequence[str], environment: dict[str, str] | None = None) -> None:
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | (environment or {}), check=False)
    if done.returncode:
        words = (done.stderr or done.stdout).strip().splitlines()
        raise UserError(f"{' '.join(command[:4])} ... ended with status {done.returncode}: {' / '.join(words[-3:])}")


def turns(job: Job) -> dict[str, list[Run]]:
    """Runs every side in turn and prints the table after each run."""
    ways = [(form, dtype) for form in FORMS for dtype in ("float32", "bfloat16")]
    results: dict[str, list[Run]] = {name: [] for name in (COLD, WARM, *(title(*way) for way in ways))}
    for turn in range(job.options.repeats):
        compiled = job.folder / f"compiled-{turn}"
        results[COLD].append(ours(job, f"cold-{turn}", compiled))
        for form, dtype in ways:
            results[title(form, dtype)].append(theirs(job, f"{form}-{dtype}-{turn}", form, dtype))
        results[WARM].append(ours(job, f"warm-{turn}", compiled))
        if turn == 0:
            ways = [
                max(((form, dtype) for dtype in ("float32", "bfloat16")), key=lambda way: results[title(*way)][0].speed)
                for form in FORMS
            ]
        print("\n".join(table(results)), "\n", flush=True)
    return results


def title(form: str, dtype: str) -> str:
    return f"Trainer, {FORMS[form]}, {dtype}"


def table(results: dict[str, list[Run]]) -> list[str]:
    """Returns medians; ratios compare them with the fastest Trainer."""
    speeds = {way: statistics.median(run.speed for run in runs) for way, runs in results.items()}
    best = max(speed for way, speed in speeds.items() if way not in (COLD, WARM))
    lines = [
        "| | turns | seconds to the last step | real tokens | real tokens/s | over the fastest Trainer |",
        "|---|---|---|---|---|---|",
    ]
    for way, runs in results.items():
        seconds = sorted(run.seconds for run in runs)
        lines.append(
            f"| {way} | {len(runs)} | {statistics.median(seconds):.1f} ({seconds[0]:.1f} to {seconds[-1]:.1f}) "
            f"| {statistics.median(run.real_tokens for run in runs):,.0f} | {speeds[way]:,.0f} "
            f"| {speeds[way] / best:.2f} |"
        )
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, required=True, help="a text file, .gz or not, a paragraph a line")
    parser.add_argument("--bytes", type=int, default=1_000_000, help="of the text that are read (default 1,000,000)")
    parser.add_argument("--size", default="mini", help="argument of configs/bert.py (default mini)")
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--vocab_size", type=int, default=8192, help="tokens of the vocabulary (default 8,192)")
    parser.add_argument("--platform", default="any", help="cpu, gpu, tpu or any, of our side")
    parser.add_argument("--peer_python", default=sys.executable, help="an interpreter with torch and accelerate")
    parser.add_argument("--peer_compile", action="store_true", help="torch.compile on the peer's side")
    options, more = parser.parse_known_args()
    for name in ("bytes", "steps", "repeats"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} must be at least 1, not {getattr(options, name)}")
    try:
        with tempfile.TemporaryDirectory(prefix="bertjax-end-to-end-") as folder:
            job = Job(Path(folder), options, more)
            prepare(job)
            turns(job)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
