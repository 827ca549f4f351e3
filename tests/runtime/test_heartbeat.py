"""Messages between processes, with threads for processes and a dictionary for jax's store."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import pytest
from store import Client, Store

from bertjax.config.distributed import DistributedConfig
from bertjax.errors import UserError
from bertjax.runtime import heartbeat as pulse_module
from bertjax.runtime.heartbeat import EXIT_PEER_LOST, Heartbeat
from bertjax.runtime.process_group import MultiProcessGroup, ProcessGroup, join_processes


class Ended(BaseException):
    """Simulates the end of a process."""


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, str, int]]:
    """Returns (process, its message, exit status) of those that ended."""
    recorded: list[tuple[int, str, int]] = []

    def end(self: Heartbeat, message: str, code: int) -> None:
        recorded.append((self._index, message, code))
        self._stopping.set()
        raise Ended

    monkeypatch.setattr(Heartbeat, "_exit", end)
    monkeypatch.setattr(pulse_module, "MAX_PERIOD", 0.02)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    return recorded


@pytest.fixture
def group(ends: list) -> Iterator[Callable[..., list[MultiProcessGroup]]]:
    made: list[MultiProcessGroup] = []

    def make(count: int, timeout: int = 20, store: Store | None = None) -> list[MultiProcessGroup]:
        shared = store or Store()
        config = DistributedConfig(peer_timeout=timeout, wait_timeout=1)
        made.extend(MultiProcessGroup(Client(shared), index, count, config) for index in range(count))
        return made

    yield make
    for processes in made:
        processes._heartbeat.stop()


def on_all(processes: list[MultiProcessGroup], work: Callable[[MultiProcessGroup], object]) -> list:
    """Returns the results of `work` on each, all at the same time."""
    result: dict[int, object] = {}
    threads = [
        threading.Thread(target=lambda each=each: result.__setitem__(each.index, work(each))) for each in processes
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return [result.get(each.index) for each in processes]


@pytest.mark.parametrize("seed", range(6))
def test_all_stop_and_save_at_the_same_step_whoever_asks_and_however_fast_they_are(
    group: Callable[..., list[MultiProcessGroup]], seed: int
) -> None:
    """P14: no process continues after the agreed step, and no process misses it."""
    draw = random.Random(seed)
    count = draw.choice([2, 3, 5])
    paces = [draw.uniform(0.0, 0.004) for _ in range(count)]
    asks = {draw.randrange(count): draw.randrange(3, 30) for _ in range(draw.choice([1, 2]))}
    saves_at = draw.choice([None, 5])

    def train(local: MultiProcessGroup) -> tuple[list[int], int, int]:
        saved, step = [], 0
        while True:
            step += 1
            time.sleep(paces[local.index])
            wish = 15 if step >= asks.get(local.index, 10**9) else 0
            stop, save = local.agree(wish, saves_at is not None and step >= saves_at and not saved)
            if save:
                saved.append(step)
            if stop:
                return saved, step, stop

    result = on_all(group(count), train)
    assert len({step for _, step, _ in result}) == 1 and len({tuple(saved) for saved, *_ in result}) == 1
    assert result[0][1] > min(asks.values()) and result[0][2] == 15


def test_what_the_first_makes_reaches_all_as_json(group: Callable[..., list[MultiProcessGroup]]) -> None:
    trio = group(3)
    calls: list[int] = []

    def ask(local: MultiProcessGroup) -> object:
        return local.run_on_first("x", lambda: calls.append(local.index) or {"a": (1, None)}), local.run_on_first(
            "y", lambda: local.index
        )

    assert on_all(trio, ask) == [({"a": [1, None]}, 0)] * 3
    assert calls == [0]


@pytest.mark.parametrize(
    ("other", "message"), [({"lr": 0.1, "jax": "1", "b": None}, "lr 0.1 instead of 0.2, a absent"), ({}, "")]
)
def test_a_process_that_differs_is_named_to_all(
    group: Callable[..., list[MultiProcessGroup]], other: dict, message: str
) -> None:
    trio = group(3)
    values = {"lr": 0.2, "jax": "1", "a": 1}

    def compare(local: MultiProcessGroup) -> str:
        try:
            local.require_same("settings", lambda: other if other and local.index == 2 else values, "Stop")
        except UserError as error:
            return str(error)
        return ""

    result = on_all(trio, compare)
    assert result == [result[0]] * 3 and message in result[0]
    assert not other or result[0].startswith("settings differ from those of process 0 in process 2: lr")


def test_waiting_for_the_first_has_an_end(group: Callable[..., list[MultiProcessGroup]]) -> None:
    pair = group(2)
    with pytest.raises(UserError, match=r"process 1 waited 1 s for the text \(distributed.wait_timeout\)"):
        pair[1].run_on_first("the text", lambda: None)


def test_an_error_of_one_ends_all_with_its_message_and_exit_status(
    group: Callable[..., list[MultiProcessGroup]], ends: list
) -> None:
    trio = group(3)
    with pytest.raises(Ended), trio[1].abort_on_error():
        raise UserError("no such file")
    end = time.monotonic() + 10
    while len(ends) < 3 and time.monotonic() < end:
        time.sleep(0.01)
    by_process = {index: (message, code) for index, message, code in ends}
    assert by_process[1] == ("no such file", 2)
    assert all(by_process[index][1] == 2 and "no such file" in by_process[index][0] for index in (0, 2))
    assert "process 1 on " in by_process[0][0]


def test_a_silent_process_is_named_and_ends_all(group: Callable[..., list[MultiProcessGroup]], ends: list) -> None:
    """P16, the part in this package."""
    trio = group(3, timeout=1)
    trio[2]._heartbeat._stopping.set()  # halted
    end = time.monotonic() + 10
    while len(ends) < 2 and time.monotonic() < end:
        time.sleep(0.01)
    assert {(index, code) for index, _, code in ends} == {(0, EXIT_PEER_LOST), (1, EXIT_PEER_LOST)}
    assert all("process 2" in message and "has not been heard of for 1 s" in message for _, message, _ in ends)


def test_a_silent_first_process_is_noticed_by_the_others(
    group: Callable[..., list[MultiProcessGroup]], ends: list
) -> None:
    store = Store()
    pair = group(2, timeout=1, store=store)
    pair[0]._heartbeat._stopping.set()
    store.silent = True
    end = time.monotonic() + 10
    while not ends and time.monotonic() < end:
        time.sleep(0.01)
    store.silent = False
    assert [(index, code) for index, _, code in ends] == [(1, EXIT_PEER_LOST)]
    assert "process 0 has not answered for" in ends[0][1]


def test_a_single_process_requests_nothing(tmp_path: Path) -> None:
    alone = ProcessGroup()
    assert alone.run_on_first("x", lambda: tmp_path) is tmp_path
    assert (alone.agree(15, False), alone.agree(0, True)) == ((15, False), (0, True))
    with pytest.raises(KeyError), alone.abort_on_error():
        raise KeyError


@pytest.mark.parametrize("timeout", [1, 6, 20, 100])
def test_jax_does_not_abort_before_the_heartbeat_names_the_lost_process(
    timeout: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """jax's clients report twice per timeout: its service may count a process as lost after half of it."""
    options: dict[str, object] = {}

    def initialize(**kwargs: object) -> None:
        options.update(kwargs)
        raise RuntimeError("stop here")

    monkeypatch.setattr(jax.config, "update", lambda *_: None)
    monkeypatch.setattr(jax.distributed, "initialize", initialize)
    config = DistributedConfig("none", "127.0.0.1:1", 2, 0, peer_timeout=timeout)
    with pytest.raises(UserError, match="stop here"), join_processes(config):
        pass
    earliest = float(str(options["heartbeat_timeout_seconds"])) / 2
    assert earliest > timeout + 5 * pulse_module.MAX_PERIOD
