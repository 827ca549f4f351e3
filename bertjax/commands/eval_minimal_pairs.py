"""Minimal pairs (BLiMP): how often a model prefers the correct one of two sentences."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Sequence
from typing import Annotated, Literal, NamedTuple

import numpy as np

from bertjax.commands.arguments import BatchTokens, File, Flag, Model, Out, as_list
from bertjax.commands.signatures import command
from bertjax.errors import UserError, named
from bertjax.experiment.load import batch_tokens as tokens_per_batch
from bertjax.experiment.load import require_batch_tokens
from bertjax.experiment.open_model import open_model
from bertjax.inference.minimal_pairs import MinimalPairScores, PairScore, minimal_pair_scores
from bertjax.inference.pseudo_likelihood import default_mode, score_texts
from bertjax.inference.text_files import JsonRecord, read_records
from bertjax.io.output import open_records, require_output
from bertjax.io.progress_bar import ProgressBar

GOOD, BAD = "sentence_good", "sentence_bad"
GROUPS = ("phenomenon", "linguistics_term", "UID")
_WORDS = {
    "pll": "pseudo-log-likelihood, each token masked in turn",
    "within-word": "pseudo-log-likelihood, each token masked with the rest of its word",
    "likelihood": "log-likelihood",
}


@dataclasses.dataclass(frozen=True)
class Accuracies(MinimalPairScores):
    """Accuracies; `str` is the table of the groups."""

    lines: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join(self.lines)


class Pairs(NamedTuple):
    """Pairs in the order of the files; `groups` holds field `by` of every record, None if there is none."""

    good: list[str]
    bad: list[str]
    records: list[JsonRecord]
    by: str | None
    groups: list[str] | None


@command
def eval_minimal_pairs(
    model: Model,
    pairs: Annotated[Sequence[str], Flag(type=File, metavar="FILE", nargs="+")],
    *,
    score: Literal["pll", "within-word", "likelihood"] | None = None,
    group_by: Annotated[str | None, Flag(metavar="FIELD")] = None,
    out: Out = None,
    batch_tokens: BatchTokens = None,
) -> Accuracies:
    """Count how often a model prefers the correct sentence of a minimal pair (BLiMP).

    Args:
        pairs: .jsonl with sentence_good, sentence_bad
        score: pll masks each token in turn, within-word also the rest of its word (default: likelihood for causal
            models, pll for others)
        group_by: field to group by (default: phenomenon, linguistics_term or UID)
        out: a .jsonl file for the scores of every pair

    Returns:
        The accuracy of all pairs and of every group.

    Raises:
        UserError: a file or the model cannot be read.

    Example:
        bertjax eval-minimal-pairs --model runs/quickstart --pairs 'blimp/*.jsonl'
    """
    require_batch_tokens(batch_tokens)
    if out is not None:
        require_output(out)
    read = read_pairs(as_list("pairs", pairs), group_by)
    opened = open_model(model, head="mlm")
    mode = score or default_mode(opened.model)
    began = time.monotonic()
    with ProgressBar("rows") as progress:
        scored_texts = score_texts(
            opened.model,
            opened.tokenizer,
            [*read.good, *read.bad],
            mode,
            two_streams=opened.two_streams,
            tokens=tokens_per_batch(batch_tokens),
            on_progress=progress.update,
        )
    for record, *scored in zip(read.records, *np.split(scored_texts.tokens, 2), strict=True):
        if not all(scored):
            raise UserError(f"{record.location}: a sentence holds nothing that the tokenizer knows as text")
    good, bad = np.split(scored_texts.totals, 2)
    scores = minimal_pair_scores(good, bad, read.groups)
    if out is not None:
        with open_records(out) as write:
            for record, right, wrong in zip(read.records, good.tolist(), bad.tolist(), strict=True):
                write({**record.values, "score_good": round(right, 6), "score_bad": round(wrong, 6)})
    headline = f"{scores.overall.pairs:,} pairs, {_WORDS[mode]}, in {time.monotonic() - began:.1f} s"
    return Accuracies(**vars(scores), lines=(headline, *_table(scores, read.by)))


def read_pairs(files: Sequence[str], by: str | None = None) -> Pairs:
    """Reads pairs from .jsonl files; raises `UserError` with file and line of the first error."""
    pairs = Pairs([], [], [], None, None)
    groups: list[str] = []
    for path in files:
        for record in read_records(path):
            if not pairs.records and by is None:
                by = next((field for field in GROUPS if field in record.values), None)
            for field, sentences in ((GOOD, pairs.good), (BAD, pairs.bad)):
                sentence = record.text(field)
                if not sentence.strip():
                    raise UserError(f"{record.location}: {field} is blank")
                sentences.append(sentence)
            pairs.records.append(record)
            if by is not None:
                groups.append(record.text(by, named("group_by")))
    if not pairs.records:
        raise UserError(f"{', '.join(files)}: no pairs; a line looks like {json.dumps({GOOD: '...', BAD: '...'})}")
    return pairs._replace(by=by, groups=groups if by is not None else None)


def _table(scores: MinimalPairScores, by: str | None) -> list[str]:
    rows: list[tuple[str, PairScore]] = [*scores.groups.items(), ("all", scores.overall)]
    width = max(len(by or ""), len("mean of the groups"), *(len(name) for name, _ in rows))
    lines = [f"{by or '':{width}}  {'pairs':>8}  accuracy"]
    lines += [f"{name:{width}}  {score.pairs:>8,}  {score.accuracy:8.3f}" for name, score in rows]
    if len(scores.groups) > 1:
        lines.append(f"{'mean of the groups':{width}}  {'':8}  {scores.macro_accuracy:8.3f}")
    if scores.overall.ties:
        lines.append(f"ties, which count as wrong: {scores.overall.ties:,}")
    return lines
