"""SIGTERM and SIGINT: the first one is a request to stop, the second one ends the process."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from typing import Any

STOPS = (signal.SIGTERM, signal.SIGINT)


class StoppedBySignal(Exception):
    """The process was asked to stop and has saved its state. `exit_code` is 128 + the signal's number."""

    def __init__(self, signal_number: int, step: int):
        self.exit_code = 128 + signal_number
        super().__init__(
            f"stopped by {signal.Signals(signal_number).name}; saved at step {step}, the same command resumes"
        )


@contextlib.contextmanager
def stop_signals() -> Iterator[list[int]]:
    """Yields a list to which SIGTERM and SIGINT append their number; a second signal ends the process at once.

    Python runs its handlers between two of its instructions, and a compiler or a wait for the device may last minutes.
    So a thread that the system wakes (`signal.set_wakeup_fd`) handles the second signal. In a notebook or a Python
    shell, whose process holds more than this run, the second one raises KeyboardInterrupt instead.
    """
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        yield received
        return
    interactive = "ipykernel" in sys.modules or hasattr(sys, "ps1")  # a notebook, or a Python shell

    def receive(number: int, _: object) -> None:
        received.append(number)
        if interactive and len(received) > 1:
            raise KeyboardInterrupt("stopped at once by a second signal; the newest checkpoint is intact")

    handlers: dict[int, Any] = {stop: signal.signal(stop, receive) for stop in STOPS}
    try:
        with contextlib.nullcontext() if interactive else _second_signal_exits():
            yield received
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _second_signal_exits() -> Iterator[None]:
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    thread = threading.Thread(target=_exit_at_second_signal, args=(reader,), daemon=True, name="signals")
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        writer.close()  # the thread reads the end of the stream
        thread.join()
        reader.close()


def _exit_at_second_signal(reader: socket.socket) -> None:
    """Reads one byte per signal; the process may end at any moment, so nothing is cleaned up."""
    stops = 0
    while byte := reader.recv(1):
        stops += byte[0] in STOPS
        if stops == 2:
            show_cursor = b"\x1b[?25h" if os.isatty(2) else b""  # the progress bar makes it invisible
            os.write(2, show_cursor + b"\nstopped at once by a second signal; the newest checkpoint is intact\n")
            os._exit(128 + byte[0])
