"""The training loop with all its dependencies replaced: the order of calls, and what is never saved."""

from __future__ import annotations

import dataclasses
import math
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh
from loop_lab import loop_settings
from ml_collections import ConfigDict

from bertjax.config.defaults import base_config
from bertjax.config.overrides import set_values
from bertjax.config.phases import Phase
from bertjax.errors import UserError
from bertjax.experiment.config import parse
from bertjax.objectives.base import StepInputs
from bertjax.training import loop
from bertjax.training.anomalies import NonFiniteLossError
from bertjax.training.evaluate import make_evaluate
from bertjax.training.logging import Console
from bertjax.training.loop import train
from bertjax.training.run_context import PhaseProgram, RunContext
from bertjax.training.signals import StoppedBySignal
from bertjax.training.state import TrainState
from bertjax.types import Sum

TOKENS = 6


class Reading:
    """A number on the device that records when it is read."""

    def __init__(self, value: float, step: int, events: list):
        self.value, self.step, self.events = value, step, events

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        self.events.append(f"read {self.step}")
        return np.asarray(self.value)


class Events(list):
    """Events in order; also acts as the loop's batches, checkpoints and writer."""

    closed = False
    saved: int | None = None
    written: dict[int, dict]

    def prefetch(self, start_cursor: int, stop_cursor: int) -> Iterator[tuple[int, dict]]:
        try:
            for cursor in range(start_cursor, stop_cursor):
                yield cursor, {"cursor": np.full((1, 1), cursor)}
        finally:
            self.closed = True

    def save(self, step: int, state: Any, meta: dict, metrics: dict | None = None) -> None:
        self.append(f"save {step}" + (" with metrics" if metrics else ""))
        assert (int(state.step), meta["config"]) == (step, 1)
        self.saved = step

    def wait(self) -> None:
        self.append("wait")

    def write(self, step: int, metrics: dict) -> None:
        self.written.setdefault(step, {}).update(metrics)

    def close(self) -> None: ...


@dataclasses.dataclass
class Objective:
    loss_weights: dict[str, float]

    def init_carry(self, rows: int) -> dict:
        return {}


@pytest.fixture
def events() -> Events:
    events = Events()
    events.written = {}
    return events


@pytest.fixture
def make_run(events: Events, mesh_of: Callable[..., Mesh], tmp_path: Path) -> Callable[..., RunContext]:
    """`make_run(num_steps=6, log=2, losses={4: nan}, at={3: function})`."""

    def build(
        num_steps: int = 6,
        log: int = 1,
        evaluate: int = 0,
        checkpoint: int = 0,
        minutes: float | None = None,
        losses: dict[int, float] | None = None,
        at: dict[int, Callable] | None = None,
        **changes: Any,
    ) -> RunContext:
        def train_step(state: TrainState, frozen: Any, batch: dict) -> tuple[TrainState, dict]:
            step = state.step + 1
            assert int(batch["cursor"][0, 0]) == state.cursor
            events.append(f"dispatch {step}")
            (at or {}).get(step, lambda: None)()
            loss = Reading((losses or {}).get(step, float(step)), step, events)
            sums = {"mlm": Sum(np.float32(3 * step), np.float32(3))}
            metrics = {"loss": loss, "sums": sums, "grad_norm": np.float32(1), "real_tokens": np.int32(TOKENS)}
            metrics |= {
                "num_positions": np.int32(8),
                "applied": math.isfinite(loss.value),
                "grad_squares": np.ones(0),
                "weight_sums": np.ones(0),
            }
            return state._replace(step=step, cursor=state.cursor + 1), metrics

        def eval_step(params: Any, extra: StepInputs, batch: dict) -> tuple[dict[str, Sum], dict]:
            events.append("evaluate")
            sums = {name: Sum(np.float32(4), np.float32(2)) for name in ("mlm", "mlm_unigram_loss", "mlm_accuracy")}
            return sums, extra.carry

        program = {
            "objective": Objective({"mlm": 1.0}),
            "train_step": train_step,
            "eval_sets": lambda: {"all": [{"x": np.zeros((1, 1))}]},
            "flops_per_token": lambda filled: 100.0 * filled,
        }
        program |= {name: changes.pop(name) for name in list(changes) if name in program}
        program["evaluate"] = make_evaluate(eval_step, program.pop("eval_sets"), program["objective"], mesh_of(1))
        settings = {
            "config": loop_settings(num_steps, log, evaluate, checkpoint, minutes),
            "programs": [PhaseProgram(phase=Phase(0, ConfigDict()), **program)],
            "frozen": {},
            "schedule": lambda step: 0.1 * step,
            "mesh": mesh_of(1),
            "batches": events,
            "checkpoints": events,
            "meta": {"config": 1},
            "writers": [events],
            "console": Console(0, num_steps, interactive=False),
            "workdir": tmp_path,
            "peak_flops": None,
        }
        return RunContext(**{**settings, **changes})

    return build


