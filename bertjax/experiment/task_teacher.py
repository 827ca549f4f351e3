"""The teacher of a task: a finetuned model, whose scores of the training texts are computed once and stored."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bertjax.config.task import TaskConfig
from bertjax.errors import UserError, comma_list
from bertjax.experiment.load import load_finetuned, require_model
from bertjax.experiment.open_model import trained_task
from bertjax.experiment.workdir import has_checkpoints
from bertjax.hf.pretrained import PretrainedModel
from bertjax.inference.predict import Predictor, infer_task_kind, make_task_config
from bertjax.io import atomic
from bertjax.tasks.features import TextData
from bertjax.tasks.readers.examples import TextExamples

FILE = "teacher_scores.npy"
"""In the work directory: float32 [n, K], a row per training example, in the order of the labels of the task."""
_ARRAY = "teacher_scores"


def teacher_scores(config: TaskConfig, examples: TextExamples, labels: Sequence[str], workdir: Path) -> np.ndarray:
    """Returns the scores of `task.teacher` [n, K]; a run that resumes from a checkpoint reads those that it has stored.

    Args:
        config: settings of the task.
        examples: the training examples.
        labels: names of the labels, in the order of their ids; () for a number.
        workdir: work directory of the run.

    Raises:
        UserError: the teacher has another kind of task or other labels, or the stored scores are of other examples.
    """
    path = workdir / FILE
    if not (path.exists() and has_checkpoints(workdir)):  # without one, teacher and data may have changed
        print(f"scoring {len(examples):,} examples with {config.teacher}")
        return _scores(config, examples, labels)
    scores: np.ndarray = np.load(path, allow_pickle=False)
    if scores.shape != (len(examples), max(len(labels), 1)):
        raise UserError(
            f"{path} holds scores of {scores.shape[0]:,} examples, the data has {len(examples):,}: restore the data it "
            "was made of, or take another work directory"
        )
    return scores


def add_scores(data: TextData, scores: np.ndarray) -> TextData:
    """Returns features with the scores of a teacher [n, K] of their examples."""
    values = {**data.features.labels, _ARRAY: scores[data.features.example]}
    return dataclasses.replace(data, features=dataclasses.replace(data.features, labels=values))


def store_scores(workdir: Path, data: Any, num_examples: int) -> None:
    """Writes the scores of a teacher, if features have some; the first windows are the examples in their order."""
    scores = data.features.labels.get(_ARRAY)
    if scores is not None:
        with atomic.atomic_file(workdir / FILE) as file:
            np.save(file, scores[:num_examples], allow_pickle=False)


def _scores(config: TaskConfig, examples: TextExamples, labels: Sequence[str]) -> np.ndarray:
    assert config.teacher is not None
    folder = require_model(config.teacher)
    trained = trained_task(folder)
    model, tokenizer = load_finetuned(folder, trained)[:2]
    if not isinstance(model, PretrainedModel) or (kind := infer_task_kind(model)) != config.kind:
        other = "an encoder-decoder" if not isinstance(model, PretrainedModel) else kind
        raise UserError(f"task.teacher={config.teacher} was finetuned for {other}, not for task.kind={config.kind}")
    pair, length = config.pair_column, config.max_length
    settings = make_task_config(model, kind, pair_column=pair, max_length=length, truncation=config.truncation)
    outputs = Predictor(model, tokenizer, settings).outputs(dataclasses.replace(examples, labels=None, scores=None))
    if not labels:
        return outputs.astype(np.float32)
    if trained is not None:
        outputs = outputs / trained.spec.temperature  # an export holds it in its last layer
    theirs = list(model.config.labels)
    if sorted(theirs) != sorted(labels):
        raise UserError(
            f"task.teacher={config.teacher} knows the labels {comma_list(theirs)}, the data {comma_list(labels)}; name "
            "those of the data as the teacher does"
        )
    return outputs[:, [theirs.index(label) for label in labels]].astype(np.float32)
