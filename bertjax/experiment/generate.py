"""Generated texts for the lines of a file."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from bertjax.errors import UserError
from bertjax.experiment.load import batch_tokens, load_generative, require_batch_tokens
from bertjax.hf.generate import generation_settings
from bertjax.inference.generate import GeneratedText, Generator, describe_search
from bertjax.inference.text_files import is_jsonl, read_records, read_texts
from bertjax.io.jsonl import STDIN
from bertjax.io.output import open_records
from bertjax.io.progress_bar import ProgressBar

_WINDOW = 4096  # texts that are sorted by length together, and held


def generate(
    folder: Path,
    sentences: Sequence[str],
    source: str | None,
    out: str,
    text_column: str,
    arguments: Mapping[str, Any],
    seed: int,
    tokens: int | None,
) -> None:
    """Writes one JSON object per text, in their order; prints texts that are arguments of the command.

    Args:
        folder: a Hugging Face folder, an export or a work directory.
        sentences: texts of the command line, instead of a file.
        source: a file with one text per line, or .jsonl; "-" for standard input.
        out: a .jsonl file, which appears when it is complete, or "-" for standard output.
        text_column: field of the text in .jsonl.
        arguments: settings of generation by name.
        seed: seed of samples.
        tokens: tokens per batch.

    Raises:
        UserError: a file or the model cannot be read, or a setting is wrong.
    """
    require_batch_tokens(tokens)
    if bool(sentences) == (source is not None):
        raise UserError("give texts, or a file of them with --in")
    if out != STDIN and not Path(out).parent.is_dir():
        raise UserError(f"no folder {Path(out).parent} for --out; make it first")
    generation_settings({}, arguments)  # before the model is read
    records = ({"text": text} for text in sentences) if source is None else _records(source, text_column)
    first = next(records, None)
    if first is None:
        raise UserError(f"{source} holds no text")
    generator = Generator(*load_generative(folder), arguments, seed, batch_tokens(tokens))
    records, count, began = itertools.chain([first], records), 0, time.monotonic()
    shown: IO[str] = sys.stderr if out == STDIN else sys.stdout
    name = text_column if source is not None and is_jsonl(source) else "text"
    with ProgressBar("texts") as progress, open_records(out) as write:
        while window := list(itertools.islice(records, _WINDOW)):
            done = count
            texts = generator(
                [str(record[name]) for record in window],
                first=count,
                on_progress=lambda some, _, done=done: progress.update(done + some),  # type: ignore[misc]
            )
            for record, generated in zip(window, texts, strict=True):
                write(record | to_fields(generated))
            count += len(window)
    _print_summary(generator, count, time.monotonic() - began, out, shown)


def to_fields(generated: Sequence[GeneratedText]) -> dict[str, Any]:
    """Returns the fields of a record: a text and its score, or lists of them where a text has several."""
    texts, scores = [each.text for each in generated], [round(each.score, 6) for each in generated]
    return {"generated": texts[0], "score": scores[0]} if len(texts) == 1 else {"generated": texts, "score": scores}


def _records(source: str, text_column: str) -> Iterator[dict[str, Any]]:
    if is_jsonl(source):
        for record in read_records(source):
            record.text(text_column, "--text-column")
            yield record.values
    else:
        yield from ({"text": line} for _, line in read_texts(source))


def _print_summary(generator: Generator, count: int, took: float, out: str, shown: IO[str]) -> None:
    total = generator.num_tokens
    where = "" if out == STDIN else f": {out}"
    print(
        f"{count:,} texts, {describe_search(generator.settings)}, {total:,} tokens in {took:.1f} s "
        f"({total / max(took, 1e-9):,.0f} per second){where}",
        file=shown,
    )
    if generator.num_truncated:
        print(f"{generator.num_truncated:,} texts were longer than the model reads, and were truncated", file=shown)
    if generator.num_unfinished:
        print(
            f"{generator.num_unfinished:,} generated texts reached the greatest length before an end token; "
            "--max-new-tokens raises it",
            file=shown,
        )