def start(step: int = 0, cursor: int | None = None) -> TrainState:
    return TrainState({}, {}, {}, step, step if cursor is None else cursor, 0, 0)


def steps_of(events: Events, what: str) -> list[int]:
    return [int(event.split()[1]) for event in events if event.startswith(what)]


def test_everything_happens_when_it_is_due(make_run: Callable, events: Events) -> None:
    state, metrics = train(make_run(num_steps=7, log=2, evaluate=3, checkpoint=5), start())
    assert state.step == 7 and steps_of(events, "dispatch") == list(range(1, 8))
    assert [event for event in events if event.startswith("save")] == ["save 5", "save 7 with metrics"]
    assert [steps_of(events[:i], "dispatch")[-1] for i, event in enumerate(events) if event == "evaluate"] == [3, 6, 7]
    assert events.closed and events[-1] == "wait"
    assert metrics == {f"eval/{name}": 2.0 for name in ("loss", "mlm_loss", "mlm_unigram_loss", "mlm_accuracy")}
    assert [step for step, written in events.written.items() if "eval/loss" in written] == [3, 6, 7]


def test_metrics_are_read_while_the_next_step_runs(make_run: Callable, events: Events) -> None:
    train(make_run(num_steps=4, log=1, evaluate=0), start())
    order = [event for event in events if event.split()[0] in ("dispatch", "read")]
    assert order[:6] == ["dispatch 1", "dispatch 2", "read 1", "dispatch 3", "read 2", "dispatch 4"]


def test_nothing_is_read_between_reports(make_run: Callable, events: Events) -> None:
    train(make_run(num_steps=9, log=4), start())
    dispatched = [steps_of(events[:i], "dispatch")[-1] for i, event in enumerate(events) if event == "read 3"]
    assert dispatched == [5]  # not before the window of step 4 is due


def test_windows_are_means_over_their_steps(make_run: Callable, events: Events) -> None:
    train(make_run(num_steps=6, log=3), start())
    assert {step for step, written in events.written.items() if "train/loss" in written} == {3, 6}
    window = events.written[3]
    assert window["train/loss"] == window["train/mlm_loss"] == (1 + 2 + 3) / 3
    assert window["train/learning_rate"] == pytest.approx(0.2)  # that of step 3, the third
    assert window["train/padding"] == 1 - TOKENS / 8
    assert window["train/grad_norm"] == 1.0
    assert window["train/tokens_per_second"] == pytest.approx(TOKENS / window["train/seconds_per_step"])
    assert window["train/eta_seconds"] == pytest.approx(3 * window["train/seconds_per_step"])
    assert "train/mfu" not in window


def test_mfu_where_the_peak_is_known(make_run: Callable, events: Events) -> None:
    train(make_run(num_steps=3, peak_flops=1e6), start())
    window = events.written[3]
    assert window["train/mfu"] == pytest.approx(window["train/tokens_per_second"] * 100.0 * TOKENS / 8 / 1e6)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_no_number_stops_the_run_and_is_never_saved(
    make_run: Callable, events: Events, bad: float
) -> None:
    """At the very step that would be saved, although no report is due."""
    with pytest.raises(
        NonFiniteLossError, match=r"loss is (nan|inf) at step 4 .*checkpoints before it are intact"
    ) as caught:
        train(make_run(num_steps=8, log=100, checkpoint=2, losses={4: bad}), start())
    assert "\n" not in str(caught.value) and "optimizer.learning_rate" in str(caught.value)
    assert [event for event in events if event.startswith("save")] == ["save 2"]
    assert events.closed and not any(step >= 4 for step in events.written)


def test_a_gradient_that_is_no_number_stops_the_run(make_run: Callable, events: Events) -> None:
    run = make_run(num_steps=4)
    healthy = run.programs[0].train_step

    def broken(*arguments: Any) -> tuple:
        state, metrics = healthy(*arguments)
        return state, {**metrics, "grad_norm": np.float32(math.nan), "applied": False}

    with pytest.raises(NonFiniteLossError, match="grad_norm is nan at step 1"):
        train(dataclasses.replace(run, programs=[dataclasses.replace(run.programs[0], train_step=broken)]), start())
    assert events.saved is None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_at_the_step_it_came_in_and_stops(
    make_run: Callable, events: Events, number: signal.Signals
) -> None:
    before = signal.getsignal(number)
    run = make_run(num_steps=9, log=100, at={3: lambda: os.kill(os.getpid(), number)})
    with pytest.raises(StoppedBySignal, match=f"stopped by {number.name}; saved at step 3") as caught:
        train(run, start())
    assert caught.value.exit_code == 128 + number
    assert events[-2:] == ["save 3", "wait"] and events.closed
    assert signal.getsignal(number) is before


