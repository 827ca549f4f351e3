"""Reads sentencepiece models and translates them into `tokenizers.Tokenizer`, option by option.

Field numbers are those of sentencepiece's `sentencepiece_model.proto`. The package's own reader of such messages needs
one exact release of protobuf.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import random
import re
import struct
import unicodedata
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

SPACE = "▁"  # how sentencepiece writes a space
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 1, 2, 3, 4, 6  # types of tokens
_KINDS = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}
UNMATCHED = "\uffff"  # before names that text must not match; a noncharacter
_USER_DEFINED_SCORE = -0.1  # sentencepiece prefers them to everything
_BYTE_SCORE = 8.0  # times the lowest score: bytes are for unknown characters, never for the text "<0x41>"
_REPEATS = re.compile(r"(.)(.?)\1\2\1")  # aaa, ababa
_CHECKED = 100
_COMPOSING = b"bertjax: NFC, table, NFC"  # name of rules; sentencepiece reads no more than their table
_SENTENCES = (
    "The quick brown fox jumps over 13 lazy dogs.",
    "two  spaces,   three, and an end  ",
    "Naïve café, ﬁne, UPPER Case: 3.14 ① — “quoted” ……",
    "東京 and 北京大学 한국어 Ωmega Жук 🙂🙂",
    "a\tb\nc  aaaa ----- ==== 10000",
)


@dataclasses.dataclass(frozen=True)
class ModelSpec:
    """Declarations of a sentencepiece model.

    Attributes:
        kind: unigram, bpe, word or char.
        tokens, scores, types: one of each per id.
        table: compiled normalization rules; empty if there are none.
        byte_fallback: unknown characters become their UTF-8 bytes.
        adds_prefix: a space is put before every text.
        trims_spaces: spaces at both ends are removed and runs of them become one.
        composes: text is composed (NFC) before and after these rules, as in the models that bertjax trains.
    """

    kind: str
    tokens: tuple[str, ...]
    scores: tuple[float, ...]
    types: tuple[int, ...]
    table: bytes
    byte_fallback: bool
    adds_prefix: bool
    trims_spaces: bool
    composes: bool = False

    @property
    def always_opens_word(self) -> bool:
        """Returns whether the translation puts a space before any text, also one that begins with a space."""
        return self.adds_prefix and not self.trims_spaces

    @property
    def without_controls(self) -> ModelSpec:
        """Returns the model with other names for control tokens, so that text like "[MASK]" is not one of them."""
        controls = (_UNKNOWN, _CONTROL)
        pairs = zip(self.tokens, self.types, strict=True)
        return dataclasses.replace(
            self, tokens=tuple(UNMATCHED + token if kind in controls else token for token, kind in pairs)
        )


def read_spec(model: bytes) -> ModelSpec:
    """Returns what a model declares; absent fields have sentencepiece's defaults."""
    trainer, normalizer = dict[int, Any](), dict[int, Any]()
    tokens = list[tuple[str, float, int]]()
    for number, value in _fields(model):
        if number == 1:
            token = dict(_fields(value))
            tokens.append((token.get(1, b"").decode(), token.get(2, 0.0), token.get(3, _NORMAL)))
        elif number == 2:
            trainer = dict(_fields(value))
        elif number == 3:
            normalizer |= dict(_fields(value))
    names, scores, types = zip(*tokens, strict=True)
    return ModelSpec(
        kind=_KINDS[trainer.get(3, 1)],
        tokens=names,
        scores=scores,
        types=types,
        table=normalizer.get(2, b""),
        byte_fallback=bool(trainer.get(35, 0)),
        adds_prefix=bool(normalizer.get(3, 1)),
        trims_spaces=bool(normalizer.get(4, 1)),
        composes=normalizer.get(1) == _COMPOSING,
    )


