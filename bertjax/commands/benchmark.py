"""Measures the training step of a config or the inference of a model on this machine, next to other libraries."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import jax

from bertjax.commands.arguments import Config, File, Flag, Model, Out, Overrides, as_list
from bertjax.commands.embed import read_item
from bertjax.commands.inference_speed import SIDES, Side, format_table, group_by_length, measure, sample_texts
from bertjax.commands.signatures import command
from bertjax.config.model import float32_config
from bertjax.data import from_config
from bertjax.data.builtin import iter_python_docs
from bertjax.data.from_config import Prepared
from bertjax.errors import UserError, named, require_at_least
from bertjax.experiment import build
from bertjax.experiment import config as config_of_run
from bertjax.experiment.config import command_config, parse
from bertjax.experiment.open_model import load_pretrained, open_model
from bertjax.experiment.teacher import attach_teacher, read_teacher
from bertjax.hf.export_plan import plan_export
from bertjax.hf.forward import max_input_length
from bertjax.hf.keymaps.family import SEQUENCE
from bertjax.hf.pretrained import PretrainedModel
from bertjax.hf.safe_files import auto_class
from bertjax.hf.save import save_pretrained
from bertjax.inference.text_batches import TextEncoder
from bertjax.io.atomic import write_json
from bertjax.io.output import Results, require_output
from bertjax.io.stderr import note
from bertjax.models.mesh import target_platform
from bertjax.objectives.clm import Clm
from bertjax.objectives.mlm import Mlm
from bertjax.runtime.platform import cpu_multiplies_bfloat16
from bertjax.tools.benchmark_report import bertjax_metrics, format_bertjax, format_scopes, format_torch, torch_metrics
from bertjax.tools.bertjax_runner import BertjaxRunner
from bertjax.tools.interleaved_timing import TimedRun, interleave
from bertjax.tools.measured_step import fit_batch
from bertjax.tools.torch_baseline import BaselineConfig, TorchProcess, fastest_trial

STEPS, TRACED_STEPS = 10, 3
MAX_SECONDS = 150.0  # of all repeats
MAX_TEXTS = 2000  # of inference


@command
def benchmark(
    config: Config | None = None,
    overrides: Overrides = None,
    *,
    inference: Model | None = None,
    texts: Annotated[Sequence[str] | Path | None, Flag(type=File, metavar="FILE")] = None,
    baseline: Literal["hf"] | None = None,
    repeats: int = 5,
    steps: int | None = None,
    warmup: int = 3,
    no_compile: bool = False,
    out: Out = None,
) -> Results:
    """Measure the training step of a config, or the inference of a model, next to other libraries.

    Saves no checkpoint. Inference is timed next to `transformers`, also compiled, and onnxruntime, as far as they are
    installed: classes for classifiers of texts, vectors for other models.

    Args:
        config: its step is measured (default: with --inference none)
        inference: a model whose inference is measured instead
        texts: for --inference: one text per line, or .jsonl (default: embedded English text of three lengths)
        baseline: hf: transformers and PyTorch, same weights and text, interleaved
        repeats: timed repeats per side
        steps: steps per repeat (default: 10, fewer where all repeats would take minutes)
        warmup: steps before the first repeat
        no_compile: do not try torch.compile for the baseline
        out: JSON file for all metrics

    Returns:
        The metrics.

    Raises:
        UserError: a count is not positive, the baseline cannot train this model, or a text cannot be read.

    Example:
        bertjax benchmark --config bert:mini --baseline hf
    """
    require_at_least(1, repeats=repeats, warmup=warmup, steps=steps)
    if (config is None) == (inference is None):
        raise UserError(f"give a config with {named('config')}, or a model with {named('inference')}")
    of_step = {"baseline": baseline, "steps": steps, "no_compile": no_compile or None}
    unread = [name for name, value in (of_step if config is None else {"texts": texts}).items() if value is not None]
    if unread or (config is None and overrides):
        flags = ", ".join(map(named, unread)) or "config keys"
        raise UserError(f"{flags}: not read with {named('inference' if config is None else 'config')}")
    if out is not None:
        require_output(out)
    if inference is not None:
        return _inference(inference, texts, repeats, out)
    assert config is not None
    return _training_step(config, overrides, baseline, repeats, steps, warmup, no_compile, out)


def _inference(model: Any, texts: Any, repeats: int, out: str | os.PathLike[str] | None) -> Results:
    """Measures the inference of a model next to other libraries."""
    chosen = list(itertools.islice(_texts(texts), MAX_TEXTS + 1))
    if len(chosen) > MAX_TEXTS:
        note(f"the first {MAX_TEXTS:,} texts are read")
    if not chosen:
        raise UserError(f"{named('texts')} holds no text")
    loaded = model if isinstance(model, PretrainedModel) else load_pretrained(model)
    if not isinstance(loaded, PretrainedModel):
        raise UserError(f"{named('inference')}: an encoder-decoder has neither vectors nor classes of texts")
    tokenizer = open_model(loaded).tokenizer
    task = "predict" if SEQUENCE in loaded.heads else "embed"
    encode = TextEncoder(tokenizer, max_input_length(loaded.config) or loaded.config.max_position_embeddings)
    groups = group_by_length(encode(chosen[:MAX_TEXTS]).lengths)
    with tempfile.TemporaryDirectory(prefix="bertjax-inference-") as name, contextlib.ExitStack() as processes:
        folder, file = Path(name) / "model", Path(name) / "texts.json"
        loaded.save_pretrained(folder)
        write_json(file, chosen[:MAX_TEXTS])
        sides = []
        for side in SIDES:
            note(f"starting {side}")
            sides.append(processes.enter_context(contextlib.closing(Side(side, folder, task, file))))
        results = measure(sides, groups, repeats)
    lines = [
        f"{task}: {sum(map(len, groups.values())):,} texts, medians of {repeats} turns, {os.cpu_count()} CPU cores"
    ]
    lines += format_table(results, groups)
    if out is not None:
        write_json(Path(out), {"task": task, "sides": results}, indent=2)
        lines.append(f"all metrics: {out}")
    return Results({"task": task, "sides": results}, lines)


def _texts(texts: Any) -> Iterator[str]:
    """Yields the texts of a list or of files that are not blank, or embedded ones."""
    if texts is None:
        return iter(sample_texts(iter_python_docs()))
    items = enumerate(as_list("texts", texts))
    return (text for number, item in items for text, _ in read_item(number, item, "text") if text.strip())


def _training_step(
    config: Any,
    overrides: Overrides,
    baseline: str | None,
    repeats: int,
    steps: int | None,
    warmup: int,
    no_compile: bool,
    out: str | os.PathLike[str] | None,
) -> Results:
    """Measures the training step of a config, alone or next to transformers."""
    cfg = command_config(config, overrides)
    if baseline is not None:  # it needs device memory as well
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    build.check_devices(cfg)
    model_class = None if baseline is None else baseline_class(parse(cfg))
    note("preparing the text")
    prepared = from_config.prepare(cfg)
    if baseline is not None and target_platform() == "cpu":
        fit_batch(cfg, prepared.tokenizer.size, jax.device_count())
    teacher = read_teacher(cfg, prepared.tokenizer)
    exp = build.make_experiment(cfg, prepared.vocabulary, None if teacher is None else teacher.network)
    attach_teacher(exp, teacher)
    lines: list[str] = []
    note("compiling the step")
    with contextlib.closing(BertjaxRunner(exp, prepared)) as runner:
        seconds = runner.run(warmup).seconds_per_step
        if model_class is None:
            steps = steps or _steps(repeats, seconds)
            metrics = _bertjax_metrics(runner, interleave([runner], repeats, steps)[0], lines)
        else:
            with (
                tempfile.TemporaryDirectory(prefix="bertjax-baseline-") as folder,
                contextlib.closing(_torch_process(exp, prepared, runner, Path(folder), model_class)) as process,
            ):
                with_bfloat16 = process.device != "cpu" or cpu_multiplies_bfloat16()
                trials = process.choose_mode(with_bfloat16, not no_compile)
                steps = steps or _steps(repeats, seconds + fastest_trial(trials).seconds)
                runs, torch_runs = interleave([runner, process], repeats, steps)
            metrics = _bertjax_metrics(runner, runs, lines)
            metrics["baseline"] = torch_metrics(process, trials, runs, torch_runs)
            lines += format_torch(metrics["baseline"])
    if out is not None:
        write_json(Path(out), metrics, indent=2)
        lines.append(f"all metrics: {out}")
    return Results(metrics, lines)


def _steps(repeats: int, seconds: float) -> int:
    """Returns the steps of a repeat, by the seconds of one step of all sides."""
    return max(1, min(STEPS, int(MAX_SECONDS / (repeats * seconds)) - 1))  # one more is not counted


def _bertjax_metrics(runner: BertjaxRunner, runs: Sequence[TimedRun], lines: list[str]) -> dict[str, Any]:
    """Returns the metrics of bertjax, with the time of every named scope, and adds them to the lines to print."""
    metrics = bertjax_metrics(runner, runs)
    scopes = runner.trace(TRACED_STEPS)
    lines += [*format_bertjax(metrics), *format_scopes(scopes)]
    seconds: dict[str, dict[str, float]] = {}
    for scope, scope_seconds in scopes.items():
        seconds.setdefault(scope.title, {})[scope.direction] = scope_seconds
    return metrics | {"work_seconds": seconds}


def baseline_class(config: config_of_run.Config) -> str:
    """Returns the class of `transformers` that trains the same model; raises `UserError` if there is none."""
    objective, model = config.objective, config.model
    if model.pad_token_id >= model.vocab_size:  # of the preset; a tokenizer that is trained has another one
        model = dataclasses.replace(model, pad_token_id=0)
    if isinstance(objective, Mlm):
        if objective.example_format == "sop_pairs" or objective.span_boundary_weight or objective.masked_next_token:
            raise UserError(
                f"{named('baseline', 'hf')}: transformers has no training with this second objective; set "
                f"{named('config.objective.mlm.pair_weight', 0)} and "
                f"{named('config.objective.mlm.span_boundary_weight', 0)}"
            )
        heads: tuple[str, ...] = ("mlm", "pooler", "pair") if objective.sentence_objective else ("mlm",)
    elif isinstance(objective, Clm):
        heads = ("mlm",)
    else:
        raise UserError(
            f"{named('baseline', 'hf')}: transformers has no training for objective.name={config.cfg.objective.name}; "
            "mlm and clm can be compared"
        )
    plan = plan_export(model, heads)
    if plan.family is None:
        raise UserError(
            f"{named('baseline', 'hf')}: no class of transformers holds this model ({', '.join(plan.unsupported)})"
        )
    return auto_class(plan.architecture)


def _torch_process(
    exp: build.Experiment, prepared: Prepared, runner: BertjaxRunner, folder: Path, model_class: str
) -> TorchProcess:
    """Returns a process that trains the same network from the same initial weights."""
    phase = exp.config.phases[-1].config
    cfg, objective = phase.cfg, phase.objective
    network = exp.network
    params = build.unpadded_params(exp.init_state().params, network.config)
    config = float32_config(network.config)
    save_pretrained(folder / "model", params, config, heads=network.heads, tokenizer=prepared.tokenizer)
    baseline = BaselineConfig(
        batch_size=cfg.train.batch_size,
        masked=isinstance(objective, Mlm),
        mask_rate=objective.masking.mask_rate if isinstance(objective, Mlm) else 0.0,
        learning_rate=cfg.optimizer.learning_rate,
        weight_decay=cfg.optimizer.weight_decay,
        clip_norm=cfg.optimizer.clip_norm,
        seed=cfg.seed,
    )
    return TorchProcess(folder / "model", model_class, runner.examples(), baseline)
