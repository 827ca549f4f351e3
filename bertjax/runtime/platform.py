"""What the machine can do: its platform, its cache of compiled code, the types that its processor multiplies fast."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import jax
from jax.experimental.compilation_cache import compilation_cache
from ml_collections import ConfigDict

from bertjax.config import parse
from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.models.mesh import target_platform


def use_platform(wanted: str) -> None:
    """Raises `UserError` when the devices are not what was asked for: nobody trains on a CPU for a week by mistake."""
    if wanted == "cpu":
        jax.config.update("jax_platforms", "cpu")
    try:
        found = {"cuda": "gpu", "rocm": "gpu"}.get(jax.default_backend(), jax.default_backend())
    except RuntimeError as error:
        raise UserError(f"jax cannot start its backend: {str(error).splitlines()[0]}") from error
    if wanted not in ("any", found):
        raise UserError(
            f"platform={wanted} was asked for, but jax runs on {found}; install its plugin "
            "(pip install 'bertjax[cuda12]', 'bertjax[cuda13]' or 'bertjax[tpu]') or set --config.platform=any"
        )
    if wanted == "any" and found == "cpu" and "JAX_PLATFORMS" not in os.environ:
        device = next((path for path in ("/dev/nvidia0", "/dev/accel0") if os.path.exists(path)), None)
        if device is not None:
            raise UserError(
                f"this machine has an accelerator ({device}), but jax runs on the CPU; install its plugin "
                "(pip install 'bertjax[cuda12]' or 'bertjax[tpu]') or set --config.platform=cpu"
            )


def enable_compile_cache(cfg: ConfigDict) -> None:
    """Lets jax keep what it compiles for a second or longer, unless its own settings name a place for that.

    Code for a CPU uses all that it can do, so another CPU that shares the disk gets a folder of its own.
    """
    if not cfg.compile_cache or jax.config.values["jax_compilation_cache_dir"] is not None:
        return
    folder = parse.cache_folder(cfg) / "xla"
    if jax.default_backend() == "cpu":
        folder /= hashlib.sha256(" ".join(sorted(_cpu_flags())).encode()).hexdigest()[:16]
    jax.config.update("jax_compilation_cache_dir", str(folder))


@contextlib.contextmanager
def compile_cache_disabled() -> Iterator[None]:
    """Whatever is compiled here is compiled anew, and not kept; jax must be told to ask its config again."""

    def use(value: bool) -> None:
        jax.config.update("jax_enable_compilation_cache", value)
        compilation_cache.reset_cache()

    was = jax.config.values["jax_enable_compilation_cache"]
    use(False)
    try:
        yield
    finally:
        use(was)


def check_determinism(cfg: ConfigDict) -> None:
    """Raises `UserError` where `deterministic` was asked for and XLA is free to add in another order every time."""
    flags = os.environ.get("XLA_FLAGS", "").split()
    given = [flag.partition("=")[2] for flag in flags if flag.partition("=")[0] == "--xla_gpu_deterministic_ops"]
    on = bool(given) and given[-1].lower() in ("", "true", "1")  # the last one counts
    if cfg.deterministic and jax.default_backend() in ("gpu", "cuda", "rocm") and not on:
        raise UserError(
            "deterministic=true: a GPU adds in an order of its own unless XLA is told otherwise; start with "
            "XLA_FLAGS=--xla_gpu_deterministic_ops=true in the environment (slower), or set deterministic=false"
        )


def platform_config(cfg: ConfigDict, model: EncoderConfig) -> EncoderConfig:
    """The model with the types and the unrolling that suit the platform in use: that of the mesh, if there is one.

    XLA:CPU multiplies bfloat16 fast only where the result is float32 (and the processor has the instructions), and
    its scan copies what the backward pass needs: unrolled is 1.4 times as fast, but `remat` then saves nothing, for XLA
    finds what is computed twice. Accelerators keep the activations in bfloat16, too, and compile one layer.
    """
    on_cpu = target_platform() == "cpu"
    compute = cfg.train.compute_dtype
    if compute == "auto":
        compute = "bfloat16" if not on_cpu or _cpu_multiplies_bfloat16() else "float32"
    unrolled = on_cpu and cfg.model.unroll is None and model.remat == "none"
    unroll = model.num_layers if unrolled else model.unroll
    return dataclasses.replace(
        model, compute_dtype=compute, result_dtype="float32" if on_cpu else compute, unroll=unroll
    )


def _cpu_multiplies_bfloat16() -> bool:
    return not _cpu_flags().isdisjoint(("avx512_bf16", "amx_bf16"))


def _cpu_flags() -> set[str]:
    """The instruction sets of this machine, as Linux tells them; empty elsewhere."""
    if not sys.platform.startswith("linux"):
        return set()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return set()
    return next((set(line.split(":", 1)[1].split()) for line in lines if line.startswith(("flags", "Features"))), set())
