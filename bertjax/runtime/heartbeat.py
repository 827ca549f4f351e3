"""Heartbeat threads: publish that this process is alive, detect lost and slow processes, and agree on common steps.

Keys in the store: `alive/N`, last written by process N with the idle time of its devices, and read by the first one;
`failed`, the first failure of any process, for which all wait; `requests/R`, the request to stop or save of round R,
which all read.
A request is settled as in XLA's preemption manager: every process publishes the number of steps that it has dispatched
and dispatches no more until the answer is there, which is the largest of these numbers plus one. Training waits about a
second for a request, and for nothing else.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

EXIT_PEER_LOST = 75
"""Exit status after the loss of another process; EX_TEMPFAIL of sysexits.h: start all of them again."""

ALIVE, REQUESTS, FAILED = "bertjax/alive/", "bertjax/requests/", "bertjax/failed"
MAX_PERIOD = 1.0
"""Seconds between two heartbeats; also about the time that a signal on one process takes to reach the others."""
_POLL = 0.02


class Heartbeat:
    """Runs from the start of a process to `stop`; whatever ends the process before does so with a message.

    Args:
        client: Client of jax's key-value store.
        index: Index of this process.
        count: Number of processes.
        timeout: Seconds of silence after which a process counts as lost.
        address: HOST:PORT of the service, to ask its host after a silence whether it still runs.
    """

    def __init__(self, client: Any, index: int, count: int, timeout: float, address: str | None = None):
        self._address = address
        self._client, self._index, self._count, self._timeout = client, index, count, timeout
        self._period = min(MAX_PERIOD, timeout / 8)
        self._beats, self._round, self._step = 0, 0, 0
        self._requests: list[str] = []
        self._requested: set[str] = set()
        self._agreed: dict[int, tuple[int, bool]] = {}
        self._stopping, self._is_suspicious, self._leaving = threading.Event(), False, False
        self._lock = threading.Lock()
        self._last_answer = time.monotonic()
        self._last_beats: dict[str, tuple[str, float]] = {}
        self._host = socket.gethostname()
        self.measure_idle: Callable[[], tuple[float, float]] = lambda: (0.0, 0.0)
        self._beat()  # before any process waits for it
        self._threads = [
            threading.Thread(target=target, daemon=True, name=f"heartbeat-{target.__name__}")
            for target in (self._live, self._watch)
        ]
        for thread in self._threads:
            thread.start()

    # Methods of the main thread

    def agree(self, stop: int, save: bool) -> tuple[int, bool]:
        """Counts a dispatched step; returns what all processes do after it.

        Args:
            stop: Number of a signal that this process received, or 0.
            save: Whether this process requests a checkpoint.

        Returns:
            (number of a signal or 0, whether to save), the same on all processes.
        """
        with self._lock:
            self._step += 1
            for kind, value in (("stop", stop), ("save", int(save))):
                if value and kind not in self._requested:  # once per request
                    self._requested.add(kind)
                    self._requests.append(f"{kind} {value}")
            agreed = self._agreed.pop(self._step, (0, False))
            if agreed[1]:
                self._requested.discard("save")
            return agreed

    def times(self) -> dict[int, HostTimes]:
        """Returns the times of all processes, on the first one; those of the others are a second old."""
        beats = {int(name): json.loads(text) for name, (text, _) in self._last_beats.copy().items() if text}
        return {0: HostTimes(self._host, *self.measure_idle())} | {
            index: HostTimes(*beat[1:]) for index, beat in beats.items()
        }

    def await_peer_failure(self) -> None:
        """Waits until a lost process must have been noticed, which ends this process with a message that names it."""
        self._is_suspicious = True
        time.sleep(self._timeout + 2 * self._period)

    def fail(self, message: str, code: int) -> None:
        """Ends all processes with one line on the standard error of each, and one exit status; does not return."""
        failure = {"process": self._index, "host": self._host, "message": message, "code": code}
        with contextlib.suppress(Exception):  # another process failed first, or the service is gone
            self._client.key_value_set(FAILED, json.dumps(failure))
        if self._index == 0:
            time.sleep(2 * self._period)  # the service runs in this process: let the others read it
        self._exit(message, code)

    def begin_shutdown(self) -> None:
        """Tolerates errors of the service from now on: all processes are done, and may leave."""
        self._leaving = True

    def stop(self) -> None:
        """Ends the threads."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(timeout=2 * self._period)

    # Threads

    def _live(self) -> None:
        while not self._stopping.is_set():
            try:
                self._beat()
                self._read_request()
                self._await_failure()
            except Exception as error:
                if self._stopping.is_set():
                    return
                if "UNAVAILABLE" in str(error) and self._index and not self._leaving:
                    self._exit(f"{self._name(0)} is gone, and with it the service that all depend on", EXIT_PEER_LOST)
                time.sleep(self._period)  # `_watch` counts how long the service does not answer

    def _watch(self) -> None:
        """Ends this process when the first one, which runs the service, has been silent for too long."""
        while not self._stopping.wait(self._period):
            silent = time.monotonic() - self._last_answer
            if self._index and silent > 2 * self._period and not self._leaving and self._refuses_connections():
                self._exit(f"{self._name(0)} is gone, and with it the service that all depend on", EXIT_PEER_LOST)
            if self._index and silent > self._timeout:
                message = f"{self._name(0)} has not answered for {silent:.0f} s (distributed.peer_timeout)"
                self._exit(message, EXIT_PEER_LOST)

    def _refuses_connections(self) -> bool:
        """Returns whether the service is gone: its client may not answer while it aborts."""
        if self._address is None:
            return False
        host, _, port = self._address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=self._period).close()
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
        return False

    def _beat(self) -> None:
        self._beats += 1
        beat = [self._beats, self._host, *self.measure_idle()]
        self._client.key_value_set(f"{ALIVE}{self._index}", json.dumps(beat), True)
        if self._index == 0:
            self._check_peers()
        self._last_answer = time.monotonic()

    def _check_peers(self) -> None:
        """Looks for silent processes, on the first one; the others learn of a loss as of any failure."""
        now = time.monotonic()
        patience = 3 * self._period if self._is_suspicious else self._timeout
        beats = {key.rpartition("/")[2]: value for key, value in self._client.key_value_dir_get(ALIVE)}
        for name in map(str, range(1, self._count)):
            text = beats.get(name, "")
            if name not in self._last_beats or self._last_beats[name][0] != text:
                self._last_beats[name] = text, now
            elif now - self._last_beats[name][1] > patience:
                silent = now - self._last_beats[name][1]
                self.fail(f"{self._name(name)} has not been heard of for {silent:.0f} s", EXIT_PEER_LOST)

    def _await_failure(self) -> None:
        """Sleeps for one period, unless another process fails, which ends this one at once."""
        try:
            failure = json.loads(self._client.blocking_key_value_get(FAILED, int(1000 * self._period)))
        except Exception as error:
            if "DEADLINE_EXCEEDED" in str(error):
                return
            raise
        if not self._stopping.is_set() and failure["process"] != self._index:
            source = f"process {failure['process']} on {failure['host']}"
            self._exit(f"ended together with {source}, which says: {failure['message']}", failure["code"])
        self._stopping.wait(self._period)

    # Agreeing on a step

    def _read_request(self) -> None:
        """Publishes the requests of the main thread, and settles the request of any process."""
        key = f"{REQUESTS}{self._round}"
        if self._requests:
            try:
                self._client.key_value_set(key, self._requests[0])
            except Exception as error:
                if "ALREADY_EXISTS" not in str(error):
                    raise
        try:
            request = self._client.key_value_try_get(key)
        except Exception as error:
            if "NOT_FOUND" in str(error):
                return
            raise
        try:
            self._settle(request)
        except Exception as error:  # others may act on an answer that this process does not have
            message = f"the processes could not agree on a step: {' '.join(str(error).split())[:300]}"
            self.fail(message, EXIT_PEER_LOST)

    def _settle(self, request: str) -> None:
        """Finds the first step that no process has dispatched; the main thread waits if it dispatches a step."""
        with self._lock:
            answer, steps = f"bertjax/answer/{self._round}", f"bertjax/steps/{self._round}/"
            self._client.key_value_set(f"{steps}{self._index}", str(self._step))
            if self._index == 0:
                while len(published := self._client.key_value_dir_get(steps)) < self._count:
                    self._beat()
                    time.sleep(_POLL)
                self._client.key_value_set(answer, str(max(int(step) for _, step in published) + 1))
            step = int(self._client.blocking_key_value_get(answer, int(1000 * self._timeout)))
            kind, _, number = request.partition(" ")
            stop, save = self._agreed.get(step, (0, False))
            self._agreed[step] = (stop or int(number), save) if kind == "stop" else (stop, True)
            self._requests = [each for each in self._requests if not each.startswith(kind)]
            self._round += 1

    def _name(self, index: int | str) -> str:
        beat = self._last_beats.get(str(index), ("", 0.0))[0]
        host = json.loads(beat)[1] if beat else ""
        return f"process {index} on {host}" if host else f"process {index}"

    def _exit(self, message: str, code: int) -> None:
        exit_immediately(f"process {self._index} of {self._count}: {message}", code)


