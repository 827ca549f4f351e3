"""Feeds of tasks: the batches, metrics and checks of training and evaluation."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from bertjax.config.task import TaskConfig
from bertjax.data.tokenizer import Tokenizer
from bertjax.experiment import build
from bertjax.experiment.task import Split, Task
from bertjax.tasks.batches import EvalBatches, TaskBatches, sequence_lengths
from bertjax.tasks.evaluate import EvalResult, Evaluator, Tuner
from bertjax.tasks.features import Features
from bertjax.tasks.objective import TaskObjective
from bertjax.training.sharding import local_sequences
from bertjax.types import Params


def task_feed(
    exp: build.Experiment, task: Task, batches: TaskBatches, on_scores: Callable[[EvalResult], None]
) -> build.Feed:
    """Returns the data of a task for the training loop.

    Args:
        exp: experiment of the task.
        task: the task.
        batches: its training batches.
        on_scores: called with the detailed scores of every evaluation.
    """
    evaluate: Callable[[Params, Any], Mapping[str, float]] = _no_metrics
    if task.held_out:
        evaluate = held_out_evaluator(exp, task.config, task.tokenizer, task.held_out, on_scores)
    if task.tuning:
        evaluate = _tuner(exp, task, task.tuning, evaluate)
    digests = {"tokenizer": task.tokenizer.digest, "task": _digest(task.labels, task.train)}
    counts = {name: len(split.examples) for name, split in task.splits.items()}
    return build.Feed(batches, lambda program: evaluate, digests, task.train.data.features.num_tokens, counts)


def _tuner(exp: build.Experiment, task: Task, split: Split, evaluate: Evaluator | Any) -> Tuner:
    batches = _eval_batches(exp, task.config, task.tokenizer, split.data.features)
    return Tuner(task.config, _of_labels(exp), exp.mesh, split.data, batches, evaluate)


def _no_metrics(params: Params, frozen: Any) -> Mapping[str, float]:
    return {}


def held_out_evaluator(
    exp: build.Experiment,
    config: TaskConfig,
    tokenizer: Tokenizer,
    split: Split,
    on_scores: Callable[[EvalResult], None] = lambda scores: None,
) -> Evaluator:
    """Returns the function of parameters and frozen weights that computes the metrics of held-out examples.

    Args:
        exp: experiment of the task.
        config: settings of the task.
        tokenizer: the tokenizer of the model.
        split: the held-out examples.
        on_scores: called with the detailed scores of every evaluation.
    """
    batches = _eval_batches(exp, config, tokenizer, split.data.features)
    evaluator: Evaluator = config.spec.evaluator(
        config, _of_labels(exp), exp.mesh, tokenizer, split.examples, split.data, batches, on_scores
    )
    return evaluator


def _of_labels(exp: build.Experiment) -> TaskObjective:
    assert isinstance(exp.objective, TaskObjective)
    return exp.objective.of_labels


def _eval_batches(exp: build.Experiment, config: TaskConfig, tokenizer: Tokenizer, features: Features) -> EvalBatches:
    lengths = list(sequence_lengths(features, None))
    lengths[0] = max(lengths[0], exp.cfg.data.seq_len)
    if config.packing and len(lengths) > 1:
        lengths[1] = -(-config.spec.max_target_length // 8) * 8
    return EvalBatches(
        features,
        batch_size=exp.cfg.eval.batch_size,
        pad_id=tokenizer.pad_id,
        vocab_size=exp.model.vocab_size,
        seq_len=lengths[0],
        target_len=next(iter(lengths[1:]), None),
        packing=config.packing,
        share=functools.partial(local_sequences, mesh=exp.mesh),
    )


def held_out_metric_names(exp: build.Experiment, task: Task) -> list[str]:
    """Returns the names of the metrics of `task.eval`, none without held-out examples; runs no model."""
    if task.held_out is None:
        return []
    return held_out_evaluator(exp, task.config, task.tokenizer, task.held_out).names()


def task_digests(task: Task) -> dict[str, str]:
    """Returns digests of all that a process has read of a task, texts and answers included."""
    digests = {"tokenizer": task.tokenizer.digest}
    for name, split in task.splits.items():
        read = dataclasses.replace(split.examples, locations=[], notes=[])  # paths differ between hosts
        examples = hashlib.sha256(repr(read).encode("utf-8", "surrogatepass")).hexdigest()[:32]
        digests |= {f"task.{name}": _digest(task.labels, split), f"examples of task.{name}": examples}
    return digests


def _digest(labels: tuple[str, ...], split: Split) -> str:
    """Returns a digest of a split: its windows, their labels, and the names of labels."""
    features = split.data.features
    digest = hashlib.sha256(repr(labels).encode())
    arrays = [features.tokens, features.offsets, *(features.labels[name] for name in sorted(features.labels))]
    arrays += [] if features.targets is None else [features.targets.tokens, features.targets.offsets]
    for array in arrays:
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()[:32]
