"""Compiles the first training step while the state is drawn or restored."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import jax

from bertjax.experiment.abstract_inputs import abstract_batch
from bertjax.experiment.build import Experiment
from bertjax.training.loop import steps_per_dispatch


@contextlib.contextmanager
def compile_meanwhile(exp: Experiment, latest_step: int | None) -> Iterator[None]:
    """Compiles the program of the first dispatch in a thread while the body of the `with` statement runs.

    jax keeps what it has compiled by shapes, so the first dispatch finds the program. On two processors a cold start
    gains half a second; on an accelerator compiling takes minutes, as does restoring a large state.

    Args:
        exp: Run to compile for, with its frozen weights attached.
        latest_step: Step of the newest checkpoint; None = there is none. Nothing is compiled after the last step, nor
            for a state from `resume_from`, whose step is known when it is restored.
    """
    if latest_step == exp.cfg.train.num_steps or (latest_step is None and exp.cfg.resume_from is not None):
        yield
        return
    thread = threading.Thread(target=_compile, args=(exp, latest_step or 0), name="compile")
    thread.start()
    try:
        yield
    finally:
        thread.join()


def _compile(exp: Experiment, step: int) -> None:
    program = exp.at(step + 1).programs[-1]
    batch, size = abstract_batch(exp, program), steps_per_dispatch(exp.config, step)
    train_step, inputs = (program.train_step, batch) if size == 1 else (program.train_steps, [batch] * size)
    with contextlib.suppress(Exception), jax.set_mesh(exp.mesh):  # the first dispatch compiles again and raises
        train_step.lower(exp.abstract_state(), exp.frozen, inputs).compile()
