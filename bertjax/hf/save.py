"""Writes a folder that `transformers` loads, where it can hold the model, and verifies it by reading it back."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from tokenizers import Tokenizer

from bertjax.config.model import EncoderConfig, float32_config
from bertjax.errors import UserError, comma_list, one_line, require_one_of
from bertjax.hf import native_format
from bertjax.hf.export_plan import SIDECAR_CONFIG, SIDECAR_WEIGHTS, plan_export, write_sidecar
from bertjax.hf.forward import ModelOutput, check_inputs, max_input_length, run_model
from bertjax.hf.keymap import Tensors
from bertjax.hf.load import ModelWeights, order_heads, read_config_json, read_folder
from bertjax.hf.model_card import MARKER, render_model_card
from bertjax.hf.safe_files import (
    CONFIG,
    INDEX,
    WEIGHTS,
    read_safetensors,
    read_tensors,
    write_safetensors,
)
from bertjax.io.atomic import atomic_folder, sweep
from bertjax.io.foreign_files import TOKENIZER_FILES, read_tokenizer_files
from bertjax.io.tree_paths import flatten_tree, unflatten_tree
from bertjax.types import Params

log = logging.getLogger(__name__)


class ExportableTokenizer(Protocol):
    """A tokenizer in memory: its Hugging Face files, and ids to compare them with."""

    def huggingface_files(self, max_length: int) -> dict[str, bytes]:
        """Returns the files of the tokenizer by name, for texts of at most `max_length` tokens."""

    def encode_with_specials(self, text: str) -> list[int]:
        """Returns the ids of a text with its special tokens."""

    def encode_batch(self, texts: Sequence[str]) -> Sequence[Any]:
        """Returns the ids of every text, without special tokens."""


TokenizerSource = ExportableTokenizer | Mapping[str, bytes] | str | os.PathLike[str]
"""A tokenizer, its files as bytes by name, or the folder that holds them."""

DTYPES = ("float32", "bfloat16", "float16")
# The model in memory and the one read back differ in the padding of the vocabulary alone, and so in the order of sums.
_TOLERANCE = 1e-4
_SENTENCES = (
    "The quick brown fox jumps over 13 lazy dogs.",
    "Déjà vu: naïve café, 東京 and Ωmega!",
    "don't    stop-me\tnow (it's #1)",
)


class ExportError(UserError):
    """The folder that was written does not hold the model in memory."""


def save_pretrained(
    folder: str | os.PathLike[str],
    params: Params,
    config: EncoderConfig,
    *,
    heads: tuple[str, ...],
    tokenizer: TokenizerSource | None = None,
    card: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    dtype: str = "float32",
    max_shard_bytes: int = 5_000_000_000,
    extra_files: Mapping[str, bytes] | None = None,
    sample_texts: Sequence[str] = (),
    config_keys: Mapping[str, Any] | None = None,
) -> None:
    """Writes config.json, model.safetensors, the tokenizer's files and README.md.

    The class is one of `config.family`. Parts that it cannot hold go into sidecar files that `load_pretrained` reads; a
    model that no class of the family can hold is written in the native format, with classes of its own that
    `transformers` runs with `trust_remote_code=True`, and with a warning that names the reason.
    The folder appears under its name only after `verify_export`. Equal parameters give equal bytes.

    Args:
        folder: where to write; a new or empty folder, or with `overwrite` an earlier export.
        params: parameters; written at the true vocabulary size, without tied copies.
        config: architecture.
        heads: heads that `params` holds.
        tokenizer: a tokenizer, its files, or the folder that holds them; None writes none.
        card: facts for README.md; see `render_model_card`.
        overwrite: replace an earlier export.
        dtype: type of the weights, one of `DTYPES`.
        max_shard_bytes: larger weights are split into files of this size, with an index.
        extra_files: contents by their path in the folder, for other libraries that read it.
        sample_texts: training text, whose ids are compared with those of `transformers.AutoTokenizer`.
        config_keys: further keys of config.json, by which libraries read the outputs of a head.

    Raises:
        UserError: the folder holds something else, the model cannot be written, or the disk refused.
        ExportError: the model read back is not the model in memory.
    """
    folder, heads = Path(folder).absolute(), order_heads(heads)
    require_free(folder, overwrite)
    params = round_params(params, dtype)
    plan = plan_export(config, heads, dtype, config_keys)
    tensors, sidecar = plan.tensors(params)
    if plan.unsupported:
        log.warning("%s is written in bertjax's native format; %s", folder, plan.limitation)
    num_params = sum(array.size for array in (*tensors.values(), *sidecar.values()))
    texts = {
        CONFIG: json.dumps(plan.config_json, indent=2, sort_keys=True) + "\n",
        "README.md": render_model_card(plan, num_params, card),
    }
    files = tokenizer_files(tokenizer, config) | {name: text.encode() for name, text in texts.items()}
    files |= (native_format.code_files() if plan.family is None and not plan.is_private else {}) | dict(
        extra_files or {}
    )
    try:
        with atomic_folder(folder) as temporary:
            write_weights(temporary, tensors, max_shard_bytes, dtype, exact=plan.computed_tensors.keys())
            write_sidecar(temporary, plan, sidecar)
            for name, content in files.items():
                (temporary / name).parent.mkdir(exist_ok=True)
                (temporary / name).write_bytes(content)
            facts: dict[str, Any] = {"tokenizer": tokenizer, "sample_texts": sample_texts, "config_keys": config_keys}
            verify_export(temporary, params, config, heads=heads, dtype=dtype, **facts)
    except OSError as error:
        raise UserError(f"cannot write the export to {folder}: {error.strerror or error}") from error


def verify_export(
    folder: str | os.PathLike[str],
    params: Params,
    config: EncoderConfig,
    *,
    heads: tuple[str, ...],
    dtype: str = "float32",
    tokenizer: TokenizerSource | None = None,
    sample_texts: Sequence[str] = (),
    config_keys: Mapping[str, Any] | None = None,
) -> None:
    """Reads a written folder and compares it with the model in memory.

    Compared are every tensor bit by bit, the config, the outputs for a small batch, and the tokenizer.

    Args:
        folder: what `save_pretrained` wrote.
        params: parameters in memory, rounded to `dtype`.
        config, heads, dtype, tokenizer, sample_texts, config_keys: as of `save_pretrained`.

    Raises:
        ExportError: something differs.
    """
    folder, heads = Path(folder), order_heads(heads)
    loaded, plan = read_folder(folder), plan_export(config, heads, dtype, config_keys)
    tensors, sidecar = plan.tensors(params)
    compare_tensors(WEIGHTS, tensors, read_tensors(folder)[0])
    if sidecar:
        compare_tensors(SIDECAR_WEIGHTS, sidecar, read_safetensors(folder, SIDECAR_WEIGHTS))
    expected, back = plan.config_json, dataclasses.replace(plan, config=loaded.config).config_json
    written = read_config_json(folder)[0]
    for key in sorted(expected.keys() | back.keys() | written.keys()):
        if not expected.get(key) == back.get(key) == written.get(key):
            raise ExportError(f"{folder}: config.json read back has {key} {back.get(key)!r}, not {expected.get(key)!r}")
    if loaded.heads != heads:
        raise ExportError(f"{folder}: the heads read back are {comma_list(loaded.heads)}, not {comma_list(heads)}")
    if any(getattr(loaded.config, name) != getattr(config, name) for name in plan.sidecar_fields):
        raise ExportError(f"{folder}: {SIDECAR_CONFIG} read back differs from the config in memory")
    _compare_outputs(ModelWeights(config, params, heads), loaded)
    if tokenizer is not None and tokenizer_files(tokenizer, config) != dict(loaded.tokenizer_files):
        raise ExportError(f"{folder}: the tokenizer files read back differ from those that were written")
    if tokenizer is not None and not isinstance(tokenizer, Mapping | str | os.PathLike):
        _compare_tokenizer(folder, tokenizer, config, sample_texts)


def round_params(params: Params, dtype: str) -> Params:
    """Returns the parameters rounded to another type, as float32; raises `UserError` for a number beyond its range."""
    require_one_of("dtype", dtype, DTYPES)
    if dtype == "float32":
        return params
    leaves = flatten_tree(params)
    with np.errstate(over="ignore"):
        rounded = {path: np.asarray(leaf).astype(dtype).astype(np.float32) for path, leaf in leaves.items()}
    for path, leaf in leaves.items():
        if np.isfinite(leaf).all() and not np.isfinite(rounded[path]).all():
            raise UserError(f"{path} holds {float(np.abs(leaf).max()):.3g}, beyond the range of {dtype}; take bfloat16")
    return unflatten_tree(rounded)


def write_weights(
    folder: Path, tensors: Tensors, max_shard_bytes: int, dtype: str, exact: Collection[str] = ()
) -> None:
    """Writes one file, or shards of whole tensors in the order of their names, with an index.

    Args:
        folder: an export that is being written.
        tensors: tensors by name.
        max_shard_bytes: largest size of a file.
        dtype: type of the weights, one of `DTYPES`.
        exact: names of tensors that keep their type.
    """
    tensors = {name: array if name in exact else array.astype(dtype, copy=False) for name, array in tensors.items()}
    shards: list[Tensors] = [{}]
    for name in sorted(tensors):
        if shards[-1] and sum(array.nbytes for array in shards[-1].values()) + tensors[name].nbytes > max_shard_bytes:
            shards.append({})
        shards[-1][name] = tensors[name]
    names = [WEIGHTS]
    if len(shards) > 1:
        names = [f"model-{number:05d}-of-{len(shards):05d}.safetensors" for number in range(1, len(shards) + 1)]
        table = {tensor: name for name, shard in zip(names, shards, strict=True) for tensor in shard}
        total = sum(array.nbytes for array in tensors.values())
        index = {"metadata": {"total_size": total}, "weight_map": table}
        (folder / INDEX).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    for name, shard in zip(names, shards, strict=True):
        # Without the metadata older versions of transformers refuse the file. The library orders the tensors itself.
        write_safetensors(folder / name, shard, {"format": "pt"})


def tokenizer_files(tokenizer: TokenizerSource | None, config: EncoderConfig) -> dict[str, bytes]:
    """Returns the contents of a tokenizer's files by name; raises `UserError` for a folder without any."""
    if tokenizer is None:
        return {}
    if isinstance(tokenizer, Mapping):
        return dict(tokenizer)
    if not isinstance(tokenizer, str | os.PathLike):
        return tokenizer.huggingface_files(config.max_position_embeddings)
    files = read_tokenizer_files(Path(tokenizer))
    if not files:
        raise UserError(f"{tokenizer} holds no tokenizer file; known are {', '.join(TOKENIZER_FILES)}")
    return files


