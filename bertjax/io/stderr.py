"""Standard error of the process, on the level of its file descriptor: C++ and Rust libraries write there themselves."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

_STDERR = 2


@contextlib.contextmanager
def silence_stderr() -> Iterator[None]:
    """Drops what libraries write to standard error; does nothing where it is closed."""
    try:
        original = os.dup(_STDERR)
    except OSError:
        yield
        return
    try:
        with open(os.devnull, "w") as null:
            os.dup2(null.fileno(), _STDERR)
            yield
    finally:
        os.dup2(original, _STDERR)
        os.close(original)
