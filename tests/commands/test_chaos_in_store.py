"""Two hosts with a store between them: cut off from it, stopped and killed, they train the same model."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
import pytest
from hosts import ended, start, wait_for
from lab import Lab
from stores import Proxy, s3_through_proxy

from bertjax.experiment.load import load_run
from bertjax.io.staging import local_copy
from bertjax.io.store import Store

SETTINGS = ["--config.mesh.fsdp=1", "--config.train.batch_size=6", "--config.train.num_steps=16"]
SETTINGS += ["--config.data.shard_tokens=200", "--config.data.shuffle_shards=4", "--config.checkpoint.keep=3"]


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with s3_through_proxy() as proxy:
        yield proxy


def newest(store: Store) -> int:
    """Returns the step of the newest complete checkpoint in the store, -1 without any."""
    matches = (re.fullmatch(r"checkpoints/(\d+)/bertjax\.json", name) for name in store.list())
    return max((int(match[1]) for match in matches if match), default=-1)


def hosts(lab: Lab, tmp_path: Path, url: str | Path, *arguments: str) -> list[subprocess.Popen[str]]:
    settings = [*SETTINGS, "--config.data.cache_dir=s3://bucket/text", *arguments]
    return start(lab, tmp_path, url, 2, *settings)


def weights(url: str | Path) -> list[np.ndarray]:
    return jax.tree.leaves(load_run(local_copy(url)).params)


@pytest.mark.long
def test_cut_off_stopped_and_killed_it_is_the_same_run(
    lab: Lab, proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    url = "s3://bucket/chaos"
    store = Store(url)

    group = hosts(lab, tmp_path, url)
    wait_for(lambda: newest(store) >= 4, *group)
    before = newest(store)
    proxy.cut()  # uploads are tried again, and training continues
    time.sleep(6)
    proxy.heal()
    wait_for(lambda: newest(store) >= before + 2, *group)
    group[1].send_signal(signal.SIGSTOP)  # a host that hangs: the other ends and names it
    output = group[0].communicate(timeout=280)[0]
    assert group[0].returncode == 75 and "process 1" in output
    group[1].kill()
    group[1].communicate()

    outputs = ended(hosts(lab, tmp_path, url))
    assert "resuming at step" in outputs[0]
    local = tmp_path / "undisturbed"
    ended(hosts(lab, tmp_path, local, "--config.checkpoint.interval_steps=8"))
    for disturbed, undisturbed in zip(weights(url), weights(local), strict=True):
        assert np.asarray(disturbed).tobytes() == np.asarray(undisturbed).tobytes()
