"""Pseudo-labels from a larger model: which to select, and their agreement with a hand-labeled sample.

The outputs of a classifier and of a large language model have one form here: a text, a label, a confidence.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bertjax.compression import bare_name
from bertjax.config.source_files import source_files
from bertjax.config.task import TaskConfig
from bertjax.errors import UserError
from bertjax.tasks.metrics.sklearn_compat import sklearn_metrics, warnings_ignored

THRESHOLDS = (0.0, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99)
"""Confidences for which the agreement is listed, in addition to the requested one."""
SMALL_SAMPLE = 30
"""Number of gold examples below which an agreement says little."""
REASONS = {
    "duplicates": "the same text and label again",
    "conflicting": "several labels for one text",
    "no_label": "no label",
    "empty": "empty texts",
    "no_text": "ids without a text",
    "gold": "texts of the gold sample",
}
"""Reasons for which candidates are not used, in words."""
_MAX_UNKNOWN = 5
_AROUND = r"\s\"'`*\u2018\u2019\u201c\u201d\[\](){}<>"
_DECORATION = re.compile(rf"^[{_AROUND}]+|[{_AROUND}.!,;:]+$")
_PREFIX = re.compile(r"^(?:the\s+)?(?:label|answer|class|category|sentiment)\s*(?:is|:|=)\s*", re.IGNORECASE)

Key = tuple[str, str | None]
"""A text, or a pair of texts."""

NO_TEXT: Key = ("", "")


def text_key(text: str, pair: str | None) -> Key:
    """Returns the identity of a text or a pair; blanks around them are ignored."""
    return text.strip(), None if pair is None else pair.strip()


class Candidate(NamedTuple):
    """The label that a larger model gives to a text; `confidence` is None if unknown; `id` is passed through."""

    key: Key
    label: str
    confidence: float | None
    id: Any = None


@dataclasses.dataclass
class LabelBuckets:
    """Usable candidates, and counts of the others by reason.

    Attributes:
        candidates: The usable ones.
        counts: The number of others by reason, a key of `REASONS`.
        unknown_labels: The most frequent unknown labels, with counts.
    """

    candidates: list[Candidate] = dataclasses.field(default_factory=list)
    counts: Counter[str] = dataclasses.field(default_factory=Counter)
    unknown_labels: list[tuple[str, int]] = dataclasses.field(default_factory=list)

    def dropped(self) -> dict[str, int]:
        """Returns the counts that are not 0."""
        return {reason: self.counts[reason] for reason in REASONS if self.counts[reason]}


def parse_label(output: Any, spellings: Mapping[str, str]) -> str | None:
    """Returns the label that a model's output is, None if it is not one.

    Capitals, quotes, a full stop at the end and "Label:" at the beginning are ignored. A sentence is never a label,
    because it may say anything about it.

    Args:
        output: text, number or boolean.
        spellings: result of `label_spellings`.
    """
    if isinstance(output, bool) or not isinstance(output, str | int | float):
        output = str(output).lower() if isinstance(output, bool) else ""
    text = str(output)
    for _ in range(2):
        text = _PREFIX.sub("", _DECORATION.sub("", text))
    return spellings.get(text.casefold())


def label_spellings(labels: Sequence[str]) -> dict[str, str]:
    """Returns the labels by their lower-case form; raises `UserError` if two differ in capitals alone."""
    spellings = {label.casefold(): label for label in labels}
    if len(spellings) < len(labels):
        raise UserError(f"two labels differ in capitals alone ({', '.join(labels)}); an answer could be either")
    return spellings


def sort_candidates(
    candidates: Iterable[Candidate], labels: Sequence[str], gold: Mapping[Key, str] | None = None
) -> LabelBuckets:
    """Separates usable candidates, at most one per text, from the others.

    Args:
        candidates: candidates with labels as the model wrote them.
        labels: names of the labels.
        gold: labels of the gold sample, whose texts are left out.
    """
    spellings = label_spellings(labels)
    buckets, unknown = LabelBuckets(), Counter[str]()
    of_text: dict[Key, Candidate | None] = {}
    for candidate in candidates:
        label = parse_label(candidate.label, spellings)
        if candidate.key == NO_TEXT:
            buckets.counts["no_text"] += 1
        elif not candidate.key[0].strip():
            buckets.counts["empty"] += 1
        elif label is None:
            buckets.counts["no_label"] += 1
            unknown[" ".join(str(candidate.label).split())[:60]] += 1
        elif gold is not None and candidate.key in gold:
            buckets.counts["gold"] += 1
        elif candidate.key not in of_text:
            of_text[candidate.key] = candidate._replace(label=label)
        else:
            _add_repeated(buckets, of_text, candidate, label)
    buckets.candidates = [candidate for candidate in of_text.values() if candidate is not None]
    buckets.unknown_labels = unknown.most_common(_MAX_UNKNOWN)
    return buckets


def _add_repeated(
    buckets: LabelBuckets, of_text: dict[Key, Candidate | None], candidate: Candidate, label: str
) -> None:
    """Handles a repeated text: the lower confidence counts; if the labels differ, none of them is used."""
    before = of_text[candidate.key]
    if before is None:
        buckets.counts["conflicting"] += 1
    elif before.label == label:
        buckets.counts["duplicates"] += 1
        if (candidate.confidence or 0.0) < (before.confidence or 0.0):
            of_text[candidate.key] = before._replace(confidence=candidate.confidence)
    else:
        buckets.counts["conflicting"] += 2
        of_text[candidate.key] = None


def select_candidates(
    candidates: Sequence[Candidate], threshold: float | None, max_per_class: int | None = None, balance: bool = False
) -> list[Candidate]:
    """Selects candidates and keeps their order.

    Args:
        candidates: usable candidates.
        threshold: least confidence; None: any.
        max_per_class: most candidates per label, those of the highest confidence.
        balance: select as many per label as the rarest label has.

    Raises:
        UserError: there is a threshold, but a candidate has no confidence.
    """
    if threshold is not None and any(each.confidence is None for each in candidates):
        count = sum(each.confidence is None for each in candidates)
        raise UserError(f"--min-confidence: {count:,} answers have no confidence; leave the flag out, or add the field")
    confident = [each for each in candidates if threshold is None or (each.confidence or 0.0) >= threshold]
    counts = Counter(each.label for each in confident)
    if balance and counts:
        max_per_class = min(min(counts.values()), max_per_class or len(confident))
    if max_per_class is None:
        return confident
    confidence = np.array([-1.0 if each.confidence is None else each.confidence for each in confident])
    taken, selected = Counter[str](), []
    for index in np.argsort(-confidence, kind="stable").tolist():
        taken[confident[index].label] += 1
        if taken[confident[index].label] <= max_per_class:
            selected.append(index)
    return [confident[index] for index in sorted(selected)]


class ThresholdRow(NamedTuple):
    """Number of gold examples with at least this confidence, and of those that agree."""

    confidence: float
    examples: int
    correct: int

    @property
    def agreement(self) -> float | None:
        """Share of the examples that agree; None without examples."""
        return self.correct / self.examples if self.examples else None


@dataclasses.dataclass(frozen=True)
class Agreement:
    """Agreement of candidates with gold labels.

    Attributes:
        at: Agreement at the threshold.
        total: Number of gold texts.
        unanswered: Gold texts without a usable candidate.
        kappa: Cohen's kappa at the threshold; None if undefined.
        rows: Counts per label at the threshold: predicted, correct and gold.
        thresholds: Agreement at each of `THRESHOLDS` and the threshold; empty without confidences.
    """

    at: ThresholdRow
    total: int
    unanswered: int
    kappa: float | None
    rows: dict[str, dict[str, int]]
    thresholds: list[ThresholdRow]


def compute_agreement(
    candidates: Sequence[Candidate], gold: Mapping[Key, str], labels: Sequence[str], threshold: float | None
) -> Agreement:
    """Compares candidates with the gold sample.

    Args:
        candidates: candidates for the texts of the sample; others are ignored.
        gold: gold labels.
        labels: names of the labels.
        threshold: least confidence; None: any.

    Raises:
        UserError: no text of the sample has a candidate, or a gold label is unknown.
    """
    unknown = next((label for label in gold.values() if label not in labels), None)
    if unknown is not None:
        raise UserError(f"--gold: unknown label {unknown!r}; known are {', '.join(labels)}")
    of_gold = {each.key: each for each in candidates if each.key in gold}
    if not of_gold:
        raise UserError("--gold: no text of the gold sample has an answer; texts must be the same to the letter")
    pairs = [(each, gold[key]) for key, each in of_gold.items()]
    selected = [(each, true) for each, true in pairs if threshold is None or (each.confidence or 0.0) >= threshold]
    rows = {
        label: {
            "predicted": sum(each.label == label for each, _ in selected),
            "correct": sum(each.label == label == true for each, true in selected),
            "gold": sum(true == label for _, true in selected),
        }
        for label in labels
    }
    has_confidence = all(each.confidence is not None for each, _ in pairs)
    thresholds = sorted({*THRESHOLDS, *([threshold] if threshold is not None else [])}) if has_confidence else []
    return Agreement(
        _agreement_at(pairs, 0.0 if threshold is None else threshold),
        len(gold),
        len(gold) - len(of_gold),
        _kappa(selected, labels),
        rows,
        [_agreement_at(pairs, each) for each in thresholds],
    )


def _agreement_at(pairs: Sequence[tuple[Candidate, str]], confidence: float) -> ThresholdRow:
    selected = [(each, true) for each, true in pairs if (each.confidence or 0.0) >= confidence]
    return ThresholdRow(confidence, len(selected), sum(each.label == true for each, true in selected))


def _kappa(pairs: Sequence[tuple[Candidate, str]], labels: Sequence[str]) -> float | None:
    """Returns Cohen's kappa; None if it is undefined: no examples, or one label alone on both sides."""
    if not pairs:
        return None
    with warnings_ignored():
        kappa = sklearn_metrics().cohen_kappa_score(
            [each.label for each, _ in pairs], [true for _, true in pairs], labels=list(labels)
        )
    return float(kappa) if math.isfinite(kappa) else None


