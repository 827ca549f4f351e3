"""Matches the tokens of two tokenizers, to keep embeddings when the vocabulary changes.

A token is identified by its text and by whether it starts a word: "##ing" of WordPiece, "ing" of byte-level BPE and
"ing" of sentencepiece are equal, and so are "ing", "Ġing" and "▁ing". A token that the old tokenizer lacks is composed
of the tokens into which the old one splits its text at that position of a word (fast vocabulary transfer,
arXiv:2402.09977, section 2).
"""

from __future__ import annotations

import re
from typing import NamedTuple

from bertjax.data.tokenizer import Tokenizer
from bertjax.data.words import byte_table

_ANCHOR = "a"  # what stands before a text inside a word, when the old tokenizer is asked for its words
_ANCHORED = re.compile(f"^[Ġ▁]?{_ANCHOR}")
_INSTEAD = {"bos": "cls", "eos": "sep"}  # a family without the one uses the other for it


class TokenMatch(NamedTuple):
    """Ids `parts` of old tokens for every new token, empty if there are none.

    matched: tokens with the same text or role · composed: of other tokens · fresh: neither.
    """

    parts: list[list[int]]
    matched: int
    composed: int
    fresh: int


class _Text(NamedTuple):
    """Text of a token: UTF-8, of which a byte-level token may be a fragment."""

    opens: bool
    text: bytes


def match_tokens(old: Tokenizer, new: Tokenizer) -> TokenMatch:
    """Returns the old tokens of every new token; special tokens are matched by role."""
    extends = new.tokens[: old.size] == old.tokens  # by added words: the old ids stay
    parts = [[index] for index in range(old.size)] if extends else []
    saved, composed = len(parts), 0
    if saved == new.size:
        return TokenMatch(parts, saved, 0, 0)
    cutter, spelling = _Cutter(old), Spelling(new)
    special = _special_parts(old, new)
    for index, subword in enumerate(new.tokens[saved:], saved):
        if index in special:
            results, same = special[index], bool(special[index])
        else:
            results, same = cutter.parts_of(spelling.read(subword), spelling.isolated(subword))
        parts.append(results)
        saved += same
        composed += bool(results) and not same
    return TokenMatch(parts, saved, composed, new.size - saved - composed)


def _special_parts(old: Tokenizer, new: Tokenizer) -> dict[int, list[int]]:
    """Returns the old token of every special token: by role, else by name, else none."""
    theirs, ours = old.spec.roles, new.spec.roles
    ids = {subword: index for index, subword in enumerate(old.tokens)}
    results = {}
    for index in new.special_ids:
        roles = [role for role, subword in ours.items() if subword == new.tokens[index]]
        names = [theirs[role] for role in [*roles, *(_INSTEAD.get(role, role) for role in roles)] if role in theirs]
        results[index] = [ids[name] for name in [*names, new.tokens[index]] if name in ids][:1]
    return results


class Spelling:
    """Spelling rules of a tokenizer: how tokens encode text and word starts."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.kind, self.prefix, self.engine = tokenizer.kind, tokenizer.continuation_prefix, tokenizer.engine
        self.bytewise = tokenizer.kind == "bpe" and "ByteLevel" in repr(self.engine.decoder)
        self.opener = "Ġ" if self.bytewise else "▁"
        self.by_words = tokenizer.kind in ("wordpiece", "wordlevel")
        opens_alone = self.by_words or self.words("a")[0].startswith(self.opener)
        self.blank = "" if opens_alone else " "

    def read(self, subword: str) -> _Text:
        """Returns the text of a token."""
        if self.by_words:
            inside = bool(self.prefix) and subword.startswith(self.prefix) and subword != self.prefix
            return _Text(not inside, subword[len(self.prefix) * inside :].encode())
        opens = subword.startswith(self.opener)
        text = subword[opens:]
        if self.bytewise and all(letter in byte_table() for letter in text):
            return _Text(opens, bytes(byte_table()[letter] for letter in text))
        return _Text(opens, text.encode())

    def isolated(self, subword: str) -> bool:
        """Returns whether the token starts a word even without a preceding space: WordPiece's marks and ideographs."""
        if (
            self.kind != "wordpiece"
            or not self.read(subword).opens
            or (subword[:1].isascii() and subword[:1].isalnum())
        ):
            return False
        return self.words(_ANCHOR + subword)[0] == _ANCHOR

    def words(self, text: str) -> list[str]:
        """The words of a text, normalized, as the model is given them."""
        engine = self.engine
        if engine.normalizer is not None:
            text = engine.normalizer.normalize_str(text)
        if engine.pre_tokenizer is None:
            return [text]
        return [word for word, _ in engine.pre_tokenizer.pre_tokenize_str(text)]


class _Cutter(Spelling):
    """Looks up and splits text with the old tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__(tokenizer)
        self.ids = {subword: index for index, subword in enumerate(tokenizer.tokens)}
        self.refused = {*tokenizer.special_ids, tokenizer.unk_id}
        self.texts = [self.read(subword) for subword in tokenizer.tokens]
        self.known: dict[_Text, int] = {}
        for index, text in enumerate(self.texts):
            if index not in self.refused:
                self.known.setdefault(text, index)
        self.longest = max(len(subword) for subword in tokenizer.tokens)

    def parts_of(self, selected: _Text, isolated: bool) -> tuple[list[int], bool]:
        """Returns (ids of the old tokens, whether that is one token with the same text)."""
        slots = (False, True) if isolated else (selected.opens,)
        for opens in slots:
            if (text := _Text(opens, selected.text)) in self.known:
                return [self.known[text]], True
        results = [index for index in self._cut(selected) if index not in self.refused]
        if not any(self.texts[index].text for index in results):  # "▁" alone, the rest unknown: says nothing of it
            return [], False
        return results, len(results) == 1 and self.texts[results[0]].text == selected.text

    def _cut(self, selected: _Text) -> list[int]:
        try:
            text = selected.text.decode()
        except UnicodeDecodeError:  # a fragment of a character
            return self._cut_bytes(selected) if self.bytewise else []
        words = self.words((self.blank if selected.opens else _ANCHOR) + text)
        ids: list[int] = []
        if not selected.opens and words and _ANCHORED.match(words[0]):
            ids += self._inside(_ANCHORED.sub("", words[0], count=1))
            words = words[1:]
        return ids + [token.id for word in words for token in self.engine.model.tokenize(word)]

    def _cut_bytes(self, selected: _Text) -> list[int]:
        letters = {byte: letter for letter, byte in byte_table().items()}
        spelled = self.opener * selected.opens + "".join(letters[byte] for byte in selected.text)
        return [token.id for token in self.engine.model.tokenize(spelled)]

    def _inside(self, rest: str) -> list[int]:
        """Returns the tokens of the rest of a word; WordPiece takes the longest match, and none if one is missing."""
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
