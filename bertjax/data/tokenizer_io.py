"""Tokenizer folders and files: ours, and Hugging Face's in both directions. Data is read, code never."""

from __future__ import annotations

import contextlib
import json
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertjax.data.foreign_tokenizer import (
    ReadTokenizer,
    TokenizerFacts,
    added_ids,
    read_backend,
    read_foreign,
    read_json_object,
    require_distinct_ids,
    with_facts,
)
from bertjax.data.special_tokens import FAMILIES, TokenizerFamily, family_of
from bertjax.data.tokenizer import FAMILY_KEY, SETTINGS_FILE, Tokenizer
from bertjax.data.tokenizer_backends import KINDS, HuggingFaceBackend, SentencePieceBackend
from bertjax.errors import UserError
from bertjax.io import hub
from bertjax.io.atomic import atomic_file, atomic_folder
from bertjax.io.foreign_files import INPUT_FILES, TOKENIZER_FILES, read_tokenizer_files, resolve_inside
from bertjax.io.staging import local_copy

_CONFIG = "tokenizer_config.json"
_JSON = "tokenizer.json"
# the classes of transformers that read the bare file of a family
_WORDPIECE_CLASSES = {"mpnet": "MPNetTokenizer", "distilbert": "DistilBertTokenizer"}
_SENTENCEPIECE_CLASSES = {
    "albert": "AlbertTokenizer",
    "xlnet": "XLNetTokenizer",
    "xlm-roberta": "XLMRobertaTokenizer",
    "camembert": "CamembertTokenizer",
    "deberta-v2": "DebertaV2Tokenizer",
    "deberta-v3": "DebertaV2Tokenizer",
}


def load_tokenizer(path: str | os.PathLike[str], family: str | None = None, lowercase: bool | None = None) -> Tokenizer:
    """Reads a tokenizer; only data is read, no code is run.

    Args:
        path: a folder of bertjax, or one that `transformers` reads; `tokenizer.json`, `vocab.txt`, a sentencepiece
            model, `hub:NAME[@REVISION]`, or the URL of a folder.
        family: a key of `TOKENIZER_FAMILIES`, whose class reads a bare `vocab.txt` or sentencepiece model; whose
            special tokens any other tokenizer gets.
        lowercase: whether text is lower-cased, for such a bare file.

    Raises:
        UserError: the tokenizer cannot be read.
    """
    if family is not None:
        family_of(family)
    local = hub.fetch(path) if hub.is_hub_name(path) else local_copy(path)
    if local.is_dir() or local.name == SETTINGS_FILE:
        tokenizer = _read_folder(local if local.is_dir() else local.parent)
    elif local.is_file():
        return _read_file(local, family, lowercase)
    else:
        raise UserError(f"no such tokenizer: {path}; give a folder, a tokenizer.json, a vocab.txt or a spiece.model")
    return (
        tokenizer if family in (None, tokenizer.family) else Tokenizer(tokenizer.backend, family, tokenizer.lowercase)
    )


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


def _read_folder(folder: Path) -> Tokenizer:
    if (folder / SETTINGS_FILE).is_file():
        return Tokenizer(*_read_ours(folder))
    files = read_tokenizer_files(folder)
    if not files:
        names = [name for name in TOKENIZER_FILES if name not in INPUT_FILES]
        raise UserError(f"{folder} holds no tokenizer; one of {', '.join(names)} is expected in it")
    has_model = (folder / "config.json").is_file()
    if not has_model and files.keys() == {_JSON}:
        return Tokenizer(*with_facts(_read_json(folder / _JSON, files[_JSON]), TokenizerFacts()))
    written = _read_export(files, folder)
    if written is not None:
        return written
    model = _json_object(resolve_inside(folder, "config.json")) if has_model else {}
    return Tokenizer(*read_foreign(files, model, folder))


def _read_file(path: Path, family: str | None, lowercase: bool | None) -> Tokenizer:
    """Reads a single file; what a folder would declare of it is that of a family."""
    if path.suffix == ".json":
        read = with_facts(_read_json(path, _content(path)), TokenizerFacts())
        return Tokenizer(*read) if family is None else Tokenizer(read.backend, family, read.lowercase)
    if path.suffix == ".txt":
        kind, name = _WORDPIECE_CLASSES.get(family or "bert", "BertTokenizer"), "vocab.txt"
    elif path.suffix == ".model":
        if family not in _SENTENCEPIECE_CLASSES:
            raise UserError(
                f"{path}: a sentencepiece model does not say which class of transformers reads it; give its folder, "
                f"with tokenizer_config.json, or set data.tokenizer_family ({', '.join(_SENTENCEPIECE_CLASSES)})"
            )
        kind, name = _SENTENCEPIECE_CLASSES[family], FAMILIES[family].sentencepiece_file
    else:
        raise UserError(f"{path}: a tokenizer file ends with .json, .txt (vocab.txt) or .model (sentencepiece)")
    config: dict[str, Any] = {"tokenizer_class": kind}
    if lowercase is not None:
        config |= {"do_lower_case": lowercase}
    read = read_foreign({name: _content(path), _CONFIG: json.dumps(config).encode()}, {}, path)
    return Tokenizer(*read) if family is None else Tokenizer(read.backend, family, read.lowercase)


