"""The first step compiles while the state is drawn or restored, and once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import pytest
from lab import Lab

from bertjax.experiment import build, pretrain
from bertjax.training import step

STEP = "/jax/core/compile/backend_compile_duration"


@pytest.fixture
def compiled(fresh_programs: None) -> Iterator[list[str]]:
    """Names of the compiled training steps, in order."""
    names: list[str] = []

    def heard(event: str, seconds: float, **kwargs: Any) -> None:
        name = str(kwargs.get("fun_name"))
        names.extend([name] * (event == STEP and "train_step" in name))

    jax.monitoring.register_event_duration_secs_listener(heard)
    yield names
    jax.monitoring.unregister_event_duration_listener(heard)


@pytest.mark.long
@pytest.mark.parametrize(
    "options",
    [
        pytest.param(["--config.mesh.data=2", "--config.train.phases=4:data.seq_len=16"], marks=pytest.mark.weekly),
        [
            *("--config.objective.name=plm", "--config.model.preset=xlnet-base"),
            *("--config.data.example_format=segments", "--config.train.steps_per_dispatch=2"),
        ],
    ],
    ids=["phases on two devices", "memory and several steps per dispatch"],
)
def test_a_run_and_its_continuation_compile_each_step_once(
    lab: Lab, tmp_path: Path, compiled: list[str], options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_step = pretrain._compile
    ahead: list[int] = []

    def compile_and_count(exp: build.Experiment, step: int) -> None:
        compile_step(exp, step)
        ahead.append(len(compiled))

    monkeypatch.setattr(pretrain, "_compile", compile_and_count)
    command = ["pretrain", "--config", str(lab.config), "--workdir", str(tmp_path / "run"), *options]
    command += ["--config.eval.interval_steps=0", "--config.export.at_end=False", "--config.schedule.warmup_steps=0"]
    for num_steps, before in ((4, 0), (8, 1)):
        assert lab.run(*command, f"--config.train.num_steps={num_steps}") == 0
        assert ahead[-1] == before + 1 == len(compiled)


def test_an_error_of_the_compiler_is_raised_by_the_first_step(
    lab: Lab, tmp_path: Path, fresh_programs: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("out of registers")

    monkeypatch.setattr(step, "train_step", refuse)
    monkeypatch.setattr(step, "train_steps", refuse)
    with pytest.raises(RuntimeError, match="out of registers"):
        lab.run("pretrain", "--config", str(lab.config), "--workdir", str(tmp_path / "run"))
