"""Reads JSON and safetensors of a folder from an unknown source.

Nothing is executed or unpickled, and nothing outside the folder is opened. Every key of JSON is used, known to change
nothing, refused by name, or named in a warning (`JsonKeys`).
"""

from __future__ import annotations

import json
import logging
import os
import stat
from collections.abc import Collection, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from bertjax.errors import UserError, comma_list, one_line
from bertjax.hf.keymap import Tensors
from bertjax.io.foreign_files import resolve_inside

log = logging.getLogger(__name__)


class JsonKeys(dict[str, Any]):
    """A JSON object that knows which of its keys nothing has read yet."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.unread = set(values)

    def __getitem__(self, key: str) -> Any:
        self.unread.discard(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        """Returns a value and counts the key as read."""
        self.unread.discard(key)
        return super().get(key, default)

    def __contains__(self, key: object) -> bool:
        self.unread.discard(str(key))
        return super().__contains__(key)

    def warn_of_unread(self, where: str, inert: Collection[str] = ()) -> None:
        """Names keys in a warning that were not read and are not known to change nothing, as `inert` ones are."""
        if unread := self.unread - {*inert}:
            log.warning("%s: keys that bertjax does not know are ignored: %s", where, comma_list(sorted(unread), 8))

    def refuse_unread(self, where: str, inert: Collection[str] = ()) -> None:
        """Raises `UserError` where `warn_of_unread` warns: in files in which every key changes what is computed."""
        if unread := sorted(self.unread - {*inert}):
            raise UserError(f"{where}: {comma_list(unread, 8)}: not known to bertjax; remove what has no effect")


def refuse(values: Mapping[str, Any], where: str, key: str, allowed: Collection[Any], reason: str) -> None:
    """Checks that a key is absent or has a supported value.

    Args:
        values: the JSON object.
        where: the file to name in errors.
        key: the key.
        allowed: supported values.
        reason: why others are not.

    Raises:
        UserError: it has another value.
    """
    if key in values and values[key] not in allowed:
        raise UserError(f"{where}: {key} = {values[key]!r} is not supported: {reason}")


CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
GRAPH = "model.onnx"
ADAPTER = "adapter_config.json"
PICKLE_FILES = (
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "model.pt",
    "model.pth",
    "tf_model.h5",
    "flax_model.msgpack",
)
MODULES_FILE = "modules.json"
SETTINGS_FILE = "sentence_bert_config.json"
LIBRARY_FILE = "config_sentence_transformers.json"
_OLD_SETTINGS = ("roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
SETTINGS_FILES = (SETTINGS_FILE, *(f"sentence_{name}_config.json" for name in _OLD_SETTINGS))
"""Names of one file; the first that exists counts."""
SENTENCE_FILES = (MODULES_FILE, *SETTINGS_FILES, LIBRARY_FILE)
_MODULE_ENDINGS = (".json", ".safetensors", ".txt", ".md")
_FLOATS = ("F32", "F16", "BF16", "F64")
# Ending of a class name -> the Auto class that loads it; the first that fits.
_AUTO = {
    "ForPreTraining": "AutoModelForPreTraining",
    "ForMaskedLM": "AutoModelForMaskedLM",
    "LMHeadModel": "AutoModelForCausalLM",
    "ForCausalLM": "AutoModelForCausalLM",
    "NeoBERTLMHead": "AutoModelForMaskedLM",
    "GenerationDecoder": "AutoModelForCausalLM",
    "ForNextSentencePrediction": "AutoModelForNextSentencePrediction",
    "ForSequenceClassification": "AutoModelForSequenceClassification",
    "ForTokenClassification": "AutoModelForTokenClassification",
    "ForQuestionAnswering": "AutoModelForQuestionAnswering",
    "ForQuestionAnsweringSimple": "AutoModelForQuestionAnswering",
    "ForMultipleChoice": "AutoModelForMultipleChoice",
    "5EncoderModel": "AutoModelForTextEncoding",
    "T5GemmaEncoderModel": "AutoModelForTextEncoding",
}


def auto_class(architecture: str) -> str:
    """Returns the Auto class of `transformers` that loads a class with all of its weights."""
    return next((auto for ending, auto in _AUTO.items() if architecture.endswith(ending)), "AutoModel")


def read_json(folder: Path, name: str) -> dict[str, Any]:
    """Returns the JSON object of a file; raises `UserError` where it cannot be read."""
    path = resolve_inside(folder, name)
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is not readable JSON: {one_line(error)}") from None
    if not isinstance(values, dict):
        raise UserError(f"{path} must hold a JSON object")
    return values


def read_tensors(folder: Path, architecture: str = "") -> tuple[Tensors, str]:
    """Reads the weights of a folder, from one file or from shards.

    Args:
        folder: the folder of the model.
        architecture: its class, for the message about converting pickled weights.

    Returns:
        (tensors by name, the file to name in errors).

    Raises:
        UserError: safetensors are missing, or a file is unreadable, inconsistent or outside the folder.
    """
    if (folder / ADAPTER).exists():
        log.warning("%s is not read: the weights are those without the adapter", folder / ADAPTER)
    if (folder / WEIGHTS).exists():
        return read_safetensors(folder, WEIGHTS), f"{folder / WEIGHTS}"
    if (folder / INDEX).exists():
        return _read_shards(folder), f"{folder / INDEX}"
    require_safetensors(os.listdir(folder), str(folder), architecture)
    raise UserError(f"{folder / WEIGHTS} and {folder / INDEX} are links to nothing")


def require_safetensors(files: Collection[str], where: str, architecture: str = "") -> None:
    """Checks that weights are among the files of a model.

    Args:
        files: names of its files.
        where: its folder or name, for messages.
        architecture: its class, for the message about converting pickled weights.

    Raises:
        UserError: there are only pickled weights, or none.
    """
    if WEIGHTS in files or INDEX in files:
        return
    pickled = [name for name in PICKLE_FILES if name in files]
    if not pickled:
        raise UserError(f"{where} holds neither {WEIGHTS} nor {INDEX}")
    raise UserError(
        f"{where} holds {pickled[0]}, which is not read (it can run code); convert it where torch is installed: "
        f"transformers.{auto_class(architecture)}.from_pretrained(DIR).save_pretrained(OUT)"
    )


def read_module_files(folder: Path) -> dict[str, bytes]:
    """Returns the bytes of the files by which sentence-transformers makes vectors, by path; only names are parsed.

    Raises:
        UserError: modules.json is malformed, or names something outside the folder.
    """
    if not (folder / MODULES_FILE).is_file():
        return {}
    paths = [module_path for _, module_path in read_modules(folder) if module_path]
    names = [name for name in SENTENCE_FILES if (folder / name).is_file()]
    for path in paths:
        if PurePosixPath(path).name != path or path in ("..", "."):
            raise UserError(f"{folder / MODULES_FILE}: {path!r} is not the name of a folder")
        if os.path.isdir(folder / path):
            names += sorted(f"{path}/{name}" for name in os.listdir(folder / path) if (folder / path / name).is_file())
    pickled = [name for name in names if not name.endswith(_MODULE_ENDINGS)]
    if pickled:
        log.warning("%s: %s is not read; a folder that is saved again lacks it", folder, comma_list(pickled, 4))
    return {name: resolve_inside(folder, name).read_bytes() for name in names if name not in pickled}


def read_modules(folder: Path) -> list[tuple[str, str]]:
    """Returns (class name, subfolder) of every module of a sentence-transformers folder, in their order.

    Raises:
        UserError: modules.json is missing or malformed, a module has a key or a class that the library does not have,
            or the name of another.
    """
    path = folder / MODULES_FILE
    try:
        modules = [JsonKeys(module) for module in json.loads(path.read_text(encoding="utf-8"))]
        names = [module["name"] for module in modules]
        if twice := [name for name in names if names.count(name) > 1]:
            raise UserError(f"{path}: name: two modules are {twice[0]!r}")
        for module in modules:
            if not module["type"].startswith("sentence_transformers."):
                raise UserError(f"{path}: type: {module['type']!r} is code of its own, which is never run")
        result = [(module["type"].rpartition(".")[2], str(module["path"])) for module in modules]
        for module in modules:
            module.refuse_unread(str(path), ("idx", "kwargs"))  # names of arguments of `encode`
        return result
    except FileNotFoundError:
        raise UserError(f"{folder} was not written by sentence-transformers: it has no {MODULES_FILE}") from None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise UserError(f"{path} is not a list of modules with name, path and type") from None


def read_shard_names(folder: Path) -> list[str]:
    """Returns the names of the files that the index of a folder lists; raises `UserError` for a broken index."""
    return sorted(set(_read_index(folder).values()))


def read_tensor_names(folder: Path) -> list[str]:
    """Returns the names of the tensors of a folder, without reading them; none where they cannot be read."""
    try:
        if (folder / WEIGHTS).exists():
            with safe_open(resolve_inside(folder, WEIGHTS), framework="numpy") as file:
                return list(file.keys())
        return list(_read_index(folder))
    except (SafetensorError, OSError, ValueError, TypeError, UserError):
        return []


def _read_index(folder: Path) -> dict[str, str]:
    where = folder / INDEX
    table = read_json(folder, INDEX).get("weight_map")
    if not isinstance(table, dict) or not all(isinstance(file, str) for file in table.values()) or not table:
        raise UserError(f"{where}: weight_map must map tensor names to file names")
    if odd := [file for file in table.values() if not file.endswith(".safetensors")]:
        raise UserError(f"{where}: {min(odd)!r} is not a safetensors file")
    return table


def _read_shards(folder: Path) -> Tensors:
    where, table = folder / INDEX, _read_index(folder)
    tensors: Tensors = {}
    for file in sorted(set(table.values())):
        shard = read_safetensors(folder, file)
        twice = shard.keys() & tensors.keys()
        if twice:
            raise UserError(f"{where}: {min(twice)} is in two files")
        astray = sorted(name for name in shard if table.get(name) != file)
        if astray:
            raise UserError(f"{where}: {astray[0]} lies in {file}; the index puts it in {table.get(astray[0], 'none')}")
        tensors |= shard
    missing = table.keys() - tensors.keys()
    if missing:
        raise UserError(f"{where}: no file holds {', '.join(sorted(missing)[:4])}")
    return tensors


def read_safetensors(folder: Path, name: str) -> Tensors:
    """Returns all tensors of a file, floats as float32; others are left to `KeyMap.canonicalize` to ignore by name.

    Raises:
        UserError: the file is damaged, or holds numbers of a type that is not supported.
    """
    path = resolve_inside(folder, name)
    try:
        with safe_open(path, framework="numpy") as file:
            kinds = {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118 (not a dict)
            odd = [name for name, kind in kinds.items() if kind not in _FLOATS and not kind.startswith(("I", "U", "B"))]
            if odd:
                raise UserError(f"{path}: {odd[0]} has type {kinds[odd[0]]}; supported are {', '.join(_FLOATS)}")
            return {name: _widened(file.get_tensor(name), kinds[name]) for name in kinds}
    except (SafetensorError, OSError, ValueError, TypeError) as error:
        raise UserError(f"{path} is not a readable safetensors file: {one_line(error)}") from None


def write_safetensors(path: Path, tensors: Tensors, metadata: dict[str, str]) -> None:
    """Writes a new file with the permissions of the umask; the library's own are those of a private file.

    Args:
        path: the file.
        tensors: tensors by name.
        metadata: texts of its header.
    """
    with path.open("xb") as file:
        mode = os.fstat(file.fileno()).st_mode
    save_file(tensors, path, metadata=metadata)
    path.chmod(stat.S_IMODE(mode))


def _widened(array: np.ndarray, kind: str) -> np.ndarray:
    return array.astype(np.float32, copy=False) if kind in _FLOATS else array
