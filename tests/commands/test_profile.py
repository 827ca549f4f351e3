"""`profile.steps`: trace files of a real run, as TensorBoard and Perfetto read them."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path

import jax
import pytest
from lab import Lab

from bertjax.training.step import train_step


def events_of(file: Path) -> list[tuple[str, dict[str, object]]]:
    planes = jax.profiler.ProfileData.from_file(str(file)).planes
    return [(event.name, dict(event.stats)) for plane in planes for line in plane.lines for event in line.events]


@pytest.mark.long
def test_a_trace_has_the_operations_of_its_updates_and_of_no_others(
    lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every operation of the step's program runs equally often in each of two steps."""
    options = ["--config.profile.steps=5:6", "--config.export.at_end=false"]
    assert lab.run("pretrain", "--workdir", tmp_path / "run", *options) == 0
    output = capsys.readouterr().out
    folder = next((tmp_path / "run" / "profile" / "plugins" / "profile").iterdir())
    assert f"a trace of steps 5 to 6 is in {folder}" in output
    assert f"--logdir {tmp_path / 'run' / 'profile'}" in output

    (binary,) = folder.glob("*.xplane.pb")
    events = events_of(binary)
    assert [stats["step_num"] for name, stats in events if name == "train"] == [5, 6]
    counts = Counter(name for name, stats in events if stats.get("hlo_module") == f"jit_{train_step.__name__}")
    assert len(counts) > 50 and min(counts.values()) == 2
    assert all(count % 2 == 0 for count in counts.values())  # more often within a loop
    assert any("dot" in name for name in counts)

    with gzip.open(folder / "perfetto_trace.json.gz") as file:
        trace = json.load(file)
    assert "metadata" not in trace  # Perfetto does not accept it
    shown = Counter(event.get("name") for event in trace["traceEvents"] if event.get("ph") == "X")
    assert shown["train"] == 2 and set(counts) <= set(shown)
