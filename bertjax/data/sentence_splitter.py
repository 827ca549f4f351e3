"""Sentences, good enough for pairs of segments (NSP, SOP): full stops by rules of English, other ends by Unicode."""
# ruff: noqa: SIM905, RUF001 - word lists read better as words, and Chinese stops are meant

from __future__ import annotations

import re

import regex

_CLOSERS = r"[\"'”’»)\]}」』）》】〉]*+"
_CJK = "\u2e80-\u303f\u3041-\u33ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff01-\uff60\U00020000-\U0003ffff"
_OPENERS = "\"'“‘«([{¿¡「『（《【〈*_"
_NEXT_WORD = re.compile(rf"\s*[{re.escape(_OPENERS)}]*([^\s,;:!?\"”’)\]]*)")
_LAST_WORD = re.compile(r"[^\s(\[{\"'“‘«—–/]*\Z")
_ACRONYM = re.compile(r"[^\W\d_](?:\.[^\W\d_])*")  # J or U.S, the last full stop already cut off
_ENUMERATOR = re.compile(r"\(?(?:\d{1,3}|[a-zA-Z]|[ivxIVX]{1,5})[.)]?")

_REACH = 40  # characters before a full stop that are looked at

# never the end of a sentence: a name or a phrase follows
_TITLES = frozenset(
    "mr mrs ms mx messrs dr prof rev hon gen col maj capt cmdr lt sgt cpl adm gov sen rep pres supt mt st ste ft "
    "e.g i.e eg ie vs v viz cf ca approx resp incl esp al fr mme mlle".split()
)
# the end only before a number is it not: No. 5, Fig. 3, Jan. 12
_NUMBERED = frozenset(
    "no nos vol vols fig figs eq eqs sec ch chap pt art p pp para op cit ed eds n "
    "jan feb mar apr jun jul aug sep sept oct nov dec".split()
)
# may end a sentence or not: only a usual first word of a sentence decides that it does
_SHORTENED = frozenset(
    "jr sr inc ltd co corp bros dept univ assn ave blvd rd est min max figs eqs vols pp eds jan feb apr jun jul "
    "aug sep sept oct nov dec ph.d m.d b.a m.a".split()
)
_STOPS = "。！？；｡"
# Ends of all other scripts, such as the danda of Hindi: Unicode's Sentence_Terminal
_ENDS = "".join(regex.findall(rf"(?V1)[\p{{SB=STerm}}--[!?{_STOPS}]]", "".join(map(chr, range(0x20000)))))
# These and the stops of Chinese and Japanese end a sentence at once, Western ones only before whitespace (so 3.14, URLs
# and names stay whole) or, for ! and ?, before a Chinese character. The pattern begins with a plain set of characters,
# not with the alternatives, and of the second plane with one range: `re` then runs through the text at ten times the
# speed. The empty group is matched by the usual end, which needs no further check: a full stop before a capital, and
# after four digits, a closed quotation or four small letters that no short form and no Roman number ends with.
_FAR = [end for end in _ENDS if end > "\uffff"]
_DOUBTFUL = "|".join(sorted({word[-4:] for word in _TITLES | _SHORTENED if word[-4:].isalpha() and len(word) >= 4}))
_STOP = re.compile(
    rf"[.!?…{_STOPS}{_ENDS[: -len(_FAR)]}{_FAR[0]}-{_FAR[-1]}]"
    rf"(?:(?<=(?:[a-z]{{4}}|[0-9]{{4}}|[a-z]{{3}}[\"”])\.)(?= [A-Z])(?<!(?:{_DOUBTFUL}|[ivx]{{4}})\.)()"
    rf"|(?<=[{_STOPS}])[{_STOPS}]*{_CLOSERS}"
    rf"|(?<=[{_ENDS}])[{_ENDS}!?.…]*+{_CLOSERS}"
    rf"|(?<=[!?])(?<![!?].)[!?]*+{_CLOSERS}(?=[{_CJK}])"
    rf"|(?<=[.!?…])(?<![.!?…].)[.!?…]*+{_CLOSERS}(?=\s))",
    re.DOTALL,
)
_FIRST_WORDS = frozenset(
    "The This That These Those There Then Thus They Their It Its He His She Her We Our You Your I A An And But Or So "
    "In On At As By For From If It's When While Where Who What Why How However Although After Before Because Since "
    "During Some Many Most Other Another Both Each All No Not To With Under Despite Also Additionally".split()
)


def split_sentences(document: str) -> list[str]:
    """The sentences of a document in order, stripped, none empty; a newline always ends one.

    Nothing but whitespace at the borders is lost. Lines without any capital letter may begin sentences with small ones.
    """
    sentences: list[str] = []
    for line in document.split("\n"):
        start = 0
        small_letters = line.islower()
        for stop in _STOP.finditer(line):
            if stop.lastindex or _ends_sentence(line, start, stop, small_letters):
                end = stop.end()
                sentences.append(line[start:end].strip())
                start = end
        sentences.append(line[start:].strip())
    return [sentence for sentence in sentences if sentence]


def _ends_sentence(line: str, start: int, stop: re.Match[str], small_letters: bool) -> bool:
    mark = line[stop.start()]
    if mark not in ".!?…":
        return True
    following = _NEXT_WORD.match(line, stop.end())
    word = following[1] if following else ""
    if word[:1].islower() and not small_letters:
        return False
    if mark != "." or line.startswith("..", stop.start()):
        return bool(word) or stop.end() < len(line)
    return _full_stop_ends(line[max(start, stop.start() - _REACH) : stop.start()], word)


def _full_stop_ends(before: str, following: str) -> bool:
    """Returns whether a full stop after `before` ends its sentence if `following` is the next word."""
    results = _LAST_WORD.search(before)
    last = results[0] if results else ""
    lower = last.lower()
    if lower in _TITLES:
        return False
    if lower in _NUMBERED and following[:1].isdigit():
        return False
    if last == before.strip() and _ENUMERATOR.fullmatch(last):  # "1. First of all" at the start of a line
        return False
    if lower in _SHORTENED or _ACRONYM.fullmatch(last):
        return following in _FIRST_WORDS
    return True
