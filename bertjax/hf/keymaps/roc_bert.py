"""RoCBert (Su et al., ACL 2022; transformers: models/roc_bert): folders that are read, and exported, as BERT.

A token has a shape and a pronunciation, which two files next to its vocabulary name by id. Word, shape and sound go
through one linear map, so that they are one row of BERT's word table. Masked words are scored by the words alone, the
table of the head from then on. What the tokenizer adds has ids of its own there: of [CLS] and [SEP] those of [UNK], of
[PAD] the id of padding.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.hf.keymap import Entry, KeyMap, Tensors
from bertjax.hf.keymaps import bert
from bertjax.hf.safe_files import read_json
from bertjax.io.foreign_files import INPUT_FILES, resolve_inside

_PREFIX, _OUTPUT, _VOCABULARY = "roc_bert", "cls.predictions.decoder.weight", "vocab.txt"
_PARTS = {"shape": (INPUT_FILES[0], 24858, 512), "pronunciation": (INPUT_FILES[1], 910, 768)}


def make_keymap(config: EncoderConfig) -> KeyMap:
    """Returns the names of the parameters, of a table that holds all of a token."""
    keymap = bert.make_keymap(config, _PREFIX)
    ties = {copy: original for copy, original in keymap.ties.items() if copy != _OUTPUT}
    output = Entry("mlm_head/table", _OUTPUT, "V D", head="mlm")
    return dataclasses.replace(keymap, entries=(*keymap.entries, output), ties=ties)


def _read_ids(values: Mapping[str, Any], folder: Path) -> Tensors:
    """Returns shape and pronunciation of every token of the vocabulary, int64 [tokens]."""
    files = {part: file for part, (file, *_) in _PARTS.items() if values.get(f"enable_{part}", True)}
    missing = [name for name in (_VOCABULARY, *files.values()) if files and not (folder / name).is_file()]
    if missing:
        raise UserError(
            f"{folder / missing[0]} is missing: embeddings of the model depend on the shapes and sounds of the tokens, "
            "which it names; copy it from where the model is from"
        )
    result = {}
    for part, file in files.items():
        ids = read_json(folder, file)
        wrong = next((name for name in ("[UNK]", *ids) if type(ids.get(name)) is not int or ids[name] < 0), None)
        if wrong is not None:
            raise UserError(f"{folder / file}: the id of {wrong} must be a whole number, not {ids.get(wrong)!r}")
        lines = resolve_inside(folder, _VOCABULARY).read_text(encoding="utf-8", errors="replace").split("\n")
        tokens = [*lines, "[UNK]"]  # the last stands for rows beyond the vocabulary
        ids |= {"[CLS]": ids["[UNK]"], "[SEP]": ids["[UNK]"], "[PAD]": values.get("pad_token_id") or 0}
        result[f"{part}_ids"] = np.array([ids.get(token, ids["[UNK]"]) for token in tokens])
    return result


def _fold(values: dict[str, Any], tensors: Tensors, where: str) -> Tensors:
    """Returns the tensors of a BERT, whose word table holds what its input map makes of all of a token."""
    tensors = dict(tensors)
    ids = {part: tensors.pop(f"{part}_ids", None) for part in _PARTS}
    prefix = f"{_PREFIX}." if any(name.startswith(f"{_PREFIX}.") for name in tensors) else ""
    width, size = values.get("hidden_size", 768), values.get("vocab_size", 30522)

    def take(name: str, *shape: int) -> np.ndarray:
        array = tensors.pop(f"{prefix}embeddings.{name}", None)
        if array is None or array.shape != shape or array.dtype.kind != "f":
            about = "missing" if array is None else f"{array.dtype} {list(array.shape)} instead of {list(shape)}"
            raise UserError(f"{where} does not fit the config: {prefix}embeddings.{name} is {about}")
        return array.astype(np.float64)

    words = take("word_embeddings.weight", size, width)
    columns = [words]
    for part, (file, *usual) in _PARTS.items():
        sizes = [
            values.get(f"{part}_{key}", value) for key, value in zip(("vocab_size", "embed_dim"), usual, strict=True)
        ]
        table, rows = take(f"{part}_embed.weight", *sizes), ids[part]
        if rows is not None:
            rows = np.pad(rows[:size], (0, max(0, size - len(rows))), mode="edge")
            if rows.max() >= len(table):
                raise UserError(
                    f"{Path(where).parent / file}: id {rows.max()} is beyond {part}_vocab_size {len(table)}"
                )
            columns.append(table[rows])
    kernel = take("map_inputs_layer.weight", width, sum(each.shape[1] for each in columns))
    folded = np.concatenate(columns, axis=1) @ kernel.T + take("map_inputs_layer.bias", width)
    tensors[f"{prefix}embeddings.word_embeddings.weight"] = folded.astype(np.float32)
    if any(name.startswith("cls.") for name in tensors):
        tensors.setdefault(_OUTPUT, words.astype(np.float32))
    return tensors


_CLASSES = {name: heads for name, heads in bert.FAMILY.architectures.items() if "pair" not in heads}
FAMILY = dataclasses.replace(
    bert.FAMILY,
    name="roc_bert",
    model_type="roc_bert",
    make_keymap=make_keymap,
    architectures={
        "RoCBertForPreTraining": ("pooler", "mlm"),
        **{name.replace("Bert", "RoCBert"): heads for name, heads in _CLASSES.items()},
    },
    structure={**bert.FAMILY.structure, "family": "bert", "tie_word_embeddings": False},
    unsupported=(
        *bert.FAMILY.unsupported,
        ("concat_input", (True,), "a word table cannot hold shapes and sounds that are added after the norm"),
    ),
    ignored_keys=f"{bert.FAMILY.ignored_keys} enable_shape shape_embed_dim shape_vocab_size "
    "enable_pronunciation pronunciation_embed_dim pronunciation_vocab_size",
    prefix=f"{_PREFIX}.",
    written=False,
    read_files=_read_ids,
    cut_tensors=_fold,
)
