"""A bar on a terminal, and silence elsewhere."""

from __future__ import annotations

import io

import pytest

from bertjax.io.progress_bar import ProgressBar, fold


def test_silent_without_a_terminal() -> None:
    out = io.StringIO()
    with ProgressBar("texts", 10, file=out) as bar:
        bar.update(3, text="loss 1")
    assert out.getvalue() == "" and not bar.interactive


@pytest.mark.parametrize(("percent", "shown"), [(False, "30/100"), (True, "30%")])
def test_title_amount_and_text(percent: bool, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    out = io.StringIO()
    with ProgressBar("[text]", file=out, percent=percent, keep=True, interactive=True) as bar:
        assert out.getvalue() == ""  # nothing was done yet
        bar.update(10, text="starts")
        bar.print("a [line] above")
        bar.update(30, 100, text="loss 1.0")
    drawn = out.getvalue()
    assert "[text]" in drawn and shown in drawn and "a [line] above" in drawn and "loss 1.0" in drawn


def test_lines_break_between_parts() -> None:
    assert fold("loss 7.250  padding 6.2 %  ETA 5 s", 24) == "loss 7.250\npadding 6.2 %  ETA 5 s"
    assert fold("loss 7.250  padding 6.2 %", 80) == "loss 7.250  padding 6.2 %"
    assert fold("one long part  b", 4) == "one long part\nb"
