"""Checkpoints are exact on any mesh; damage is always reported, and at least one valid checkpoint remains."""

from __future__ import annotations

import errno
import logging
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from kill_lab import kill_after_lines

from bertjax.checkpoint import manager as manager_module
from bertjax.checkpoint.manager import Checkpoints
from bertjax.checkpoint.manifest import MANIFEST
from bertjax.checkpoint.settings import Checkpointing
from bertjax.errors import UserError


class State(NamedTuple):
    params: dict[str, Any]
    moments: tuple[Any, ...]
    step: Any
    nothing: tuple[()] = ()


def make_state(seed: int = 0, rows: int = 16) -> State:
    draw = np.random.default_rng(seed).standard_normal
    kernel = jnp.asarray(draw((2, rows, 8)), jnp.float32)
    narrow = jnp.asarray(draw((8,)), jnp.bfloat16)
    return State(
        {"layers": {"kernel": kernel, "bias": narrow}, "odd.name": jnp.arange(3, dtype=jnp.uint32)},
        ({"kernel": kernel * 2}, jnp.int32(2**24 + 1)),
        jnp.int32(seed),
    )


def abstract(state: Any) -> Any:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)


def assert_same(left: Any, right: Any) -> None:
    assert jax.tree.structure(left) == jax.tree.structure(right)
    for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        assert a.dtype == b.dtype
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def saved(directory: Path, steps: tuple[int, ...] = (1, 2, 3), keep: int = 5) -> Checkpoints:
    checkpoints = Checkpoints(directory, Checkpointing(keep=keep))
    for step in steps:
        checkpoints.save(step, make_state(step), {"cursor": step * 10})
    checkpoints.wait()
    return checkpoints


def test_round_trip_is_exact_and_keeps_the_types(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, (7,))
    restored = checkpoints.restore(abstract(make_state()))
    assert restored is not None
    assert restored.step == 7
    assert restored.meta == {"cursor": 70}
    assert_same(restored.state, make_state(7))
    assert isinstance(restored.state, State)
    checkpoints.close()


def test_plain_numbers_are_saved_as_arrays(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, Checkpointing(keep=1))
    checkpoints.save(1, {"step": 3, "rate": 0.5, "row": np.arange(3, dtype=np.int32)}, {})
    target = {"step": jnp.int32(0), "rate": jnp.float32(0), "row": jax.ShapeDtypeStruct((3,), jnp.int32)}
    restored = checkpoints.restore(target)
    assert restored is not None
    assert int(restored.state["step"]) == 3 and float(restored.state["rate"]) == 0.5
    assert restored.state["row"].tolist() == [0, 1, 2]


def test_orbax_alone_can_read_what_we_write(tmp_path: Path) -> None:
    saved(tmp_path, (4,)).close()
    tree = ocp.StandardCheckpointer().restore(tmp_path / "4" / "state")
    np.testing.assert_array_equal(tree["moments"]["0"]["kernel"], make_state(4).moments[0]["kernel"])


def test_empty_directory_restores_nothing(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "new" / "folder", Checkpointing(keep=1))
    assert checkpoints.restore(abstract(make_state())) is None
    assert checkpoints.latest_step() is None and checkpoints.all_steps() == []


@pytest.mark.long
def test_state_may_be_donated_right_after_save(tmp_path: Path) -> None:
    update = jax.jit(lambda tree: jax.tree.map(lambda x: x * -1 - 3, tree), donate_argnums=0)
    checkpoints = Checkpoints(tmp_path, Checkpointing(keep=10))
    state = {"a": jnp.arange(4 * 2**20, dtype=jnp.float32), "b": jnp.ones((999,), jnp.bfloat16)}
    expected = {}
    for step in range(1, 5):
        expected[step] = jax.tree.map(lambda x: np.array(x, copy=True), state)
        jax.block_until_ready(state)
        checkpoints.save(step, state, {})
        for _ in range(3):
            state = update(state)
    for step, tree in expected.items():
        restored = checkpoints.restore(abstract(state), step)
        assert restored is not None
        assert_same(restored.state, jax.tree.map(jnp.asarray, tree))


