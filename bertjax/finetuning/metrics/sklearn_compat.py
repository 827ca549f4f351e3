"""What every scorer asks of its input, and the libraries that are imported when something is scored."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

from bertjax.errors import UserError


def require_same_length(gold: int, predicted: int, what: str) -> None:
    """Raises `UserError` where there is nothing to score, or not one prediction for each of the gold `what`."""
    if not gold:
        raise UserError(f"nothing to score: no gold {what}" + (f" for {predicted:,} predictions" if predicted else ""))
    if gold != predicted:
        raise UserError(
            f"{gold:,} gold {what}, but {predicted:,} predictions; each needs exactly one, in the same order"
        )


@contextlib.contextmanager
def warnings_ignored() -> Iterator[None]:
    """For calls of libraries whose degenerate cases our scorers define themselves."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def sklearn_metrics() -> Any:
    """The module `sklearn.metrics`; raises `UserError` where scikit-learn is not installed."""
    try:
        from sklearn import metrics
    except ImportError:
        raise UserError(
            "scores of labels need scikit-learn, which is not installed here; pip install scikit-learn"
        ) from None
    return metrics
