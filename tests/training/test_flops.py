"""FLOPs, peak rates, and bytes per device."""

from __future__ import annotations

from collections.abc import Callable

import jax
import pytest

from bertjax.config.model import EncoderConfig
from bertjax.config.presets import preset
from bertjax.training.flops import bytes_per_device, flops_per_token, peak_flops
from bertjax.training.sharding import state_shardings
from bertjax.training.state import TrainState


@pytest.mark.parametrize(
    ("name", "seq_len", "predicted", "megaflops"),
    [
        ("bert-base", 128, 0.15, 545),
        ("bert-base", 128, 1.0, 668),
        ("bert-base", 512, 0.15, 588),
        ("bert-large", 512, 0.15, 1992),
        ("bert-mini", 128, 0.15, 28),
    ],
)
def test_flops_of_published_sizes(name: str, seq_len: int, predicted: float, megaflops: int) -> None:
    config = EncoderConfig(padded_vocab_size=30528, **preset(name))
    assert round(flops_per_token(config, predicted, seq_len) / 1e6) == megaflops


def test_flops_follow_the_matrices() -> None:
    """Six per weight of every matrix that a token passes through, and the two attention products."""
    config = EncoderConfig(
        vocab_size=90, padded_vocab_size=100, hidden_size=8, num_layers=3, num_heads=2, intermediate_size=20
    )
    weights = 3 * (4 * 8 * 8 + 2 * 8 * 20) + 0.25 * (8 * 8 + 8 * 100)
    attention = 3 * 2 * (8 * 5) * 2 * 3  # layers, q k and p v, D * keys, multiply and add, forward and twice backward
    assert flops_per_token(config, 0.25, 5.0) == 6 * weights + attention


@pytest.mark.parametrize(
    ("kind", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H200", 989e12),
        ("NVIDIA A100-SXM4-40GB", 312e12),
        ("Tesla V100-SXM2-16GB", 125e12),
        ("TPU v3", 140e12),
        ("TPU v4", 275e12),
        ("TPU v5 lite", 197e12),
        ("TPU v5e", 197e12),
        ("TPU v5p", 459e12),
        ("TPU v5", 459e12),
        ("TPU v6 lite", 918e12),
        ("TPU v6e", 918e12),
        ("cpu", None),
        ("Radeon", None),
    ],
)
def test_peaks(kind: str, peak: float | None) -> None:
    assert peak_flops(kind) == peak


def test_bytes_on_a_device(abstract: TrainState, mesh_of: Callable) -> None:
    leaves = jax.tree.leaves(abstract)
    total = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
    assert bytes_per_device(abstract, mesh_of(1)) == total
    assert bytes_per_device(abstract, mesh_of(8)) == total  # data parallelism copies
    mesh = mesh_of(1, 8)
    split = bytes_per_device(abstract, mesh)
    laid = jax.tree.leaves(state_shardings(abstract, mesh))
    cut = sum(
        leaf.size * leaf.dtype.itemsize
        for leaf, sharding in zip(leaves, laid, strict=True)
        if any(axis == "fsdp" or "fsdp" in (axis or ()) for axis in sharding.spec)
    )
    assert split == total - cut + cut // 8
    assert split < total / 4
