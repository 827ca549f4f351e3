"""Tokenizer folders and files: ours, and Hugging Face's in both directions. Data is read, code never."""

from __future__ import annotations

import contextlib
import json
import os
import re
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from bertjax.data.sentencepiece_model import NewToken, append_tokens, order_tokens, read_spec
from bertjax.data.special_tokens import (
    DECLARED,
    FAMILIES,
    OF_MODELS,
    TokenizerFamily,
    declared_family,
    family_of,
    guess_family,
    unknown_family,
)
from bertjax.data.tokenizer import FAMILY_KEY, SETTINGS_FILE, Tokenizer
from bertjax.data.tokenizer_backends import KINDS, Backend, SentencePieceBackend, wordpiece_backend
from bertjax.data.tokenizer_probe import read_backend
from bertjax.errors import UserError, shortened
from bertjax.io import hub
from bertjax.io.atomic import atomic_file, atomic_folder
from bertjax.io.staging import local_copy

_SENTENCEPIECE = ("spiece.model", "spm.model", "sentencepiece.bpe.model", "tokenizer.model")
_READABLE = (SETTINGS_FILE, "tokenizer.json", *_SENTENCEPIECE, "vocab.txt")
_UNLIKE = (
    "transformers cannot encode text as this sentencepiece model does ({reason}); train another model, or give the "
    "tokenizer.json of transformers"
)


class _Read(NamedTuple):
    """Arguments of `Tokenizer`."""

    backend: Backend
    family: str
    lowercase: bool
    spec: TokenizerFamily | None = None


class _Hints(NamedTuple):
    """Facts that a call or the other files of a folder declare: None = undeclared.

    roles: tokens by role · likely: family of the model, if the tokens fit.
    """

    family: str | None = None
    lowercase: bool | None = None
    roles: Mapping[str, str] = {}
    likely: str | None = None


def load_tokenizer(path: str | os.PathLike[str], family: str | None = None, lowercase: bool | None = None) -> Tokenizer:
    """Reads a tokenizer; only data is read, no code is run.

    Args:
        path: a folder in the format of bertjax or of Hugging Face, `tokenizer.json`, `vocab.txt`, `spiece.model`,
            `spm.model`, `hub:NAME[@REVISION]`, or the URL of a folder.
        family: a key of `TOKENIZER_FAMILIES`; None guesses it from the special tokens.
        lowercase: whether text is lower-cased, for files that do not declare it (`vocab.txt`, sentencepiece).

    Raises:
        UserError: the tokenizer cannot be read.
    """
    if family is not None:
        family_of(family)
    local = hub.fetch(path) if hub.is_hub_name(path) else local_copy(path)
    return Tokenizer(*_read_backend(local, _Hints(family, lowercase)))


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


def _read_backend(path: Path, hints: _Hints) -> _Read:
    """Reads a tokenizer file or folder."""
    if path.is_dir():
        names = [name for name in _READABLE if (path / name).is_file()]
        if not names:
            raise UserError(f"{path} holds no tokenizer; one of {', '.join(_READABLE[1:])} is expected in it")
        if names[0] == SETTINGS_FILE:
            return _read_ours(path, hints.family)
        hints = _hints_of_folder(path, hints)
        path = path / names[0]
    if not path.is_file():
        raise UserError(f"no such tokenizer: {path}; give a folder, a tokenizer.json, a vocab.txt or a spiece.model")
    readers: dict[str, Callable[[Path, _Hints], _Read]] = {
        ".json": _read_json,
        ".txt": _read_vocab,
        ".model": _read_sentencepiece,
    }
    if path.name == SETTINGS_FILE:
        return _read_ours(path.parent, hints.family)
    if path.suffix not in readers:
        raise UserError(f"{path}: a tokenizer file ends with .json, .txt (vocab.txt) or .model (sentencepiece)")
    return readers[path.suffix](path, hints)


def _hints_of_folder(folder: Path, hints: _Hints) -> _Hints:
    """Adds what a folder of Hugging Face declares of its tokenizer."""
    names = ("special_tokens_map.json", "tokenizer_config.json", "config.json")
    marks, declared, model = (_json_object(folder / name) if (folder / name).is_file() else {} for name in names)
    lowercase, family = hints.lowercase, hints.family
    if lowercase is None and isinstance(declared.get("do_lower_case"), bool):
        lowercase = declared["do_lower_case"]
    if family is None and declared.get(FAMILY_KEY) in FAMILIES:
        family = declared[FAMILY_KEY]
    likely = model["model_type"] if model.get("model_type") in OF_MODELS else None
    roles = {key: entry for key, entry in (marks | declared).items() if key.endswith("_token")}
    texts = {key.removesuffix("_token"): e.get("content") if isinstance(e, dict) else e for key, e in roles.items()}
    return _Hints(family, lowercase, {role: token for role, token in texts.items() if isinstance(token, str)}, likely)


