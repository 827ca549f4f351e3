"""Compares the fused kernels of the local accelerator with the reference: accuracy and speed.

    python scripts/check_kernels.py [--implementation cudnn|pallas|splash|interpret] [--lengths 512,2048] [--heads 12]

Attention for packed examples, full, causal, with a window of 128, and (pallas) with DeBERTa's and XLNet's scores; for
cuDNN also with the number of examples known, several per sequence and one with padding, which it computes by offsets
and lengths instead of a mask; and (pallas) the norm with dropout and residual, of `--heads` times 64 channels. Prints
the largest difference of outputs and gradients from the float32 reference, relative to its largest value, next to
that of the reference in bfloat16; and the time of forward and backward. Outputs at padding may have any finite value;
gradients there are zero. Memory holds NaN before a kernel runs, where the allocator reuses it. Exits with 1 if the
kernel's error exceeds four times that of the reference.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # of this checkout, installed or not

from bertjax.config.model import EncoderConfig
from bertjax.models.attention import average_values, dot_product_attention
from bertjax.models.attention_context import AttentionContext
from bertjax.models.disentangled_attention import content_to_position, position_to_content
from bertjax.models.dropout import HASH, dropout
from bertjax.models.linear import einsum, normalize
from bertjax.models.pallas.attention import ScoreTerms, pallas_attention
from bertjax.models.pallas.norm import NormWeights, add_and_normalize

KINDS = {"whole": (0, False), "causal": (0, True), "window": (128, False)}
COUNTED = {"packed": 3, "padded": 1}
"""Most examples per sequence, of kinds where the context tells it."""
SCORES = ("deberta", "xlnet")
ROWS, NORM_ROWS, WIDTH, REPEATS = 4, 32, 64, 10
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
        for name in kinds(options.implementation)
    ]
    return 0 if all(right) else 1


def kinds(implementation: str) -> list[str]:
    """Returns the names of the checks of a kernel; those of cuDNN also run where it is rehearsed on a CPU."""
    counted = [name + causal for name in COUNTED for causal in ("", " causal")]
    more = {"pallas": [*SCORES, "norm"], "cudnn": counted, "interpret": counted}
    return [*KINDS, *more.get(implementation, ())]


def check(implementation: str, name: str, length: int, heads: int) -> bool:
    """Prints one line; returns False if the error of the kernel is too large."""
    inputs, build = norm_inputs(length, heads) if name == "norm" else attention_inputs(name, length, heads)
    exact = build("xla", "float32")(*inputs)
    plain, kernel = (build(each, "bfloat16") for each in ("xla", implementation))
    errors = []
    for run in (plain, kernel):
        jax.block_until_ready([jnp.full_like(each, jnp.nan) for each in inputs * 4])
        errors.append(float(np.max([*map(relative, run(*inputs), exact)])))  # NaN if there is one
    times = [milliseconds(run, inputs) for run in (plain, kernel)]
    print(
        f"{length:6d} {name:13s} error plain {errors[0]:.1e} kernel {errors[1]:.1e}   "
        f"ms plain {times[0]:.2f} kernel {times[1]:.2f} ({times[0] / times[1]:.2f} times as fast)"
    )
    return bool(errors[1] <= 4 * errors[0])


def attention_inputs(name: str, length: int, heads: int) -> tuple[list[jax.Array], Callable[[str, str], Run]]:
    """Returns the inputs, and what compiles attention for an implementation and a dtype."""
    inputs, context = batch(name, length, heads)
    return inputs, lambda implementation, kind: compiled(name, implementation, kind, heads, context)


def norm_inputs(length: int, heads: int) -> tuple[list[jax.Array], Callable[[str, str], Run]]:
    """Returns the inputs, and what compiles norm(residual + dropout(x + bias)) for an implementation and a dtype."""
    width, key = heads * WIDTH, jax.random.key(0, impl=HASH)
    draw = np.random.default_rng(0)
    tokens = jnp.asarray(draw.normal(size=(3, NORM_ROWS, length, width)), jnp.float32)
    inputs = [*tokens, *jnp.asarray(draw.normal(size=(3, width)), jnp.float32)]

    def build(implementation: str, kind: str) -> Run:
        def loss(
            x: jax.Array, residual: jax.Array, factors: jax.Array, *vectors: jax.Array
        ) -> tuple[jax.Array, jax.Array]:
            x, residual = x.astype(kind), residual.astype(kind)
            if implementation == "pallas":
                [out] = add_and_normalize(x, residual, NormWeights(*vectors), 0.1, key, True, 1e-12)
            else:
                total = residual + dropout(x + vectors[0][None, None].astype(kind), 0.1, key)
                out = normalize(total, *vectors[1:], True, 1e-12, kind)
            return (out.astype(jnp.float32) * factors).sum(), out

        @jax.jit
        def run(*inputs: jax.Array) -> tuple[jax.Array, ...]:
            (_, out), gradients = jax.value_and_grad(loss, (0, 1, 3, 4, 5), has_aux=True)(*inputs)
            return out, *gradients

        return run

    return inputs, build


def batch(name: str, length: int, heads: int) -> tuple[list[jax.Array], AttentionContext]:
    """Returns q, k, v, loss weights and two tables; three examples per sequence and an eighth of padding.

    `padded` has one example per sequence, of which one is full, one has a single token, and one is empty.
    """
    draw = np.random.default_rng(0).normal(size=(4, ROWS, length, heads, WIDTH))
    ids = np.zeros((ROWS, length), np.int32)
    for number, (start, stop) in enumerate(((0, 2), (2, 5), (5, 7)), 1):
        ids[:, start * length // 8 : stop * length // 8] = number
    if name.startswith("padded"):
        ids = (np.arange(length) < np.array([[length], [5 * length // 8], [1], [0]])).astype(np.int32)
    tables = np.random.default_rng(1).normal(size=(2, 2 * length - 1, heads, WIDTH))
    window, causal = KINDS.get(name, (0, name.endswith("causal")))
    context = AttentionContext(jnp.asarray(ids), window, causal, max_examples=COUNTED.get(name.split()[0]))
    return [jnp.asarray(each, jnp.float32) for each in (*draw, *tables)], context


def compiled(name: str, implementation: str, kind: str, heads: int, context: AttentionContext) -> Run:
    """Returns the output at real tokens (NaN stays elsewhere, too) and the gradients of q, k, v and of the tables."""
    config = EncoderConfig(
        hidden_size=heads * WIDTH,
        num_heads=heads,
        attention_dropout=0.0,
        compute_dtype=kind,
        attention_implementation=implementation,
    )
    real = (context.segment_ids > 0)[:, :, None, None]

    def attend(q: jax.Array, k: jax.Array, v: jax.Array, tables: tuple[jax.Array, ...]) -> jax.Array:
        if name not in SCORES:
            return dot_product_attention(q, k, v, context, config, None)
        count = {"deberta": 2, "xlnet": 1}[name]
        terms = ScoreTerms({term: table[None] for term, table in zip(("c2p", "p2c"), tables[:count], strict=False)})
        if name == "xlnet":
            types = jnp.asarray(np.indices(context.segment_ids.shape).sum(axis=0) % 3)
            terms = terms._replace(
                distance_vectors=q + 0.5, type_scores=q.sum(axis=-1).swapaxes(1, 2), types=(types, types)
            )
        divisor = math.sqrt(WIDTH * (1 + count if name == "deberta" else 1))
        if implementation == "pallas":
            return pallas_attention(q, k, v, context, kind, 0.0, None, terms, divisor)
        partners = q if terms.distance_vectors is None else terms.distance_vectors
        scores = einsum("bqnh,bknh->bnqk", q, k, config) + content_to_position(partners, tables[0], None, config)
        if name == "deberta":
            scores = scores + position_to_content(k, tables[1], None, config)
        if terms.types is not None and terms.type_scores is not None:
            differs = terms.types[0][:, None, :, None] != terms.types[1][:, None, None, :]
            scores = scores + jnp.where(differs, terms.type_scores[..., None], 0.0)
        return average_values(scores / divisor, v, context.visible(), config, None)

    def loss(
        q: jax.Array, k: jax.Array, v: jax.Array, weights: jax.Array, *tables: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        out = attend(q, k, v, tables).astype(jnp.float32)
        return (jnp.where(real, out, 0.0) * weights).sum(), jnp.where(real | ~jnp.isfinite(out), out, 0.0)

    @jax.jit
    def run(*inputs: jax.Array) -> tuple[jax.Array, ...]:
        with_gradients = (0, 1, 2, *{"deberta": (4, 5), "xlnet": (4,)}.get(name, ()))
        (_, out), gradients = jax.value_and_grad(loss, with_gradients, has_aux=True)(*inputs)
        return out, *gradients

    length = context.segment_ids.shape[1]
    shapes = [(*context.segment_ids.shape, heads, WIDTH)] * 4 + [(2 * length - 1, heads, WIDTH)] * 2
    inputs = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    with jax.default_matmul_precision("float32" if kind == "float32" else "default"):
        return run.lower(*inputs).compile()


def relative(results: Any, exact: Any) -> float:
    """Returns the largest difference over the largest value, NaN if there is one: XLA's maximum may overlook it."""
    results, exact = np.asarray(results), np.asarray(exact)
    return float(np.abs(results - exact).max() / np.abs(exact).max())


def milliseconds(run: Run, inputs: list[jax.Array]) -> float:
    jax.block_until_ready(run(*inputs))
    start = time.perf_counter()
    for _ in range(REPEATS):
        out = run(*inputs)
    jax.block_until_ready(out)
    return 1e3 * (time.perf_counter() - start) / REPEATS


if __name__ == "__main__":
    sys.exit(main())
