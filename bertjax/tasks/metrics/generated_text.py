"""Metrics of generated texts, by the libraries that publications use: sacrebleu and rouge-score."""

from __future__ import annotations

import importlib
import importlib.metadata
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

from bertjax.errors import UserError

_LIBRARIES = {"bleu": "sacrebleu", "chrf": "sacrebleu", "rouge": "rouge_score.rouge_scorer"}
_ROUGE = ("rouge1", "rouge2", "rougeL")


class TextScores(NamedTuple):
    """Metrics in percent, and the settings of the library that computed them, for publications."""

    metrics: dict[str, float]
    signatures: dict[str, str]


def require_libraries(names: Sequence[str]) -> None:
    """Raises `UserError` if a library of these metrics (bleu, chrf, rouge) is missing, before anything is trained."""
    for name in names:
        _library(name)


def text_scores(
    names: Sequence[str], generated: Sequence[str], references: Sequence[str], bleu_tokenizer: str = "13a"
) -> TextScores:
    """Compares generated texts with one reference each.

    Args:
        names: bleu, chrf, rouge.
        generated: the texts.
        references: what they should be.
        bleu_tokenizer: one of sacrebleu's.

    Raises:
        UserError: a library is missing.
    """
    metrics: dict[str, float] = {}
    signatures: dict[str, str] = {}
    for name in names:
        library = _library(name)
        if name == "rouge":
            metrics |= _rouge(library, generated, references)
            signatures[name] = f"rouge-score {importlib.metadata.version('rouge-score')}, stemmed, mean F1"
            continue
        try:
            scorer = library.BLEU(tokenize=bleu_tokenizer) if name == "bleu" else library.CHRF()
        except (ImportError, RuntimeError) as error:  # the tokenizers of Japanese and Korean need more packages
            raise UserError(f"task.seq2seq.bleu_tokenizer={bleu_tokenizer}: {error}") from None
        metrics[name] = float(scorer.corpus_score(list(generated), [list(references)]).score)
        signatures[name] = str(scorer.get_signature())
    return TextScores(metrics, signatures)


def metric_names(names: Sequence[str]) -> list[str]:
    """Returns the names of the metrics that `text_scores` returns."""
    return [metric for name in names for metric in (_ROUGE if name == "rouge" else (name,))]


def _rouge(library: Any, generated: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    scorer = library.RougeScorer(list(_ROUGE), use_stemmer=True)  # as transformers' run_summarization
    scores = [scorer.score(reference, text) for text, reference in zip(generated, references, strict=True)]
    return {name: 100.0 * statistics.fmean(score[name].fmeasure for score in scores) for name in _ROUGE}


def _library(name: str) -> Any:
    try:
        return importlib.import_module(_LIBRARIES[name])
    except ImportError:
        package = _LIBRARIES[name].partition(".")[0].replace("_", "-")
        raise UserError(
            f"task.seq2seq.text_metrics: {name} needs {package}; pip install 'bertjax[seq2seq]', or choose others"
        ) from None
