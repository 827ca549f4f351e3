"""Compiled programs are cached for the next start."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.compilation_cache import compilation_cache

from bertjax.config.defaults import base_config
from bertjax.runtime import platform

SETTINGS = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")


@pytest.fixture(autouse=True)
def fresh_settings() -> Iterator[None]:
    before = {name: jax.config.values[name] for name in SETTINGS}
    jax.config.update("jax_compilation_cache_dir", None)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    compilation_cache.reset_cache()
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


@pytest.mark.parametrize("mode", [0o775, 0o757])
def test_a_folder_that_others_can_write_to_is_not_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int
) -> None:
    config = base_config()
    config.data.cache_dir = str(tmp_path)
    before = os.umask(0o002)  # usual where every user has a group
    try:
        platform.enable_compile_cache(config)
    finally:
        os.umask(before)
    assert jax.config.values["jax_compilation_cache_dir"] is not None
    jax.config.update("jax_compilation_cache_dir", None)
    (tmp_path / "xla").chmod(mode)
    platform.enable_compile_cache(config)
    assert jax.config.values["jax_compilation_cache_dir"] is None
    assert f"another user can write there (owner {os.getuid()}, mode {mode:o})" in caplog.text


def test_a_second_start_reads_what_the_first_compiled(tmp_path: Path) -> None:
    config = base_config()
    config.data.cache_dir = str(tmp_path)
    hits: list[str] = []

    def heard(event: str, **_: object) -> None:
        hits.extend([event] * (event == "/jax/compilation_cache/cache_hits"))

    jax.monitoring.register_event_listener(heard)
    try:
        for expected in (0, 1):
            platform.enable_compile_cache(config)
            jax.jit(lambda x: jnp.tanh(x) @ x + 17)(jnp.eye(3)).block_until_ready()
            assert bool(hits) is bool(expected)
            jax.clear_caches()
    finally:
        jax.monitoring.unregister_event_listener(heard)
    (folder,) = (tmp_path / "xla").iterdir()  # one for this kind of processor
    assert any(folder.iterdir())


def test_a_directory_set_in_jax_stays(tmp_path: Path) -> None:
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    platform.enable_compile_cache(base_config())
    assert jax.config.jax_compilation_cache_dir == str(tmp_path)


def test_it_can_be_left_out() -> None:
    config = base_config()
    config.compile_cache = False
    platform.enable_compile_cache(config)
    assert jax.config.jax_compilation_cache_dir is None
