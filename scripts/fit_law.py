"""Fits the law of `bertjax plan` to measured runs, and writes bertjax/tools/loss_law.json.

    python scripts/fit_law.py

The runs are in scripts/law_points.csv: parameters without the word table, tokens read, tokens of the text, share of
the unigram loss that was left on held-out text with 30 % masks, and what was run. Few runs do not determine seven
numbers, so each has a prior: exponents of 0.35 (arXiv:2305.16264), R* between those of causal models (15) and of
masked diffusion (494). A sample of the coefficients is the best fit to runs with noise and to priors drawn again
(randomized maximum a posteriori); the interval of `bertjax plan` comes from these samples and from the errors of the
law where it was not fitted: every run is predicted from the others, and `sigma` is the deviation with which these
errors are as large as expected.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
from scipy.optimize import brentq, least_squares

from bertjax.tools.loss_law import FILE, LossLaw

ROOT = Path(__file__).parents[1]
POINTS = ROOT / "scripts" / "law_points.csv"
SAMPLES = 200
SIGMA = 0.01
"""Deviation of the share between runs that differ in their seed alone."""

# of log E, log A, log alpha, log B, log beta, log R*
MEAN = np.log([0.30, 0.10, 0.35, 0.25, 0.35, 60.0])
DEVIATION = np.array([0.25, 0.7, 0.15, 0.7, 0.25, 0.9])


def shares(logs: np.ndarray, runs: np.ndarray) -> np.ndarray:
    """Returns the law's share of the unigram loss for runs [n, (parameters, tokens, unique)]."""
    names = ("E", "A", "alpha", "B", "beta", "R", "sigma")
    values = dict(zip(names, np.exp([*logs, 0.0])[:, None], strict=True))
    law = LossLaw(**values, tokens=(0.0, 0.0), parameters=(0.0, 0.0))
    return np.concatenate([law.shares(*run) for run in runs.tolist()])


def fit(runs: np.ndarray, measured: np.ndarray, mean: np.ndarray) -> np.ndarray:
    def residuals(logs: np.ndarray) -> np.ndarray:
        return np.concatenate([(shares(logs, runs) - measured) / SIGMA, (logs - mean) / DEVIATION])

    best: np.ndarray = least_squares(residuals, mean).x
    return best


def sample(runs: np.ndarray, measured: np.ndarray) -> np.ndarray:
    """Returns samples of the coefficients, [SAMPLES, 6], logarithms."""
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(SAMPLES, len(runs) + len(MEAN)))
    return np.array(
        [fit(runs, measured + SIGMA * each[: len(runs)], MEAN + DEVIATION * each[len(runs) :]) for each in noise]
    )


def predict_each(runs: np.ndarray, measured: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns how far every run is from the median of what the others predict, and the deviation of their samples."""
    errors, deviations = [], []
    for index in range(len(runs)):
        others = np.arange(len(runs)) != index
        predicted = [shares(logs, runs[[index]])[0] for logs in sample(runs[others], measured[others])]
        errors.append(measured[index] - np.median(predicted))
        deviations.append(np.std(predicted))
    return np.array(errors), np.array(deviations)


def missing_deviation(errors: np.ndarray, deviations: np.ndarray) -> float:
    """Returns the deviation, at least `SIGMA`, that makes the mean of (error / expected error) squared 1."""

    def excess(sigma: float) -> float:
        return float(np.mean(errors**2 / (deviations**2 + sigma**2)) - 1.0)

    return SIGMA if excess(SIGMA) <= 0.0 else float(brentq(excess, SIGMA, 1.0))


def main() -> None:
    with POINTS.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    runs = np.array([[float(row[name]) for name in ("parameters", "tokens", "unique")] for row in rows])
    measured = np.array([float(row["share"]) for row in rows])
    samples, errors, deviations = sample(runs, measured), *predict_each(runs, measured)
    best = fit(runs, measured, MEAN)
    for row, left, error, deviation in zip(rows, shares(best, runs), errors, deviations, strict=True):
        of_others = f"by the others {float(row['share']) - error:.4f} ± {deviation:.4f}"
        print(f"{row['what']}: measured {float(row['share']):.4f}, fitted {left:.4f}, {of_others}")
    sigma = missing_deviation(errors, deviations)
    print("E, A, alpha, B, beta, R*:", *np.exp(best).round(4), f"sigma {sigma:.4f}")
    values = {
        "about": "written by scripts/fit_law.py; see bertjax/tools/loss_law.py",
        "tokens": [float(runs[:, 1].min()), float(runs[:, 1].max())],
        "parameters": [float(runs[:, 0].min()), float(runs[:, 0].max())],
        "samples": [[*map(lambda value: float(f"{value:.5g}"), np.exp(logs)), round(sigma, 5)] for logs in samples],
    }
    FILE.write_text(json.dumps(values) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
