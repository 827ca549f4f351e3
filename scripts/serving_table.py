"""Compares the forms in which finetuned runs can be served: megabytes, speed and score of each, in one table.

    python scripts/serving_table.py --runs runs/sst2/seed-0 runs/sst2/seed-1 runs/sst2/seed-2 --out runs/serving \\
        --layers 4 --intermediate-size 768 --text text:sentences.txt --recovery-steps 2000

The runs are those of `bertjax finetune --seeds`, with `task.eval`. Forms are the exported folder in float32 and
bfloat16, ONNX graphs in float32, float16 and int8, the pruned model, the same after its recovery and after another
finetuning by the same recipe (of classes with the run as its teacher), and the graph of that in int8. Scores are means
and standard deviations over the runs. Forms that have been written are taken up again.

The times are those of the first run's forms on its held-out texts, each in a process of its own, in turns, because
threads of another form would take processor time. A text alone is read without batches.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import bertjax
from bertjax.commands.inference_speed import SINGLE_TEXTS, WARMUP_TEXTS, read_graph
from bertjax.config.task import task_config
from bertjax.errors import UserError
from bertjax.experiment.config import load_config
from bertjax.experiment.open_model import load_pretrained
from bertjax.experiment.workdir import read_config
from bertjax.hf.safe_files import GRAPH
from bertjax.report.analyses import SMALLER
from bertjax.tasks.readers.examples import WordExamples, read_examples

METRICS = {"tokens": "f1", "regression": "spearman", "multilabel": "macro_f1"}  # of other kinds accuracy
GRAPHS = ("float32", "float16", "int8")
WITH_TEACHER = ("classification", "multilabel", "regression")  # kinds that task.teacher serves
QUIET = {"logging.tensorboard": False, "export.at_end": False}


class Form(NamedTuple):
    """A folder that can be served: its name in the table, where it is, and its score."""

    name: str
    folder: Path
    score: float


# -- forms -------------------------------------------------------------------------------------------------------------


def forms_of(run: Path, out: Path, options: argparse.Namespace) -> list[Form]:
    """Writes all forms of a run below a folder, and scores them."""
    task = task_config(read_config(run))
    metric = METRICS.get(task.kind, "accuracy")
    files = [Path(each) for each in task.eval]
    columns = {name: getattr(task, name) for name in ("text_column", "pair_column", "label_column")}

    def scored(name: str, folder: Path) -> Form:
        metrics = bertjax.predict(folder, files, kind=task.kind, score=True, **columns).metrics
        assert metrics is not None
        return Form(name, folder, float(metrics[metric]))

    def graph(name: str, source: Path, dtype: str) -> Form:
        folder = out / f"{source.name}-onnx-{dtype}"
        if not folder.exists():
            bertjax.export(run=source, out=folder, onnx=True, dtype=dtype, eval=files)  # type: ignore[arg-type]
        shapes = json.loads((source / "analyses" / f"{SMALLER}.json").read_text())
        after = {each: value for each, _, value in shapes[f"ONNX, {dtype}"]["scores"]}
        return Form(name, folder, after[metric])

    forms = [scored("float32", run / "export"), scored("bfloat16", exported(run, out / "bfloat16", "bfloat16"))]
    forms += [graph(f"ONNX, {dtype}", run, dtype) for dtype in GRAPHS]
    if options.layers is None and options.intermediate_size is None:
        return forms
    for steps, name in ((0, "pruned"), (options.recovery_steps, "pruned, recovered")):
        folder = out / name.split(", ")[-1]
        if not folder.exists():
            bertjax.prune(
                run,
                folder,
                options.text,
                {"train.num_steps": steps, "optimizer.learning_rate": options.recovery_rate, **QUIET} if steps else {},
                layers=options.layers,
                intermediate_size=options.intermediate_size,
                workdir=out / "recovery" if steps else None,
            )
        forms.append(scored(name, folder))
    again = out / "again"
    cfg = load_config(f"finetune/{task.kind}")
    cfg.task.update(read_config(run).task.to_dict())
    cfg.optimizer.learning_rate = read_config(run).optimizer.learning_rate
    cfg.init_from, cfg.task.from_scratch = str(out / "recovered"), False
    if task.kind in WITH_TEACHER:
        cfg.task.teacher = str(run / "export")
    bertjax.finetune(cfg, again)
    forms.append(scored("pruned, recovered, finetuned again", again / "export"))
    return [*forms, graph("the same, ONNX, int8", again, "int8")]


def exported(run: Path, folder: Path, dtype: str) -> Path:
    if not folder.exists():
        bertjax.export(run=run, out=folder, dtype=dtype)  # type: ignore[arg-type]
    return folder


# -- times -------------------------------------------------------------------------------------------------------------


def texts_of(run: Path, count: int) -> list[Any]:
    """Returns held-out texts, pairs or lists of words of a run."""
    examples: Any = read_examples(task_config(read_config(run)), "eval")
    if isinstance(examples, WordExamples):
        return [list(each) for each in examples.words[:count]]
    pairs = examples.pairs
    return list(examples.texts[:count]) if pairs is None else list(zip(examples.texts, pairs, strict=True))[:count]


def reader(folder: Path) -> Callable[[Sequence[Any]], Any]:
    """Returns what reads texts with a folder: onnxruntime where it holds a graph, otherwise bertjax."""
    if (folder / GRAPH).exists():
        return read_graph(folder)
    model = load_pretrained(folder)
    return lambda texts: bertjax.predict(model, list(texts))


def read_all(folder: Path, texts: list[Any]) -> dict[str, float]:
    """Returns texts per second of all texts, and the median of single ones in milliseconds, both when compiled."""
    read = reader(folder)
    read(texts)
    seconds = []
    for part in (texts, *([text] for text in texts[: WARMUP_TEXTS + SINGLE_TEXTS])):
        began = time.perf_counter()
        read(part)
        seconds.append(time.perf_counter() - began)
    return {
        "speed": len(texts) / seconds[0],
        "alone": 1000 * statistics.median(seconds[1 + WARMUP_TEXTS :]),
    }


def measure(forms: Sequence[Form], texts: list[Any], repeats: int) -> dict[str, dict[str, float]]:
    """Returns medians over turns, by name of the form."""
    turns: dict[str, list[dict[str, float]]] = {form.name: [] for form in forms}
    for _ in range(repeats):
        for form in forms:
            command = [sys.executable, __file__, "--time", str(form.folder)]
            done = subprocess.run(command, input=json.dumps(texts), capture_output=True, text=True, check=True)
            turns[form.name].append(json.loads(done.stdout.splitlines()[-1]))
    return {
        name: {key: statistics.median(turn[key] for turn in of_form) for key in ("speed", "alone")}
        for name, of_form in turns.items()
    }


def megabytes(folder: Path) -> float:
    """Returns the size of weights or graph; tokenizer and cards are left out."""
    files = [path for name in ("*.safetensors", "model.onnx*") for path in folder.glob(name)]
    return sum(path.stat().st_size for path in files) / 1e6


def table(scores: Sequence[Sequence[Form]], times: dict[str, dict[str, float]]) -> list[str]:
    lines = ["| form | MB | one text, p50 ms | texts/s | score |", "|---|---:|---:|---:|---:|"]
    for number, form in enumerate(scores[0]):
        values = [of_run[number].score for of_run in scores]
        spread = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
        timed = times[form.name]
        lines.append(
            f"| {form.name} | {megabytes(form.folder):.1f} | {timed['alone']:.1f} | {timed['speed']:.0f} "
            f"| {statistics.fmean(values):.4f}{spread} |"
        )
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, nargs="+", default=[])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--text", nargs="+", help="text of the pruning and its recovery, as data.sources")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--intermediate-size", type=int)
    parser.add_argument("--recovery-steps", type=int, default=2000)
    parser.add_argument("--recovery-rate", type=float, default=2e-4)
    parser.add_argument("--texts", type=int, default=800, help="held-out texts to read at once")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--time", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.time is not None:
        print(json.dumps(read_all(options.time, json.loads(sys.stdin.read()))))
        return 0
    if not options.runs or options.out is None:
        parser.error("--runs and --out are missing")
    try:
        scores = [forms_of(run, options.out / str(number), options) for number, run in enumerate(options.runs)]
        times = measure(scores[0], texts_of(options.runs[0], options.texts), options.repeats)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    lines = table(scores, times)
    (options.out / "table.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
