"""The thread by which a process lives for the others: its pulse, their failures, and steps that all agree on.

Keys in the store: `alive/N`, what process N last wrote, read by the first; `failed`, the first failure of any, which
everybody waits for; `notes/`, what all read: the first process's own pulse and requests (`ask/R`, round R).
A request is settled as in XLA's preemption manager: every process says how many steps it has dispatched and goes on to
none before the answer is there; the answer is one step more than the most. That stalls a run only when there is a
request, for about a second.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from typing import Any

EXIT_PEER_LOST = 75
"""Exit status when another process is gone; EX_TEMPFAIL of sysexits.h: start all of them again."""

ALIVE, NOTES, FAILED = "bertjax/alive/", "bertjax/notes/", "bertjax/failed"
LONGEST_PERIOD = 1.0
"""Seconds between two pulses; also about how long a signal on one process takes to reach the others."""
_SOON = 0.02


class Heartbeat:
    """Starts with the process and ends with `stop`; whatever ends the process before does so with a message."""

    def __init__(self, client: Any, index: int, count: int, timeout: float):
        self._client, self._index, self._count, self._timeout = client, index, count, timeout
        self._period = min(LONGEST_PERIOD, timeout / 8)
        self._beats, self._round, self._tick = 0, 0, 0
        self._wishes: list[str] = []
        self._asked: set[str] = set()
        self._agreed: dict[int, tuple[int, bool]] = {}
        self._stopping, self._suspicious = threading.Event(), False
        self._lock = threading.Lock()
        self._heard = time.monotonic()
        self._seen: dict[str, tuple[str, float]] = {}
        self._host = socket.gethostname()
        self._beat()  # before anybody waits for it
        self._threads = [
            threading.Thread(target=target, daemon=True, name=f"processes-{target.__name__}")
            for target in (self._live, self._watch)
        ]
        for thread in self._threads:
            thread.start()

    # -- for the main thread -----------------------------------------------------------------------------------------

    def agree(self, stop: int, save: bool) -> tuple[int, bool]:
        """One more step is dispatched: what all do behind it (the number of a signal or 0, whether to save)."""
        with self._lock:
            self._tick += 1
            for kind, wished in (("stop", stop), ("save", int(save))):
                if wished and kind not in self._asked:  # once, whatever comes of it later
                    self._asked.add(kind)
                    self._wishes.append(f"{kind} {wished}")
            now = self._agreed.pop(self._tick, (0, False))
            if now[1]:
                self._asked.discard("save")
            return now

    def await_peer_failure(self) -> None:
        """Gives the pulse time to learn who is gone, after a failure that may come of it; it ends the process then."""
        self._suspicious = True
        time.sleep(self._timeout + 2 * self._period)

    def fail(self, message: str, code: int) -> None:
        """Tells the others and ends this process; does not return."""
        said = {"process": self._index, "host": self._host, "message": message, "code": code}
        try:
            self._client.key_value_set(FAILED, json.dumps(said))
        except Exception:  # somebody was faster, or nobody is there to hear it
            said["code"] = code
        if self._index == 0:
            time.sleep(2 * self._period)  # the service lives in this process: let the others hear
        self._end(message, code)

    def stop(self) -> None:
        """No more pulses: everybody is done."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(timeout=2 * self._period)

    # -- its threads -------------------------------------------------------------------------------------------------

    def _live(self) -> None:
        while not self._stopping.is_set():
            try:
                self._beat()
                self._read_notes()
                self._await_failure()
            except Exception as error:
                if self._stopping.is_set():
                    return
                if "UNAVAILABLE" in str(error) and self._index:
                    self._end(f"{self._name(0)} is gone, and with it the service that all depend on", EXIT_PEER_LOST)
                time.sleep(self._period)  # not answered this time: `_watch` minds how long that goes on

    def _watch(self) -> None:
        """Ends this process when the first one, where the service is, has been silent for too long."""
        while not self._stopping.wait(self._period):
            silent = time.monotonic() - self._heard
            if self._index and silent > self._timeout:
                self._end(
                    f"{self._name(0)} has not answered for {silent:.0f} s (distributed.peer_timeout)", EXIT_PEER_LOST
                )

    def _beat(self) -> None:
        self._beats += 1
        self._client.key_value_set(f"{ALIVE}{self._index}", f"{self._beats} {self._host}", True)
        if self._index == 0:
            self._look_round()
        self._heard = time.monotonic()

    def _look_round(self) -> None:
        """The first process alone looks who is silent: the others hear of it as of any failure."""
        now = time.monotonic()
        patience = 3 * self._period if self._suspicious else self._timeout
        found = {key.rpartition("/")[2]: value for key, value in self._client.key_value_dir_get(ALIVE)}
        for name in map(str, range(1, self._count)):
            text = found.get(name, "")
            if name not in self._seen or self._seen[name][0] != text:
                self._seen[name] = text, now
            elif now - self._seen[name][1] > patience:
                silent = now - self._seen[name][1]
                self.fail(f"{self._name(name)} has not been heard of for {silent:.0f} s", EXIT_PEER_LOST)

    def _await_failure(self) -> None:
        """Sleeps one period, but for the failure of another process, which ends this one at once."""
        try:
            said = json.loads(self._client.blocking_key_value_get(FAILED, int(1000 * self._period)))
        except Exception as error:
            if "DEADLINE_EXCEEDED" in str(error):
                return
            raise
        if not self._stopping.is_set() and said["process"] != self._index:
            who = f"process {said['process']} on {said['host']}"
            self._end(f"ended together with {who}, which says: {said['message']}", said["code"])
        self._stopping.wait(self._period)

    # -- agreeing on a step ------------------------------------------------------------------------------------------

    def _read_notes(self) -> None:
        """Puts forward what the main thread wishes, and settles what any process has put forward."""
        key = f"{NOTES}{self._round}"
        if self._wishes:
            try:
                self._client.key_value_set(key, self._wishes[0])
            except Exception as error:
                if "ALREADY_EXISTS" not in str(error):
                    raise
        try:
            wish = self._client.key_value_try_get(key)
        except Exception as error:
            if "NOT_FOUND" in str(error):
                return
            raise
        try:
            self._settle(wish)
        except Exception as error:  # others may act on an answer that this process has not heard
            self.fail(f"the processes could not agree on a step: {' '.join(str(error).split())[:300]}", EXIT_PEER_LOST)

    def _settle(self, wish: str) -> None:
        """Finds the first step that nobody has dispatched yet; the main thread waits here if it wants to go on."""
        with self._lock:
            answer, ticks = f"bertjax/answer/{self._round}", f"bertjax/ticks/{self._round}/"
            self._client.key_value_set(f"{ticks}{self._index}", str(self._tick))
            if self._index == 0:
                while len(found := self._client.key_value_dir_get(ticks)) < self._count:
                    self._beat()
                    time.sleep(_SOON)
                self._client.key_value_set(answer, str(max(int(tick) for _, tick in found) + 1))
            step = int(self._client.blocking_key_value_get(answer, int(1000 * self._timeout)))
            kind, _, number = wish.partition(" ")
            stop, save = self._agreed.get(step, (0, False))
            self._agreed[step] = (stop or int(number), save) if kind == "stop" else (stop, True)
            self._wishes = [each for each in self._wishes if not each.startswith(kind)]
            self._round += 1

    # -- the end -----------------------------------------------------------------------------------------------------

    def _name(self, index: int | str) -> str:
        host = self._seen.get(str(index), ("", 0.0))[0].partition(" ")[2]
        return f"process {index} on {host}" if host else f"process {index}"

    def _end(self, message: str, code: int) -> None:
        exit_immediately(f"process {self._index} of {self._count}: {message}", code)


def exit_immediately(message: str, code: int) -> None:
    """Ends this process with a line on stderr: every other way out may wait for those who are gone."""
    # By a thread of its own: the one that prints may be stuck in a pipe that nobody reads.
    flush = threading.Thread(target=sys.stdout.flush, daemon=True)
    flush.start()
    flush.join(timeout=1.0)
    shown_again = b"\x1b[?25h" if os.isatty(2) else b""  # a progress bar hides the terminal's cursor
    os.write(2, shown_again + f"bertjax: {message}\n".encode())
    os._exit(code)
