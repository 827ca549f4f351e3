"""Checkpoints of a work directory in an object store: what counts is in the store, whatever the local disk holds."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from stores import bucket_of

from bertjax.checkpoint.manager import Checkpoints
from bertjax.checkpoint.manifest import body_digest, read_manifest
from bertjax.checkpoint.settings import Checkpointing
from bertjax.errors import UserError
from bertjax.io.staging import local_copy, stored_folder
from bertjax.io.store import Store
from bertjax.storage import ObjectInfo

KEEP = 2


@pytest.fixture(
    scope="module", params=["memory", *(pytest.param(each, marks=pytest.mark.long) for each in ("s3", "gs"))]
)
def bucket(request: pytest.FixtureRequest) -> Iterator[str]:
    with bucket_of(request.param) as url:
        yield url


@pytest.fixture
def url(bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "host"))
    store = Store(f"{bucket}/{tmp_path.name}")
    yield store.url
    store.remove(store.list())


@contextlib.contextmanager
def opened(url: str, read_only: bool = False) -> Iterator[Checkpoints]:
    """Opens the checkpoints as a run does, or as a reader."""
    folder = local_copy(url)
    with contextlib.ExitStack() as stack:
        if not read_only:
            stack.enter_context(stored_folder(folder).hold())
        checkpoints = Checkpoints(folder / "checkpoints", Checkpointing(keep=KEEP), read_only=read_only)
        yield stack.enter_context(contextlib.closing(checkpoints))


def state(step: int) -> dict:
    return {"kernel": jnp.full((4, 3), step, jnp.float32), "bias": jnp.arange(5.0) * step}


def save(url: str, *steps: int) -> None:
    with opened(url) as checkpoints:
        for step in steps:
            checkpoints.save(step, state(step), {"cursor": step})


def lose_the_host(url: str) -> None:
    shutil.rmtree(local_copy(url))


def restored(url: str) -> int:
    """Restores the newest valid step as a reader, checks its values, and returns it."""
    with opened(url, read_only=True) as checkpoints:
        result = checkpoints.restore(state(0))
    for name, value in state(result.step).items():
        np.testing.assert_array_equal(result.state[name], value)
    assert result.meta == {"cursor": result.step}
    return result.step


def objects(url: str, step: int | str) -> list[str]:
    return list(Store(url).list(f"checkpoints/{step}"))


def test_another_host_restores_what_the_store_holds(url: str) -> None:
    save(url, 1, 2, 3)
    lose_the_host(url)
    assert restored(url) == 3
    assert not objects(url, 1) and objects(url, 2)  # old steps are deleted there, too
    with opened(url) as checkpoints:
        assert checkpoints.all_steps() == [2, 3]
        assert read_manifest(checkpoints.directory / "2")["meta"] == {"cursor": 2}


@pytest.mark.parametrize(
    "damage", ["flip", *(pytest.param(each, marks=pytest.mark.long) for each in ("cut", "delete"))]
)
def test_every_damaged_object_of_the_newest_step_is_noticed(url: str, damage: str) -> None:
    save(url, 1, 2)
    store, names = Store(url), [name for name in objects(url, 2) if "/state/" in name]
    assert len(names) > 3
    for name in [*names, "checkpoints/2/bertjax.json"]:
        content = store.read(name)
        if damage == "delete":
            store.remove([name])
        else:
            half = len(content) // 2
            flipped = content[:half] + bytes([content[half] ^ 1]) + content[half + 1 :]
            store.write(name, flipped if damage == "flip" else content[:-2])
        lose_the_host(url)
        assert restored(url) == 1, name
        store.write(name, content)
    lose_the_host(url)
    assert restored(url) == 2


@pytest.mark.parametrize(
    "change",
    [[], None, {"files": 3}, {"files": {"../../../../PWNED": {"size": 1, "sha256": ""}}}, {"files": {"state/a": 1}},
     {"meta": None}, {"metrics": []}, {"state": "x"}],
    ids=str,
)  # fmt: skip
def test_a_manifest_of_a_stranger_is_damage(url: str, change: object) -> None:
    """Also one with a correct digest of itself."""
    save(url, 1, 2)
    store = Store(url)
    body = json.loads(store.read("checkpoints/2/bertjax.json"))["body"]
    body = {**body, **change} if isinstance(change, dict) else change
    store.write("checkpoints/2/bertjax.json", json.dumps({"sha256": body_digest(body), "body": body}).encode())
    lose_the_host(url)
    assert restored(url) == 1


def test_a_run_moves_a_damaged_step_out_of_the_way(url: str) -> None:
    save(url, 1, 2)
    name = next(name for name in objects(url, 2) if "/state/d/" in name)
    Store(url).write(name, b"damaged")
    lose_the_host(url)
    with opened(url) as checkpoints:
        assert checkpoints.restore(state(0)).step == 1
        assert not objects(url, 2) and objects(url, "damaged/2")
        checkpoints.save(2, state(2), {"cursor": 2})
    lose_the_host(url)
    assert restored(url) == 2


def test_a_damaged_local_file_is_downloaded_again(url: str) -> None:
    save(url, 1, 2)
    folder = local_copy(url) / "checkpoints/2/state"
    for path in [path for path in folder.rglob("*") if path.is_file()]:
        path.write_bytes(b"damaged")
    assert restored(url) == 2


def test_a_local_step_that_the_store_lacks_does_not_count(url: str) -> None:
    save(url, 1, 2)
    Store(url).remove(["checkpoints/2/bertjax.json"])  # the end of an upload that never came
    assert restored(url) == 1
    with opened(url):
        assert not objects(url, 2)  # a run removes the rest


def test_a_listing_that_lags(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the newest step the one before is restored, and the step is written again; a deleted step is an error."""
    save(url, 1)
    before = Store(url).list()

    def late(self: Store, prefix: str = "") -> dict[str, ObjectInfo]:
        return {name: info for name, info in before.items() if name.startswith(prefix)}

    save(url, 2)
    lose_the_host(url)
    with monkeypatch.context() as patch:
        patch.setattr(Store, "list", late)
        assert restored(url) == 1
        save(url, 2)
    lose_the_host(url)
    assert restored(url) == 2
    save(url, 3)  # deletes step 1
    lose_the_host(url)
    with monkeypatch.context() as patch:
        patch.setattr(Store, "list", late)
        with pytest.raises(UserError, match=f"{url}.* no such object"):
            restored(url)
    lose_the_host(url)
    assert restored(url) == 3


def test_a_store_that_refuses_ends_the_run_and_loses_nothing(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    save(url, 1)
    upload = Store.upload

    def refuses(self: Store, files) -> None:
        files = list(files)
        if any(name.startswith("checkpoints/2") for _, name in files):
            raise PermissionError(13, "AccessDenied; check the credentials")
        upload(self, files)

    monkeypatch.setattr(Store, "upload", refuses)
    with pytest.raises(
        UserError, match=rf"step 2 could not be written to {url}/checkpoints: .*AccessDenied.*step 1 is there to resume"
    ):
        save(url, 2)
    lose_the_host(url)
    assert restored(url) == 1
