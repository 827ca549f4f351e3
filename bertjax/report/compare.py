"""Page and table of `bertjax compare`: groups of comparable runs, and one probe that compares all of them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from bertjax.config.objectives import OBJECTIVES
from bertjax.config.objectives.base import ObjectiveConfig
from bertjax.report.chart import Chart, Line, chart_html
from bertjax.report.comparability import (
    AXES,
    ComparedRun,
    Group,
    eval_metric_names,
    group_by_seed,
    group_comparable,
    interpolate_metric,
    shared_end,
)
from bertjax.report.page import Section, page, table, write_page
from bertjax.report.run_header import describe_objective, preset_name
from bertjax.report.scales import NO_VALUE, number
from bertjax.report.sections import token_losses, unigram_baseline

NOT_COMPARABLE = (
    "Losses of different objectives, tokenizers or held-out examples are not comparable. Runs with comparable losses "
    "share a group letter and a chart; compare groups by the probe of frozen features."
)
NO_PROBE = (
    "No run has a probe yet, so this page cannot tell which objective is better. scripts/shoot_out.py trains and "
    "probes; scripts/linear_probe.py probes one export."
)
TASKS = "Finetuned runs are compared by their scores on the same held-out examples, within a group."
HEADS = ("run", "group", "objective", "model", "parameters", "steps", "tokens", "FLOPs", "minutes")


def compare(runs: Sequence[ComparedRun], out: Path | None) -> str:
    """Writes the page to `out`, unless it is None, and returns the table as plain text."""
    groups = group_comparable(runs)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_page(out, compare_page(runs, groups))
    heads, rows = overview(groups)
    return f"{plain_table(heads, rows)}\n\n{NOT_COMPARABLE}\n" + (f"{NO_PROBE}\n" if _needs_probe(runs) else "")


def compare_page(runs: Sequence[ComparedRun], groups: Sequence[Group]) -> str:
    """Returns the page that compares runs."""
    heads, rows = overview(groups, with_probes=False)
    sections = [
        Section("probe", "Probe of frozen features", _probe_section(runs)),
        Section("runs", "Runs", f'<div class="card runs">{table(heads, rows, numeric=range(4, len(heads) - 1))}</div>'),
        *map(_section, groups),
    ]
    head = f'<p>{len(runs)} runs, {len(groups)} groups.</p><p class="warn">{escape(NOT_COMPARABLE)}</p>'
    foot = (
        "<p>Tokens exclude padding. FLOPs are those of the model, forward and backward, padding included. Minutes are "
        "those of training steps on the machine of each run. Written by <code>bertjax "
        "compare</code>.</p>"
    )
    return page("Comparison of runs", head, sections, foot)


def overview(groups: Sequence[Group], with_probes: bool = True) -> tuple[list[str], list[list[str]]]:
    """Returns column headings and one table row per run, group by group; a page shows probes in their own section."""
    probes = _probe_names([each for group in groups for each in group.members]) if with_probes else []
    rows = [
        [*_row(each, group.letter), *_probe_cells(each, probes), _losses(each)]
        for group in groups
        for each in group.members
    ]
    return [*HEADS, *(f"probe: {name}, %" for name in probes), "held out"], rows


def _row(each: ComparedRun, letter: str) -> list[str]:
    run = each.run
    facts = run.newest("run")
    counts = facts[-1].get("parameters") if facts else None
    parameters = NO_VALUE
    if isinstance(counts, dict) and counts:
        parameters = number(float(sum(count for count in counts.values() if type(count) is int)), "big")
    minutes = each.minutes
    return [
        each.name,
        letter,
        _objective(each),
        preset_name(run),
        parameters,
        number(float(run.step), "count"),
        number(each.spent("tokens"), "big"),
        NO_VALUE if (flops := each.spent("FLOPs")) is None else f"{flops:.3g}",
        NO_VALUE if minutes is None else f"{minutes:.1f}",
    ]


def _objective(each: ComparedRun) -> str:
    name, words = each.run.setting("objective.name"), describe_objective(each.run)
    return f"{name} ({words})" if words else str(name)


def _losses(each: ComparedRun) -> str:
    """Returns the last held-out losses, token losses with their unigram baseline, and scores of tasks."""
    parts = []
    for name in token_losses(each.run):
        loss, baseline = each.run.metrics.get(f"eval/{name}_loss"), unigram_baseline(each.run, name)
        if loss is not None and loss.last is not None:
            unigram = "" if baseline is None or baseline.last is None else f" (unigram {baseline.last:.3f})"
            parts.append(f"{name} {loss.last:.3f}{unigram}")
    listed = {f"eval/{name}_loss" for name in token_losses(each.run)}
    for key, series in each.run.metrics.items():
        other = key.startswith("eval/") and key.endswith("_loss") and key.count("/") == 1 and "unigram" not in key
        if other and key not in listed and series.last is not None:
            parts.append(f"{key[5:-5]} {series.last:.3f}")
        if _is_task(each) and key.startswith("eval/") and not key.endswith("loss") and series.last is not None:
            parts.append(f"{key[5:]} {series.last:.4f}")
    return ", ".join(parts) or NO_VALUE


def _probe_names(runs: Sequence[ComparedRun]) -> list[str]:
    return list(dict.fromkeys(name for each in runs for name in each.scores))


def _probe_cells(each: ComparedRun, names: Sequence[str]) -> list[str]:
    return [f"{100 * each.scores[name]:.1f}" if name in each.scores else NO_VALUE for name in names]


def _is_task(each: ComparedRun) -> bool:
    return OBJECTIVES.get(str(each.run.setting("objective.name")), ObjectiveConfig).is_finetuning


def _probed(runs: Sequence[ComparedRun]) -> bool:
    return any(each.scores for each in runs)


def _needs_probe(runs: Sequence[ComparedRun]) -> bool:
    """Returns whether a probe is missing; finetuned runs are compared by their own scores."""
    return not _probed(runs) and not all(map(_is_task, runs))


def _section(group: Group) -> Section:
    short = f"Group {group.letter}"
    return Section(f"group-{group.letter}", f"{short}: {_objective(group.members[0])}", _group(group), short)


def _group(group: Group) -> str:
    """Returns held-out curves of a group over a choice of x axes, and the values at equal amounts."""
    axes = [axis for axis in AXES if all(axis in each.cost for each in group.members)]
    ends = {axis: shared_end(group.members, axis) for axis in axes}
    marks = {
        axis: (end, "end of the shortest run")
        for axis, end in ends.items()
        if end is not None and _is_short(group, axis, end)
    }
    names = eval_metric_names(group)
    charts = "".join(chart_html(_chart(group, name, axes, marks)) for name in names)
    missing = [axis for axis in AXES if axis not in axes]
    note = f'<p class="note">Unknown for some runs: {", ".join(missing)}.</p>' if missing else ""
    if not names:
        return f'<p class="none">No evaluation yet.</p>{note}'
    return f'<div class="grid-of">{charts}</div>{note}{_equal_amounts(group, names[0], ends)}'


def _is_short(group: Group, axis: str, end: float) -> bool:
    """Returns whether some runs are longer than the shortest."""
    return max(each.spent(axis) or 0.0 for each in group.members) > 1.001 * end


def _chart(group: Group, name: str, axes: Sequence[str], marks: Mapping[str, tuple[float, str]]) -> Chart:
    lines = []
    for style, each in enumerate(group.members):
        series = each.run.metrics.get(f"eval/{name}")
        if series is not None:
            xs = {axis: x for axis in axes if (x := each.at(axis, series.x)) is not None}
            lines.append(Line(each.name, series.y, xs, style, dots=True))
    number_format = "percent" if name.endswith("accuracy") else "plain"
    title = f"Held out: {name.replace('_', ' ')}"
    ident = "".join(letter if letter.isalnum() else "-" for letter in f"{group.letter}-{name}")
    return Chart(f"chart-{ident}", title, lines, number_format, log=name.endswith("loss"), axes=axes, marks=marks)


def _equal_amounts(group: Group, name: str, ends: Mapping[str, float | None]) -> str:
    """Returns a table of the metric at the largest amount that all runs of a group reached."""
    known = {axis: end for axis, end in ends.items() if end is not None}
    if len(group.members) < 2 or not known:
        return ""
    heads = [
        "run",
        *(f"at {number(end, 'big')} {axis}{'s' if axis == 'step' else ''}" for axis, end in known.items()),
    ]
    rows = [
        [each.name, *(number(interpolate_metric(each, name, axis, end)) for axis, end in known.items())]
        for each in group.members
    ]
    caption = f"{name.replace('_', ' ')} at equal amounts, interpolated linearly between evaluations"
    return f'<div class="card">{table(heads, rows, numeric=range(1, len(heads)), caption=caption)}</div>'


def _probe_section(runs: Sequence[ComparedRun]) -> str:
    """Returns a strip plot per probe: runs by their mean, one dot per seed."""
    if not _probed(runs):
        kind, text = ("warn", NO_PROBE) if _needs_probe(runs) else ("note", TASKS)
        return f'<p class="{kind}">{escape(text)}</p>'
    seeds = group_by_seed(runs)
    blocks = "".join(_probe_block(name, seeds) for name in _probe_names(runs))
    note = (
        "A linear probe of frozen features, the same for all runs. A dot is a seed, the vertical stroke the mean; a "
        "difference below the range of the seeds is a tie."
    )
    return f'<p class="note">{note}</p><div class="grid-of">{blocks}</div>'


def _probe_block(name: str, seeds: Mapping[str, Sequence[ComparedRun]]) -> str:
    scores = {
        run: values
        for run, members in seeds.items()
        if (values := [each.scores[name] for each in members if name in each.scores])
    }
    every = [value for values in scores.values() for value in values]
    low, high = min(every), max(every)
    margin = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
    low, high = low - margin, high + margin
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
    text = f"{100 * mean:.1f}{spread}"
    return (
        f'<li><span class="who">{escape(run)}</span><b>{text}</b>'
        f'<span class="lane" role="img" aria-label="{text}, {len(values)} seeds">{span}{dots}'
        f'<u style="left:{left(mean)}"></u></span></li>'
    )


def plain_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns an aligned table for a terminal, numbers right-aligned."""
    lines = [list(heads), *map(list, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    right = [column >= 4 and heads[column] != "held out" for column in range(len(heads))]

    def one(line: Sequence[str]) -> str:
        cells = zip(line, widths, right, strict=True)
        return "  ".join(text.rjust(width) if to else text.ljust(width) for text, width, to in cells).rstrip()

    return "\n".join([one(lines[0]), "  ".join("-" * width for width in widths), *map(one, lines[1:])])
