"""Mixtures in closed form: shares of the sources, the source of every sequence, and the epoch that it belongs to."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from ml_collections import ConfigDict

from bertjax.config import inputs
from bertjax.config.data import SourceMixtureConfig
from bertjax.config.fields import Reader
from bertjax.data.corpus import Corpus, CorpusSplit, offsets
from bertjax.data.counter_rng import IntArray, permutation
from bertjax.data.formats.base import ExampleFormat
from bertjax.errors import UserError


class Mixing(NamedTuple):
    """Rules of a mixture in an even order.

    Attributes:
        alpha: exponent of the sizes; None where sources have weights.
        by_tokens: whether sizes and shares count tokens, and not sequences.
        limits: fewest and most epochs of every source, (0, inf) for none.
        sequences: sequences over which epochs are counted.
    """

    alpha: float | None
    by_tokens: bool
    limits: tuple[tuple[float, float], ...]
    sequences: int


def mixing_from_config(cfg: ConfigDict, sequences: int) -> Mixing | None:
    """Returns how a phase mixes its sources; None for the shuffled order of weights or sizes, without limits.

    Args:
        cfg: Config of the phase.
        sequences: Sequences of all phases with the same `data` settings.
    """
    mixture = Reader(cfg)(SourceMixtureConfig)
    limits = [source.epochs for source in inputs.sources(cfg)]
    if mixture == SourceMixtureConfig() and not any(limits):
        return None
    chosen = tuple(each or mixture.limits for each in limits)
    return Mixing(mixture.mixture_alpha, mixture.mixture_unit == "tokens", chosen, sequences)


def mixture_shares(
    mixing: Mixing, weights: Sequence[float | None], sequences: Sequence[int], tokens: Sequence[float]
) -> np.ndarray:
    """Returns the shares of sequences, float64 [sources], which add up to 1.

    Without limits they are in proportion to weight or size ** alpha (Conneau et al. 2020, arXiv:1911.02116), divided by
    the tokens of a sequence if they count tokens. With limits, sources beyond one get exactly that many epochs, and the
    rest is shared as before: with alpha 0 and a maximum this is UniMax (Chung et al. 2023, arXiv:2304.09151).

    Args:
        mixing: How they are mixed.
        weights: Weight of every source, or None.
        sequences: Sequences per epoch of every source.
        tokens: Mean number of tokens of a sequence of every source.

    Raises:
        UserError: The limits contradict the length of the run.
    """
    length = np.asarray(sequences, np.float64)
    per_sequence = np.asarray(tokens, np.float64) if mixing.by_tokens else np.ones_like(length)
    size = length * per_sequence
    alpha = 1.0 if mixing.alpha is None else mixing.alpha
    shares = np.array([s**alpha if w is None else w for s, w in zip(size / size.max(), weights, strict=True)])
    minimum, maximum = (np.array(each) * length for each in zip(*mixing.limits, strict=True))
    budget = water_fill(shares / per_sequence, minimum, maximum, mixing.sequences)
    return budget / budget.sum()


def water_fill(shares: np.ndarray, minimum: np.ndarray, maximum: np.ndarray, total: float) -> np.ndarray:
    """Returns clip(level * shares, least, most) with the level at which the sum is `total`.

    Args:
        shares: positive, any sum, float64 [sources].
        minimum, maximum: limits [sources]; `maximum` may be infinite.
        total: sum of the result.

    Raises:
        UserError: no level gives this sum.
    """
    _require_reachable(minimum, maximum, total)
    levels = np.concatenate([[0.0], minimum / shares, maximum[np.isfinite(maximum)] / shares[np.isfinite(maximum)]])
    levels = np.unique(np.append(levels, levels.max() + total / shares.min()))
    sums = np.array([np.clip(level * shares, minimum, maximum).sum() for level in levels])
    return np.clip(np.interp(total, sums, levels) * shares, minimum, maximum)


def _require_reachable(minimum: np.ndarray, maximum: np.ndarray, total: float) -> None:
    if minimum.sum() <= total <= maximum.sum():
        return
    word, bound, verb = ("most", maximum, "lower") if maximum.sum() < total else ("fewest", minimum, "raise")
    raise UserError(
        f"data.mixture_epochs: the {word} epochs of all sources are {bound.sum():,.0f} sequences, and the run has "
        f"{total:,}; {verb} train.num_steps, or change the limits, also @MIN..MAX of the sources"
    )


PERIOD = 4096
"""Sequences after which the pattern of sources repeats; changing it changes the batches of a seed."""


class MixtureSource(NamedTuple):
    """Source of a mixture.

    Attributes:
        name: for messages and metrics.
        format: the format that makes its sequences.
        weight: share of the mixture; without weights sources are mixed in proportion to their sequences per epoch.
        corpus: text that the format reads; error messages name the document if it is set.
    """

    name: str
    format: ExampleFormat
    weight: float | None = None
    corpus: Corpus | CorpusSplit | None = None


class Mixture:
    """Sequences of several sources in fixed proportions: one shuffled pattern, repeated endlessly.

    A source with share p of the sum of `weights` (all > 0) occurs max(1, round(p * PERIOD)) times in the pattern.
    """

    def __init__(self, weights: Sequence[float], seed: int) -> None:
        shares = np.asarray(weights, np.float64) / np.sum(weights)
        self.occurrences = np.maximum(np.rint(shares * PERIOD).astype(np.int64), 1)
        self.period = int(self.occurrences.sum())
        pattern = np.repeat(np.arange(len(weights)), self.occurrences)
        self._pattern = pattern[permutation(self.period, "mixture", seed)]
        by_source = np.argsort(self._pattern, kind="stable")
        self._rank = np.empty(self.period, np.int64)  # how many earlier entries have the same source
        self._rank[by_source] = np.arange(self.period) - offsets(self.occurrences)[pattern]

    def locate(self, indices: IntArray) -> tuple[IntArray, IntArray]:
        """Returns the sources int64 [n] of sequences of the mixed stream, and their indices in the source streams."""
        block, offset = np.divmod(indices, self.period)
        source = self._pattern[offset]
        return source, block * self.occurrences[source] + self._rank[offset]

    def num_used(self, index: int) -> list[int]:
        """Returns the number of sequences of each source before this index of the mixed stream."""
        block, offset = divmod(index, self.period)
        begun = np.bincount(self._pattern[:offset], minlength=len(self.occurrences))
        return (block * self.occurrences + begun).tolist()


class ExactMixture:
    """Interleaves sources so that after any n sequences each has contributed n * share of them, within two.

    A Huffman tree of the shares: of the first m sequences of a node, round(m * share) are those of its lighter child.
    That adds at most 1/2 to the part of the node's error that a child inherits; the sum stays below 1.75, with two
    sources at 1/2, with three at 1. Nothing repeats, so shares are exact however long the run is.
    """

    def __init__(self, shares: Sequence[float]) -> None:
        self._count = count = len(shares)
        heap = [(float(share), number) for number, share in enumerate(shares)]
        heapq.heapify(heap)
        self._light, self._children = np.zeros(2 * count - 1), np.zeros((2, 2 * count - 1), np.int64)
        for node in range(count, 2 * count - 1):  # the last one is the root
            (light, first), (heavy, second) = heapq.heappop(heap), heapq.heappop(heap)
            self._light[node], self._children[:, node] = light / (light + heavy), (second, first)
            heapq.heappush(heap, (light + heavy, node))

    def locate(self, indices: IntArray) -> tuple[IntArray, IntArray]:
        """Returns the sources int64 [n] of sequences of the mixed stream, and their indices in the source streams."""
        node, index = np.full(len(indices), len(self._light) - 1), np.array(indices)
        while (node >= self._count).any():
            share = self._light[node]  # 0 for a source, which keeps its index
            before = np.floor(index * share + 0.5).astype(np.int64)
            is_light = np.floor((index + 1) * share + 0.5) > before
            child = self._children[is_light.astype(np.int64), node]
            node, index = np.where(node < self._count, node, child), np.where(is_light, before, index - before)
        return node, index

    def num_used(self, index: int) -> list[int]:
        """Returns the number of sequences of each source before this index of the mixed stream."""
        used = [0] * (len(self._light) - 1) + [index]
        for node in range(len(used) - 1, self._count - 1, -1):
            heavy, light = self._children[:, node]
            used[light] = int(np.floor(used[node] * self._light[node] + 0.5))
            used[heavy] = used[node] - used[light]
        return used[: self._count]


class EpochStream:
    """Epochs of a format end to end. Their lengths repeat after `dupe_factor` epochs and are computed on demand."""

    def __init__(self, example_format: ExampleFormat) -> None:
        self._format = example_format
        self._begins = offsets([])
        self._lock = threading.Lock()

    def locate(self, indices: IntArray) -> tuple[IntArray, IntArray]:
        """Returns the epochs int64 [n] of indices in the endless stream, and the indices in those epochs."""
        cycle = self._format.period
        begins = self._extend(int(indices.max()), cycle)
        cycles = np.zeros_like(indices)
        if len(begins) > cycle:
            cycles, indices = np.divmod(indices, begins[cycle])
        epochs = np.searchsorted(begins, indices, side="right") - 1
        return cycles * cycle + epochs, indices - begins[epochs]

    def _extend(self, index: int, cycle: int) -> IntArray:
        """Returns the beginnings of the epochs up to the one of `index`, or to the end of the cycle."""
        with self._lock:
            while len(self._begins) <= cycle:
                epoch, begin = len(self._begins) - 1, int(self._begins[-1])
                if self._format.has_sequence(epoch, index - begin):
                    break
                self._begins = np.append(self._begins, begin + self._format.num_sequences(epoch))
            return self._begins
