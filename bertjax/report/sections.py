"""Charts of a run's metrics: losses with the unigram baseline, scores, speed, memory, anomalies."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from bertjax.config.objectives import loss_titles
from bertjax.report.chart import Chart, Line, chart_html, make_line
from bertjax.report.page import table
from bertjax.report.run_record import RunRecord, Series
from bertjax.report.scales import number

_SPEED = {
    "tokens_per_second": ("Throughput", "big", "Real tokens per second, without padding."),
    "mfu": ("Model FLOPs utilization (MFU)", "percent", "FLOPs of the model, without rematerialization."),
    "padding": ("Padding", "percent", "Share of token slots that hold padding."),
    "data_wait": ("Waiting for data", "percent", "Share of the time in which the devices had no batch."),
}
_OPTIMIZER = {
    "learning_rate": ("Learning rate", "Peak over parameters; `lr_mults` may scale it."),
    "grad_norm": ("Gradient norm", "Before clipping."),
}
_ANOMALIES = {"skipped": "skipped steps", "rollbacks": "rollbacks to a checkpoint", "spikes": "loss spikes"}
_NO_CHART = {"eta_seconds", "seconds_per_step", "rollback_from_step", "rollback_to_batch", *_ANOMALIES}
"""Bookkeeping metrics without a chart."""
_MAX_SETS = 8
_UNIGRAM = "_unigram_loss"


@functools.cache
def _loss_titles() -> dict[str, str]:
    return {"loss": "Total loss", **{f"{name}_loss": title for name, title in loss_titles().items()}}


def losses(run: RunRecord) -> str:
    """Returns one chart per loss: training, held out and, for token losses, the unigram baseline."""
    charts = [_token_loss_chart(run, name) for name in token_losses(run)]
    shown = {f"{name}_loss" for name in token_losses(run)} | {
        key for key in metric_names(run) if key.endswith(_UNIGRAM)
    }
    others = [key for key in metric_names(run) if key.endswith("_loss") and key not in shown]
    others = [key for key in others if not key.startswith("teacher_")]
    total = ["loss"] if "loss" in metric_names(run) and len(token_losses(run)) + len(others) != 1 else []
    charts += [
        _pair(run, key, _loss_titles().get(key, _spell(key.removesuffix("_loss"))), log=True) for key in total + others
    ]
    return _grid(charts)


def token_losses(run: RunRecord) -> list[str]:
    """Returns the names of the token losses that a run has: those with a unigram baseline."""
    return [name.removesuffix(_UNIGRAM) for name in metric_names(run) if name.endswith(_UNIGRAM)]


def _loss_title(name: str) -> str:
    return _loss_titles().get(f"{name}_loss", _spell(name))


def unigram_baseline(run: RunRecord, name: str) -> Series | None:
    """Returns the loss of predicting unigram frequencies on the tokens of this loss."""
    return run.metrics.get(f"eval/{name}{_UNIGRAM}")


def _token_loss_chart(run: RunRecord, name: str) -> Chart:
    lines = _train_and_eval(run, f"{name}_loss")
    baseline, teacher = unigram_baseline(run, name), run.metrics.get(f"eval/teacher_{name}_loss")
    if baseline is not None:
        lines.append(make_line("unigram baseline", baseline, 2))
    if teacher is not None:
        lines.append(make_line("teacher", teacher, 3))
    note = "Nats per token, lower is better. The distance to the unigram baseline was learned from context."
    return Chart(f"chart-{name}_loss", _loss_title(name), lines, note=note, log=True)


def scores(run: RunRecord) -> str:
    """Returns charts of accuracies and of all other metrics that are neither losses nor about speed."""
    return _grid(
        _pair(run, key, metric_title(key), number_format=_number_format(run, key)) for key in _score_names(run)
    )


def _score_names(run: RunRecord) -> list[str]:
    """Sorts accuracies of token losses first, then other accuracies."""
    excluded = {*_SPEED, *_OPTIMIZER, *_NO_CHART}
    names = [key for key in metric_names(run) if not key.endswith("loss") and key not in excluded]
    first = [f"{name}_accuracy" for name in token_losses(run)]
    return sorted(
        names, key=lambda key: (first.index(key) if key in first else len(first), key.find("accuracy") < 0, key)
    )


def sets(run: RunRecord) -> str:
    """Returns charts of held-out sets that have their own metrics, one chart per metric."""
    by_metric: dict[str, list[Line]] = {}
    for key, series in run.metrics.items():
        parts = key.split("/")
        if len(parts) == 3 and parts[0] == "eval":
            lines = by_metric.setdefault(parts[2], [])
            lines.append(make_line(parts[1], series, len(lines), dots=True))
    several = len(token_losses(run)) + sum(key.endswith("_loss") for key in by_metric) > 2
    charts = [
        Chart(
            f"chart-sets-{_ident(name)}",
            _spell(name),
            lines[:_MAX_SETS],
            number_format="percent" if name.endswith("accuracy") else "plain",
            note="" if len(lines) <= _MAX_SETS else f"The first {_MAX_SETS} of {len(lines)} sets.",
        )
        for name, lines in by_metric.items()
        if name != "loss" or several
    ]
    return _grid(charts)


def optimization(run: RunRecord) -> str:
    """Returns charts of learning rate, gradient norm and anomalies."""
    charts = [
        _pair(run, key, title, note=note, log=True)
        for key, (title, note) in _OPTIMIZER.items()
        if f"train/{key}" in run.metrics
    ]
    return _grid(charts) + _anomalies(run)


def speed(run: RunRecord) -> str:
    """Returns charts of throughput, MFU, padding, data wait and memory."""
    charts = [
        _pair(run, key, title, number_format=number_format, note=note, zero=True)
        for key, (title, number_format, note) in _SPEED.items()
        if f"train/{key}" in run.metrics
    ]
    lines = memory_lines(run)
    if lines:
        note = "Measured at evaluations; peaks are those of the run so far."
        charts.append(Chart("chart-memory", "Memory", lines, "bytes", note, zero=True))
    unknown = ""
    if charts and "train/mfu" not in run.metrics:
        unknown = '<p class="note">MFU is unknown: the table of chips lacks the peak FLOP/s of this device.</p>'
    return _grid(charts) + unknown


def memory_lines(run: RunRecord) -> list[Line]:
    """Returns lines of device and process memory, in bytes."""
    names = {"device": "device", "peak_device": "device, peak", "host": "process", "peak_host": "process, peak"}
    lines = []
    for style, (field, name) in enumerate(names.items()):
        values = {record["step"]: record[field] for record in run.of_kind("memory") if type(record.get(field)) is int}
        if values:
            x, y = (np.array(list(each), np.float64) for each in (values.keys(), values.values()))
            lines.append(make_line(name, Series(x, y), style, dots=True))
    return lines


def _anomalies(run: RunRecord) -> str:
    """Returns counts of anomalies, their charts and a table of the batches that were skipped."""
    counts = {
        name: run.metrics[f"train/{key}"].last for key, name in _ANOMALIES.items() if f"train/{key}" in run.metrics
    }
    listing = [f"{number(count, 'count')} {name}" for name, count in counts.items() if count]
    if not listing and not run.jumps:
        return '<p class="quiet">Anomalies: none.</p>' if run.metrics else ""
    charts = [
        _pair(run, key, f"Anomalies: {name}", number_format="count", note="Since the start of the run.", zero=True)
        for key, name in _ANOMALIES.items()
        if counts.get(name)
    ]
    rows = [[str(jump.get(key, "")) for key in ("step", "from_batch", "to_batch", "reason")] for jump in run.jumps]
    heads = ["checkpoint at step", "next batch there", "continued with batch", "reason"]
    skipped = table(heads, rows, numeric=(0, 1, 2)) if rows else ""
    return f'<p class="warn">Anomalies: {"; ".join(listing) or "see below"}.</p>{_grid(charts)}{skipped}'


def metric_names(run: RunRecord) -> list[str]:
    """Returns the names of all metrics without `train/` and `eval/`, in order of appearance."""
    split = (key.split("/") for key in run.metrics)
    return list(dict.fromkeys(parts[1] for parts in split if len(parts) == 2 and parts[0] in ("train", "eval")))


def _train_and_eval(run: RunRecord, key: str) -> list[Line]:
    lines = []
    if f"train/{key}" in run.metrics:
        lines.append(make_line("training", run.metrics[f"train/{key}"], 0, smooth=True))
    if f"eval/{key}" in run.metrics:
        lines.append(make_line("held out", run.metrics[f"eval/{key}"], 1, dots=True))
    return lines


def _pair(run: RunRecord, key: str, title: str, **options: Any) -> Chart:
    """Returns the chart of a metric, with further fields of `Chart`."""
    return Chart(f"chart-{_ident(key)}", title, _train_and_eval(run, key), **options)


def _number_format(run: RunRecord, key: str) -> str:
    return share_format(key, [run.metrics[name] for name in (f"train/{key}", f"eval/{key}") if name in run.metrics])


def share_format(key: str, series: Iterable[Series]) -> str:
    """Formats shares as percentages: metrics named as shares with values between 0 and 1."""
    shares = key.endswith(("accuracy", "precision", "recall", "share", "f1", "exact_match", "exact"))
    finite = np.concatenate([np.zeros(0), *(each.y[np.isfinite(each.y)] for each in series)])
    return "percent" if shares and (not len(finite) or 0 <= finite.min() <= finite.max() <= 1) else "plain"


def _grid(charts: Iterable[Chart]) -> str:
    drawn = "".join(chart_html(chart) for chart in charts)
    return f'<div class="grid-of">{drawn}</div>' if drawn else ""


def _spell(key: str) -> str:
    words = re.sub(r"\bf1\b", "F1", key.replace("_", " ").strip())
    return words[:1].upper() + words[1:]


def metric_title(key: str) -> str:
    """Returns a metric in words: `mlm_accuracy` -> "Masked tokens: accuracy"."""
    name, _, metric = key.partition("_")
    known = _loss_titles().get(f"{name}_loss")
    return f"{known}: {metric.replace('_', ' ')}" if known and metric else _spell(key)


def _ident(name: str) -> str:
    """Replaces everything but letters, digits, dashes and underscores, for use in an anchor."""
    return "".join(letter if letter.isalnum() or letter in "-_" else "-" for letter in name)


def headline(run: RunRecord) -> Mapping[str, str | tuple[str, str]]:
    """Returns the latest results, for the cards at the top."""
    cards: dict[str, str | tuple[str, str]] = {}
    for name in token_losses(run)[:2]:
        series, baseline = run.metrics.get(f"eval/{name}_loss"), unigram_baseline(run, name)
        loss = None if series is None else series.last
        if loss is None:
            continue
        unigram = None if baseline is None else baseline.last
        below = "held out" if unigram is None else _compare_with_unigram(loss, unigram)
        cards[f"{_loss_title(name)}, loss"] = (f"{loss:.3f} nats", below)
        accuracy = run.metrics.get(f"eval/{name}_accuracy")
        if accuracy is not None:
            cards[f"{_loss_title(name)}, accuracy"] = (number(accuracy.last, "percent"), "held out")
    if not cards:  # a task
        held_out = [key for key in _score_names(run) if f"eval/{key}" in run.metrics][:3]
        cards |= {
            metric_title(key): (number(run.metrics[f"eval/{key}"].last, _number_format(run, key)), "held out")
            for key in held_out
        }
        cards |= {
            f"{metric_title(key)}, test": (number(run.metrics[f"test/{key}"].last, _number_format(run, key)), "test")
            for key in held_out
            if f"test/{key}" in run.metrics
        }
    throughput = run.metrics.get("train/tokens_per_second")
    if throughput is not None and np.isfinite(throughput.y).any():
        cards["Throughput"] = (f"{number(float(np.nanmedian(throughput.y)), 'big')} tokens/s", "real tokens, median")
    return cards


def _compare_with_unigram(loss: float, unigram: float) -> str:
    better = "better" if loss < unigram else "worse"
    return f"{abs(unigram - loss):.3f} {better} than the unigram baseline ({unigram:.3f})"
