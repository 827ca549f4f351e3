"""The law of losses: shape, limits, and the file that comes with bertjax."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from fit_law import SIGMA, missing_deviation

from bertjax.tools.loss_law import FILE, LossLaw, read_law, saturate


@pytest.fixture
def law() -> LossLaw:
    one = np.ones(1)
    return LossLaw(
        0.3 * one,
        0.1 * one,
        0.35 * one,
        0.2 * one,
        0.35 * one,
        16 * one,
        0 * one,
        0 * one,
        tokens=(1e6, 1e7),
        parameters=(1e6, 1e6),
    )


def test_is_the_formula(law: LossLaw) -> None:
    assert law.shares(1e6, 1e7, 1e12)[0] == pytest.approx(0.3 + 0.1 + 0.2)
    assert law.shares(8e6, 1e7, 1e12)[0] == pytest.approx(0.3 + 0.1 * 8**-0.35 + 0.2)


def test_repeated_tokens_are_worth_less_and_less(law: LossLaw) -> None:
    """As much as new ones in the first epochs, in the end those of R* + 1 epochs."""
    fresh, twice = law.shares(1e5, 2e7, 1e9)[0], law.shares(1e5, 2e7, 1e7)[0]
    assert fresh < twice < fresh + 0.002
    excess = law.shares(1e6, 1e7, 1e7)[0] - 0.2  # of the parameters, which are too many for so little text
    assert law.shares(1e6, 1e15, 1e7)[0] == pytest.approx(excess + 0.2 * 17**-0.35)
    losses = [law.shares(1e6, tokens, 1e7)[0] for tokens in (1e6, 9e6, 1e7, 1.1e7, 5e7, 1e9)]
    assert losses == sorted(losses, reverse=True)


def test_parameters_beyond_the_text_are_worth_little(law: LossLaw) -> None:
    """With A = B / 2 and equal exponents, one epoch of U tokens is optimal for U / 10 * 2^-(1 / 0.35) parameters."""
    optimal = 1e6 * 0.5 ** (1 / 0.35)
    assert law.shares(0.9 * optimal, 1e7, 1e7)[0] == pytest.approx(0.3 + 0.1 * (0.9 * optimal / 1e6) ** -0.35 + 0.2)
    assert law.shares(1e12, 1e7, 1e7)[0] == pytest.approx(0.3 + 0.1 * (6.3 * optimal / 1e6) ** -0.35 + 0.2)


def test_the_plateau_teaches_nothing(law: LossLaw) -> None:
    """Long runs lack its tokens; a run that ends on it guesses by frequency."""
    late = dataclasses.replace(law, T=np.array([2.0]))
    assert late.shares(1e6, 1.002e9, 1e12)[0] == pytest.approx(law.shares(1e6, 1e9, 1e12)[0], abs=1e-6)
    assert late.shares(1e6, 2e6, 1e12)[0] == pytest.approx(law.shares(1e6, 1e6, 1e12)[0])
    assert late.expect(1e6, 1e4, 1e12).median == 1.0


def test_worth_is_continuous() -> None:
    assert saturate(10.0, 10.0, 5.0) == pytest.approx(10.0)
    assert saturate(10.001, 10.0, 5.0) == pytest.approx(10.001, abs=1e-6)
    assert saturate(1e9, 10.0, 5.0) == pytest.approx(60.0)


def test_an_interval_holds_the_median_and_the_noise_of_a_run(law: LossLaw) -> None:
    names = ("E", "A", "alpha", "B", "beta", "R", "T")
    wide = dataclasses.replace(law, **{name: np.repeat(getattr(law, name), 200) for name in names})
    wide = dataclasses.replace(wide, sigma=np.full(200, 0.01))
    expected = wide.expect(1e6, 1e7, 1e12)
    assert expected.median == pytest.approx(0.6)
    assert expected.low < expected.median < expected.high
    assert expected.high - expected.low == pytest.approx(2 * 1.645 * 0.01, rel=0.25)


def test_shipped_law() -> None:
    """More tokens help, and more parameters in long runs; what it says of its own range is between nothing and all."""
    law = read_law()
    assert FILE.exists() and len(law.E) >= 100
    expected = law.expect(np.sqrt(np.prod(law.parameters)), np.sqrt(np.prod(law.tokens)), 1e12)
    assert 0.3 < expected.low < expected.median < expected.high < 1.0
    assert law.expect(8e6, 1e8, 1e12).median < law.expect(1e6, 1e8, 1e12).median < law.expect(1e6, 1e6, 1e12).median
    assert law.expect(1e6, 1e6, 1e12).median < law.expect(8e6, 1e6, 1e12).median
    assert law.covers(law.parameters[1], law.tokens[1])
    assert not any(law.covers(law.parameters[1], each) for each in (100 * law.tokens[1], law.tokens[0] / 10))


def test_the_deviation_makes_the_errors_as_large_as_expected() -> None:
    errors, deviations = np.array([0.1, -0.05, 0.08]), np.array([0.01, 0.02, 0.03])
    sigma = missing_deviation(errors, deviations)
    assert np.mean(errors**2 / (deviations**2 + sigma**2)) == pytest.approx(1.0)
    assert missing_deviation(errors, 10 * errors) == SIGMA
