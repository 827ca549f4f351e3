"""Standard error of the process, on the level of its file descriptor: C++ and Rust libraries write there themselves."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

_STDERR = 2
_PRINT_AT_END = 'trap "" INT; text=$(cat); printf "%s\\n" "$text" >&2'


def note(text: str) -> None:
    """Says on standard error what a long command does, while it does it."""
    print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def silence_stderr() -> Iterator[None]:
    """Drops what libraries write to standard error; does nothing where it is closed."""
    with open(os.devnull, "w") as null, _written_to(null.fileno()):
        yield


@contextlib.contextmanager
def silence_unless_last() -> Iterator[None]:
    """Drops it like `silence_stderr`, unless the process ends: another one prints it then.

    XLA ends the process for a flag that it does not know.
    """
    with subprocess.Popen(["sh", "-c", _PRINT_AT_END], stdin=subprocess.PIPE) as keeper:
        assert keeper.stdin is not None
        try:
            with _written_to(keeper.stdin.fileno()):
                yield
        finally:
            keeper.kill()


@contextlib.contextmanager
def _written_to(file: int) -> Iterator[None]:
    """Redirects standard error to an open file; does nothing where it is closed."""
    try:
        original = os.dup(_STDERR)
    except OSError:
        yield
        return
    try:
        os.dup2(file, _STDERR)
        yield
    finally:
        os.dup2(original, _STDERR)
        os.close(original)
