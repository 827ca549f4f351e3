"""Line charts: SVG for the shapes, HTML for the text, so that text keeps its size on a narrow screen.

The SVG is stretched to the available width (`preserveAspectRatio="none"`) but its strokes are not
(`non-scaling-stroke`); dots are zero-length strokes with round caps. Every view (an x axis and a y scale) is drawn
here, downsampled so that extremes and gaps remain; the script of the page shows one of them and displays values at the
pointer.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

import numpy as np

from bertjax.report.page import breakable, with_code
from bertjax.report.run_record import Series
from bertjax.report.scales import SPAN, Scale, make_scale, number

STYLES = 8
"""Number of line styles in report.css; further lines reuse them."""


class Line(NamedTuple):
    """Values of one line and their x coordinates for every x axis; `dots` marks every value."""

    name: str
    y: np.ndarray
    xs: Mapping[str, np.ndarray]
    style: int = 0
    dots: bool = False
    smooth: bool = False


class Chart(NamedTuple):
    """A chart. `number_format` is that of `scales.number`; `log` offers a logarithmic y scale; `axes` names the x axes.

    `marks` maps an x axis to (x, label) of a vertical line.
    """

    ident: str
    title: str
    lines: Sequence[Line]
    number_format: str = "plain"
    note: str = ""
    log: bool = False
    axes: Sequence[str] = ("step",)
    marks: Mapping[str, tuple[float, str]] = {}
    zero: bool = False  # the y scale starts at 0


class View(NamedTuple):
    """One x axis and y scale of a chart."""

    axis: str
    x: Scale
    y: Scale


def make_line(name: str, series: Series, style: int = 0, dots: bool = False, smooth: bool = False) -> Line:
    """Returns the line of a metric over steps.

    Args:
        name: Text of the legend.
        series: Values by step.
        style: Color and dash, modulo `STYLES`.
        dots: Mark every value.
        smooth: Draw a running mean over the raw line.
    """
    return Line(name, series.y, {"step": series.x}, style, dots, smooth)


def chart_html(chart: Chart) -> str:
    """Returns the markup of a chart; a sentence where there is nothing to draw."""
    ident = escape(chart.ident, quote=True)
    head = f'<figure class="chart" id="{ident}"><figcaption><h3>{escape(chart.title)}</h3>'
    lines = [line for line in chart.lines if np.isfinite(line.y).any()]
    note = _note(chart)
    if not lines:
        return f'{head}{note}</figcaption><p class="none">No values yet.</p></figure>'
    views = _views(chart, lines)
    drawn = [_drawn(line) for line in lines]
    plots = "".join(_view_html(chart, view, drawn, shown=index == 0) for index, view in enumerate(views))
    label = escape(f"{chart.title}: arrow keys read values", quote=True)
    return (
        f"{head}{_tools(chart, views, drawn)}{note}</figcaption>{_legend(chart, lines)}"
        f'<div class="plot" role="group" tabindex="0" aria-label="{label}">'
        f'{plots}<i class="cursor" hidden></i></div>{_points(chart, views, drawn)}</figure>'
    )


def _note(chart: Chart) -> str:
    gaps = sum(int(np.isnan(line.y).sum()) for line in chart.lines)
    notes = [chart.note] if chart.note else []
    notes += [f"Gaps: {gaps:,} non-finite value{'s' if gaps > 1 else ''}."] if gaps else []
    return f'<p class="note">{with_code(" ".join(notes))}</p>' if notes else ""


class _Drawn(NamedTuple):
    """A downsampled line."""

    line: Line
    y: np.ndarray
    xs: dict[str, np.ndarray]
    smooth: np.ndarray | None


def _drawn(line: Line) -> _Drawn:
    indices = downsample_indices(line.y)
    smooth = smooth_series(line.y) if line.smooth else None
    xs = {axis: np.asarray(x)[indices] for axis, x in line.xs.items()}
    return _Drawn(line, line.y[indices], xs, None if smooth is None else smooth[indices])


def _views(chart: Chart, lines: Sequence[Line]) -> list[View]:
    """Returns every x axis with the linear scale, then with the logarithmic one if all values are positive."""
    values = np.concatenate([line.y[np.isfinite(line.y)] for line in lines])
    low, high = float(values.min()), float(values.max())
    scales = [make_scale(min(low, 0.0) if chart.zero else low, high)]
    if chart.log and low > 0 and high > 1.2 * low:
        scales.append(make_scale(low, high, log=True))
    views = []
    for scale, axis in itertools.product(scales, chart.axes):
        ends = np.concatenate([np.zeros(0), *(np.asarray(line.xs[axis]) for line in lines if axis in line.xs)])
        ends = ends[np.isfinite(ends)]
        first, last = (float(ends.min()), float(ends.max())) if len(ends) else (0.0, 1.0)
        first = min(first, 0.0)  # steps, tokens and FLOPs count from 0: charts below each other line up
        views.append(View(axis, Scale(first, last if last > first else first + 1.0), scale))
    return views


def _tools(chart: Chart, views: Sequence[View], drawn: Sequence[_Drawn]) -> str:
    buttons = []
    if len(chart.axes) > 1:
        pressed = itertools.chain(["true"], itertools.repeat("false"))
        for axis, state in zip(chart.axes, pressed, strict=False):
            named = f'data-axis="{escape(axis, quote=True)}" aria-pressed="{state}"'
            buttons.append(f'<button type="button" {named}>{escape(axis)}</button>')
    if any(view.y.log for view in views):
        buttons.append('<button type="button" data-tool="log" aria-pressed="false">log</button>')
    if any(each.smooth is not None for each in drawn):
        buttons.append('<button type="button" data-tool="raw" aria-pressed="false">raw</button>')
    return f'<div class="tools" role="group" aria-label="chart options">{"".join(buttons)}</div>' if buttons else ""


def _legend(chart: Chart, lines: Sequence[Line]) -> str:
    entries = "".join(
        f'<li class="s{line.style % STYLES}"><svg class="key" viewBox="0 0 24 8" aria-hidden="true">'
        f'<path d="M1 4H23"/></svg><span>{breakable(line.name)} '
        f"<b>{number(_last(line.y), chart.number_format)}</b></span></li>"
        for line in lines
    )
    return f'<ul class="legend" data-at="">{entries}</ul>'


def _last(values: np.ndarray) -> float | None:
    finite = values[np.isfinite(values)]
    return float(finite[-1]) if len(finite) else None


def _view_html(chart: Chart, view: View, drawn: Sequence[_Drawn], shown: bool) -> str:
    shapes = [f'<path class="grid" d="{_grid(view, chart.number_format)}"/>']
    mark = chart.marks.get(view.axis)
    if mark is not None:
        x = view.x.project(np.array(mark[0]))
        shapes.append(f'<path class="mark" d="M{x:.0f} 0V{SPAN:.0f}"/>')
    for each in drawn:
        shapes += _shapes(each, view)
    described = escape(f"{chart.title}, by {view.axis}{', logarithmic' if view.y.log else ''}", quote=True)
    hidden = "" if shown else " hidden"
    return (
        f'<div class="view" data-axis="{escape(view.axis, quote=True)}" data-log="{int(view.y.log)}"{hidden}>'
        f'<svg viewBox="0 0 {SPAN:.0f} {SPAN:.0f}" preserveAspectRatio="none" role="img" aria-label="{described}">'
        f"{''.join(shapes)}</svg>{_tick_html(chart, view)}</div>"
    )


def _shapes(each: _Drawn, view: View) -> list[str]:
    if view.axis not in each.xs:
        return []
    style = f"s{each.line.style % STYLES}"
    raw = path(view.x.project(each.xs[view.axis]), view.y.project(each.y))
    if each.smooth is not None:
        smooth = path(view.x.project(each.xs[view.axis]), view.y.project(each.smooth))
        return [f'<path class="line raw {style}" d="{raw}"/>', f'<path class="line smooth {style}" d="{smooth}"/>']
    shapes = [f'<path class="line {style}" d="{raw}"/>']
    if each.line.dots and len(each.y) <= 60:
        dots = path(view.x.project(each.xs[view.axis]), view.y.project(each.y), dots=True)
        shapes.append(f'<path class="dots {style}" d="{dots}"/>')
    return shapes


def path(x: np.ndarray, y: np.ndarray, dots: bool = False) -> str:
    """Returns an SVG path, interrupted at non-finite points; an isolated point has length 0.

    Args:
        x: float64 [n], in drawing units to the right.
        y: float64 [n], in drawing units upwards.
        dots: Draw every point by itself.
    """
    parts, pen = [], False
    for across, up in zip(x.tolist(), y.tolist(), strict=True):
        if not (np.isfinite(across) and np.isfinite(up)):
            pen = False
            continue
        point = f"{across:.0f} {SPAN - up:.0f}"
        parts.append(f"M{point}h0" if dots or not pen else f"L{point}")
        pen = True
    return "".join(parts)


def _grid(view: View, number_format: str) -> str:
    heights = [SPAN - float(view.y.project(np.array(tick))) for tick in view.y.ticks(number_format)]
    return "".join(f"M0 {y:.0f}H{SPAN:.0f}" for y in heights)


def _tick_html(chart: Chart, view: View) -> str:
    spans = []
    ticks = view.y.ticks(chart.number_format)
    for tick, text in zip(ticks, view.y.tick_labels(ticks, chart.number_format), strict=True):
        top = 100.0 - float(view.y.project(np.array(tick))) / SPAN * 100.0
        spans.append(f'<span class="tick up" style="top:{top:.1f}%">{text}</span>')
    ticks = view.x.ticks()
    for index, (tick, text) in enumerate(zip(ticks, view.x.tick_labels(ticks, "big"), strict=True)):
        left = float(view.x.project(np.array(tick))) / SPAN * 100.0
        minor = " minor" if index % 2 else ""
        spans.append(f'<span class="tick across{minor}" style="left:{left:.1f}%">{text}</span>')
    mark = chart.marks.get(view.axis)
    if mark is not None:
        left = float(view.x.project(np.array(mark[0]))) / SPAN * 100.0
        side = "before" if left > 60 else "after"
        spans.append(f'<span class="word {side}" style="left:{left:.1f}%">{escape(mark[1])}</span>')
    return f'<div class="ticks" aria-hidden="true">{"".join(spans)}<span class="axis">{escape(view.axis)}</span></div>'


def _points(chart: Chart, views: Sequence[View], drawn: Sequence[_Drawn]) -> str:
    """Returns the data that the pointer displays: the ends of every x axis, coordinates and values of every line."""
    ends = {view.axis: [view.x.low, view.x.high] for view in views}
    lines = [{"x": {axis: _numbers(x) for axis, x in each.xs.items()}, "y": _numbers(each.y)} for each in drawn]
    return data_block({"form": chart.number_format, "ends": ends, "lines": lines})


def _numbers(values: np.ndarray) -> list[float | int | None]:
    rounded = (float(f"{value:.5g}") if np.isfinite(value) else None for value in np.asarray(values, float).tolist())
    return [int(value) if value is not None and value == int(value) else value for value in rounded]


def data_block(value: object) -> str:
    """Returns JSON for the script of the page, escaped so that no text can end the element."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    safe = text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
    safe = safe.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    return f'<script type="application/json">{safe}</script>'