def test_another_mesh_gets_the_same_bits(tmp_path: Path) -> None:
    values = {
        "w": np.random.default_rng(0).standard_normal((16, 32)).astype("float32"),
        "n": np.arange(16).astype(jnp.bfloat16),
        "step": np.int32(5),
    }
    specs = {"w": PartitionSpec("fsdp", "tensor"), "n": PartitionSpec("fsdp"), "step": PartitionSpec()}

    def shardings(*sizes: int) -> dict[str, NamedSharding]:
        mesh = jax.make_mesh(sizes, ("data", "fsdp", "tensor"), axis_types=(AxisType.Auto,) * 3)
        return {name: NamedSharding(mesh, spec) for name, spec in specs.items()}

    checkpoints = Checkpoints(tmp_path, Checkpointing(keep=1))
    checkpoints.save(5, jax.device_put(values, shardings(1, 8, 1)), {})
    for sizes in ((2, 2, 2), (8, 1, 1), (1, 1, 8)):
        layout = shardings(*sizes)
        target = {k: jax.ShapeDtypeStruct(v.shape, v.dtype, sharding=layout[k]) for k, v in values.items()}
        restored = checkpoints.restore(target)
        assert restored is not None
        for name, value in values.items():
            assert restored.state[name].sharding == layout[name]
            assert np.asarray(restored.state[name]).tobytes() == value.tobytes()


def test_a_step_that_is_not_newer_is_refused(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, (3,))
    for step in (2, 3):
        with pytest.raises(UserError, match="already holds step 3"):
            checkpoints.save(step, make_state(), {})
    assert checkpoints.all_steps() == [3]


def test_meta_that_is_not_json_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, Checkpointing(keep=1))
    with pytest.raises(TypeError):
        checkpoints.save(1, make_state(), {"bad": object()})
    assert list(tmp_path.iterdir()) == []


# -- damage ------------------------------------------------------------------------------------------------------------


def data_files(step: Path) -> list[Path]:
    return sorted(p for p in [*step.glob("state/**/*"), step / MANIFEST] if p.is_file())


def flip_one_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_every_flipped_bit_is_seen(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, (1, 2))
    target = abstract(make_state())
    files = [path for path in data_files(tmp_path / "2") if path.stat().st_size]
    assert len(files) >= 5
    for path in files:
        original = path.read_bytes()
        flip_one_bit(path)
        with pytest.raises(UserError, match="step 2 is damaged"):
            checkpoints.restore(target, 2)
        path.write_bytes(original)
    assert checkpoints.restore(target, 2) is not None


def test_orbax_notes_next_to_the_data_do_not_matter(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, (1,))
    notes = [p for p in (tmp_path / "1").iterdir() if p.is_file() and p.name != MANIFEST]
    assert notes
    for path in notes:
        path.unlink()
    assert_same(checkpoints.restore(abstract(make_state())).state, make_state(1))  # type: ignore[union-attr]


def damage(step: Path, how: str) -> None:
    largest = max(data_files(step), key=lambda p: p.stat().st_size)
    if how == "flip":
        flip_one_bit(largest)
    elif how == "truncate":
        largest.write_bytes(largest.read_bytes()[:-7])
    elif how == "zero":
        largest.write_bytes(bytes(largest.stat().st_size))
    elif how == "delete":
        largest.unlink()
    elif how == "no manifest":
        (step / MANIFEST).unlink()
    elif how == "half a manifest":
        (step / MANIFEST).write_text((step / MANIFEST).read_text()[:100])
    elif how == "edited manifest":
        text = (step / MANIFEST).read_text()
        (step / MANIFEST).write_text(text.replace('"cursor": 30', '"cursor": 31'))
    elif how == "empty":
        for path in data_files(step):
            path.unlink()


