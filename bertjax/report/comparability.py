"""Runs side by side: which of their losses may be compared, and what each had cost by then. Reads, draws nothing."""

from __future__ import annotations

import hashlib
import json
import math
import string
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bertjax.report.run_record import RunRecord, Series, read_run
from bertjax.report.sections import bases, word_losses

AXES = ("update", "tokens", "FLOPs")
PROBE = "probe.json"
_SAME_LOSS = ("objective",)
_SAME_TEXT = (
    "eval_fraction",
    "form",
    "packing",
    "pack_examples",
    "seq_len",
    "lowercase",
    "short_seq_prob",
    "sop_strict",
)
_SAME_TASK = (
    "kind",
    "eval",
    "text",
    "pair",
    "label",
    "labels",
    "header",
    "tags",
    "max_len",
    "cut",
    "doc_stride",
    "max_question_len",
    "max_answer_len",
    "n_best",
    "no_answer",
    "null_threshold",
    "class_weights",
)
_SAME_EVAL = ("num_batches", "batch_size")


class Contender(NamedTuple):
    """A run with what comparing it takes. `cost` has for every one of `AXES` that is known the amounts at `steps`."""

    name: str
    run: RunRecord
    tokenizer: str
    scores: Mapping[str, float]
    steps: np.ndarray
    cost: Mapping[str, np.ndarray]

    def at(self, axis: str, steps: np.ndarray) -> np.ndarray | None:
        """What had been spent by these updates; None where nobody knows."""
        known = self.cost.get(axis)
        return None if known is None else np.interp(steps, self.steps, known)

    def spent(self, axis: str) -> float | None:
        known = self.cost.get(axis)
        return None if known is None else float(known[-1])

    @property
    def minutes(self) -> float | None:
        """Of training steps, evaluation and compilation left out."""
        per_step = self.run.figures.get("train/seconds_per_step")
        if per_step is None or not np.isfinite(per_step.y).any():
            return None
        steps = np.diff(per_step.x, prepend=0.0)
        usual = float(np.nanmean(per_step.y))
        return float((steps * np.where(np.isfinite(per_step.y), per_step.y, usual)).sum() / 60)

    @property
    def seedless(self) -> str:
        """What runs have in common that differ by their seed alone."""
        return json.dumps({key: value for key, value in self.run.config.items() if key != "seed"}, sort_keys=True)


class Group(NamedTuple):
    """Runs whose held-out losses mean the same: same objective, pieces and held-out rows."""

    letter: str
    members: list[Contender]


def contender(workdir: Path, name: str, run: RunRecord | None = None) -> Contender:
    """A work folder as a contender; `run` is its record where more is known than lies there."""
    run = read_run(workdir) if run is None else run
    steps, cost = _costs(run)
    return Contender(name, run, _tokenizer_digest(workdir), _scores(workdir), steps, cost)


def names_of(workdirs: Sequence[Path]) -> list[str]:
    """The folders' names, with as much of what is above them as tells them apart."""
    paths = [workdir.resolve() for workdir in workdirs]
    for depth in range(1, max((len(path.parts) for path in paths), default=1) + 1):
        names = ["/".join(path.parts[-depth:]) for path in paths]
        if len(set(names)) == len(set(paths)):
            return names
    return [str(path) for path in paths]


