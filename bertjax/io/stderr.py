"""Standard error of the process, on the level of its file descriptor: C++ and Rust libraries write there themselves."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator

_STDERR = 2
_PRINT_AT_END = 'trap "" INT; text=$(cat); printf "%s\\n" "$text" >&2'


@contextlib.contextmanager
def silence_stderr() -> Iterator[None]:
    """Drops what libraries write to standard error; does nothing where it is closed.

    If the process ends meanwhile, as XLA ends it for a flag that it does not know, another one prints what was written.
    """
    try:
        original = os.dup(_STDERR)
    except OSError:
        yield
        return
    with subprocess.Popen(["sh", "-c", _PRINT_AT_END], stdin=subprocess.PIPE) as keeper:
        assert keeper.stdin is not None
        try:
            os.dup2(keeper.stdin.fileno(), _STDERR)
            yield
        finally:
            os.dup2(original, _STDERR)
            os.close(original)
            keeper.kill()
