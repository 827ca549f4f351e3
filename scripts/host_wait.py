"""Does the host keep up? The share of a step's time without a batch, at a given demand of tokens a second.

    python scripts/host_wait.py --demand 10e6 --config.data.sources=text:train.txt.gz

No model runs. A thread stands for the devices: a step is a sleep of the batch's places for tokens over the demand,
begun when its batch is there and the step before has ended; the loop runs two steps ahead. Batches come from the loader
of training, and the waiting is measured as there (`train/data_wait`). For each form and length: packed examples,
sentence pairs, and XLNet's segments of a stream that goes on from batch to batch. A batch has `--tokens` places. The
corpus is prepared first, if it is not in the cache; the first batches are not timed, but the plans of later epochs are
made while the clock runs. A small corpus is harder than a large one: at 10 M tokens a second, 5 M of them are an epoch
of half a second. Beside it stands what a thread makes that does nothing else, in tokens a second of a processor. Exits
with 1 if a form waits for more than `--most` percent of the time.
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

from bertjax.config import parse
from bertjax.config.overrides import apply_overrides, load_config
from bertjax.data import corpora
from bertjax.errors import UserError
from bertjax.training.data_wait import DataWaitTimer

CONFIGS = Path(__file__).parents[1] / "configs"
FORMS = {
    "packed": ("bert.py", ["data.example_format=doc_sentences", "data.packing=best_fit", "objective.pair=none"]),
    "blocks": ("bert.py", ["data.example_format=block", "objective.pair=none"]),
    "pairs": ("bert.py", ["data.example_format=nsp_pairs"]),
    "packed pairs": ("bert.py", ["data.example_format=nsp_pairs", "data.packing=best_fit"]),
    "xlnet": ("xlnet.py", []),
}
AHEAD = 2
WARM_UP = 4


class Figures(NamedTuple):
    """Of one form: share of the time without a batch, real tokens of all places, tokens a second of a processor."""

    waited: float
    filled: float
    made: float


class Step:
    """Figures of a step under way, for whom it is enough that they can be waited for."""

    def __init__(self) -> None:
        self.ended = threading.Event()

    def block_until_ready(self) -> Step:
        self.ended.wait()
        return self


class Devices:
    """One step after the other, each of so many seconds."""

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


def measure(cfg: ConfigDict, demand: float, seconds: float) -> Figures:
    """So many seconds of steps, real batches."""
    parse.check(cfg)
    pipeline = corpora.training_pipeline(cfg, corpora.prepare(cfg))
    step_seconds = cfg.train.batch_size * cfg.data.seq_len / demand
    steps = max(int(seconds / step_seconds), 10)
    waiting, devices = DataWaitTimer(), Devices(step_seconds)
    under_way: list[Step] = []
    places = filled = 0
    with pipeline.prefetch(0, WARM_UP + steps) as batches:
        for cursor, batch in waiting.each(batches):
            if cursor == WARM_UP:
                for step in under_way:
                    step.block_until_ready()
                waiting.lap()
                began = time.perf_counter()
            places, filled = places + batch["segment_ids"].size, filled + int((batch["segment_ids"] > 0).sum())
            under_way.append(devices.send())
            waiting.sent(under_way[-1])
            if len(under_way) > AHEAD:
                under_way.pop(0).block_until_ready()
        for step in under_way:
            step.block_until_ready()
        waited = waiting.lap() / (time.perf_counter() - began)
    devices.close()
    waiting.close()
    return Figures(waited, filled / places, speed(pipeline, WARM_UP + steps, min(steps, 64)))


def speed(pipeline: Any, first: int, batches: int) -> float:
    """Places for tokens that this thread fills in a second of a processor."""
    pipeline.batch(first)
    began = time.thread_time()
    places = sum(pipeline.batch(cursor)["segment_ids"].size for cursor in range(first, first + batches))
    return places / (time.thread_time() - began)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--demand", type=float, default=10e6, help="tokens a second (default 10e6)")
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS))
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 512])
    parser.add_argument("--tokens", type=int, default=256 * 512, help="places of a batch (default 256 x 512)")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement (default 4)")
    parser.add_argument("--most", type=float, default=1.0, help="percent of the time that may be waited (default 1)")
    options, more = parser.parse_known_args()
    slow, demand = False, f"{options.demand / 1e6:g} M/s"
    print(f"| form | tokens a row | rows | real tokens | waits at {demand} | M tokens/s of a processor |")
    print("|---|---|---|---|---|---|", flush=True)
    try:
        for form in options.forms:
            for length in options.lengths:
                cfg = config_of(form, length, options, more)
                found = measure(cfg, options.demand, options.seconds)
                slow = slow or 100 * found.waited > options.most
                print(
                    f"| {form} | {length} | {cfg.train.batch_size} | {100 * found.filled:.1f} % "
                    f"| {100 * found.waited:.2f} % | {found.made / 1e6:.1f} |",
                    flush=True,
                )
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return int(slow)


if __name__ == "__main__":
    sys.exit(main())
