"""Usual losses and spikes; when metrics are read, and how soon an error is reported."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.training.anomalies import (
    Anomaly,
    AnomalyTracker,
    BatchSkip,
    NonFiniteLossError,
    read_batch_skips,
    write_batch,
    write_batch_skips,
)
from bertjax.training.logging import Console
from bertjax.training.metric_buffer import MIN_UNREAD, MetricBuffer
from bertjax.training.settings import Train
from bertjax.types import Sum


def tracker(factor: float | None = 10.0, meta: dict | None = None, **config: Any) -> AnomalyTracker:
    return AnomalyTracker(run_of(Train(spike_factor=factor, **config)), [], meta or {})


def run_of(config: Train) -> Any:
    return SimpleNamespace(config=SimpleNamespace(train=config))


def noisy(count: int, level: float, seed: int = 0) -> list[float]:
    return (level + 0.1 * np.random.default_rng(seed).standard_normal(count)).tolist()


def spikes(book: AnomalyTracker, losses: list[float]) -> list[int]:
    """Returns the positions that are reported as spikes."""
    return [index for index, loss in enumerate(losses) if book.detect_spike(loss)]


def test_noise_is_no_spike_and_a_planted_one_is_found() -> None:
    losses = noisy(2000, 4.0)
    losses[700], losses[1500] = 5.5, 4.0 + 30.0
    book = tracker()
    assert spikes(book, losses) == [700, 1500]
    assert book.spikes == 2 and book.metrics()["train/spikes"] == 2.0
    assert re.fullmatch(r"loss 5.5 is a spike \(1\d\.\d deviations above (3.9|4.0)\d*\)", says(losses[:700], 5.5))


def says(before: list[float], loss: float) -> str:
    book = tracker()
    assert not spikes(book, before)
    return book.detect_spike(loss)


def test_a_falling_loss_and_a_fall_are_no_spikes() -> None:
    falling = (10.0 * np.exp(-np.arange(600) / 100) + np.asarray(noisy(600, 2.0))).tolist()
    assert not spikes(tracker(), falling) and not spikes(tracker(), noisy(200, 4.0) + noisy(200, 1.0))


def test_a_loss_that_stays_high_becomes_usual() -> None:
    """After half a window the median is among the new losses."""
    result = spikes(tracker(), noisy(300, 4.0) + noisy(300, 7.0, seed=1))
    assert result[0] == 300 and result[-1] < 300 + 70 and len(result) > 50


def test_spikes_do_not_mask_those_that_follow() -> None:
    """Unlike a mean and its deviation, the median barely moves for ten of them."""
    losses = noisy(200, 4.0)
    indices = list(range(100, 120, 2))
    for index in indices:
        losses[index] = 40.0
    assert spikes(tracker(), losses) == indices


def test_nothing_is_a_spike_before_anything_is_usual_and_rounding_never_is() -> None:
    assert not spikes(tracker(), [1.0, 50.0, 2.0, 90.0] * 7)
    assert not spikes(tracker(), [2.0] * 100 + [2.0 + 1e-6] * 100)
    assert spikes(tracker(), [2.0] * 100 + [2.5]) == [100]


def test_nothing_is_checked_unless_configured() -> None:
    book = tracker(None)
    assert not spikes(book, [*noisy(100, 2.0), 1e9]) and not book.losses and "train/spikes" not in book.metrics()


def test_a_ledger_goes_on_from_what_was_saved() -> None:
    losses = [*noisy(300, 4.0), 9.0, *noisy(100, 4.0), 9.0]
    whole = tracker()
    spikes(whole, losses)
    first = tracker()
    spikes(first, losses[:250])
    second = tracker(meta=first.meta())
    spikes(second, losses[250:])
    assert second.meta() == whole.meta() and second.spikes == 2


def test_the_journal_is_read_back_up_to_a_step(tmp_path: Path) -> None:
    jumps = [BatchSkip(4, 4, 7, "loss is nan"), BatchSkip(8, 11, 15, "a spike")]
    assert read_batch_skips(tmp_path, 100) == []
    write_batch_skips(tmp_path, jumps)
    assert (read_batch_skips(tmp_path, 3), read_batch_skips(tmp_path, 4), read_batch_skips(tmp_path, 8)) == (
        [],
        jumps[:1],
        jumps,
    )
    book = AnomalyTracker(run_of(Train()), [], {}, [*jumps, BatchSkip(8, 11, 19, "again")])
    assert [book.next_cursor(*index) for index in ((4, 4), (8, 11), (8, 12), (12, 19))] == [7, 19, 12, 19]
    write_batch_skips(tmp_path, [])
    assert read_batch_skips(tmp_path, 100) == []
    (tmp_path / "anomalies" / "batch_skips.json").write_text("[{]")
    with pytest.raises(UserError, match=r"batch_skips\.json cannot be read"):
        read_batch_skips(tmp_path, 100)


def test_a_batch_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "anomalies").write_text("a file where the folder should be")
    anomaly = Anomaly(3, 2, "loss is nan", math.nan, math.inf, {"mlm": math.nan}, (), ())
    assert write_batch(tmp_path, anomaly, {"input_ids": np.zeros((1, 1))}).startswith("its batch could not be written")


# -- when metrics are read ------------------------------------------------------------------------------------------


class Reading:
    """A number on the device that records when it is read."""

    def __init__(self, value: float, cursor: int, recorded: list[int]):
        self.value, self.cursor, self.recorded = value, cursor, recorded

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        self.recorded.append(self.cursor)
        return np.asarray(self.value)


@pytest.fixture
def window(tmp_path: Path) -> Callable[..., tuple[MetricBuffer, Callable[[int, float], None], list[int], dict]]:
    """`window(log=1000, on_nonfinite="skip")` -> the window, `step(cursor, loss)`, cursors read, what was written."""

    def build(log: int = 1000, **config: Any) -> tuple:
        recorded: list[int] = []
        written: dict[int, dict] = {}
        phase = SimpleNamespace(objective=SimpleNamespace(loss_weights={"mlm": 1.0}), title="first")
        run = SimpleNamespace(
            config=SimpleNamespace(train=Train(num_steps=10**6, log_interval_steps=log, **config)),
            console=Console(0, 10**6, interactive=False),
            write=lambda step, record: written.update({step: record}),
            schedule=lambda step: 0.1,
            peak_flops=None,
            workdir=tmp_path,
            batches=SimpleNamespace(prefetch=lambda start, stop: iter_of(start)),
        )
        waiting = SimpleNamespace(lap=lambda: 0.0, has_warned=False)
        window = MetricBuffer(run, phase, AnomalyTracker(run, ["kernel"], {}), 0, waiting)

        def step(cursor: int, loss: float = 2.0) -> None:
            window.write_if_due()
            metrics = {
                "loss": Reading(loss, cursor, recorded),
                "sums": {"mlm": Sum(np.float32(loss), np.float32(1))},
                "grad_norm": np.float32(1),
                "grad_squares": np.ones(1),
                "weight_sums": np.ones(1),
                "real_tokens": np.int32(6),
                "num_positions": np.int32(8),
                "applied": math.isfinite(loss),
            }
            window.add([cursor], metrics)

        return window, step, recorded, written

    return build


def iter_of(cursor: int) -> Any:
    yield cursor, {"example_ids": np.full((1, 1), cursor)}


def test_the_newest_steps_are_never_waited_for(window: Callable) -> None:
    """Between reports, too, old metrics are read: neither errors nor buffers accumulate (P21)."""
    _, step, recorded, written = window(log=1000)
    for cursor in range(500):
        before = len(recorded)
        step(cursor)
        assert recorded[before:] in ([], list(range(before, before + MIN_UNREAD)))
        assert all(cursor - each >= MIN_UNREAD for each in recorded[before:])
        assert cursor - len(recorded) < 2 * MIN_UNREAD
    assert not written


def test_an_error_is_known_long_before_the_next_report(window: Callable) -> None:
    _, step, _, written = window(log=10**6)
    with pytest.raises(NonFiniteLossError, match=r"loss is nan at step 4 \(batch 3;"):
        for cursor in range(1000):
            step(cursor, math.nan if cursor >= 3 else 1.0)
    assert cursor < 3 + 2 * MIN_UNREAD
    assert list(written) == [3] and written[3]["train/loss"] == 1.0


def test_refused_steps_count_for_neither_steps_nor_means(window: Callable) -> None:
    made, step, _, written = window(log=4, on_nonfinite="skip", spike_factor=10.0)
    losses = [1.0, math.nan, 3.0, 5.0, math.inf, 7.0, 9.0]
    for cursor, loss in enumerate(losses):
        step(cursor, loss)
    made.read_all()
    assert made.step == 5 and list(written) == [4]
    assert written[4]["train/loss"] == (1 + 3 + 5 + 7) / 4 and written[4]["train/skipped"] == 2.0
    assert list(made.tracker.losses) == [1.0, 3.0, 5.0, 7.0, 9.0]


def test_rows_of_another_kind_have_losses_of_their_own(window: Callable) -> None:
    made, step, *_ = window(spike_factor=10.0)
    for cursor in range(40):
        step(cursor, 2.0)
    made.start_phase(SimpleNamespace(title="longer rows", phase=SimpleNamespace(start=40)))
    assert not made.tracker.losses and made.step == 40


def test_batches_are_written_until_there_are_many(window: Callable, capsys: pytest.CaptureFixture[str]) -> None:
    made, step, *_ = window(on_nonfinite="skip", max_nonfinite=100)
    made.tracker.files_left = 2
    for cursor in range(5):
        step(cursor, math.nan)
    made.read_all()
    folder = made._run.workdir / "anomalies"
    assert sorted(path.name for path in folder.iterdir()) == ["step-1-batch-0.npz", "step-1-batch-1.npz"]
    assert capsys.readouterr().out.count("not written: there are many already") == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"on_nonfinite": "hope"}, "train.on_nonfinite"),
        ({"max_nonfinite": 0}, "train.max_nonfinite"),
        ({"spike_factor": 0.0}, "spike"),
    ],
)
def test_settings_that_make_no_sense_are_named(change: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Train(**change)