def wilson_interval(correct: int, count: int) -> tuple[float, float]:
    """Returns the 95% confidence interval of a share: Wilson's score interval (JASA 22, 1927)."""
    z, share = 1.959964, correct / count
    center, width = share + z * z / (2 * count), z * math.sqrt(share * (1 - share) / count + (z / (2 * count)) ** 2)
    return max(0.0, (center - width) / (1 + z * z / count)), min(1.0, (center + width) / (1 + z * z / count))


def describe_trust(agreement: Agreement | None) -> str:
    """Returns a sentence on the expected errors of the selected labels."""
    if agreement is None:
        return "no gold sample: the accuracy of these labels is unknown; label a hundred texts by hand (--gold)"
    if not agreement.at.examples:
        return "no gold example reaches the confidence: nothing is known about the labels that are kept"
    low, high = wilson_interval(agreement.at.correct, agreement.at.examples)
    text = (
        f"of {agreement.at.examples:,} gold examples {agreement.at.correct / agreement.at.examples:.1%} agree (95% "
        f"interval {low:.1%} to {high:.1%}): expect {1 - high:.0%} to {1 - low:.0%} of the labels kept to be wrong"
    )
    is_small = agreement.at.examples < SMALL_SAMPLE
    return text + (f"; that is a small sample, {SMALL_SAMPLE} or more say more" if is_small else "")


