"""Fits the law of `bertjax plan` to measured runs, and writes bertjax/tools/loss_law.json and docs/law.svg.

    python scripts/fit_law.py

The runs are in scripts/law_points.csv: parameters without the word table, tokens read, tokens of the text, share of
the unigram loss that was left on held-out text with 30 % masks, and what was run. Few runs do not determine eight
numbers, so each has a prior: exponents of 0.35 (arXiv:2305.16264), R* between those of causal models (15) and of
masked diffusion (494), a plateau of one token per parameter. A sample of the coefficients is the best fit to runs with
noise and to priors drawn again (randomized maximum a posteriori); the interval of `bertjax plan` comes from these
samples and from the errors of the law where it was not fitted: every run is predicted from the others, and `sigma` is
the deviation with which these errors are as large as expected. The picture has these errors.
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
PICTURE = ROOT / "docs" / "law.svg"
SAMPLES = 200
SIGMA = 0.01
"""Deviation of the share between runs that differ in their seed alone."""

# of log E, log A, log alpha, log B, log beta, log R*, log T
MEAN = np.log([0.30, 0.10, 0.35, 0.25, 0.35, 60.0, 1.0])
DEVIATION = np.array([0.25, 0.7, 0.15, 0.7, 0.25, 0.9, 0.7])


def shares(logs: np.ndarray, runs: np.ndarray) -> np.ndarray:
    """Returns the law's share of the unigram loss for runs [n, (parameters, tokens, unique)]."""
    names = ("E", "A", "alpha", "B", "beta", "R", "T", "sigma")
    values = dict(zip(names, np.exp([*logs, 0.0])[:, None], strict=True))
    law = LossLaw(**values, tokens=(0.0, 0.0), parameters=(0.0, 0.0))
    return np.concatenate([law.shares(*run) for run in runs.tolist()])


def fit(runs: np.ndarray, measured: np.ndarray, mean: np.ndarray) -> np.ndarray:
    def residuals(logs: np.ndarray) -> np.ndarray:
        return np.concatenate([(shares(logs, runs) - measured) / SIGMA, (logs - mean) / DEVIATION])

    best: np.ndarray = least_squares(residuals, mean).x
    return best


def sample(runs: np.ndarray, measured: np.ndarray) -> np.ndarray:
    """Returns samples of the coefficients, [SAMPLES, 7], logarithms."""
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


WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 720, 320, 56, 40, 28  # of the picture
COLORS = {"nano": "#1f6fb4", "micro": "#c25b12", "mini": "#2c8a4b"}  # by size; others are gray
REACH = 0.15  # of the picture's errors, to both sides


def picture(runs: list[dict[str, str]], errors: np.ndarray, deviations: np.ndarray) -> str:
    """Returns an SVG of how far each run is from what the others predict, over its tokens, with 90 % intervals."""
    tokens = np.log10([float(run["tokens"]) for run in runs])
    low, high = np.floor(4 * tokens.min()) / 4, np.ceil(4 * tokens.max()) / 4
    across = LEFT + 20 + (WIDTH - LEFT - 40) * (tokens - low) / (high - low)

    def down(error: float) -> float:
        return TOP + (HEIGHT - BOTTOM - TOP) * (0.5 - float(np.clip(error, -REACH, REACH)) / (2 * REACH))

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="11">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="14">measured minus predicted by the other runs, share of the unigram loss</text>',
        f'<text x="{WIDTH / 2:.0f}" y="{HEIGHT - 4}" text-anchor="middle">tokens</text>',
    ]
    for tick in np.linspace(-REACH, REACH, 7):
        y, color = down(tick), "#333" if abs(tick) < 1e-9 else "#ddd"
        parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - 20}" y2="{y:.1f}" stroke="{color}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:+.2f}</text>')
    for tick in range(int(np.ceil(low)), int(high) + 1):
        x = LEFT + 20 + (WIDTH - LEFT - 40) * (tick - low) / (high - low)
        parts.append(f'<text x="{x:.0f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{10.0**tick / 1e6:g}M</text>')
    for run, x, error, deviation in zip(runs, across, errors, deviations, strict=True):
        size = run["what"].partition(",")[0]
        color, reach = COLORS.get(size, "#666666"), 1.645 * deviation
        ends = f'y1="{down(error - reach):.1f}" x2="{x:.1f}" y2="{down(error + reach):.1f}"'
        parts.append(f'<line x1="{x:.1f}" {ends} stroke="{color}" stroke-width="1.5"/>')
        parts.append(f'<circle cx="{x:.1f}" cy="{down(error):.1f}" r="4" fill="{color}"/>')
    for index, (name, color) in enumerate(COLORS.items()):
        parts.append(f'<text x="{WIDTH - 200 + 50 * index}" y="14" fill="{color}">{name}</text>')
    return "\n".join([*parts, "</svg>", ""])


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
    PICTURE.write_text(picture(rows, errors, np.hypot(deviations, sigma)), encoding="utf-8")
    print("E, A, alpha, B, beta, R*, T:", *np.exp(best).round(4), f"sigma {sigma:.4f}")
    values = {
        "about": "written by scripts/fit_law.py; see bertjax/tools/loss_law.py",
        "tokens": [float(runs[:, 1].min()), float(runs[:, 1].max())],
        "parameters": [float(runs[:, 0].min()), float(runs[:, 0].max())],
        "samples": [[*map(lambda value: float(f"{value:.5g}"), np.exp(logs)), round(sigma, 5)] for logs in samples],
    }
    FILE.write_text(json.dumps(values) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
