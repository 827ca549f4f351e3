"""Sections and pages of what commands measured of a finished model: words of predictions, layers, smaller forms.

A section shows a JSON file of `analyses/` in the work directory, which `render.store_analysis` writes.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from bertjax.inference.probing import LayerScores
from bertjax.metrics import plus_minus
from bertjax.report.chart import Chart, Line, chart_html
from bertjax.report.page import Section, page, table
from bertjax.report.run_record import ANALYSES, ANALYSES_FOLDER, RunRecord

EXPLANATIONS, LAYERS, SMALLER = ANALYSES
MAX_EXPLANATIONS = 50
_TITLES = {"accuracy": "Accuracy", "f1": "F1 of labels other than O", "control": "Accuracy on the control task"}
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
    head = f'<p class="note">{_legend(about)}</p>'
    bodies = _explained_inputs(records)
    foot = "<p>Written by <code>bertjax explain</code>. It contains the texts that were explained.</p>"
    return page(title, head, [Section("explanations", "Explanations", bodies)], foot)


def _legend(about: str) -> str:
    """Returns what the scores are, and what the colors mean."""
    return (
        f"{escape(about)} {_mark('blue', 0.6, '', _FOR)}: for the target, {_mark('orange', 0.6, '', _AGAINST)}: "
        "against it; the strongest ground is the largest score of an input."
    )


def _explained_inputs(records: Sequence[Mapping[str, Any]]) -> str:
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


def probes_page(scores: Mapping[str, Sequence[LayerScores]], about: str) -> str:
    """Returns the page.

    Args:
        scores: scores of all layers by the name of the model.
        about: what was probed, in a sentence.
    """
    charts, tables = _layer_sections(scores)
    foot = "<p>Written by <code>bertjax probe</code>.</p>"
    sections = [Section("layers", "Layers", charts), Section("scores", "Scores", tables)]
    return page("Linear probes", f'<p class="note">{escape(about)}</p>', sections, foot)


def _layer_sections(scores: Mapping[str, Sequence[LayerScores]]) -> tuple[str, str]:
    """Returns the charts by layer, and the tables of every model."""
    charts = "".join(
        chart_html(_chart(name, title, scores))
        for name, title in _TITLES.items()
        if any(getattr(each, name) for layers in scores.values() for each in layers)
    )
    tables = "".join(
        f'<div class="card"><h3>{escape(model)}</h3>{table(*columns(layers), numeric=range(len(_TITLES) + 2))}</div>'
        for model, layers in scores.items()
    )
    return charts, tables


def _chart(name: str, title: str, scores: Mapping[str, Sequence[LayerScores]]) -> Chart:
    lines = []
    for style, (model, layers) in enumerate(scores.items()):
        values = np.array([np.mean(getattr(each, name) or (np.nan,)) for each in layers])
        numbers = np.array([each.layer for each in layers], np.float64)
        lines.append(Line(model, values, {"layer": numbers}, style=style, dots=True))
    return Chart(f"chart-layers-{name}", title, lines, note="0: the embeddings.", axes=("layer",))


def columns(layers: Sequence[LayerScores]) -> tuple[list[str], list[list[str]]]:
    """Returns the names of the columns of a table, and its rows: means and sample standard deviations."""

    def spread(values: Sequence[float]) -> str:
        return plus_minus(statistics.fmean(values), values, digits=3, sign="±")

    names = [name for name in _TITLES if any(getattr(each, name) for each in layers)]
    rows = [[str(each.layer), *(spread(getattr(each, name)) for name in names)] for each in layers]
    if "control" in names:
        rows = [[*row, f"{each.selectivity:.3f}"] for row, each in zip(rows, layers, strict=True)]
        names.append("selectivity")
    return ["layer", *names], rows


def _explanations(values: Mapping[str, Any]) -> str:
    """Returns the words of inputs: `about`, what the scores are, and `records`, as `Explainer` returns them."""
    return f'<p class="note">{_legend(values["about"])}</p>{_explained_inputs(values["records"][:MAX_EXPLANATIONS])}'


def _layers(values: Mapping[str, Any]) -> str:
    """Returns scores by layer: `about`, and the `layers` of every model, as `bertjax probe` writes them."""
    scores = {
        str(name): [
            LayerScores(each["layer"], *(tuple(each.get(field, ())) for field in ("accuracy", "f1", "control")))
            for each in layers
        ]
        for name, layers in values["layers"].items()
    }
    charts, tables = _layer_sections(scores)
    return f'<p class="note">{escape(values["about"])}</p><div class="grid-of">{charts}</div>{tables}'


def _smaller(values: Mapping[str, Any]) -> str:
    """Returns what forms of the model cost: by form its `size` and `scores`, (name, model, this form)."""
    rows = [
        [form, each["size"], name, f"{before:.4g}", f"{after:.4g}"]
        for form, each in values.items()
        for name, before, after in each["scores"]
    ]
    return table(["form", "size", "measured", "the model", "this form"], rows, numeric=(3, 4))


SECTIONS: dict[str, tuple[str, Callable[[Mapping[str, Any]], str]]] = {
    EXPLANATIONS: ("Words", _explanations),
    LAYERS: ("Layers", _layers),
    SMALLER: ("Smaller forms", _smaller),
}


def sections(run: RunRecord) -> list[Section]:
    """Returns the sections for which there are files; a file that does not hold what it should is a remark."""
    shown = []
    for kind, values in run.analyses.items():
        title, show = SECTIONS[kind]
        try:
            body = show(values)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError):
            body = f'<p class="warn">{ANALYSES_FOLDER}/{kind}.json cannot be read; run the command again.</p>'
        shown.append(Section(kind, title, body))
    return shown