def test_a_signal_in_the_last_step_lets_the_run_end(make_run: Callable, events: Events) -> None:
    run = make_run(num_steps=3, at={3: lambda: os.kill(os.getpid(), signal.SIGTERM)})
    state, metrics = train(run, start())
    assert state.step == 3 and metrics and events.saved == 3


def test_a_resumed_run_starts_at_its_cursor_and_ends_at_its_step(make_run: Callable, events: Events) -> None:
    state, _ = train(make_run(num_steps=6), start(step=4, cursor=9))
    assert (state.step, state.cursor) == (6, 11)
    assert steps_of(events, "dispatch") == [5, 6]


def test_a_run_that_is_over_does_nothing(make_run: Callable, events: Events) -> None:
    state, metrics = train(make_run(num_steps=6), start(step=6))
    assert (state.step, metrics) == (6, {}) and events == ["wait"]


def test_minutes_make_checkpoints_too(make_run: Callable, events: Events, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 10**6, 13))  # each reading of the clock is 13 seconds later
    monkeypatch.setattr(loop.time, "monotonic", lambda: float(next(clock)))
    train(make_run(num_steps=20, log=100, minutes=1.0), start())
    saved = steps_of(events, "save")
    assert saved[-1] == 20 and 3 <= len(saved) <= 5


def test_several_held_out_sets_are_printed_one_by_one(
    make_run: Callable, events: Events, capsys: pytest.CaptureFixture
) -> None:
    sets = {name: [{"x": np.zeros((1, 1))}] for name in ("news", "books")}
    _, metrics = train(make_run(num_steps=2, eval_sets=lambda: sets), start())
    assert {"eval/loss", "eval/news/loss", "eval/books/loss"} < set(metrics)
    out = capsys.readouterr().out
    assert "eval at step 2: mlm 2.000 nats" in out and "  news: mlm 2.000" in out and "  books: mlm 2.000" in out


