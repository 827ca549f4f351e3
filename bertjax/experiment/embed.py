"""Sentence vectors for the texts of a file."""

from __future__ import annotations

import dataclasses
import itertools
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from bertjax.compression import bare_name
from bertjax.config.objectives import objective_config
from bertjax.errors import UserError
from bertjax.experiment.load import batch_tokens, load_model, require_batch_tokens, require_model
from bertjax.experiment.workdir import read_config
from bertjax.hf.sentence_transformers import MODULES_FILE, Pooling, read_pooling
from bertjax.inference.embed import Embedder
from bertjax.inference.text_files import is_jsonl, read_records, read_texts
from bertjax.io.atomic import atomic_file
from bertjax.io.progress_bar import ProgressBar

ENDINGS = (".npz", ".npy", ".jsonl")
_NO_LINES = (".json", ".csv", ".tsv", ".parquet", ".arrow", ".tar", ".zip")
_WINDOW = 8192  # texts that are sorted by length together, and held


class EmbedOptions(NamedTuple):
    """Settings of sentence vectors; None takes the setting of the folder or run."""

    pooling: str | None = None
    normalize: bool | None = None
    max_length: int | None = None
    batch_tokens: int | None = None


def embed(folder: Path, source: str, out: Path, text_column: str, options: EmbedOptions) -> None:
    """Writes one vector per text, in the order of the texts.

    Args:
        folder: a Hugging Face folder, an export or a work directory.
        source: a file with one text per line, or .jsonl; "-" for standard input.
        out: .npz (array `vectors`, float32 [n, D]), .npy, or .jsonl with the texts.
        text_column: field of the text in .jsonl.
        options: how vectors are computed.

    Raises:
        UserError: a file or the model cannot be read, or `out` cannot be written.
    """
    if out.suffix not in ENDINGS:
        raise UserError(f"--out {out} must end in one of {', '.join(ENDINGS)}")
    if not out.parent.is_dir():
        raise UserError(f"no folder {out.parent} for --out; make it first")
    if bare_name(source).endswith(_NO_LINES):
        raise UserError(f"--in {source} is not a file of lines: give one text per line, or .jsonl; plain or compressed")
    require_batch_tokens(options.batch_tokens)
    folder = require_model(folder)
    pooling = pooling_of(folder, options)
    windows = _windows(source, text_column)
    first = next(windows, None)  # reports a broken file before the model is loaded
    if first is None:
        raise UserError(f"{source} holds no text")
    model, tokenizer, _ = load_model(folder)
    embedder = Embedder(model, tokenizer, pooling, batch_tokens(options.batch_tokens))
    began = time.monotonic()
    with ProgressBar("texts") as progress:
        count = _write(out, embedder, itertools.chain([first], windows), progress)
    took = time.monotonic() - began
    print(
        f"{count:,} texts, {describe_pooling(pooling)}, {model.config.hidden_size} numbers each, in {took:.1f} s: {out}"
    )
    if embedder.num_truncated:
        print(f"{embedder.num_truncated:,} of them were longer than {embedder.max_length:,} tokens, and were truncated")


class _Window(NamedTuple):
    texts: list[str]
    records: list[dict[str, Any]]


def _windows(source: str, text_column: str) -> Iterator[_Window]:
    """Yields texts with the other fields of their output records, in groups that are sorted by length together."""
    if is_jsonl(source):
        results: Iterator[tuple[str, dict[str, Any]]] = (
            (record.text(text_column, "--text-column"), record.values) for record in read_records(source)
        )
    else:
        results = ((line, {"text": line}) for _, line in read_texts(source))
    while part := list(itertools.islice(results, _WINDOW)):
        yield _Window([text for text, _ in part], [record for _, record in part])


def pooling_of(folder: Path, options: EmbedOptions) -> Pooling:
    """Returns the pooling of the options, of a sentence-transformers folder, of a contrastive run, or the mean."""
    pooling = Pooling(normalize=False)
    if (folder / MODULES_FILE).is_file():
        pooling = read_pooling(folder)
    elif (folder / "checkpoints").is_dir():
        trained = objective_config(read_config(folder)).embedding_pooling
        if trained is not None:
            pooling = Pooling("cls" if trained == "first" else "mean", normalize=False)
    return override_pooling(pooling, options)


def override_pooling(pooling: Pooling, options: EmbedOptions) -> Pooling:
    """Returns a pooling with the options that are not None."""
    set_options = {
        name: value for name, value in options._asdict().items() if value is not None and name != "batch_tokens"
    }
    if "pooling" in set_options:
        set_options["mode"] = set_options.pop("pooling")
    return dataclasses.replace(pooling, **set_options)


def _write(out: Path, embedder: Embedder, windows: Iterator[_Window], progress: ProgressBar) -> int:
    """Writes a file, which appears when it is complete; returns the number of vectors."""
    count, vectors = 0, list[np.ndarray]()
    try:
        with atomic_file(out) as file:
            for window in windows:
                results = embedder(window.texts)
                if out.suffix == ".jsonl":
                    _write_lines(file, window.records, results)
                else:
                    vectors.append(results)
                count += len(results)
                progress.update(count)
            if out.suffix == ".npz":
                np.savez(file, vectors=np.concatenate(vectors))
            elif out.suffix == ".npy":
                np.save(file, np.concatenate(vectors))
    except OSError as error:
        raise UserError(f"--out {out} cannot be written: {error.strerror or error}") from None
    return count


def _write_lines(file: IO[bytes], records: Sequence[dict[str, Any]], vectors: np.ndarray) -> None:
    for record, vector in zip(records, vectors, strict=True):
        numbers = [float(str(number)) for number in vector]  # the shortest text of this float32
        file.write(json.dumps({**record, "vector": numbers}, ensure_ascii=False).encode() + b"\n")


def describe_pooling(pooling: Pooling) -> str:
    """Returns the pooling in words."""
    what = "the mean of the tokens" if pooling.mode == "mean" else "the summary token"
    return what + (", scaled to length one" if pooling.normalize else "")
