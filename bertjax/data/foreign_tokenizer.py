"""Tokenizers that bertjax did not write, as `transformers` reads them; kept as the `tokenizer.json` of its class.

`transformers` decides which class a folder has and how its text becomes ids. It sees copies of the tokenizer's files
alone, in which nothing names code, another file or a repository. A class that does more than its `tokenizer.json` says
is refused.

What it made of some files is kept in the user's cache: to import `transformers` takes seconds.

A tokenizer is tried on a few texts before it is trusted with a corpus. Its rules run in Rust: those that make no sense
end in a panic, which is no `Exception`. Regular expressions may take time that grows exponentially with the text, and
the library holds the lock of the interpreter meanwhile: they are tried in another process first.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib.metadata
import json
import logging
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from bertjax.data import letter_tokenizers, python_tokenizers
from bertjax.data.python_tokenizers import TRANSLATIONS
from bertjax.data.special_tokens import TokenizerFamily, declared_family, find_family
from bertjax.data.tokenizer_backends import HuggingFaceBackend, tokens_by_id
from bertjax.errors import UserError, comma_list, is_panic, one_line, shortened
from bertjax.io.atomic import write_json
from bertjax.io.stderr import silence_stderr
from bertjax.storage import user_cache

_SECONDS = 20.0
_TEXTS = (
    "The quick brown fox jumps over 13 lazy dogs.",
    "Déjà vu: 東京 and 한국어 🙂\tnow\n#1",
    *(f"{unit * 40}!" for unit in ("a", "x", "1", " ", "ab", "a ", "=", "é", "東")),
)
_PACKAGES = str(Path(__file__).resolve().parents[2])
_COMMAND = f"import sys; sys.path.insert(0, {_PACKAGES!r}); from bertjax.data.foreign_tokenizer import serve; serve()"
_passed = set[bytes]()


def read_backend(text: str, path: object) -> HuggingFaceBackend:
    """Returns the tokenizer of the text of a `tokenizer.json`; raises `UserError` if it fails or takes too long."""
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).digest()
    if '"Regex"' in text and digest not in _passed:
        _try_in_worker(text, path)
        _passed.add(digest)
    with silence_stderr():  # Rust prints its panics
        try:
            return _build(text)
        except BaseException as error:
            if not isinstance(error, Exception) and not is_panic(error):
                raise
            raise UserError(f"{path}: broken tokenizer ({one_line(error)}); copy it again") from error


def _build(text: str) -> HuggingFaceBackend:
    backend = HuggingFaceBackend(text)
    for sample in _TEXTS:
        backend.encode([sample])
        backend.marked.encode(sample)
        backend.marked.encode(sample, sample)
    return backend


def _try_in_worker(text: str, path: object) -> None:
    """Raises `UserError` if a fresh Python does not finish; what it fails with, this process finds out by itself."""
    content = text.encode(errors="surrogatepass")
    try:
        done = subprocess.run([sys.executable, "-c", _COMMAND], input=content, capture_output=True, timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        raise UserError(
            f"{path}: its rules need more than {_SECONDS:.0f} s for a line of text; copy it again"
        ) from None
    if done.returncode < 0:
        raise UserError(f"{path}: its rules end the process (signal {-done.returncode}); copy it again")


def serve() -> None:
    """Tries the tokenizer on the standard input; whether that is possible matters, not what comes out."""
    try:
        _build(sys.stdin.buffer.read().decode(errors="surrogatepass"))
    except Exception as error:
        sys.exit(one_line(error))


log = logging.getLogger(__name__)

CONFIG = "tokenizer_config.json"
_GENERIC = "TokenizersBackend"  # the class that takes tokenizer.json as it stands
_CLASS = re.compile(r"\w+(Tokenizer|TokenizerFast|Backend)", re.ASCII)
_UNUSED = ("auto_map", "name_or_path", "tokenizer_object", "chat_template", "response_template")
_OF_MODEL = ("model_type", "tokenizer_class", "model_name", "transformers_version")  # what AutoTokenizer asks for
_MAX_CACHED = 50  # tokenizers in the cache
_SAMPLES = (
    "The quick brown fox jumps over 13 lazy dogs.",
    "Déjà vu: naïve café, 東京 and 한국어 Ωmega!\n#1  ",
    " don't    stop-me\tnow (it's #1)",
    "MKTAYIAKQR.-X* ACGTACGTACGTNNAACGT",
)


class TokenizerFacts(NamedTuple):
    """Facts of a tokenizer besides its ids, as declared.

    roles: tokens by role, None where only their names tell · token_types: whether models read them, None if unknown ·
    padding_side, truncation_side: left or right.
    """

    roles: Mapping[str, str] | None = None
    token_types: bool | None = None
    padding_side: str = "right"
    truncation_side: str = "right"


class ReadTokenizer(NamedTuple):
    """Arguments of `Tokenizer`."""

    backend: Any
    family: str
    lowercase: bool
    spec: TokenizerFamily | None = None


def read_foreign(files: Mapping[str, bytes], model: Mapping[str, Any], where: Path) -> ReadTokenizer:
    """Returns the tokenizer that `transformers.AutoTokenizer` makes of the files of a folder, or made of them before.

    Args:
        files: contents by name, which have passed the audit of `io.foreign_files`.
        model: the config.json of the folder, {} without one.
        where: the folder, for messages.

    Raises:
        UserError: `transformers` cannot read the files, or its class is not one that `tokenizer.json` holds.
    """
    config, model_facts = _checked_config(files, where), _model_facts(model)
    cached = _cache_file(files, config, model_facts)
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, UserError):  # missing or damaged: made again
        values = json.loads(cached.read_text(encoding="utf-8"))
        return with_facts(read_backend(values["tokenizer"], where), TokenizerFacts(**values["facts"]))
    text, facts = _read_by_transformers(files, config, model_facts, where)
    with contextlib.suppress(OSError):  # a cache that cannot be written is none
        cached.parent.mkdir(parents=True, exist_ok=True)
        write_json(cached, {"tokenizer": text, "facts": facts._asdict()})
        for old in sorted(cached.parent.glob("*.json"), key=lambda path: path.stat().st_mtime)[:-_MAX_CACHED]:
            old.unlink()
    return with_facts(read_backend(text, where), facts)


def _cache_file(files: Mapping[str, bytes], config: dict[str, Any], model: dict[str, Any]) -> Path:
    """Returns the file of the result in the user's cache, by all that it depends on."""
    digest = hashlib.sha256(json.dumps([importlib.metadata.version("transformers"), config, model]).encode())
    code = [Path(__file__), Path(letter_tokenizers.__file__), Path(python_tokenizers.__file__)]
    for name, content in (*((path.name, path.read_bytes()) for path in code), *sorted(files.items())):
        digest.update(f"{name}:{len(content)}:".encode() + content)
    return user_cache() / "foreign_tokenizers" / f"{digest.hexdigest()}.json"


