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
from bertjax.errors import UserError, named, require_at_least
from bertjax.experiment.load import batch_tokens as tokens_per_batch
from bertjax.experiment.open_model import open_model
from bertjax.inference.pseudo_likelihood import default_mode, score_texts
from bertjax.inference.text_files import JsonRecord, read_records
from bertjax.io.output import open_records, require_output
from bertjax.io.progress_bar import ProgressBar
from bertjax.tasks.metrics.sklearn_compat import require_same_length

GOOD, BAD = "sentence_good", "sentence_bad"
GROUPS = ("phenomenon", "linguistics_term", "UID")


@dataclasses.dataclass(frozen=True)
class PairScore:
    """Share of the pairs whose correct sentence has the higher score; a tie counts as wrong."""

    accuracy: float
    pairs: int
    ties: int


@dataclasses.dataclass(frozen=True)
class MinimalPairScores:
    """`overall` weighs all pairs alike, `macro_accuracy` all groups; groups are in the order of their first pair."""

    overall: PairScore
    macro_accuracy: float
    groups: dict[str, PairScore]


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
    require_at_least(1, batch_tokens=batch_tokens)
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


def minimal_pair_scores(
    good: Sequence[float] | np.ndarray, bad: Sequence[float] | np.ndarray, groups: Sequence[str] | None = None
) -> MinimalPairScores:
    """Scores n pairs of sentences, and each group of pairs.

    Args:
        good: (pseudo-)log-likelihoods of the correct sentences [n].
        bad: those of the wrong sentences [n].
        groups: group of each pair; None: no groups.

    Raises:
        UserError: there is nothing to score, the lengths differ, or a likelihood is nan.
    """
    require_same_length(len(good), len(bad), "sentences")
    right, wrong = np.asarray(good, np.float64), np.asarray(bad, np.float64)
    undefined = np.isnan(right) | np.isnan(wrong)
    if undefined.any():
        raise UserError(f"the likelihood of pair {int(undefined.argmax()) + 1} is nan; has the model diverged?")
    names = [""] * len(right) if groups is None else list(groups)
    require_same_length(len(right), len(names), "pairs")
    index = {name: number for number, name in enumerate(dict.fromkeys(names))}
    member = np.array([index[name] for name in names])
    scores = {name: _score(right[member == number], wrong[member == number]) for name, number in index.items()}
    macro = float(np.mean([score.accuracy for score in scores.values()]))
    return MinimalPairScores(_score(right, wrong), macro, {} if groups is None else scores)


def _score(good: np.ndarray, bad: np.ndarray) -> PairScore:
    return PairScore(float((good > bad).mean()), len(good), int((good == bad).sum()))
