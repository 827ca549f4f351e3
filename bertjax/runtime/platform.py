"""The platform in use: its devices, the cache of compiled code, and the dtypes that suit its processor."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import logging
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import jax
from jax.experimental.compilation_cache import compilation_cache
from ml_collections import ConfigDict

from bertjax.config import inputs
from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError, named
from bertjax.io.stderr import silence_unless_last
from bertjax.models.mesh import target_platform

log = logging.getLogger(__name__)
_FIXED = {"jax_enable_x64": False, "jax_threefry_partitionable": True, "jax_random_seed_offset": 0}
_ACCELERATORS = ("/dev/nvidia0", "/dev/accel0", "/dev/vfio/0", "/dev/kfd")


def use_platform(name: str) -> None:
    """Starts jax on the platform `name` ("any": whichever there is).

    Raises:
        UserError: jax runs on another platform, or on the CPU of a machine with an accelerator: a long run on the wrong
            one would be a mistake.
    """
    if name == "cpu":
        jax.config.update("jax_platforms", "cpu")
    try:
        platform = {"cuda": "gpu", "rocm": "gpu"}.get(start_backend(), jax.default_backend())
    except RuntimeError as error:
        raise UserError(f"jax cannot start its backend: {str(error).splitlines()[0]}") from error
    if name not in ("any", platform):
        raise UserError(
            f"platform={name} is set, but jax runs on {platform}; install its plugin "
            "(pip install 'bertjax[cuda12]', 'bertjax[cuda13]' or 'bertjax[tpu]') or set "
            f"{named('config.platform', 'any')}"
        )
    if name == "any" and platform == "cpu" and "JAX_PLATFORMS" not in os.environ:
        device = next((path for path in ("/dev/nvidia0", "/dev/accel0") if os.path.exists(path)), None)
        if device is not None:
            raise UserError(
                f"this machine has an accelerator ({device}), but jax runs on the CPU; install its plugin "
                f"(pip install 'bertjax[cuda12]' or 'bertjax[tpu]') or set {named('config.platform', 'cpu')}"
            )


def start_backend() -> str:
    """Starts jax's backend and returns its name; settings of jax that would change weights get their defaults.

    Without an accelerator in this machine, what the plugins write to standard error is dropped: libtpu reports four
    errors about a TPU that nobody has.
    """
    for name, value in _FIXED.items():
        if jax.config.values[name] != value:
            log.warning(
                "%s=%s of jax would change all weights; it is %s here", name.upper(), jax.config.values[name], value
            )
            jax.config.update(name, value)
    return _default_backend()


@functools.cache
def _default_backend() -> str:
    has_accelerator = any(map(os.path.exists, _ACCELERATORS))
    with contextlib.nullcontext() if has_accelerator else silence_unless_last():
        return jax.default_backend()


_SHORTEST_CACHED = "jax_persistent_cache_min_compile_time_secs"


def enable_compile_cache(cfg: ConfigDict) -> None:
    """Sets the folder where jax caches compiled programs, unless jax's own settings name one.

    Code for a CPU uses all of its instructions, so another kind of CPU that shares the disk gets another folder.
    """
    if not cfg.compile_cache or jax.config.values["jax_compilation_cache_dir"] is not None:
        return
    folder = inputs.cache_folder(cfg) / "xla"
    folders = [folder]
    if jax.default_backend() == "cpu":
        folders += [folder / hashlib.sha256(" ".join(sorted(_cpu_flags())).encode()).hexdigest()[:16]]
    if all(map(_is_private, folders)):
        jax.config.update("jax_compilation_cache_dir", str(folders[-1]))
        if jax.config.values[_SHORTEST_CACHED] == 1.0:  # jax's default; a small encoder compiles in less
            jax.config.update(_SHORTEST_CACHED, 0.1)


def _is_private(folder: Path) -> bool:
    """Makes a folder that only this user can write to; returns whether it is one, and warns if it is not.

    A program that is read from it runs with the rights of this user, and nothing but the file system protects it.
    """
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        status = folder.stat()
    except OSError:  # what needs the folder more than this reports it
        return False
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid in (os.getuid(), 0) and not mode & 0o022:
        return True
    log.warning(
        "compiled programs in %s are not used: another user can write there (owner %d, mode %03o), and they would be "
        "executed; remove the folder, give another data.cache_dir, or set %s",
        folder,
        status.st_uid,
        mode,
        named("config.compile_cache", False),
    )
    return False


@contextlib.contextmanager
def compile_cache_disabled() -> Iterator[None]:
    """Compiles everything in the `with` block, reads nothing from the cache, and writes nothing to it."""

    def enable(value: bool) -> None:
        jax.config.update("jax_enable_compilation_cache", value)
        compilation_cache.reset_cache()  # jax reads the setting once

    before = jax.config.values["jax_enable_compilation_cache"]
    enable(False)
    try:
        yield
    finally:
        enable(before)


def check_determinism(cfg: ConfigDict) -> None:
    """Raises `UserError` where `deterministic` is set and XLA may add in another order each time."""
    flags = os.environ.get("XLA_FLAGS", "").split()
    values = [flag.partition("=")[2] for flag in flags if flag.partition("=")[0] == "--xla_gpu_deterministic_ops"]
    is_set = bool(values) and values[-1].lower() in ("", "true", "1")  # the last one counts
    if cfg.deterministic and jax.default_backend() in ("gpu", "cuda", "rocm") and not is_set:
        raise UserError(
            "deterministic=true: a GPU adds in any order unless XLA is configured otherwise; start with "
            "XLA_FLAGS=--xla_gpu_deterministic_ops=true in the environment (slower), or set deterministic=false"
        )


def platform_config(cfg: ConfigDict, model: EncoderConfig) -> EncoderConfig:
    """Returns the model with the dtypes and the unrolling that suit the platform of the mesh, else that of jax.

    XLA:CPU multiplies bfloat16 fast only where the result is float32 (and the processor has the instructions).
    A scan over layers copies what the backward pass needs, on every platform: unrolled layers compile longer and run
    faster, but `remat` then saves nothing, since XLA merges repeated computations.
    """
    on_cpu = target_platform() == "cpu"
    compute, result = cfg.train.compute_dtype, cfg.train.result_dtype
    if compute == "auto":
        is_short = result == "bfloat16" or not on_cpu or cpu_multiplies_bfloat16()
        compute = "bfloat16" if is_short else "float32"
    if result == "auto":
        result = "float32" if on_cpu else compute
    is_chosen = isinstance(cfg.model.unroll, int)  # also for a teacher, whose own config leaves it open
    unroll = model.unroll or (model.num_layers if model.remat == "none" and not is_chosen else 1)
    return dataclasses.replace(model, compute_dtype=compute, result_dtype=result, unroll=unroll)


def cpu_multiplies_bfloat16() -> bool:
    """Returns whether the processor has instructions for products of bfloat16; false where that is unknown."""
    return not _cpu_flags().isdisjoint(("avx512_bf16", "amx_bf16"))


def _cpu_flags() -> set[str]:
    """Returns the instruction sets of this machine on Linux; empty elsewhere."""
    if not sys.platform.startswith("linux"):
        return set()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return set()
    return next((set(line.split(":", 1)[1].split()) for line in lines if line.startswith(("flags", "Features"))), set())
