"""Changed vocabularies: words of a domain are added after the last id, all other ids stay; or tokens are removed.

WordPiece and whole-word vocabularies get the word. Unigram gets it with the score of its rarest part, so that it
replaces its parts in any sentence. BPE gets the merges that join its parts, after all others, and the tokens between:
"hyp ert ension" needs "hypert" as well, which also joins in other words that used to be "hyp ert".

Tokens that a text does not use can be removed; the others keep their order. A text whose tokens all stay is read as
before: WordPiece and unigram choose among the tokens that are there, and BPE keeps every merge on the way to a token
that stays. Other texts are cut into shorter tokens, for which single characters (WordPiece's inside words as well) and
bytes stay.
"""

from __future__ import annotations

import itertools
import json
import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bertjax.data.sentencepiece_model import NewToken, append_tokens, order_tokens
from bertjax.data.tokenizer import Tokenizer
from bertjax.data.tokenizer_backends import HuggingFaceBackend, SentencePieceBackend, fold_added_tokens
from bertjax.data.vocab_transfer import Spelling
from bertjax.data.words import runs_of_letters
from bertjax.errors import UserError, comma_list

_SHOWN, _SHORTEST = 5, 3


class AddedWords(NamedTuple):
    """Result of `add_words`.

    tokenizer: the larger tokenizer · added: new words · known: words that were one token already · tokens: new tokens.
    """

    tokenizer: Tokenizer
    added: list[str]
    known: list[str]
    tokens: int


class _Word(NamedTuple):
    """A word as the model reads it, and the tokens of that."""

    text: str
    spelled: str
    parts: list[str]


def split_words(documents: Iterable[str], tokenizer: Tokenizer, count: int) -> list[str]:
    """Returns the most frequent words of a text that a tokenizer splits, the most frequent first.

    Args:
        documents: The text. Words are `runs_of_letters` of three or more characters.
        tokenizer: The tokenizer that splits them.
        count: Number of words at most.
    """
    counts = Counter[str]()
    for document in documents:
        text = document.lower() if tokenizer.lowercase else document
        counts.update(run for run in runs_of_letters(text) if len(run) >= _SHORTEST)
    words = [word for word, _ in counts.most_common()]
    lengths = map(len, tokenizer.encode_batch([f" {word}" for word in words]))
    return [word for word, length in zip(words, lengths, strict=True) if length > 1][:count]


def read_words(path: str | os.PathLike[str]) -> list[str]:
    """Returns the words of a file, one per line; empty lines and repetitions count once.

    Raises:
        UserError: the file cannot be read, is empty, or a line holds several words.
    """
    path = Path(path).expanduser()
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: invalid UTF-8 at byte {error.start}; copy or convert the file") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error
    words = dict[str, int]()
    for number, line in enumerate(lines, 1):
        if len(line.split()) > 1:
            raise UserError(f"{path}:{number}: {line.strip()!r} is several words; write one word per line")
        if line.strip():
            words.setdefault(line.strip(), number)
    if not words:
        raise UserError(f"{path} holds no word; write one word per line")
    return list(words)


def add_words(tokenizer: Tokenizer, words: Sequence[str]) -> AddedWords:
    """Returns a tokenizer in which every word is one token.

    Raises:
        UserError: the tokenizer splits a word before it looks at its vocabulary, all words are tokens already, or the
            model cannot hold a word.
    """
    known, new = _sort_out(tokenizer, words)
    if not new:
        raise UserError(f"all {len(words)} words are single tokens of this tokenizer already; nothing to add")
    backend = tokenizer.backend
    grow: Any = _grow_sentencepiece if isinstance(backend, SentencePieceBackend) else _grow_json
    larger = Tokenizer(grow(backend, tokenizer, new), tokenizer.family, tokenizer.lowercase, tokenizer.spec)
    blank = Spelling(larger).blank
    ids = larger.encode_batch([blank + word.text for word in new])
    wrong = [word.text for word, row in zip(new, ids, strict=True) if len(row) != 1 or row[0] < tokenizer.size]
    if wrong:
        raise UserError(f"{_some(wrong)} would not become one token of this tokenizer; remove them from the list")
    return AddedWords(larger, [word.text for word in new], known, larger.size - tokenizer.size)


