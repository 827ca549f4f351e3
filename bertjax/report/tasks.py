"""What a finetuned model got right and wrong: confusion, classes, seeds, and where labels came from."""

from __future__ import annotations

import math
import statistics
from html import escape
from typing import Any

import numpy as np

from bertjax.report.chart import Chart, Line, chart_html
from bertjax.report.page import table
from bertjax.report.probe_log import Record
from bertjax.report.run_record import RunRecord
from bertjax.report.scales import NOTHING, number

MOST_LABELS = 40
"""Of a confusion matrix; beyond that the mistakes alone are listed."""
MOST_MISTAKES = 20


def task(run: RunRecord) -> str:
    """Everything that there is of a task, of the newest evaluation."""
    parts = [_confusion(record) for record in run.newest("confusion")]
    parts += [_classes(record) for record in run.newest("classes")]
    parts += [_seeds(record) for record in run.newest("seeds")]
    parts += [_labels_kept(record) for record in run.newest("labels_kept")]
    parts += [_rate_finder(record) for record in run.newest("rate_finder")]
    return "".join(f'<div class="card">{part}</div>' for part in parts if part)


def _confusion(record: Record) -> str:
    labels, counts = record.get("labels"), record.get("counts")
    if not isinstance(labels, list) or not isinstance(counts, list) or not labels:
        return ""
    matrix = np.array(counts, np.float64) if _is_square(counts, len(labels)) else None
    if matrix is None:
        return ""
    names, title = [str(label) for label in labels], f"Confusion{_of(record)}"
    right = float(np.trace(matrix) / max(matrix.sum(), 1.0))
    note = f'<p class="note">Rows: what is right; columns: what was said. {100 * right:.1f} % on the diagonal.</p>'
    if len(names) > MOST_LABELS:
        return f"<h3>{escape(title)}</h3>{note}{_mistakes(names, matrix)}"
    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1.0)
    rows = "".join(_confusion_row(name, matrix[i], shares[i], i) for i, name in enumerate(names))
    heads = "".join(f'<th scope="col" class="n">{escape(name)}</th>' for name in names)
    return (
        f'<h3>{escape(title)}</h3>{note}<div class="scroll" tabindex="0"><table class="confusion">'
        f"<thead><tr><td></td>{heads}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _is_square(counts: list[Any], size: int) -> bool:
    rows = [row for row in counts if isinstance(row, list) and len(row) == size]
    return len(rows) == len(counts) == size and all(type(cell) in (int, float) for row in rows for cell in row)


def _confusion_row(name: str, counts: np.ndarray, shares: np.ndarray, place: int) -> str:
    cells = "".join(
        f'<td class="n{" right" if index == place else ""}" style="--w:{0.75 * share:.2f}" title="{100 * share:.1f} %">'
        f"{count:,.0f}</td>"
        for index, (count, share) in enumerate(zip(counts, shares, strict=True))
    )
    return f'<tr><th scope="row">{escape(name)}</th>{cells}</tr>'


def _mistakes(names: list[str], matrix: np.ndarray) -> str:
    wrong = matrix.copy()
    np.fill_diagonal(wrong, 0)
    order = np.argsort(-wrong, axis=None, kind="stable")[:MOST_MISTAKES]
    places = [divmod(int(each), len(names)) for each in order]
    rows = [[names[i], names[j], f"{wrong[i, j]:,.0f}"] for i, j in places if wrong[i, j]]
    return table(["right", "said", "how often"], rows, numeric=(2,), caption="the most frequent mistakes")


def _classes(record: Record) -> str:
    rows = [row for row in _rows(record) if "label" in row]
    if not rows:
        return ""
    names = ("precision", "recall", "f1", "support")
    cells = [
        [
            str(row["label"]),
            *(number(_float(row.get(name)), "count" if name == "support" else "percent") for name in names),
        ]
        for row in rows
    ]
    title = escape(f"Classes{_of(record)}")
    return f"<h3>{title}</h3>{table(['label', 'precision', 'recall', 'F1', 'examples'], cells, numeric=(1, 2, 3, 4))}"


def _seeds(record: Record) -> str:
    """Every seed, their mean, and the standard deviation of a sample."""
    rows = [row for row in _rows(record) if isinstance(row.get("scores"), dict)]
    names = list(dict.fromkeys(name for row in rows for name in row["scores"]))
    if not names:
        return ""
    cells = [[str(row.get("seed", "")), *(_score(_float(row["scores"].get(name))) for name in names)] for row in rows]
    columns = [[value for row in rows if (value := _float(row["scores"].get(name))) is not None] for name in names]
    cells.append(["mean", *(_score(statistics.fmean(values)) if values else NOTHING for values in columns)])
    cells.append(["spread", *(_score(statistics.stdev(values)) if len(values) > 1 else NOTHING for values in columns)])
    note = f'<p class="note">{len(rows)} seeds; spread = standard deviation of the sample.</p>'
    return f"<h3>Seeds</h3>{note}{table(['seed', *names], cells, numeric=range(1, len(names) + 1))}"


def _labels_kept(record: Record) -> str:
    """How many labels of a larger model were kept, and how far they agree with a gold sample."""
    kept, of, threshold = (_float(record.get(name)) for name in ("kept", "of", "threshold"))
    if kept is None or of is None:
        return ""
    agreement = _float(record.get("agreement"))
    said = f"{kept:,.0f} of {of:,.0f} kept"
    said += "" if threshold is None else f" (confidence at least {threshold:g})"
    said += "." if agreement is None else f"; {100 * agreement:.1f} % of those in the gold sample agree with it."
    trust = (
        ""
        if agreement is not None
        else ' <span class="warn">No gold sample: nobody knows how far to trust them.</span>'
    )
    cells = [
        [str(row.get("label", "")), *(number(_float(row.get(name)), form) for name, form in _KEPT)]
        for row in _rows(record)
    ]
    listed = table(["label", "kept", "of", "agreement"], cells, numeric=(1, 2, 3)) if cells else ""
    return f"<h3>Labels from a larger model</h3><p>{escape(said)}{trust}</p>{listed}"


_KEPT = (("kept", "count"), ("of", "count"), ("agreement", "percent"))


def _rate_finder(record: Record) -> str:
    rates, losses = (
        np.array([np.nan if _float(each) is None else each for each in record.get(name) or []], np.float64)
        for name in ("rates", "losses")
    )
    if not len(rates) or len(rates) != len(losses) or not (rates > 0).all():
        return ""
    suggestion = _float(record.get("suggestion"))
    x = np.log10(rates)
    marks = {} if suggestion is None else {"log10 of the rate": (math.log10(suggestion), f"{suggestion:.1e}")}
    line = Line("loss", losses, {"log10 of the rate": x}, smooth=True)
    note = "" if suggestion is None else f"Suggestion: {suggestion:.2e}."
    chart = Chart(
        "chart-rate_finder", "Learning-rate finder", [line], note=note, axes=("log10 of the rate",), marks=marks
    )
    return chart_html(chart)


def _rows(record: Record) -> list[dict[str, Any]]:
    rows = record.get("rows")
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _float(value: Any) -> float | None:
    return float(value) if type(value) in (int, float) and math.isfinite(value) else None


def _score(value: float | None) -> str:
    """Scores between 0 and 1 in four digits, as papers have them."""
    return NOTHING if value is None else f"{value:.4f}"


def _of(record: Record) -> str:
    """Of which data or weights, and of which update: the one that it was seen at, if it does not say."""
    step = record.get("of_step")
    named = f" of {record['set']}" if isinstance(record.get("set"), str) else ""
    return f"{named}, update {step if isinstance(step, int) else record['step']:,}"
