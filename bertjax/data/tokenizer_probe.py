"""Builds a foreign tokenizer and tries it on a few texts before it is trusted with a corpus.

Its rules run in Rust: those that make no sense end in a panic, which is no `Exception`, and regular expressions may
take time that grows exponentially with the text.
"""

from __future__ import annotations

import threading

from bertjax.data.tokenizer_backends import HuggingFaceBackend
from bertjax.errors import UserError, is_panic, one_line
from bertjax.io.stderr import silence_stderr

_SECONDS = 20.0
_TEXTS = (
    "The quick brown fox jumps over 13 lazy dogs.",
    "Déjà vu: 東京 and 한국어 🙂\tnow\n#1",
    *(f"{unit * 40}!" for unit in ("a", "x", "1", " ", "ab", "a ", "=", "é", "東")),
)


def read_backend(text: str, path: object) -> HuggingFaceBackend:
    """Returns the tokenizer of the text of a `tokenizer.json`; raises `UserError` if it fails or takes too long."""
    results = list[HuggingFaceBackend]()
    failures = list[BaseException]()

    def build() -> None:
        try:
            backend = HuggingFaceBackend(text)
            for sample in _TEXTS:
                backend.encode([sample])
                backend.marked.encode(sample)
                backend.marked.encode(sample, sample)
            results.append(backend)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=build, daemon=True)  # a daemon does not delay the exit
    with silence_stderr():  # Rust prints its panics
        thread.start()
        thread.join(_SECONDS)
    if thread.is_alive():
        raise UserError(f"{path}: its rules need more than {_SECONDS:.0f} s for a line of text; copy it again")
    if failures:
        if not isinstance(failures[0], Exception) and not is_panic(failures[0]):
            raise failures[0]
        raise UserError(f"{path}: broken tokenizer ({one_line(failures[0])}); copy it again") from failures[0]
    return results[0]
