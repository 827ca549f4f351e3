"""The metrics of a run in words, for the reference of the docs; those of objectives and tasks are their attributes."""

from __future__ import annotations

from collections.abc import Iterable

from bertjax.config.extensions import TASK_KINDS
from bertjax.config.objectives import OBJECTIVES, loss_titles

Described = dict[str, tuple[str, str]]
"""Name -> (unit, meaning)."""

TRAINING: Described = {
    "learning_rate": ("1", "The schedule's rate of the newest step."),
    "grad_norm": ("1", "Norm of the whole gradient before clipping, mean over the steps since the last line."),
    "padding": ("share", "Token slots without a real token."),
    "tokens_per_second": ("tokens/s", "Real tokens, padding excluded, of all devices together."),
    "seconds_per_step": ("s", "Wall-clock time, without evaluations, saves and probes."),
    "eta_seconds": ("s", "Time to the last step at this speed."),
    "mfu": ("share", "Model FLOPs per second over the peak of the chips; missing where the peak is not known."),
    "data_wait": ("share", "Time in which the devices had no batch."),
    "slowest_process": ("process", "Of several processes the one whose devices were idle most."),
    "slowest_idle": ("share", "Time in which its devices had no step to run."),
    "others_idle": ("share", "The same of the other processes, their median."),
    "skipped": ("steps", "Steps refused since the start of the run (`train.on_nonfinite=skip`)."),
    "rollbacks": ("times", "Rollbacks since the start of the run (`train.on_nonfinite=rollback`)."),
    "rollback_from_step": ("step", "Step with the anomaly; a line of its own per rollback."),
    "rollback_to_batch": ("cursor", "Batch at which the run continued; the same line."),
    "spikes": ("steps", "Loss spikes among the steps that were applied (`train.spike_factor`)."),
}
"""Metrics of `train/` that every objective has."""


SUFFIXES: Described = {
    "loss": ("see below", "The mean over what is predicted; `loss` alone is the weighted sum that is minimized."),
    "accuracy": ("share", "Correct predictions: of tokens, pairs, texts or answers (start and end)."),
    "unigram_loss": ("nats", "The loss of guessing by frequency on the same tokens: what a model beats by learning."),
}
"""What `NAME_loss`, `NAME_accuracy` and `NAME_unigram_loss` are of a loss; not every loss has the last two."""
_UNITS = {
    **{"cosine": "1 - cosine", "hidden_states": "squared difference", "attention": "squared difference"},
    **dict.fromkeys(("regression", "regression_teacher"), "squared label"),
}


def losses() -> dict[str, tuple[str, str, str]]:
    """Returns name -> (unit, what is predicted, settings that have it) of all losses."""
    titles = loss_titles() | {kind: spec.title.capitalize() for kind, spec in TASK_KINDS.items()}
    owners = {
        loss: [f"objective.name={name}" for name, each in OBJECTIVES.items() if loss in each.loss_titles]
        for loss in titles
    } | {kind: [f"task.kind={kind}"] for kind in TASK_KINDS}
    taught = [kind for kind, spec in TASK_KINDS.items() if spec.head == "sequence_classification"]
    titles |= {f"{kind}_teacher": "Scores of the teacher" for kind in taught}
    owners |= {f"{kind}_teacher": [f"task.kind={kind} with task.teacher"] for kind in taught}
    return {loss: (_UNITS.get(loss, "nats"), title, ", ".join(owners[loss])) for loss, title in titles.items()}


def other_metrics() -> dict[str, Described]:
    """Returns the metrics that are not those of a loss, by what has them."""
    objectives = {f"objective.name={name}": config.metrics for name, config in OBJECTIVES.items() if config.metrics}
    tasks = {f"task.kind={name}": spec.metrics for name, spec in TASK_KINDS.items()}
    return {"training": TRAINING, **objectives, **tasks}


def undescribed(names: Iterable[str]) -> list[str]:
    """Returns the metrics of a line of `metrics.jsonl` that no description covers."""
    known = {"step", "loss"} | {name for group in other_metrics().values() for name in group}
    known |= {f"{loss}_{suffix}" for loss in losses() for suffix in SUFFIXES}
    return [name for name in names if name.rpartition("/")[2] not in known]
