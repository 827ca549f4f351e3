"""Tags of words: which scheme a file writes its entities in, and the one that models are taught.

IOB1 writes I- in front of every word of an entity, and B- only where it touches one of its own type; IOB2 writes B- in
front of the first word of every entity. What opens an entity is read as the CoNLL-2000 scorer reads it: a tag with B-,
or one with I- behind another type, behind O, or at the beginning of a sentence.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from bertjax.errors import UserError
from bertjax.finetuning.readers.records import Places

_IOB = re.compile(r"O|[BI]-.+")
_HOW = (
    "set task.tokens.tag_scheme=iob1 to turn them into IOB2, or task.tokens.tag_scheme=plain to take tags as they stand"
)


def are_iob_tags(tags: Iterable[str]) -> bool:
    """Whether these different tags may be IOB1 or IOB2: O, B-TYPE, I-TYPE, and at least one of the last two."""
    found = set(tags)
    return any(tag != "O" for tag in found) and all(_IOB.fullmatch(tag) for tag in found)


def normalize_tags(tags: list[list[str]], scheme: str, places: Places) -> tuple[list[list[str]], list[str]]:
    """(tags as the model is taught them, what there is to say of it) by `task.tokens.tag_scheme`.

    auto: IOB1 becomes IOB2, other tags stay as they are · iob1: becomes IOB2 · iob2: must be IOB2 · plain: any tags.
    Raises `UserError` naming the sentence where the tags are not what they should be.
    """
    different = {tag for sentence in tags for tag in sentence}
    if scheme == "plain" or (scheme == "auto" and not are_iob_tags(different)):
        return tags, []
    if strange := sorted(tag for tag in different if not _IOB.fullmatch(tag)):
        where = places[next(i for i, sentence in enumerate(tags) if strange[0] in sentence)]
        raise UserError(
            f"{where}: tag {strange[0]!r} is neither O nor B-TYPE nor I-TYPE; set task.tokens.tag_scheme=plain"
        )
    opened = [_opened_by_inside(sentence) for sentence in tags]
    count = sum(map(len, opened))
    if not count:
        return tags, []
    if scheme == "iob2":
        first = next(i for i, found in enumerate(opened) if found)
        word = opened[first][0]
        raise UserError(
            f"{places[first]}: word {word + 1} of this sentence opens an entity with {tags[first][word]!r}, which is "
            f"not IOB2 ({count:,} such words in all); {_HOW}"
        )
    converted = [_to_iob2(sentence, found) if found else sentence for sentence, found in zip(tags, opened, strict=True)]
    return converted, [f"tags were IOB1: {count:,} entities that I- opened now begin with B- (IOB2)"]


def _opened_by_inside(sentence: list[str]) -> list[int]:
    """The words of a sentence whose I- opens an entity."""
    found, before = [], ""
    for index, tag in enumerate(sentence):
        kind = tag[2:]
        if tag[0] == "I" and kind != before:
            found.append(index)
        before = kind
    return found


def _to_iob2(sentence: list[str], opened: list[int]) -> list[str]:
    converted = list(sentence)
    for index in opened:
        converted[index] = "B" + sentence[index][1:]
    return converted
