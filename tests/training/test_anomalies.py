"""Non-finite values: none reaches the disk, and each policy acts as documented (P21, P22, P23)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import anomaly_lab
import jax
import numpy as np
import pytest
from anomaly_lab import KERNEL, TABLE, Crash, Lab, assert_finite, assert_same, by_hand, fresh, step_of
from jax.sharding import Mesh

from bertjax.checkpoint.manager import Checkpoints
from bertjax.checkpoint.manifest import read_manifest
from bertjax.errors import UserError
from bertjax.training import loop
from bertjax.training.anomalies import NonFiniteLossError, diagnose_step
from bertjax.training.settings import Train
from bertjax.training.sharding import put_batch
from bertjax.training.step import layer_names

BAD = {
    "loss_nan": r"loss is nan at step 6 \(batch 5; sums: mlm nan",
    "loss_inf": r"loss is inf at step 6 \(batch 5; sums: mlm inf",
    "gradient": rf"grad_norm is nan at step 6 .*gradient not finite: {KERNEL.format(1)}\)",
    "embedding_row": rf"grad_norm is inf at step 6 .*gradient not finite: {TABLE}\)",
    "carry": r"the memory carried to the next batch is not finite at step 6",
}


@pytest.fixture
def lab(mesh_of: Callable[..., Mesh], tmp_path: Path) -> Callable[..., Lab]:
    """`lab({5: "loss_nan"})`: a work directory in which batch 5 is poisoned; a second argument names another one."""
    return lambda poison=None, name="run": Lab(mesh_of(1), tmp_path / name, poison or {})


@pytest.fixture(autouse=True)
def folders(tmp_path: Path) -> None:
    for name in ("run", "other"):
        (tmp_path / name).mkdir()


@pytest.mark.parametrize("kind", BAD)
def test_raise_reports_what_it_knows_and_saves_nothing_of_it(lab: Callable, kind: str) -> None:
    """P21; although no report is due before the save of step 8."""
    run = lab({5: kind})
    with pytest.raises(NonFiniteLossError, match=BAD[kind]) as caught:
        run.run(log=100)
    message = str(caught.value)
    assert "\n" not in message and "train.skip_batches=5" in message
    assert sorted(run.saved()) == [4]
    assert_finite(run.saved())
    written = run.workdir / "anomalies" / "step-6-batch-5.npz"
    assert str(written) in message
    with np.load(written) as batch:  # no pickle
        for name, value in run.rows.batch(5).items():
            np.testing.assert_array_equal(batch[name], value)
        report = json.loads(str(batch["report"]))
    assert (report["step"], report["cursor"]) == (6, 5) and report["reason"] in message
    last = run.trained()[-1]  # the metrics include the steps before it
    assert last["step"] == 5 and np.isfinite(last["train/loss"])


def test_a_weight_that_is_no_number_is_found_though_nothing_uses_it(mesh_of: Callable) -> None:
    """P21: one row of the embedding, of a word that is not in the batch, without decay."""
    mesh, rows = mesh_of(1), anomaly_lab.Rows({})
    state = jax.device_get(fresh(mesh))
    batch = rows.batch(0)
    absent = min(set(range(anomaly_lab.WORDS)) - set(batch["input_ids"][:, 0].tolist()))
    table = np.array(state.params["encoder"]["embeddings"]["word_embeddings"]["embedding"])
    table[absent] = np.nan
    state.params["encoder"]["embeddings"]["word_embeddings"]["embedding"] = table
    with jax.set_mesh(mesh):
        laid = jax.device_put(state, jax.tree.map(lambda leaf: leaf.sharding, fresh(mesh)), may_alias=False)
        _, metrics = step_of(mesh, False)(laid, {}, put_batch(batch, mesh))
    assert np.isfinite(metrics["loss"]) and np.isfinite(metrics["grad_norm"]) and not metrics["applied"]
    anomaly = diagnose_step(1, 0, jax.device_get(metrics), layer_names(state.params))
    assert anomaly.weights == (TABLE,) and not anomaly.gradients
    assert f"a weight is not finite at step 1 (batch 0; sums: mlm {anomaly.sums['mlm']:.4g}; weight not" in (
        anomaly.describe()
    )


@pytest.mark.parametrize(
    "kind", ["loss_nan", *(pytest.param(kind, marks=pytest.mark.weekly) for kind in BAD if kind != "loss_nan")]
)
def test_skip_is_as_if_the_batch_had_not_been_there(lab: Callable, mesh_of: Callable, kind: str) -> None:
    """P22: one error, one skip; selected, not multiplied. P23: the same as `skip_batches`, and as a run by hand."""
    run = lab({5: kind})
    state = run.run(on_nonfinite="skip")
    assert (int(state.step), int(state.cursor), int(state.skipped), int(state.consecutive_skipped)) == (12, 13, 1, 0)
    expected = by_hand(mesh_of(1), [cursor for cursor in range(13) if cursor != 5])
    assert_same(state[:4], jax.device_get(expected)[:4])
    assert_finite(run.saved())
    counted = {record["step"]: record["train/skipped"] for record in run.trained()}
    assert counted == {step: float(step > 5) for step in range(1, 13)}
    assert [line for line in run.console.lines if line.startswith("skipped a batch: ")]
    never = lab(name="other")
    assert_same(never.run(skip_batches=("5",))[:5], state[:5])
    assert 5 not in never.rows.requests


OPTIMIZERS = {
    "adamw_average": {"weight_decay": 0.01, "ema_decay": 0.9},
    "lamb": {"name": "lamb"},
    "stable_adamw": {"name": "stable_adamw", "clip_norm": 0.0},
    "muon": {"name": "muon"},
}


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "kind"),
    [("adamw_average", "loss_nan"), *(pytest.param(name, "gradient", marks=pytest.mark.weekly) for name in OPTIMIZERS)],
)
def test_a_refused_update_leaves_all_of_the_state(mesh_of: Callable, name: str, kind: str) -> None:
    """Weights, moments, counts of the schedule, averages and carry; one of two microbatches is bad."""
    mesh, rows = mesh_of(1), anomaly_lab.Rows({2: kind})
    state, step = fresh(mesh, **OPTIMIZERS[name]), step_of(mesh, True, 2, **OPTIMIZERS[name])
    with jax.set_mesh(mesh):
        for cursor in range(2):
            state, _ = step(state, {}, put_batch(rows.batch(cursor), mesh))
        before = jax.device_get(state)
        state, metrics = step(state, {}, put_batch(rows.batch(2), mesh))
    assert not metrics["applied"]
    assert_same(jax.device_get(state), before._replace(cursor=3, skipped=1, consecutive_skipped=1))


@pytest.mark.long
def test_skip_on_several_devices_is_skip_on_one(lab: Callable, mesh_of: Callable, tmp_path: Path) -> None:
    """Every device refuses, or none."""
    run = Lab(mesh_of(2, 1, 2), tmp_path / "other", {1: "embedding_row", 5: "loss_nan"})
    state, alone = run.run(num_steps=6, on_nonfinite="skip"), lab(run.rows.poison).run(num_steps=6, on_nonfinite="skip")
    assert int(state.skipped) == int(alone.skipped) == 2
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, atol=1e-5), state.params, alone.params)


def test_too_many_in_a_row_end_the_run(lab: Callable) -> None:
    """P22: never accepted, however many; a good one in between resets the count."""
    run = lab(dict.fromkeys((2, 3, 5, 6, 9, 10, 11, 12, 13), "loss_nan"))
    with pytest.raises(
        NonFiniteLossError, match=r"3 consecutive batches skipped .*, the last one: loss is nan at step 6"
    ):
        run.run(on_nonfinite="skip", max_nonfinite=3)
    assert sorted(run.saved()) == [4]
    assert_finite(run.saved())
    assert run.trained()[-1]["step"] == 5


@pytest.mark.long
@pytest.mark.parametrize(
    "crashes", [(3, 6, 7), *(pytest.param(each, marks=pytest.mark.weekly) for each in ((5, 5, 9), (6, 10, 12)))]
)
def test_a_run_that_skips_and_is_stopped_is_the_run_that_skips(lab: Callable, crashes: tuple) -> None:
    """P22 and P8: the counts are in the checkpoint, and no skip is counted twice."""
    poison = dict.fromkeys((0, 4, 5, 9), "gradient")
    whole, stopped = lab(poison), lab(poison, "other")
    expected = whole.run(on_nonfinite="skip", log=3, spike_factor=20.0)
    for crash_at in crashes:
        with pytest.raises(Crash):
            stopped.run(on_nonfinite="skip", log=3, spike_factor=20.0, crash_at=crash_at)
    assert_same(stopped.run(on_nonfinite="skip", log=3, spike_factor=20.0), expected)
    shown = ("step", "train/skipped", "train/spikes", "train/loss")
    ours, theirs = ([[record[name] for name in shown] for record in run.trained()] for run in (stopped, whole))
    assert ours[-1][:3] == theirs[-1][:3] == [12, 4.0, 0.0]
    assert {record[0]: record[1] for record in ours} == {record[0]: record[1] for record in theirs}


def test_rollback_continues_after_the_bad_batch(lab: Callable, mesh_of: Callable) -> None:
    """P23: from the newest checkpoint with other data, the same as a run that skips those batches by its config."""
    run = lab({6: "loss_nan", 13: "spike"})
    state = run.run(on_nonfinite="rollback", log=3)
    assert (int(state.step), int(state.cursor)) == (12, 15)
    cursors = [0, 1, 2, 3, *range(7, 15)]
    assert_same(state[:4], jax.device_get(by_hand(mesh_of(1), cursors))[:4])
    never = lab(name="other").run(skip_batches=("4-6",))
    assert_same(never[:5], state[:5])
    journal = json.loads((run.workdir / "anomalies" / "batch_skips.json").read_text())
    assert [(jump["step"], jump["from_batch"], jump["to_batch"]) for jump in journal] == [(4, 4, 7)]
    back = [record for record in run.records() if "train/rollback_to_batch" in record]
    assert [(each["step"], each["train/rollback_from_step"], each["train/rollbacks"]) for each in back] == [(4, 7, 1)]
    steps = [record["step"] for record in run.records() if "train/loss" in record]
    assert steps == sorted(set(steps)) and run.trained()[-1]["train/rollbacks"] == 1.0
    assert "went back to step 4, on with batch 7" in run.console.lines


@pytest.mark.long
def test_rollback_before_any_checkpoint_goes_to_the_start(lab: Callable, mesh_of: Callable) -> None:
    run = lab({1: "gradient", 4: "loss_inf"})
    state = run.run(num_steps=6, checkpoint=0, on_nonfinite="rollback")
    assert_same(state[:4], jax.device_get(by_hand(mesh_of(1), [5, 6, 7, 8, 9, 10]))[:4])
    journal = json.loads((run.workdir / "anomalies" / "batch_skips.json").read_text())
    assert [(jump["step"], jump["from_batch"], jump["to_batch"]) for jump in journal] == [(0, 0, 2), (0, 0, 5)]


@pytest.mark.parametrize(
    "where", ["drop", *(pytest.param(name, marks=pytest.mark.weekly) for name in ("journal", "after", "later"))]
)
def test_a_crash_around_a_rollback_changes_nothing(lab: Callable, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """P23: before the journal is written, after it, and after the next checkpoint."""
    poison = {6: "loss_nan", 10: "gradient", 17: "loss_inf"}
    expected = lab(poison).run(num_steps=14, on_nonfinite="rollback", log=3)
    run, crash_at = lab(poison, "other"), {"after": -6, "later": 10}.get(where)
    with monkeypatch.context() as patch, pytest.raises(Crash):
        if where == "drop":
            patch.setattr(Checkpoints, "delete_after", crash)
        elif where == "journal":
            patch.setattr(loop.TrainLoop, "_start_from", crash_at_second(loop.TrainLoop._start_from))
        run.run(num_steps=14, on_nonfinite="rollback", log=3, crash_at=crash_at)
    assert_same(run.run(num_steps=14, on_nonfinite="rollback", log=3), expected)
    whole = json.loads((run.workdir.parent / "run" / "anomalies" / "batch_skips.json").read_text())
    assert json.loads((run.workdir / "anomalies" / "batch_skips.json").read_text()) == whole


def crash(*_: object) -> None:
    raise Crash


def crash_at_second(function: Callable) -> Callable:
    calls = []

    def called(*arguments: object) -> object:
        calls.append(1)
        return crash() if len(calls) == 2 else function(*arguments)

    return called


def test_a_batch_that_nothing_helps_against_ends_the_run(lab: Callable) -> None:
    run = lab(dict.fromkeys(range(6, 40), "loss_nan"))
    with pytest.raises(
        NonFiniteLossError, match=r"went back to step 4 2 times \(train.max_nonfinite\), and yet loss is nan"
    ):
        run.run(on_nonfinite="rollback", max_nonfinite=2)
    assert sorted(run.saved()) == [0, 4]
    assert_finite(run.saved())


@pytest.mark.long
def test_jumps_from_later_checkpoints_are_forgotten(lab: Callable) -> None:
    """Their checkpoint was lost: the batches after the older checkpoint are trained and counted again."""
    poison = {9: "loss_nan"}
    expected, run = lab(poison).run(on_nonfinite="rollback"), lab(poison, "other")
    with pytest.raises(Crash):
        run.run(on_nonfinite="rollback", crash_at=11)
    newest = run.workdir / "checkpoints" / "8"
    newest.rename(run.workdir / "lost")
    assert_same(run.run(on_nonfinite="rollback"), expected)
    assert run.trained()[-1]["train/rollbacks"] == 1.0


def test_a_fresh_run_forgets_the_journal_of_the_one_before(lab: Callable) -> None:
    run = lab({1: "loss_nan"})
    run.run(num_steps=4, on_nonfinite="rollback")
    shutil.rmtree(run.workdir / "checkpoints")
    run.rows.poison.clear()
    assert int(run.run(num_steps=4, on_nonfinite="rollback").cursor) == 4
    assert not (run.workdir / "anomalies" / "batch_skips.json").exists()


def test_a_spike_is_undone_where_the_run_may_go_back(lab: Callable, mesh_of: Callable) -> None:
    run = lab({38: "spike"})
    state = run.run(num_steps=40, checkpoint=10, on_nonfinite="rollback", spike_factor=50.0)
    assert int(state.cursor) == 49
    assert_same(state[:4], jax.device_get(by_hand(mesh_of(1), [*range(30), *range(39, 49)]))[:4])
    assert [line for line in run.console.lines if "is a spike (" in line and "at step 39 (batch 38" in line]
    assert run.trained()[-1]["train/rollbacks"] == 1.0


def test_a_spike_is_counted_where_it_may_not(lab: Callable) -> None:
    """P22: the NaN before it, refused, is neither in the window nor among the spikes."""
    run = lab({36: "loss_nan", 37: "loss_inf", 38: "spike"})
    state = run.run(num_steps=40, checkpoint=10, on_nonfinite="skip", spike_factor=50.0)
    assert (int(state.step), int(state.cursor)) == (40, 42)
    spikes = {record["step"]: record["train/spikes"] for record in run.trained()}
    assert (spikes[36], spikes[37], spikes[40]) == (0.0, 1.0, 1.0)
    meta = read_manifest(run.workdir / "checkpoints" / "40")["meta"]["anomalies"]
    assert len(meta["losses"]) == 40 and np.isfinite(meta["losses"]).all() and meta["spikes"] == 1


def test_losses_of_another_phase_are_forgotten_by_a_resumed_run_too(lab: Callable) -> None:
    """At the very boundary: the resume point must not affect which losses are spikes."""
    stored = []
    for name, crashes in (("run", []), ("other", [9])):
        run = lab(name=name)
        for crash_at in crashes:
            with pytest.raises(Crash):
                run.run(boundary=8, spike_factor=10.0, crash_at=crash_at)
        run.run(boundary=8, spike_factor=10.0)
        stored.append(read_manifest(run.workdir / "checkpoints" / "12")["meta"]["anomalies"])
        assert "from step 8 on: from 8" in run.console.lines
    assert len(stored[0]["losses"]) == 4 and stored[0] == stored[1]


def test_batches_to_leave_out_may_be_named_later(lab: Callable, mesh_of: Callable) -> None:
    """P23: stopped by a batch, resumed without it from the checkpoint; the cursor is that of the text."""
    run = lab({6: "loss_nan"})
    with pytest.raises(NonFiniteLossError):
        run.run()
    state = run.run(skip_batches=("0", "6", "9-10", "10-11", "100"))
    assert_same(state[:4], jax.device_get(by_hand(mesh_of(1), [0, 1, 2, 3, 4, 5, 7, 8, 12, 13, 14, 15]))[:4])
    assert (int(state.step), int(state.cursor), int(state.skipped)) == (12, 16, 0)


@pytest.mark.parametrize("text", ["x", "-3", "7-5", "5 6", "5-"])
def test_batches_that_cannot_be_read_are_named(text: str) -> None:
    with pytest.raises(UserError, match=r"train\.skip_batches: '.*' is neither a batch such as 57"):
        Train(skip_batches=(text,))
