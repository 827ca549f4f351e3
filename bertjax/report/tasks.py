"""Results of finetuning: confusion matrix, scores per class, generated texts, seeds, pseudo-labels, learning rates."""

from __future__ import annotations

import math
import statistics
from html import escape
from typing import Any

import numpy as np

from bertjax.metrics import sample_stdev
from bertjax.report.chart import Chart, Line, chart_html
from bertjax.report.page import scrolling, table
from bertjax.report.run_record import Record, RunRecord
from bertjax.report.scales import NO_VALUE, number

MAX_LABELS = 40
"""Maximum size of a confusion matrix; beyond it only the most frequent errors are listed."""
MAX_ERRORS = 20


def task(run: RunRecord) -> str:
    """Returns the cards of the latest evaluation."""
    parts = [_confusion(record) for record in run.newest("confusion")]
    parts += [_classes(record) for record in run.newest("classes")]
    parts += [_reliability(record) for record in run.newest("reliability")]
    parts += [_samples(record) for record in run.newest("samples")]
    parts += [_seeds(record) for record in run.newest("seeds")]
    parts += [_pseudo_labels(record) for record in run.newest("pseudo_labels")]
    parts += [_lr_finder(record) for record in run.newest("lr_finder")]
    return "".join(f'<div class="card">{part}</div>' for part in parts if part)


def _confusion(record: Record) -> str:
    labels, counts = record.get("labels"), record.get("counts")
    if not isinstance(labels, list) or not isinstance(counts, list) or not labels:
        return ""
    matrix = np.array(counts, np.float64) if _is_square(counts, len(labels)) else None
    if matrix is None:
        return ""
    names, title = [str(label) for label in labels], f"Confusion{_of(record)}"
    accuracy = float(np.trace(matrix) / max(matrix.sum(), 1.0))
    note = f'<p class="note">Rows: gold labels; columns: predictions. {100 * accuracy:.1f} % on the diagonal.</p>'
    if len(names) > MAX_LABELS:
        return f"<h3>{escape(title)}</h3>{note}{_errors(names, matrix)}"
    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1.0)
    rows = "".join(_confusion_row(name, matrix[i], shares[i], i) for i, name in enumerate(names))
    heads = "".join(f'<th scope="col" class="n">{escape(name)}</th>' for name in names)
    return f"<h3>{escape(title)}</h3>{note}" + scrolling(
        f'<table class="confusion"><thead><tr><td></td>{heads}</tr></thead><tbody>{rows}</tbody></table>', title
    )


def _is_square(counts: list[Any], size: int) -> bool:
    rows = [row for row in counts if isinstance(row, list) and len(row) == size]
    return len(rows) == len(counts) == size and all(type(cell) in (int, float) for row in rows for cell in row)


def _confusion_row(name: str, counts: np.ndarray, shares: np.ndarray, diagonal: int) -> str:
    cells = "".join(
        f'<td class="n{" right" if index == diagonal else ""}" style="--w:{0.75 * share:.2f}" '
        f'title="{100 * share:.1f} %">{count:,.0f}</td>'
        for index, (count, share) in enumerate(zip(counts, shares, strict=True))
    )
    return f'<tr><th scope="row">{escape(name)}</th>{cells}</tr>'


def _errors(names: list[str], matrix: np.ndarray) -> str:
    wrong = matrix.copy()
    np.fill_diagonal(wrong, 0)
    order = np.argsort(-wrong, axis=None, kind="stable")[:MAX_ERRORS]
    cells = [divmod(int(each), len(names)) for each in order]
    rows = [[names[i], names[j], f"{wrong[i, j]:,.0f}"] for i, j in cells if wrong[i, j]]
    return table(["gold", "predicted", "count"], rows, numeric=(2,), caption="most frequent errors")


def _classes(record: Record) -> str:
    rows = [row for row in _rows(record) if "label" in row]
    if not rows:
        return ""
    columns = {name: title for name, title in _CLASS_COLUMNS.items() if any(name in row for row in rows)}
    cells = [
        [
            str(row["label"]),
            *(number(_float(row.get(name)), "count" if name == "support" else "share") for name in columns),
        ]
        for row in rows
    ]
    title, numeric = escape(f"Classes{_of(record)}"), range(1, len(columns) + 1)
    return f"<h3>{title}</h3>{table(['label', *columns.values()], cells, numeric=numeric)}"


_CLASS_COLUMNS = {"precision": "precision", "recall": "recall", "f1": "F1", "support": "examples"}
_CLASS_COLUMNS |= {"average_precision": "average precision", "threshold": "threshold"}


