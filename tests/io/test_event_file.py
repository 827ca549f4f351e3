"""Event files, read by TensorBoard."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader

from bertjax.training.logging import EventFile, TensorBoardWriter

Points = list[tuple[int, float]]


def read(folder: Path) -> dict[str, Points]:
    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    accumulator.Reload()
    return {name: [(e.step, e.value) for e in accumulator.Scalars(name)] for name in accumulator.Tags()["scalars"]}


def test_tensorboard_reads_names_steps_and_values(tmp_path: Path) -> None:
    events = EventFile(tmp_path / "a" / "b")
    long = "eval/" + "é" * 200  # lengths of more than seven bits
    events.write(0, {"train/loss": 1.5})
    events.write(127, {"train/loss": -0.1, long: 2})
    events.write(128, {"train/loss": math.inf, long: 1e300})
    events.write(2**40, {"train/loss": math.nan})
    events.close()
    points = read(tmp_path / "a" / "b")
    assert points[long] == [(127, 2.0), (128, math.inf)]
    assert points["train/loss"][:3] == [(0, 1.5), (127, pytest.approx(-0.1)), (128, math.inf)]
    assert points["train/loss"][3][0] == 2**40 and math.isnan(points["train/loss"][3][1])


def test_every_record_has_its_checksum(tmp_path: Path) -> None:
    """The reader above skips a damaged record; this one counts those that it accepts."""
    events = EventFile(tmp_path)
    events.write(1, {f"metric {number}": number / 7 for number in range(100)})
    events.close()
    (path,) = tmp_path.iterdir()
    assert path.name.startswith("events.out.tfevents.")
    assert len(list(RawEventFileLoader(str(path)).Load())) == 101
    data = bytearray(path.read_bytes())
    data[-6] ^= 1
    path.write_bytes(data)
    assert len(list(RawEventFileLoader(str(path)).Load())) == 100, "the checksum is not compared"


def test_a_resumed_run_replaces_the_later_steps(tmp_path: Path) -> None:
    first = TensorBoardWriter(tmp_path, 0)
    for step in range(1, 6):
        first.write(step, {"loss": float(step)})
    first.rewind(4)
    first.write(5, {"loss": 50.0})
    first.close()
    assert read(tmp_path) == {"loss": [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0), (5, 50.0)]}
    resumed = TensorBoardWriter(tmp_path, 2)
    resumed.write(3, {"loss": 30.0})
    resumed.close()
    assert len(list(tmp_path.iterdir())) == 3
    assert read(tmp_path) == {"loss": [(1, 1.0), (2, 2.0), (3, 30.0)]}
