"""The tables of metrics, from the attributes of objectives and tasks."""

from __future__ import annotations

from docs_site.metric_names import SUFFIXES, losses, other_metrics

_TITLES = {"training": "Training (`train/`)"}


def all_metrics() -> str:
    """Returns the tables of all metrics that a run can log."""
    suffixes = [f"| `NAME_{name}` | {unit} | {meaning} |" for name, (unit, meaning) in SUFFIXES.items()]
    rows = [f"| `{name}` | {title} | {unit} | `{of}` |" for name, (unit, title, of) in losses().items()]
    parts = ["## Losses", _table("metric | unit | meaning", suffixes), _table("NAME | predicted | unit | of", rows)]
    for group, metrics in other_metrics().items():
        lines = [f"| `{name}` | {unit} | {meaning} |" for name, (unit, meaning) in metrics.items()]
        parts += [f"## {_TITLES.get(group, f'`{group}`')}", _table("metric | unit | meaning", lines)]
    return "\n\n".join(parts)


def _table(head: str, rows: list[str]) -> str:
    columns = head.count("|") + 1
    return "\n".join([f"| {head} |", "|" + " --- |" * columns, *rows])
