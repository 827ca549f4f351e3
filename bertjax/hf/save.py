"""Writing a folder that `transformers` loads, where it can hold the model, and proving it by reading it back."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.hf import sidecar_files
from bertjax.hf.export_plan import ExportPlan, plan_export
from bertjax.hf.keymap import Tensors
from bertjax.hf.load import load_pretrained, read_config_json
from bertjax.hf.model_card import MARKER, render_model_card
from bertjax.hf.pretrained import ModelOutput, PretrainedModel, max_input_length
from bertjax.hf.safe_files import (
    CONFIG,
    INDEX,
    TOKENIZER_FILES,
    WEIGHTS,
    read_safetensors,
    read_tensors,
    read_tokenizer_files,
)
from bertjax.io.atomic import atomic_folder
from bertjax.models.model import HEADS
from bertjax.types import Params

log = logging.getLogger(__name__)


class ExportableTokenizer(Protocol):
    """What the export asks of a tokenizer in memory: its Hugging Face files, and ids to compare them with."""

    def save_huggingface(self, folder: str | os.PathLike[str], max_length: int) -> None: ...

    def encode_with_specials(self, text: str) -> list[int]: ...


TokenizerSource = ExportableTokenizer | Mapping[str, bytes] | str | os.PathLike[str]
"""A tokenizer, or its files: their bytes by name, or the folder that holds them."""

# Between the model in memory and the one read back only the padding of the vocabulary differs, and with it the order
# of a few sums.
_LOGIT_TOLERANCE = 1e-4


class ExportError(UserError):
    """What was read back is not what was to be written."""


def save_pretrained(
    folder: str | os.PathLike[str],
    params: Params,
    config: EncoderConfig,
    *,
    heads: tuple[str, ...],
    tokenizer: TokenizerSource | None = None,
    card: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    max_shard_bytes: int = 5_000_000_000,
    extra_files: Mapping[str, str] | None = None,
    require_transformers: bool = False,
) -> None:
    """Writes config.json, model.safetensors, the tokenizer's files and README.md, whole or not at all.

    The class is one of `config.family`. Parts that it has no place for go into side files that `load_pretrained` reads;
    a model that no class of the family can hold is written in our own format, with a warning that names the reason.

    Float32, true vocabulary size, tied copies left out; equal parameters give equal bytes. Weights of more than
    `max_shard_bytes` are split into files with an index. The folder appears under its name only after `verify_export`
    found in it what is in memory. Raises `UserError` when the folder holds something that is not an export of ours, or
    is one and `overwrite` is not set; with `require_transformers` also for a model that only we could load.

    `extra_files` are texts by their path below the folder, for libraries that read the folder, too.
    """
    folder = Path(folder).absolute()
    _require_free(folder, overwrite)
    plan = plan_export(config, _ordered(heads))
    tensors, beside = plan.tensors(params)
    if require_transformers and plan.family is None:
        reasons = ", ".join(plan.unsupported) or "its parts"
        raise UserError(f"transformers has no class for this model: {config.family} has no place for {reasons}")
    if plan.unsupported:
        log.warning(
            "no class of the family %s in transformers holds this model (in the way: %s); it is written in our own "
            "format, for bertjax.load_pretrained",
            config.family,
            ", ".join(plan.unsupported),
        )
    try:
        with atomic_folder(folder) as temporary:
            _write_weights(temporary, tensors, max_shard_bytes)
            sidecar_files.write_sidecar(temporary, plan, beside)
            _write_rest(temporary, plan, sum(array.size for array in (*tensors.values(), *beside.values())), card)
            _write_tokenizer(temporary, tokenizer, config)
            for name, text in (extra_files or {}).items():
                (temporary / name).parent.mkdir(exist_ok=True)
                (temporary / name).write_text(text, encoding="utf-8")
            verify_export(temporary, params, config, heads=heads, tokenizer=tokenizer)
    except OSError as error:
        raise UserError(f"cannot write the export to {folder}: {error.strerror or error}") from error


def verify_export(
    folder: str | os.PathLike[str],
    params: Params,
    config: EncoderConfig,
    *,
    heads: tuple[str, ...],
    tokenizer: TokenizerSource | None = None,
) -> None:
    """Reads a written folder as a stranger would, and compares with what is in memory; raises `ExportError`.

    Compared: every tensor bit by bit, the config, the outputs on a small batch, the tokenizer's files.
    """
    folder, heads = Path(folder), _ordered(heads)
    loaded, plan = load_pretrained(folder), plan_export(config, heads)
    tensors, beside = plan.tensors(params)
    _compare_tensors(WEIGHTS, tensors, read_tensors(folder)[0])
    if beside:
        _compare_tensors(sidecar_files.SIDECAR_WEIGHTS, beside, read_safetensors(folder, sidecar_files.SIDECAR_WEIGHTS))
    mine, back = plan.config_json, dataclasses.replace(plan, config=loaded.config).config_json
    written = read_config_json(folder)[0]
    for key in sorted(mine.keys() | back.keys() | written.keys()):
        if not mine.get(key) == back.get(key) == written.get(key):
            raise ExportError(f"{folder}: {key} of the config read back is {back.get(key)!r}, not {mine.get(key)!r}")
    if loaded.heads != heads:
        raise ExportError(f"{folder}: the heads read back are {', '.join(loaded.heads)}, not {', '.join(heads)}")
    if any(getattr(loaded.config, name) != getattr(config, name) for name in plan.sidecar_fields):
        raise ExportError(f"{folder}: {sidecar_files.SIDECAR_CONFIG} read back differs from the config in memory")
    _compare_outputs(PretrainedModel(config, params, heads), loaded)
    if isinstance(tokenizer, Mapping | str | os.PathLike):
        if _given_files(tokenizer) != dict(loaded.tokenizer_files):
            raise ExportError(f"{folder}: the tokenizer files read back differ from those given")
    elif tokenizer is not None:
        _compare_tokenizer(folder, tokenizer, config)


def _ordered(heads: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(head for head in HEADS if head in heads)


def _write_weights(folder: Path, tensors: Tensors, max_shard_bytes: int) -> None:
    """One file, or shards of whole tensors in the order of their names, with an index."""
    from safetensors.numpy import save_file

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
        # Without the metadata older versions of transformers refuse the file. The library orders the tensors by itself.
        save_file(shard, folder / name, metadata={"format": "pt"})


def _write_rest(folder: Path, plan: ExportPlan, num_params: int, card: Mapping[str, Any] | None) -> None:
    text = json.dumps(plan.config_json, indent=2, sort_keys=True)
    (folder / CONFIG).write_text(text + "\n", encoding="utf-8")
    (folder / "README.md").write_text(render_model_card(plan, num_params, card), encoding="utf-8")


def _write_tokenizer(folder: Path, tokenizer: TokenizerSource | None, config: EncoderConfig) -> None:
    if tokenizer is None:
        return
    if isinstance(tokenizer, Mapping | str | os.PathLike):
        for name, data in _given_files(tokenizer).items():
            (folder / name).write_bytes(data)
    else:
        tokenizer.save_huggingface(folder, config.max_position_embeddings)


def _given_files(tokenizer: Mapping[str, bytes] | str | os.PathLike[str]) -> dict[str, bytes]:
    if isinstance(tokenizer, Mapping):
        return dict(tokenizer)
    files = read_tokenizer_files(Path(tokenizer))
    if not files:
        raise UserError(f"{tokenizer} holds no tokenizer file; known are {', '.join(TOKENIZER_FILES)}")
    return files


def _require_free(folder: Path, overwrite: bool) -> None:
    if not folder.exists():
        return
    if not folder.is_dir():
        raise UserError(f"{folder} is a file; name a folder for the export")
    if not any(folder.iterdir()):
        return
    card = folder / "README.md"
    ours = (folder / "config.json").is_file() and card.is_file() and MARKER in card.read_text("utf-8", "replace")
    if not ours:
        raise UserError(f"{folder} is not empty and not an export of bertjax; name another folder")
    if not overwrite:
        raise UserError(f"{folder} already holds an export; remove it, name another folder, or ask for overwrite")


def _compare_tensors(file: str, wanted: Tensors, found: Tensors) -> None:
    differing = [n for n in wanted if n not in found or wanted[n].tobytes() != found[n].tobytes()]
    differing += [name for name in found if name not in wanted]
    if differing:
        raise ExportError(f"{file} read back differs from memory in {len(differing)} tensors, first {differing[0]}")


def _compare_outputs(memory: PretrainedModel, loaded: PretrainedModel) -> None:
    config = memory.config
    length = min(max_input_length(config, memory.heads) or 12, 12)
    draw = np.random.default_rng(0).integers
    ids = draw(0, config.vocab_size, (2, length))
    types = draw(0, config.type_vocab_size, (2, length)) if config.type_vocab_size else None
    mask = np.ones((2, length), np.int32)
    mask[1, max(1, length // 2) :] = 0
    memory = dataclasses.replace(memory, config=_exact(config))
    for name, mine, theirs in zip(ModelOutput._fields, memory(ids, mask, types), loaded(ids, mask, types), strict=True):
        if mine is None and theirs is None:
            continue
        gap = float(np.abs(np.asarray(mine) - np.asarray(theirs)).max())
        if not gap <= _LOGIT_TOLERANCE:
            raise ExportError(f"the model read back differs from the one in memory: {name} by {gap:.2g}")


def _exact(config: EncoderConfig) -> EncoderConfig:
    """The same model computed as a loaded one is: in float32, whatever it was trained in."""
    return dataclasses.replace(
        config,
        compute_dtype="float32",
        result_dtype="float32",
        attention_implementation="auto",
        remat="none",
        unroll=1,
    )


_SENTENCES = (
    "The quick brown fox jumps over 13 lazy dogs.",
    "Déjà vu: naïve café, 東京 and Ωmega!",
    "don't    stop-me\tnow (it's #1)",
)


def _compare_tokenizer(folder: Path, tokenizer: ExportableTokenizer, config: EncoderConfig) -> None:
    """The ids of a few sentences, by the file that was written and by the tokenizer in memory."""
    from tokenizers import Tokenizer

    written = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for sentence in _SENTENCES:
        if written.encode(sentence).ids != list(tokenizer.encode_with_specials(sentence)):
            raise ExportError(f"{folder}: the tokenizer read back gives other ids for {sentence!r}")
    if written.get_vocab_size() > config.vocab_size:
        pieces = written.get_vocab_size()
        raise ExportError(
            f"{folder}: the tokenizer has {pieces} pieces, the model's vocabulary only {config.vocab_size}"
        )
