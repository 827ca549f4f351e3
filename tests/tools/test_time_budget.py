"""Runs for a given time: the decision, and that a run resumes to the same weights before and after it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

import bertjax
from bertjax.errors import UserError
from bertjax.experiment.config import load_config
from bertjax.tools import plan
from bertjax.tools.measured_step import MeasuredStep
from bertjax.tools.time_budget import TimeBudget, new_budget, require_one_length, require_one_phase

BUDGET = TimeBudget(10, None, {}, num_steps=1000, warmup_steps=50, interval=50)
CFG = load_config("quickstart")


def test_decides_by_the_time_between_two_evaluations() -> None:
    """30 s of compiling, 20 s per 50 steps: at step 100 70 s are gone, and compiling again takes 30."""
    decided = dataclasses.replace(BUDGET, seconds={"50": 50.0, "100": 70.0}).decide(CFG)
    assert decided.decided == 100 + int((600 - 70 - 30 - 5) / 20 * 50)


@pytest.mark.parametrize("larger", [{"data.seq_len": 512}, {"train.batch_size": 64}])
def test_a_phase_of_larger_batches_takes_its_time(larger: dict[str, int]) -> None:
    """0.4 s per step, of four times the tokens 1.6 s; each of the two programs is compiled for 30 s."""
    first = {"data.seq_len": 128, "train.batch_size": 16, "train.phases": ("90%:data.seq_len=128,train.batch_size=16",)}
    cfg = load_config("bert:tiny", first | larger)
    decided = dataclasses.replace(BUDGET, seconds={"50": 50.0, "100": 70.0}).decide(cfg).decided
    assert decided is not None
    assert 70 + 2 * 30 + 0.4 * (0.9 * decided - 100) + 1.6 * 0.1 * decided + 5 == pytest.approx(600, abs=3)


def test_the_last_phase_takes_what_was_measured_before_the_run() -> None:
    """BERT-mini on two cores: 1.6 s per step of 128 tokens, 9 s of 512, which is 1.4 times as long per token."""
    cfg = load_config("bert:mini", {"train.batch_size": 32})
    measured = {"num_steps": 163, "interval": 41, "seconds": {"41": 71.958, "82": 138.954}, "minutes": 8.5}
    slow = dataclasses.replace(BUDGET, **measured, last_slot_seconds=9 / (32 * 512)).decide(cfg).decided
    even = dataclasses.replace(BUDGET, **measured).decide(cfg).decided
    assert slow is not None and even == 230
    step = (138.954 - 71.958) / 41
    taken = 138.954 + 2 * (71.958 - 41 * step) + step * (round(0.9 * slow) - 82) + 9 * (slow - round(0.9 * slow))
    assert slow < even and taken + 5 == pytest.approx(510, abs=9)


@pytest.mark.parametrize("seconds", [{"100": 40.0}, {"50": 45.0, "100": 40.0}])
def test_decides_with_one_evaluation(seconds: dict[str, float]) -> None:
    """A run that was resumed between the two knows the first one only if that survived."""
    decided = dataclasses.replace(BUDGET, seconds=seconds).decide(CFG).decided
    assert decided is not None and 1000 <= decided <= 1500


def test_ends_soon_when_the_time_is_over() -> None:
    assert dataclasses.replace(BUDGET, seconds={"50": 400.0, "100": 800.0}).decide(CFG).decided == 101


def test_configures_the_run() -> None:
    cfg = BUDGET.configure(load_config("quickstart"))
    assert cfg.train.num_steps == 1000 and cfg.schedule.warmup_steps == 50
    assert cfg.eval.interval_steps == cfg.checkpoint.interval_steps == 50
    later = dataclasses.replace(BUDGET, decided=3000).configure(load_config("quickstart"))
    assert later.train.num_steps == 3000 and later.schedule.warmup_steps == 50
    shorter = dataclasses.replace(BUDGET, decided=40).configure(cfg)  # slower than planned, in the midst of its warmup
    assert shorter.schedule.warmup_steps == 40


def test_limited_epochs_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("text\n")
    cfg = load_config("quickstart", {"data.sources": f"text:{tmp_path / 'text.txt'}@1..2"})
    with pytest.raises(UserError, match=r"minutes decides the length of a run late.*set train\.num_steps instead"):
        require_one_length(cfg)


@pytest.mark.parametrize(
    "fixed", [{"train.phases": ("500:data.seq_len=16",)}, {"train.initial_batch_size": 8, "train.batch_ramp_steps": 90}]
)
def test_phases_that_do_not_follow_the_length_are_refused(fixed: dict[str, Any]) -> None:
    """Before any step: the length that is decided might be shorter than they are."""
    with pytest.raises(UserError, match=r"minutes decides the length of a run late: train\.(phases|batch_ramp_steps)"):
        require_one_length(load_config("quickstart", fixed))
    require_one_length(load_config("quickstart", {"train.phases": ("50%:data.seq_len=16",)}))


SMALL = {
    "model.num_layers": 1,
    "model.hidden_size": 16,
    "model.num_heads": 2,
    "model.intermediate_size": 16,
    "data.vocab_size": 400,
    "train.batch_size": 8,
    "eval.num_batches": 1,
    "eval.fill_mask": (),
    "report.enabled": False,
    "logging.tensorboard": False,
}


@pytest.fixture
def overrides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Values of a tiny run, whose speed is not measured before it begins."""
    text = "\n\n".join(f"The {number} of all numbers is a number." for number in range(400))
    (tmp_path / "text.txt").write_text(text)
    values = {"data.sources": f"text:{tmp_path / 'text.txt'}", "data.cache_dir": str(tmp_path / "cache"), **SMALL}

    def measure(cfg: Any, minutes: float, say: Any) -> tuple[MeasuredStep, int]:
        return MeasuredStep("this config", cfg, 1, 1, 1e6, 1.0, 1.0, 1.0, 1, 1, 1.0), 60

    monkeypatch.setattr(plan, "measure_length", measure)
    # The same decision on any machine.
    monkeypatch.setattr(TimeBudget, "decide", lambda self, _: dataclasses.replace(self, decided=80))
    return values