def _read_ours(folder: Path) -> ReadTokenizer:
    about = _json_object(folder / SETTINGS_FILE)
    name, kind, lowercase = about.get("family"), about.get("kind"), about.get("lowercase")
    if about.get("format") != 1 or not isinstance(name, str) or not isinstance(lowercase, bool):
        raise UserError(
            f"{folder / SETTINGS_FILE} is not of this version; write the tokenizer again with `bertjax tokenizer`"
        )
    spec = _stored_family(folder, about) if name not in FAMILIES or "special_tokens" in about else family_of(name)
    if kind in ("unigram", "bpe") and (folder / spec.sentencepiece_file).is_file():
        return ReadTokenizer(
            _read_sentencepiece(folder / spec.sentencepiece_file, spec, lowercase), name, lowercase, spec
        )
    if (folder / _JSON).is_file():
        return ReadTokenizer(_read_json(folder / _JSON, _content(folder / _JSON)), name, lowercase, spec)
    raise UserError(f"{folder}: its model file is gone ({_JSON} or {spec.sentencepiece_file}); copy it again")


def _stored_family(folder: Path, about: Mapping[str, Any]) -> TokenizerFamily:
    try:
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in about["special_tokens"].items()}
        return TokenizerFamily(**values)
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{folder / SETTINGS_FILE}: special_tokens is broken ({error}); copy it again") from error


def _read_export(files: Mapping[str, bytes], folder: Path) -> Tokenizer | None:
    """Returns the tokenizer of which the files are an export, as they were written; None where they say otherwise."""
    declared = read_json_object(files[_CONFIG], folder / _CONFIG) if _CONFIG in files else {}
    name, length, lowercase = (declared.get(key) for key in (FAMILY_KEY, "model_max_length", "do_lower_case"))
    if not isinstance(name, str) or not isinstance(length, int) or not isinstance(lowercase, bool):
        return None
    if _JSON not in files or "added_tokens.json" in files:
        return None
    roles = {key.removesuffix("_token"): token for key, token in declared.items() if key.endswith("_token")}
    sides = (str(declared.get(f"{what}_side", "right")) for what in ("padding", "truncation"))
    backend = _read_json(folder / _JSON, files[_JSON])
    token_types = "token_type_ids" in declared.get("model_input_names", ())
    read = with_facts(backend, TokenizerFacts(roles, token_types, *sides))
    specs = [FAMILIES[name]] if name in FAMILIES and {*FAMILIES[name].roles.values()} <= {*backend.tokens} else []
    candidates = [Tokenizer(backend, name, lowercase, spec) for spec in (*specs, read.spec, *specs)]
    for tokenizer in candidates[len(specs) + 1 :]:  # of a model without token types
        tokenizer.token_types = token_types
    for tokenizer in candidates:
        if tokenizer.huggingface_facts(length).items() <= files.items():
            return tokenizer
    return None


def _read_json(path: Path, content: bytes) -> HuggingFaceBackend:
    values = read_json_object(content, path)
    model = values.get("model")
    if not isinstance(model, dict) or model.get("type") not in KINDS:
        raise UserError(f"{path}: no {', '.join(KINDS)} model in it; is it the tokenizer.json of transformers?")
    backend = read_backend(json.dumps(values, ensure_ascii=False), path)
    added = ((path.name, *pair) for pair in added_ids(values))
    require_distinct_ids(added, backend.marked.get_vocab(with_added_tokens=True), path.parent)
    return backend


def _read_sentencepiece(path: Path, spec: TokenizerFamily, lowercase: bool) -> SentencePieceBackend:
    """Reads the sentencepiece model of a folder of ours."""
    model = _content(path)
    try:
        backend = SentencePieceBackend(model, spec, fold=False)
    except (RuntimeError, ValueError, LookupError, struct.error) as error:
        raise UserError(f"{path}: not a sentencepiece model, or a broken one; copy it again") from error
    folds_itself = backend.library.normalize("A").endswith("a")
    return SentencePieceBackend(model, spec, fold=lowercase and not folds_itself)


def _json_object(path: Path) -> dict[str, Any]:
    return read_json_object(_content(path), path)


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
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
