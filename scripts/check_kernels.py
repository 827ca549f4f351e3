"""Compares the fused attention kernel of the local accelerator with the reference: accuracy and speed.

    python scripts/check_kernels.py [--implementation cudnn|triton|splash|interpret] [--lengths 512,2048] [--heads 12]

For packed examples, full, causal and with a window of 128: prints the largest difference of outputs and gradients at
real tokens from the float32 reference, relative to its largest value, next to that of the reference in bfloat16; and
the time of forward and backward. Exits with 1 if the kernel's error exceeds four times that of the reference.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.config.model import EncoderConfig
from bertjax.models.attention import dot_product_attention
from bertjax.models.attention_context import AttentionContext

KINDS = {"whole": (0, False), "causal": (0, True), "window": (128, False)}
ROWS, WIDTH, REPEATS = 4, 64, 10
Run = Callable[..., tuple[jax.Array, ...]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = {"gpu": "cudnn", "tpu": "splash"}.get(jax.default_backend(), "interpret")
    parser.add_argument("--implementation", default=default)
    parser.add_argument("--lengths", default="512,2048")
    parser.add_argument("--heads", type=int, default=12)
    options = parser.parse_args()
    print(f"{options.implementation} on {jax.devices()[0].device_kind}, jax {jax.__version__}")
    right = [
        check(options.implementation, name, int(length), options.heads)
        for length in options.lengths.split(",")
        for name in KINDS
    ]
    return 0 if all(right) else 1


def check(implementation: str, name: str, length: int, heads: int) -> bool:
    """Prints one line; returns False if the error of the kernel is too large."""
    inputs, context = batch(name, length, heads)
    exact = compiled("xla", "float32", heads, context)(*inputs)
    plain, kernel = (compiled(each, "bfloat16", heads, context) for each in ("xla", implementation))
    errors = [max(map(relative, run(*inputs), exact)) for run in (plain, kernel)]
    times = [milliseconds(run, inputs) for run in (plain, kernel)]
    print(
        f"{length:6d} {name:7s} error plain {errors[0]:.1e} kernel {errors[1]:.1e}   "
        f"ms plain {times[0]:.2f} kernel {times[1]:.2f} ({times[0] / times[1]:.2f} times as fast)"
    )
    return bool(errors[1] <= 4 * errors[0])


def batch(name: str, length: int, heads: int) -> tuple[list[jax.Array], AttentionContext]:
    """Returns q, k, v and loss weights; three examples per sequence and an eighth of padding."""
    draw = np.random.default_rng(0).normal(size=(4, ROWS, length, heads, WIDTH))
    ids = np.zeros((ROWS, length), np.int32)
    for number, (start, stop) in enumerate(((0, 2), (2, 5), (5, 7)), 1):
        ids[:, start * length // 8 : stop * length // 8] = number
    return [jnp.asarray(each, jnp.float32) for each in draw], AttentionContext(jnp.asarray(ids), *KINDS[name])


def compiled(implementation: str, kind: str, heads: int, context: AttentionContext) -> Run:
    """Returns the output at real tokens and the gradients of q, k, v."""
    config = EncoderConfig(
        hidden_size=heads * WIDTH,
        num_heads=heads,
        attention_dropout=0.0,
        compute_dtype=kind,
        attention_implementation=implementation,
    )
    real = (context.segment_ids > 0)[:, :, None, None]

    def loss(q: jax.Array, k: jax.Array, v: jax.Array, weights: jax.Array) -> tuple[jax.Array, jax.Array]:
        out = jnp.where(real, dot_product_attention(q, k, v, context, config, None).astype(jnp.float32), 0.0)
        return (out * weights).sum(), out

    @jax.jit
    def run(*inputs: jax.Array) -> tuple[jax.Array, ...]:
        (_, out), gradients = jax.value_and_grad(loss, (0, 1, 2), has_aux=True)(*inputs)
        return out, *gradients

    inputs = [jax.ShapeDtypeStruct((*context.segment_ids.shape, heads, WIDTH), jnp.float32)] * 4
    with jax.default_matmul_precision("float32" if kind == "float32" else "default"):
        return run.lower(*inputs).compile()


def relative(results: jax.Array, exact: jax.Array) -> float:
    return float(jnp.abs(results - exact).max() / jnp.abs(exact).max())


def milliseconds(run: Run, inputs: list[jax.Array]) -> float:
    jax.block_until_ready(run(*inputs))
    start = time.perf_counter()
    for _ in range(REPEATS):
        out = run(*inputs)
    jax.block_until_ready(out)
    return 1e3 * (time.perf_counter() - start) / REPEATS


if __name__ == "__main__":
    sys.exit(main())
