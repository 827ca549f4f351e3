"""Measures the training step of a config on this machine, alone or interleaved with transformers and PyTorch."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from bertjax.benchmark.bertjax_runner import BertjaxRunner
from bertjax.benchmark.interleaved_timing import TimedRun, interleave
from bertjax.benchmark.report import bertjax_metrics, format_bertjax, format_scopes, format_torch, torch_metrics
from bertjax.benchmark.torch_baseline import BaselineConfig
from bertjax.benchmark.torch_subprocess import TorchProcess
from bertjax.config.model import encoder_config, float32_config
from bertjax.config.objectives import objective_config
from bertjax.config.objectives.clm import ClmConfig
from bertjax.config.objectives.mlm import MlmConfig
from bertjax.data import from_config
from bertjax.data.from_config import Prepared
from bertjax.errors import UserError
from bertjax.experiment import build
from bertjax.experiment.teacher import attach_teacher, read_teacher
from bertjax.hf.export_plan import plan_export
from bertjax.hf.safe_files import auto_class
from bertjax.hf.save import save_pretrained
from bertjax.io.atomic import write_json

TRACED_STEPS = 3


class BenchmarkCounts(NamedTuple):
    """Timed repeats per side, steps per repeat, and steps before the first repeat."""

    repeats: int
    steps: int
    warmup: int


def benchmark(
    cfg: ConfigDict,
    counts: BenchmarkCounts,
    baseline: str | None = None,
    with_compile: bool = True,
    out: Path | None = None,
) -> dict[str, Any]:
    """Measures the step and prints the metrics; saves no checkpoint.

    Args:
        cfg: Checked config of pretraining.
        counts: Repeats and steps.
        baseline: "hf" measures transformers and PyTorch with the same weights and text as well.
        with_compile: Tries torch.compile for the baseline.
        out: JSON file for the metrics.

    Returns:
        The metrics.

    Raises:
        UserError: A count is not positive, or the baseline cannot train this model.
    """
    for name, count in counts._asdict().items():
        if count < 1:
            raise UserError(f"--{name} must be at least 1, not {count}")
    if out is not None and not out.resolve().parent.is_dir():
        raise UserError(f"--out {out}: the folder {out.resolve().parent} does not exist")
    build.check_devices(cfg)
    model_class = None if baseline is None else _baseline_class(cfg)
    prepared = from_config.prepare(cfg)
    teacher = read_teacher(cfg, prepared.tokenizer)
    exp = build.make_experiment(cfg, prepared.vocabulary, None if teacher is None else teacher.network)
    attach_teacher(exp, teacher)
    with contextlib.closing(BertjaxRunner(exp, prepared)) as runner:
        runner.run(counts.warmup)
        if model_class is None:
            metrics = _bertjax_metrics(runner, interleave([runner], counts.repeats, counts.steps)[0])
        else:
            with (
                tempfile.TemporaryDirectory(prefix="bertjax-baseline-") as folder,
                contextlib.closing(_torch_process(exp, prepared, runner, Path(folder), model_class)) as process,
            ):
                trials = process.choose_mode(with_compile)
                runs, torch_runs = interleave([runner, process], counts.repeats, counts.steps)
            metrics = _bertjax_metrics(runner, runs)
            metrics["baseline"] = torch_metrics(process, trials, runs, torch_runs)
            print("\n".join(format_torch(metrics["baseline"])))
    if out is not None:
        write_json(out, metrics, indent=2)
        print(f"all metrics: {out}")
    return metrics


def _bertjax_metrics(runner: BertjaxRunner, runs: Sequence[TimedRun]) -> dict[str, Any]:
    """Prints and returns the metrics of bertjax, with the time of every named scope."""
    metrics = bertjax_metrics(runner, runs)
    print("\n".join(format_bertjax(metrics)))
    scopes = runner.trace(TRACED_STEPS)
    print("\n".join(format_scopes(scopes)))
    seconds: dict[str, dict[str, float]] = {}
    for scope, scope_seconds in scopes.items():
        seconds.setdefault(scope.title, {})[scope.direction] = scope_seconds
    return metrics | {"work_seconds": seconds}


def _baseline_class(cfg: ConfigDict) -> str:
    """Returns the class of `transformers` that trains the same model; raises `UserError` if there is none."""
    objective, model = objective_config(cfg), encoder_config(cfg)
    if model.pad_token_id >= model.vocab_size:  # of the preset; a tokenizer that is trained has another one
        model = dataclasses.replace(model, pad_token_id=0)
    if isinstance(objective, MlmConfig):
        if objective.example_format == "sop_pairs" or objective.span_boundary_weight or objective.masked_next_token:
            raise UserError(
                "--baseline hf: transformers has no training with this second objective; set "
                "--config.objective.mlm.pair_weight=0 and --config.objective.mlm.span_boundary_weight=0"
            )
        heads: tuple[str, ...] = ("mlm", "pooler", "pair") if objective.sentence_objective else ("mlm",)
    elif isinstance(objective, ClmConfig):
        heads = ("mlm",)
    else:
        raise UserError(
            f"--baseline hf: transformers has no training for objective.name={cfg.objective.name}; mlm and clm can be "
            "compared"
        )
    plan = plan_export(model, heads)
    if plan.family is None:
        raise UserError(f"--baseline hf: no class of transformers holds this model ({', '.join(plan.unsupported)})")
    return auto_class(plan.architecture)


def _torch_process(
    exp: build.Experiment, prepared: Prepared, runner: BertjaxRunner, folder: Path, model_class: str
) -> TorchProcess:
    """Returns a process that trains the same network from the same initial weights."""
    cfg, objective = exp.programs[-1].phase.cfg, objective_config(exp.programs[-1].phase.cfg)
    network = exp.network
    params = build.unpadded_params(exp.init_state().params, network.config)
    config = float32_config(network.config)
    save_pretrained(folder / "model", params, config, heads=network.heads, tokenizer=prepared.tokenizer)
    baseline = BaselineConfig(
        batch_size=cfg.train.batch_size,
        masked=isinstance(objective, MlmConfig),
        mask_rate=objective.masking.mask_rate if isinstance(objective, MlmConfig) else 0.0,
        learning_rate=cfg.optimizer.learning_rate,
        weight_decay=cfg.optimizer.weight_decay,
        clip_norm=cfg.optimizer.clip_norm,
        seed=cfg.seed,
    )
    return TorchProcess(folder / "model", model_class, runner.examples(), baseline)