def _costs(run: RunRecord) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Amounts at 0 and at every line of training figures. FLOPs take rows to be full, tokens are the real ones."""
    padding = run.figures.get("train/padding")
    steps = np.array([0.0, run.step]) if padding is None else np.concatenate([[0.0], padding.x])
    steps = np.unique(np.append(steps, run.step))
    share = np.ones(len(steps))
    if padding is not None and len(padding.x):
        share = 1.0 - np.interp(steps, padding.x, np.nan_to_num(padding.y))
    stages = _stages(run)
    cost = {"update": steps}
    slots = _amount(steps, stages, "slots")
    if slots is not None:
        cost["tokens"] = np.cumsum(np.diff(slots, prepend=0.0) * share)
    flops = _amount(steps, stages, "flops")
    if flops is not None:
        cost["FLOPs"] = flops
    return steps, cost


def _stages(run: RunRecord) -> list[Mapping[str, Any]]:
    told = run.newest("run")
    stages = told[-1].get("stages") if told else None
    if isinstance(stages, list) and stages and all(isinstance(stage, dict) for stage in stages):
        return stages
    rows, length = run.setting("train.batch_size"), run.setting("data.seq_len")
    changes = run.setting("train.phases") or run.setting("train.batch_start")
    if changes or type(rows) is not int or type(length) is not int:
        return []
    return [{"start": 0, "slots": rows * length}]


def _amount(steps: np.ndarray, stages: Sequence[Mapping[str, Any]], field: str) -> np.ndarray | None:
    """What the first `steps` batches amount to, over stages of a run; None unless every stage says it."""
    if not stages or not all(type(stage.get(field)) in (int, float) for stage in stages):
        return None
    starts = [float(stage.get("start", 0)) for stage in stages]
    ends = [*starts[1:], math.inf]
    total = np.zeros(len(steps))
    for stage, start, end in zip(stages, starts, ends, strict=True):
        total += (np.clip(steps, start, end) - start) * float(stage[field])
    return total


def _tokenizer_digest(workdir: Path) -> str:
    """Of the files of the run's own tokenizer; nothing where it has none yet."""
    folder, total = workdir / "tokenizer", hashlib.sha256()
    files = sorted(path for path in folder.iterdir() if path.is_file()) if folder.is_dir() else []
    for path in files:
        total.update(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()[:12] if files else ""


def _scores(workdir: Path) -> dict[str, float]:
    """The frozen-feature probe: `probe.json`, or what earlier shoot-outs wrote into `outcome.json`."""
    for name in (PROBE, "outcome.json"):
        try:
            found = json.loads((workdir / name).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            continue
        scores = found.get("scores") if isinstance(found, dict) else None
        if name != PROBE and isinstance(found, dict):
            scores = {key: found[key] for key in ("tags", "sentences") if key in found}
        if isinstance(scores, dict):
            return {str(key): float(value) for key, value in scores.items() if type(value) in (int, float)}
    return {}


def grouped(contenders: Iterable[Contender]) -> list[Group]:
    """The contenders by what their losses mean, in the order in which these appear."""
    found: dict[str, list[Contender]] = {}
    for each in contenders:
        found.setdefault(_meaning(each), []).append(each)
    return [Group(_letters(index), members) for index, members in enumerate(found.values())]


def _meaning(each: Contender) -> str:
    """Everything that a held-out loss depends on beside the weights."""
    run, data = each.run, each.run.setting("data") or {}
    sources = data.get("eval_sources") or data.get("sources")
    parts: list[Any] = [run.setting(key) for key in _SAME_LOSS]
    parts += [data.get(key) for key in _SAME_TEXT] + [sources, each.tokenizer]
    parts += [run.setting(f"task.{key}") for key in _SAME_TASK]
    parts += [run.setting(f"eval.{key}") for key in _SAME_EVAL]
    return json.dumps(parts, sort_keys=True, default=str)


def _letters(index: int) -> str:
    """A, B, ... Z, AA, AB, ..."""
    letters = ""
    index += 1
    while index:
        index, place = divmod(index - 1, 26)
        letters = string.ascii_uppercase[place] + letters
    return letters


def held_out_names(group: Group) -> list[str]:
    """Held-out figures of a group, losses of words first, baselines and bookkeeping left out."""
    names = list(dict.fromkeys(name for each in group.members for name in bases(each.run)))
    names = [name for name in names if any(f"eval/{name}" in each.run.figures for each in group.members)]
    words = [f"{word}_loss" for word in dict.fromkeys(w for each in group.members for w in word_losses(each.run))]
    others = [name for name in names if name.endswith("_loss") and not name.endswith("unigram_loss")]
    scores = [name for name in names if not name.endswith("loss")]
    return list(dict.fromkeys([*words, *others, *scores])) or [name for name in names if name == "loss"]


def common_end(members: Sequence[Contender], axis: str) -> float | None:
    """The amount that all of them have reached; None unless all know theirs."""
    ends = [each.spent(axis) for each in members]
    known = [end for end in ends if end is not None]
    return min(known) if known and len(known) == len(ends) else None


def value_at(each: Contender, figure: str, axis: str, amount: float) -> float | None:
    """A held-out figure at that amount, on the straight line between the evaluations around it."""
    series = each.run.figures.get(f"eval/{figure}")
    if series is None:
        return None
    finite = np.isfinite(series.y)
    kept = Series(series.x[finite], series.y[finite])
    places = each.at(axis, kept.x)
    if places is None or not len(places) or amount < places[0] * (1 - 1e-9) or amount > places[-1] * (1 + 1e-9):
        return None
    return float(np.interp(amount, places, kept.y))


def by_seed(contenders: Iterable[Contender]) -> dict[str, list[Contender]]:
    """Those with probe scores, runs that differ by their seed alone together, under a name of theirs."""
    found: dict[str, list[Contender]] = {}
    for each in contenders:
        if each.scores:
            found.setdefault(each.seedless, []).append(each)
    return {_common_name(members): members for members in found.values()}


def _common_name(members: Sequence[Contender]) -> str:
    """Of several, what their names begin with alike."""
    names = [each.name for each in members]
    if len(names) == 1:
        return names[0]
    alike = 0
    while alike < min(map(len, names)) and len({name[alike] for name in names}) == 1:
        alike += 1
    return names[0][:alike].rstrip("-_. ") or names[0]
