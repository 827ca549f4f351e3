"""The page and the table of `bertjax compare`: every group of comparable runs by itself, one yardstick for all."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from bertjax.report.chart import Chart, Line, chart_html
from bertjax.report.comparability import (
    AXES,
    Contender,
    Group,
    by_seed,
    common_end,
    grouped,
    held_out_names,
    value_at,
)
from bertjax.report.page import Section, page, table, write_page
from bertjax.report.run_header import objective_words, preset_of
from bertjax.report.scales import NOTHING, number
from bertjax.report.sections import baseline_of, word_losses

NOT_COMPARABLE = (
    "Losses of different objectives, tokenizers or held-out rows are not comparable: a smaller number of one says "
    "nothing about another. Runs whose losses mean the same share a letter and a chart. Across letters, the "
    "frozen-feature probe is the yardstick."
)
NO_PROBE = (
    "No run has a probe yet: nothing on this page tells which objective is better. scripts/shoot_out.py trains and "
    "probes; scripts/linear_probe.py probes one export."
)
TASKS = "Runs of tasks are compared by their scores on the same held-out examples: those of one letter."
HEADS = ("run", "group", "objective", "model", "parameters", "updates", "tokens", "FLOPs", "minutes")


def compare(contenders: Sequence[Contender], out: Path | None) -> str:
    """Writes the page, if it is asked for, and returns the table as plain text."""
    groups = grouped(contenders)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_page(out, compare_page(contenders, groups))
    heads, rows = overview(groups)
    return f"{plain_table(heads, rows)}\n\n{NOT_COMPARABLE}\n" + (f"{NO_PROBE}\n" if _needs_probe(contenders) else "")


def compare_page(contenders: Sequence[Contender], groups: Sequence[Group]) -> str:
    heads, rows = overview(groups)
    sections = [
        Section("yardstick", "The yardstick", _yardstick(contenders)),
        Section(
            "runs", "Runs", f'<div class="card one-line">{table(heads, rows, numeric=range(4, len(heads) - 1))}</div>'
        ),
        *map(_section, groups),
    ]
    head = f'<p>{len(contenders)} runs, {len(groups)} groups.</p><p class="warn">{escape(NOT_COMPARABLE)}</p>'
    foot = (
        "<p>Tokens are real ones, padding left out. FLOPs are those of the model, forward and backward, rows taken to "
        "be full. Minutes are those of training steps, on whatever machine it was. Written by <code>bertjax "
        "compare</code>.</p>"
    )
    return page("Runs side by side", head, sections, foot)


def overview(groups: Sequence[Group]) -> tuple[list[str], list[list[str]]]:
    """Column heads and a row a run, group after group."""
    probes = _probe_names([each for group in groups for each in group.members])
    rows = [
        [*_row(each, group.letter), *_probe_cells(each, probes), _losses(each)]
        for group in groups
        for each in group.members
    ]
    return [*HEADS, *(f"probe: {name}, %" for name in probes), "held out"], rows


def _row(each: Contender, letter: str) -> list[str]:
    run = each.run
    told = run.newest("run")
    counts = told[-1].get("parameters") if told else None
    parameters = NOTHING
    if isinstance(counts, dict) and counts:
        parameters = number(float(sum(count for count in counts.values() if type(count) is int)), "big")
    minutes = each.minutes
    return [
        each.name,
        letter,
        _objective(each),
        preset_of(run),
        parameters,
        number(float(run.step), "count"),
        number(each.spent("tokens"), "big"),
        NOTHING if (flops := each.spent("FLOPs")) is None else f"{flops:.3g}",
        NOTHING if minutes is None else f"{minutes:.1f}",
    ]


def _objective(each: Contender) -> str:
    name, words = each.run.setting("objective.name"), objective_words(each.run)
    return f"{name} ({words})" if words else str(name)


def _losses(each: Contender) -> str:
    """The last held-out losses, each by its name, those of words beside guessing by frequency; scores of tasks."""
    parts = []
    for name in word_losses(each.run):
        loss, baseline = each.run.figures.get(f"eval/{name}_loss"), baseline_of(each.run, name)
        if loss is not None and loss.last is not None:
            beside = "" if baseline is None or baseline.last is None else f" (by frequency {baseline.last:.3f})"
            parts.append(f"{name} {loss.last:.3f}{beside}")
    words = {f"eval/{name}_loss" for name in word_losses(each.run)}
    for key, series in each.run.figures.items():
        other = key.startswith("eval/") and key.endswith("_loss") and key.count("/") == 1 and "unigram" not in key
        if other and key not in words and series.last is not None:
            parts.append(f"{key[5:-5]} {series.last:.3f}")
        if _is_task(each) and key.startswith("eval/") and not key.endswith("loss") and series.last is not None:
            parts.append(f"{key[5:]} {series.last:.4f}")
    return ", ".join(parts) or NOTHING


def _probe_names(contenders: Sequence[Contender]) -> list[str]:
    return list(dict.fromkeys(name for each in contenders for name in each.scores))


def _probe_cells(each: Contender, names: Sequence[str]) -> list[str]:
    return [f"{100 * each.scores[name]:.1f}" if name in each.scores else NOTHING for name in names]


def _is_task(each: Contender) -> bool:
    return bool(each.run.setting("objective.name") == "task")


def _probed(contenders: Sequence[Contender]) -> bool:
    return any(each.scores for each in contenders)


def _needs_probe(contenders: Sequence[Contender]) -> bool:
    """Tasks are compared by their own scores."""
    return not _probed(contenders) and not all(map(_is_task, contenders))


def _section(group: Group) -> Section:
    short = f"Group {group.letter}"
    return Section(f"group-{group.letter}", f"{short}: {_objective(group.members[0])}", _group(group), short)


def _group(group: Group) -> str:
    """Held-out curves of one group, with a switch of what lies below, and the values at equal amounts."""
    axes = [axis for axis in AXES if all(axis in each.cost for each in group.members)]
    ends = {axis: common_end(group.members, axis) for axis in axes}
    marks = {
        axis: (end, "all are here") for axis, end in ends.items() if end is not None and _is_short(group, axis, end)
    }
    names = held_out_names(group)
    charts = "".join(chart_html(_chart(group, name, axes, marks)) for name in names)
    missing = [axis for axis in AXES if axis not in axes]
    note = f'<p class="note">Not known of every run: {", ".join(missing)}.</p>' if missing else ""
    if not names:
        return f'<p class="none">Nothing was evaluated yet.</p>{note}'
    return f'<div class="grid-of">{charts}</div>{note}{_equal_amounts(group, names[0], ends)}'


def _is_short(group: Group, axis: str, end: float) -> bool:
    """Whether some runs go on from where the first one ends."""
    return max(each.spent(axis) or 0.0 for each in group.members) > 1.001 * end


def _chart(group: Group, name: str, axes: Sequence[str], marks: Mapping[str, tuple[float, str]]) -> Chart:
    lines = []
    for style, each in enumerate(group.members):
        series = each.run.figures.get(f"eval/{name}")
        if series is not None:
            places = {axis: found for axis in axes if (found := each.at(axis, series.x)) is not None}
            lines.append(Line(each.name, series.y, places, style, dots=True))
    form = "percent" if name.endswith("accuracy") else "plain"
    title = f"Held out: {name.replace('_', ' ')}"
    ident = "".join(letter if letter.isalnum() else "-" for letter in f"{group.letter}-{name}")
    return Chart(f"chart-{ident}", title, lines, form, log=name.endswith("loss"), axes=axes, marks=marks)


def _equal_amounts(group: Group, name: str, ends: Mapping[str, float | None]) -> str:
    """What every run of a group had reached by the amount that all of them have spent."""
    known = {axis: end for axis, end in ends.items() if end is not None}
    if len(group.members) < 2 or not known:
        return ""
    heads = [
        "run",
        *(f"at {number(end, 'big')} {axis}{'s' if axis == 'update' else ''}" for axis, end in known.items()),
    ]
    rows = [
        [each.name, *(number(value_at(each, name, axis, end)) for axis, end in known.items())] for each in group.members
    ]
    caption = f"{name.replace('_', ' ')} at equal amounts, between evaluations on a straight line"
    return f'<div class="card">{table(heads, rows, numeric=range(1, len(heads)), caption=caption)}</div>'


def _yardstick(contenders: Sequence[Contender]) -> str:
    """For every probe the runs by their mean, a dot a seed."""
    if not _probed(contenders):
        found = ("warn", NO_PROBE) if _needs_probe(contenders) else ("note", TASKS)
        return f'<p class="{found[0]}">{escape(found[1])}</p>'
    seeds = by_seed(contenders)
    blocks = "".join(_probe_block(name, seeds) for name in _probe_names(contenders))
    note = (
        "A linear probe of frozen features, the same for all. A dot is a seed, the upright stroke the mean; a "
        "difference smaller than the spread of the seeds is a tie."
    )
    return f'<p class="note">{note}</p><div class="grid-of">{blocks}</div>'


def _probe_block(name: str, seeds: Mapping[str, Sequence[Contender]]) -> str:
    scores = {
        run: values
        for run, members in seeds.items()
        if (values := [each.scores[name] for each in members if name in each.scores])
    }
    every = [value for values in scores.values() for value in values]
    low, high = min(every), max(every)
    room = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
    low, high = low - room, high + room
    rows = "".join(
        _probe_row(run, values, low, high)
        for run, values in sorted(scores.items(), key=lambda item: -statistics.fmean(item[1]))
    )
    return f'<div class="card"><h3>Probe: {escape(name)}</h3><ul class="strip">{rows}</ul></div>'


def _probe_row(run: str, values: Sequence[float], low: float, high: float) -> str:
    def left(value: float) -> str:
        return f"{100 * (value - low) / (high - low):.1f}%"

    mean = statistics.fmean(values)
    spread = f" ± {50 * (max(values) - min(values)):.1f}" if len(values) > 1 else ""
    dots = "".join(f'<i style="left:{left(value)}"></i>' for value in values)
    span = f'<s style="left:{left(min(values))};right:calc(100% - {left(max(values))})"></s>'
    said = f"{100 * mean:.1f}{spread}"
    return (
        f'<li><span class="who">{escape(run)}</span><b>{said}</b>'
        f'<span class="lane" role="img" aria-label="{said}, {len(values)} seeds">{span}{dots}'
        f'<u style="left:{left(mean)}"></u></span></li>'
    )


def plain_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns in step, for a terminal; numbers to the right."""
    lines = [list(heads), *map(list, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    right = [column >= 4 and heads[column] != "held out" for column in range(len(heads))]

    def one(line: Sequence[str]) -> str:
        cells = zip(line, widths, right, strict=True)
        return "  ".join(text.rjust(width) if to else text.ljust(width) for text, width, to in cells).rstrip()

    return "\n".join([one(lines[0]), "  ".join("-" * width for width in widths), *map(one, lines[1:])])
