"""Checks of the metrics' inputs, and scikit-learn, which is imported when something is scored."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

from bertjax.errors import UserError


def require_same_length(gold: int, predicted: int, what: str) -> None:
    """Raises `UserError` if there is nothing to score, or not one prediction per gold item.

    Args:
        gold: number of gold items.
        predicted: number of predictions.
        what: name of the items in messages, in the plural.
    """
    if not gold:
        raise UserError(f"nothing to score: no gold {what}" + (f" for {predicted:,} predictions" if predicted else ""))
    if gold != predicted:
        raise UserError(
            f"{gold:,} gold {what}, but {predicted:,} predictions; each needs exactly one, in the same order"
        )


@contextlib.contextmanager
def warnings_ignored() -> Iterator[None]:
    """Silences libraries in degenerate cases, which the metrics here define themselves."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def sklearn_metrics() -> Any:
    """Returns the module `sklearn.metrics`; raises `UserError` if scikit-learn is not installed."""
    try:
        from sklearn import metrics
    except ImportError:
        raise UserError(
            "scores of labels need scikit-learn, which is not installed here; pip install scikit-learn"
        ) from None
    return metrics
