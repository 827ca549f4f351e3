"""Vocabularies of letters and k-mers that text does not change, of proteins and DNA, and ESM's class of tokenizer."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from bertjax.data.special_tokens import TokenizerFamily
from bertjax.data.tokenizer_backends import HuggingFaceBackend, add_special_tokens

# facebookresearch/esm:esm/constants.py: by frequency, then the ambiguous ones; gaps follow in esm/data.py.
AMINO_ACIDS = (*"LAGVSERTIDPKQNFYMHWCXBUZO", ".", "-")
NUCLEOTIDES = "ATCG"  # jerryji1993/DNABERT:src/transformers/dnabert-config/bert-config-6/vocab.txt


def fixed_words(model: str, kmer: int) -> list[str]:
    """Returns the tokens of a fixed vocabulary besides the special ones.

    Args:
        model: protein, dna or kmers, as `data.tokenizer`.
        kmer: Letters of the words of dna and kmers.
    """
    if model == "protein":
        return list(AMINO_ACIDS)
    words = list(map("".join, itertools.product(NUCLEOTIDES, repeat=kmer)))
    return words if model == "kmers" else list(dict.fromkeys([*words, *NUCLEOTIDES, "N"]))


def fixed_tokenizer(model: str, kmer: int, family: TokenizerFamily) -> HuggingFaceBackend:
    """Returns a tokenizer that reads the longest words first, wherever they stand; everything else is unknown.

    Args:
        model, kmer: Those of `fixed_words`.
        family: Family of the special tokens.
    """
    tokens = dict.fromkeys([*family.first, *fixed_words(model, kmer), *family.last])
    return _backend({token: index for index, token in enumerate(tokens)}, family)


def _backend(vocabulary: Mapping[str, int], family: TokenizerFamily) -> HuggingFaceBackend:
    import tokenizers
    from tokenizers import models, pre_tokenizers

    tokenizer = tokenizers.Tokenizer(models.WordLevel(dict(vocabulary), unk_token=family.roles["unk"]))
    words = tokenizers.Regex(longest_match(vocabulary))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(words, "isolated"), pre_tokenizers.WhitespaceSplit()]
    )
    add_special_tokens(tokenizer, family)
    return HuggingFaceBackend(tokenizer.to_str())


def reads_like_esm(backend: Any, family: TokenizerFamily) -> bool:
    """Returns whether transformers' `EsmTokenizer` makes the same ids of the list of tokens."""
    if family.huggingface_class != "EsmTokenizer" or backend.kind != "wordlevel":
        return False
    ours, theirs = (
        json.loads(each.marked.to_str())
        for each in (backend, _backend({token: index for index, token in enumerate(backend.tokens)}, family))
    )
    return all(ours[part] == theirs[part] for part in ("normalizer", "pre_tokenizer", "model", "post_processor"))


def longest_match(words: Iterable[str]) -> str:
    """Returns a regular expression of the longest of the words that begin at a position; it looks at a letter once."""
    tree: dict[str, Any] = {}
    for word in filter(None, words):
        node = tree
        for letter in word:
            node = node.setdefault(letter, {})
        node[""] = {}
    return _pattern(tree)


def _pattern(node: Mapping[str, Any]) -> str:
    """Returns the expression of the words that go on in a node; letters that go on in one way are a class."""
    ways: dict[str, list[str]] = {}
    for letter, rest in node.items():
        if letter:
            ways.setdefault(_pattern(rest), []).append(re.escape(letter))
    parts = [(letters[0] if len(letters) == 1 else f"[{''.join(letters)}]") + rest for rest, letters in ways.items()]
    if not parts:
        return ""
    joined = parts[0] if len(parts) == 1 and "" not in node else f"(?:{'|'.join(parts)})"
    return f"{joined}?" if "" in node else joined


def translate_esm(loaded: Any) -> str:
    """Returns the `tokenizer.json` of an `EsmTokenizer`, a class in Python: all its tokens are found in any text.

    Args:
        loaded: The tokenizer of `transformers`.
    """
    roles = {key.removesuffix("_token"): str(token) for key, token in loaded.special_tokens_map.items()}
    after = f" {roles['eos']}:0" if "eos" in roles else ""
    single = f"{roles['cls']}:0 $A:0{after}"
    special = tuple(dict.fromkeys(map(str, loaded.all_special_tokens)))
    family = TokenizerFamily("protein", (), roles, single, f"{single} $B:0{after}", last=special, token_types=False)
    return json.dumps(json.loads(_backend(loaded.get_vocab(), family).files(family)["tokenizer.json"]))
