"""Linear probes: logistic regression on the frozen hidden states of every layer, with control tasks.

A probe reads the state of a word's first token, or the mean over a text. Of words a control task (arXiv:1909.03368)
gives every word form a random label; what the probe learns of that it has memorized, and says nothing about the model.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from bertjax.config.task import TaskConfig
from bertjax.data.tokenizer import Tokenizer
from bertjax.hf.pretrained import PretrainedModel
from bertjax.hf.sentence_transformers import drop_heads
from bertjax.inference.text_batches import TOKENS_PER_BATCH
from bertjax.tasks.batches import EvalBatches
from bertjax.tasks.features import TextData
from bertjax.tasks.metrics.sklearn_compat import sklearn_metrics
from bertjax.tasks.readers.examples import TextExamples, WordExamples
from bertjax.tasks.token_features import OUTSIDE, TokenData

Examples = TextExamples | WordExamples
_NUM_LENGTHS = 4
MAX_ITERATIONS = 1000


class ProbeData(NamedTuple):
    """States that a probe reads, and what it shall say.

    Attributes:
        states: float32 [layers + 1, n, D], embeddings first.
        labels: Ids of the labels, int64 [n].
        words: The word of every state; () where a state is that of a text.
    """

    states: np.ndarray
    labels: np.ndarray
    words: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class LayerScores:
    """Held-out scores of the probes of one layer, one number per seed.

    Attributes:
        layer: Number of the layer, 0: the embeddings.
        accuracy: Right labels.
        f1: Micro F1 of the labels other than O, () where there is no such label.
        control: Accuracy on the control task, () for texts, each of which occurs once.
    """

    layer: int
    accuracy: tuple[float, ...]
    f1: tuple[float, ...] = ()
    control: tuple[float, ...] = ()

    @property
    def selectivity(self) -> float | None:
        """Mean accuracy less that on the control task; None without one."""
        return float(np.mean(self.accuracy) - np.mean(self.control)) if self.control else None


class Probes:
    """Reads states of a model and trains probes on them.

    Args:
        model: the model, of which the encoder alone is run.
        tokenizer: its tokenizer.
        config: settings by which examples become windows.
        labels: names of the labels in the order of their ids.
    """

    def __init__(self, model: PretrainedModel, tokenizer: Tokenizer, config: TaskConfig, labels: Sequence[str]):
        encoder = drop_heads(model)
        self._model = dataclasses.replace(encoder, config=dataclasses.replace(encoder.config, bi_data=False))
        self._tokenizer, self._config, self._labels = tokenizer, config, tuple(labels)

    def read(self, examples: Examples, most: int, seed: int) -> ProbeData:
        """Returns the states of a sample of examples: at most this many words or texts, in the order of the seed."""
        order = np.random.default_rng(seed).permutation(len(examples))
        sizes = np.array([len(words) for words in examples.words]) if isinstance(examples, WordExamples) else 1
        before = np.cumsum(np.broadcast_to(sizes, len(examples))[order])
        chosen = examples.take(order[: int(np.searchsorted(before, most)) + 1].tolist())
        data: Any = self._config.spec.make_features(self._config, chosen, self._tokenizer, self._labels, False)
        if isinstance(data, TokenData):
            return self._word_states(data, most)
        return self._text_states(data)

    def _word_states(self, data: TokenData, most: int) -> ProbeData:
        is_read = data.first_token_of_word >= 0
        tokens = data.first_token_of_word[is_read][:most]
        words = np.array([word for sentence in data.words for word in sentence], object)[is_read][:most]
        offsets = data.features.offsets
        window = np.searchsorted(offsets, tokens, side="right") - 1
        position = tokens - offsets[window]
        states = np.zeros((0, 0, 0), np.float32)
        for hidden, numbers, _ in self._batches(data.features):
            row_of = np.full(len(data.features), -1)
            row_of[numbers] = np.arange(len(numbers))
            here = np.flatnonzero(row_of[window] >= 0)
            states = _filled(states, hidden, len(tokens), here, hidden[:, row_of[window[here]], position[here]])
        labels = data.features.labels["token_labels"][tokens].astype(np.int64)
        return ProbeData(states, labels, tuple(words.tolist()))

    def _text_states(self, data: TextData) -> ProbeData:
        states = np.zeros((0, 0, 0), np.float32)
        for hidden, numbers, mask in self._batches(data.features):
            weights = mask[None, :, :, None].astype(np.float32)
            means = (hidden * weights).sum(axis=2) / weights.sum(axis=2)
            states = _filled(states, hidden, len(data.features), numbers, means)
        return ProbeData(states, data.features.labels["class_labels"].astype(np.int64), ())

    def _batches(self, features: Any) -> Any:
        """Yields hidden states [layers + 1, B, S, D], the numbers of their windows [B], and real tokens [B, S]."""
        length = -(-int(features.lengths.max()) // 8) * 8
        batches = EvalBatches(
            dataclasses.replace(features, labels={}),
            batch_size=max(1, TOKENS_PER_BATCH // length),
            pad_id=self._tokenizer.pad_id,
            vocab_size=self._model.config.vocab_size,
            seq_len=length,
            packing=False,
            num_lengths=_NUM_LENGTHS,
        )
        for batch in batches:
            mask = (batch["segment_ids"] > 0).astype(np.int32)
            output = self._model(batch["input_ids"], mask, batch["token_type_ids"], output_hidden_states=True)
            numbers = batch["example_numbers"][:, 0]
            used = numbers >= 0
            yield np.asarray(output.hidden_states)[:, used], numbers[used], mask[used]


def _filled(states: np.ndarray, hidden: np.ndarray, count: int, where: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Returns the states with some rows set; they are allocated at the first batch, which knows their size."""
    if not states.size:
        states = np.zeros((hidden.shape[0], count, hidden.shape[-1]), np.float32)
    states[:, where] = values
    return states


