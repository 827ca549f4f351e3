"""Sections on what commands measured of a finished run: words of predictions, layers, and smaller forms of the model.

Each is a JSON file of `analyses/` in the work directory, which `render.store_analysis` writes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from html import escape
from typing import Any

from bertjax.inference.probing import LayerScores
from bertjax.report.attributions import explained_inputs, legend
from bertjax.report.layer_probes import layer_sections
from bertjax.report.page import Section, table
from bertjax.report.run_record import ANALYSES, ANALYSES_FOLDER, RunRecord

EXPLANATIONS, LAYERS, SMALLER = ANALYSES
MAX_EXPLANATIONS = 50


def _explanations(values: Mapping[str, Any]) -> str:
    """Returns the words of inputs: `about`, what the scores are, and `records`, as `Explainer` returns them."""
    return f'<p class="note">{legend(values["about"])}</p>{explained_inputs(values["records"][:MAX_EXPLANATIONS])}'


def _layers(values: Mapping[str, Any]) -> str:
    """Returns scores by layer: `about`, and the `layers` of every model, as `bertjax probe` writes them."""
    scores = {
        str(name): [
            LayerScores(each["layer"], *(tuple(each.get(field, ())) for field in ("accuracy", "f1", "control")))
            for each in layers
        ]
        for name, layers in values["layers"].items()
    }
    charts, tables = layer_sections(scores)
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
