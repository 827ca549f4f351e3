"""Page and table of `bertjax compare`: groups of comparable runs, and one probe that compares all of them."""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from bertjax.config.objectives import OBJECTIVES
from bertjax.io.output import align
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
from bertjax.report.render import describe_objective, preset_name
from bertjax.report.run_record import RunRecord
from bertjax.report.scales import NO_VALUE, number
from bertjax.report.sections import metric_title, share_format, token_losses, unigram_baseline

NOT_COMPARABLE = (
    "Losses of different objectives, tokenizers or held-out examples are not comparable. Runs with comparable losses "
    "share a group letter and a chart; compare groups by the probe of frozen features."
)
NO_PROBE = (
    "No run has a probe yet, so this page cannot tell which objective is better. scripts/shoot_out.py trains and "
    "probes; `bertjax probe` probes exports side by side."
)
TASKS = "Finetuned runs are compared by their scores on the same held-out examples, within a group."
NO_BREAK = "\N{NO-BREAK SPACE}"
HEADS = ("run", "group", "objective", "model", "parameters", "steps", "tokens", "FLOPs", "minutes")


def compare(runs: Sequence[ComparedRun], out: Path | None, columns: int | None = None) -> str:
    """Writes the page to `out`, unless it is None, and returns the table as plain text.

    Args:
        runs: Runs to compare.
        out: Page to write.
        columns: Width of the terminal; the results of wider tables follow in a table of their own.
    """
    groups = group_comparable(runs)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_page(out, compare_page(runs, groups))
    heads, rows = overview(groups)
    legend = [f"{group.letter}: {_objective(group.members[0])}" for group in groups]
    notes = [textwrap.fill(each, columns or 10_000) for each in [*legend, *_notes(runs, groups)]]
    return "\n".join([_plain_tables(heads, rows, columns), "", *notes[: len(groups)], "", *notes[len(groups) :]])


def compare_page(runs: Sequence[ComparedRun], groups: Sequence[Group]) -> str:
    """Returns the page that compares runs."""
    heads, rows = overview(groups, with_probes=False)
    rows = [[*row[:-1], row[-1].replace(" ", NO_BREAK).replace(f",{NO_BREAK}", ", ")] for row in rows]
    sections = [
        Section("probe", "Probe of frozen features", _probe_section(runs)),
        Section("runs", "Runs", f'<div class="card runs">{table(heads, rows, numeric=range(4, len(heads) - 1))}</div>'),
        *map(_section, groups),
    ]
    notes = "".join(f'<p class="callout">{escape(note)}</p>' for note in _notes(runs, groups))
    head = f"<p>{_counted(len(runs), 'run')}, {_counted(len(groups), 'group')}.</p>{notes}"
    foot = (
        "<p>Tokens exclude padding. FLOPs are those of the model, forward and backward, padding included. Minutes are "
        "those of training steps on the machine of each run. Written by <code>bertjax "
        "compare</code>.</p>"
    )
    return page("Comparison of runs", head, sections, foot)


def _notes(runs: Sequence[ComparedRun], groups: Sequence[Group]) -> list[str]:
    """Returns what to keep in mind about runs whose losses cannot be compared."""
    several = len(groups) > 1
    notes = [NOT_COMPARABLE] if several else []
    if all(map(_is_task, runs)):
        return [*notes, TASKS]
    return [*notes, NO_PROBE] if several and not _probe_names(runs) else notes


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")


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
    counts = run.facts.get("parameters")
    parameters = NO_VALUE
    if isinstance(counts, dict) and counts:
        parameters = number(float(sum(count for count in counts.values() if type(count) is int)), "big")
    minutes = each.minutes
    return [
        each.name,
        letter,
        str(run.setting("objective.name")),
        preset_name(run),
        parameters,
        _steps(run),
        number(each.spent("tokens"), "big"),
        NO_VALUE if (flops := each.spent("FLOPs")) is None else f"{flops:.3g}",
        NO_VALUE if minutes is None else f"{minutes:.1f}",
    ]


def _steps(run: RunRecord) -> str:
    """Returns the steps of a run; of how many, if it has not reached its end."""
    unfinished = run.num_steps is not None and run.step < run.num_steps
    return f"{run.step:,}" + (f" of {run.num_steps:,}" if unfinished else "")


def _objective(each: ComparedRun) -> str:
    """Returns the objective with its description in words."""
    name, words = each.run.setting("objective.name"), describe_objective(each.run)
    return f"{name}, {words}" if words else str(name)


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
    name = str(each.run.setting("objective.name"))
    return name in OBJECTIVES and OBJECTIVES[name].is_finetuning


def _section(group: Group) -> Section:
    short = f"Group {group.letter}"
    return Section(f"group-{group.letter}", f"{short}: {_objective(group.members[0])}", _group(group), short)