def _sort_out(tokenizer: Tokenizer, words: Sequence[str]) -> tuple[list[str], list[_Word]]:
    """Returns the words that are tokens already, and the others as the model reads them, each once."""
    spelling, held = Spelling(tokenizer), set(tokenizer.tokens)
    known, new, split = list[str](), dict[str, _Word](), list[str]()
    for word in words:
        spelled = spelling.words(spelling.blank + word)
        if len(spelled) != 1:
            split.append(word)
        elif spelled[0] in held:
            known.append(word)
        else:
            parts = [token.value for token in spelling.engine.model.tokenize(spelled[0])]
            new.setdefault(spelled[0], _Word(word, spelled[0], parts))
    if split:
        raise UserError(
            f"{_some(split)}: the rules of this tokenizer split them before it looks at its vocabulary, so they cannot "
            "be single tokens; remove them from the list"
        )
    return known, list(new.values())


def _some(words: Sequence[str]) -> str:
    return comma_list(map(repr, words), _SHOWN)


def _grow_json(backend: HuggingFaceBackend, tokenizer: Tokenizer, words: list[_Word]) -> HuggingFaceBackend:
    content = fold_added_tokens(json.loads(backend.marked.to_str()))
    model = content["model"]
    if tokenizer.kind == "unigram":
        scores = dict(map(tuple, model["vocab"]))
        model["vocab"] = [*model["vocab"], *([word.spelled, _score(word, scores)] for word in words)]
    else:
        names = [word.spelled for word in words]
        if tokenizer.kind == "bpe":
            merges = _join(words)
            model["merges"] = [*model["merges"], *map(list, merges)]
            names = [token for token in map("".join, merges) if token not in model["vocab"]]
        model["vocab"] |= {name: tokenizer.size + number for number, name in enumerate(dict.fromkeys(names))}
    return HuggingFaceBackend(json.dumps(content, ensure_ascii=False))


def _grow_sentencepiece(backend: SentencePieceBackend, tokenizer: Tokenizer, words: list[_Word]) -> Any:
    scores = dict(zip(backend.spec.tokens, backend.spec.scores, strict=True))
    if tokenizer.kind == "unigram":
        new = [NewToken(word.spelled, _score(word, scores), is_control=False) for word in words]
    else:
        joined = dict.fromkeys(map("".join, _join(words)))
        order = enumerate((token for token in joined if token not in scores), 1)
        new = [NewToken(token, min(scores.values()) - number, is_control=False) for number, token in order]
    larger = SentencePieceBackend(append_tokens(backend.model, new), tokenizer.spec, backend.fold)
    if (text := larger.find_mismatch()) is not None:
        raise UserError(f"transformers would read {text!r} differently with these words; remove them from the list")
    return larger


def _score(word: _Word, scores: dict[str, float]) -> float:
    """The score of the rarest part: more than that of all parts together, and little for longer words."""
    return min((scores[part] for part in word.parts if scores.get(part, 0.0) < 0.0), default=min(scores.values()))


def _join(words: list[_Word]) -> list[tuple[str, str]]:
    """Returns merges that join the parts of every word, in their order.

    Raises:
        UserError: a character of a word is not in the vocabulary.
    """
    unknown = [word.text for word in words if "".join(word.parts) != word.spelled]
    if unknown:
        raise UserError(
            f"{_some(unknown)} have characters that this vocabulary lacks, which BPE cannot merge; remove them"
        )
    ranks = dict[tuple[str, str], int]()
    for word in words:
        parts = list(word.parts)
        while len(parts) > 1:
            pairs = list(itertools.pairwise(parts))
            first = min(pairs, key=lambda pair: ranks.get(pair, len(ranks)))  # a new merge joins the first two
            ranks.setdefault(first, len(ranks))
            at = pairs.index(first)
            parts[at : at + 2] = ["".join(first)]
    return list(ranks)


_BYTE = re.compile("<0x[0-9A-F]{2}>")  # what a character becomes that is not a token
_OPENER = "\u2581"


