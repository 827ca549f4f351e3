"""Which pieces open a word, read off their spelling."""

from __future__ import annotations

import functools
import re
from typing import Protocol

# ideographs and kana: no spaces stand between their words
_CJK = re.compile(
    r"[\u2e80-\u2fdf\u3005-\u3007\u3021-\u30ff\u31c0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)
_SPACES = ("▁", "Ġ", "Ċ", "ĉ", "č", " ", "\n", "\t")
# ALBERT's create_pretraining_data.py: its punctuation (XLNet's, too), and the letters that may go on inside a word
_ALBERT_MARKS = frozenset('!"#$%&()*+,-./:;?@[\\]^_`{|}~')
_ALBERT_INNER = _ALBERT_MARKS | frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")


class _Pieces(Protocol):
    @property
    def kind(self) -> str: ...
    @property
    def family(self) -> str: ...
    @property
    def continuation_prefix(self) -> str: ...


def opens_word(piece: str, tokenizer: _Pieces) -> bool:
    """Whether a piece of this tokenizer opens a word."""
    if tokenizer.kind == "wordpiece":
        return not (tokenizer.continuation_prefix and piece.startswith(tokenizer.continuation_prefix))
    if piece.startswith(_SPACES):
        return True
    if tokenizer.kind == "bpe":
        return bool(_CJK.match(_text_of_bytes(piece)))
    if tokenizer.family == "albert":
        return piece in _ALBERT_MARKS or not _ALBERT_INNER.issuperset(piece)
    if tokenizer.family == "xlnet" and (piece in _ALBERT_MARKS or piece.startswith("<")):
        return True  # zihangdai/xlnet:data_utils.py, _is_start_piece
    return bool(_CJK.match(piece))


def _text_of_bytes(piece: str) -> str:
    """The text of a byte-level piece; empty where it is only part of a character."""
    table = byte_table()
    try:
        return bytes(table[c] for c in piece).decode("utf-8", "ignore")
    except KeyError:
        return piece


@functools.lru_cache(maxsize=1)
def byte_table() -> dict[str, int]:
    """GPT-2's spelling of bytes: printable ones as themselves, the others from U+0100 on."""
    printable = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or 174 <= b <= 255]
    others = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(256 + n): b for n, b in enumerate(others)}