def require_free(folder: Path, overwrite: bool) -> None:
    """Raises `UserError` for a folder that an export must not replace; sweeps what killed exports left of it."""
    sweep(folder.parent, folder.name)
    if not folder.exists():
        return
    if not folder.is_dir():
        raise UserError(f"{folder} is a file; name a folder for the export")
    if not any(folder.iterdir()):
        return
    if not ((folder / CONFIG).is_file() and is_export(folder)):
        raise UserError(f"{folder} is not empty and not an export of bertjax; name another folder")
    if not overwrite:
        raise UserError(f"{folder} already holds an export; remove it, name another folder, or pass overwrite")


def is_export(folder: Path) -> bool:
    """Returns whether a folder was written by `save_pretrained`: its README.md has the marker."""
    card = folder / "README.md"
    return card.is_file() and MARKER in card.read_text("utf-8", "replace")


def compare_tensors(file: str, expected: Tensors, actual: Tensors) -> None:
    """Compares two sets of tensors bit by bit; raises `ExportError` if they differ.

    Args:
        file: the file to name.
        expected: tensors in memory.
        actual: tensors that were read back.
    """
    differing = [n for n in expected if n not in actual or expected[n].tobytes() != actual[n].tobytes()]
    differing += [name for name in actual if name not in expected]
    if differing:
        raise ExportError(f"{file} read back differs from memory in {len(differing)} tensors, first {differing[0]}")


