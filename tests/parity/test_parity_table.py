"""The table of scripts/parity_table.py, and the differences that make it fail."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import parity_table as command
from parity.cases import Case
from parity.compare import CONFIG, NAMES, Measurement
from parity.families.bert import CASES as BERT
from parity.report import render, table_rows

SMALL = dataclasses.replace(BERT[1], classes=("BertForMaskedLM",))


def measurement(quantity: str, difference: float, case: str = "odd", direction: str = "ours -> theirs") -> Measurement:
    return Measurement("bert", case, "BertModel", direction, "none", quantity, difference, 1e-3, "because")


@pytest.fixture
def one_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "CASES", (SMALL,))


@pytest.mark.long
def test_the_table(one_case: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "docs" / "parity.md"
    assert command.main(["--family", "bert", "--out", str(out)]) == 0
    printed = capsys.readouterr()
    assert out.read_text() == printed.out
    lines = [line for line in printed.out.splitlines() if line.startswith("| bert")]
    assert len(lines) == 1 and re.fullmatch(r"(\| \S+ ){3}(\| \d\.\de-\d\d ){2}\|", lines[0])
    for word in ("jax ", "transformers ", "torch ", "1 of 1 classes agree to 2e-05"):
        assert word in printed.out
    assert printed.err == f"bert: {SMALL.name}: agrees\n"


@pytest.mark.long
def test_a_mismatch_is_reported_and_fails(
    one_case: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    strict: tuple[Case, ...] = (dataclasses.replace(SMALL, tolerance=1e-12),)
    monkeypatch.setattr(command, "CASES", strict)
    assert command.main([]) == 1
    printed = capsys.readouterr()
    assert (
        "DIFFERS" in printed.out and "0 of 1 classes agree" in printed.out and "## What does not agree" in printed.out
    )
    assert "DIFFERS in" in printed.err


def test_an_unknown_family_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--family", "brt"]) == 2
    assert "no such family; there are" in capsys.readouterr().err


def test_a_row_is_the_worst_of_its_cases() -> None:
    result = [
        measurement("hidden_states[0]", 1e-6),
        measurement("memory: hidden_states[1]", 3e-4),
        measurement("mlm_logits", 2e-5),
        measurement("pooler_output", 4e-5, case="even"),
        measurement("pooler_output", 5e-6, direction="theirs -> ours"),
        dataclasses.replace(measurement(NAMES, 0.0), tolerance=0.0),
        dataclasses.replace(measurement(CONFIG, 0.0), tolerance=0.0),
    ]
    (row,) = table_rows(result)
    assert row[2:] == ("2", "5.0e-06", "3.0e-04")
    worse = [*result, dataclasses.replace(measurement(NAMES, float("inf")), tolerance=0.0)]
    (row,) = table_rows(worse)
    assert row[0] == "bert: DIFFERS"
    assert "names inf" in render(worse, {}) and "because" in render(worse, {})
    (row,) = table_rows([measurement("mlm_logits", float("nan"))])
    assert row[0] == "bert: DIFFERS"


def test_a_family_with_a_tolerance_of_its_own_is_named() -> None:
    strict = dataclasses.replace(measurement("mlm_logits", 1e-5), tolerance=2e-5)
    large = dataclasses.replace(measurement("mlm_logits", 4e-5), family="gemma2", tolerance=5e-5)
    assert "1 of 1 classes agree to 2e-05; 1 quantities" in render([strict], {})
    assert "2 of 2 classes agree to 2e-05, gemma2 to 5e-05; 2 quantities" in render([strict, large], {})
