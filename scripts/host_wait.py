"""Measures whether the host keeps up: the share of a step's time without a batch, at a demand of tokens per second.

    python scripts/host_wait.py --demand 10e6 --config.data.sources=text:train.txt.gz

No model runs. A thread stands for the devices: a step sleeps for the batch's token slots divided by the demand, and
starts when its batch is there and the previous step has ended; the loop runs two steps ahead. Batches come from the
training loader, and the wait is measured as in training (`train/data_wait`). Covers packed examples, sentence pairs and
XLNet's segments, per length. A batch has `--tokens` slots. The corpus is prepared first unless cached; the first
batches are not timed, but later epochs are planned while the clock runs. A small corpus is harder than a large one: at
10 M tokens per second, 5 M of them are an epoch of half a second. The last column is the rate of one thread that does
nothing else, in tokens per CPU second. Exits with 1 if the wait exceeds `--most` percent.
"""

from __future__ import annotations

import argparse
import queue
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from bertjax.config.overrides import apply_overrides, load_config
from bertjax.data import from_config
from bertjax.errors import UserError
from bertjax.experiment.config import parse
from bertjax.training.timing import DataWaitTimer

CONFIGS = Path(__file__).parents[1] / "configs"
FORMS = {
    "packed": (
        "bert.py",
        ["data.example_format=doc_sentences", "data.packing=best_fit"],
    ),
    "blocks": ("bert.py", ["data.example_format=block"]),
    "pairs": ("bert.py", ["data.example_format=nsp_pairs"]),
    "packed pairs": ("bert.py", ["data.example_format=nsp_pairs", "data.packing=best_fit"]),
    "xlnet": ("xlnet.py", []),
}
AHEAD = 2
WARM_UP = 4


class WaitMetrics(NamedTuple):
    """Share of the time without a batch, share of real tokens, tokens per CPU second of one format."""

    waited: float
    filled: float
    made: float


class Step:
    """Metrics of a step in flight, which can only be waited for."""

    def __init__(self) -> None:
        self.ended = threading.Event()

    def block_until_ready(self) -> Step:
        self.ended.wait()
        return self


class Devices:
    """Runs steps of a given duration one after the other."""

    def __init__(self, seconds: float):
        self._seconds, self._sent = seconds, queue.SimpleQueue[Step | None]()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def send(self) -> Step:
        step = Step()
        self._sent.put(step)
        return step

    def close(self) -> None:
        self._sent.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (step := self._sent.get()) is not None:
            time.sleep(self._seconds)
            step.ended.set()


def config_of(form: str, length: int, options: argparse.Namespace, more: Sequence[str]) -> ConfigDict:
    file, overrides = FORMS[form]
    cfg = load_config(f"{CONFIGS / file}:base")
    rows = max(options.tokens // length // 2 * 2, 2)
    values = [f"data.seq_len={length}", f"train.batch_size={rows}", f"eval.batch_size={rows}", "train.phases="]
    return apply_overrides(cfg, [*(f"--config.{value}" for value in [*overrides, *values]), *more])


def measure(cfg: ConfigDict, demand: float, seconds: float) -> WaitMetrics:
    """Returns the metrics of steps with real batches over `seconds`."""
    parse(cfg)
    pipeline = from_config.training_pipeline(cfg, from_config.prepare(cfg))
    step_seconds = cfg.train.batch_size * cfg.data.seq_len / demand
    steps = max(int(seconds / step_seconds), 10)
    waiting, devices = DataWaitTimer(), Devices(step_seconds)
    under_way: list[Step] = []
    slots = filled = 0
    with pipeline.prefetch(0, WARM_UP + steps) as batches:
        for cursor, batch in waiting.timed(batches):
            if cursor == WARM_UP:
                for step in under_way:
                    step.block_until_ready()
                waiting.lap()
                began = time.perf_counter()
            slots, filled = slots + batch["segment_ids"].size, filled + int((batch["segment_ids"] > 0).sum())
            under_way.append(devices.send())
            waiting.dispatched(under_way[-1])
            if len(under_way) > AHEAD:
                under_way.pop(0).block_until_ready()
        for step in under_way:
            step.block_until_ready()
        waited = waiting.lap() / (time.perf_counter() - began)
    devices.close()
    waiting.close()
    return WaitMetrics(waited, filled / slots, speed(pipeline, WARM_UP + steps, min(steps, 64)))


def speed(pipeline: Any, first: int, batches: int) -> float:
    """Returns token slots per CPU second of this thread."""
    pipeline.batch(first)
    began = time.thread_time()
    slots = sum(pipeline.batch(cursor)["segment_ids"].size for cursor in range(first, first + batches))
    return slots / (time.thread_time() - began)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--demand", type=float, default=10e6, help="tokens per second (default 10e6)")
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS))
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 512])
    parser.add_argument("--tokens", type=int, default=256 * 512, help="token slots per batch (default 256 x 512)")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement (default 4)")
    parser.add_argument("--most", type=float, default=1.0, help="percent of the time that may be waited (default 1)")
    options, more = parser.parse_known_args()
    slow, demand = False, f"{options.demand / 1e6:g} M/s"
    print(f"| format | sequence length | sequences | real tokens | waits at {demand} | M tokens/s of a processor |")
    print("|---|---|---|---|---|---|", flush=True)
    try:
        for form in options.forms:
            for length in options.lengths:
                cfg = config_of(form, length, options, more)
                results = measure(cfg, options.demand, options.seconds)
                slow = slow or 100 * results.waited > options.most
                print(
                    f"| {form} | {length} | {cfg.train.batch_size} | {100 * results.filled:.1f} % "
                    f"| {100 * results.waited:.2f} % | {results.made / 1e6:.1f} |",
                    flush=True,
                )
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return int(slow)


if __name__ == "__main__":
    sys.exit(main())
