"""Measures the cost of masking: the jitted corruption of every family's recipe, compared with a training step.

    python scripts/corruption_cost.py [--model bert-mini] [--rows 64] [--length 128] [--repeats 9]

Prints medians over `--repeats` rounds, each of which runs everything once, so that noise affects all alike. Sequences
are random tokens of a vocabulary of 30,522; sampling of a generator (rtd) belongs to its forward pass and is excluded.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from bertjax.config.overrides import load_config
from bertjax.experiment import build
from bertjax.experiment.config import parse
from bertjax.training.sharding import put_batch
from bertjax.types import Vocabulary

CONFIGS = Path(__file__).parents[1] / "configs"
RECIPES = {
    "bert: tokens, 15 %": "bert.py:base",
    "roberta: tokens, specials too": "roberta.py:base",
    "electra: with replacement": "electra.py:base",
    "modernbert: 30 %, one by one": "modernbert.py:base",
    "distilbert: rare ones more often": "distilbert.py:base",
    "whole words": "shoot_out.py:whole_word",
    "albert: n-grams": "albert.py:base-v2",
    "deberta: n-grams in windows": "deberta.py:v1-base",
    "spanbert: spans and boundaries": "spanbert.py:base",
    "xlnet: spans and orders": "xlnet.py:base",
}
SIZE = 30522


def vocabulary() -> Vocabulary:
    rng = np.random.default_rng(0)
    starts = rng.random(SIZE) < 0.7
    starts[:5] = True
    return Vocabulary(SIZE, 30528, 0, 1, 2, 3, 4, (0, 1, 2, 3, 4), starts, rng.integers(1, 1000, SIZE))


def rows_of(rows: int, length: int) -> dict[str, np.ndarray]:
    """Returns full sequences of one example each."""
    ids = np.random.default_rng(1).integers(5, SIZE, (rows, length)).astype(np.int32)
    ids[:, 0], ids[:, -1] = 2, 3
    one = np.ones((rows, 1))
    return {
        "input_ids": ids,
        "segment_ids": np.ones_like(ids),
        "position_ids": np.tile(np.arange(length, dtype=np.int32), (rows, 1)),
        "token_type_ids": np.zeros_like(ids),
        "example_positions": (0 * one).astype(np.int32),
        "example_weights": one.astype(np.float32),
        "example_ids": np.arange(rows, dtype=np.uint32)[:, None],
        "example_epochs": (0 * one).astype(np.uint32),
        "example_draws": (0 * one).astype(np.uint32),
        "pair_labels": (0 * one).astype(np.int32),
        "backward": np.zeros(rows, bool),
    }


def config_of(spec: str, options: argparse.Namespace) -> ConfigDict:
    cfg = load_config(f"{CONFIGS}/{spec}")
    cfg.data.seq_len, cfg.train.batch_size, cfg.train.phases = options.length, options.rows, ()
    cfg.train.initial_batch_size = cfg.train.batch_ramp_steps = None
    cfg.data.vocab_size = SIZE
    if cfg.objective.name == "distillation":  # masks as the student alone would
        cfg.objective.name = "mlm"
    return cfg


def corruption(spec: str, options: argparse.Namespace, words: Vocabulary, batch: dict) -> Callable[[], Any]:
    """Returns the jitted corruption; a recipe of two networks masks as its generator does."""
    objective = build.make_objective(parse(config_of(spec, options)), words)
    jitted = jax.jit(objective.corrupt)
    return lambda: jitted(batch, jax.random.key(0), np.int32(1))


def training_step(options: argparse.Namespace, words: Vocabulary, batch: dict) -> Callable[[], Any]:
    """Returns a masked-LM step of `--model`, masking included."""
    cfg = config_of("bert.py:mini", options)
    cfg.model.preset, cfg.data.example_format = options.model, "block"
    parse(cfg)
    exp = build.make_experiment(cfg, words)
    state = exp.init_state()
    step = exp.train_step

    def run() -> Any:
        nonlocal state
        with jax.set_mesh(exp.mesh):
            state, metrics = step(state, {}, put_batch(batch, exp.mesh))
        return metrics

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="bert-mini")
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    words, batch = vocabulary(), rows_of(options.rows, options.length)
    timed = {"step": training_step(options, words, batch)}
    timed |= {name: corruption(spec, options, words, batch) for name, spec in RECIPES.items()}
    seconds: dict[str, list[float]] = {name: [] for name in timed}
    for turn in range(options.repeats + 1):
        for name, function in timed.items():
            began = time.perf_counter()
            jax.block_until_ready(function())
            if turn:  # the first turn compiles
                seconds[name].append(time.perf_counter() - began)
    step = statistics.median(seconds["step"])
    print(f"{options.model}, {options.rows} rows of {options.length}, {jax.devices()[0].device_kind}")
    print(f"training step {1000 * step:.1f} ms")
    for name in RECIPES:
        cost = statistics.median(seconds[name])
        print(f"{name:<34} {1000 * cost:7.2f} ms {100 * cost / step:6.2f} %")


if __name__ == "__main__":
    main()
