"""scripts/memory_over_time.py: the values that it reads of a process, growth and chart."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from types import ModuleType

import pytest
from lab import load_script

SCRIPT = Path(__file__).parents[2] / "scripts" / "memory_over_time.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script(SCRIPT)


HOLDS = """
import os, sys
held = []
for line in sys.stdin:
    held = [os.urandom(1) * (64 << 20), open(os.devnull), open(os.devnull)]
    print("done", flush=True)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc of Linux")
def test_a_process_is_read(script: ModuleType) -> None:
    command = [sys.executable, "-c", "print('ready', flush=True)" + HOLDS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        before = script.sample(process.pid, 1, 0.0)
        process.stdin.write("hold\n")
        process.stdin.flush()
        assert process.stdout.readline() == "done\n"
        after = script.sample(process.pid, 2, 1.0)
    assert 60_000 < after.resident_kib - before.resident_kib < 75_000
    assert after.open_files - before.open_files == 2 and after.threads >= 1


def test_the_growth_is_that_of_the_second_half(script: ModuleType) -> None:
    samples = [
        script.Sample(step, 0.0, 10**6 - step * 5 if step < 50 else 10**5 + 3 * step, 7, 2) for step in range(100)
    ]
    assert script.growth(samples) == pytest.approx(3000)


def test_the_picture_has_both_lines(script: ModuleType) -> None:
    samples = [script.Sample(step, 0.0, 700_000 + step, 7 + step % 3, 2) for step in range(1, 200)]
    root = ET.fromstring(script.picture(samples, "a title"))
    lines = [element for element in root if element.tag.endswith("polyline")]
    assert len(lines) == 2 and all(len(line.attrib["points"].split()) == len(samples) for line in lines)
    heights = [float(point.split(",")[1]) for line in lines for point in line.attrib["points"].split()]
    assert min(heights) >= script.TOP and max(heights) <= script.HEIGHT - script.BOTTOM


def test_a_torn_line_is_no_step(script: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    assert script.last_step(file) == 0
    file.write_text('{"step": 5}\n{"step": 10}\n{"st')
    assert script.last_step(file) == 10
