"""Tokenizer folders and files: ours, and Hugging Face's in both directions. Data is read, code never."""

from __future__ import annotations

import contextlib
import json
import os
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bertjax.data.sentencepiece_model import append_control_tokens, read_spec
from bertjax.data.special_tokens import FAMILIES, family_of, guess_family
from bertjax.data.tokenizer import FAMILY_KEY, SETTINGS_FILE, Tokenizer
from bertjax.data.tokenizer_backends import (
    Backend,
    SentencePieceBackend,
    wordpiece_backend,
)
from bertjax.data.tokenizer_probe import read_backend
from bertjax.errors import UserError
from bertjax.io import hub
from bertjax.io.atomic import atomic_file, atomic_folder

_READABLE = (SETTINGS_FILE, "tokenizer.json", "spiece.model", "spm.model", "sentencepiece.bpe.model", "vocab.txt")
_UNLIKE = (
    "transformers cannot encode text as this sentencepiece model does ({reason}); train another model, or give the "
    "tokenizer.json of transformers"
)
_TokenizerFiles = tuple[Backend, str, bool]


def load_tokenizer(path: str | os.PathLike[str], family: str | None = None, lowercase: bool | None = None) -> Tokenizer:
    """Reads a tokenizer; only data is read, no code is run.

    Args:
        path: a folder in the format of bertjax or of Hugging Face, `tokenizer.json`, `vocab.txt`, `spiece.model`,
            `spm.model`, or `hub:NAME[@REVISION]`.
        family: a key of `TOKENIZER_FAMILIES`; None guesses it from the special tokens.
        lowercase: whether text is lower-cased, for files that do not declare it (`vocab.txt`, sentencepiece).

    Raises:
        UserError: the tokenizer cannot be read.
    """
    local = hub.fetch(path) if hub.is_hub_name(path) else Path(path).expanduser()
    return Tokenizer(*_read_backend(local, family, lowercase))


def save_tokenizer(tokenizer: Tokenizer, folder: str | os.PathLike[str]) -> None:
    """Writes the canonical files, which `load_tokenizer` reads; all are complete before any is replaced."""
    _write_files(Path(folder), tokenizer.files())


def save_huggingface_tokenizer(tokenizer: Tokenizer, folder: str | os.PathLike[str], max_length: int) -> None:
    """Writes the files that `transformers.AutoTokenizer` loads; other files of the folder stay.

    Args:
        tokenizer: the tokenizer to write.
        folder: made if it does not exist.
        max_length: the `model_max_length` of Hugging Face, in tokens.
    """
    _write_files(Path(folder), tokenizer.huggingface_files(max_length))


def _read_backend(path: Path, family: str | None, lowercase: bool | None) -> _TokenizerFiles:
    """(engine, family, lowercase) of a tokenizer file or folder."""
    if family is not None:
        family_of(family)
    if path.is_dir():
        names = [name for name in _READABLE if (path / name).is_file()]
        if not names:
            raise UserError(f"{path} holds no tokenizer; one of {', '.join(_READABLE[1:])} is expected in it")
        if names[0] == SETTINGS_FILE:
            return _read_ours(path, family)
        declared = _json_object(config) if (config := path / "tokenizer_config.json").is_file() else {}
        if lowercase is None and isinstance(declared.get("do_lower_case"), bool):
            lowercase = declared["do_lower_case"]
        if family is None and declared.get(FAMILY_KEY) in FAMILIES:
            family = declared[FAMILY_KEY]
        path = path / names[0]
    if not path.is_file():
        raise UserError(f"no such tokenizer: {path}; give a folder, a tokenizer.json, a vocab.txt or a spiece.model")
    readers: dict[str, Callable[[Path, str | None, bool | None], _TokenizerFiles]] = {
        ".json": _read_json,
        ".txt": _read_vocab,
        ".model": _read_sentencepiece,
    }
    if path.name == SETTINGS_FILE:
        return _read_ours(path.parent, family)
    if path.suffix not in readers:
        raise UserError(f"{path}: a tokenizer file ends with .json, .txt (vocab.txt) or .model (sentencepiece)")
    return readers[path.suffix](path, family, lowercase)


