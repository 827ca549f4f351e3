"""Measures training steps of many configs one after the other in one process: one import, one start of the device.

    python scripts/measure_steps.py rows.json [--torch]

rows.json is a list of {"name", "config", "overrides"}. A row becomes a line of rows.jsonl as soon as it is measured, by
`bertjax benchmark`; rows.begun names those that were begun, so that the same command goes on with the next one after a
crash. A row that fails is a line with its error. `--torch` measures the same models and shapes in transformers and
PyTorch (torch_step.py) instead, alone on the device.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # of this checkout, installed or not

Row = Mapping[str, Any]


def measure_all(rows: Sequence[Row], file: Path, measure: Callable[[Row], Mapping[str, Any]]) -> None:
    """Measures the rows that were not begun yet, and adds their results to `file` with the suffix .jsonl."""
    begun = file.with_suffix(".begun")
    earlier = begun.read_text(encoding="utf-8").splitlines() if begun.exists() else []
    for row in rows:
        if row["name"] in earlier:
            continue
        print(f"== {row['name']}", flush=True)
        _add_line(begun, row["name"])
        began = time.monotonic()
        try:
            metrics = measure(row)
        except Exception as error:  # whatever it is, the others are measured
            traceback.print_exc()
            metrics = {"error": f"{type(error).__name__}: {str(error)[:300]}"}
        result = {"name": row["name"], **metrics, "seconds": time.monotonic() - began}
        _add_line(file.with_suffix(".jsonl"), json.dumps(result))
        gc.collect()


def _add_line(file: Path, line: str) -> None:
    with file.open("a", encoding="utf-8") as stream:
        stream.write(line + "\n")


def measure_bertjax(row: Row, counts: Mapping[str, int]) -> Mapping[str, Any]:
    from bertjax.commands.benchmark import benchmark

    results = benchmark(_config(row), **counts)
    print(results, flush=True)
    return results


def measure_torch(row: Row, counts: Mapping[str, int]) -> Mapping[str, Any]:
    from torch_step import measure

    return measure(_config(row), **counts)


def _config(row: Row) -> Any:
    from bertjax.config.overrides import apply_overrides, load_config

    return apply_overrides(load_config(row["config"]), [f"--config.{each}" for each in row["overrides"]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path, help="JSON file; results are written next to it")
    parser.add_argument("--torch", action="store_true", help="transformers and PyTorch instead of bertjax")
    parser.add_argument("--repeats", type=int, default=5, help="timed turns (default 5)")
    parser.add_argument("--steps", type=int, default=20, help="steps of a turn (default 20)")
    parser.add_argument("--warmup", type=int, default=5, help="steps before them (default 5)")
    options = parser.parse_args()
    counts = {name: getattr(options, name) for name in ("repeats", "steps", "warmup")}
    measure = measure_torch if options.torch else measure_bertjax
    rows = json.loads(options.rows.read_text(encoding="utf-8"))
    measure_all(rows, options.rows, lambda row: measure(row, counts))


if __name__ == "__main__":
    main()
