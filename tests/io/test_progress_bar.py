"""A bar on a terminal, and silence elsewhere."""

from __future__ import annotations

import io
import sys
import types

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


def test_a_notebook_draws_one_output_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[dict[str, str]] = []

    class Handle:
        def update(self, content: dict[str, str], raw: bool) -> None:
            drawn.append(content)

    def display(content: dict[str, str], raw: bool, display_id: bool) -> Handle:
        drawn.append(content)
        return Handle()

    class OutStream(io.StringIO):
        pass

    OutStream.__module__ = "ipykernel.iostream"
    monkeypatch.setitem(sys.modules, "IPython.display", types.SimpleNamespace(display=display))
    file = OutStream()
    with ProgressBar("steps", 4, file=file, keep=True) as bar:
        for step in range(1, 5):
            bar.update(step, text=f"loss <{step}>")
        bar.print("a line")
    assert file.getvalue() == "a line\n"
    assert len(drawn) == 2  # the first, and the last one: those between came too soon
    assert drawn[-1]["text/plain"] == "steps  4/4  0:00  loss <4>"
    assert "loss &lt;4&gt;" in drawn[-1]["text/html"] and "value='4' max='4'" in drawn[-1]["text/html"]
