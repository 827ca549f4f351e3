"""Schemes of entity tags: IOB1 is converted to IOB2, which models learn.

IOB1 writes I- before every word of an entity, and B- only where it touches another of its type; IOB2 writes B- before
the first word of every entity. As for the CoNLL-2000 scorer, an entity begins at B-, and at I- after another type,
after O and at the beginning of a sentence.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from bertjax.errors import UserError

_IOB = re.compile(r"O|[BI]-.+")
_ADVICE = "set task.tokens.tag_scheme=iob1 to convert them to IOB2, or task.tokens.tag_scheme=plain to keep the tags"


def are_iob_tags(tags: Iterable[str]) -> bool:
    """Returns whether these distinct tags may be IOB1 or IOB2: O, B-TYPE, I-TYPE, and at least one of the last two."""
    result = set(tags)
    return any(tag != "O" for tag in result) and all(_IOB.fullmatch(tag) for tag in result)


def normalize_tags(tags: list[list[str]], scheme: str, locations: list[str]) -> tuple[list[list[str]], list[str]]:
    """Converts the tags of sentences to what the model learns.

    Args:
        tags: tags as they were read.
        scheme: `task.tokens.tag_scheme`. auto: IOB1 becomes IOB2, other tags are kept; iob1: becomes IOB2; iob2: must
            be IOB2; plain: any tags.
        locations: where the sentences were read.

    Returns:
        The tags, and remarks to print.

    Raises:
        UserError: the tags are not in the scheme; names the sentence.
    """
    distinct = {tag for sentence in tags for tag in sentence}
    if scheme == "plain" or (scheme == "auto" and not are_iob_tags(distinct)):
        return tags, []
    if strange := sorted(tag for tag in distinct if not _IOB.fullmatch(tag)):
        where = locations[next(i for i, sentence in enumerate(tags) if strange[0] in sentence)]
        raise UserError(
            f"{where}: tag {strange[0]!r} is neither O nor B-TYPE nor I-TYPE; set task.tokens.tag_scheme=plain"
        )
    opened = [_opened_by_inside(sentence) for sentence in tags]
    count = sum(map(len, opened))
    if not count:
        return tags, []
    if scheme == "iob2":
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


def _opened_by_inside(sentence: list[str]) -> list[int]:
    """Returns the words of a sentence whose I- opens an entity."""
    result, before = [], ""
    for index, tag in enumerate(sentence):
        kind = tag[2:]
        if tag[0] == "I" and kind != before:
            result.append(index)
        before = kind
    return result


def _to_iob2(sentence: list[str], opened: list[int]) -> list[str]:
    converted = list(sentence)
    for index in opened:
        converted[index] = "B" + sentence[index][1:]
    return converted