BUCKETS = 150
"""Charts are at most about 600 pixels wide: two points per four pixels."""
MIN_SMOOTHED = 20
_SHARE = 0.03  # share of the run that a smoothed value averages


def downsample_indices(values: np.ndarray, buckets: int = BUCKETS) -> np.ndarray:
    """Returns the indices to draw of float64 [n], ascending int64 [at most 2 * buckets + 2].

    These are the minimum and maximum of every bucket, and both ends; a bucket without a finite value stays a gap.
    """
    count = len(values)
    if count <= 2 * buckets + 2:
        return np.arange(count)
    edges = np.linspace(0, count, buckets + 1).astype(int)
    gaps = np.isnan(values)
    low, high = np.where(gaps, np.inf, values), np.where(gaps, -np.inf, values)
    indices = {0, count - 1}
    for start, stop in itertools.pairwise(edges.tolist()):
        indices |= {start + int(low[start:stop].argmin()), start + int(high[start:stop].argmax())}
    return np.array(sorted(indices))


def smooth_series(values: np.ndarray) -> np.ndarray | None:
    """Returns the centered running mean of float64 [n]; None for a series too short to need it.

    A gap (NaN) stays a gap and does not enter the mean of its neighbors.
    """
    count = len(values)
    if count < MIN_SMOOTHED:
        return None
    half = max(1, round(count * _SHARE / 2))
    finite = np.isfinite(values)
    sums = np.concatenate([[0.0], np.cumsum(np.where(finite, values, 0.0))])
    counts = np.concatenate([[0], np.cumsum(finite)])
    index = np.arange(count)
    reach = np.minimum(np.minimum(index, count - 1 - index), half)  # the window shrinks at the ends and stays centered
    first, last = index - reach, index + reach + 1
    number = np.maximum(counts[last] - counts[first], 1)
    return np.where(finite, (sums[last] - sums[first]) / number, np.nan)