@pytest.mark.parametrize(
    ("profiled", "begun", "dispatched"),
    [("3:4", 0, (3, 4)), ("1:1", 0, (1,)), ("2:4", 2, (3, 4)), ("5:9", 0, (5, 6)), ("1:2", 2, ())],
)
def test_a_profile_covers_the_requested_steps(
    make_run: Callable,
    events: Events,
    monkeypatch: pytest.MonkeyPatch,
    profiled: str,
    begun: int,
    dispatched: tuple[int, ...],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """Also in a run that resumes during them or after them, and in one that ends before them."""

    def start_trace(folder: str, **_: object) -> None:
        events.append(f"start {folder}")
        (Path(folder) / "plugins" / "profile" / "now").mkdir(parents=True)

    monkeypatch.setattr(loop.jax.profiler, "start_trace", start_trace)
    monkeypatch.setattr(loop.jax.profiler, "stop_trace", lambda: events.append("stop"))
    train(make_run(config=loop_settings(6, 1, 0, 0, None, profiled)), start(step=begun))
    assert events.count("stop") == bool(dispatched)
    if dispatched:
        first, last = events.index(f"start {tmp_path / 'profile'}"), events.index("stop")
        assert steps_of(events[first:last], "dispatch") == list(dispatched)
        message = f"a trace of steps {dispatched[0]} to {dispatched[-1]} is in {tmp_path}/profile/plugins/profile/now"
        assert message in capsys.readouterr().out


def test_a_trace_that_fails_does_not_end_the_run(
    make_run: Callable, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full() -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(loop.jax.profiler, "start_trace", lambda *_, **__: None)
    monkeypatch.setattr(loop.jax.profiler, "stop_trace", full)
    state, _ = train(make_run(config=loop_settings(6, 1, 0, 0, None, "3:4")), start())
    assert state.step == 6
    assert "warning: profile.steps gave no trace ([Errno 28] No space left on device)" in capsys.readouterr().out


def test_a_single_step_is_written_without_a_speed(make_run: Callable, events: Events) -> None:
    train(make_run(num_steps=1), start())
    assert events.written[1]["train/loss"] == 1.0
    assert "train/tokens_per_second" not in events.written[1]  # its time includes compilation


def test_steps_go_in_groups_and_their_metrics_are_their_own(make_run: Callable, events: Events) -> None:
    """Groups of three; their metrics are written one by one, and an error names its batch."""
    sent = []

    def together(run: RunContext) -> RunContext:
        one = run.programs[0].train_step

        def train_steps(state: TrainState, frozen: Any, batches: list[dict]) -> tuple[TrainState, dict]:
            result = []
            for batch in batches:
                state, metrics = one(state, frozen, batch)
                result.append({**metrics, "loss": np.float32(metrics["loss"].value)})
            sent.append(len(batches))
            return state, jax.tree.map(lambda *leaves: np.stack(leaves), *result)

        run.config.train = dataclasses.replace(run.config.train, steps_per_dispatch=3)
        program = dataclasses.replace(run.programs[0], train_steps=train_steps)
        return dataclasses.replace(run, programs=[program])

    state, _ = train(together(make_run(num_steps=14, log=6, checkpoint=7)), start())
    assert state.step == 14 and sent == [3, 3, 3]  # 7 ends a group, and 8, 13 and 14 remain
    assert [event for event in events if event.startswith("save")] == ["save 7", "save 14 with metrics"]
    assert events.written[6]["train/loss"] == 3.5 and events.written[12]["train/loss"] == 10.0
    with pytest.raises(NonFiniteLossError, match=r"loss is nan at step 5 \(batch 4\)|at step 5"):
        train(together(make_run(num_steps=9, log=9, losses={5: math.nan})), start())


def with_metrics(run: RunContext, name: str, values: list[float]) -> RunContext:
    """Returns a run whose evaluations return these values one after another."""
    left = iter(values)
    programs = [dataclasses.replace(run.programs[0], evaluate=lambda *_: {"eval/loss": 1.0, name: next(left)})]
    return dataclasses.replace(run, programs=programs)


@pytest.mark.parametrize(
    ("name", "values", "last"),
    [
        ("eval/mlm_loss", [3.0, 2.0, 2.5, 2.0], 8),  # no better one in two evaluations: an equal one does not count
        ("eval/f1", [0.5, 0.6, 0.4, 0.5], 8),  # of scores, higher is better
        ("eval/f1", [0.5, 0.4, 0.6, float("nan"), 0.6], 10),
        ("eval/mlm_loss", [3.0, 2.0, 2.5, 1.0, 0.9], 10),  # until the end
    ],
)
def test_patience_ends_a_run_and_saves_it(
    make_run: Callable, events: Events, capsys: pytest.CaptureFixture, name: str, values: list[float], last: int
) -> None:
    config = loop_settings(10, 2, 2, 100, None, best_metric=name, patience=2)
    state, metrics = train(with_metrics(make_run(config=config), name, values), start())
    assert state.step == last == events.saved and events.closed
    assert ("ends at step 8: " in capsys.readouterr().out) == (last == 8)
    np.testing.assert_equal(metrics[name], values[last // 2 - 1])


def test_a_resumed_run_has_waited_as_long(make_run: Callable, events: Events) -> None:
    """Patience is counted across a stop, from the meta of the checkpoint; a run out of patience does not continue."""
    config = loop_settings(10, 2, 2, 4, None, best_metric="eval/f1", patience=2)
    restored_meta = {"early_stopping": {"name": "eval/f1", "value": 0.9, "evaluations_since_best": 1}}
    state, _ = train(
        with_metrics(make_run(config=config, restored_meta=restored_meta), "eval/f1", [0.5, 0.5]), start(4)
    )
    assert state.step == 6
    restored_meta["early_stopping"]["evaluations_since_best"] = 2
    assert (
        train(with_metrics(make_run(config=config, restored_meta=restored_meta), "eval/f1", [0.5]), start(6))[0].step
        == 6
    )
    other = {
        "early_stopping": {"name": "eval/loss", "value": 0.9, "evaluations_since_best": 2}
    }  # another metric was selected since
    assert (
        train(with_metrics(make_run(config=config, restored_meta=other), "eval/f1", [0.5, 0.6]), start(6))[0].step == 10
    )


def test_a_best_metric_that_there_is_not(make_run: Callable, events: Events) -> None:
    config = loop_settings(10, 2, 2, 2, None, best_metric="eval/accuracy")
    with pytest.raises(
        UserError, match=r"best_metric=eval/accuracy is none of the metrics of an evaluation: eval/f1, "
    ):
        train(with_metrics(make_run(config=config), "eval/f1", [0.5]), start())
    assert events.saved == 2


def test_patience_needs_something_to_wait_for() -> None:
    with pytest.raises(UserError, match=r"eval\.patience waits for a better checkpoint\.best_metric"):
        parse(set_values(base_config(), {"eval.patience": 2}))


def test_callbacks_receive_every_evaluation(make_run: Callable, events: Events) -> None:
    recorded: list[tuple] = []
    train(make_run(num_steps=7, evaluate=3, on_evaluate=lambda *calls: recorded.append(calls)), start())
    assert [(step, sorted(metrics)[:1]) for step, _, metrics in recorded] == [(n, ["eval/loss"]) for n in (3, 6, 7)]
