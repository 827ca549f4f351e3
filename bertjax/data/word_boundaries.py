"""Determines which tokens start a word, from their spelling."""

from __future__ import annotations

import functools
import re

# ideographs and kana: no spaces stand between their words
_CJK = re.compile(
    r"[\u2e80-\u2fdf\u3005-\u3007\u3021-\u30ff\u31c0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)
_SPACES = ("▁", "Ġ", "Ċ", "ĉ", "č", " ", "\n", "\t")
# ALBERT's create_pretraining_data.py: its punctuation (XLNet's, too), and the letters that may go on inside a word
_ALBERT_MARKS = frozenset('!"#$%&()*+,-./:;?@[\\]^_`{|}~')
_ALBERT_INNER = _ALBERT_MARKS | frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")


def opens_word(token: str, kind: str, family: str, prefix: str) -> bool:
    """Returns whether a token starts a word. Args: attributes of its `Tokenizer`, and its `continuation_prefix`."""
    if kind == "wordlevel":
        return True
    if kind == "wordpiece":
        return not (prefix and token.startswith(prefix))
    if token.startswith(_SPACES):
        return True
    if kind == "bpe":
        return bool(_CJK.match(_text_of_bytes(token)))
    if family == "albert":
        return token in _ALBERT_MARKS or not _ALBERT_INNER.issuperset(token)
    if family == "xlnet" and (token in _ALBERT_MARKS or token.startswith("<")):
        return True  # zihangdai/xlnet:data_utils.py, _is_start_piece
    return bool(_CJK.match(token))


def _text_of_bytes(token: str) -> str:
    """Returns the text of a byte-level token; empty if it is only part of a character."""
    table = byte_table()
    try:
        return bytes(table[c] for c in token).decode("utf-8", "ignore")
    except KeyError:
        return token


@functools.lru_cache(maxsize=1)
def byte_table() -> dict[str, int]:
    """GPT-2's spelling of bytes: printable ones as themselves, the others from U+0100 on."""
    printable = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or 174 <= b <= 255]
    others = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(256 + n): b for n, b in enumerate(others)}