def translate_model(spec: ModelSpec, folding: Any | None) -> Any:
    """Returns the model as a `tokenizers.Tokenizer` that recognizes no special tokens yet.

    Args:
        spec: the model.
        folding: normalizer that sees text first, if any.
    """
    from tokenizers import AddedToken, Tokenizer, pre_tokenizers

    tokenizer = Tokenizer(_bpe(spec) if spec.kind == "bpe" else _unigram(spec))
    tokenizer.normalizer = _normalizer(spec, folding)
    splits = all(SPACE not in token[1:] for token in spec.tokens) and SPACE in spec.tokens
    prefix = "first" if spec.adds_prefix and not spec.always_opens_word else "never"
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme=prefix, split=splits)
    tokenizer.decoder = _decoder(spec)
    if spec.kind == "bpe":  # no merge makes them; single characters are tokens as they are
        symbols = [t for t, kind in zip(spec.tokens, spec.types, strict=True) if kind == _USER_DEFINED and len(t) > 1]
        tokenizer.add_tokens([AddedToken(symbol, normalized=False) for symbol in symbols])
    return tokenizer


def _unigram(spec: ModelSpec) -> Any:
    """A unigram or character model. User-defined symbols have the score that sentencepiece computes for them."""
    from tokenizers import models

    trained = [score for score, kind in zip(spec.scores, spec.types, strict=True) if kind == _NORMAL]
    lowest = min(trained, default=0.0)
    scored = list[tuple[str, float]]()
    for token, score, kind in zip(spec.tokens, spec.scores, spec.types, strict=True):
        if kind == _USER_DEFINED:
            score = _USER_DEFINED_SCORE
        elif kind == _BYTE:
            score = _BYTE_SCORE * lowest
        scored.append((token, score))
    return models.Unigram(scored, unk_id=spec.types.index(_UNKNOWN), byte_fallback=spec.byte_fallback)


def _bpe(spec: ModelSpec) -> Any:
    """A BPE model: a token can be made of any two tokens, and the one with the highest score is made first."""
    from tokenizers import models

    made_of_text = {token for token, kind in zip(spec.tokens, spec.types, strict=True) if kind == _NORMAL and token}
    order = sorted(range(len(spec.tokens)), key=lambda index: (-spec.scores[index], index))
    merges = [
        (token[:cut], token[cut:])
        for token in (spec.tokens[index] for index in order)
        if token in made_of_text
        for cut in range(1, len(token))
        if token[:cut] in made_of_text and token[cut:] in made_of_text
    ]
    return models.BPE(
        vocab={token: index for index, token in enumerate(spec.tokens)},
        merges=merges,
        unk_token=spec.tokens[spec.types.index(_UNKNOWN)],
        fuse_unk=True,
        byte_fallback=spec.byte_fallback,
    )


def _normalizer(spec: ModelSpec, folding: Any | None) -> Any:
    from tokenizers import Regex, normalizers

    steps = [folding] if folding is not None else []
    composing = [normalizers.NFC()] if spec.composes else []
    table = [normalizers.Precompiled(spec.table)] if spec.table else []
    steps += [*composing, *table, *(composing if table else [])]
    if spec.trims_spaces:
        steps += [normalizers.Replace(Regex(" {2,}"), " ")]
    steps += [normalizers.Replace(" ", SPACE)]
    if spec.trims_spaces:
        steps += [normalizers.Replace(Regex(f"{SPACE}+\\z"), "")]
    if spec.always_opens_word:
        steps += [normalizers.Prepend(SPACE)]
    return normalizers.Sequence(steps)


def _decoder(spec: ModelSpec) -> Any:
    from tokenizers import decoders

    scheme = "always" if spec.adds_prefix else "never"
    if not spec.byte_fallback:
        return decoders.Metaspace(replacement=SPACE, prepend_scheme=scheme)
    strip = [decoders.Strip(" ", 1, 0)] if spec.adds_prefix else []
    return decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip])


def is_ambiguous(text: str) -> bool:
    """Returns whether sentencepiece may read a text differently than its translation.

    `tokenizers` normalizes a character with its marks as one, or composes what sentencepiece leaves as it is, keeps a
    space before a text that begins with one, matches byte tokens by their names, and adds up scores in 64 bits, so that
    equally good ways to cut "*****" differ.
    """
    if text[:1].isspace() or SPACE in text or "<0x" in text or "\r\n" in text or _REPEATS.search(text):
        return True
    return not text.isascii() and bool(_marks().search(text))


@functools.cache
def _marks() -> re.Pattern[str]:
    """Returns a pattern of the characters that Unicode segmentation joins to others, or NFC changes."""
    codes = itertools.chain(range(0x80, 0x20000), range(0x2F800, 0x2FA20), range(0xE0000, 0xE0200))  # not ideographs
    return re.compile(f"[{''.join(chr(code) for code in codes if _joins(code))}]")


