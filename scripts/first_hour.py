"""Times ten jobs of a first hour, each from the command to its first useful output, in an empty directory.

    python scripts/first_hour.py --command .venv/bin/bertjax --text corpus.txt --model all-MiniLM-L6-v2 \\
        --task train.tsv dev.tsv

`--command` is an installation from the wheel. The model is a sentence encoder of `transformers`, the tables have the
columns `sentence` and `label`. Nothing is prepared or compiled before: caches are in the directory as well. Other runs
than the quickstart and the finetuning are stopped at their first line of progress. `--avx2` limits XLA, PyTorch and
oneDNN to AVX2; onnxruntime has no such switch.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

AVX2 = {
    "XLA_FLAGS": "--xla_cpu_max_isa=AVX2",
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
}
PROGRESS = r"^step \d+/"
OBJECTIVE = Path(__file__).parents[1] / "docs/how-to/own-objective.md"


class Job(NamedTuple):
    """A command, the first line of its output that a user waits for, and whether it goes on after that line."""

    name: str
    command: str
    useful: str
    to_the_end: bool = True


JOBS = (
    Job("the quickstart", "pretrain --config quickstart --workdir runs/quickstart", PROGRESS),
    Job("fill a mask", 'fill-mask --model runs/quickstart/export "If the argument is [MASK], it is used."', r"0\.\d"),
    Job(
        "an objective of one's own",
        "pretrain --config quickstart --workdir runs/own --config.objective.name=rare_words:RareWords",
        PROGRESS,
        False,
    ),
    Job("plan three minutes", "plan --text text:{text} --minutes 3", r"^expect "),
    Job(
        "train three minutes on one's text",
        "pretrain --config bertjax --minutes 3 --config.data.sources=text:{text} --workdir runs/mine",
        PROGRESS,
        False,
    ),
    Job(
        "continue a public model",
        "pretrain --continue {model} --config.data.sources=text:{text} --workdir runs/continued",
        PROGRESS,
        False,
    ),
    Job(
        "finetune it",
        "finetune --config finetune/classification --config.init_from={model} --config.task.train=tsv:{train} "
        "--config.task.eval=tsv:{dev} --workdir runs/task",
        PROGRESS,
    ),
    Job("embed a text", 'embed "a text" --model {model} --out -', r"-?\d\.\d+"),
    Job("predict with a finetuned model", 'predict "a good film" --model runs/task', r"label|\d\.\d"),
    Job("export for serving", "export --model {model} --onnx --dtype int8 --out exports/int8", r"^exported to "),
)


class Times(NamedTuple):
    """Seconds to the first line, to the useful one, and to the end (None: stopped before)."""

    first: float
    useful: float
    total: float | None


def run(command: list[str], job: Job, folder: Path, environment: dict[str, str]) -> Times:
    """Runs a job.

    Raises:
        RuntimeError: the job failed, or printed no useful line.
    """
    began, first, useful, lines = time.monotonic(), None, None, []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder, env=environment
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line.rstrip())
            now = time.monotonic() - began
            first = now if first is None else first
            if useful is None and re.search(job.useful, line):
                useful = now
                if not job.to_the_end:
                    process.terminate()
                    break
        process.stdout.read()
        status = process.wait()
    if first is None or useful is None or (job.to_the_end and status):
        raise RuntimeError(f"{job.name}: status {status}\n" + "\n".join(lines[-20:]))
    return Times(first, useful, time.monotonic() - began if job.to_the_end else None)


def objective_of_docs() -> str:
    """Returns the module of the how-to."""
    block = re.search(r"<<'EOF'\n(.*?)EOF\n", OBJECTIVE.read_text(encoding="utf-8"), re.DOTALL)
    assert block is not None
    return block[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--command", type=Path, required=True, help="the command bertjax of an installation")
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--task", type=Path, nargs=2, required=True, metavar=("TRAIN", "DEV"))
    parser.add_argument("--avx2", action="store_true")
    options = parser.parse_args()
    values = {
        "text": options.text.resolve(),
        "model": options.model.resolve(),
        "train": options.task[0].resolve(),
        "dev": options.task[1].resolve(),
    }
    print("| job | flags | first line | first useful output | end |\n|---|---:|---:|---:|---:|", flush=True)
    commands = []
    with tempfile.TemporaryDirectory(prefix="bertjax-first-hour-") as name:
        folder = Path(name)
        (folder / "rare_words.py").write_text(objective_of_docs())
        environment = {
            **os.environ,
            "HOME": str(folder),
            "PYTHONPATH": str(folder),
            **(AVX2 if options.avx2 else {}),
        }
        for job in JOBS:
            arguments = [each.format(**values) for each in shlex.split(job.command)]
            times = run([str(options.command.absolute()), *arguments], job, folder, environment)
            flags = sum(each.startswith("--") for each in arguments)
            end = "" if times.total is None else f"{times.total:.1f}"
            print(f"| {job.name} | {flags} | {times.first:.1f} | {times.useful:.1f} | {end} |", flush=True)
            commands.append(f"bertjax {job.command}")
    print("\n" + "\n".join(commands))
    return 0


if __name__ == "__main__":
    sys.exit(main())
