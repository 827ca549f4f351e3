"""Small tokenizers of every family, ours and as transformers loads them, and texts to encode."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from bertjax.config.extensions import TASK_KINDS
from bertjax.config.fields import settings_of
from bertjax.config.task import TaskConfig
from bertjax.data.special_tokens import FAMILIES
from bertjax.data.tokenizer import Tokenizer
from bertjax.data.tokenizer_io import save_huggingface_tokenizer
from bertjax.data.tokenizer_training import train_tokenizer

TEXT = "The cat sat on a mat while seventeen unbelievably hungry dogs, barking loudly, looked over the fence ."
WORDS = TEXT.split()
ALL_FAMILIES = [name for name in FAMILIES if name != "spanbert"]  # which is bert with capital letters


def sentences(count: int, seed: int = 0, longest: int = 40) -> list[str]:
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, rng.integers(0, longest))) for _ in range(count)]


def task_config(**values: Any) -> TaskConfig:
    """Returns a config of a task; settings of a group are given by their bare names."""
    kind = TASK_KINDS.load(values["kind"])
    of_kind = {key: values.pop(key) for key in (*settings_of(kind), "start_token") if key in values}
    return TaskConfig(**values, spec=kind(**of_kind))


def make_features(
    config: TaskConfig, examples: Any, tokenizer: Tokenizer, labels: tuple[str, ...] = (), training: bool = False
) -> Any:
    """Returns the features of examples as the kind of task makes them."""
    return config.spec.make_features(config, examples, tokenizer, labels, training)


@functools.cache
def trained(family: str) -> Tokenizer:
    texts = [*sentences(60, seed=99), "Curiously, naïve cafés offer ﬁne tea. 北京 学生 今天"] * 2
    return train_tokenizer(texts, model=FAMILIES[family].model, family=family, vocab_size=320)


@functools.cache
def theirs(family: str, **options: Any) -> Any:
    from transformers import AutoTokenizer

    folder = tempfile.mkdtemp()
    save_huggingface_tokenizer(trained(family), folder, max_length=512)
    tokenizer = AutoTokenizer.from_pretrained(folder, **options)
    for path in Path(folder).iterdir():
        path.unlink()
    Path(folder).rmdir()
    return tokenizer
