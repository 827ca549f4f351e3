"""What a run is: its facts as cards, its state, and its whole config."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from html import escape
from typing import Any

from bertjax.report import sections
from bertjax.report.page import facts
from bertjax.report.run_record import RunRecord
from bertjax.report.scales import NOTHING, number


def head(run: RunRecord) -> str:
    """How far the run is, what it reached, and what it is, for the top of the page."""
    return _progress(run) + facts({**sections.headline(run), **_facts(run)})


def _progress(run: RunRecord) -> str:
    total = run.num_steps
    if not run.figures:
        said = "Nothing measured yet: the first figures come after a few updates."
    else:
        done = total is not None and run.step >= total
        said = f"Update {run.step:,}" + (f" of {total:,}" if total else "") + (", done" if done else "")
        said += f". Figures written {_when(run.written)}." if run.written is not None else "."
    share = min(run.step / total, 1.0) if total else 0.0
    bar = (
        f'<div class="bar" role="progressbar" aria-label="updates made" aria-valuemin="0" aria-valuemax="100" '
        f'aria-valuenow="{100 * share:.0f}"><i style="width:{100 * share:.1f}%"></i></div>'
    )
    again = ""
    if share < 1.0:
        again = '<label class="quiet"><input type="checkbox" id="reload"> reload every 30 seconds</label>'
    return f"<p>{escape(said)} {again}</p>{bar}"


def _when(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _facts(run: RunRecord) -> dict[str, str | tuple[str, str]]:
    found: dict[str, str | tuple[str, str]] = {}
    told = run.newest("run")
    own: Mapping[str, Any] = told[-1] if told else {}
    parameters = own.get("parameters")
    if isinstance(parameters, dict) and parameters:
        counts = {name: count for name, count in parameters.items() if type(count) is int}
        shown = ", ".join(f"{name} {count:,}" for name, count in counts.items())
        found["Parameters"] = (number(float(sum(counts.values())), "big"), shown)
    found["Model"] = _model(run)
    found["Objective"] = (str(run.setting("objective.name") or NOTHING), objective_words(run))
    found["Data"] = _data(run, own)
    rows, length = run.setting("train.batch_size"), run.setting("data.seq_len")
    found["Batch"] = (f"{rows} rows", f"of {length} tokens")
    optimizer = str(run.setting("optimizer.name") or NOTHING)
    schedule, rate = run.setting("schedule.name"), run.setting("optimizer.learning_rate")
    found["Optimizer"] = (optimizer, f"rate {rate}, schedule {schedule}")
    if "devices" in own:
        found["Devices"] = (str(own["devices"]), f"jax {own.get('jax', NOTHING)}")
    found["Seed"] = str(run.setting("seed"))
    return found


def _model(run: RunRecord) -> tuple[str, str]:
    layers, width, heads = (run.setting(f"model.{key}") for key in ("num_layers", "hidden_size", "num_heads"))
    told = run.newest("run")
    sizes = told[-1].get("sizes") if told else None
    if isinstance(sizes, dict):  # what the preset leaves to itself is null in the config
        layers, width, heads = (sizes.get(key) for key in ("num_layers", "hidden_size", "num_heads"))
    preset = preset_of(run)
    known = [f"{value} {word}" for value, word in ((layers, "layers"), (width, "wide"), (heads, "heads")) if value]
    return preset, ", ".join(known)


def preset_of(run: RunRecord) -> str:
    """The model's name, "own" where it was put together key by key, or came from a folder."""
    name = run.setting("model.preset")
    return "own" if name in (None, "none") else str(name)


def objective_words(run: RunRecord) -> str:
    """What is hidden, or what the task is, in a few words; objectives that hide nothing say nothing."""
    name = run.setting("objective.name")
    if name == "task":
        return str(run.setting("task.kind"))
    if name not in ("mlm", "rtd", "distill"):
        return ""
    rate = run.setting("objective.mask_rate")
    hidden = (
        f"{run.setting('objective.masking')}, {number(rate, 'percent') if isinstance(rate, float) else rate} hidden"
    )
    pair = run.setting("objective.pair")
    return hidden if pair in (None, "none") or name != "mlm" else f"{hidden}; {pair}"


def _data(run: RunRecord, own: Mapping[str, Any]) -> tuple[str, str]:
    sources = run.setting("data.sources") or []
    named = ", ".join(map(str, sources)) if isinstance(sources, list) else str(sources)
    tokens = own.get("tokens")
    large = f"{number(float(tokens), 'big')} tokens" if type(tokens) is int else f"{len(sources)} sources"
    return large, named


def config(run: RunRecord) -> str:
    """Every key, group by group."""
    alone = {key: value for key, value in run.config.items() if not isinstance(value, dict)}
    groups = {key: value for key, value in run.config.items() if isinstance(value, dict)}
    parts = [_keys("run", alone)] if alone else []
    parts += [_keys(name, values) for name, values in groups.items()]
    return f'<div class="card">{"".join(parts)}</div>' if parts else ""


def _keys(name: str, values: Mapping[str, Any]) -> str:
    entries = "".join(f"<dt>{escape(key)}</dt><dd>{escape(_value(value))}</dd>" for key, value in values.items())
    return f'<details><summary>{escape(name)}</summary><dl class="keys">{entries}</dl></details>'


def _value(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "()"
    return "None" if value is None else str(value)
