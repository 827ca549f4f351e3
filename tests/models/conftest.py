"""A model that compiles in a second, and rows of tokens for it."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.config.model import EncoderConfig
from bertjax.models.model import init_params
from bertjax.types import Params

jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})  # compilation dominates
HEADS = ("pooler", "mlm", "pair")


@pytest.fixture(scope="session")
def small() -> EncoderConfig:
    """Returns a model of three layers of 32, four heads, no dropout."""
    return EncoderConfig(
        vocab_size=50,
        hidden_size=32,
        num_layers=3,
        num_heads=4,
        intermediate_size=64,
        max_position_embeddings=32,
        hidden_dropout=0.0,
        attention_dropout=0.0,
    )


@pytest.fixture(scope="session")
def small_params(small: EncoderConfig) -> Params:
    """Returns parameters far from their initial values, so that no bias is zero and no scale is one."""
    params = jit(lambda key: init_params(small, HEADS, key))(jax.random.key(0))
    rng = np.random.default_rng(0)
    return jax.tree.map(
        lambda leaf: jnp.asarray(np.asarray(leaf) + rng.normal(0.0, 0.1, leaf.shape), jnp.float32), params
    )


@pytest.fixture(scope="session")
def rows() -> Callable[..., dict[str, np.ndarray]]:
    """`rows([[5, 3], [7]], seq_len=16)`: one row per list, one example per length in it."""

    def build(lengths: list[list[int]], seq_len: int, seed: int = 0) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(seed)
        shape = (len(lengths), seq_len)
        batch = {name: np.zeros(shape, np.int32) for name in ("segment_ids", "position_ids", "token_type_ids")}
        for row, examples in enumerate(lengths):
            start = 0
            for index, length in enumerate(examples):
                columns = slice(start, start + length)
                batch["segment_ids"][row, columns] = index + 1
                batch["position_ids"][row, columns] = np.arange(length)
                batch["token_type_ids"][row, columns] = np.arange(length) >= length // 2
                start += length
        real = batch["segment_ids"] > 0
        return {"input_ids": np.where(real, rng.integers(5, 50, shape), 0).astype(np.int32), **batch}

    return build