def _read_by_transformers(
    files: Mapping[str, bytes], config: dict[str, Any], model: dict[str, Any], where: Path
) -> tuple[str, TokenizerFacts]:
    """Returns the `tokenizer.json` of the class of `transformers`, and its facts."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, content in files.items():
            (folder / file).write_bytes(content)
        (folder / CONFIG).write_text(json.dumps(config), encoding="utf-8")
        loaded = _open(folder, model, where, files)
    kind = type(loaded).__name__
    translate = TRANSLATIONS.get(kind)
    if not loaded.is_fast and translate is None:
        raise UserError(
            f"{where / CONFIG}: tokenizer_class={kind} is Python code of transformers, whose rules no "
            "tokenizer.json holds; it is not supported"
        )
    require_distinct_ids(_declared_ids(files, where), loaded.get_vocab(), where)
    text = _library_file(loaded) if translate is None else translate(loaded)
    backend = read_backend(text, where)
    if {*backend.tokens} <= {*backend.special}:
        raise UserError(
            f"{where}: {kind} of transformers finds no vocabulary in {comma_list(files)}; copy its own files"
        )
    token_types = "token_type_ids" in loaded.model_input_names
    has_pairs = translate is None or loaded.eos_token is not None  # EsmTokenizer needs it between two texts
    _require_agreement(loaded, backend, token_types, f"{where}: {kind}", has_pairs)
    roles = {
        key.removesuffix("_token"): token
        for key, token in loaded.special_tokens_map.items()
        if key.endswith("_token") and isinstance(token, str)
    }
    return text, TokenizerFacts(roles, token_types, loaded.padding_side, loaded.truncation_side)


def _library_file(loaded: Any) -> str:
    loaded.backend_tokenizer.no_truncation()
    loaded.backend_tokenizer.no_padding()
    return str(loaded.backend_tokenizer.to_str())


def with_facts(backend: HuggingFaceBackend, facts: TokenizerFacts) -> ReadTokenizer:
    """Returns a tokenizer with the special tokens, layouts and settings of the facts, under the name of its family."""
    unknown = {} if backend.unk_token is None else {"unk": backend.unk_token}
    roles = None if facts.roles is None else {**unknown, **facts.roles}
    spec = declared_family(backend.tokens, backend.kind, backend.special, roles)
    spec = dataclasses.replace(
        spec,
        roles={**unknown, **spec.roles},
        single=_layout(backend, ("a",)),
        pair=_layout(backend, ("a", "b")),
        token_types=bool(facts.token_types),
        padding_side=facts.padding_side,
        truncation_side=facts.truncation_side,
    )
    family, spec = find_family(spec, any_types=facts.token_types is None)
    folds = backend.marked.normalizer is not None and "A" not in backend.marked.normalizer.normalize_str("A")
    return ReadTokenizer(backend, family, folds, spec)


def _layout(backend: HuggingFaceBackend, texts: tuple[str, ...]) -> str:
    """Returns what surrounds one text or two, as `TOKEN:TYPE` words."""
    encoding = backend.marked.encode(*texts)
    words = dict[str, None]()
    result = list[str]()
    for index, token, kind in zip(encoding.sequence_ids, encoding.ids, encoding.type_ids, strict=True):
        word = f"{backend.tokens[token]}:{kind}" if index is None else f"${'AB'[index]}:{kind}"
        if index is None or word not in words:
            result.append(word)
        words[word] = None
    return " ".join(result)


def _checked_config(files: Mapping[str, bytes], where: Path) -> dict[str, Any]:
    """Returns tokenizer_config.json without what names code or other files."""
    values = read_json_object(files[CONFIG], where / CONFIG) if CONFIG in files else {}
    if values.get("auto_map"):
        if "tokenizer.json" not in files and not _CLASS.fullmatch(str(values.get("tokenizer_class"))):
            raise UserError(
                f"{where / CONFIG}: auto_map names code, which is never run, and there is no tokenizer.json"
            )
        log.warning("%s: auto_map names code, which is not run; the tokenizer's other files are used", where / CONFIG)
    if values.get("split_special_tokens"):
        raise UserError(f"{where / CONFIG}: split_special_tokens=true is not supported; remove it")
    named = values.get("fast_tokenizer_files")
    if named and named != ["tokenizer.json"]:
        raise UserError(f"{where / CONFIG}: fast_tokenizer_files={named!r} is not supported; keep tokenizer.json alone")
    if "tokenizer_class" in values and not _CLASS.fullmatch(str(values["tokenizer_class"])):
        values["tokenizer_class"] = _GENERIC  # as transformers reads a name that it does not know
    return {key: value for key, value in values.items() if key not in _UNUSED and not key.endswith(("_file", "_files"))}


def _model_facts(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what AutoTokenizer asks of a config.json, of both networks where there are two."""
    facts = {key: values[key] for key in _OF_MODEL if isinstance(values.get(key), str)}
    if not _CLASS.fullmatch(facts.get("tokenizer_class", "Tokenizer")):
        facts.pop("tokenizer_class", None)
    networks = {key: _model_facts(values[key]) for key in ("encoder", "decoder") if isinstance(values.get(key), dict)}
    return facts | {key: network for key, network in networks.items() if network}