def _compare_outputs(memory: ModelWeights, loaded: ModelWeights) -> None:
    config, heads = memory.config, memory.heads
    length = min(max_input_length(config, heads) or 12, 12)
    draw = np.random.default_rng(0).integers
    ids = draw(0, config.vocab_size, (2, length))
    types = draw(0, config.type_vocab_size, (2, length)) if config.type_vocab_size else None
    mask = np.ones((2, length), np.int32)
    mask[1, max(1, length // 2) :] = 0
    inputs = check_inputs(config, heads, ids, mask, types)
    expected = run_model(float32_config(config), heads, memory.params, inputs)
    actual = run_model(loaded.config, loaded.heads, loaded.params, inputs)
    for name, mine, theirs in zip(ModelOutput._fields, expected, actual, strict=True):
        if mine is None and theirs is None:
            continue
        difference = float(np.abs(np.asarray(mine) - np.asarray(theirs)).max())
        if not difference <= _TOLERANCE:
            raise ExportError(f"the model read back differs from the one in memory: {name} by {difference:.2g}")


def _compare_tokenizer(
    folder: Path, tokenizer: ExportableTokenizer, config: EncoderConfig, sample_texts: Sequence[str]
) -> None:
    """Compares the ids of training with those of the file that was written, for a few sentences and training text."""
    plain = Tokenizer.from_file(str(folder / "tokenizer.json"))
    _compare_ids(folder, plain, tokenizer, sample_texts)
    if sample_texts:
        loaded = _read_tokenizer(folder)
        try:
            _compare_ids(folder, loaded.backend_tokenizer, tokenizer, sample_texts)
        except ExportError:
            declared = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))["tokenizer_class"]
            if type(loaded).__name__ in (declared, "TokenizersBackend"):
                raise
            log.warning(
                "transformers.AutoTokenizer makes a %s of any folder of this class of models, and so reads this "
                "tokenizer by other rules; load it with transformers.PreTrainedTokenizerFast",
                type(loaded).__name__,
            )
    size = plain.get_vocab_size()
    if size > config.vocab_size:
        raise ExportError(f"{folder}: the tokenizer has {size} tokens, the model's vocabulary only {config.vocab_size}")


