"""Files of a folder from an unknown source: plain files below it, and no others."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from bertjax.errors import UserError

INPUT_FILES = ("word_shape.json", "word_pronunciation.json")
"""Files by which a tokenizer makes inputs besides ids and token types (RoCBert), which no model of bertjax reads."""
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "spiece.model",
    "spm.model",
    "sentencepiece.bpe.model",
    "sentencepiece.model",
    "tokenizer.model",
    *INPUT_FILES,
)


def resolve_inside(folder: Path, name: str) -> Path:
    """Returns `folder/name` if it is a plain file in the folder, or a link of the Hugging Face cache to its own blobs.

    Raises:
        UserError: the file is missing, or lies outside the folder.
    """
    parts = PurePosixPath(name)
    path = folder / name
    if not name or parts.is_absolute() or ".." in parts.parts or "\\" in name or "\0" in name:
        raise UserError(f"{folder}: {name!r} is not a plain file name below the folder")
    if not path.is_file():
        raise UserError(f"{path} is missing")
    home, real = folder.resolve(), path.resolve()
    allowed = [home] + ([home.parent.parent / "blobs"] if home.parent.name == "snapshots" else [])
    if not any(real.is_relative_to(root) for root in allowed):
        raise UserError(f"{path} is a link to {real}, outside the folder; it is not followed")
    return path


def read_tokenizer_files(folder: Path) -> dict[str, bytes]:
    """Returns the bytes of the tokenizer's files by name; nothing is parsed."""
    return {name: resolve_inside(folder, name).read_bytes() for name in TOKENIZER_FILES if (folder / name).is_file()}