def _joins(code: int) -> bool:
    ranges = ((0x1100, 0x11FF), (0xA960, 0xA97F), (0xD7B0, 0xD7FF), (0x1F1E6, 0x1F1FF), (0x1F3FB, 0x1F3FF))
    return (
        code in (0xE33, 0xEB3, 0xFF9E, 0xFF9F)  # Thai and Lao AM, halfwidth sound marks
        or unicodedata.category(chr(code)) in ("Mn", "Me", "Mc", "Cf")
        or not unicodedata.is_normalized("NFC", chr(code))
        or any(first <= code <= last for first, last in ranges)
    )


def check_texts(spec: ModelSpec) -> list[str]:
    """Returns texts that exercise a model: its own tokens in random order, every user-defined symbol in context."""
    rng = random.Random(0)
    trained = [t.replace(SPACE, " ") for t, kind in zip(spec.tokens, spec.types, strict=True) if kind == _NORMAL]
    symbols = [t for t, kind in zip(spec.tokens, spec.types, strict=True) if kind == _USER_DEFINED]
    mixed = ["".join(rng.choices(trained, k=30)).strip() for _ in range(_CHECKED)] if trained else []
    mixed += [f"{s} the{s}end, {s} {s}" for s in (symbol.replace(SPACE, " ") for symbol in symbols[:_CHECKED])]
    return [*(text for text in mixed if not is_ambiguous(text)), *_SENTENCES]


class NewToken(NamedTuple):
    """A token to add to a model; control tokens match no text."""

    name: str
    score: float = 0.0
    is_control: bool = True


def append_tokens(model: bytes, token_list: Sequence[NewToken]) -> bytes:
    """Returns a sentencepiece model with further tokens after the last id (DeBERTa's [MASK], added words).

    Tokens are a repeated field of the message, and protocol buffers append later repetitions.
    """
    return model + b"".join(_record(_message(token)) for token in token_list)


def compose_text(model: bytes) -> bytes:
    """Returns a sentencepiece model whose translation composes text (`ModelSpec.composes`).

    Without it, `tokenizers` leaves Korean in single letters, half-width kana apart from their sound marks, and loses
    the second of two marks.
    """
    return model + _record(_record(_COMPOSING), 3)  # protocol buffers merge a repeated message into the first


def order_tokens(model: bytes, first: Sequence[str], last: Sequence[str] = (), without: Collection[str] = ()) -> bytes:
    """Returns a sentencepiece model with the tokens `first`, all others in their order, and `last`.

    XLM-R and CamemBERT have other ids than their `sentencepiece.bpe.model`: fairseq put its special tokens first.

    Args:
        model: the model.
        first: names of the first tokens; those that are not in the model are added as control tokens.
        last: names of the last tokens.
        without: names of tokens to leave out.
    """
    fields = list(_fields(model))
    tokens = {dict(_fields(value)).get(1, b"").decode(): value for number, value in fields if number == 1}
    moved = {*first, *last, *without}
    between = [value for name, value in tokens.items() if name not in moved]
    ends = [[tokens.get(name, _message(NewToken(name))) for name in names] for names in (first, last)]
    rest = b"".join(_record(value, number) for number, value in fields if number != 1)
    return b"".join(map(_record, [*ends[0], *between, *ends[1]])) + rest


def _message(token: NewToken) -> bytes:
    name, kind = token.name.encode(), _CONTROL if token.is_control else _NORMAL
    return _record(name) + b"\x15" + struct.pack("<f", token.score) + b"\x18" + bytes([kind])


def _record(content: bytes, number: int = 1) -> bytes:
    """A field of bytes."""
    size, length = len(content), bytearray()
    while size > 127:
        length.append(size & 127 | 128)
        size >>= 7
    return bytes([number << 3 | 2, *length, size]) + content


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """(number, value) of the top level of a protocol buffer message: int, bytes, or float of 32 bits."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, at = _varint(message, at)
            yield number, value
        elif wire == 2:
            size, at = _varint(message, at)
            yield number, message[at : at + size]
            at += size
        elif wire == 5:
            yield number, struct.unpack_from("<f", message, at)[0]
            at += 4
        else:
            at += 8


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
