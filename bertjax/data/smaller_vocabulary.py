"""Removes tokens that a text does not use from a vocabulary; the others keep their order.

A text whose tokens all stay is read as before: WordPiece and unigram choose among the tokens that are there, and BPE
keeps every merge on the way to a token that stays. Other texts are cut into shorter tokens, for which single
characters (WordPiece's inside words as well) and bytes stay.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable
from typing import Any

from bertjax.data.sentencepiece_model import order_tokens
from bertjax.data.tokenizer import Tokenizer
from bertjax.data.tokenizer_backends import HuggingFaceBackend, SentencePieceBackend, fold_added_tokens
from bertjax.errors import UserError

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
