"""The page of linear probes: scores by layer, of several models side by side."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from html import escape

import numpy as np

from bertjax.inference.probing import LayerScores
from bertjax.metrics import plus_minus
from bertjax.report.chart import Chart, Line, chart_html
from bertjax.report.page import Section, page, table

_TITLES = {"accuracy": "Accuracy", "f1": "F1 of labels other than O", "control": "Accuracy on the control task"}


def probes_page(scores: Mapping[str, Sequence[LayerScores]], about: str) -> str:
    """Returns the page.

    Args:
        scores: scores of all layers by the name of the model.
        about: what was probed, in a sentence.
    """
    charts, tables = layer_sections(scores)
    foot = "<p>Written by <code>bertjax probe</code>.</p>"
    sections = [Section("layers", "Layers", charts), Section("scores", "Scores", tables)]
    return page("Linear probes", f'<p class="note">{escape(about)}</p>', sections, foot)


def layer_sections(scores: Mapping[str, Sequence[LayerScores]]) -> tuple[str, str]:
    """Returns the charts by layer, and the tables of every model."""
    charts = "".join(
        chart_html(_chart(name, title, scores))
        for name, title in _TITLES.items()
        if any(getattr(each, name) for layers in scores.values() for each in layers)
    )
    tables = "".join(
        f'<div class="card"><h3>{escape(model)}</h3>{_table(layers)}</div>' for model, layers in scores.items()
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
    """Returns the names of the columns of a table, and its rows."""
    names = [name for name in _TITLES if any(getattr(each, name) for each in layers)]
    rows = [[str(each.layer), *(spread(getattr(each, name)) for name in names)] for each in layers]
    if "control" in names:
        rows = [[*row, f"{each.selectivity:.3f}"] for row, each in zip(rows, layers, strict=True)]
        names.append("selectivity")
    return ["layer", *names], rows


def spread(values: Sequence[float]) -> str:
    """Returns mean and sample standard deviation."""
    return plus_minus(statistics.fmean(values), values, digits=3, sign="±")


def _table(layers: Sequence[LayerScores]) -> str:
    heads, rows = columns(layers)
    return table(heads, rows, numeric=range(len(heads)))
