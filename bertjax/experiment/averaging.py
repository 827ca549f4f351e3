"""Weights averaged over the last checkpoints of a run, at its end (arXiv:1706.03762, section 6.1)."""

from __future__ import annotations

import logging

import jax
from ml_collections import ConfigDict

from bertjax.checkpoint.manager import Checkpoints
from bertjax.checkpoint.surgery import average_params
from bertjax.experiment import build
from bertjax.training.sharding import host_copy, put_tree
from bertjax.training.state import COUNTER_DEFAULTS
from bertjax.types import Params

log = logging.getLogger(__name__)


def last_steps(cfg: ConfigDict, checkpoints: Checkpoints, step: int) -> tuple[int, ...]:
    """Returns the steps of `export.average_last` checkpoints, or of those in the last fifth of the run.

    Earlier weights are so much worse that the mean is worse than the last ones; the paper's are of its last 7 %.

    Args:
        cfg: config of the run.
        checkpoints: its checkpoints.
        step: the last one.
    """
    count = cfg.export.average_last - 1
    earlier = [each for each in checkpoints.all_steps() if each < step][-count:] if count else []
    late = [each for each in earlier if 5 * each >= 4 * step]
    if len(late) < count:
        log.warning(
            "export.average_last=%d: of the checkpoints only %d lie in the last fifth of the run, and are averaged; "
            "raise task.evals_per_epoch or lower checkpoint.interval_steps for more",
            *(count + 1, len(late) + 1),
        )
    return (*late, step)


def averaged_params(exp: build.Experiment, checkpoints: Checkpoints, steps: tuple[int, ...]) -> Params:
    """Returns the mean of the evaluated weights of some checkpoints, on the mesh.

    Args:
        exp: the experiment.
        checkpoints: its checkpoints.
        steps: their steps.
    """

    def params(step: int) -> Params:
        restored = checkpoints.restore(exp.abstract_state(), step, COUNTER_DEFAULTS)
        assert restored is not None
        return exp.eval_params(restored.state)

    if len(steps) == 1:
        return params(steps[0])
    shardings = jax.tree.map(lambda leaf: leaf.sharding, exp.abstract_state().params)
    return put_tree(average_params(host_copy(params(step)) for step in steps), shardings)
