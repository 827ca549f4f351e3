"""Compares bertjax's CPU implementations with those of jax: medians in milliseconds, interleaved.

    python scripts/cpu_kernels.py

random bits   6.3 million words of threefry: `jax.random.bits` and models/dropout.py
gelu          4,096 x 1,024 with its gradient: `jax.nn.gelu` (erfc) and models/linear.py (erf)
attention     BERT-base, 4 sequences of 512, dropout 0.1, with gradients: whole, and models/tiled_attention.py
moments       random bits of 10 million parameters, as optimizer.moments_dtype=bfloat16 draws them, both ways
"""

from __future__ import annotations

import argparse
import functools
import os
import statistics
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp

from bertjax.config.model import EncoderConfig
from bertjax.models.attention import dot_product_attention
from bertjax.models.attention_context import make_context
from bertjax.models.dropout import random_bits
from bertjax.models.linear import gelu


def gradients_of(function: Callable, *arguments: jax.Array) -> Callable:
    """Returns the gradients of the sum of squares of the outputs."""
    return jax.jit(jax.grad(lambda *inputs: (function(*inputs) ** 2).sum(), argnums=tuple(range(len(arguments)))))


def attention(implementation: str, q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    config = EncoderConfig(attention_dropout=0.1, attention_implementation=implementation, compute_dtype="bfloat16")
    ids = jnp.ones(q.shape[:2], jnp.int32)
    slots = jnp.broadcast_to(jnp.arange(q.shape[1])[None], ids.shape)
    return dot_product_attention(q, k, v, make_context(config, ids, slots, False), config, jax.random.key(1))


def kernels() -> dict[str, tuple[Callable, Callable, tuple]]:
    """Returns title -> (jax's function, ours, arguments)."""
    key = jax.random.key(0)
    x = jax.random.normal(key, (4096, 1024))
    erfc = functools.partial(jax.nn.gelu, approximate=False)
    heads = tuple(jax.random.normal(jax.random.key(number), (4, 512, 12, 64)) for number in range(3))
    whole, tiled = (functools.partial(attention, name) for name in ("xla", "tiled"))

    def bits(draw: Callable, shape: tuple[int, ...]) -> Callable:
        return jax.jit(lambda key: draw(key, shape) >= jnp.uint32(1 << 28))

    dropout, moments = (4, 12, 512, 256), (10_000_000,)
    return {
        "random bits": (bits(jax.random.bits, dropout), bits(random_bits, dropout), (key,)),
        "gelu": (jax.jit(erfc), jax.jit(gelu), (x,)),
        "gelu, gradient": (gradients_of(erfc, x), gradients_of(gelu, x), (x,)),
        "attention, gradients": (gradients_of(whole, *heads), gradients_of(tiled, *heads), heads),
        "moments": (bits(jax.random.bits, moments), bits(random_bits, moments), (key,)),
    }


def milliseconds(function: Callable, arguments: tuple) -> float:
    began = time.perf_counter()
    jax.block_until_ready(function(*arguments))
    return 1e3 * (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    turns = max(1, parser.parse_args().repeats)
    print(f"jax {jax.__version__}, {os.cpu_count()} processor cores, {turns} turns")
    print(f"{'':<20}{'jax, ms':>10}{'ours, ms':>10}{'ratio':>8}")
    for title, (theirs, ours, arguments) in kernels().items():
        results: list[list[float]] = [[], []]
        for turn in range(turns + 1):
            for times, function in zip(results, (theirs, ours), strict=True):
                took = milliseconds(function, arguments)
                if turn:  # the first one compiles
                    times.append(took)
        first, second = map(statistics.median, results)
        print(f"{title:<20}{first:>10.2f}{second:>10.2f}{first / second:>8.2f}")


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")
    main()