def _reliability(record: Record) -> str:
    """Returns the chart of how often predictions are right by their probability."""
    bins = [row for row in record.get("bins") or [] if isinstance(row, list) and len(row) == 3]
    values = np.array([[np.nan if _float(each) is None else each for each in row] for row in bins], np.float64)
    if len(values) < 2 or not np.isfinite(values).all():
        return ""
    confidence, accuracy, counts = values.T
    error = float((counts * np.abs(confidence - accuracy)).sum() / counts.sum())
    ends = np.array([0.0, 1.0])
    lines = [Line("share that is right", accuracy, {"probability": confidence}, dots=True)]
    lines += [Line("perfectly calibrated", ends, {"probability": ends}, style=1)]
    counted = f"{counts.sum():,.0f} predictions in {len(bins)} bins"
    note = f"Mean difference {100 * error:.1f} % (expected calibration error, {counted})."
    title = f"Reliability{_of(record)}"
    return chart_html(Chart("chart-reliability", title, lines, note=note, axes=("probability",)))


def _samples(record: Record) -> str:
    """Returns sources with their targets and what was generated."""
    names = ("source", "target", "output")
    cells = [[str(row.get(name, "")) for name in names] for row in _rows(record) if "output" in row]
    if not cells:
        return ""
    signatures = record.get("signatures")
    lines = [f"{name}: {text}" for name, text in signatures.items()] if isinstance(signatures, dict) else []
    note = "".join(f'<p class="note">{escape(line)}</p>' for line in lines)
    return f"<h3>{escape(f'Generated texts{_of(record)}')}</h3>{note}{table(['source', 'target', 'generated'], cells)}"


def _seeds(record: Record) -> str:
    """Returns the scores of every seed, their mean and sample standard deviation."""
    rows = [row for row in _rows(record) if isinstance(row.get("scores"), dict)]
    names = list(dict.fromkeys(name for row in rows for name in row["scores"]))
    if not names:
        return ""
    cells = [[str(row.get("seed", "")), *(_score(_float(row["scores"].get(name))) for name in names)] for row in rows]
    columns = [[value for row in rows if (value := _float(row["scores"].get(name))) is not None] for name in names]
    cells.append(["mean", *(_score(statistics.fmean(values)) if values else NO_VALUE for values in columns)])
    cells.append(["std", *(NO_VALUE if (each := sample_stdev(values)) is None else _score(each) for values in columns)])
    note = f'<p class="note">{len(rows)} seeds; std = sample standard deviation.</p>'
    return f"<h3>Seeds</h3>{note}{table(['seed', *names], cells, numeric=range(1, len(names) + 1))}"


def _pseudo_labels(record: Record) -> str:
    """Returns how many pseudo-labels were selected, and their agreement with a gold sample."""
    selected, total, threshold = (_float(record.get(name)) for name in ("kept", "of", "threshold"))
    if selected is None or total is None:
        return ""
    agreement = _float(record.get("agreement"))
    text = f"{selected:,.0f} of {total:,.0f} selected"
    text += "" if threshold is None else f" (confidence at least {threshold:g})"
    text += "." if agreement is None else f"; {100 * agreement:.1f} % of those in the gold sample agree with it."
    trust = "" if agreement is not None else ' <span class="warn">No gold sample: their accuracy is unknown.</span>'
    cells = [
        [str(row.get("label", "")), *(number(_float(row.get(name)), number_format) for name, number_format in _COLUMNS)]
        for row in _rows(record)
    ]
    listed = table(["label", "selected", "of", "agreement"], cells, numeric=(1, 2, 3)) if cells else ""
    return f"<h3>Pseudo-labels</h3><p>{escape(text)}{trust}</p>{listed}"


_COLUMNS = (("kept", "count"), ("of", "count"), ("agreement", "share"))


def _lr_finder(record: Record) -> str:
    rates, losses = (
        np.array([np.nan if _float(each) is None else each for each in record.get(name) or []], np.float64)
        for name in ("rates", "losses")
    )
    if not len(rates) or len(rates) != len(losses) or not (rates > 0).all():
        return ""
    suggestion = _float(record.get("suggestion"))
    x = np.log10(rates)
    marks = {} if suggestion is None else {"log10 of the learning rate": (math.log10(suggestion), f"{suggestion:.1e}")}
    line = Line("loss", losses, {"log10 of the learning rate": x}, smooth=True)
    note = "" if suggestion is None else f"Suggestion: {suggestion:.2e}."
    chart = Chart(
        "chart-lr_finder", "Learning-rate finder", [line], note=note, axes=("log10 of the learning rate",), marks=marks
    )
    return chart_html(chart)


def _rows(record: Record) -> list[dict[str, Any]]:
    rows = record.get("rows")
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _float(value: Any) -> float | None:
    return float(value) if type(value) in (int, float) and math.isfinite(value) else None


def _score(value: float | None) -> str:
    """Formats a score with four digits."""
    return NO_VALUE if value is None else f"{value:.4f}"


def _of(record: Record) -> str:
    """Returns the data or weights and the step that a record is about."""
    step = record.get("of_step")
    named = f" of {record['set']}" if isinstance(record.get("set"), str) else ""
    return f"{named}, step {step if isinstance(step, int) else record['step']:,}"
