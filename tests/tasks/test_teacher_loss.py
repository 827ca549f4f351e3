"""Losses of a teacher's scores, compared with torch."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.nn import functional

from bertjax.config.extensions import TASK_KINDS
from bertjax.errors import UserError
from bertjax.tasks.objective import TaskObjective


def scores(seed: int, outputs: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(scale=3.0, size=(2, 3, outputs)).astype(np.float32)


def ours(kind: str, outputs: int, temperature: float) -> np.ndarray:
    arrays = (jnp.asarray(scores(seed, outputs)) for seed in (0, 1))
    return np.asarray(TASK_KINDS.load(kind)().teacher_loss(*arrays, temperature))


def theirs(outputs: int) -> list[torch.Tensor]:
    return [torch.from_numpy(scores(seed, outputs)) for seed in (0, 1)]


@pytest.mark.parametrize("temperature", [1.0, 4.0])
def test_classes_diverge_as_in_torch(temperature: float) -> None:
    student, teacher = ((each / temperature).log_softmax(-1) for each in theirs(5))
    expected = functional.kl_div(student, teacher, reduction="none", log_target=True).sum(-1) * temperature**2
    np.testing.assert_allclose(ours("classification", 5, temperature), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("temperature", [1.0, 4.0])
def test_labels_diverge_as_in_torch(temperature: float) -> None:
    student, teacher = (each / temperature for each in theirs(5))
    loss = functional.binary_cross_entropy_with_logits(student, teacher.sigmoid(), reduction="none")
    entropy = functional.binary_cross_entropy_with_logits(teacher, teacher.sigmoid(), reduction="none")
    expected = (loss - entropy).mean(-1) * temperature**2
    np.testing.assert_allclose(ours("multilabel", 5, temperature), expected, rtol=1e-4, atol=1e-5)


def test_numbers_differ_as_in_torch() -> None:
    student, teacher = theirs(1)
    np.testing.assert_allclose(ours("regression", 1, 3.0), ((student - teacher) ** 2)[..., 0], rtol=1e-5)


@pytest.mark.parametrize(("kind", "outputs"), [("classification", 5), ("multilabel", 5), ("regression", 1)])
def test_the_teacher_itself_has_no_loss(kind: str, outputs: int) -> None:
    same = jnp.asarray(scores(0, outputs))
    np.testing.assert_allclose(TASK_KINDS.load(kind)().teacher_loss(same, same, 2.0), 0.0, atol=1e-5)


def test_weights_of_both_losses_add_up_to_one() -> None:
    alone, taught = TaskObjective(kind="classification"), TaskObjective(kind="classification", teacher="folder")
    assert alone.loss_weights == taught.of_labels.loss_weights == {"classification": 1.0}
    assert taught.loss_weights == {"classification": 0.5, "classification_teacher": 0.5}


@pytest.mark.parametrize("kind", ["tokens", "qa", "seq2seq"])
def test_tasks_of_words_and_answers_have_no_teacher(kind: str) -> None:
    with pytest.raises(UserError, match=rf"task.teacher: task.kind={kind} learns from labels alone"):
        TaskObjective(kind=kind, teacher="folder").check()
