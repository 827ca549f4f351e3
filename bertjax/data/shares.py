"""Shares of the sources of a mixture, as functions of their sizes, weights and limits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from ml_collections import ConfigDict

from bertjax.config import inputs
from bertjax.config.fields import read_group
from bertjax.config.source_mixture import SourceMixtureConfig
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
    mixture = read_group(cfg, SourceMixtureConfig)
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
