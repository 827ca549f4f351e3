"""The process for which the others wait is named, and nobody when all are equal."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bertjax.runtime.heartbeat import HostTimes, StragglerDetector


class Run:
    """Hosts whose devices are idle for some share of the time, and a clock."""

    def __init__(self, shares: list[float], waits: list[float] | None = None) -> None:
        self.shares, self.waits, self.now = shares, waits or shares, 0.0
        self.idle, self.waited = [0.0] * len(shares), [0.0] * len(shares)
        self.detector = StragglerDetector(self.times, lambda: self.now)

    def times(self) -> dict[int, HostTimes]:
        values = enumerate(zip(self.idle, self.waited, strict=True))
        return {index: HostTimes(f"host{index}", idle, waited) for index, (idle, waited) in values}

    def after(self, seconds: float) -> tuple[dict[str, float], str | None]:
        self.now += seconds
        self.idle = [idle + seconds * share for idle, share in zip(self.idle, self.shares, strict=True)]
        self.waited = [waited + seconds * share for waited, share in zip(self.waited, self.waits, strict=True)]
        return self.detector.update()

    def messages(self, windows: int) -> Iterator[str]:
        for _ in range(windows):
            if (message := self.after(10.0)[1]) is not None:
                yield message


def test_the_slow_one_is_named_with_its_host() -> None:
    run = Run([0.02, 0.04, 0.5, 0.03], [0.0, 0.0, 0.4, 0.0])
    assert run.after(9.9) == ({}, None)
    metrics, message = run.after(0.1)
    assert metrics == pytest.approx({"train/slowest_process": 2, "train/slowest_idle": 0.5, "train/others_idle": 0.03})
    assert message is None  # not before the third window
    (message,) = run.messages(20)
    assert "the others wait for process 2 on host2: its devices were idle 50 % of the time, 40 % for lack" in message
    assert "those of the others 3 %" in message


@pytest.mark.parametrize("shares", [[0.02, 0.01, 0.03], [0.3, 0.3, 0.35], [0.0, 0.0, 0.09], [0.4]])
def test_equal_or_busy_processes_are_not_named(shares: list[float]) -> None:
    assert not list(Run(shares).messages(50))


def test_short_pauses_are_not_named() -> None:
    run = Run([0.0, 0.0, 0.0])
    for _ in range(10):
        for shares in ([0.0, 0.0, 0.0], [0.0, 0.9, 0.0], [0.0, 0.9, 0.0]):
            run.shares = shares
            assert run.after(10.0)[1] is None


def test_it_is_repeated_after_an_hour_and_for_another_process_at_once() -> None:
    run = Run([0.0, 0.5, 0.0])
    assert len(list(run.messages(360))) == 1 and len(list(run.messages(10))) == 1
    run.shares = [0.5, 0.0, 0.0]
    (message,) = run.messages(3)
    assert "process 0 on host0" in message


def test_a_process_that_is_not_heard_of_yet_is_left_out() -> None:
    run = Run([0.5, 0.0])
    run.detector = StragglerDetector(lambda: {0: HostTimes("host0", 9.0, 9.0)}, lambda: run.now)
    assert run.after(10.0) == ({}, None)
