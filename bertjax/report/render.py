"""`report.html` of a work directory: everything there is to see of a run, in one file."""

from __future__ import annotations

import datetime
import os
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from bertjax.config.fields import PRESET
from bertjax.config.presets import PRESETS
from bertjax.io.atomic import write_json
from bertjax.report import analyses, model_views, sections, tasks
from bertjax.report.page import Section, facts, page, write_page
from bertjax.report.run_record import ANALYSES_FOLDER, RunRecord, read_analysis, read_run
from bertjax.report.scales import NO_VALUE, number
from bertjax.storage import is_url

FILE = "report.html"
_SIZES = ("num_layers", "hidden_size", "num_heads", "intermediate_size")


def _head(run: RunRecord) -> str:
    """Returns progress, latest results and facts for the top of the page."""
    return _progress(run) + facts({**sections.headline(run), **_facts(run)})


def _progress(run: RunRecord) -> str:
    total = run.num_steps
    if not run.metrics:
        text = "No metrics yet: the first follow after a few steps."
    else:
        done = total is not None and run.step >= total
        text = f"Step {run.step:,}" + (f" of {total:,}" if total else "") + (", done" if done else "")
        when = run.written and datetime.datetime.fromtimestamp(run.written, datetime.UTC)
        text += f". Metrics written {when:%Y-%m-%d %H:%M:%S} UTC." if when else "."
    share = min(run.step / total, 1.0) if total else 0.0
    bar = (
        f'<div class="bar" role="progressbar" aria-label="steps done" aria-valuemin="0" aria-valuemax="100" '
        f'aria-valuenow="{100 * share:.0f}"><i style="width:{100 * share:.1f}%"></i></div>'
    )
    reload = ""
    if share < 1.0:
        reload = '<label class="quiet"><input type="checkbox" id="reload"> reload every 30 seconds</label>'
    return f"<p>{escape(text)} {reload}</p>{bar}"


def _facts(run: RunRecord) -> dict[str, str | tuple[str, str]]:
    cards: dict[str, str | tuple[str, str]] = {}
    record = run.facts
    parameters = record.get("parameters")
    if isinstance(parameters, dict) and parameters:
        counts = {name: count for name, count in parameters.items() if type(count) is int}
        shown = ", ".join(f"{name} {count:,}" for name, count in counts.items())
        cards["Parameters"] = (number(float(sum(counts.values())), "big"), shown)
    cards["Model"] = _model(run)
    cards["Objective"] = (str(run.setting("objective.name") or NO_VALUE), describe_objective(run))
    if isinstance(record.get("base_model"), str):
        cards["Base model"] = record["base_model"]
    cards["Data"] = _data(run)
    batch_size, length = run.setting("train.batch_size"), run.setting("data.seq_len")
    cards["Batch"] = (f"{batch_size} sequences", f"of {length} tokens")
    optimizer = str(run.setting("optimizer.name") or NO_VALUE)
    schedule, rate = run.setting("schedule.name"), run.setting("optimizer.learning_rate")
    cards["Optimizer"] = (optimizer, f"learning rate {rate}, schedule {schedule}")
    if "devices" in record:
        cards["Devices"] = (str(record["devices"]), f"jax {record.get('jax', NO_VALUE)}")
    cards["Seed"] = str(run.setting("seed"))
    return cards


def _model(run: RunRecord) -> tuple[str, str]:
    layers, width, heads = (run.setting(f"model.{key}") for key in ("num_layers", "hidden_size", "num_heads"))
    sizes = run.facts.get("sizes")
    if isinstance(sizes, dict):  # the config does not resolve the preset
        layers, width, heads = (sizes.get(key) for key in ("num_layers", "hidden_size", "num_heads"))
    known = [f"{value} {word}" for value, word in ((layers, "layers"), (width, "wide"), (heads, "heads")) if value]
    return preset_name(run), ", ".join(known)


