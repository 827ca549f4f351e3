"""The batch of a comparison on a CPU: a step of both sides fits into the memory that is left, and takes seconds."""

from __future__ import annotations

import os
from pathlib import Path

from ml_collections import ConfigDict

from bertjax.config.model import EncoderConfig, encoder_config
from bertjax.io.stderr import note
from bertjax.io.units import format_bytes

_SHARE = 0.5  # of the available memory; the rest is for both states, libraries and the estimate's error
_SECONDS = 4.0  # of a step of transformers: with its compilation and its trials all repeats take some minutes
_FLOPS_PER_SECOND = 20e9  # of a core; measured steps took 0.6 to 3 times as long as this says (Zen 3)
_CGROUP = Path("/sys/fs/cgroup")


def step_bytes(model: EncoderConfig, vocab_size: int, tokens: int) -> int:
    """Estimates the float32 bytes that a step of `transformers` and one of bertjax keep at once.

    `transformers` computes the logits of all tokens, and holds them, their normalized form and its gradient.
    """
    per_layer = 2 * (16 * model.hidden_size + 3 * model.intermediate_size)
    return 4 * tokens * (3 * vocab_size + model.num_layers * per_layer)


def step_seconds(model: EncoderConfig, vocab_size: int, tokens: int) -> float:
    """Estimates the seconds of a step of `transformers` on this CPU, which computes the logits of all tokens."""
    per_layer = 4 * model.hidden_size**2 + 3 * model.hidden_size * model.intermediate_size
    flops = 6 * tokens * (vocab_size * model.hidden_size + model.num_layers * per_layer)
    return flops / (_FLOPS_PER_SECOND * (os.cpu_count() or 1))


def available_bytes() -> int | None:
    """Returns the memory that this process may still take on Linux; None elsewhere."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        available = next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return None
    try:
        limit, used = ((_CGROUP / f"memory.{name}").read_text().strip() for name in ("max", "current"))
    except OSError:
        return available
    return available if limit == "max" else min(available, max(0, int(limit) - int(used)))


def fit_batch(cfg: ConfigDict, vocab_size: int, devices: int) -> None:
    """Halves `train.batch_size` until a step of both sides fits into the memory and takes seconds, and says so.

    Args:
        cfg: the config; its batch is changed in place.
        vocab_size: tokens of the prepared tokenizer.
        devices: a batch stays a multiple of so many sequences.
    """
    available, batch_size = available_bytes(), cfg.train.batch_size
    model = encoder_config(cfg)
    per_sequence = step_bytes(model, vocab_size, cfg.data.seq_len)
    seconds = step_seconds(model, vocab_size, cfg.data.seq_len)
    limits = [_SECONDS / seconds, *([] if available is None else [_SHARE * available / per_sequence])]
    while batch_size % (2 * devices) == 0 and batch_size > min(limits):
        batch_size //= 2
    if batch_size < cfg.train.batch_size:
        needed = format_bytes(cfg.train.batch_size * per_sequence)
        free = "" if available is None else f" of the {format_bytes(available)} that are available"
        note(
            f"train.batch_size={batch_size} instead of {cfg.train.batch_size} for both sides: a step of transformers "
            f"would take about {cfg.train.batch_size * seconds:.0f} s and {needed}{free}"
        )
        cfg.train.batch_size = batch_size