def weights(workdir: Path) -> dict[str, bytes]:
    return {name: value.tobytes() for name, value in load_file(workdir / "export" / "model.safetensors").items()}


class Killed(Exception):
    pass


PHASES = {"none": {}, "ends after it": {"train.phases": ("40%:objective.masking.mask_rate=0.5,data.seq_len=16",)}}


@pytest.mark.parametrize(("share", "is_refused"), [(5, True), (10, True), (11, False), (90, False)])
def test_a_phase_that_ends_before_the_decision_is_refused(share: int, is_refused: bool) -> None:
    """60 steps are planned, and the length is decided at step 6."""
    budget = dataclasses.replace(BUDGET, num_steps=60, interval=3)
    cfg = load_config("quickstart", {"train.phases": (f"{share}%:data.seq_len=16",)})
    if not is_refused:
        require_one_phase(budget, cfg)
        return
    with pytest.raises(
        UserError, match=r"minutes decides the length of this run at step 6, and a phase .* ends before"
    ):
        require_one_phase(budget, cfg)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.weekly if PHASES[name] else pytest.mark.long) for name in PHASES]
)
def test_resumes_to_the_same_weights(
    tmp_path: Path, overrides: dict[str, Any], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Killed before the decision (at step 6), between it and its checkpoint, and after it."""
    overrides = overrides | PHASES[name]
    whole = tmp_path / "whole"
    bertjax.pretrain("quickstart", whole, overrides, minutes=5)
    budget = TimeBudget.read(whole)
    assert budget is not None and budget.decided == 80 and budget.decision_step == 6
    assert json.loads((whole / "config.json").read_text())["train"]["num_steps"] == 80

    for killed_at in (3, 6, 12):
        resumed = tmp_path / f"killed-{killed_at}"
        with monkeypatch.context() as patch:
            patch.setattr("bertjax.report.training_callbacks.ReportWriter.on_evaluate", die_at(killed_at))
            with pytest.raises(Killed):
                bertjax.pretrain("quickstart", resumed, overrides, minutes=5)
        bertjax.pretrain("quickstart", resumed, overrides, minutes=5)
        assert weights(resumed) == weights(whole)

    with pytest.raises(UserError, match=r"holds a run of 5 minutes, not 7: the same command resumes it"):
        bertjax.pretrain("quickstart", resumed, overrides, minutes=7)


def die_at(killed_at: int) -> Any:
    def on_evaluate(self: Any, step: int, *rest: Any) -> None:
        if step == killed_at:
            raise Killed

    return on_evaluate


@pytest.mark.long
def test_a_run_of_another_kind_is_refused(tmp_path: Path, overrides: dict[str, Any]) -> None:
    bertjax.pretrain("quickstart", tmp_path / "run", {**overrides, "train.num_steps": 2})
    with pytest.raises(UserError, match="holds a run that was not begun with minutes"):
        bertjax.pretrain("quickstart", tmp_path / "run", overrides, minutes=5)


def test_budget_follows_the_measured_length() -> None:
    cfg = load_config("quickstart")
    step = MeasuredStep("this config", cfg, 1, 1, 1e6, 1.0, 1.0, 1.0, 1, 1, 1.0)
    budget = new_budget(5, step, 2000, "bertjax:nano", {"train.num_steps": 2000})
    assert (budget.warmup_steps, budget.interval, budget.decision_step) == (100, 100, 200)


def test_evaluations_take_little_of_a_short_run() -> None:
    """16 batches of 64 sequences of 32 tokens are a third of a second of 100k tokens per second."""
    cfg = load_config("quickstart")
    step = MeasuredStep("this config", cfg, 1, 1, 100_000 / 3, 1.0, 1.0, 1.0, 1, 1, 1.0)
    assert [new_budget(minutes, step, 1200, None, {}).interval for minutes in (0.3, 0.98, 5)] == [300, 134, 60]
