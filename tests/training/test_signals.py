"""SIGTERM and SIGINT: the first one is recorded, the second one ends the process at once (P14)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from bertjax.training.signals import STOPS, StoppedBySignal, stop_signals

BUSY = """
    import hashlib, os, sys, time
    from bertjax.training.signals import stop_signals

    with stop_signals() as received:
        print("ready", flush=True)
        # C that never looks at signals, as a compiler is; Python's handlers have to wait for its end.
        hashlib.pbkdf2_hmac("sha256", b"", b"", 100_000_000)
"""
PATIENT = """
    import time
    from bertjax.training.signals import stop_signals

    with stop_signals() as received:
        print("ready", flush=True)
        while not received:
            time.sleep(0.01)
        print(received, flush=True)
        time.sleep(60)
"""


def start(program: str) -> subprocess.Popen:
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


def test_signals_are_noted_and_the_handlers_of_before_come_back() -> None:
    before = {number: signal.getsignal(number) for number in STOPS}
    threads = threading.active_count()
    with stop_signals() as received:
        assert received == []
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in range(100):  # Python runs the handler between two of its instructions
            if received:
                break
            time.sleep(0.01)
        assert received == [signal.SIGTERM]
    assert {number: signal.getsignal(number) for number in STOPS} == before
    assert threading.active_count() == threads
    fd = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(fd)
    assert fd == -1


@pytest.mark.parametrize(
    ("first", "second"), [(signal.SIGTERM, signal.SIGTERM), (signal.SIGTERM, signal.SIGINT), (signal.SIGINT,) * 2]
)
def test_a_second_signal_ends_the_process_at_once(first: signal.Signals, second: signal.Signals) -> None:
    process = start(PATIENT)
    process.send_signal(first)
    assert process.stdout is not None and process.stdout.readline() == f"[{int(first)}]\n"
    process.send_signal(second)
    _, message = process.communicate(timeout=10)
    assert process.returncode == 128 + second
    assert message.endswith("stopped at once by a second signal; the newest checkpoint is intact\n")


def test_a_second_signal_ends_what_never_looks_at_signals() -> None:
    process = start(BUSY)
    process.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    assert process.poll() is None
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=20) == 128 + signal.SIGTERM
    assert time.monotonic() - began < 15
    process.communicate()


def test_another_thread_leaves_signals_to_the_caller() -> None:
    before, result = signal.getsignal(signal.SIGTERM), []

    def work() -> None:
        with stop_signals() as received:
            result.append((received, signal.getsignal(signal.SIGTERM)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert result == [([], before)]


def test_the_exit_code_is_that_of_a_shell() -> None:
    assert [StoppedBySignal(number, 7).exit_code for number in (signal.SIGTERM, signal.SIGINT)] == [143, 130]
    assert str(StoppedBySignal(signal.SIGTERM, 7)) == "stopped by SIGTERM; saved at step 7, the same command resumes"


def test_a_second_signal_in_a_notebook_interrupts_the_cell_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt, match="newest checkpoint is intact"), stop_signals() as received:
        signal.raise_signal(signal.SIGINT)
        assert received == [signal.SIGINT]
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