def preset_name(run: RunRecord) -> str:
    """Returns the preset, "custom" for a model that was configured key by key or read from a folder.

    A model of other sizes than the preset's is not that model: a smoke test of a recipe is "resized".
    """
    name = run.setting("model.preset")
    if name in (None, "none"):
        return "custom"
    published = PRESETS.get(str(name), {})
    chosen = {key: run.setting(f"model.{key}") for key in _SIZES}
    is_resized = any(value not in (None, PRESET, published.get(key)) for key, value in chosen.items())
    return f"{name}, resized" if is_resized else str(name)


def describe_objective(run: RunRecord) -> str:
    """Returns the objective in words, as the run recorded it; "" for a run that recorded none."""
    return str(run.facts.get("objective", ""))


def _data(run: RunRecord) -> tuple[str, str]:
    recorded, tokens = run.facts.get("sources"), run.facts.get("tokens")
    by_split = recorded if isinstance(recorded, dict) else {"train": run.setting("data.sources")}
    train, held_out = (each if isinstance(each := by_split.get(split), list) else [] for split in ("train", "eval"))
    named = ", ".join(map(str, train)) + (f"; held out: {', '.join(map(str, held_out))}" if held_out else "")
    large = f"{number(float(tokens), 'big')} tokens" if type(tokens) is int else f"{len(train)} sources"
    return large, named


def _config(run: RunRecord) -> str:
    """Returns every config key, group by group."""
    top = {key: value for key, value in run.config.items() if not isinstance(value, dict)}
    groups = {key: value for key, value in run.config.items() if isinstance(value, dict)}
    parts = [_keys("run", top)] if top else []
    parts += [_keys(name, values) for name, values in groups.items()]
    return f'<div class="card columns">{"".join(parts)}</div>' if parts else ""


def _keys(name: str, values: Mapping[str, Any]) -> str:
    entries = "".join(f"<dt>{escape(key)}</dt><dd>{escape(_value(value))}</dd>" for key, value in values.items())
    return f'<details><summary>{escape(name)}</summary><dl class="keys">{entries}</dl></details>'


def _value(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "()"
    return "None" if value is None else str(value)


def render(workdir: Path) -> Path:
    """Writes the report of a work directory atomically and returns its path; raises `UserError` without a config."""
    path = workdir / FILE
    write_page(path, report_page(read_run(workdir)))
    return path


def store_analysis(source: Any, kind: str, values: Mapping[str, Any], *, merge: bool = False) -> None:
    """Stores what a command measured of a run for its report, in place of an earlier result, and rewrites the report.

    Args:
        source: what the command was given as its model; nothing happens unless it is the work directory of a run.
        kind: key of `analyses.SECTIONS`.
        values: what the section shows.
        merge: keep earlier values under other names.
    """
    path = getattr(source, "workdir", source)
    if not isinstance(path, str | os.PathLike) or is_url(path) or not (Path(path) / "checkpoints").is_dir():
        return
    folder = Path(path) / ANALYSES_FOLDER
    folder.mkdir(exist_ok=True)
    earlier = read_analysis(Path(path), kind) if merge else {}
    write_json(folder / f"{kind}.json", {**earlier, **values})
    if (Path(path) / FILE).is_file():
        render(Path(path))


def report_page(run: RunRecord) -> str:
    """Returns the page of a run; sections without content are omitted."""
    shown = [
        Section("loss", "Loss", sections.losses(run)),
        Section("task", "Task", tasks.task(run)),
        Section("scores", "Scores", sections.scores(run)),
        Section("predictions", "Mask predictions", model_views.mask_predictions(run)),
        Section("attention", "Attention", model_views.attention(run)),
        Section("neighbors", "Nearest tokens", model_views.neighbors(run)),
        *analyses.sections(run),
        Section("sets", "Held-out sets", sections.sets(run)),
        Section("optimization", "Optimization", sections.optimization(run)),
        Section("speed", "Speed and memory", sections.speed(run)),
        Section("config", "Config", _config(run)),
    ]
    foot = (
        "<p>Written by bertjax from <code>config.json</code>, <code>metrics.jsonl</code> and <code>probes.jsonl</code> "
        "of the work directory; <code>bertjax report</code> rewrites it. Besides metrics it contains the sentences and "
        "tokens that the config names, and the config itself, with the paths of its data.</p>"
    )
    return page(run.name, _head(run), shown, foot)
