"""A chart of lines: SVG for the shapes, HTML for the words, so that text keeps its size on a narrow screen.

The SVG is stretched to whatever room there is (`preserveAspectRatio="none"`), its strokes are not
(`non-scaling-stroke`); dots are strokes of no length with round ends. Every view (an axis below, a scale on the left)
is drawn here; the script of the page only shows one of them and reads values off at a pointer.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

import numpy as np

from bertjax.report.downsample import kept_points, smoothed
from bertjax.report.run_record import Series
from bertjax.report.scales import SPAN, Scale, number, scale_of

STYLES = 8
"""Colours and dashes in report.css; a further line begins anew."""


class Line(NamedTuple):
    """Values and where they stand, by the names of the axes below; `dots` marks every value."""

    name: str
    y: np.ndarray
    xs: Mapping[str, np.ndarray]
    style: int = 0
    dots: bool = False
    smooth: bool = False


class Chart(NamedTuple):
    """`form` is how `scales.number` writes its values; `log` offers a logarithmic scale; `axes` what stands below.

    `marks` are places on the axes, with a word each, at which an upright line stands.
    """

    ident: str
    title: str
    lines: Sequence[Line]
    form: str = "plain"
    note: str = ""
    log: bool = False
    axes: Sequence[str] = ("update",)
    marks: Mapping[str, tuple[float, str]] = {}
    zero: bool = False  # the scale begins at 0


class View(NamedTuple):
    axis: str
    x: Scale
    y: Scale


def line_of(name: str, series: Series, style: int = 0, dots: bool = False, smooth: bool = False) -> Line:
    return Line(name, series.y, {"update": series.x}, style, dots, smooth)


def chart_html(chart: Chart) -> str:
    """The figure; a sentence where there is nothing to draw."""
    ident = escape(chart.ident, quote=True)
    head = f'<figure class="chart" id="{ident}"><figcaption><h3>{escape(chart.title)}</h3>'
    lines = [line for line in chart.lines if np.isfinite(line.y).any()]
    note = _note(chart)
    if not lines:
        return f'{head}{note}</figcaption><p class="none">Nothing measured yet.</p></figure>'
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
    lost = sum(int(np.isnan(line.y).sum()) for line in chart.lines)
    said = [chart.note] if chart.note else []
    said += [f"{lost:,} value{'s are' if lost > 1 else ' is'} no finite number: gaps."] if lost else []
    return f'<p class="note">{escape(" ".join(said))}</p>' if said else ""


class _Drawn(NamedTuple):
    """What is left of a line when it is thinned."""

    line: Line
    y: np.ndarray
    xs: dict[str, np.ndarray]
    smooth: np.ndarray | None


def _drawn(line: Line) -> _Drawn:
    kept = kept_points(line.y)
    smooth = smoothed(line.y) if line.smooth else None
    xs = {axis: np.asarray(x)[kept] for axis, x in line.xs.items()}
    return _Drawn(line, line.y[kept], xs, None if smooth is None else smooth[kept])


def _views(chart: Chart, lines: Sequence[Line]) -> list[View]:
    """Every axis below with the plain scale, then, where all values are above 0, with the logarithmic one."""
    values = np.concatenate([line.y[np.isfinite(line.y)] for line in lines])
    low, high = float(values.min()), float(values.max())
    scales = [scale_of(min(low, 0.0) if chart.zero else low, high)]
    if chart.log and low > 0 and high > 1.2 * low:
        scales.append(scale_of(low, high, log=True))
    views = []
    for scale, axis in itertools.product(scales, chart.axes):
        ends = np.concatenate([np.zeros(0), *(np.asarray(line.xs[axis]) for line in lines if axis in line.xs)])
        ends = ends[np.isfinite(ends)]
        first, last = (float(ends.min()), float(ends.max())) if len(ends) else (0.0, 1.0)
        first = 0.0 if 0 <= first < 0.2 * last else first
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
    return f'<div class="tools" role="group" aria-label="how to draw">{"".join(buttons)}</div>' if buttons else ""


def _legend(chart: Chart, lines: Sequence[Line]) -> str:
    entries = "".join(
        f'<li class="s{line.style % STYLES}"><svg class="key" viewBox="0 0 24 8" aria-hidden="true">'
        f'<path d="M1 4H23"/></svg>{escape(line.name)} <b>{number(_last(line.y), chart.form)}</b></li>'
        for line in lines
    )
    return f'<ul class="legend" data-at="">{entries}</ul>'


def _last(values: np.ndarray) -> float | None:
    finite = values[np.isfinite(values)]
    return float(finite[-1]) if len(finite) else None


def _view_html(chart: Chart, view: View, drawn: Sequence[_Drawn], shown: bool) -> str:
    shapes = [f'<path class="grid" d="{_grid(view, chart.form)}"/>']
    mark = chart.marks.get(view.axis)
    if mark is not None:
        place = view.x.place(np.array(mark[0]))
        shapes.append(f'<path class="mark" d="M{place:.0f} 0V{SPAN:.0f}"/>')
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
    raw = path(view.x.place(each.xs[view.axis]), view.y.place(each.y))
    if each.smooth is not None:
        smooth = path(view.x.place(each.xs[view.axis]), view.y.place(each.smooth))
        return [f'<path class="line raw {style}" d="{raw}"/>', f'<path class="line smooth {style}" d="{smooth}"/>']
    shapes = [f'<path class="line {style}" d="{raw}"/>']
    if each.line.dots and len(each.y) <= 60:
        dots = path(view.x.place(each.xs[view.axis]), view.y.place(each.y), dots=True)
        shapes.append(f'<path class="dots {style}" d="{dots}"/>')
    return shapes


def path(x: np.ndarray, y: np.ndarray, dots: bool = False) -> str:
    """An SVG path through the places, y upwards; broken at what is no place. A point by itself has length 0."""
    parts, pen = [], False
    for across, up in zip(x.tolist(), y.tolist(), strict=True):
        if not (np.isfinite(across) and np.isfinite(up)):
            pen = False
            continue
        point = f"{across:.0f} {SPAN - up:.0f}"
        parts.append(f"M{point}h0" if dots or not pen else f"L{point}")
        pen = True
    return "".join(parts)


def _grid(view: View, form: str) -> str:
    places = [SPAN - float(view.y.place(np.array(tick))) for tick in view.y.ticks(form)]
    return "".join(f"M0 {place:.0f}H{SPAN:.0f}" for place in places)


def _tick_html(chart: Chart, view: View) -> str:
    spans = []
    for tick in view.y.ticks(chart.form):
        top = 100.0 - float(view.y.place(np.array(tick))) / SPAN * 100.0
        spans.append(f'<span class="tick up" style="top:{top:.1f}%">{number(tick, chart.form)}</span>')
    for index, tick in enumerate(view.x.ticks()):
        left = float(view.x.place(np.array(tick))) / SPAN * 100.0
        minor = " minor" if index % 2 else ""
        spans.append(f'<span class="tick across{minor}" style="left:{left:.1f}%">{number(tick, "big")}</span>')
    mark = chart.marks.get(view.axis)
    if mark is not None:
        left = float(view.x.place(np.array(mark[0]))) / SPAN * 100.0
        side = "before" if left > 60 else "after"
        spans.append(f'<span class="word {side}" style="left:{left:.1f}%">{escape(mark[1])}</span>')
    return f'<div class="ticks" aria-hidden="true">{"".join(spans)}<span class="axis">{escape(view.axis)}</span></div>'


def _points(chart: Chart, views: Sequence[View], drawn: Sequence[_Drawn]) -> str:
    """What a pointer reads off: for every axis its ends, for every line its places and values."""
    ends = {view.axis: [view.x.low, view.x.high] for view in views}
    lines = [{"x": {axis: _numbers(x) for axis, x in each.xs.items()}, "y": _numbers(each.y)} for each in drawn]
    return data_block({"form": chart.form, "ends": ends, "lines": lines})


def _numbers(values: np.ndarray) -> list[float | int | None]:
    rounded = (float(f"{value:.5g}") if np.isfinite(value) else None for value in np.asarray(values, float).tolist())
    return [int(value) if value is not None and value == int(value) else value for value in rounded]


def data_block(value: object) -> str:
    """JSON for the script of the page; no text in it can end the element."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    safe = text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
    safe = safe.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    return f'<script type="application/json">{safe}</script>'
