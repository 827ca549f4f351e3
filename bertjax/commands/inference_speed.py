"""Speed of inference next to other libraries: texts per second by their length, and the time of a single text.

Every side has a process of its own, which loads the model and waits for its turns. Turns alternate, so that a slow
minute slows all sides.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bertjax.errors import one_line
from bertjax.hf.safe_files import GRAPH
from bertjax.io.stderr import note

BATCH_SIZE = 32
LIMITS = (16, 64, 256)
"""Most tokens of texts that are timed together; longer ones are the last group."""
SINGLE_TEXTS, WARMUP_TEXTS = 50, 10
_SECONDS_TO_END = 10.0
_WORDS = ((8, 256), (32, 96), (128, 32))
_PACKAGES = str(Path(__file__).resolve().parents[2])
_COMMAND = f"import sys; sys.path.insert(0, {_PACKAGES!r}); from {__name__} import serve; serve()"

Read = Callable[[Sequence[str]], Any]


# -- sides: a function of folder and task each, which loads the model and returns what reads texts --------------------


def _bertjax(folder: Path, task: str) -> Read:
    from bertjax.commands.embed import embed
    from bertjax.commands.predict import predict
    from bertjax.experiment.open_model import load_pretrained

    model, run = load_pretrained(folder), embed if task == "embed" else predict
    return lambda texts: run(model, list(texts))


def _transformers(folder: Path, task: str, compiled: bool = False) -> Read:
    """Reads with sentence-transformers, which runs `transformers`, or for classes with its pipeline."""
    if task == "embed":
        from sentence_transformers import SentenceTransformer

        encoder = SentenceTransformer(str(folder), device="cpu")
        if compiled:
            encoder.transformers_model.compile(dynamic=True)  # type: ignore[union-attr]
        return lambda texts: encoder.encode(list(texts), batch_size=BATCH_SIZE)
    import transformers

    pipe = transformers.pipeline("text-classification", model=str(folder), device="cpu")
    if compiled:
        pipe.model.compile(dynamic=True)
    return lambda texts: pipe(list(texts), batch_size=min(BATCH_SIZE, len(texts)), top_k=None, truncation=True)


def _onnx(folder: Path, task: str, dtype: str) -> Read:
    """Runs a graph of ours."""
    from bertjax.commands.export import export

    with tempfile.TemporaryDirectory() as name:
        graph = Path(name) / "onnx"
        export(model=folder, out=graph, onnx=True, dtype=dtype)  # type: ignore[arg-type]
        return read_graph(graph)


def read_graph(folder: Path) -> Read:
    """Returns what runs the graph of a folder on texts that are sorted by length and padded to the longest of a batch.

    Args:
        folder: an export with `model.onnx`, which is read whole; a text may be a list of words.
    """
    import onnxruntime
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    session = onnxruntime.InferenceSession((folder / GRAPH).read_bytes(), providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]

    def read(texts: Sequence[Any]) -> None:
        ordered = sorted(texts, key=lambda text: sum(map(len, text)))
        words = isinstance(ordered[0], list)
        for first in range(0, len(ordered), BATCH_SIZE):
            batch = ordered[first : first + BATCH_SIZE]
            arrays = tokenizer(batch, padding=True, truncation=True, return_tensors="np", is_split_into_words=words)
            session.run(None, {name: np.asarray(arrays[name], np.int64) for name in names})

    return read


SIDES: dict[str, Callable[[Path, str], Read]] = {
    "bertjax": _bertjax,
    "transformers": _transformers,
    "transformers, compiled": lambda folder, task: _transformers(folder, task, compiled=True),
    "onnxruntime float32": lambda folder, task: _onnx(folder, task, "float32"),
    "onnxruntime int8": lambda folder, task: _onnx(folder, task, "int8"),
}


class Side:
    """A library with the model in a process of its own. Close it at the end.

    Args:
        name: key of `SIDES`.
        folder: a Hugging Face folder.
        task: `embed` or `predict`.
        texts: file of all texts, as a JSON list.
    """

    def __init__(self, name: str, folder: Path, task: str, texts: Path) -> None:
        self.name, self.error = name, ""
        command = [sys.executable, "-c", _COMMAND, name, str(folder), task, str(texts)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._read()

    def seconds(self, texts: Sequence[int], *, together: bool) -> list[float]:
        """Returns the seconds that texts take, in one call or one by one; [] if the side cannot run.

        Args:
            texts: indices of the texts.
            together: all texts in one call.
        """
        if self.error:
            return []
        assert self._process.stdin is not None
        print(json.dumps([list(texts), together]), file=self._process.stdin, flush=True)
        return self._read()

    def _read(self) -> list[float]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.endswith("\n"):
            line = json.dumps({"error": f"its process ended (exit code {self._process.wait(_SECONDS_TO_END)})"})
        response = json.loads(line)
        self.error = response.get("error", "")
        return response.get("seconds", [])

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.communicate()


def serve() -> None:
    """Loads a side and answers requests from standard input until it ends."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever libraries print
    name, folder, task, file = sys.argv[1:]
    texts = json.loads(Path(file).read_text(encoding="utf-8"))
    try:
        read = SIDES[name](Path(folder), task)
        print(json.dumps({}), file=answers, flush=True)
        for line in sys.stdin:
            numbers, together = json.loads(line)
            seconds = []
            for members in [numbers] if together else [[number] for number in numbers]:
                begin = time.perf_counter()
                read([texts[number] for number in members])
                seconds.append(time.perf_counter() - begin)
            print(json.dumps({"seconds": seconds}), file=answers, flush=True)
    except ImportError as error:
        print(json.dumps({"error": f"not installed ({error.name})"}), file=answers, flush=True)
    except Exception as error:  # a side that cannot run is a line of the table
        print(json.dumps({"error": one_line(error)}), file=answers, flush=True)


