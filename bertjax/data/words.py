"""Words, the same wherever bertjax counts, compares or tags them.

Words are those of Unicode (UAX #29), cut at the signs that it allows inside one, such as the apostrophe of "don't". A
mark, a joiner or a format character belongs to the letter before it. An ideograph or a kana is a word. Scripts without
blanks whose words only a dictionary finds (Thai, Lao, Khmer, Burmese) are runs of letters.
"""

from __future__ import annotations

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
