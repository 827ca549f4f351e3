"""SIGTERM and SIGINT: the first one is a request, the second one an end."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

STOPS = (signal.SIGTERM, signal.SIGINT)


class StoppedBySignal(Exception):
    """The process was asked to stop; its state is saved. `exit_code` is 128 + the signal's number."""

    def __init__(self, signal_number: int, step: int):
        self.exit_code = 128 + signal_number
        super().__init__(
            f"stopped by {signal.Signals(signal_number).name}; saved at step {step}, the same command resumes"
        )


@contextmanager
def stop_signals() -> Iterator[list[int]]:
    """A list that SIGTERM and SIGINT append to: the loop looks at it after every step. A second signal ends at once.

    Python runs its handlers between two of its instructions, which a compiler or a wait for the device may keep it from
    for minutes. The second signal is therefore met by a thread that the system wakes (`signal.set_wakeup_fd`).
    """
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():  # the caller minds the signals
        yield received
        return
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    handlers: dict[int, Any] = {stop: signal.signal(stop, lambda number, _: received.append(number)) for stop in STOPS}
    watch = threading.Thread(target=_end_at_the_second, args=(reader,), daemon=True, name="signals")
    watch.start()
    try:
        yield received
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(before)
        writer.close()  # the thread reads the end of its file
        watch.join()
        reader.close()


def _end_at_the_second(reader: socket.socket) -> None:
    """Reads one byte a signal; killing is safe at any moment, so nothing is tidied up."""
    stops = 0
    while byte := reader.recv(1):
        if byte[0] in STOPS:
            stops += 1
        if stops == 2:
            shown_again = b"\x1b[?25h" if os.isatty(2) else b""  # the progress bar hides the terminal's cursor
            os.write(2, shown_again + b"\nstopped at once by a second signal; the newest checkpoint is intact\n")
            os._exit(128 + byte[0])
