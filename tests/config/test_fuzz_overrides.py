"""Random and hostile overrides are accepted or refused in one line; no other exception is raised (P25)."""

from __future__ import annotations

import contextlib
import io

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bertjax.cli import main
from bertjax.config.defaults import base_config
from bertjax.config.overrides import apply_overrides, flatten
from bertjax.errors import UserError
from bertjax.experiment.config import parse as check

KEYS = sorted(flatten(base_config()))
HOSTILE = [
    "", " ", "-1", "0", "1", "2", "1e3", "1e308", "-1e308", "1e-320", "9" * 400, "0x10", "1_0", "nan", "inf", "None",
    "True", "false", "none", "auto", "a,b", ",", "\\,", "\\", "[]", "{}", "'", '"', "\0", "\n", "\r\n", "é", "\ud800",
    "%s%n", "{0}", "$(id)", "`id`", "../..", "/", "~", "/dev/null", "__class__", "text:", "text:/", "lines:[", "57-",
    "jsonl:/dev/null#x", "hub:a/b", "builtin:x", "x@nan", "50%:data.seq_len=64", "90%:", "-5:seed=1", "1:2:3", "60-57",
    ".*=1", "(=1", "[a-=2", "encoder/.*=0.5", "latin", "latin,klingon", "mlm", "rtd", "plm", "distill", "mixture",
    "mlm:1,clm:1", "bert-base", "stream", "segments", "best_fit", "muon", "lamb", "gpu", "threefry",
]  # fmt: skip
VALUES = st.one_of(
    st.sampled_from(HOSTILE),
    st.text(max_size=12),
    st.integers().map(str),
    st.integers(-2, 70).map(str),
    st.floats(allow_nan=True).map(str),
    st.floats(0, 1).map(str),
)
QUICK = settings(max_examples=60, deadline=5000, suppress_health_check=[HealthCheck.too_slow])


def accepted_or_one_line(arguments: list[str]) -> None:
    config = base_config()
    try:
        check(apply_overrides(config, arguments))
    except UserError as error:
        assert str(error) and "\n" not in str(error)


@QUICK
@given(st.lists(st.tuples(st.sampled_from(KEYS), VALUES), min_size=1, max_size=3))
def test_any_value_is_accepted_or_refused_in_one_line(settings: list[tuple[str, str]]) -> None:
    accepted_or_one_line([f"--config.{key}={value}" for key, value in settings])


@pytest.mark.long
@QUICK
@given(st.lists(st.one_of(VALUES, VALUES.map("--config.".__add__), VALUES.map("--config.data.".__add__)), max_size=3))
def test_any_argument_is_accepted_or_refused_in_one_line(arguments: list[str]) -> None:
    accepted_or_one_line(arguments)


@pytest.mark.long
def test_every_number_outside_its_range() -> None:
    for key, value in flatten(base_config()).items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            accepted_or_one_line([f"--config.{key}=-1"])
            accepted_or_one_line([f"--config.{key}=1e18"])


@settings(QUICK, max_examples=15)
@given(st.sampled_from(KEYS), VALUES)
def test_the_command_line_ends_with_status_2_and_one_line(key: str, value: str) -> None:
    """The second override is always wrong, so that no device and no text is ever used."""
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
        status = main(["pretrain", "--config", "configs/quickstart.py", f"--config.{key}={value}", "--config.sed=1"])
    assert status == 2
    assert (
        errors.getvalue().startswith(("bertjax pretrain: ", "bertjax: an argument holds"))
        and errors.getvalue().count("\n") == 1
    )