@pytest.mark.parametrize(
    "how", ["flip", "truncate", "zero", "delete", "no manifest", "half a manifest", "edited manifest", "empty"]
)
def test_damaged_newest_is_set_aside_and_the_one_before_used(
    tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoints = saved(tmp_path, (2, 3))
    damage(tmp_path / "3", how)
    with caplog.at_level(logging.WARNING):
        restored = checkpoints.restore(abstract(make_state()))
    assert restored is not None and restored.step == 2
    assert_same(restored.state, make_state(2))
    assert "step 3" in caplog.text and "damaged" in caplog.text and "step 2" in caplog.text
    assert (tmp_path / "damaged" / "3").is_dir() and checkpoints.latest_step() == 2
    checkpoints.save(3, make_state(3), {})  # the number can be used again
    assert checkpoints.restore(abstract(make_state())).step == 3  # type: ignore[union-attr]


def test_the_name_of_a_folder_is_the_step_of_its_checkpoint(tmp_path: Path) -> None:
    """A copy of step 3 is not step 100, and no other spelling of a number names a step."""
    checkpoints = saved(tmp_path, (2, 3))
    for copy in ("100", "0003", "٣", "³"):
        shutil.copytree(tmp_path / "3", tmp_path / copy)
    assert checkpoints.all_steps() == [2, 3]
    with pytest.raises(UserError, match="step 100 is damaged"):
        checkpoints.restore(abstract(make_state()), 100)
    restored = checkpoints.restore(abstract(make_state()))
    assert restored is not None and restored.step == 3
    assert (tmp_path / "damaged" / "100").is_dir()
    checkpoints.save(4, make_state(4), {})
    checkpoints.wait()
    assert checkpoints.all_steps() == [2, 3, 4]


@pytest.mark.parametrize("during", ["verify_checkpoint", "require_same_leaves"])
def test_a_reader_chooses_again_when_the_run_deletes_its_choice(
    tmp_path: Path, during: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = saved(tmp_path, (1,), keep=1)
    original, calls = getattr(manager_module, during), []

    def deleted_meanwhile(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 1:
            run.save(2, make_state(2), {})
            run.wait()
        return original(*arguments)

    monkeypatch.setattr(manager_module, during, deleted_meanwhile)
    restored = Checkpoints(tmp_path, Checkpointing(keep=1), read_only=True).restore(abstract(make_state()))
    assert restored is not None and restored.step == 2 and "damaged" not in caplog.text
    assert_same(restored.state, make_state(2))


def test_all_damaged_is_an_error_and_changes_nothing(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, (1, 2))
    for step in (1, 2):
        damage(tmp_path / str(step), "flip")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(UserError, match="1, 2 are all damaged"):
        checkpoints.restore(abstract(make_state()))
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


def test_reading_only_changes_nothing(tmp_path: Path) -> None:
    saved(tmp_path, (1, 2)).close()
    damage(tmp_path / "2", "flip")
    (tmp_path / "3.orbax-checkpoint-tmp").mkdir()  # another process is still writing it
    names = sorted(p.name for p in tmp_path.iterdir())
    reader = Checkpoints(tmp_path, Checkpointing(keep=1), read_only=True)
    assert reader.restore(abstract(make_state())).step == 1  # type: ignore[union-attr]
    assert sorted(p.name for p in tmp_path.iterdir()) == names
    with pytest.raises(ValueError, match="read-only"):
        reader.save(9, make_state(), {})


def test_a_missing_step_lists_those_there_are(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, (1, 2))
    with pytest.raises(UserError, match=r"no checkpoint of step 5.*there are: 1, 2"):
        checkpoints.restore(abstract(make_state()), 5)


def changed(state: State, what: str) -> State:
    layers = state.params["layers"]
    if what == "shape":
        return make_state(rows=17)
    if what == "type":
        return state._replace(step=jnp.float32(0))
    if what == "extra":
        return state._replace(params={**state.params, "new": jnp.zeros(1)})
    return state._replace(params={"layers": {"kernel": layers["kernel"]}, "odd.name": state.params["odd.name"]})


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("shape", r"params/layers/kernel is float32\[2, 16, 8\] in the checkpoint and float32\[2, 17, 8\] in this run"),
        ("type", r"step is int32\[\] in the checkpoint and float32\[\]"),
        ("extra", "params/new is not in the checkpoint"),
        ("missing", "params/layers/bias is only in the checkpoint"),
    ],
)
def test_another_tree_is_refused_by_name(tmp_path: Path, what: str, message: str) -> None:
    checkpoints = saved(tmp_path, (1,))
    with pytest.raises(UserError, match=message):
        checkpoints.restore(abstract(changed(make_state(), what)))


# -- failures and shutdown ---------------------------------------------------------------------------------------------


def test_the_error_of_a_background_save_surfaces_and_the_next_save_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = saved(tmp_path, (1,), keep=1)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(manager_module, "write_manifest", full)
        checkpoints.save(2, make_state(2), {})
        with pytest.raises(UserError, match=r"step 2 could not be written.*no space left.*step 1 is there"):
            checkpoints.wait()
        assert checkpoints.latest_step() == 1
        checkpoints.save(3, make_state(3), {})
        with pytest.raises(UserError, match="step 3 could not be written"):
            checkpoints.save(4, make_state(4), {})
    assert [p.name for p in tmp_path.iterdir()] == ["1"]
    checkpoints.save(4, make_state(4), {})
    checkpoints.wait()
    assert checkpoints.all_steps() == [4]
    assert [p.name for p in tmp_path.iterdir()] == ["4"]


def test_a_deleted_directory_is_not_reported_to_hold_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = saved(tmp_path / "checkpoints", (1,))

    def delete(*_: Any) -> None:
        shutil.rmtree(tmp_path / "checkpoints")
        raise FileNotFoundError(errno.ENOENT, "No such file or directory")

    monkeypatch.setattr(manager_module, "write_manifest", delete)
    checkpoints.save(2, make_state(2), {})
    with pytest.raises(UserError, match="the directory is gone, and every checkpoint with it"):
        checkpoints.wait()


def test_a_reported_error_is_not_reported_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """P13: when a run fails, it waits for its checkpoints once more; a second error must not replace the first."""
    checkpoints = saved(tmp_path, (1,))

    def full(*_: Any, **__: Any) -> None:
        (tmp_path / "2.orbax-checkpoint-tmp").mkdir(exist_ok=True)
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints._checkpointer, "save", full)
        with pytest.raises(UserError, match=r"step 2 could not be written.*no space left"):
            checkpoints.save(2, make_state(2), {})
        patch.setattr(checkpoints._checkpointer, "wait_until_finished", full)
        checkpoints.wait()
    checkpoints.close()
    assert [p.name for p in tmp_path.iterdir()] == ["1"]