def exit_immediately(message: str, code: int) -> None:
    """Ends this process with a line on stderr and a status: every other way to end may wait for lost processes."""
    # In a thread: a print may be stuck in a pipe that is not read.
    flush = threading.Thread(target=sys.stdout.flush, daemon=True)
    flush.start()
    flush.join(timeout=1.0)
    show_cursor = b"\x1b[?25h" if os.isatty(2) else b""  # a progress bar disables it
    os.write(2, show_cursor + f"bertjax: {message}\n".encode())
    os._exit(code)


WINDOW_SECONDS = 10.0
WINDOWS = 3
MIN_SHARE, MIN_RATIO = 0.1, 1.5
REPEAT_SECONDS = 3600.0


class HostTimes(NamedTuple):
    """Seconds since the start of a run.

    Attributes:
        host: Name of the host.
        idle: Seconds for which the devices had no step to run.
        data_wait: Seconds of these for which there was no batch.
    """

    host: str
    idle: float
    data_wait: float


class StragglerDetector:
    """Compares processes window by window; a step of all takes as long as that of the slowest.

    While a process makes its batch, saves or is stopped, its own devices are idle, and those of the others wait inside
    the step, which does not count as idle. A device that is slow itself cannot be told from those that wait for it.

    Args:
        read: Returns the times of every process.
        clock: Returns the time in seconds.
    """

    def __init__(self, read: Callable[[], Mapping[int, HostTimes]], clock: Callable[[], float] = time.monotonic):
        self._read, self._clock = read, clock
        self._began, self._before = clock(), dict(read())
        self._suspect, self._count = -1, 0
        self._warned: dict[int, float] = {}

    def update(self) -> tuple[dict[str, float], str | None]:
        """Returns metrics and, of a process that is newly or still the slowest, a message; both empty in a window."""
        seconds = self._clock() - self._began
        if seconds < WINDOW_SECONDS:
            return {}, None
        now = dict(self._read())
        idle = {index: (now[index].idle - each.idle) / seconds for index, each in self._before.items() if index in now}
        waited = {index: (now[index].data_wait - self._before[index].data_wait) / seconds for index in idle}
        self._began, self._before = self._clock(), now
        if len(idle) < 2:
            return {}, None
        slowest = max(idle, key=lambda index: idle[index])
        others = statistics.median(share for index, share in idle.items() if index != slowest)
        is_slow = idle[slowest] > max(MIN_SHARE, MIN_RATIO * others)
        self._count = self._count + 1 if is_slow and slowest == self._suspect else int(is_slow)
        self._suspect = slowest if is_slow else -1
        metrics = {
            "train/slowest_process": float(slowest),
            "train/slowest_idle": idle[slowest],
            "train/others_idle": others,
        }
        if self._count < WINDOWS or self._clock() - self._warned.get(slowest, -REPEAT_SECONDS) < REPEAT_SECONDS:
            return metrics, None
        self._warned[slowest] = self._clock()
        return metrics, (
            f"warning: the others wait for process {slowest} on {now[slowest].host}: its devices were idle "
            f"{100 * idle[slowest]:.0f} % of the time, {100 * min(waited[slowest], idle[slowest]):.0f} % for lack of a "
            f"batch, those of the others {100 * others:.0f} %; is its disk slow, or its processor busy with other "
            "programs?"
        )