def _with_family(backend: Backend, hints: _Hints, lowercase: bool, where: Path) -> _Read:
    """Determines the family of a vocabulary by its special tokens, else by what its files declare."""
    tokens, kind = backend.tokens, backend.kind
    if hints.family is not None:
        return _Read(backend, hints.family, lowercase)
    unknown = {} if backend.unk_token is None else {"unk": backend.unk_token}
    if hints.likely is not None and {*FAMILIES[hints.likely].roles.values()} <= {*tokens}:
        return _Read(backend, hints.likely, lowercase)
    family = guess_family(tokens, kind, backend.special, {**hints.roles, **unknown})
    if family is not None:
        return _Read(backend, family, lowercase)
    spec = declared_family(tokens, kind, backend.special, {**unknown, **hints.roles})
    if not spec.roles:
        raise unknown_family(where)
    return _Read(backend, DECLARED, lowercase, spec)


def _read_ours(folder: Path, family: str | None) -> _Read:
    about = _json_object(folder / SETTINGS_FILE)
    name, kind, lowercase = about.get("family"), about.get("kind"), about.get("lowercase")
    if about.get("format") != 1 or not isinstance(name, str) or not isinstance(lowercase, bool):
        raise UserError(
            f"{folder / SETTINGS_FILE} is not of this version; write the tokenizer again with `bertjax tokenizer`"
        )
    spec = _stored_family(folder, about) if name == DECLARED else family_of(name)
    hints = _Hints(None if name == DECLARED else name, lowercase)
    if kind in ("unigram", "bpe") and (folder / spec.sentencepiece_file).is_file():
        backend = _read_sentencepiece(folder / spec.sentencepiece_file, hints, spec).backend
    elif (folder / "tokenizer.json").is_file():
        backend = _read_json(folder / "tokenizer.json", hints).backend
    else:
        raise UserError(
            f"{folder}: its model file is gone (tokenizer.json or {spec.sentencepiece_file}); copy it again"
        )
    return _Read(backend, family or name, lowercase, None if family else spec)


def _stored_family(folder: Path, about: Mapping[str, Any]) -> TokenizerFamily:
    try:
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in about["special_tokens"].items()}
        return TokenizerFamily(**values)
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{folder / SETTINGS_FILE}: special_tokens is broken ({error}); copy it again") from error


def _read_json(path: Path, hints: _Hints) -> _Read:
    content = _json_object(path)
    model = content.get("model")
    if not isinstance(model, dict) or model.get("type") not in KINDS:
        raise UserError(f"{path}: no {', '.join(KINDS)} model in it; is it the tokenizer.json of transformers?")
    backend = read_backend(json.dumps(content, ensure_ascii=False), path)
    lowercase = hints.lowercase
    if lowercase is None:
        lowercase = '"lowercase": true' in (rules := json.dumps(content.get("normalizer"))) or '"Lowercase"' in rules
    return _with_family(backend, hints, lowercase, path)


def _read_vocab(path: Path, hints: _Hints) -> _Read:
    lines = _text(path).removeprefix("\ufeff").split("\n")
    while lines and not lines[-1].strip():
        lines.pop()
    tokens: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        token = line.strip()
        if not token:
            raise UserError(f"{path}:{number}: an empty line; every line of a vocabulary is one token")
        if token in tokens:
            raise UserError(f"{path}:{number}: token {shortened(token)} again, it is on line {tokens[token]} already")
        tokens[token] = number
    names = list(tokens)
    if not names:
        raise UserError(f"{path} is empty; every line of a vocabulary is one token")
    family = hints.family or hints.likely or guess_family(names, "wordpiece", declared=hints.roles)
    if family is None:
        raise unknown_family(path)
    spec, lowercase = family_of(family), hints.lowercase
    absent = sorted(set(spec.roles.values()) - tokens.keys())
    if absent:
        raise UserError(f"{path}: the family {family} needs the special tokens {', '.join(absent)}; add them")
    if lowercase is None:  # a cased vocabulary holds capital letters
        lowercase = not any(re.search(r"[A-Z]", name) for name in names if not re.fullmatch(r"[\[<].*[\]>]", name))
    return _Read(wordpiece_backend(names, spec, lowercase), family, lowercase)


def _read_sentencepiece(path: Path, hints: _Hints, stored: TokenizerFamily | None = None) -> _Read:
    """Reads a sentencepiece model; `stored` is the family that it was written with."""
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
    family = hints.family or guess_family(tokens, "unigram", declared=hints.roles)
    if family is None and path.name == FAMILIES["xlm-roberta"].sentencepiece_file:
        family = hints.likely or "xlm-roberta"
    name, spec = family or DECLARED, stored
    if spec is None and family is not None:
        spec = family_of(family)
        if spec.file_first and tokens[: len(spec.file_first)] == spec.file_first:
            model = order_tokens(model, spec.first, spec.last)
        else:  # released DeBERTa models leave out [MASK]
            model = append_tokens(model, [NewToken(token) for token in spec.last if token not in tokens])
    elif spec is None:
        bare = SentencePieceBackend(model, FAMILIES["xlm-roberta"], fold=False)
        spec = declared_family(tokens, bare.kind, bare.special, {"unk": bare.unk_token or "", **hints.roles})
    lowercase = spec.lowercase if hints.lowercase is None else hints.lowercase
    folds_itself = processor.normalize("A").endswith("a")
    backend = SentencePieceBackend(model, spec, fold=lowercase and not folds_itself)
    differing = backend.find_mismatch()
    if differing is not None:
        raise UserError(f"{path}: {_UNLIKE.format(reason=f'{differing!r} becomes other tokens')}")
    return _Read(backend, name, lowercase, spec if name == DECLARED else None)


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
