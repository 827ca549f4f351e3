"""Schemes of tags that mark entities: how each is recognized, read, and what a model learns of it.

A tag is O, outside of entities, or a mark with the type of the entity: B-PER. IOB2 (BIO) writes B- before the first
word of every entity; IOB1 writes I-, and B- only where an entity touches another of its type. BIOES, BILOU and BMES
(usual in Chinese) also mark the last word (E or L) and single words (S or U); BMES writes M inside. Tags without a type
are those of segmentation: B M E S.

Models learn IOB2, into which IOB1 is converted, and the other schemes as they are. As for the CoNLL-2000 scorer, an
entity of IOB1 begins at B-, and at I- after another type, after O and at the beginning of a sentence.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from bertjax.errors import UserError

PLAIN_TAGS = "plain"
TAG = re.compile(r"O|([BIMESLU])(?:-(.*))?", re.DOTALL)
"""Group 1 is the mark, group 2 the type."""
MARKS = {"iob2": "BI", "bioes": "BIES", "bilou": "BILU", "bmes": "BMES"}
"""Marks of every scheme that is recognized, in the order in which schemes are tried."""
_OPENERS = frozenset("BI")
_ADVICE = "set task.tokens.tag_scheme=iob1 to convert them to IOB2, or task.tokens.tag_scheme=plain to keep the tags"


def recognize_scheme(tags: Iterable[str], setting: str = "auto") -> str:
    """Returns the scheme of tags: a key of `MARKS`, or "plain" for labels that mark no entities.

    All tags must be O or have a mark of one scheme. Tags without a type must begin something: the parts of speech
    {S, U} are plain.

    Args:
        tags: the distinct tags.
        setting: `task.tokens.tag_scheme`; anything but "auto" is the answer.
    """
    if setting != "auto":
        return "iob2" if setting == "iob1" else setting
    matches = [TAG.fullmatch(tag) for tag in tags]
    marked = [match for match in matches if match is None or match[1]]
    if not marked or None in marked:
        return PLAIN_TAGS
    marks = {match[1] for match in marked if match}
    if all(match and match[2] is None for match in marked) and not marks & _OPENERS:
        return PLAIN_TAGS
    return next((name for name, allowed in MARKS.items() if marks <= set(allowed)), PLAIN_TAGS)


def describe_scheme(scheme: str) -> str:
    """Returns a sentence on how tags of a scheme are read and scored."""
    if scheme == PLAIN_TAGS:
        return (
            "tags mark no entities (they are not IOB, BIOES, BILOU or BMES), so every word counts: accuracy, macro F1"
        )
    name = "IOB2 (BIO)" if scheme == "iob2" else scheme.upper()
    return f"tags are {name}, so entities count: precision, recall and F1 (task.tokens.tag_scheme)"


def normalize_tags(tags: list[list[str]], setting: str, locations: list[str]) -> tuple[list[list[str]], list[str]]:
    """Converts the tags of sentences to what the model learns.

    Args:
        tags: tags as they were read.
        setting: `task.tokens.tag_scheme`. auto: IOB1 becomes IOB2, other tags are kept; iob1: becomes IOB2; iob2,
            bioes, bilou, bmes: tags must be in this scheme; plain: any tags.
        locations: where the sentences were read.

    Returns:
        The tags, and remarks to print.

    Raises:
        UserError: the tags are not in the scheme; names the sentence.
    """
    distinct = {tag for sentence in tags for tag in sentence}
    scheme = recognize_scheme(distinct, setting)
    if scheme != PLAIN_TAGS and setting != "auto":
        _require_marks(tags, scheme, locations)
    is_segmentation = all(tag == "O" or "-" not in tag for tag in distinct)
    if scheme != "iob2" or (setting == "auto" and is_segmentation):
        return tags, []
    opened = [_opened_by_inside(sentence) for sentence in tags]
    count = sum(map(len, opened))
    if not count:
        return tags, []
    if setting == "iob2":
        first = next(i for i, result in enumerate(opened) if result)
        word = opened[first][0]
        raise UserError(
            f"{locations[first]}: word {word + 1} of this sentence opens an entity with {tags[first][word]!r}, which "
            f"is not IOB2 ({count:,} such words in all); {_ADVICE}"
        )
    converted = [
        _to_iob2(sentence, result) if result else sentence for sentence, result in zip(tags, opened, strict=True)
    ]
    return converted, [f"tags were IOB1: {count:,} entities that I- opened now begin with B- (IOB2)"]


def _require_marks(tags: list[list[str]], scheme: str, locations: list[str]) -> None:
    """Raises `UserError` for the first tag that has no mark of a scheme."""
    allowed = MARKS[scheme]
    for sentence, where in zip(tags, locations, strict=True):
        for tag in sentence:
            match = TAG.fullmatch(tag)
            if match is None or (match[1] or "") not in allowed:
                names = " nor ".join(f"{mark}-TYPE" for mark in allowed)
                raise UserError(f"{where}: tag {tag!r} is neither O nor {names}; set task.tokens.tag_scheme=plain")


def _opened_by_inside(sentence: list[str]) -> list[int]:
    """Returns the words of a sentence whose I opens an entity."""
    result, before = [], "O"
    for index, tag in enumerate(sentence):
        kind = tag[1:] if tag != "O" else "O"
        if tag[0] == "I" and kind != before:
            result.append(index)
        before = kind
    return result


def _to_iob2(sentence: list[str], opened: list[int]) -> list[str]:
    converted = list(sentence)
    for index in opened:
        converted[index] = "B" + sentence[index][1:]
    return converted