def control_labels(words: Sequence[str], labels: np.ndarray, vocabulary: Sequence[str], seed: int) -> np.ndarray:
    """Returns the label that a control task gives to every word: of one form the same, drawn as often as the real ones.

    Args:
        words: the words.
        labels: real labels of the training words, which say how often each occurs.
        vocabulary: all forms, in a fixed order.
        seed: seed of the draw.
    """
    draw = np.random.default_rng(seed)
    of_form = dict(zip(vocabulary, draw.choice(labels, len(vocabulary)).tolist(), strict=True))
    return np.array([of_form[word] for word in words], np.int64)


def score_layers(train: ProbeData, held_out: ProbeData, labels: Sequence[str], seed: int) -> list[LayerScores]:
    """Trains a probe for every layer, and one for its control task, and scores them on held-out examples.

    Args:
        train: states to train on.
        held_out: those to score.
        labels: names of the labels.
        seed: seed of the control task.
    """
    controls: list[np.ndarray] = []
    if train.words:
        vocabulary = sorted({*train.words, *held_out.words})
        controls = [control_labels(each.words, train.labels, vocabulary, seed) for each in (train, held_out)]
    outside = [*labels].index(OUTSIDE) if OUTSIDE in labels else None
    scores = []
    for layer, (inputs, others) in enumerate(zip(train.states, held_out.states, strict=True)):
        predicted = probe(inputs, train.labels, others)
        f1 = [] if outside is None else [f1_without(held_out.labels, predicted, outside)]
        control = [float((probe(inputs, controls[0], others) == controls[1]).mean())] if controls else []
        accuracy = float((predicted == held_out.labels).mean())
        scores.append(LayerScores(layer, (accuracy,), tuple(f1), tuple(control)))
    return scores


def probe(inputs: np.ndarray, labels: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Returns the labels that scikit-learn's logistic regression predicts, on inputs of mean 0 and deviation 1.

    Args:
        inputs: states to train on [n, D].
        labels: their labels [n]; with a single one it is predicted for all.
        others: states to predict for [m, D].
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if len(np.unique(labels)) == 1:
        return np.full(len(others), labels[0])
    classifier = make_pipeline(StandardScaler(), LogisticRegression(max_iter=MAX_ITERATIONS))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        predicted: np.ndarray = classifier.fit(inputs, labels).predict(others)
    return predicted


def f1_without(right: np.ndarray, predicted: np.ndarray, outside: int) -> float:
    """Returns the micro F1 of all labels but one; 0 if none occurs."""
    others = sorted({*right.tolist(), *predicted.tolist()} - {outside})
    if not others:
        return 0.0
    metrics = sklearn_metrics()
    return float(metrics.f1_score(right, predicted, labels=others, average="micro", zero_division=0.0))


def join_seeds(scores: Sequence[Sequence[LayerScores]]) -> list[LayerScores]:
    """Returns the scores of every layer with those of all seeds."""
    return [
        LayerScores(
            each[0].layer,
            *(tuple(value for one in each for value in getattr(one, name)) for name in ("accuracy", "f1", "control")),
        )
        for each in zip(*scores, strict=True)
    ]