def _compare_ids(folder: Path, written: Any, tokenizer: ExportableTokenizer, sample_texts: Sequence[str]) -> None:
    for sentence in _SENTENCES:
        if written.encode(sentence).ids != list(tokenizer.encode_with_specials(sentence)):
            raise ExportError(f"{folder}: the tokenizer read back gives other ids for {sentence!r}")
    special = [token.content for token in written.get_added_tokens_decoder().values() if token.special]
    texts = [*_SENTENCES, *(text for text in sample_texts if not any(token in text for token in special))]
    encodings = written.encode_batch(texts, add_special_tokens=False)
    for text, encoding, ids in zip(texts, encodings, tokenizer.encode_batch(texts), strict=True):
        if encoding.ids != list(ids):
            raise ExportError(f"{folder}: the tokenizer read back gives other ids than training for {text[:80]!r}")


def _read_tokenizer(folder: Path) -> Any:
    """Returns what `transformers.AutoTokenizer` makes of a folder; the code that its config.json names is not run."""
    from transformers import AutoTokenizer
    from transformers import logging as their_log

    verbosity = their_log.get_verbosity()
    their_log.set_verbosity_error()  # without the code it does not know the type
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # it raises errors of many kinds
        raise ExportError(f"{folder}: transformers cannot read the tokenizer: {one_line(error)}") from error
    finally:
        their_log.set_verbosity(verbosity)