def test_leftovers_of_a_killed_run_are_removed(tmp_path: Path) -> None:
    saved(tmp_path, (1,)).close()
    for name in ("2.orbax-checkpoint-tmp", ".trash-0"):
        (tmp_path / name / "state").mkdir(parents=True)
    Checkpoints(tmp_path, Checkpointing(keep=1))
    assert [p.name for p in tmp_path.iterdir()] == ["1"]


def test_killed_while_saving_there_is_always_a_good_one(tmp_path: Path) -> None:
    code = """
        import sys, jax.numpy as jnp
        from bertjax.checkpoint.manager import Checkpoints
        from bertjax.checkpoint.settings import Checkpointing
        c = Checkpoints(sys.argv[1], Checkpointing(keep=1))
        for step in range((c.latest_step() or 0) + 1, 100000):
            c.save(step, {"x": jnp.full((512, 512), step, jnp.float32)}, {"step": step})
            if step % 5 == 0:
                print(step, flush=True)
    """
    target = {"x": jax.ShapeDtypeStruct((512, 512), jnp.float32)}
    last = 0
    for round_ in range(3):
        kill_after_lines(code, tmp_path, 1 + round_)
        checkpoints = Checkpoints(tmp_path, Checkpointing(keep=1))
        restored = checkpoints.restore(target)
        assert restored is not None and restored.step > last
        assert not (tmp_path / "damaged").exists()  # every visible checkpoint is complete
        assert np.all(np.asarray(restored.state["x"]) == restored.step) and restored.meta == {"step": restored.step}
        last = restored.step


# -- retention ---------------------------------------------------------------------------------------------------------


def test_retention_on_disk(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, Checkpointing(keep=2, keep_every=4, best_metric="eval/loss"))
    for step, loss in zip(range(1, 10), (9, 8, 1, 7, 6, 5, 4, 3, 2), strict=True):
        checkpoints.save(step, {"x": jnp.int32(step)}, {}, {"eval/loss": loss} if step != 8 else None)
    checkpoints.close()
    assert Checkpoints(tmp_path, Checkpointing(keep=2)).all_steps() == [3, 4, 8, 9]


@given(
    st.sets(st.integers(1, 60), max_size=12),
    st.integers(1, 4),
    st.one_of(st.none(), st.integers(1, 9)),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_kept_steps(steps: set[int], keep: int, every: int | None, lower: bool, random: Any) -> None:
    scores = {s: random.choice([None, float("nan"), float("inf"), random.random()]) for s in steps}
    metric = "eval/loss" if lower else "eval/accuracy"
    remaining = Checkpointing(keep=keep, keep_every=every, best_metric=metric).steps_to_keep(scores)
    assert remaining <= steps and len(remaining) >= min(keep, len(steps))
    assert set(sorted(steps)[-keep:]) <= remaining
    assert all(s in remaining for s in steps if every and s % every == 0)
    finite = {s: v for s, v in scores.items() if v is not None and np.isfinite(v)}
    if finite:
        best = min(finite.values()) if lower else max(finite.values())
        assert any(finite.get(s) == best for s in remaining)


def test_bad_settings_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"checkpoint\.keep must"):
        Checkpoints(tmp_path, Checkpointing(keep=0))
    with pytest.raises(UserError, match=r"checkpoint\.keep_every must"):
        Checkpoints(tmp_path, Checkpointing(keep=1, keep_every=0))
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot create"):
        Checkpoints(tmp_path / "file" / "below", Checkpointing(keep=1))
