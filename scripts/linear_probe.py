"""Probes a frozen encoder: logistic regression on its hidden states, for words (tags) and sentences (labels).

    python scripts/linear_probe.py --model FOLDER [--tags TRAIN DEV] [--sentences TRAIN DEV]

Words: CoNLL columns (word first, tag last); F1 of the tags other than O, per word. Sentences: tsv with columns
`sentence` and `label`; accuracy. Every layer is probed; the best on a fifth of the training data is trained again on
all of it and scored on DEV. Needs scikit-learn.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, f1_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from bertjax.data.tokenizer import Tokenizer
from bertjax.data.tokenizer_io import load_tokenizer
from bertjax.hf.pretrained import PretrainedModel, load_pretrained

LENGTH, ROWS = 64, 64
Score = Callable[[np.ndarray, np.ndarray], float]


class Example(NamedTuple):
    """Words with one label each, or one label for all."""

    words: list[str]
    labels: list[str]


def probe_tags(model: PretrainedModel, tokenizer: Tokenizer, train: Path, dev: Path, maximum: int) -> dict[str, float]:
    """Returns the F1 of tags other than O, per word."""

    def score(right: np.ndarray, text: np.ndarray) -> float:
        return float(f1_score(right, text, labels=sorted({*right} - {"O"}), average="micro", zero_division=0.0))

    parts = [_features(model, tokenizer, _sample(read_tags(path), maximum), each_word=True) for path in (train, dev)]
    return _best_layer(*parts, score)


def probe_sentences(
    model: PretrainedModel, tokenizer: Tokenizer, train: Path, dev: Path, maximum: int
) -> dict[str, float]:
    """Returns the accuracy from the mean of a sentence's hidden states."""

    def score(right: np.ndarray, text: np.ndarray) -> float:
        return float(accuracy_score(right, text))

    parts = [
        _features(model, tokenizer, _sample(read_sentences(path), maximum), each_word=False) for path in (train, dev)
    ]
    return _best_layer(*parts, score)


def read_tags(path: Path) -> list[Example]:
    """Reads sentences of CoNLL columns, separated by empty lines."""
    examples = []
    for block in path.read_text(encoding="utf-8").split("\n\n"):
        rows = [line.split() for line in block.splitlines() if line.strip() and not line.startswith("-DOCSTART-")]
        if rows:
            examples.append(
                Example([row[0] for row in rows], [row[-1].removeprefix("B-").removeprefix("I-") for row in rows])
            )
    return examples


def read_sentences(path: Path) -> list[Example]:
    with path.open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [Example(row["sentence"].split(), [row["label"]]) for row in rows]


def _sample(examples: list[Example], maximum: int) -> list[Example]:
    return random.Random(0).sample(examples, min(maximum, len(examples)))


def _features(
    model: PretrainedModel, tokenizer: Tokenizer, examples: list[Example], each_word: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Returns (features [layers, n, D], labels [n]): of the first token of every word, or the mean over a sentence."""
    results, labels = [], []
    for batch in _batches(examples):
        rows = [_row(tokenizer, example.words) for example in batch]
        ids = np.full((ROWS, LENGTH), tokenizer.pad_id, np.int32)
        mask = np.zeros((ROWS, LENGTH), np.int32)
        for row, (tokens, _) in enumerate(rows):
            ids[row, : len(tokens)], mask[row, : len(tokens)] = tokens, 1
        hidden = np.asarray(model(ids, attention_mask=mask, output_hidden_states=True).hidden_states)
        for row, (example, (tokens, firsts)) in enumerate(zip(batch, rows, strict=True)):
            if each_word:
                results.append(hidden[:, row, firsts])
                labels += example.labels[: len(firsts)]
            else:
                results.append(hidden[:, row, : len(tokens)].mean(1, keepdims=True))
                labels += example.labels
    return np.concatenate(results, axis=1), np.array(labels)


def _batches(examples: Sequence[Example]) -> Iterator[Sequence[Example]]:
    return (examples[start : start + ROWS] for start in range(0, len(examples), ROWS))


def _row(tokenizer: Tokenizer, words: list[str]) -> tuple[list[int], list[int]]:
    """Returns the tokens of the words between [CLS] and [SEP], truncated, and where every word begins."""
    tokens, firsts = [tokenizer.cls_id], []
    for encoded in tokenizer.encode_batch(words):
        if not len(encoded) or len(tokens) + len(encoded) >= LENGTH:
            break
        firsts.append(len(tokens))
        tokens += encoded.tolist()
    return [*tokens, tokenizer.sep_id], firsts


def _best_layer(
    train: tuple[np.ndarray, np.ndarray], dev: tuple[np.ndarray, np.ndarray], score: Score
) -> dict[str, float]:
    (features, labels), (held_features, held_labels) = train, dev
    cut = len(labels) * 4 // 5
    scores = [score(labels[cut:], _fit(x[:cut], labels[:cut]).predict(x[cut:])) for x in features]
    layer = int(np.argmax(scores))
    text = _fit(features[layer], labels).predict(held_features[layer])
    return {"score": score(held_labels, text), "layer": layer, "examples": len(labels)}


def _fit(features: np.ndarray, labels: np.ndarray) -> LogisticRegression:
    return make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=100)).fit(features, labels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="Hugging Face folder or an export")
    parser.add_argument("--tags", type=Path, nargs=2, metavar=("TRAIN", "DEV"))
    parser.add_argument("--sentences", type=Path, nargs=2, metavar=("TRAIN", "DEV"))
    parser.add_argument("--most", type=int, default=3000, help="sentences of each part (default 3000)")
    options = parser.parse_args()
    model, tokenizer = load_pretrained(options.model), load_tokenizer(options.model)
    results = {}
    if options.tags:
        results["tags"] = probe_tags(model, tokenizer, *options.tags, options.most)
    if options.sentences:
        results["sentences"] = probe_sentences(model, tokenizer, *options.sentences, options.most)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
