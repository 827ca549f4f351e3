"""Shared by the tests of the command line: a tiny corpus, a tiny config file, and the types of their fixtures."""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

NOUNS = ["cat", "dog", "bird", "house", "river", "teacher", "garden", "letter", "window", "road", "stone", "bread"]
VERBS = ["sees", "likes", "finds", "leaves", "paints", "carries", "follows", "builds", "opens", "forgets"]

CONFIG = """
from bertjax.config.defaults import base_config

def get_config():
    config = base_config()
    config.platform = "cpu"
    config.model.preset = "bert-tiny"
    config.model.hidden_size = 32
    config.model.num_heads = 4
    config.model.intermediate_size = 48
    config.model.num_layers = 2
    config.model.max_position_embeddings = 64
    config.data.sources = ("text:{corpus}",)
    config.data.eval_fraction = 0.2
    config.data.vocab_size = 120
    config.data.seq_len = 32
    config.data.cache_dir = "{cache}"
    config.train.num_steps = 8
    config.train.batch_size = 8
    config.train.log_interval_steps = 2
    config.optimizer.learning_rate = 1e-2
    config.schedule.warmup_steps = (config.train.get_ref("num_steps") + 3) // 4
    config.eval.interval_steps = 4
    config.eval.num_batches = 2
    config.eval.fill_mask = ("the cat [MASK] the dog.",)
    config.checkpoint.interval_steps = 2
    config.mesh.data = 1
    config.logging.tensorboard = False
    return config
"""


class Lab(NamedTuple):
    """The folder of these tests, and the command line as a function of its arguments."""

    folder: Path
    corpus: Path
    config: Path
    run: Callable[..., int]


class Finished(NamedTuple):
    """A finished run, and its output."""

    workdir: Path
    printed: str


def sentences(count: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    return [f"The {draw.choice(NOUNS)} {draw.choice(VERBS)} the {draw.choice(NOUNS)}." for _ in range(count)]


def load_script(path: Path) -> ModuleType:
    """Imports a script as a module without running its `main`."""
    specification = importlib.util.spec_from_file_location(path.stem, path)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module
