"""Finetuning: trains a task on the weights of a folder or a run, with the loop of pretraining."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from bertjax.checkpoint.manager import Checkpoints
from bertjax.config.extensions import TASK_KINDS
from bertjax.config.task import TaskConfig
from bertjax.data.tokenizer_io import save_tokenizer
from bertjax.errors import named
from bertjax.experiment import build
from bertjax.experiment.abstract_inputs import require_metric
from bertjax.experiment.averaging import averaged_params, last_steps
from bertjax.experiment.callbacks import Callback, TrainingStart, train
from bertjax.experiment.config import parse
from bertjax.experiment.export import export_run
from bertjax.experiment.init_from import load_initial_weights
from bertjax.experiment.load import SourceModel, StoredRun
from bertjax.experiment.processes import require_same_inputs, require_same_start
from bertjax.experiment.task import (
    Task,
    read_task,
    require_task,
    resolve_config,
    store_settings,
)
from bertjax.experiment.task_feed import (
    held_out_evaluator,
    held_out_metric_names,
    task_batches,
    task_digests,
    task_feed,
)
from bertjax.experiment.task_teacher import store_scores
from bertjax.experiment.workdir import (
    changed_keys,
    has_checkpoints,
    hold_workdir,
    require_same_data,
    require_same_run,
    write_config,
)
from bertjax.io.jsonl import read_log, to_line
from bertjax.metrics import scores_line
from bertjax.runtime.process_group import SINGLE_PROCESS, ProcessGroup, connect_devices
from bertjax.tasks.batches import TaskBatches
from bertjax.tasks.evaluate import Tuner
from bertjax.training.state import COUNTER_DEFAULTS, TrainState
from bertjax.types import Params

_HEADS = {"sequence_classification": "sequence_head", "token_classification": "token_head"}
_HEADS |= {"question_answering": "answer_head", "multiple_choice": "choice_head"}
_PRINTED_LABELS = 12


def finetune(
    cfg: ConfigDict, workdir: Path, processes: ProcessGroup = SINGLE_PROCESS, callback: Callback | None = None
) -> dict[str, float]:
    """Trains, scores and exports a task; the same call resumes a run.

    Args:
        cfg: checked config of a task.
        workdir: work directory of the run.
        processes: processes that train together.
        callback: called while the run trains.

    Returns:
        The metrics of the exported weights, held-out ones and those of `task.test`.

    Raises:
        UserError: config, model or data are unsuitable, or `workdir` holds another run.
        StoppedBySignal: after SIGTERM or SIGINT, when the state is saved.
    """
    require_same_start(cfg, workdir, processes)
    require_task(cfg)
    connect_devices(build.check_devices(cfg))
    with hold_workdir(workdir, processes):
        return train_task(cfg, read_task(cfg, workdir, processes), workdir, processes, callback)


def train_task(
    cfg: ConfigDict,
    task: Task,
    workdir: Path,
    processes: ProcessGroup = SINGLE_PROCESS,
    callback: Callback | None = None,
    **shapes: Any,
) -> dict[str, float]:
    """Finetunes on a task that is read already; the caller holds the lock on the work directory.

    Args:
        cfg: checked config of the task.
        task: the task with its data.
        workdir: work directory of the run.
        processes: processes that train together.
        callback: called while the run trains.
        **shapes: sizes, lengths and min_examples of `task_batches`.

    Returns:
        The metrics of the exported weights, held-out ones and those of `task.test`.
    """
    batches = task_batches(cfg, task, **shapes)
    best_metric = cfg.checkpoint.best_metric
    cfg = resolve_config(cfg, task, batches)
    parse(cfg)
    changes, resumes = processes.run_on_first(
        "the work directory", lambda: (changed_keys(workdir, cfg), has_checkpoints(workdir))
    )
    exp = build.make_experiment(cfg, task.tokenizer.vocabulary())
    require_same_inputs(exp, task_digests(task), processes)
    if best_metric is not None:
        require_metric(best_metric, held_out_metric_names(exp, task))
    if not resumes:
        processes.run_on_first("the work directory", lambda: write_config(workdir, cfg))
    checkpoints = build.open_checkpoints(cfg, workdir, processes=processes)
    callback = callback or Callback()
    feed = task_feed(exp, task, batches, callback.on_task_scores)
    evaluate = feed.evaluate(exp.programs[-1])
    with contextlib.closing(checkpoints), processes.abort_on_error():
        state, restored_meta = _restore_or_init(exp, task, feed, checkpoints, processes)
        for key, before, now in changes:
            print(f"  {key}: {before} -> {now}")
        processes.run_on_first("the work directory", lambda: _write_settings(workdir, cfg, task))
        metrics: dict[str, float] = {}
        if int(state.step) < cfg.train.num_steps:
            run = build.make_run(exp, feed, workdir, checkpoints, int(state.step), restored_meta, processes)
            for line in summary(exp, task, batches):
                run.console.print(line)
            tokens = np.concatenate([side.tokens for side in task.train.data.features.sides])
            counts = np.bincount(tokens, minlength=task.tokenizer.size)
            start = TrainingStart(exp, run, int(state.step), task.tokenizer, counts, task.config)
            callback.on_train_begin(start._replace(mean_batch_size=batches.mean_sequences))
            state, metrics = train(run, state, callback)
        step, params, averaged = _params_to_export(exp, checkpoints, state)
        is_last = step == int(state.step) and len(averaged) == 1
        if not metrics or not is_last:  # the loop has just evaluated other weights, or none
            with jax.set_mesh(exp.mesh):
                metrics = dict(evaluate(params, exp.frozen))
        config = evaluate.config if isinstance(evaluate, Tuner) else task.config
        tested = _test_scores(exp, task, config, params)
        if tested:
            processes.run_on_first("metrics.jsonl", lambda: _log_test(workdir / "metrics.jsonl", step, tested))
        if step != int(state.step) and cfg.report.enabled:
            processes.run_on_first("the report", lambda: callback.on_best_params(workdir, int(state.step), step))
        if tested and cfg.report.enabled:
            processes.run_on_first("the report", lambda: callback.on_test_scores(workdir))
    if metrics:
        of_steps = f"step {step}" if len(averaged) == 1 else f"average of steps {', '.join(map(str, averaged))}"
        print(f"held out, {of_steps}: {scores_line(metrics)}")
    if tested:
        print(f"test: {scores_line(tested)}")
    if isinstance(evaluate, Tuner):
        store_settings(exp.cfg, config.spec)  # what was tuned
        processes.run_on_first("the work directory", lambda: write_config(workdir, exp.cfg))
    params = build.unpadded_params(params, exp.model)
    if cfg.export.at_end:
        meta = {"tokens": feed.tokens, "examples": feed.examples}
        run_to_export = StoredRun(exp, task.tokenizer, params, step, meta, averaged)
        processes.run_on_first("the export", lambda: export_run(run_to_export, workdir, workdir / "export"))
    return metrics | tested


def _test_scores(exp: build.Experiment, task: Task, config: TaskConfig, params: Params) -> dict[str, float]:
    """Returns the scores of `task.test`, none without such examples."""
    if task.test is None:
        return {}
    with jax.set_mesh(exp.mesh):
        scores = held_out_evaluator(exp, config, task.tokenizer, task.test)(params, exp.frozen)
    return {f"test/{name.removeprefix('eval/')}": value for name, value in scores.items()}


def _log_test(path: Path, step: int, metrics: Mapping[str, float]) -> None:
    """Appends scores to a log that does not end with them; their step may lie before its last one."""
    if any(record.get(name) != value for record in read_log(path)[-1:] for name, value in metrics.items()):
        with path.open("a", encoding="utf-8") as file:
            file.write(to_line({"step": step, **metrics}))


def _restore_or_init(
    exp: build.Experiment, task: Task, feed: build.Feed, checkpoints: Checkpoints, processes: ProcessGroup
) -> tuple[TrainState, dict[str, Any] | None]:
    """Returns state and meta of the newest checkpoint, or the initial state and None."""
    restored = checkpoints.restore(exp.abstract_state(), absent=COUNTER_DEFAULTS)
    if restored is None:
        return initial_state(exp, task, processes), None
    require_same_run(checkpoints.directory.parent, restored.step, restored.meta, exp.cfg)
    advice = f"restore the data it was trained on, or give another {named('workdir')}"
    require_same_data(restored.meta, feed.digests, advice)
    print(f"resuming at step {restored.step}")
    return restored.state, restored.meta


def initial_state(exp: build.Experiment, task: Task, processes: ProcessGroup = SINGLE_PROCESS) -> TrainState:
    """Returns the weights of `init_from` with a fresh head; with `task.from_scratch` all weights are fresh.

    Args:
        exp: the experiment.
        task: its task, with the model of `init_from`.
        processes: processes that train together.
    """
    state = exp.init_state()
    if exp.cfg.task.from_scratch:
        origin = f"architecture of {exp.cfg.init_from} with " if exp.cfg.init_from is not None else ""
        print(f"{origin}fresh weights (task.from_scratch)")
        return state
    assert task.source is not None
    return load_initial_weights(exp, task.tokenizer, state, _without_other_heads(task.source, exp), processes)


def _without_other_heads(source: SourceModel, exp: build.Experiment) -> SourceModel:
    """Drops the heads of other tasks, and the head of this one if its labels are others."""
    head = TASK_KINDS.load(exp.cfg.task.kind).head
    same_labels = source.config.labels == exp.model.labels or head in ("question_answering", "multiple_choice")
    dropped = {params for name, params in _HEADS.items() if name != head or not same_labels}
    params = {name: leaf for name, leaf in source.params.items() if name not in dropped}
    return source._replace(params=params, config=dataclasses.replace(source.config, labels=exp.model.labels))


def _write_settings(workdir: Path, cfg: ConfigDict, task: Task) -> None:
    write_config(workdir, cfg)
    save_tokenizer(task.tokenizer, workdir / "tokenizer")
    store_scores(workdir, task.train.data, len(task.train.examples))


def summary(exp: build.Experiment, task: Task, batches: TaskBatches) -> list[str]:
    """Returns the lines that describe a run before its first step.

    Args:
        exp: the experiment.
        task: its task.
        batches: its training batches.
    """
    labels, features = "", task.train.data.features
    if task.labels:
        labels = f", labels {', '.join(task.labels[:_PRINTED_LABELS])}"
        labels += " ..." if len(task.labels) > _PRINTED_LABELS else ""
    return [
        *build.describe_networks(exp.objective),
        f"task: {task.config.kind}, {len(features) // features.group:,} examples{labels}",
        f"data: {exp.cfg.train.num_steps:,} steps of {task.config.batch_size} examples in {batches.num_sequences} "
        f"sequences of {_shape(batches)} tokens are {task.config.epochs:g} epochs; padding {_padding(batches)}",
        *task.notes,
    ]


def _shape(batches: TaskBatches) -> str:
    """Returns the lengths of the sequences in words, those of targets after a plus sign."""
    return " or ".join(" + ".join(map(str, lengths)) for lengths in batches.lengths)


def _padding(batches: TaskBatches) -> str:
    sides = batches.side_padding
    named = f" (sources {sides[0]:.1%}, targets {sides[1]:.1%})" if len(sides) > 1 else ""
    return f"{batches.padding:.1%}{named}"


def exported_step(cfg: ConfigDict, checkpoints: Checkpoints, last: int) -> int:
    """Returns the step of the weights to export: the last one, or the best with `task.export_checkpoint=best`.

    Args:
        cfg: config of the run.
        checkpoints: its checkpoints.
        last: its last step.
    """
    if cfg.task.export_checkpoint == "best" and cfg.checkpoint.best_metric is not None:
        return checkpoints.best_step() or last
    return last


def _params_to_export(
    exp: build.Experiment, checkpoints: Checkpoints, state: TrainState
) -> tuple[int, Params, tuple[int, ...]]:
    """Returns step and weights to export, and the steps whose weights were averaged."""
    step = exported_step(exp.cfg, checkpoints, int(state.step))
    steps = last_steps(exp.cfg, checkpoints, step)
    if steps == (int(state.step),):
        return step, exp.eval_params(state), steps
    return step, averaged_params(exp, checkpoints, steps), steps
