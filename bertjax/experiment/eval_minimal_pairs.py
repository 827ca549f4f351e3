"""Minimal pairs (BLiMP): how often a model prefers the correct one of two sentences."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bertjax.errors import UserError
from bertjax.experiment.load import batch_tokens, load_model, require_batch_tokens
from bertjax.inference.minimal_pairs import MinimalPairScores, PairScore, minimal_pair_scores
from bertjax.inference.pseudo_likelihood import default_mode, score_texts
from bertjax.inference.text_files import JsonRecord, read_records
from bertjax.io import atomic
from bertjax.io.progress_bar import ProgressBar

GOOD, BAD = "sentence_good", "sentence_bad"
GROUPS = ("phenomenon", "linguistics_term", "UID")
_WORDS = {
    "pll": "pseudo-log-likelihood, each token masked in turn",
    "within-word": "pseudo-log-likelihood, each token masked with the rest of its word",
    "likelihood": "log-likelihood",
}


class Pairs(NamedTuple):
    """Pairs in the order of the files; `groups` holds field `by` of every record, None if there is none."""

    good: list[str]
    bad: list[str]
    records: list[JsonRecord]
    by: str | None
    groups: list[str] | None


def eval_minimal_pairs(
    folder: Path, files: Sequence[str], score: str | None, by: str | None, out: Path | None, tokens: int | None
) -> MinimalPairScores:
    """Prints and returns the accuracy of every group of pairs.

    Args:
        folder: a Hugging Face folder, an export or a work directory.
        files: .jsonl files with sentence_good and sentence_bad.
        score: pll, within-word or likelihood; chosen by the model by default.
        by: field to group by; the first of `GROUPS` in the records by default.
        out: .jsonl file for the scores of every pair.
        tokens: tokens per batch.

    Raises:
        UserError: a file or the model cannot be read.
    """
    require_batch_tokens(tokens)
    if out is not None and not out.parent.is_dir():
        raise UserError(f"no folder {out.parent} for --out; make it first")
    pairs = read_pairs(files, by)
    model, tokenizer, two_streams = load_model(folder, head="mlm")
    mode = score or default_mode(model)
    began = time.monotonic()
    with ProgressBar("rows") as progress:
        texts = [*pairs.good, *pairs.bad]
        scored_texts = score_texts(
            model,
            tokenizer,
            texts,
            mode,
            two_streams=two_streams,
            tokens=batch_tokens(tokens),
            on_progress=progress.update,
        )
    for record, *scored in zip(pairs.records, *np.split(scored_texts.tokens, 2), strict=True):
        if not all(scored):
            raise UserError(f"{record.location}: a sentence holds nothing that the tokenizer knows as text")
    good, bad = np.split(scored_texts.totals, 2)
    scores = minimal_pair_scores(good, bad, pairs.groups)
    if out is not None:
        _write(out, pairs, good, bad)
    print(f"{scores.overall.pairs:,} pairs, {_WORDS[mode]}, in {time.monotonic() - began:.1f} s")
    print("\n".join(_table(scores, pairs.by)))
    return scores


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
                groups.append(record.text(by, "--group-by"))
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


def _write(out: Path, pairs: Pairs, good: np.ndarray, bad: np.ndarray) -> None:
    """Writes the records with the scores of both sentences."""
    both = zip(pairs.records, good.tolist(), bad.tolist(), strict=True)
    lines = [
        {**record.values, "score_good": round(right, 6), "score_bad": round(wrong, 6)} for record, right, wrong in both
    ]
    try:
        atomic.write_text(out, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    except OSError as error:
        raise UserError(f"--out {out} cannot be written: {error.strerror or error}") from None
