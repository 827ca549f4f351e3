"""scripts/host_wait.py: it reports the cost of a slow loader, and none for a fast loader."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from lab import Lab, load_script

from bertjax.data.pipeline import Prefetcher


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script(Path(__file__).parents[2] / "scripts" / "host_wait.py")


class Loader:
    """Batches of 4 sequences of 100 tokens, a quarter of them padding; each takes a given number of seconds."""

    def __init__(self, seconds: float):
        self.seconds = seconds

    def batch(self, cursor: int) -> dict[str, np.ndarray]:
        time.sleep(self.seconds)
        return {"segment_ids": np.tile(np.array([1, 1, 1, 0], np.int32), (4, 25))}

    def prefetch(self, start: int, stop: int) -> Prefetcher:
        return Prefetcher(self.batch, start, stop, 2)


@pytest.mark.long
@pytest.mark.parametrize(("making", "minimum", "maximum"), [(0.0, 0.0, 0.3), (0.06, 0.4, 0.8)])
def test_a_loader_that_needs_three_times_as_long_as_a_step_is_waited_for(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, making: float, minimum: float, maximum: float
) -> None:
    """Steps of 20 ms; for two thirds of the time there is no batch."""
    fake = SimpleNamespace(prepare=lambda cfg: None, training_pipeline=lambda cfg, prepared: Loader(making))
    monkeypatch.setattr(script, "from_config", fake)
    monkeypatch.setattr(script, "parse", lambda cfg: None)
    cfg = SimpleNamespace(train=SimpleNamespace(batch_size=4), data=SimpleNamespace(seq_len=100))
    result = script.measure(cfg, demand=400 / 0.02, seconds=0.4)
    assert minimum <= result.waited <= maximum and result.filled == 0.75 and result.made > 0


def test_a_line_a_form(
    lab: Lab, script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--lengths", "32", "--tokens", "256", "--seconds", "0.1", "--demand", "10e3", "--most", "100"]
    arguments += [f"--config.data.sources=text:{lab.corpus}", f"--config.data.cache_dir={lab.folder / 'cache'}"]
    arguments += [
        "--config.data.vocab_size=120",
        "--config.data.tokenizer=wordpiece",
        "--forms",
        "packed",
        "pairs",
        "xlnet",
    ]
    arguments += ["--config.data.eval_fraction=0.2"]
    monkeypatch.setattr(sys, "argv", ["host_wait.py", *arguments])
    assert script.main() == 0
    lines = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if " % | " in line]
    assert [line[0] for line in lines] == ["| packed", "| pairs", "| xlnet"] and {line[2] for line in lines} == {"8"}
