"""Generated texts of an encoder-decoder or a causal model."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from bertjax.commands.arguments import BatchTokens, Flag, Model
from bertjax.commands.signatures import command
from bertjax.config.fields import settings_of
from bertjax.config.generation import GenerationConfig
from bertjax.errors import UserError, named, require_at_least
from bertjax.experiment.load import batch_tokens as tokens_per_batch
from bertjax.experiment.open_model import open_generative
from bertjax.hf.generate import generation_settings
from bertjax.inference.generate import GeneratedText, Generator, describe_search
from bertjax.inference.text_files import as_texts, is_jsonl, read_records, read_texts
from bertjax.io.jsonl import STDIN
from bertjax.io.output import Summary, open_records, require_output
from bertjax.io.progress_bar import ProgressBar

_WINDOW = 4096  # texts that are sorted by length together, and held


@command
def generate(
    model: Model,
    inputs: Sequence[str],
    *,
    seed: int = 0,
    batch_tokens: BatchTokens = None,
    **settings: Any,
) -> list[Any]:
    """Generate texts with an encoder-decoder or a causal model.

    Args:
        inputs: one text per line, or .jsonl; -: standard input; in Python a list of texts
        seed: that of samples; a sample depends on it and on the index of its text
        settings: as in `transformers`: `max_new_tokens`, `num_beams`, `do_sample`, ...

    Returns:
        One text per input: its translation, or what continues it; with `num_return_sequences` above 1 lists of them.

    Raises:
        UserError: the model cannot generate, or a setting is wrong.

    Example:
        bertjax generate --model runs/translation --in source.txt --out target.jsonl --num-beams 5
    """
    require_at_least(1, batch_tokens=batch_tokens)
    generator = Generator(*open_generative(model), settings, seed, tokens_per_batch(batch_tokens))
    texts = [[each.text for each in generated] for generated in generator(as_texts("inputs", inputs))]
    return texts if generator.settings.num_return_sequences > 1 else [each[0] for each in texts]


def main(
    texts: Annotated[Sequence[str], Flag("texts", metavar="TEXT", nargs="*")] = (),
    *,
    model: Model,
    inputs: Annotated[str | None, Flag("--in", metavar="FILE")] = None,
    out: Annotated[str, Flag(metavar="FILE")] = "-",
    text_column: Annotated[str, Flag(metavar="FIELD")] = "text",
    seed: int = 0,
    batch_tokens: BatchTokens = None,
    **settings: Annotated[Any, Flag(fields="bertjax.config.generation:GenerationConfig")],
) -> Summary:
    """Writes one JSON object per text, in their order.

    Args:
        texts: texts, instead of a file
        out: a .jsonl file; -: standard output (default)
        text_column: field of the text in .jsonl
        settings: settings of generation (default: as generation_config.json says)
    """
    require_at_least(1, batch_tokens=batch_tokens)
    if bool(texts) == (inputs is not None):
        raise UserError(f"give texts, or a file of them with {named('inputs')}")
    require_output(out)
    chosen = _parse(settings)
    generation_settings({}, chosen)  # before the model is read
    records = ({"text": text} for text in texts) if inputs is None else _records(inputs, text_column)
    first = next(records, None)
    if first is None:
        raise UserError(f"{inputs} holds no text")
    generator = Generator(*open_generative(model), chosen, seed, tokens_per_batch(batch_tokens))
    records, count, began = itertools.chain([first], records), 0, time.monotonic()
    name = text_column if inputs is not None and is_jsonl(inputs) else "text"
    with ProgressBar("texts") as progress, open_records(out) as write:
        while window := list(itertools.islice(records, _WINDOW)):
            done = count
            results = generator(
                [str(record[name]) for record in window],
                first=count,
                on_progress=lambda some, _, done=done: progress.update(done + some),  # type: ignore[misc]
            )
            for record, generated in zip(window, results, strict=True):
                write(record | to_fields(generated))
            count += len(window)
    where = "" if out == STDIN else f": {out}"
    return _summary(generator, count, time.monotonic() - began, where)


def _parse(settings: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings of the command line that are set, as values of their types."""
    declared = settings_of(GenerationConfig)
    return {
        name: declared[name].parse(named(name), value) if isinstance(value, str) else value
        for name, value in settings.items()
        if value is not None
    }


def to_fields(generated: Sequence[GeneratedText]) -> dict[str, Any]:
    """Returns the fields of a record: a text and its score, or lists of them where a text has several."""
    texts, scores = [each.text for each in generated], [round(each.score, 6) for each in generated]
    return {"generated": texts[0], "score": scores[0]} if len(texts) == 1 else {"generated": texts, "score": scores}


def _records(source: str, text_column: str) -> Iterator[dict[str, Any]]:
    if is_jsonl(source):
        for record in read_records(source):
            record.text(text_column, named("text_column"))
            yield record.values
    else:
        yield from ({"text": line} for _, line in read_texts(source))


def _summary(generator: Generator, count: int, took: float, where: str) -> Summary:
    total = generator.num_tokens
    lines = [
        f"{count:,} texts, {describe_search(generator.settings)}, {total:,} tokens in {took:.1f} s "
        f"({total / max(took, 1e-9):,.0f} per second){where}"
    ]
    if generator.num_truncated:
        lines.append(f"{generator.num_truncated:,} texts were longer than the model reads, and were truncated")
    if generator.num_unfinished:
        lines.append(
            f"{generator.num_unfinished:,} generated texts reached the greatest length before an end token; "
            f"{named('max_new_tokens')} raises it"
        )
    return Summary("\n".join(lines))
