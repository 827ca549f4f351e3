"""The tokenizer and the documents of a config, and the digests that name what is made of them."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from ml_collections import ConfigDict

from bertjax.config import inputs
from bertjax.config.data import FIXED_VOCABULARIES, TOKENIZER_MODELS, FilterConfig
from bertjax.config.fields import Reader
from bertjax.config.objectives import objective_class, require_pretraining
from bertjax.config.source_files import source_entries
from bertjax.config.sources import Source
from bertjax.data import builtin
from bertjax.data.filters import DocumentFilter, EvaluationText
from bertjax.data.sources import is_held_out, iter_documents, source_digest
from bertjax.data.text_store import fetch_folder, publish_folder
from bertjax.data.tokenizer_io import load_tokenizer, save_tokenizer
from bertjax.errors import UserError, comma_list
from bertjax.io import atomic
from bertjax.storage import entry_of, is_url, to_url

if TYPE_CHECKING:
    from bertjax.data.tokenizer import Tokenizer

LogFunction = Callable[[str], None]

_SHOWN = 4  # tokens that a message names
_TEXT_VERSION = 3
"""Raised when reading, sentence splitting or the extraction of the built-in text changes what comes out."""


def load_or_train_tokenizer(cfg: ConfigDict, say: LogFunction = print) -> Tokenizer:
    """The tokenizer that the config names, trained on its training documents when no trained one is cached."""
    require_pretraining(cfg)
    data, folder = cfg.data, tokenizer_folder(cfg)
    if folder is None:
        return complete_tokenizer(read_tokenizer(data), cfg, say)
    url = stored_url(cfg, "tokenizers", folder.name)
    is_stored = url is not None and fetch_folder(url, folder, "bertjax_tokenizer.json")
    if not folder.exists():
        is_fixed = data.tokenizer in FIXED_VOCABULARIES
        if not is_fixed:
            say(f"training a {data.tokenizer} tokenizer of {data.vocab_size:,} tokens")
        tokenizer = train_from_config(data, training_documents(cfg))
        if tokenizer.size < data.vocab_size and not is_fixed:
            say(f"the corpus gives only {tokenizer.size:,} of {data.vocab_size:,} tokens")
        require_same_text(cfg, folder)
        save_tokenizer(tokenizer, folder)
    if url is not None and not is_stored:
        publish_folder(url, folder, "bertjax_tokenizer.json")
    return complete_tokenizer(load_tokenizer(folder), cfg, say)


def require_same_text(cfg: ConfigDict, folder: Path | None) -> None:
    """Raises `UserError` if the text changed since `tokenizer_folder` returned `folder`: no run could be resumed."""
    if tokenizer_folder(cfg) != folder:
        raise UserError("the text of data.sources changed while its tokenizer was trained or used; start again")


def read_tokenizer(data: ConfigDict) -> Tokenizer:
    """Loads the tokenizer of the folder, file or name on the Hub that `data.tokenizer` is."""
    if not data.tokenizer.endswith((".txt", ".model")):
        return load_tokenizer(data.tokenizer)
    family = data.tokenizer_family if data.tokenizer.endswith(".model") else None
    return load_tokenizer(data.tokenizer, family, lowercase=data.lowercase)  # which such a file does not say


def train_from_config(data: ConfigDict, documents: Iterable[str]) -> Tokenizer:
    """Trains the tokenizer that the group `data` of a config describes."""
    from bertjax.data.tokenizer_training import train_tokenizer

    return train_tokenizer(
        documents,
        model=data.tokenizer,
        family=data.tokenizer_family,
        vocab_size=data.vocab_size,
        lowercase=data.lowercase,
        token_pattern=data.token_pattern,
        kmer=data.kmer,
    )


def complete_tokenizer(tokenizer: Tokenizer, cfg: ConfigDict, say: LogFunction = print) -> Tokenizer:
    """Returns the tokenizer with all special tokens that formats and objective need; causal models mask nothing.

    Args:
        tokenizer: Tokenizer of the run.
        cfg: Its config.
        say: Prints what was added.
    """
    objective = objective_class(cfg.objective.name)
    masks, sentinels = objective.needs_mask_token, objective.needed_sentinels(cfg)
    completed = tokenizer.complete(("pad", "cls", "sep", *(("mask",) if masks else ())), sentinels)
    if added := completed.tokens[tokenizer.size :]:
        say(f"{comma_list(added, _SHOWN)} added to the tokenizer: objective.name={cfg.objective.name} needs them")
    return completed


def tokenizer_folder(cfg: ConfigDict) -> Path | None:
    """Returns the cache directory of a config's trained tokenizer; None if the config names a tokenizer."""
    data = cfg.data
    if data.tokenizer not in TOKENIZER_MODELS:
        return None
    library = "sentencepiece" if data.tokenizer in ("unigram", "sentencepiece_bpe") else "tokenizers"
    parts = [
        _TEXT_VERSION,
        [content_digest(source, cfg) for source in inputs.all_sources(cfg)],
        0.0 if data.eval_sources else data.eval_fraction,
        [data.tokenizer, data.tokenizer_family, data.vocab_size, data.lowercase, *filter(None, [data.token_pattern])],
        *([[data.kmer]] if data.tokenizer in FIXED_VOCABULARIES else []),
        [library, version(library), *([2] if data.tokenizer == "wordpiece" else [])],
        *Reader(cfg)(FilterConfig).fingerprint,
        *([] if (evaluation := evaluation_text(cfg)) is None else [evaluation.digest]),
    ]
    return inputs.cache_folder(cfg) / "tokenizers" / hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def training_documents(cfg: ConfigDict) -> Iterator[str]:
    """Yields the training split only, so that held-out text does not enter the tokenizer."""
    fraction = 0.0 if cfg.data.eval_sources else cfg.data.eval_fraction
    for source in inputs.all_sources(cfg):
        saved = filtered_documents(source, cfg)
        yield from (document for document in saved if not (fraction and is_held_out(document, fraction)))


