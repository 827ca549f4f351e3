"""Which charts a run's figures make: losses beside the unigram baseline, scores, speed, memory, faults."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from bertjax.report.chart import Chart, Line, chart_html, line_of
from bertjax.report.page import table
from bertjax.report.run_record import RunRecord, Series
from bertjax.report.scales import number

WORDS = {
    "mlm": "Masked words",
    "clm": "Next words",
    "plm": "Words of a permutation",
    "span": "Words from the ends of their span",
}
"""Losses of words, that guessing by frequency can be measured on; the first that a run has owns `unigram_loss`."""
_OTHERS = {
    "loss": "All losses together",
    "pair_loss": "Pairs of segments",
    "rtd_loss": "Replaced tokens",
    "soft_loss": "The teacher's words",
    "cosine_loss": "Angle to the teacher",
    "relations_loss": "The teacher's relations",
    "hidden_loss": "The teacher's states",
    "attention_loss": "The teacher's attention",
    "contrastive_loss": "Twins among other texts",
}
_SPEED = {
    "tokens_per_second": ("Throughput", "big", "Real tokens a second, padding not counted."),
    "mfu": ("Share of the chip's peak (MFU)", "percent", "FLOPs of the model alone, nothing recomputed."),
    "padding": ("Padding", "percent", "Share of the rows' places that hold no token."),
    "data_wait": ("Waiting for data", "percent", "Share of the time in which the devices had no batch."),
}
_OPTIMIZER = {
    "learning_rate": ("Learning rate", "The highest rate; some parameters may have a share of it."),
    "grad_norm": ("Gradient norm", "Before clipping."),
}
_FAULTS = {"skipped": "updates left out", "rollbacks": "returns to a checkpoint", "spikes": "spikes of the loss"}
_SILENT = {"eta_seconds", "seconds_per_step", "rollback_from_step", "rollback_to_batch", *_FAULTS}
"""Figures of the bookkeeping, that no chart of their own would make clearer."""
_MOST_SETS = 8


def losses(run: RunRecord) -> str:
    """A chart a loss: training, held out and, for words, what always guessing by frequency costs."""
    charts = [_words(run, name) for name in word_losses(run)]
    shown = {f"{name}_loss" for name in word_losses(run)} | {key for key in bases(run) if key.endswith("unigram_loss")}
    others = [key for key in bases(run) if key.endswith("_loss") and key not in shown]
    others = [key for key in others if key not in ("teacher_mlm_loss",)]
    together = ["loss"] if "loss" in bases(run) and len(word_losses(run)) + len(others) != 1 else []
    charts += [
        _pair(run, key, _OTHERS.get(key, _spelt(key.removesuffix("_loss"))), log=True) for key in together + others
    ]
    return _grid(charts)


def word_losses(run: RunRecord) -> list[str]:
    return [name for name in WORDS if f"{name}_loss" in bases(run)]


def baseline_of(run: RunRecord, name: str) -> Series | None:
    """What guessing by frequency costs on the words of this loss."""
    own = run.figures.get(f"eval/{name}_unigram_loss")
    if own is None and word_losses(run)[:1] == [name]:
        own = run.figures.get("eval/unigram_loss")
    return own


def _words(run: RunRecord, name: str) -> Chart:
    lines = _train_and_eval(run, f"{name}_loss")
    baseline, teacher = baseline_of(run, name), run.figures.get(f"eval/teacher_{name}_loss")
    if baseline is not None:
        lines.append(line_of("guessing by frequency", baseline, 2))
    if teacher is not None:
        lines.append(line_of("teacher", teacher, 3))
    note = "Nats a word, lower is better. What lies below the line of guessing was learned from context."
    return Chart(f"chart-{name}_loss", WORDS[name], lines, note=note, log=True)


def scores(run: RunRecord) -> str:
    """Accuracies and all other figures that are neither losses nor of the machine."""
    return _grid(_pair(run, key, _titled(key), form=_form(run, key)) for key in _score_names(run))


def _score_names(run: RunRecord) -> list[str]:
    """Those of words first, then other accuracies."""
    machine = {*_SPEED, *_OPTIMIZER, *_SILENT}
    names = [key for key in bases(run) if not key.endswith("loss") and key not in machine]
    first = [f"{name}_accuracy" for name in WORDS]
    return sorted(
        names, key=lambda key: (first.index(key) if key in first else len(first), key.find("accuracy") < 0, key)
    )


def sets(run: RunRecord) -> str:
    """Held-out sets that have figures of their own, one chart a figure."""
    found: dict[str, list[Line]] = {}
    for key, series in run.figures.items():
        parts = key.split("/")
        if len(parts) == 3 and parts[0] == "eval":
            lines = found.setdefault(parts[2], [])
            lines.append(line_of(parts[1], series, len(lines), dots=True))
    several = len(word_losses(run)) + sum(key.endswith("_loss") for key in found) > 2
    charts = [
        Chart(
            f"chart-sets-{_ident(name)}",
            _spelt(name),
            lines[:_MOST_SETS],
            form="percent" if name.endswith("accuracy") else "plain",
            note="" if len(lines) <= _MOST_SETS else f"The first {_MOST_SETS} of {len(lines)} sets.",
        )
        for name, lines in found.items()
        if name != "loss" or several
    ]
    return _grid(charts)


def optimization(run: RunRecord) -> str:
    charts = [
        _pair(run, key, title, note=note, log=True)
        for key, (title, note) in _OPTIMIZER.items()
        if f"train/{key}" in run.figures
    ]
    return _grid(charts) + _faults(run)


def speed(run: RunRecord) -> str:
    """Throughput, MFU, padding, waiting and memory."""
    found = [
        Chart(
            f"chart-{key}",
            title,
            _train_and_eval(run, key),
            form,
            note,
            zero=True,
        )
        for key, (title, form, note) in _SPEED.items()
        if f"train/{key}" in run.figures
    ]
    lines = memory_lines(run)
    if lines:
        note = "At evaluations; a peak is that of the run so far."
        found.append(Chart("chart-memory", "Memory", lines, "bytes", note, zero=True))
    unknown = ""
    if found and "train/mfu" not in run.figures:
        unknown = '<p class="note">MFU is not known: the peak of this device is not in the table of chips.</p>'
    return _grid(found) + unknown


def memory_lines(run: RunRecord) -> list[Line]:
    names = {"device": "device", "peak_device": "device, peak", "host": "process", "peak_host": "process, peak"}
    lines = []
    for style, (field, name) in enumerate(names.items()):
        found = {record["step"]: record[field] for record in run.of_kind("memory") if type(record.get(field)) is int}
        if found:
            x, y = (np.array(list(each), np.float64) for each in (found.keys(), found.values()))
            lines.append(line_of(name, Series(x, y), style, dots=True))
    return lines


def _faults(run: RunRecord) -> str:
    """What went wrong, in words, and the places where batches were left out."""
    counts = {name: run.figures[f"train/{key}"].last for key, name in _FAULTS.items() if f"train/{key}" in run.figures}
    found = [f"{number(count, 'count')} {name}" for name, count in counts.items() if count]
    if not found and not run.jumps:
        return '<p class="quiet">Faults: none was counted.</p>' if run.figures else ""
    charts = [
        Chart(f"chart-{key}", f"Faults: {name}", _train_and_eval(run, key), "count", "Since the beginning.", zero=True)
        for key, name in _FAULTS.items()
        if counts.get(name)
    ]
    rows = [[str(jump.get(key, "")) for key in ("step", "from_batch", "to_batch", "reason")] for jump in run.jumps]
    heads = ["checkpoint of update", "its next batch", "went on with batch", "because"]
    listed = table(heads, rows, numeric=(0, 1, 2)) if rows else ""
    return f'<p class="warn">Faults: {"; ".join(found) or "see below"}.</p>{_grid(charts)}{listed}'


def bases(run: RunRecord) -> list[str]:
    """The names of all figures without `train/` and `eval/`, in the order in which they appear."""
    split = (key.split("/") for key in run.figures)
    return list(dict.fromkeys(parts[1] for parts in split if len(parts) == 2 and parts[0] in ("train", "eval")))


def _train_and_eval(run: RunRecord, key: str) -> list[Line]:
    lines = []
    if f"train/{key}" in run.figures:
        lines.append(line_of("training", run.figures[f"train/{key}"], 0, smooth=True))
    if f"eval/{key}" in run.figures:
        lines.append(line_of("held out", run.figures[f"eval/{key}"], 1, dots=True))
    return lines


def _pair(run: RunRecord, key: str, title: str, form: str = "plain", note: str = "", log: bool = False) -> Chart:
    return Chart(f"chart-{_ident(key)}", title, _train_and_eval(run, key), form, note, log)


def _form(run: RunRecord, key: str) -> str:
    """Shares are written in per cent: figures that are called so, and lie between 0 and 1."""
    shares = key.endswith(("accuracy", "precision", "recall", "share", "f1", "exact_match", "exact"))
    values = [run.figures[name].y for name in (f"train/{key}", f"eval/{key}") if name in run.figures]
    finite = np.concatenate([value[np.isfinite(value)] for value in values])
    return "percent" if shares and (not len(finite) or 0 <= finite.min() <= finite.max() <= 1) else "plain"


def _grid(charts: Iterable[Chart]) -> str:
    drawn = "".join(chart_html(chart) for chart in charts)
    return f'<div class="grid-of">{drawn}</div>' if drawn else ""


def _spelt(key: str) -> str:
    words = key.replace("_", " ").strip()
    return words[:1].upper() + words[1:]


def _titled(key: str) -> str:
    """`mlm_accuracy` -> Masked words: accuracy."""
    name, _, what = key.partition("_")
    known = WORDS.get(name) or _OTHERS.get(f"{name}_loss")
    return f"{known}: {what.replace('_', ' ')}" if known and what else _spelt(key)


def _ident(name: str) -> str:
    """Letters, digits, dashes and underscores: the rest may not stand in an address."""
    return "".join(letter if letter.isalnum() or letter in "-_" else "-" for letter in name)


def headline(run: RunRecord) -> Mapping[str, str | tuple[str, str]]:
    """What was reached, for the cards at the top."""
    found: dict[str, str | tuple[str, str]] = {}
    for name in word_losses(run)[:2]:
        series, baseline = run.figures.get(f"eval/{name}_loss"), baseline_of(run, name)
        loss = None if series is None else series.last
        if loss is None:
            continue
        guessing = None if baseline is None else baseline.last
        below = "held out" if guessing is None else _verdict(loss, guessing)
        found[f"{WORDS[name]}, loss"] = (f"{loss:.3f} nats", below)
        accuracy = run.figures.get(f"eval/{name}_accuracy")
        if accuracy is not None:
            found[f"{WORDS[name]}, accuracy"] = (number(accuracy.last, "percent"), "held out")
    if not found:  # a task
        held_out = [key for key in _score_names(run) if f"eval/{key}" in run.figures][:3]
        found |= {_titled(key): number(run.figures[f"eval/{key}"].last, _form(run, key)) for key in held_out}
    throughput = run.figures.get("train/tokens_per_second")
    if throughput is not None and np.isfinite(throughput.y).any():
        found["Throughput"] = (f"{number(float(np.nanmedian(throughput.y)), 'big')} tokens/s", "real tokens, median")
    return found


def _verdict(loss: float, guessing: float) -> str:
    better = "better" if loss < guessing else "worse"
    return f"{abs(guessing - loss):.3f} {better} than guessing by frequency ({guessing:.3f})"