def remove_unused(tokenizer: Tokenizer, used: Iterable[int]) -> tuple[Tokenizer, list[int]]:
    """Returns a tokenizer without the tokens that are neither used nor needed, and the old id of every new one.

    Args:
        tokenizer: the tokenizer.
        used: ids that stay.

    Raises:
        UserError: tokens cannot be removed from a vocabulary of this kind.
    """
    names = {tokenizer.tokens[index] for index in used}
    names |= {tokenizer.tokens[index] for index in tokenizer.special_ids}
    names |= {token for token in tokenizer.tokens if _is_single(token, tokenizer.continuation_prefix)}
    backend = tokenizer.backend
    if tokenizer.unk_id >= 0:
        names.add(tokenizer.tokens[tokenizer.unk_id])
    if isinstance(backend, SentencePieceBackend):
        smaller: Any = _smaller_sentencepiece(backend, tokenizer, names)
    else:
        smaller = _smaller_json(backend, tokenizer, names)
    result = Tokenizer(smaller, tokenizer.family, tokenizer.lowercase, tokenizer.spec)
    result.token_types = tokenizer.token_types
    ids = {token: index for index, token in enumerate(tokenizer.tokens)}
    return result, [ids[token] for token in result.tokens]


def _is_single(token: str, prefix: str) -> bool:
    """Returns whether a token is one character or byte, with or without the mark of its position in a word."""
    if prefix and token != prefix:
        token = token.removeprefix(prefix)
    return len(token) == 1 or (len(token) == 2 and token[0] == _OPENER) or bool(_BYTE.fullmatch(token))


def _smaller_sentencepiece(
    backend: SentencePieceBackend, tokenizer: Tokenizer, names: Collection[str]
) -> SentencePieceBackend:
    if tokenizer.kind == "bpe":
        raise UserError("a BPE model of sentencepiece does not name its merges: its tokens cannot be removed")
    names = {*names, *backend.special}
    without = [token for token in backend.tokens if token not in names]
    return SentencePieceBackend(order_tokens(backend.model, (), without=without), tokenizer.spec, backend.fold)


def _smaller_json(backend: HuggingFaceBackend, tokenizer: Tokenizer, names: Collection[str]) -> HuggingFaceBackend:
    content = fold_added_tokens(json.loads(backend.marked.to_str()))
    model, added = dict(content["model"]), content.get("added_tokens", ())
    stays = {*names, *(token["content"] for token in added)}
    if tokenizer.kind == "bpe":
        stays |= _ancestors(stays, model["merges"])
        model["merges"] = [pair for pair in model["merges"] if {*_pair(pair), "".join(_pair(pair))} <= stays]
    order = [token for token in tokenizer.tokens if token in stays]
    ids = {token: index for index, token in enumerate(order)}
    if tokenizer.kind == "unigram":
        unknown = None if model.get("unk_id") is None else model["vocab"][model["unk_id"]][0]
        scores = {token: score for token, score in model["vocab"]}
        model["vocab"] = [[token, scores[token]] for token in order]
        model["unk_id"] = None if unknown is None else ids[unknown]
    else:
        model["vocab"] = ids
    content |= {"model": model, "added_tokens": [{**token, "id": ids[token["content"]]} for token in added]}
    content["post_processor"] = _renumber(content.get("post_processor"), ids)
    return HuggingFaceBackend(json.dumps(content, ensure_ascii=False))


def _pair(merge: Any) -> tuple[str, str]:
    """Returns the two tokens of a merge, which older files hold as one text."""
    first, second = merge.split(" ") if isinstance(merge, str) else merge
    return first, second


def _ancestors(names: Iterable[str], merges: Iterable[Any]) -> set[str]:
    """Returns the tokens on the way to others: both halves of every merge that makes one, and so on."""
    halves: dict[str, list[tuple[str, str]]] = {}
    for merge in map(_pair, merges):
        halves.setdefault("".join(merge), []).append(merge)
    ancestors, waiting = set[str](), list(names)
    while waiting:
        for pair in halves.get(waiting.pop(), ()):
            waiting += [half for half in pair if half not in ancestors]
            ancestors.update(pair)
    return ancestors


def _renumber(processor: Any, ids: dict[str, int]) -> Any:
    """Returns a post-processor with the new ids of its special tokens."""
    if isinstance(processor, list):
        return [_renumber(each, ids) for each in processor]
    if not isinstance(processor, dict):
        return processor
    renumbered = {key: _renumber(value, ids) for key, value in processor.items()}
    if processor.get("type") in ("BertProcessing", "RobertaProcessing"):
        renumbered |= {key: [processor[key][0], ids[processor[key][0]]] for key in ("cls", "sep")}
    if processor.get("type") == "TemplateProcessing":
        for token in renumbered["special_tokens"].values():
            token["ids"] = [ids[name] for name in token["tokens"]]
    return renumbered
