"""Compiles the steps of the published sizes for TPU slices that are not attached, and writes their requirements.

    python scripts/topology_table.py --out topology.jsonl                # all cells; finished ones are kept
    python scripts/topology_table.py --out topology.jsonl --only large   # cells whose name contains this
    python scripts/topology_table.py --out topology.jsonl --table        # the Markdown of docs/ahead-of-time.md

Needs libtpu (pip install 'bertjax[compile-tpu]'), not a TPU. A cell takes minutes on two cores and is written at once.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
os.environ["JAX_PLATFORMS"] = "cpu"  # nothing runs

from bertjax.config.overrides import apply_overrides, load_config  # noqa: E402
from bertjax.errors import UserError  # noqa: E402
from bertjax.experiment.config import parse as check  # noqa: E402
from bertjax.tools.compile_report import step_metrics  # noqa: E402
from bertjax.tools.compile_step import compile_step, estimate_step  # noqa: E402
from bertjax.tools.topology import tpu_devices  # noqa: E402

TUNED = ("model.attention_dropout=0.0", "train.dropout_prng=rbg")
"""Splash attention drops no probabilities."""
PALLAS = ("train.dropout_prng=hash", "model.attention_implementation=pallas")


class Cell(NamedTuple):
    """One compilation; `rows` are sequences per chip; `mesh` the sizes of data, fsdp and tensor, -1 = the rest."""

    config: str
    length: int
    rows: int
    slice: str
    mesh: tuple[int, int, int] = (-1, 1, 1)
    settings: tuple[str, ...] = TUNED
    estimate: bool = False

    @property
    def name(self) -> str:
        mesh = "x".join(map(str, self.mesh))
        return " ".join([self.config, str(self.length), str(self.rows), self.slice, mesh, *self.settings])


CELLS = [
    Cell("bert:large", 512, 8, "v5e-16", estimate=True),
    Cell("bert:base", 512, 16, "v5e-16", estimate=True),
    Cell("bert:base", 128, 64, "v5e-16"),
    Cell("modernbert:base", 1024, 8, "v5e-16"),
    Cell("bert:large", 512, 8, "v5e-256"),
    Cell("bert:large", 512, 8, "v5e-16", (1, 16, 1)),
    Cell("roberta:base", 512, 16, "v5e-16"),
    Cell("electra:base", 512, 8, "v5e-16"),
    Cell("deberta:v3-base", 512, 8, "v5e-16", settings=("train.dropout_prng=rbg",)),
    Cell("deberta:v3-base", 512, 8, "v5e-16", settings=PALLAS),
    Cell("albert:base-v2", 512, 16, "v5e-16"),
    Cell("xlnet:base", 512, 4, "v5e-16", settings=("train.dropout_prng=rbg",)),
    Cell("xlnet:base", 512, 4, "v5e-16", settings=PALLAS),
    Cell("bert:base", 512, 16, "v5e-16", settings=PALLAS),  # as published, with dropout of probabilities
    Cell("bert:large", 512, 8, "v5e-16", (4, 2, 2)),
    Cell("bert:large", 512, 32, "v5p-32"),
    Cell("bert:large", 512, 16, "v6e-16"),
    Cell("bert:large", 512, 16, "v4-32"),
    Cell("bert:base", 512, 16, "v5e-16", settings=("model.attention_dropout=0.0",)),
    Cell("bert:base", 512, 8, "v5e-16", settings=()),
    Cell("bert:base", 512, 16, "v5e-256", (64, 2, 2)),
]


def measure(cell: Cell) -> dict[str, Any]:
    """Returns the results of one cell, or why there are none."""
    devices = tpu_devices(cell.slice)
    data, fsdp, tensor = cell.mesh
    name, size = cell.config.split(":")
    settings = {
        "train.batch_size": cell.rows * len(devices),
        "eval.batch_size": cell.rows * len(devices),
        "train.phases": "",
        "train.initial_batch_size": None,  # as large as it will be
        "train.batch_ramp_steps": None,
        "data.seq_len": cell.length,
        "mesh.data": data,
        "mesh.fsdp": fsdp,
        "mesh.tensor": tensor,
    }
    overrides = [f"--config.{key}={value}" for key, value in settings.items()]
    cfg = apply_overrides(
        load_config(f"{ROOT / 'configs' / name}.py:{size}"),
        [*overrides, *(f"--config.{each}" for each in cell.settings)],
    )
    cfg.platform = "any"
    cell_facts = {"cell": cell.name, "config": cell.config, "slice": cell.slice, "settings": list(cell.settings)}
    try:
        check(cfg)
        compiled = compile_step(cfg, devices)
        return cell_facts | step_metrics(compiled, estimate_step(cfg, devices) if cell.estimate else None)
    except UserError as error:
        return cell_facts | {"error": str(error), "seq_len": cell.length, "batch_size": cell.rows * len(devices)}


def markdown(results: list[dict[str, Any]]) -> str:
    lines = [
        "| step | slice | mesh | rows a chip | GiB a chip: state + temporary | collectives a step, MiB a chip | "
        "MFU, estimated: cycles / unrolled / at best | attention kernels, wire |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for each in results:
        settings = ", ".join(setting.split(".", 1)[1] for setting in each["settings"])
        step = f"{each['config']} {each['seq_len']}" + (f" ({settings})" if settings else "")
        if "error" in each:
            lines.append(f"| {step} | {each['slice']} | | | {each['error']} | | | |")
            continue
        mesh = " x ".join(f"{name} {size}" for name, size in each["mesh"].items() if size > 1)
        kinds: dict[str, float] = {}
        for one in each["collectives"]:
            kinds[one["kind"]] = kinds.get(one["kind"], 0.0) + one["bytes"] / 2**20
        sent = ", ".join(f"{kind} {size:,.0f}" for kind, size in kinds.items() if size >= 1)
        gib = [each[f"{part}_bytes"] / 2**30 for part in ("state", "temporary")]
        shares = [each["estimated_mfu"][name] for name in ("as_compiled", "unrolled", "optimal")]
        # of v5p and v6e libtpu reports cycles for some operations that are impossible
        message = " / ".join("-" if share is None or share < 1e-3 else f"{100 * share:.0f} %" for share in shares)
        attention = "none" if each["attention_seconds"] is None else f"{1000 * each['attention_seconds']:.1f} ms"
        lines.append(
            f"| {step} | {each['slice']} | {mesh} | {each['batch_size'] // each['devices']} "
            f"| {gib[0]:.2f} + {gib[1]:.2f} of "
            f"{each['memory_bytes'] >> 30} | {sent} | {message} | {attention}, "
            f"{1000 * each['collective_seconds']:.1f} ms |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="a JSON line for every cell; those there are kept")
    parser.add_argument("--only", default="", help="cells whose name holds this")
    parser.add_argument("--table", action="store_true", help="compile nothing, print the table of what is there")
    options = parser.parse_args()
    lines = options.out.read_text().splitlines() if options.out.exists() else []
    results = [json.loads(line) for line in lines]
    if options.table:
        print(markdown(results))
        return
    done = {each["cell"] for each in results}
    for cell in CELLS:
        if options.only in cell.name and cell.name not in done:
            metrics = measure(cell)
            with options.out.open("a") as file:
                file.write(json.dumps(metrics) + "\n")
            print(markdown([metrics]).splitlines()[-1], flush=True)


if __name__ == "__main__":
    main()
