"""Compares the losses of the same run on one and on several virtual CPU devices.

    python scripts/mesh_losses.py --config bert:tiny --config.train.num_steps=300 ...

Every mesh is its own process (jax fixes the number of devices when it starts). Prints, for each mesh, the largest
relative difference of the training losses from those on one device, and the first and the last loss.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

MESHES = ((1, 1, 1), (8, 1, 1), (1, 8, 1), (2, 2, 2))


def main(arguments: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        runs = {mesh: losses(mesh, arguments, Path(folder)) for mesh in MESHES}
    alone = runs[MESHES[0]]
    for (data, fsdp, tensor), results in runs.items():
        drift = max(abs(here - there) / there for here, there in zip(results, alone, strict=True))
        print(
            f"data={data} fsdp={fsdp} tensor={tensor}: {len(results)} records, first {results[0]:.6f}, "
            f"last {results[-1]:.6f}, largest relative difference {drift:.1e}"
        )


def losses(mesh: tuple[int, int, int], arguments: list[str], folder: Path) -> list[float]:
    """Returns the training losses of one run, in order."""
    data, fsdp, tensor = mesh
    count = data * fsdp * tensor
    workdir = folder / f"{data}-{fsdp}-{tensor}"
    sizes = [f"--config.mesh.data={data}", f"--config.mesh.fsdp={fsdp}", f"--config.mesh.tensor={tensor}"]
    subprocess.run(
        [sys.executable, "-m", "bertjax", "pretrain", "--workdir", str(workdir), *arguments, *sizes],
        check=True,
        stdout=subprocess.DEVNULL,
        env=os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"--xla_force_host_platform_device_count={count}"},
    )
    records = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return [record["train/loss"] for record in records if "train/loss" in record]


if __name__ == "__main__":
    main(sys.argv[1:])
