"""Collects the facts of a run that its model card states."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from bertjax.config.phases import count_sequences_and_tokens, source_texts
from bertjax.config.task import TaskConfig, task_config
from bertjax.experiment.config import read_objective
from bertjax.experiment.load import StoredRun
from bertjax.experiment.workdir import parse_checkpoint
from bertjax.io.hub import is_hub_name, parse_hub_name

_HUB_CACHE = re.compile(r"models--([^/]+)(?:/snapshots/([^/]+))?")


def model_facts(run: StoredRun, metrics: Mapping[str, float], labels: tuple[str, ...] = ()) -> dict[str, Any]:
    """Returns the facts that `hf.model_card.render_model_card` prints.

    Args:
        run: the run with the exported weights.
        metrics: their `eval/...` and `test/...` metrics.
        labels: names of the labels that the model predicts.
    """
    cfg, tokenizer = run.experiment.cfg, run.tokenizer
    objective = read_objective(cfg)
    measured, tested = (
        {
            name.removeprefix(prefix): value
            for name, value in metrics.items()
            if name.startswith(prefix) and name.count("/") == 1 and math.isfinite(value)
        }
        for prefix in ("eval/", "test/")
    )
    facts = {
        "steps": run.step,
        "tokenizer": f"{tokenizer.kind}, {tokenizer.size:,} tokens",
        "seed": cfg.seed,
    }
    if base_model(cfg) is not None:
        facts["base_model"] = base_model(cfg)
        facts["base_revision"] = hub_revision(cfg.init_from)
    if objective.is_finetuning:
        return facts | _task_facts(cfg, labels, run.meta.get("examples") or {}) | {"eval": measured, "test": tested}
    first = 0
    if cfg.resume_from is not None:
        workdir, first = parse_checkpoint(cfg.resume_from)
        facts["continues"] = f"{workdir.name} from step {first:,}"
    return facts | {
        "objective": objective.summary,
        "data": f"{', '.join(source_texts(cfg))} ({run.meta['tokens']:,} tokens)",
        "batch_size": cfg.train.batch_size,
        "seq_len": cfg.data.seq_len,
        "tokens_seen": count_sequences_and_tokens(cfg, run.step)[1] - count_sequences_and_tokens(cfg, first)[1],
        "eval": {name: value for name, value in measured.items() if name.endswith(("_loss", "_accuracy"))},
    }


def base_model(cfg: ConfigDict) -> str | None:
    """Returns the name of the model whose weights a run starts from; None if it starts from random ones."""
    is_random = read_objective(cfg).is_finetuning and cfg.task.from_scratch
    return None if cfg.init_from is None or is_random else name_base_model(cfg.init_from)


def data_sources(cfg: ConfigDict) -> dict[str, list[str]]:
    """Returns the sources of training and held-out data; held-out text of the training sources is not listed."""
    if read_objective(cfg).is_finetuning:
        return {"train": list(cfg.task.train), "eval": list(cfg.task.eval)}
    return {"train": source_texts(cfg), "eval": list(cfg.data.eval_sources)}


def _task_facts(cfg: ConfigDict, labels: tuple[str, ...], num_examples: Mapping[str, int]) -> dict[str, Any]:
    task = task_config(cfg)

    def describe(split: str) -> str | None:
        count = f" ({num_examples[split]:,} examples)" if split in num_examples else ""
        return f"{', '.join(getattr(task, split))}{count}" if getattr(task, split) else None

    return {
        "task": task.spec.title,
        "data": describe("train"),
        "eval_data": describe("eval"),
        "test_data": describe("test"),
        "temperature": _calibration(task),
        "labels": labels if task.spec.has_classes else None,
        "epochs": task.epochs,
        "batch_size": task.batch_size,
        "max_length": task.max_length,
        "main_metric": task.spec.metric if task.eval else None,
    }


def _calibration(task: TaskConfig) -> str | None:
    """Returns the temperature that the exported scores are divided by, with its data; None for 1."""
    settings = task.spec
    if settings.temperature == 1.0:
        return None
    data = f", fitted on {settings.tune_fraction:.0%} of the training examples" if settings.calibrate else ""
    return f"{settings.temperature:.4g}, held by the last layer{data}"


def hub_revision(folder: str) -> str | None:
    """Returns the revision of a model of the Hub, by its name or its folder in the cache; None for other folders."""
    if is_hub_name(folder):
        return parse_hub_name(folder).revision
    match = _HUB_CACHE.search(folder)
    return match[2] if match else None


def name_base_model(folder: str) -> str:
    """Returns the name of a model: that on the Hub, also for a folder of its cache, else the folder's own name.

    An export has the name of its run: `runs/bert/export` is `bert`.
    """
    if is_hub_name(folder):
        return parse_hub_name(folder).repo
    path = Path(folder).expanduser()
    if match := _HUB_CACHE.search(folder):
        return match[1].replace("--", "/")
    return path.parent.name if path.name == "export" and path.parent.name else path.name
