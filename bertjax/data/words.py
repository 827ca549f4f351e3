"""Words, the same wherever bertjax counts, compares or tags them.

Words are those of Unicode (UAX #29), cut at the signs that it allows inside one, such as the apostrophe of "don't". A
mark, a joiner or a format character belongs to the letter before it. An ideograph or a kana is a word. Scripts without
blanks whose words only a dictionary finds (Thai, Lao, Khmer, Burmese) are runs of letters. Which tokens start a word is
determined from their spelling.
"""

from __future__ import annotations

import functools
import re
import unicodedata

import regex

_ALONE = r"\p{Han}\u3040-\u30ff\uff66-\uff9f"  # ideographs and kana
_INSIDE = r"[\p{WB=Extend}\p{WB=Format}\p{WB=ZWJ}]"
_ALNUM = rf"[[\w\p{{No}}\p{{WB=Numeric}}\p{{WB=ALetter}}]--{_INSIDE}--[{_ALONE}]]"
_LETTER = rf"[[\w\p{{No}}]--{_INSIDE}--[\d_]]"
_SINGLE = rf"[{_ALONE}]{_INSIDE}*+"
_RUN = rf"(?:{_ALNUM}{_INSIDE}*+)++"
_CLUSTER = rf"(?:\p{{lb=SA}}{_INSIDE}*+)"
_SPACED_RUN = rf"(?:(?!\p{{lb=SA}}){_ALNUM}{_INSIDE}*+)++"
# Signs that keep words of CoNLL together: the usual ones anywhere, the others of UAX #29 where it has them. An
# apostrophe before Latin letters begins a word of its own (Smith 's), but not one of Ukrainian or Hebrew.
_JOINT = (
    r"(?:[-.&/,]|[[\p{WB=MidLetter}]--[:\ufe13\ufe55\uff1a]]|['\u2019](?=[\p{L}--\p{Latin}])"
    r"|(?<=\p{Nd})[[\p{WB=MidNum}\p{WB=MidNumLet}]--[\x00-\x7f\ufe10-\uffff]](?=\p{Nd})|(?<=\p{Hebrew})\"(?=\p{Hebrew}))"
)
_CLITIC = rf"['\u2019](?:[{_LETTER}--[{_ALONE}]]{_INSIDE}*+)++"
_ASCII = r"[A-Za-z0-9_]++(?![^\x00-\x7f])"  # found four times as fast
_UNITS = regex.compile(rf"{_ASCII}|{_SINGLE}|{_CLUSTER}|{_SPACED_RUN}", regex.V1)
_LETTERS = regex.compile(rf"(?:{_LETTER}{_INSIDE}*+)++", regex.V1)
_TOKENS = regex.compile(rf"{_SINGLE}|{_RUN}(?:{_JOINT}{_RUN})*+|{_CLITIC}|(?![\s\u200b])\X", regex.V1)


def comparable_words(text: str) -> list[str]:
    """Returns the words by which texts are compared: composed, in lower case, runs without blanks by letters."""
    return _UNITS.findall(unicodedata.normalize("NFC", text).lower())


def runs_of_letters(text: str) -> list[str]:
    """Returns the runs of letters of a composed text, without digits and signs; text without blanks is one run."""
    return _LETTERS.findall(unicodedata.normalize("NFC", text))


def is_word(text: str) -> bool:
    """Returns whether a text consists of letters and their marks."""
    return _LETTERS.fullmatch(text) is not None


def token_spans(text: str) -> list[tuple[int, int]]:
    """Returns the characters [begin, end) of all that a tagger labels.

    These are words, also those joined by signs (state-of-the-art, U.S, 3.5), suffixes after an apostrophe, and single
    signs: roughly how CoNLL splits text.
    """
    return [match.span() for match in _TOKENS.finditer(text)]


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
