"""Feeds of tasks: the batches, metrics and checks of training and evaluation."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from bertjax.config.distributed import MeshConfig
from bertjax.config.fields import Reader
from bertjax.config.task import TaskConfig
from bertjax.data.tokenizer import Tokenizer
from bertjax.errors import UserError, named
from bertjax.experiment import build
from bertjax.experiment.task import Split, Task
from bertjax.tasks.batches import EvalBatches, TaskBatches, choose_packed_length, sequence_lengths
from bertjax.tasks.evaluate import EvalResult, Evaluator, Tuner
from bertjax.tasks.features import Features
from bertjax.tasks.objective import TaskObjective
from bertjax.training.sharding import local_sequences, make_mesh
from bertjax.types import Params

_STEPS_PER_SHAPE = {"cpu": (150, 1500)}
_STEPS_PER_SHAPE_DEFAULT = 1500, 15_000
"""Above so many steps, a second (third) batch shape saves more time than its compilation costs."""
_LENGTH_MULTIPLE, _LENGTH_MULTIPLE_DEFAULT = {"cpu": 8}, 64
"""Packed sequences are a multiple of so many tokens long; kernels of accelerators read blocks of them."""


def task_batches(
    cfg: ConfigDict,
    task: Task,
    mesh: jax.sharding.Mesh | None = None,
    sizes: Sequence[int] = (),
    lengths: Sequence[tuple[int, ...]] = (),
    min_examples: int = 0,
) -> TaskBatches:
    """Returns the batches of all epochs, with sequences that the devices share equally.

    Args:
        cfg: config of the run.
        task: the task.
        mesh: device mesh; that of the config by default.
        sizes: batch sizes in sequences, to share compiled steps with other runs; chosen from the data by default.
        lengths: lengths of sequences, for the same purpose.
        min_examples: least number of examples per sequence, for the same purpose.
    """
    mesh = make_mesh(Reader(cfg)(MeshConfig)) if mesh is None else mesh
    config, features = task.config, task.train.data.features
    if features.group > 1 and cfg.train.microbatches > 1:
        raise UserError(
            f"train.microbatches={cfg.train.microbatches} would divide the choices of an example; set it to 1, and "
            "task.batch_size lower"
        )
    platform = mesh.devices.flat[0].platform
    num_shapes = num_batch_shapes(cfg, config, len(features) // features.group, platform)
    sequence_multiple = mesh.shape["data"] * mesh.shape["fsdp"] * cfg.train.microbatches
    seq_len, *target_len = _lengths(task, sequence_multiple, num_shapes, platform)
    return TaskBatches(
        features,
        batch_size=config.batch_size,
        epochs=config.epochs,
        seed=cfg.seed,
        pad_id=task.tokenizer.pad_id,
        vocab_size=task.model.vocab_size,
        seq_len=seq_len,
        target_len=next(iter(target_len), None),
        packing=config.packing,
        group_by_length=config.group_by_length,
        sequence_multiple=sequence_multiple,
        share=functools.partial(local_sequences, mesh=mesh),
        num_batch_shapes=num_shapes,
        sizes=sizes,
        lengths=lengths,
        min_examples=min_examples,
    )


def num_batch_shapes(cfg: ConfigDict, config: TaskConfig, num_windows: int, platform: str) -> int:
    """Returns `task.num_batch_shapes`, or a number that suits the length of the run.

    Args:
        cfg: config of the run.
        config: config of the task.
        num_windows: training windows per epoch.
        platform: platform of the devices; compiling is slower on accelerators.

    Raises:
        UserError: several shapes are set together with several steps per dispatch.
    """
    if cfg.train.steps_per_dispatch > 1:
        if config.num_batch_shapes not in (None, 1):
            raise UserError(
                f"task.num_batch_shapes={config.num_batch_shapes}: with train.steps_per_dispatch > 1 all batches have "
                "one shape; set it to 1, or set train.steps_per_dispatch=1"
            )
        return 1
    steps = config.epochs * num_windows / config.batch_size
    thresholds = _STEPS_PER_SHAPE.get(platform, _STEPS_PER_SHAPE_DEFAULT)
    return config.num_batch_shapes or 1 + sum(steps >= threshold for threshold in thresholds)


def _lengths(task: Task, sequence_multiple: int, num_shapes: int, platform: str) -> tuple[int, ...]:
    """Returns the lengths of sequences, and of targets.

    Packed examples with targets have the limits of the config, rounded up, others the length up to there that costs
    least; without packing it is that of the longest example.
    """
    if task.config.packing:
        features, spec = task.train.data.features, task.config.spec
        seq_len, *target_len = (-(-limit // 8) * 8 for limit in (task.config.max_length, spec.max_target_length))
        if len(features.sides) > 1:
            return seq_len, *target_len
        if task.seq_len is not None:
            (longest,) = sequence_lengths(features, None)
            if longest > task.seq_len:
                raise UserError(
                    f"task.train: an example has {longest} tokens, rounded up, but the sequences of this run have "
                    f"{task.seq_len}: the data or {named('task.max_length')} changed since it began; restore them, or "
                    f"give another {named('workdir')}"
                )
            return (task.seq_len,)
        length = choose_packed_length(
            features,
            task.config.batch_size * features.group,
            seq_len,
            length_multiple=_LENGTH_MULTIPLE.get(platform, _LENGTH_MULTIPLE_DEFAULT),
            sequence_multiple=sequence_multiple,
            num_batch_shapes=num_shapes,
            width=task.model.hidden_size,
        )
        return (length,)
    lengths = [sequence_lengths(split.data.features, None) for split in task.splits.values()]
    return tuple(map(max, zip(*lengths, strict=True)))


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
        examples = task.tuning.data
        tuned = _eval_batches(exp, task.config, task.tokenizer, examples.features)
        evaluate = Tuner(task.config, _of_labels(exp), exp.mesh, examples, tuned, evaluate)
    digests = {"tokenizer": task.tokenizer.digest, "task": _digest(task.labels, task.train)}
    counts = {name: len(split.examples) for name, split in task.splits.items()}
    return build.Feed(batches, lambda program: evaluate, digests, task.train.data.features.num_tokens, counts)


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
