"""Settings that must be made before anything imports jax: the CPU, eight virtual devices, and no network.

`BERTJAX_TEST_PLATFORM=gpu pytest` runs on a GPU, and BERTJAX_TEST_DEVICES=1 with so many virtual devices of the CPU:
tests that need more devices are skipped.
"""

from __future__ import annotations

import gc
import importlib.metadata
import importlib.util
import os
import platform
import re
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

_ON_GPU = os.environ.get("BERTJAX_TEST_PLATFORM", "cpu") == "gpu"
_DEVICES = int(os.environ.get("BERTJAX_TEST_DEVICES", "1" if _ON_GPU else "8"))
os.environ["JAX_PLATFORMS"] = "cuda,cpu" if _ON_GPU else "cpu"
if _ON_GPU:
    os.environ["JAX_DEFAULT_MATMUL_PRECISION"] = "highest"  # otherwise float32 is multiplied as TF32
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # several processes share the device
# Compilation takes most of the time: LLVM does not optimize, and the older emitters of fusions need half of the time.
# Flags from the environment come last and take precedence.
_FLAGS = f"--xla_force_host_platform_device_count={_DEVICES} --xla_backend_optimization_level=0"
# Programs are small: to split each into modules for several threads takes longer than to compile it in one.
_FLAGS += " --xla_llvm_disable_expensive_passes=true --xla_cpu_parallel_codegen_split_count=1"
if platform.machine() in ("x86_64", "AMD64"):  # one result on all of them: tolerances are not of one processor
    _FLAGS += " --xla_cpu_max_isa=AVX2"
    os.environ.setdefault("ATEN_CPU_CAPABILITY", "avx2")
if importlib.metadata.version("jaxlib").startswith("0.10."):  # jaxlib 0.12 aborts on this flag
    _FLAGS += " --xla_cpu_use_fusion_emitters=false"
os.environ["XLA_FLAGS"] = f"{_FLAGS} {os.environ.get('XLA_FLAGS', '')}"
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")  # no stack trace per operation of a program
os.environ["JAX_NUMPY_RANK_PROMOTION"] = "raise"  # [D] + [B, S, D] must be explicit, or a wrong axis is not noticed
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"
os.environ["TOKENIZERS_PARALLELISM"] = "true"
# Otherwise every process compiles tests and bertjax again: this one, the workers, and those that tests start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
os.environ.setdefault("OMP_NUM_THREADS", "1")  # of torch: tiny layers take less time than threads wait for each other

# Both workers, the processes that tests start, and the next run read what one of them compiled.
CACHE = Path(__file__).parents[1] / ".pytest_cache" / "d" / "xla"  # `pytest --cache-clear` deletes it
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(CACHE))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")

# Of the user's cache tests see what they wrote themselves; it ends with the process, and those that it starts have it.
_USER_CACHE = tempfile.TemporaryDirectory(prefix="bertjax-test-cache-")
os.environ["XDG_CACHE_HOME"] = _USER_CACHE.name

MAX_MEMORY_MAPS = 45_000  # a compiled program takes several, and Linux ends a process with more than 65,530
_NO_DEVICES = re.compile(r"needs \d+ devices, but|devices cannot be split|must be >= the product of mesh_shape")
SLOWEST_FIRST = ["matrix", "parity", "commands", "tests", "checkpoint", "training", "objectives", "data", "tasks", "hf"]
SHAPE_CHECKED = ["bertjax.models", "bertjax.objectives"]
_HAS_BEARTYPE = importlib.util.find_spec("beartype") is not None

gc.set_threshold(100_000, 20, 50)  # tracing allocates so much that the default spends a seventh of the time here

settings.register_profile("bertjax", deadline=None)  # a busy machine is not an error in the code
settings.load_profile("bertjax")

if _HAS_BEARTYPE:
    from jaxtyping import install_import_hook

    install_import_hook(SHAPE_CHECKED, "beartype.beartype")


def pytest_configure(config: pytest.Config) -> None:
    """Leaves out what runs once a week, which may be marked long as well, unless `-m` names it."""
    for mark in ("weekly", "matrix"):
        if mark not in config.option.markexpr:
            config.option.markexpr = " and ".join(
                filter(None, [config.option.markexpr and f"({config.option.markexpr})", f"not {mark}"])
            )


def pytest_report_header() -> str:
    return f"shape checks: {', '.join(SHAPE_CHECKED) if _HAS_BEARTYPE else 'off (beartype is not installed)'}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Moves folders with slow files, and with tests that wait, to the front: no process ends long after the others."""
    order = {name: index for index, name in enumerate(SLOWEST_FIRST)}
    items.sort(key=lambda item: order.get(item.path.parent.name, len(order)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    return (yield from _skip_without_devices())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    return (yield from _skip_without_devices())


def _skip_without_devices() -> Generator[None, None, None]:
    """Turns the errors of a test that needs more devices than there are into a skip."""
    try:
        return (yield)
    except Exception as error:
        if _DEVICES < 8 and _NO_DEVICES.search(f"{type(error).__name__}: {error}"):
            pytest.skip(f"needs more than {_DEVICES} devices")
        raise


@pytest.fixture(autouse=True, scope="module")
def few_memory_maps() -> Iterator[None]:
    """Drops compiled programs after a file when a process holds too many."""
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and len(maps.read_bytes().splitlines()) > MAX_MEMORY_MAPS:
        import jax

        jax.clear_caches()
        gc.collect()
