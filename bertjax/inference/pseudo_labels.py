"""Labels from a larger model: which of them to keep, and how far they agree with a sample that people have labelled.

Answers of a classifier and of a large language model are the same thing here: a text, a label, a confidence.
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

from bertjax.config.sources import source_files
from bertjax.config.task import TaskConfig
from bertjax.errors import UserError
from bertjax.finetuning.metrics.sklearn_compat import sklearn_metrics, warnings_ignored

THRESHOLDS = (0.0, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99)
"""Confidences at which agreement is listed, beside the one that was asked for."""
SMALL_SAMPLE = 30
"""Gold examples below which an agreement says little."""
_SHOWN = 5
_AROUND = r"\s\"'`*\u2018\u2019\u201c\u201d\[\](){}<>"
_DECORATION = re.compile(rf"^[{_AROUND}]+|[{_AROUND}.!,;:]+$")
_PREFIX = re.compile(r"^(?:the\s+)?(?:label|answer|class|category|sentiment)\s*(?:is|:|=)\s*", re.IGNORECASE)

Key = tuple[str, str | None]
"""A text, or a pair of texts."""

NO_TEXT: Key = ("", "")


def text_key(text: str, pair: str | None) -> Key:
    """How texts are told apart: blanks around them do not count."""
    return text.strip(), None if pair is None else pair.strip()


class Candidate(NamedTuple):
    """What a larger model says of a text; `confidence` is None where it does not tell. `id` is carried along."""

    key: Key
    label: str
    confidence: float | None
    id: Any = None


@dataclasses.dataclass
class LabelBuckets:
    """Answers that can be used, and how many of the others there are, by what is wrong with them.

    duplicates: the same text with the same label again · conflicting: texts with several labels · no_label: answers
    that are none of the labels, the most frequent in `strange` · empty: texts without a character · no_text: answers
    with an id that no text has · gold: texts of the gold sample, which stay out of what is trained on.
    """

    answers: list[Candidate] = dataclasses.field(default_factory=list)
    duplicates: int = 0
    conflicting: int = 0
    no_label: int = 0
    empty: int = 0
    no_text: int = 0
    gold: int = 0
    strange: list[tuple[str, int]] = dataclasses.field(default_factory=list)

    def dropped(self) -> dict[str, int]:
        """Counts by name, those that are not 0."""
        names = ("duplicates", "conflicting", "no_label", "empty", "no_text", "gold")
        return {name: getattr(self, name) for name in names if getattr(self, name)}


def parse_label(said: Any, labels: Mapping[str, str]) -> str | None:
    """The label that an answer is, None where it is none; `labels` are those of `label_spellings`.

    Capitals, quotes, a full stop behind it and "Label:" before it do not count; a sentence around it does: who writes
    one may be saying anything.
    """
    if isinstance(said, bool) or not isinstance(said, str | int | float):
        said = str(said).lower() if isinstance(said, bool) else ""
    text = str(said)
    for _ in range(2):
        text = _PREFIX.sub("", _DECORATION.sub("", text))
    return labels.get(text.casefold())


def label_spellings(labels: Sequence[str]) -> dict[str, str]:
    """How labels may be written, in small letters; raises `UserError` where two are alike but for their capitals."""
    found = {label.casefold(): label for label in labels}
    if len(found) < len(labels):
        raise UserError(f"two labels differ in capitals alone ({', '.join(labels)}); an answer could be either")
    return found


def sort_candidates(
    said: Iterable[Candidate], labels: Sequence[str], gold: Mapping[Key, str] | None = None
) -> LabelBuckets:
    """The answers whose label is known, one a text, in their order; `label` is as the model wrote it."""
    known = label_spellings(labels)
    found, strange = LabelBuckets(), Counter[str]()
    of_text: dict[Key, Candidate | None] = {}
    for answer in said:
        label = parse_label(answer.label, known)
        if answer.key == NO_TEXT:
            found.no_text += 1
        elif not answer.key[0].strip():
            found.empty += 1
        elif label is None:
            found.no_label += 1
            strange[" ".join(str(answer.label).split())[:60]] += 1
        elif gold is not None and answer.key in gold:
            found.gold += 1
        elif answer.key not in of_text:
            of_text[answer.key] = answer._replace(label=label)
        else:
            _again(found, of_text, answer, label)
    found.answers = [answer for answer in of_text.values() if answer is not None]
    found.strange = strange.most_common(_SHOWN)
    return found


def _again(found: LabelBuckets, of_text: dict[Key, Candidate | None], answer: Candidate, label: str) -> None:
    """A text comes a second time: once more the same, or in conflict, and then none of its labels is taken."""
    before = of_text[answer.key]
    if before is None:
        found.conflicting += 1
    elif before.label == label:
        found.duplicates += 1
        if (answer.confidence or 0.0) < (before.confidence or 0.0):  # the lower one counts, in the place of the first
            of_text[answer.key] = before._replace(confidence=answer.confidence)
    else:
        found.conflicting += 2
        of_text[answer.key] = None


def select_candidates(
    answers: Sequence[Candidate], threshold: float | None, most: int | None = None, balance: bool = False
) -> list[Candidate]:
    """The answers of at least `threshold`, in their order; of a label at most `most`, the surest first.

    `balance` takes as many of each label as there are of the rarest. Raises `UserError` where a confidence is missing.
    """
    if threshold is not None and any(answer.confidence is None for answer in answers):
        count = sum(answer.confidence is None for answer in answers)
        raise UserError(f"--min-confidence: {count:,} answers have no confidence; leave the flag out, or add the field")
    sure = [each for each in answers if threshold is None or (each.confidence or 0.0) >= threshold]
    counts = Counter(each.label for each in sure)
    if balance and counts:
        most = min(min(counts.values()), most or len(sure))
    if most is None:
        return sure
    confidence = np.array([-1.0 if each.confidence is None else each.confidence for each in sure])
    left, kept = Counter[str](), []
    for index in np.argsort(-confidence, kind="stable").tolist():
        left[sure[index].label] += 1
        if left[sure[index].label] <= most:
            kept.append(index)
    return [sure[index] for index in sorted(kept)]


class ThresholdRow(NamedTuple):
    """Of the gold examples with an answer of at least this confidence: how many, and how many agree."""

    confidence: float
    examples: int
    right: int

    @property
    def agreement(self) -> float | None:
        return self.right / self.examples if self.examples else None


@dataclasses.dataclass(frozen=True)
class Agreement:
    """How answers agree with gold labels; `kappa` (Cohen's) and `rows` are of those at the threshold.

    rows of labels: said, how often the model says it; right, how often rightly; gold, how often it is the gold label;
    found, how often the model then says it · unanswered: gold texts without a usable answer · levels: of `THRESHOLDS`
    and the threshold; empty without confidences.
    """

    at: ThresholdRow
    total: int
    unanswered: int
    kappa: float | None
    rows: dict[str, dict[str, int]]
    levels: list[ThresholdRow]


def compute_agreement(
    answers: Sequence[Candidate], gold: Mapping[Key, str], labels: Sequence[str], threshold: float | None
) -> Agreement:
    """Of the answers to texts of the gold sample; raises `UserError` where there are none, or a gold label is none."""
    unknown = next((label for label in gold.values() if label not in labels), None)
    if unknown is not None:
        raise UserError(f"--gold: unknown label {unknown!r}; known are {', '.join(labels)}")
    said = {each.key: each for each in answers if each.key in gold}
    if not said:
        raise UserError("--gold: no text of the gold sample has an answer; texts must be the same to the letter")
    right = [(each, gold[key]) for key, each in said.items()]
    at = [(each, label) for each, label in right if threshold is None or (each.confidence or 0.0) >= threshold]
    rows = {
        label: {
            "said": sum(each.label == label for each, _ in at),
            "right": sum(each.label == label == true for each, true in at),
            "gold": sum(true == label for _, true in at),
        }
        for label in labels
    }
    has_confidence = all(each.confidence is not None for each, _ in right)
    levels = sorted({*THRESHOLDS, *([threshold] if threshold is not None else [])}) if has_confidence else []
    return Agreement(
        _level(right, 0.0 if threshold is None else threshold),
        len(gold),
        len(gold) - len(said),
        _kappa(at, labels),
        rows,
        [_level(right, each) for each in levels],
    )


def _level(right: Sequence[tuple[Candidate, str]], confidence: float) -> ThresholdRow:
    there = [(each, true) for each, true in right if (each.confidence or 0.0) >= confidence]
    return ThresholdRow(confidence, len(there), sum(each.label == true for each, true in there))


def _kappa(pairs: Sequence[tuple[Candidate, str]], labels: Sequence[str]) -> float | None:
    """Cohen's; None where it is not defined: no examples, or one label alone on both sides."""
    if not pairs:
        return None
    with warnings_ignored():
        found = sklearn_metrics().cohen_kappa_score(
            [each.label for each, _ in pairs], [true for _, true in pairs], labels=list(labels)
        )
    return float(found) if math.isfinite(found) else None


def wilson_interval(right: int, count: int) -> tuple[float, float]:
    """Where the true share is in 95 of 100 cases: Wilson's score interval (JASA 22, 1927)."""
    z, share = 1.959964, right / count
    middle, width = share + z * z / (2 * count), z * math.sqrt(share * (1 - share) / count + (z / (2 * count)) ** 2)
    return max(0.0, (middle - width) / (1 + z * z / count)), min(1.0, (middle + width) / (1 + z * z / count))


def describe_trust(found: Agreement | None) -> str:
    """How far to trust the labels, in a sentence."""
    if found is None:
        return "no gold sample: nobody knows how far to trust these labels; label a hundred texts by hand (--gold)"
    if not found.at.examples:
        return "no gold example reaches the confidence: nothing is known of the labels that are kept"
    low, high = wilson_interval(found.at.right, found.at.examples)
    said = (
        f"of {found.at.examples:,} gold examples {found.at.right / found.at.examples:.1%} agree (95% interval "
        f"{low:.1%} to {high:.1%}): expect {1 - high:.0%} to {1 - low:.0%} of the labels kept to be wrong"
    )
    return said + (
        f"; that is a small sample, {SMALL_SAMPLE} or more say more" if found.at.examples < SMALL_SAMPLE else ""
    )


def summarize(
    file: str,
    source: str,
    labels: Sequence[str],
    sorted_: LabelBuckets,
    kept: Sequence[Candidate],
    threshold: float | None,
    found: Agreement | None,
) -> dict[str, Any]:
    """What is written beside the labels; kept, of, threshold, agreement and rows are what a report shows."""
    of, own = Counter(each.label for each in sorted_.answers), Counter(each.label for each in kept)
    rows: list[dict[str, Any]] = [
        {"label": label, "kept": own[label], "of": of[label], "agreement": None} for label in labels
    ]
    if found is not None:
        for row in rows:
            counts = found.rows[str(row["label"])]
            row |= {"agreement": counts["right"] / counts["said"] if counts["said"] else None}
            row |= {"gold_said": counts["said"], "gold_right": counts["right"], "gold_support": counts["gold"]}
    return {
        "file": file,
        "source": source,
        "kept": len(kept),
        "of": len(sorted_.answers) + sum(sorted_.dropped().values()),
        "threshold": threshold,
        "dropped": sorted_.dropped(),
        "no_labels": [{"answer": text, "count": count} for text, count in sorted_.strange],
        "agreement": None if found is None else found.at.agreement,
        "interval": None
        if found is None or not found.at.examples
        else wilson_interval(found.at.right, found.at.examples),
        "kappa": None if found is None else found.kappa,
        "gold": None if found is None else {"examples": found.total, "unanswered": found.unanswered},
        "levels": [] if found is None else [each._asdict() | {"agreement": each.agreement} for each in found.levels],
        "rows": rows,
        "trust": describe_trust(found),
    }


def summary_path(path: str | Path) -> Path:
    """Where it is told how labels came about: silver.jsonl has silver.labels.json beside it."""
    path = Path(path)
    return path.with_name(path.name.removesuffix(".gz").rpartition(".")[0] + ".labels.json")


def read_label_summaries(config: TaskConfig) -> list[dict[str, Any]]:
    """Of the training files of a task those that `bertjax pseudo-label` has written, as a report shows them."""
    found = []
    for source in config.sources("train"):
        for path in source_files(source):
            told_of = _read(summary_path(path), Path(path).name)
            if told_of is not None:
                found.append({name: told_of.get(name) for name in ("kept", "of", "threshold", "agreement", "rows")})
    return found


def _read(path: Path, name: str) -> dict[str, Any] | None:
    """What stands beside a file of that name; None where nothing does, or something else."""
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and found.get("file") == name else None