# -- texts and times ---------------------------------------------------------------------------------------------------


def sample_texts(documents: Iterable[str]) -> list[str]:
    """Returns texts of 8, 32 and 128 words from running text."""
    words = itertools.chain.from_iterable(document.split() for document in documents)
    texts = (" ".join(itertools.islice(words, size)) for size, count in _WORDS for _ in range(count))
    return [text for text in texts if text]


def group_by_length(lengths: np.ndarray) -> dict[str, list[int]]:
    """Returns the indices of texts that are timed together, by the lengths of the group in words.

    Args:
        lengths: tokens of every text [n].
    """
    titles = [f"{low + 1}-{high} tokens" for low, high in itertools.pairwise((0, *LIMITS))] + [f"over {LIMITS[-1]}"]
    groups = np.searchsorted(LIMITS, lengths)
    return {title: np.flatnonzero(groups == n).tolist() for n, title in enumerate(titles) if (groups == n).any()}


def measure(sides: Sequence[Side], groups: Mapping[str, Sequence[int]], repeats: int) -> dict[str, dict[str, Any]]:
    """Times the sides in turns.

    Args:
        sides: what is timed; the first is that of the ratios.
        groups: indices of texts that are timed together.
        repeats: turns.

    Returns:
        By side `texts_per_second` (medians by group), `ratio` (of all texts, to the first side), `first_seconds` (all
        texts for the first time, with what is compiled for them), `single_p50` and `single_p95` (seconds of single
        texts), or `error`.
    """
    everything = [number for group in groups.values() for number in group]
    spread = np.linspace(0, len(everything) - 1, WARMUP_TEXTS + SINGLE_TEXTS).astype(int)
    singles = [everything[number] for number in np.random.default_rng(0).permutation(spread)]
    first: dict[str, float] = {}
    turns: dict[str, dict[str, list[float]]] = {side.name: {title: [] for title in groups} for side in sides}
    alone: dict[str, list[float]] = {side.name: [] for side in sides}
    for side in sides:
        note(f"{side.name}: first reading of {len(everything):,} texts")
        first[side.name] = sum(seconds for group in groups.values() for seconds in side.seconds(group, together=True))
    for repeat in range(repeats):
        note(f"repeat {repeat + 1} of {repeats}")
        for side, (title, group) in itertools.product(sides, groups.items()):
            turns[side.name][title] += side.seconds(group, together=True)
        for side in sides:
            alone[side.name] += side.seconds(singles, together=False)[WARMUP_TEXTS:]
    results: dict[str, dict[str, Any]] = {
        side.name: {"error": side.error} if side.error else _result(turns[side.name], groups, alone[side.name])
        for side in sides
    }
    of_first = results[sides[0].name].get("seconds")
    for name, result in results.items():
        if "error" not in result:
            result |= {"first_seconds": first[name]} | ({"ratio": of_first / result["seconds"]} if of_first else {})
    return results


def _result(
    turns: Mapping[str, Sequence[float]], groups: Mapping[str, Sequence[int]], alone: Sequence[float]
) -> dict[str, Any]:
    """Returns medians and quantiles of the seconds of a side, by group in `turns`, of single texts in `alone`."""
    medians = {title: statistics.median(seconds) for title, seconds in turns.items()}
    p50, p95 = np.quantile(alone, (0.5, 0.95)).tolist()
    speeds = {title: len(groups[title]) / seconds for title, seconds in medians.items()}
    return {
        "texts_per_second": speeds,
        "seconds": sum(medians.values()),
        "single_p50": p50,
        "single_p95": p95,
    }


def format_table(results: Mapping[str, Mapping[str, Any]], groups: Mapping[str, Sequence[int]]) -> list[str]:
    """Formats the results of `measure` for the console."""
    columns = [f"{title} ({len(group):,})" for title, group in groups.items()]
    widths = [max(14, len(column)) for column in columns]
    head = "  ".join(f"{column:>{width}}" for column, width in zip(columns, widths, strict=True))
    lines = [f"{'texts per second':<24}{head}   ratio   one text: p50, p95   first reading"]
    for name, result in results.items():
        if "error" in result:
            lines.append(f"{name:<24}{result['error']}")
            continue
        speeds = zip(result["texts_per_second"].values(), widths, strict=True)
        cells = "  ".join(f"{speed:>{width},.0f}" for speed, width in speeds)
        single = f"{1e3 * result['single_p50']:.1f}, {1e3 * result['single_p95']:.1f} ms"
        lines.append(
            f"{name:<24}{cells}  {result.get('ratio', 1.0):6.2f}   {single:>18} {result['first_seconds']:>13.1f} s"
        )
    return lines
