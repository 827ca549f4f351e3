"""The page of explanations: every word on a ground whose color and strength show its score."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from bertjax.report.page import Section, page

_FOR, _AGAINST = (
    "0, 114, 178",
    "213, 94, 0",
)  # blue and vermilion of Okabe and Ito, which color-blind people distinguish
_STRONGEST = 0.7  # opacity of the largest score of an input


def explanations_page(title: str, records: Sequence[Mapping[str, Any]], about: str) -> str:
    """Returns the page.

    Args:
        title: Its title.
        records: Explanations, as `Explainer` returns them.
        about: What the scores are.
    """
    head = f'<p class="note">{legend(about)}</p>'
    bodies = explained_inputs(records)
    foot = "<p>Written by <code>bertjax explain</code>. It contains the texts that were explained.</p>"
    return page(title, head, [Section("explanations", "Explanations", bodies)], foot)


def legend(about: str) -> str:
    """Returns what the scores are, and what the colors mean."""
    return (
        f"{escape(about)} {_mark('blue', 0.6, '', _FOR)}: for the target, {_mark('orange', 0.6, '', _AGAINST)}: "
        "against it; the strongest ground is the largest score of an input."
    )


def explained_inputs(records: Sequence[Mapping[str, Any]]) -> str:
    """Returns the words of inputs, each input under a heading."""
    return "".join(_explanation(record) for record in records)


def heading(record: Mapping[str, Any]) -> str:
    """Returns what is explained, in a line: "2: positive, score 3.1416"."""
    target = "" if record["target"] is None else f" {record['target'] or '(no answer)'},"
    word = f" {record['word']}:" if "word" in record else ""
    error = f", completeness error {record['completeness_error']:.2%}" if "completeness_error" in record else ""
    return f"{record['id']}:{word}{target} score {record['score']:.4f}{error}"


def _explanation(record: Mapping[str, Any]) -> str:
    largest = max((abs(each["score"]) for each in record["words"]), default=0.0) or 1.0
    fields = [
        f"<p><b>{escape(name)}</b> {' '.join(_word(each, largest) for each in words)}</p>"
        for name, words in itertools.groupby(record["words"], lambda each: str(each["field"]))
    ]
    return f"<h3>{escape(heading(record))}</h3>{''.join(fields)}"


def _word(each: Mapping[str, Any], largest: float) -> str:
    strength = abs(each["score"]) / largest * _STRONGEST
    return _mark(each["word"], strength, f"{each['score']:+.4f}", _FOR if each["score"] > 0 else _AGAINST)


def _mark(text: str, strength: float, score: str, color: str) -> str:
    title = f' title="{score}"' if score else ""
    style = f"background: rgba({color}, {strength:.3f}); padding: 0 .2rem; border-radius: .25rem"
    return f'<span style="{style}"{title}>{escape(text)}</span>'