def summarize(
    file: str,
    source: str,
    labels: Sequence[str],
    buckets: LabelBuckets,
    selected: Sequence[Candidate],
    threshold: float | None,
    agreement: Agreement | None,
) -> dict[str, Any]:
    """Returns the summary that is written next to the labels; reports show kept, of, threshold, agreement and rows.

    Args:
        file: name of the file with the labels.
        source: the larger model, or the file of its outputs.
        labels: names of the labels.
        buckets: all candidates.
        selected: the selected ones.
        threshold: least confidence; None: any.
        agreement: agreement with the gold sample; None: there is none.
    """
    total, selected_counts = (Counter(each.label for each in group) for group in (buckets.candidates, selected))
    rows: list[dict[str, Any]] = [
        {"label": label, "kept": selected_counts[label], "of": total[label], "agreement": None} for label in labels
    ]
    if agreement is not None:
        for row in rows:
            counts = agreement.rows[str(row["label"])]
            row |= {"agreement": counts["correct"] / counts["predicted"] if counts["predicted"] else None}
            row |= {f"gold_{name}": counts[name] for name in ("predicted", "correct")}
            row |= {"gold_support": counts["gold"]}
    at = None if agreement is None else agreement.at
    return {
        "file": file,
        "source": source,
        "kept": len(selected),
        "of": len(buckets.candidates) + sum(buckets.dropped().values()),
        "threshold": threshold,
        "dropped": buckets.dropped(),
        "no_labels": [{"answer": text, "count": count} for text, count in buckets.unknown_labels],
        "agreement": None if at is None else at.agreement,
        "interval": None if at is None or not at.examples else wilson_interval(at.correct, at.examples),
        "kappa": None if agreement is None else agreement.kappa,
        "trust": describe_trust(agreement),
        "gold": None if agreement is None else {"examples": agreement.total, "unanswered": agreement.unanswered},
        "thresholds": []
        if agreement is None
        else [each._asdict() | {"agreement": each.agreement} for each in agreement.thresholds],
        "rows": rows,
    }


def summary_path(path: str | Path) -> Path:
    """Returns the path of the summary of a file of labels: silver.labels.json for silver.jsonl."""
    path = Path(path)
    return path.with_name(path.name[: len(bare_name(path.name))].rpartition(".")[0] + ".labels.json")


def read_label_summaries(config: TaskConfig) -> list[dict[str, Any]]:
    """Returns what reports show of the training files that `bertjax pseudo-label` has written."""
    summaries = []
    for source in config.sources("train"):
        for path in source_files(source):
            summary = _read_summary(summary_path(path), Path(path).name)
            if summary is not None:
                names = ("kept", "of", "threshold", "agreement", "rows")
                summaries.append({name: summary.get(name) for name in names})
    return summaries


def _read_summary(path: Path, name: str) -> dict[str, Any] | None:
    """Returns the summary of the file `name`; None if there is none, or something else."""
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) and content.get("file") == name else None
