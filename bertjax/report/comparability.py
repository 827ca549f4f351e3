"""Determines which losses of runs are comparable, and the tokens and FLOPs that each had used by a step."""

from __future__ import annotations

import hashlib
import json
import math
import os
import string
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bertjax.report.run_record import RunRecord, read_run
from bertjax.report.sections import metric_names, token_losses

AXES = ("step", "tokens", "FLOPs")
PROBE = "probe.json"
_SAME = [
    "objective",
    "data.eval_fraction",
    "data.example_format",
    "data.packing",
    "data.pack_examples",
    "data.seq_len",
    "data.lowercase",
    "data.short_seq_prob",
    "data.sop_drop_single_sentences",
    "task.kind",
    "task.eval",
    "task.text_column",
    "task.pair_column",
    "task.label_column",
    "task.labels",
    "task.header",
    "task.tokens.tag_scheme",
    "task.max_length",
    "task.truncation",
    "task.qa.doc_stride",
    "task.qa.max_question_length",
    "task.qa.max_answer_length",
    "task.qa.n_best_size",
    "task.qa.allow_no_answer",
    "task.qa.null_score_diff_threshold",
    "task.class_weights",
    "eval.num_batches",
    "eval.batch_size",
]
"""Keys that a held-out loss depends on, besides its text and the tokenizer."""


class ComparedRun(NamedTuple):
    """A run to compare. `cost` maps every known axis of `AXES` to the amounts used by `steps`."""

    name: str
    run: RunRecord
    tokenizer: str
    scores: Mapping[str, float]
    steps: np.ndarray
    cost: Mapping[str, np.ndarray]

    def at(self, axis: str, steps: np.ndarray) -> np.ndarray | None:
        """Returns the amounts used by these steps [n], float64 [n]; None if unknown."""
        known = self.cost.get(axis)
        return None if known is None else np.interp(steps, self.steps, known)

    def spent(self, axis: str) -> float | None:
        """Returns the amount used by the whole run; None if unknown."""
        known = self.cost.get(axis)
        return None if known is None else float(known[-1])

    @property
    def minutes(self) -> float | None:
        """Minutes of training steps, without evaluation and compilation."""
        per_step = self.run.metrics.get("train/seconds_per_step")
        if per_step is None or not np.isfinite(per_step.y).any():
            return None
        steps = np.diff(per_step.x, prepend=0.0)
        mean = float(np.nanmean(per_step.y))
        return float((steps * np.where(np.isfinite(per_step.y), per_step.y, mean)).sum() / 60)

    @property
    def config_without_seed(self) -> str:
        """The config without the seed, equal for runs that differ only by it."""
        return json.dumps({key: value for key, value in self.run.config.items() if key != "seed"}, sort_keys=True)


class Group(NamedTuple):
    """Runs with comparable held-out losses: same objective, tokenizer and held-out examples."""

    letter: str
    members: list[ComparedRun]


def read_compared_run(workdir: Path, name: str, run: RunRecord | None = None) -> ComparedRun:
    """Reads a work directory for comparison.

    Args:
        workdir: Work directory of the run.
        name: Name of the run in tables and charts.
        run: Its record, if the caller knows more than the directory holds.
    """
    run = read_run(workdir) if run is None else run
    steps, cost = _costs(run)
    return ComparedRun(name, run, _tokenizer_digest(workdir), _scores(workdir), steps, cost)


def unique_names(workdirs: Sequence[Path]) -> list[str]:
    """Returns the directory names, prefixed by as many parents as needed to make them unique."""
    paths = [workdir.resolve() for workdir in workdirs]
    for depth in range(1, max((len(path.parts) for path in paths), default=1) + 1):
        names = ["/".join(path.parts[-depth:]) for path in paths]
        if len(set(names)) == len(set(paths)):
            return names
    return [str(path) for path in paths]


