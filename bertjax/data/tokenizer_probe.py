"""Builds a foreign tokenizer and tries it on a few texts before it is trusted with a corpus.

Its rules run in Rust: those that make no sense end in a panic, which is no `Exception`. Regular expressions may take
time that grows exponentially with the text, and the library holds the lock of the interpreter meanwhile: they are
tried in another process first.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

from bertjax.data.tokenizer_backends import HuggingFaceBackend
from bertjax.errors import UserError, is_panic, one_line
from bertjax.io.stderr import silence_stderr

_SECONDS = 20.0
_TEXTS = (
    "The quick brown fox jumps over 13 lazy dogs.",
    "Déjà vu: 東京 and 한국어 🙂\tnow\n#1",
    *(f"{unit * 40}!" for unit in ("a", "x", "1", " ", "ab", "a ", "=", "é", "東")),
)
_PACKAGES = str(Path(__file__).resolve().parents[2])
_COMMAND = f"import sys; sys.path.insert(0, {_PACKAGES!r}); from bertjax.data.tokenizer_probe import serve; serve()"
_passed = set[bytes]()


def read_backend(text: str, path: object) -> HuggingFaceBackend:
    """Returns the tokenizer of the text of a `tokenizer.json`; raises `UserError` if it fails or takes too long."""
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).digest()
    if '"Regex"' in text and digest not in _passed:
        _try_in_worker(text, path)
        _passed.add(digest)
    with silence_stderr():  # Rust prints its panics
        try:
            return _build(text)
        except BaseException as error:
            if not isinstance(error, Exception) and not is_panic(error):
                raise
            raise UserError(f"{path}: broken tokenizer ({one_line(error)}); copy it again") from error


def _build(text: str) -> HuggingFaceBackend:
    backend = HuggingFaceBackend(text)
    for sample in _TEXTS:
        backend.encode([sample])
        backend.marked.encode(sample)
        backend.marked.encode(sample, sample)
    return backend


def _try_in_worker(text: str, path: object) -> None:
    """Raises `UserError` if a fresh Python does not finish; what it fails with, this process finds out by itself."""
    content = text.encode(errors="surrogatepass")
    try:
        done = subprocess.run([sys.executable, "-c", _COMMAND], input=content, capture_output=True, timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        raise UserError(
            f"{path}: its rules need more than {_SECONDS:.0f} s for a line of text; copy it again"
        ) from None
    if done.returncode < 0:
        raise UserError(f"{path}: its rules end the process (signal {-done.returncode}); copy it again")


def serve() -> None:
    """Tries the tokenizer on the standard input; whether that is possible matters, not what comes out."""
    try:
        _build(sys.stdin.buffer.read().decode(errors="surrogatepass"))
    except Exception as error:
        sys.exit(one_line(error))
