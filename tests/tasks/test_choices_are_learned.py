"""Multiple choice learns: of three choices that which shares a word with the context is right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

import bertjax

WORDS = ("cat", "dog", "tea", "house", "road", "stone")
TOY: dict[str, Any] = {"preset": "bert-tiny", "num_layers": 1, "hidden_size": 32, "num_heads": 2}
TOY |= {"intermediate_size": 64, "max_position_embeddings": 32, "initializer_range": 0.1}
TOY |= {"hidden_dropout": 0.0, "attention_dropout": 0.0}


def write_examples(path: Path, count: int, seed: int) -> list[int]:
    """Writes examples whose words and positions say nothing; returns the right choices."""
    draw, rows = np.random.default_rng(seed), []
    for _ in range(count):
        words, right = draw.permutation(WORDS)[:3].tolist(), int(draw.integers(3))
        choices = [f"a {word}" for word in words]
        rows.append({"context": f"the {words[right]} is here", "choices": choices, "label": right})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return [row["label"] for row in rows]


def test_the_shared_word_is_learned_from_random_weights(tmp_path: Path) -> None:
    write_examples(tmp_path / "train.jsonl", 240, seed=0)
    right = write_examples(tmp_path / "dev.jsonl", 100, seed=1)
    keys: dict[str, Any] = {f"model.{name}": value for name, value in TOY.items()}
    keys |= {"task.from_scratch": True, "task.train": f"jsonl:{tmp_path}/train.jsonl", "task.max_length": 16}
    keys |= {"task.batch_size": 8, "task.epochs": 15.0, "optimizer.learning_rate": 1.5e-3, "mesh.data": 1}
    keys |= {"data.tokenizer": "wordpiece", "data.vocab_size": 80, "platform": "cpu", "report.enabled": False}
    keys |= {"logging.tensorboard": False, "export.at_end": False}
    run = bertjax.finetune("finetune/multiple_choice", tmp_path / "run", keys)
    records = bertjax.predict(run.workdir, tmp_path / "dev.jsonl", score=True)
    accuracy = np.mean([record["choice"] == answer for record, answer in zip(records, right, strict=True)])
    assert records.metrics is not None and records.metrics["accuracy"] == accuracy > 0.8, "1/3 by chance"