def _costs(run: RunRecord) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Returns amounts at step 0 and at every training record; FLOPs count padding, tokens do not."""
    padding = run.metrics.get("train/padding")
    steps = np.array([0.0, run.step]) if padding is None else np.concatenate([[0.0], padding.x])
    steps = np.unique(np.append(steps, run.step))
    share = np.ones(len(steps))
    if padding is not None and len(padding.x):
        share = 1.0 - np.interp(steps, padding.x, np.nan_to_num(padding.y))
    phases = _phases(run)
    cost = {"step": steps}
    slots = _amount(steps, phases, "slots")
    if slots is not None:
        cost["tokens"] = np.cumsum(np.diff(slots, prepend=0.0) * share)
    flops = _amount(steps, phases, "flops")
    if flops is not None:
        cost["FLOPs"] = flops
    return steps, cost


def _phases(run: RunRecord) -> list[Mapping[str, Any]]:
    phases = run.facts.get("phases")
    if isinstance(phases, list) and phases and all(isinstance(phase, dict) for phase in phases):
        return phases
    batch_size, length = run.setting("train.batch_size"), run.setting("data.seq_len")
    changes = run.setting("train.phases") or run.setting("train.initial_batch_size")
    if changes or type(batch_size) is not int or type(length) is not int:
        return []
    return [{"start": 0, "slots": batch_size * length}]


def _amount(steps: np.ndarray, phases: Sequence[Mapping[str, Any]], field: str) -> np.ndarray | None:
    """Returns the amount of the first `steps` batches over the phases of a run; None if a phase lacks the field."""
    if not phases or not all(type(phase.get(field)) in (int, float) for phase in phases):
        return None
    starts = [float(phase.get("start", 0)) for phase in phases]
    ends = [*starts[1:], math.inf]
    total = np.zeros(len(steps))
    for phase, start, end in zip(phases, starts, ends, strict=True):
        total += (np.clip(steps, start, end) - start) * float(phase[field])
    return total


def _tokenizer_digest(workdir: Path) -> str:
    """Returns the digest of the tokenizer files of a run; empty if it has none yet."""
    folder, total = workdir / "tokenizer", hashlib.sha256()
    files = sorted(path for path in folder.iterdir() if path.is_file()) if folder.is_dir() else []
    for path in files:
        total.update(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()[:12] if files else ""


def _scores(workdir: Path) -> dict[str, float]:
    """Returns the scores of the frozen-feature probe in `probe.json`, or in the `outcome.json` of a shoot-out."""
    for name in (PROBE, "outcome.json"):
        try:
            stored = json.loads((workdir / name).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            continue
        scores = stored.get("scores") if isinstance(stored, dict) else None
        if name != PROBE and isinstance(stored, dict):
            scores = {key: stored[key] for key in ("tags", "sentences") if key in stored}
        if isinstance(scores, dict):
            return {str(key): float(value) for key, value in scores.items() if type(value) in (int, float)}
    return {}


def group_comparable(runs: Iterable[ComparedRun]) -> list[Group]:
    """Groups runs with comparable losses, in order of appearance."""
    groups: dict[str, list[ComparedRun]] = {}
    for each in runs:
        groups.setdefault(_loss_key(each), []).append(each)
    return [Group(_letters(index), members) for index, members in enumerate(groups.values())]


def _loss_key(each: ComparedRun) -> str:
    """Returns everything that a held-out loss depends on besides the weights, as JSON."""
    run = each.run
    recorded = run.facts.get("sources")  # those of all phases
    trained = recorded.get("train") if isinstance(recorded, dict) else None
    sources = run.setting("data.eval_sources") or trained or run.setting("data.sources")
    return json.dumps([*map(run.setting, _SAME), sources, each.tokenizer], sort_keys=True, default=str)


def _letters(index: int) -> str:
    """Returns A, B, ... Z, AA, AB, ..."""
    letters = ""
    index += 1
    while index:
        index, letter = divmod(index - 1, 26)
        letters = string.ascii_uppercase[letter] + letters
    return letters


def eval_metric_names(group: Group) -> list[str]:
    """Returns the held-out metrics of a group, token losses first, without baselines and bookkeeping."""
    names = list(dict.fromkeys(name for each in group.members for name in metric_names(each.run)))
    names = [name for name in names if any(f"eval/{name}" in each.run.metrics for each in group.members)]
    first = [f"{name}_loss" for name in dict.fromkeys(n for each in group.members for n in token_losses(each.run))]
    others = [name for name in names if name.endswith("_loss") and not name.endswith("unigram_loss")]
    scores = [name for name in names if not name.endswith("loss")]
    return list(dict.fromkeys([*first, *others, *scores])) or [name for name in names if name == "loss"]


def shared_end(members: Sequence[ComparedRun], axis: str) -> float | None:
    """Returns the amount that all runs have reached; None if any is unknown."""
    ends = [each.spent(axis) for each in members]
    known = [end for end in ends if end is not None]
    return min(known) if known and len(known) == len(ends) else None


def interpolate_metric(each: ComparedRun, metric: str, axis: str, amount: float) -> float | None:
    """Returns a held-out metric at an amount, interpolated linearly between evaluations; None outside of them.

    Args:
        each: The run.
        metric: Name without `eval/`.
        axis: One of `AXES`.
        amount: Steps, tokens or FLOPs.
    """
    series = each.run.metrics.get(f"eval/{metric}")
    if series is None:
        return None
    finite = np.isfinite(series.y)
    x = each.at(axis, series.x[finite])
    if x is None or not len(x) or amount < x[0] * (1 - 1e-9) or amount > x[-1] * (1 + 1e-9):
        return None
    return float(np.interp(amount, x, series.y[finite]))


def group_by_seed(runs: Iterable[ComparedRun]) -> dict[str, list[ComparedRun]]:
    """Groups runs with probe scores that differ only by their seed, under their common name."""
    groups: dict[str, list[ComparedRun]] = {}
    for each in runs:
        if each.scores:
            groups.setdefault(each.config_without_seed, []).append(each)
    return {_common_name(members): members for members in groups.values()}


def _common_name(members: Sequence[ComparedRun]) -> str:
    """Returns the common prefix of the names."""
    names = [each.name for each in members]
    if len(names) == 1:
        return names[0]
    return os.path.commonprefix(names).rstrip("-_. ") or names[0]  # noqa: RUF071
