"""Which pieces of one tokenizer stand for a piece of another: what a model keeps when its vocabulary changes.

A piece is told by its text and by whether it opens a word: "##ing" of WordPiece, "ing" of byte-level BPE and "ing" of
sentencepiece are one thing, "ing", "Ġing" and "▁ing" another. A piece that the old tokenizer lacks stands for the
pieces into which the old one cuts its text, there where it stands in a word (fast vocabulary transfer,
arXiv:2402.09977, section 2).
"""

from __future__ import annotations

import re
from typing import NamedTuple

from bertjax.data.special_tokens import family_of
from bertjax.data.tokenizer import Tokenizer
from bertjax.data.word_boundaries import byte_table

_ANCHOR = "a"  # what stands before a text inside a word, when the old tokenizer is asked for its words
_ANCHORED = re.compile(f"^[Ġ▁]?{_ANCHOR}")
_INSTEAD = {"bos": "cls", "eos": "sep"}  # a family without the one uses the other for it


class TokenMatch(NamedTuple):
    """For every piece of the new tokenizer its `parts` among the ids of the old one, none where there are none.

    kept: pieces with the same text, or the same part to play · composed: of other pieces · fresh: neither.
    """

    parts: list[list[int]]
    kept: int
    composed: int
    fresh: int


class _Text(NamedTuple):
    """What a piece writes: UTF-8, which a byte-level piece may hold a fragment of."""

    opens: bool
    text: bytes


def match_tokens(old: Tokenizer, new: Tokenizer) -> TokenMatch:
    """The old pieces that make up every new piece; special pieces are matched by what they are for."""
    if old.tokens == new.tokens:
        return TokenMatch([[index] for index in range(new.size)], new.size, 0, 0)
    cutter, spelling = _Cutter(old), _Spelling(new)
    special = _special_parts(old, new)
    parts, kept, composed = [], 0, 0
    for index, piece in enumerate(new.tokens):
        if index in special:
            found, same = special[index], bool(special[index])
        else:
            found, same = cutter.parts_of(spelling.read(piece), spelling.isolated(piece))
        parts.append(found)
        kept += same
        composed += bool(found) and not same
    return TokenMatch(parts, kept, composed, new.size - kept - composed)


def _special_parts(old: Tokenizer, new: Tokenizer) -> dict[int, list[int]]:
    """The old piece of every special piece: the one with its role, else the one with its name, else none."""
    theirs, ours = family_of(old.family).roles, family_of(new.family).roles
    ids = {piece: index for index, piece in enumerate(old.tokens)}
    found = {}
    for index in new.special_ids:
        roles = [role for role, piece in ours.items() if piece == new.tokens[index]]
        names = [theirs[role] for role in [*roles, *(_INSTEAD.get(role, role) for role in roles)] if role in theirs]
        found[index] = [ids[name] for name in [*names, new.tokens[index]] if name in ids][:1]
    return found


class _Spelling:
    """How a tokenizer writes text and the beginnings of words into its pieces."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.kind, self.prefix, self.engine = tokenizer.kind, tokenizer.continuation_prefix, tokenizer.engine
        self.bytewise = tokenizer.kind == "bpe" and "ByteLevel" in repr(self.engine.decoder)
        self.opener = "Ġ" if self.bytewise else "▁"

    def read(self, piece: str) -> _Text:
        """What a piece writes."""
        if self.kind == "wordpiece":
            inside = bool(self.prefix) and piece.startswith(self.prefix) and piece != self.prefix
            return _Text(not inside, piece[len(self.prefix) * inside :].encode())
        opens = piece.startswith(self.opener)
        text = piece[opens:]
        if self.bytewise and all(letter in byte_table() for letter in text):
            return _Text(opens, bytes(byte_table()[letter] for letter in text))
        return _Text(opens, text.encode())

    def isolated(self, piece: str) -> bool:
        """Whether the piece opens a word even where no space stands before it: WordPiece's marks and ideographs."""
        if self.kind != "wordpiece" or not self.read(piece).opens or (piece[:1].isascii() and piece[:1].isalnum()):
            return False
        return self.words(_ANCHOR + piece)[0] == _ANCHOR

    def words(self, text: str) -> list[str]:
        """The words of a text, normalised, as the model is given them."""
        engine = self.engine
        if engine.normalizer is not None:
            text = engine.normalizer.normalize_str(text)
        if engine.pre_tokenizer is None:
            return [text]
        return [word for word, _ in engine.pre_tokenizer.pre_tokenize_str(text)]


class _Cutter(_Spelling):
    """The old tokenizer, asked for single pieces and for cuts."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__(tokenizer)
        self.ids = {piece: index for index, piece in enumerate(tokenizer.tokens)}
        self.refused = {*tokenizer.special_ids, tokenizer.unk_id}
        self.texts = [self.read(piece) for piece in tokenizer.tokens]
        self.known: dict[_Text, int] = {}
        for index, text in enumerate(self.texts):
            if index not in self.refused:
                self.known.setdefault(text, index)
        self.longest = max(len(piece) for piece in tokenizer.tokens)

    def parts_of(self, wanted: _Text, isolated: bool) -> tuple[list[int], bool]:
        """(ids of the old pieces, whether that is one piece with the same text)."""
        places = (False, True) if isolated else (wanted.opens,)
        for opens in places:
            if (text := _Text(opens, wanted.text)) in self.known:
                return [self.known[text]], True
        found = [index for index in self._cut(wanted) if index not in self.refused]
        if not any(self.texts[index].text for index in found):  # "▁" alone, the rest unknown: says nothing of it
            return [], False
        return found, len(found) == 1 and self.texts[found[0]].text == wanted.text

    def _cut(self, wanted: _Text) -> list[int]:
        try:
            text = wanted.text.decode()
        except UnicodeDecodeError:  # a fragment of a character
            return self._cut_bytes(wanted) if self.bytewise else []
        words = self.words((" " * self.bytewise if wanted.opens else _ANCHOR) + text)
        ids: list[int] = []
        if not wanted.opens and words and _ANCHORED.match(words[0]):
            ids += self._inside(_ANCHORED.sub("", words[0], count=1))
            words = words[1:]
        return ids + [token.id for word in words for token in self.engine.model.tokenize(word)]

    def _cut_bytes(self, wanted: _Text) -> list[int]:
        letters = {byte: letter for letter, byte in byte_table().items()}
        spelled = self.opener * wanted.opens + "".join(letters[byte] for byte in wanted.text)
        return [token.id for token in self.engine.model.tokenize(spelled)]

    def _inside(self, rest: str) -> list[int]:
        """The pieces of the rest of a word; WordPiece takes the longest each time, and none where one is missing."""
        if self.kind != "wordpiece":
            return [token.id for token in self.engine.model.tokenize(rest)] if rest else []
        ids: list[int] = []
        while rest:
            sizes = range(min(len(rest), self.longest), 0, -1)
            size = next((size for size in sizes if self.prefix + rest[:size] in self.ids), 0)
            if not size:
                return []
            ids.append(self.ids[self.prefix + rest[:size]])
            rest = rest[size:]
        return ids
