"""Any change of any file of a checkpoint gives a one-line error or an exact load, and no other exception (P10)."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bertjax.checkpoint.manager import Checkpoints
from bertjax.checkpoint.manifest import MANIFEST, body_digest
from bertjax.checkpoint.settings import Checkpointing
from bertjax.errors import UserError

STATE = {"params": {"kernel": jnp.arange(12.0).reshape(3, 4), "bias": jnp.ones(4, jnp.bfloat16)}, "step": jnp.int32(7)}
ABSTRACT = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), STATE)
META = {"data": {"tokenizer": "a digest"}, "config": {"seed": 0}}
QUICK = settings(
    max_examples=40,
    deadline=timedelta(seconds=20),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
JSON_BOMBS = [b"[" * 100_000, b'{"a":' * 50_000, b"9" * 100_000, b'"\\ud800"', b"\xff\xfe", b"null", b"NaN", b"{}", b""]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("saved")
    checkpoints = Checkpoints(folder, Checkpointing(keep=1))
    checkpoints.save(7, STATE, META)
    checkpoints.close()
    yield folder


def exact_or_explained(folder: Path) -> None:
    reader = Checkpoints(folder, Checkpointing(keep=1), read_only=True)
    try:
        restored = reader.restore(ABSTRACT)
    except UserError as error:
        assert "\n" not in str(error) and "damaged" in str(error)
        return
    finally:
        reader.close()
    if restored is not None:
        assert (restored.step, restored.meta) == (7, META)
        jax.tree.map(np.testing.assert_array_equal, restored.state, STATE)


def copy_of(saved: Path, name: str) -> Path:
    copy = saved.parent / f"{saved.name}-{name}"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(saved, copy)
    return copy


@QUICK
@given(st.data())
def test_a_mutated_checkpoint_is_loaded_exactly_or_explained(saved: Path, data: st.DataObject) -> None:
    names = sorted(str(path.relative_to(saved)) for path in saved.rglob("*") if path.is_file())
    name = data.draw(st.sampled_from(names))
    whole = (saved / name).read_bytes()
    position = data.draw(st.integers(0, max(len(whole) - 1, 0)))
    noise = data.draw(st.one_of(st.binary(min_size=1, max_size=16), st.sampled_from(JSON_BOMBS)))
    made = {
        "cut": whole[:position],
        "longer": whole[:position] + noise + whole[position:],
        "replaced": whole[:position] + noise + whole[position + len(noise) :],
        "instead": noise,
        "zeros": bytes(len(whole)),
        "gone": None,
    }
    content = made[data.draw(st.sampled_from(sorted(made)))]
    copy = copy_of(saved, "mutated")
    if content is None:
        (copy / name).unlink()
    else:
        (copy / name).write_bytes(content)
    exact_or_explained(copy)


@pytest.mark.parametrize("text", JSON_BOMBS, ids=range(len(JSON_BOMBS)))
def test_a_manifest_that_is_no_manifest_is_damage(saved: Path, text: bytes) -> None:
    copy = copy_of(saved, "bomb")
    (copy / "7" / MANIFEST).write_bytes(text)
    with pytest.raises(UserError, match=r"step 7 is damaged|steps 7 are all damaged"):
        Checkpoints(copy, Checkpointing(keep=1), read_only=True).restore(ABSTRACT)


@pytest.mark.parametrize(
    "change",
    [{"files": []}, {"files": {"state/a": 3}}, {"metrics": {"loss": "low"}}, {"state": {"step": 1}}, {"step": 8}],
)
def test_a_manifest_of_another_form_is_damage_although_its_digest_is_right(saved: Path, change: dict[str, Any]) -> None:
    copy = copy_of(saved, "form")
    body = {**json.loads((copy / "7" / MANIFEST).read_text())["body"], **change}
    (copy / "7" / MANIFEST).write_text(json.dumps({"body": body, "sha256": body_digest(body)}))
    reader = Checkpoints(copy, Checkpointing(keep=1, best_metric="loss"), read_only=True)
    assert reader.best_step() is None
    with pytest.raises(UserError, match="damaged"):
        reader.restore(ABSTRACT)


def test_a_manifest_names_plain_files_of_its_step(saved: Path) -> None:
    """Files outside the checkpoint cannot replace its files, neither by name nor through a link."""
    copy = copy_of(saved, "linked")
    file = max(
        (path for path in (copy / "7" / "state").rglob("*") if path.is_file()), key=lambda path: path.stat().st_size
    )
    elsewhere = copy.parent / "elsewhere"
    elsewhere.write_bytes(bytes(file.stat().st_size))
    file.unlink()
    os.symlink(elsewhere, file)
    with pytest.raises(UserError, match="damaged"):
        Checkpoints(copy, Checkpointing(keep=1), read_only=True).restore(ABSTRACT)
