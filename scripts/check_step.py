"""Compares training steps on the GPU with the same steps on the CPU: losses, and norms of all gradients.

    python scripts/check_step.py [--cache DIR]
    python scripts/check_step.py --smoke                a virtual device of the CPU stands for the GPU, two cases

A BERT of two layers with heads of 64 takes four steps from the same weights on the same batches. The CPU computes in
float32, from which float32 on the GPU may differ by 2e-4 and bfloat16 by 3e-2, relative to the norm. `hash` drops the
same elements on both, so that steps with dropout compare, too. The last line says whether the GPU repeats its own
numbers. Exits with 1 if a case differs by more, or the GPU does not repeat them.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.5")
if "--smoke" in sys.argv:
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"

import jax
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # of this checkout, installed or not

from bertjax.config.overrides import apply_overrides, load_config
from bertjax.data import from_config
from bertjax.experiment import build
from bertjax.experiment.config import parse as check
from bertjax.training.sharding import local_sequences, put_batch

COMMON = {
    "data.sources": "builtin:python-docs",
    "data.vocab_size": 4096,
    "data.example_format": "block",
    "data.packing": "best_fit",
    "data.seq_len": 128,
    "objective.masking.dynamic": True,
    "train.phases": "",
    "train.batch_size": 8,
    "train.num_steps": 100,
    "train.dropout_prng": "hash",
    "schedule.warmup_steps": 0,
    "optimizer.learning_rate": 1e-3,
    "model.num_heads": 2,
}
WIDE, NARROW = {"train.compute_dtype": "float32"}, {"train.compute_dtype": "bfloat16"}
PLAIN, PALLAS = ({"model.attention_implementation": each} for each in ("xla", "pallas"))
NORMS, NO_DROPOUT = {"model.norm_implementation": "pallas"}, {"model.attention_dropout": 0.0}
UNPACKED = {"data.packing": "none"}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # settings of the GPU and of the CPU
    "float32, plain attention": (WIDE | PLAIN, PLAIN),
    "bfloat16, cuDNN by offsets": (NARROW | NO_DROPOUT, NO_DROPOUT | PLAIN),
    "bfloat16, plain attention": (NARROW | PLAIN, PLAIN),
    "bfloat16, pallas attention and norms": (NARROW | PALLAS | NORMS, PALLAS | NORMS),
    "bfloat16, cuDNN by lengths": (NARROW | NO_DROPOUT | UNPACKED, NO_DROPOUT | PLAIN | UNPACKED),
    "float32, pallas attention and norms": (WIDE | PALLAS | NORMS, PALLAS | NORMS),
}
TOLERANCE = {"float32": 2e-4, "bfloat16": 3e-2}
STEPS, SMOKE_CASES = 4, 2
Metrics = list[dict[str, np.ndarray]]


def take_steps(settings: dict[str, Any], device: jax.Device, cache: Path) -> Metrics:
    """Returns losses and squares of gradients of every step."""
    values = COMMON | settings | {"data.cache_dir": cache}
    cfg = apply_overrides(load_config("bert:tiny"), [f"--config.{key}={value}" for key, value in values.items()])
    check(cfg)
    prepared = from_config.prepare(cfg, lambda *_: None)
    exp = build.make_experiment(cfg, prepared.vocabulary, devices=[device])
    pipeline = from_config.training_pipeline(cfg, prepared, functools.partial(local_sequences, mesh=exp.mesh))
    state, results = exp.init_state(), []
    precision = "highest" if cfg.train.compute_dtype == "float32" else "default"  # not TF32
    with jax.default_device(device), jax.set_mesh(exp.mesh), jax.default_matmul_precision(precision):
        for cursor in range(STEPS):
            state, metrics = exp.train_step(state, exp.frozen, put_batch(pipeline.batch(cursor), exp.mesh))
            values_of_step = jax.device_get({name: metrics[name] for name in ("loss", "grad_squares")})
            results.append({name: np.asarray(value, np.float64) for name, value in values_of_step.items()})
    return results


def differences(ours: Metrics, theirs: Metrics) -> tuple[float, float]:
    """Returns the largest relative difference of the losses, and that of the norms of the first gradients."""
    loss = max(abs(a["loss"] - b["loss"]) / abs(b["loss"]) for a, b in zip(ours, theirs, strict=True))
    a, b = (np.sqrt(each[0]["grad_squares"]) for each in (ours, theirs))
    return float(loss), float(np.linalg.norm(a - b) / np.linalg.norm(b))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cache", type=Path, help="data.cache_dir (default: a temporary folder)")
    parser.add_argument("--smoke", action="store_true", help="compares the CPU with itself")
    options = parser.parse_args()
    cpus = jax.devices("cpu")
    cpu, gpu = cpus[0], cpus[1] if options.smoke else jax.devices("cuda")[0]
    print(f"{gpu.device_kind} against {cpu.device_kind}, jax {jax.__version__}")
    right, first = True, None
    with tempfile.TemporaryDirectory() as temporary:
        cache = options.cache or Path(temporary)
        for name, (of_gpu, of_cpu) in list(CASES.items())[: SMOKE_CASES if options.smoke else None]:
            began, maximum = time.monotonic(), TOLERANCE[name.partition(",")[0]]
            first = take_steps(of_gpu, gpu, cache)
            loss, gradients = differences(first, take_steps(WIDE | of_cpu, cpu, cache))
            good = loss <= maximum and gradients <= maximum  # NaN is not
            right &= good
            detail = f"loss {loss:.1e}, gradients {gradients:.1e} (at most {maximum:.0e})"
            print(f"{'ok ' if good else 'BAD'} {name:38s} {detail}  {time.monotonic() - began:.0f} s", flush=True)
        again = take_steps(of_gpu, gpu, cache)
    same = all(np.array_equal(a[name], b[name]) for a, b in zip(first, again, strict=True) for name in a)
    print(f"the same steps twice: {'bit by bit the same' if same else 'NOT the same bits'}")
    return 0 if right and same else 1


if __name__ == "__main__":
    sys.exit(main())