def _group(group: Group) -> str:
    """Returns held-out curves of a group over a choice of x axes, and the values at equal amounts."""
    names = eval_metric_names(group)
    evaluated = [each for each in group.members if any(f"eval/{name}" in each.run.metrics for name in names)]
    axes = [axis for axis in AXES if all(axis in each.cost for each in evaluated)]
    ends = {axis: shared_end(evaluated, axis) for axis in axes}
    marks = {
        axis: (end, "end of the shortest run")
        for axis, end in ends.items()
        if end is not None and any((each.spent(axis) or 0.0) > 1.001 * end for each in evaluated)
    }
    charts = "".join(chart_html(_chart(group, name, axes, marks)) for name in names)
    missing = [axis for axis in AXES if axis not in axes]
    notes = [f"Unknown for some runs: {', '.join(missing)}."] if missing else []
    silent = [each.name for each in group.members if all(each is not other for other in evaluated)]
    notes += [f"Without an evaluation: {', '.join(silent)}."] if silent else []
    note = "".join(f'<p class="note">{escape(each)}</p>' for each in notes)
    intro = '<p class="note">Metrics of the held-out examples at every evaluation.</p>' if names else ""
    return (
        f'{intro}<div class="grid-of">{charts}</div>{note}{_equal_amounts(evaluated, names[0], ends) if names else ""}'
    )


def _chart(group: Group, name: str, axes: Sequence[str], marks: Mapping[str, tuple[float, str]]) -> Chart:
    evaluated = [each for each in group.members if f"eval/{name}" in each.run.metrics]
    names = _short_names([each.name for each in group.members])
    lines = []
    for style, each in enumerate(group.members):
        series = each.run.metrics.get(f"eval/{name}")
        if series is not None:
            xs = {axis: x for axis in axes if (x := each.at(axis, series.x)) is not None}
            lines.append(Line(names[each.name], series.y, xs, style, dots=True))
    number_format = share_format(name, [each.run.metrics[f"eval/{name}"] for each in evaluated])
    ident = "".join(letter if letter.isalnum() else "-" for letter in f"{group.letter}-{name}")
    is_loss = name.endswith("loss")
    return Chart(f"chart-{ident}", metric_title(name), lines, number_format, log=is_loss, axes=axes, marks=marks)


def _short_names(names: Sequence[str]) -> dict[str, str]:
    """Returns names without the parts that all share, such as `batch_size=64`, where that leaves them distinct."""
    parts = [name.split(",") for name in names]
    shared = set.intersection(*map(set, parts))
    short = [",".join(part for part in each if part not in shared) for each in parts]
    return dict(zip(names, short if all(short) and len(set(short)) == len(names) > 1 else names, strict=True))


def _equal_amounts(runs: Sequence[ComparedRun], name: str, ends: Mapping[str, float | None]) -> str:
    """Returns a table of the metric at the largest amount that all these runs reached."""
    known = {axis: end for axis, end in ends.items() if end is not None}
    if len(runs) < 2 or not known:
        return ""
    heads = [
        "run",
        *(f"at {number(end, 'big')} {axis}{'s' if axis == 'step' else ''}" for axis, end in known.items()),
    ]
    rows = [
        [short, *(number(interpolate_metric(each, name, axis, end)) for axis, end in known.items())]
        for short, each in zip(_short_names([each.name for each in runs]).values(), runs, strict=True)
    ]
    caption = f"{metric_title(name)}, held out, at equal amounts, interpolated linearly between evaluations"
    return f'<div class="card runs">{table(heads, rows, numeric=range(1, len(heads)), caption=caption)}</div>'


def _probe_section(runs: Sequence[ComparedRun]) -> str:
    """Returns a strip plot per probe: runs by their mean, one dot per seed."""
    names = _probe_names(runs)
    if not names:
        return ""
    seeds = group_by_seed(runs)
    blocks = "".join(_probe_block(name, seeds) for name in names)
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


def _plain_tables(heads: Sequence[str], rows: Sequence[Sequence[str]], columns: int | None) -> str:
    """Returns one table, or two where one is wider than the terminal: facts of the runs, and their results."""
    table = plain_table(heads, rows)
    if columns is None or max(map(len, table.splitlines())) <= columns:
        return table
    facts = len(HEADS)
    results = plain_table([heads[0], *heads[facts:]], [[row[0], *row[facts:]] for row in rows])
    return f"{plain_table(heads[:facts], [row[:facts] for row in rows])}\n\n{results}"


def plain_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns an aligned table for a terminal, numbers right-aligned."""
    right = [column for column, head in enumerate(heads) if head not in (*HEADS[:4], "held out")]
    rule = ["-" * max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    return "\n".join(align([heads, rule, *rows], right))