def filtered_documents(source: Source, cfg: ConfigDict) -> Iterator[str]:
    """Yields the documents of a source that the filters keep."""
    filter_ = DocumentFilter(Reader(cfg)(FilterConfig), evaluation_text(cfg))
    return filter_.filter_each(iter_documents(source, cfg.data.encoding_errors))


def evaluation_text(cfg: ConfigDict) -> EvaluationText | None:
    """Returns the text of `data.decontaminate`, of which a corpus must hold nothing; None without any."""
    sources = tuple(inputs.evaluation_sources(cfg))
    digests = tuple(content_digest(source, cfg) for source in sources)
    return _read_evaluation_text(sources, digests, cfg.data.encoding_errors) if sources else None


@functools.lru_cache(maxsize=2)
def _read_evaluation_text(sources: tuple[Source, ...], _digests: tuple[str, ...], errors: str) -> EvaluationText:
    return EvaluationText(text for source in sources for text in iter_documents(source, errors))


def content_digest(source: Source, cfg: ConfigDict) -> str:
    """`source_digest` with how the text is read; remembered while size and time of every file stay as they are.

    Hashing a large corpus takes minutes, and every start of a run asks for it.
    """
    how = f"{_TEXT_VERSION}:{cfg.data.encoding_errors}"
    if not (source.spec.is_file or source.kind == "builtin"):
        return hash_parts(how, source_digest(source))
    # The built-in text comes from the interpreter's own library, by the rules of our module.
    name = builtin.__file__
    entries = {name: entry_of(name)} if source.kind == "builtin" else source_entries(source)
    stamps = [(path if is_url(path) else os.path.abspath(path), *entry) for path, entry in entries.items()]
    memory = (
        inputs.cache_folder(cfg)
        / "digests"
        / hash_parts(how, source.kind, source.field, sys.version, sys.prefix, stamps)
    )
    with contextlib.suppress(FileNotFoundError):
        if re.fullmatch(b"[0-9a-f]{64}", known := memory.read_bytes()):
            return known.decode()
    digest = hash_parts(how, source_digest(source))
    memory.parent.mkdir(parents=True, exist_ok=True)
    atomic.write_text(memory, digest)
    return digest


def stored_url(cfg: ConfigDict, *names: str) -> str | None:
    """Returns the URL of a folder of `data.cache_dir`; None where that is on a disk."""
    return "/".join((to_url(cfg.data.cache_dir), *names)) if is_url(cfg.data.cache_dir) else None


def hash_parts(*parts: object) -> str:
    """Returns the SHA-256 of values that JSON can hold."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