def _read_ours(folder: Path, family: str | None) -> _TokenizerFiles:
    about = _json_object(folder / SETTINGS_FILE)
    name, kind, lowercase = about.get("family"), about.get("kind"), about.get("lowercase")
    if about.get("format") != 1 or not isinstance(name, str) or not isinstance(lowercase, bool):
        raise UserError(
            f"{folder / SETTINGS_FILE} is not of this version; write the tokenizer again with `bertjax tokenizer`"
        )
    spec = family_of(name)
    if kind in ("unigram", "bpe") and (folder / spec.sentencepiece_file).is_file():
        backend, _, _ = _read_sentencepiece(folder / spec.sentencepiece_file, name, lowercase)
        return backend, family or name, lowercase
    if not (folder / "tokenizer.json").is_file():
        raise UserError(
            f"{folder}: its model file is gone (tokenizer.json or {spec.sentencepiece_file}); copy it again"
        )
    backend, _, _ = _read_json(folder / "tokenizer.json", name, lowercase)
    return backend, family or name, lowercase


def _read_json(path: Path, family: str | None, lowercase: bool | None) -> _TokenizerFiles:
    content = _json_object(path)
    model = content.get("model")
    if not isinstance(model, dict) or model.get("type") not in ("WordPiece", "BPE", "Unigram"):
        raise UserError(f"{path}: no WordPiece, BPE or Unigram model in it; is it the tokenizer.json of transformers?")
    backend = read_backend(json.dumps(content, ensure_ascii=False), path)
    family = family or guess_family(backend.tokens, backend.kind, str(path))
    if lowercase is None:
        lowercase = '"lowercase": true' in (rules := json.dumps(content.get("normalizer"))) or '"Lowercase"' in rules
    return backend, family, lowercase


def _read_vocab(path: Path, family: str | None, lowercase: bool | None) -> _TokenizerFiles:
    lines = _text(path).removeprefix("\ufeff").split("\n")
    while lines and not lines[-1].strip():
        lines.pop()
    tokens: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        token = line.strip()
        if not token:
            raise UserError(f"{path}:{number}: an empty line; every line of a vocabulary is one token")
        if token in tokens:
            raise UserError(f"{path}:{number}: token {token!r} again, it is on line {tokens[token]} already")
        tokens[token] = number
    names = list(tokens)
    if not names:
        raise UserError(f"{path} is empty; every line of a vocabulary is one token")
    family = family or guess_family(names, "wordpiece", str(path))
    spec = family_of(family)
    absent = sorted(set(spec.roles.values()) - tokens.keys())
    if absent:
        raise UserError(f"{path}: the family {family} needs the special tokens {', '.join(absent)}; add them")
    if lowercase is None:  # a cased vocabulary holds capital letters
        lowercase = not any(re.search(r"[A-Z]", name) for name in names if not re.fullmatch(r"[\[<].*[\]>]", name))
    return wordpiece_backend(names, spec, lowercase), family, lowercase


def _read_sentencepiece(path: Path, family: str | None, lowercase: bool | None) -> _TokenizerFiles:
    import sentencepiece

    model = path.read_bytes()
    broken = f"{path}: not a sentencepiece model, or a broken one; copy it again"
    if not model:  # the library takes an empty one for none at all
        raise UserError(broken)
    try:
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        model_spec = read_spec(model)
    except (RuntimeError, ValueError, LookupError, struct.error) as error:
        raise UserError(broken) from error
    if model_spec.reason_against:
        raise UserError(f"{path}: {_UNLIKE.format(reason=model_spec.reason_against)}")
    tokens = model_spec.tokens
    family = family or guess_family(tokens, "unigram", str(path))
    spec = family_of(family)
    absent = [token for token in spec.last if token not in tokens]  # released DeBERTa models leave out [MASK]
    lowercase = spec.lowercase if lowercase is None else lowercase
    folds_itself = processor.normalize("A").endswith("a")
    backend = SentencePieceBackend(append_control_tokens(model, absent), spec, fold=lowercase and not folds_itself)
    differing = backend.find_mismatch()
    if differing is not None:
        raise UserError(f"{path}: {_UNLIKE.format(reason=f'{differing!r} becomes other tokens')}")
    return backend, family, lowercase


def _json_object(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(_text(path))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: broken JSON ({error}); copy the file again") from error
    if not isinstance(content, dict):
        raise UserError(f"{path}: a JSON object is expected; copy the file again")
    return content


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: invalid UTF-8 at byte {error.start}; copy or convert the file") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error


def _write_files(folder: Path, files: dict[str, bytes]) -> None:
    """Write files into a folder, which is made at need; a new folder appears whole, each file in an old one does."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; name a folder for the tokenizer")
    try:
        if folder.is_dir():
            with contextlib.ExitStack() as stack:  # no file is replaced before all are written
                for name, content in files.items():
                    stack.enter_context(atomic_file(folder / name)).write(content)
        else:
            with atomic_folder(folder) as temporary:
                for name, content in files.items():
                    (temporary / name).write_bytes(content)
    except OSError as error:
        raise UserError(f"{folder}: cannot be written: {error.strerror or error}") from error