def _declared_ids(files: Mapping[str, bytes], where: Path) -> Iterator[tuple[str, str, int]]:
    """Yields every added token with the file that gives it an id."""
    for file in ("tokenizer.json", "added_tokens.json", CONFIG):
        values = read_json_object(files[file], where / file) if file in files else {}
        if file == "added_tokens.json":
            yield from ((file, token, index) for token, index in values.items())
        else:
            yield from ((file, *pair) for pair in added_ids(values))


def added_ids(values: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Yields token and id of what a tokenizer.json or tokenizer_config.json adds."""
    tokens = [*values.get("added_tokens", ())]
    tokens += [{**token, "id": int(index)} for index, token in (values.get("added_tokens_decoder") or {}).items()]
    yield from ((token["content"], token["id"]) for token in tokens)


def require_distinct_ids(declared: Iterable[tuple[str, str, int]], vocabulary: Mapping[str, int], where: Path) -> None:
    """Raises `UserError` where two tokens have one id.

    Args:
        declared: (file, token, id) of added tokens.
        vocabulary: ids by token, as they were read.
        where: the folder, for messages.
    """
    tokens = tokens_by_id(vocabulary)
    for file, token, index in declared:
        if index < len(tokens) and tokens[index] != token and tokens[index] in vocabulary:
            raise UserError(
                f"{where / file}: {shortened(token)} has id {index}, which is that of {shortened(tokens[index])}; give "
                "each added token an id of its own"
            )


def _open(folder: Path, model: dict[str, Any], where: Path, files: Iterable[str]) -> Any:
    """Returns the tokenizer of `transformers`, which neither runs code of the folder nor asks a network."""
    with silence_stderr():  # Rust prints its panics, and transformers that torch is not installed
        import transformers
        from transformers.utils import logging as their_log

        verbosity = their_log.get_verbosity()
        their_log.set_verbosity(their_log.CRITICAL)
        try:
            options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
            if "model_type" in model:
                (folder / "config.json").write_text(json.dumps(model), encoding="utf-8")
            else:
                options["config"] = transformers.PreTrainedConfig(**model)
            return transformers.AutoTokenizer.from_pretrained(folder, **options)
        except BaseException as error:
            if not isinstance(error, Exception) and not is_panic(error):
                raise
            reason = f"{type(error).__name__}: {one_line(error)}".replace(str(folder), str(where))
            raise UserError(
                f"{where}: transformers cannot read {comma_list(files)} ({reason}); copy all files of the "
                f"tokenizer, and name its tokenizer_class in {CONFIG}"
            ) from error
        finally:
            their_log.set_verbosity(verbosity)


def _require_agreement(
    loaded: Any, backend: HuggingFaceBackend, token_types: bool, what: str, has_pairs: bool = True
) -> None:
    """Refuses a class that treats text before or after its `tokenizers.Tokenizer` sees it."""
    for texts in (*((sample,) for sample in _SAMPLES), *[_SAMPLES[:2]] * has_pairs):
        try:
            theirs = loaded(*texts, verbose=False)
        except Exception as error:
            raise UserError(f"{what} reads no plain text ({one_line(error)}); it is not supported") from error
        ours = backend.marked.encode(*texts)
        same = list(theirs["input_ids"]) == ours.ids
        if not same or (token_types and list(theirs["token_type_ids"]) != ours.type_ids):
            raise UserError(
                f"{what} does more than its tokenizer.json says: {texts[0]!r} gets other ids or token types; it is not "
                "supported"
            )


def read_json_object(content: bytes, path: Path) -> dict[str, Any]:
    """Returns the JSON object of a file's bytes; raises `UserError` for anything else."""
    try:
        values = json.loads(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: invalid UTF-8 at byte {error.start}; copy or convert the file") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: broken JSON ({error}); copy the file again") from error
    if not isinstance(values, dict):
        raise UserError(f"{path}: a JSON object is expected; copy the file again")
    return values
