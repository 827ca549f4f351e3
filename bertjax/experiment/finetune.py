"""`bertjax finetune`: a task on the weights of a folder or a run, on the loop of pretraining."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from bertjax.checkpoint.manager import Checkpoints
from bertjax.config import parse, parse_objective
from bertjax.config.defaults import base_config
from bertjax.config.fields import PRESET, settings_of
from bertjax.config.model import ComputeConfig, EncoderConfig
from bertjax.config.objectives import objective_class
from bertjax.config.objectives.task import TaskObjectiveConfig
from bertjax.config.task import TASK_KINDS, TaskConfig
from bertjax.data.tokenizer import Tokenizer
from bertjax.data.tokenizer_io import load_tokenizer, save_tokenizer
from bertjax.errors import UserError
from bertjax.experiment import build
from bertjax.experiment.callbacks import Callback, TrainingStart, train
from bertjax.experiment.export import export_params
from bertjax.experiment.init_from import load_initial_weights
from bertjax.experiment.load import SourceModel, load_source_model, require_model
from bertjax.experiment.workdir import changed_keys, has_checkpoints, read_config, require_same_run, write_config
from bertjax.finetuning.batches import EvalBatches, TaskBatches, sequence_length
from bertjax.finetuning.evaluate import EvalResult, make_evaluator
from bertjax.finetuning.objective import TaskObjective
from bertjax.finetuning.readers.examples import Examples
from bertjax.finetuning.readers.load import collect_labels, read_examples
from bertjax.finetuning.tasks import TaskData, make_features
from bertjax.models.model import count_params
from bertjax.runtime.process_group import SINGLE_PROCESS, ProcessGroup
from bertjax.training.sharding import local_sequences, make_mesh
from bertjax.training.state import COUNTER_DEFAULTS, TrainState
from bertjax.types import Params

_HEADS = {"sequence_classification": "sequence_head", "token_classification": "token_head"}
_HEADS |= {"question_answering": "answer_head"}


_LINES = 50  # of training figures: whoever reads them more often waits for the device more often
_MANY_UPDATES = {"cpu": (150, 1500)}
_MANY_UPDATES_ELSEWHERE = 1500, 15_000
"""From so many updates on, one more number of rows saves more than the compilation for it costs."""


@dataclasses.dataclass(frozen=True, eq=False)
class Split:
    """Labelled examples as they were read, and as the model reads them."""

    examples: Examples
    data: TaskData


@dataclasses.dataclass(frozen=True, eq=False)
class Task:
    """A task with its data, for one model's tokenizer; `source` is None where a run is taken up again."""

    config: TaskConfig
    tokenizer: Tokenizer
    model: EncoderConfig
    labels: tuple[str, ...]
    train: Split
    held_out: Split | None
    source: SourceModel | None

    @property
    def notes(self) -> list[str]:
        splits = [("train", self.train), *([("eval", self.held_out)] if self.held_out else [])]
        return [f"{name}: {note}" for name, split in splits for note in split.data.notes]


def finetune(
    cfg: ConfigDict, workdir: Path, processes: ProcessGroup = SINGLE_PROCESS, callback: Callback | None = None
) -> dict[str, float]:
    """Trains what is left of the run in `workdir`, scores it, and exports it; returns the held-out figures."""
    require_task(cfg)
    build.check_devices(cfg)
    task = read_task(cfg, workdir)
    return train_task(cfg, task, workdir, processes, callback)


def require_task(cfg: ConfigDict) -> None:
    """Raises `UserError` for a config that is no task, or says what follows from the task."""
    if not objective_class(cfg.objective.name).is_finetuning:
        raise UserError(
            f"objective.name={cfg.objective.name} is pretraining: use `bertjax pretrain`, or set it to task"
        )
    default = base_config()
    for key, instead in (("num_steps", "epochs"), ("batch_size", "batch_size")):
        if cfg.train[key] != default.train[key]:
            raise UserError(f"train.{key} follows from the task: set task.{instead}, and leave train.{key} alone")
    if cfg.train.phases or cfg.train.initial_batch_size:
        raise UserError("train.phases and train.initial_batch_size are for pretraining: a task has one stage")
    if cfg.init_from is None:
        raise UserError(
            "init_from is None: name what to finetune, a Hugging Face folder, an export or the work folder of a run "
            "(--config.init_from=FOLDER)"
        )


def read_task(cfg: ConfigDict, workdir: Path) -> Task:
    """The model that is finetuned, or that of the run to take up again, and the data as it reads them."""
    config = parse_objective.task_config(cfg)
    source = None
    if has_checkpoints(workdir):
        stored = read_config(workdir)
        tokenizer = load_tokenizer(workdir / "tokenizer")
        model = parse_objective.encoder_config(stored, tokenizer.vocabulary())
    else:
        require_model(Path(cfg.init_from).expanduser())
        source = load_source_model(cfg.init_from)
        model, tokenizer = source.config, source.tokenizer
    examples = read_examples(config, "train", errors=cfg.data.encoding_errors)
    labels = collect_labels(config, examples)
    training = Split(examples, make_features(config, examples, tokenizer, labels, training=True))
    held_out = None
    if config.eval:
        examples = read_examples(config, "eval", errors=cfg.data.encoding_errors)
        held_out = Split(examples, make_features(config, examples, tokenizer, labels))
    return Task(config, tokenizer, model, labels, training, held_out, source)


def train_task(
    cfg: ConfigDict,
    task: Task,
    workdir: Path,
    processes: ProcessGroup = SINGLE_PROCESS,
    callback: Callback | None = None,
    **batch_shapes: Any,
) -> dict[str, float]:
    """`finetune` of data that are read; `batch_shapes` are rows and examples of a row, as `TaskBatches` takes them."""
    mesh = make_mesh(parse_objective.mesh_config(cfg))
    batches = task_batches(cfg, task, mesh, **batch_shapes)
    cfg = resolve_config(cfg, task, batches)
    parse.check(cfg)
    changes, resumes = processes.run_on_first(
        "the work folder", lambda: (changed_keys(workdir, cfg), has_checkpoints(workdir))
    )
    exp = build.make_experiment(cfg, task.tokenizer.vocabulary())
    if not resumes:
        processes.run_on_first("the work folder", lambda: write_config(workdir, cfg))
    checkpoints = build.open_checkpoints(cfg, workdir, processes=processes)
    callback = callback or Callback()
    feed = task_feed(exp, task, batches, callback.on_task_scores)
    with contextlib.closing(checkpoints), processes.abort_on_error():
        state, restored_meta = _resume_or_begin(exp, task, feed, checkpoints)
        for key, before, now in changes:
            print(f"  {key}: {before} -> {now}")
        processes.run_on_first("the work folder", lambda: _write_down(workdir, cfg, task))
        figures: dict[str, float] = {}
        if int(state.step) < cfg.train.num_steps:
            state, figures = _train(exp, task, feed, callback, workdir, checkpoints, state, restored_meta, processes)
        step, params = _taken(exp, checkpoints, state)
        if not figures or step != int(state.step):  # the loop has not measured these weights just now
            with jax.set_mesh(exp.mesh):
                figures = dict(feed.evaluate(exp.programs[-1])(params, exp.frozen))
        if step != int(state.step) and cfg.report.enabled:
            processes.run_on_first("the report", lambda: callback.on_best_params(workdir, int(state.step), step))
    print_scores(cfg, step, figures)
    host = build.unpadded_params(params, exp.model)
    processes.run_on_first("the export", lambda: _export(exp, task, host, step, feed, workdir))
    return figures


def task_batches(
    cfg: ConfigDict, task: Task, mesh: jax.sharding.Mesh, sizes: Sequence[int] = (), min_examples: int = 0
) -> TaskBatches:
    """The batches of all epochs, in rows that every device gets equally many of."""
    config, features = task.config, task.train.data.features
    return TaskBatches(
        features,
        batch_size=config.batch_size,
        epochs=config.epochs,
        seed=cfg.seed,
        pad_id=task.tokenizer.pad_id,
        vocab_size=task.model.vocab_size,
        seq_len=_row_length(task),
        packing=config.packing,
        sequence_multiple=mesh.shape["data"] * mesh.shape["fsdp"] * cfg.train.microbatches,
        share=functools.partial(local_sequences, mesh=mesh),
        num_batch_shapes=_row_counts(cfg, config, len(features), mesh.devices.flat[0].platform),
        sizes=sizes,
        min_examples=min_examples,
    )


def _row_counts(cfg: ConfigDict, config: TaskConfig, count: int, platform: str) -> int:
    """`task.num_batch_shapes`, or what suits a run over `count` windows on this platform."""
    if cfg.train.steps_per_dispatch > 1:
        if config.num_batch_shapes not in (None, 1):
            raise UserError(
                f"task.num_batch_shapes={config.num_batch_shapes}: with train.steps_per_dispatch > 1 all batches have "
                "one shape; set it to 1, or set train.steps_per_dispatch=1"
            )
        return 1
    updates = config.epochs * count / config.batch_size
    enough = _MANY_UPDATES.get(platform, _MANY_UPDATES_ELSEWHERE)
    return config.num_batch_shapes or 1 + sum(updates >= steps for steps in enough)


def _row_length(task: Task) -> int:
    """Tokens of a row: `max_len` where examples share it, else as few as the longest example has."""
    if task.config.packing:
        return -(-task.config.max_length // 8) * 8
    splits = [task.train, *([task.held_out] if task.held_out else [])]
    return max(sequence_length(split.data.features, None) for split in splits)


def resolve_config(cfg: ConfigDict, task: Task, batches: TaskBatches) -> ConfigDict:
    """The config with what follows from model and data: sizes, labels, rows, updates, intervals, weights of classes."""
    cfg, default, kind = copy.deepcopy(cfg), base_config(), task.config.kind
    labels = {"regression": ("LABEL_0",), "qa": task.model.labels}.get(kind, task.labels)
    wanted = dataclasses.replace(task.model, labels=labels, padded_vocab_size=None)
    told = {name: value for name, value in cfg.model.items() if value != PRESET}
    cfg.model.preset = "none"
    for name, value in vars(wanted).items():
        if name in cfg.model and name not in settings_of(ComputeConfig) and name not in told:
            cfg.model[name] = value
    cfg.data.vocab_size, cfg.data.seq_len = task.model.vocab_size, batches.seq_len
    cfg.data.tokenizer = str(cfg.init_from)
    cfg.train.num_steps, cfg.train.batch_size = batches.num_steps, batches.num_sequences
    each = max(1, round(batches.steps_per_epoch / cfg.task.evals_per_epoch))
    default.train.num_steps = batches.num_steps
    for group in ("eval", "checkpoint"):
        if cfg[group].interval_steps == default[group].interval_steps:
            cfg[group].interval_steps = each
    if cfg.train.log_interval_steps == default.train.log_interval_steps:
        cfg.train.log_interval_steps = -(-batches.num_steps // _LINES)
    cfg.checkpoint.best_metric = parse.best_metric(cfg)
    if cfg.task.unfreeze_epochs is not None:
        cfg.optimizer.unfreeze_every = max(1, round(cfg.task.unfreeze_epochs * batches.steps_per_epoch))
    cfg.task.class_weights = class_weights(TaskObjectiveConfig.from_config(cfg), task)
    return cfg


def class_weights(config: Any, task: Task) -> tuple[str, ...]:
    """The weights in numbers: n / (K count) of every label ("balanced"), or the root of that; 1 on average."""
    if not config.class_weights or config.class_weights[0] not in ("balanced", "sqrt"):
        return tuple(config.class_weights)
    found = task.train.data.features.labels[config.spec.label_array]
    counts = np.bincount(found[found >= 0], minlength=len(task.labels)).astype(np.float64)
    absent = [label for label, count in zip(task.labels, counts, strict=True) if not count]
    if absent:
        raise UserError(
            f"task.class_weights={config.class_weights[0]}: no training example has the label {absent[0]!r}; give the "
            "weights in numbers"
        )
    weights = 1.0 / counts if config.class_weights[0] == "balanced" else counts**-0.5
    weights *= counts.sum() / (weights * counts).sum()
    return tuple(f"{weight:.6g}" for weight in weights)


def task_feed(
    exp: build.Experiment, task: Task, batches: TaskBatches, tell: Callable[[EvalResult], None] = lambda scored: None
) -> build.Feed:
    """What the loop reads of a task; `tell` gets what a report shows beside the figures of an evaluation."""

    measured = _measured(exp, task, batches.seq_len, tell)
    digests = {"tokenizer": task.tokenizer.digest, "task": _digest(task)}
    counts = {"train": len(task.train.examples)} | ({"eval": len(task.held_out.examples)} if task.held_out else {})
    return build.Feed(batches, lambda program: measured, digests, len(task.train.data.features.tokens), counts)


def _measured(
    exp: build.Experiment, task: Task, seq_len: int, tell: Callable[[EvalResult], None]
) -> Callable[[Params, Any], Mapping[str, float]]:
    """The held-out figures as a function of the parameters; none where nothing is held out."""
    if task.held_out is None:
        return lambda params, frozen: {}
    rows = EvalBatches(
        task.held_out.data.features,
        batch_size=exp.cfg.eval.batch_size,
        pad_id=task.tokenizer.pad_id,
        vocab_size=task.model.vocab_size,
        seq_len=seq_len,
        packing=task.config.packing,
        share=functools.partial(local_sequences, mesh=exp.mesh),
    )
    objective = exp.objective
    assert isinstance(objective, TaskObjective)
    return make_evaluator(task.config, objective, exp.mesh, task.held_out.examples, task.held_out.data, rows, tell)


def _digest(task: Task) -> str:
    """Of what is trained on: windows, labels and their names."""
    features = task.train.data.features
    hashed = hashlib.sha256(repr(task.labels).encode())
    for array in (features.tokens, features.offsets, *(features.labels[name] for name in sorted(features.labels))):
        hashed.update(np.ascontiguousarray(array).data)
    return hashed.hexdigest()[:32]


def _resume_or_begin(
    exp: build.Experiment, task: Task, feed: build.Feed, checkpoints: Checkpoints
) -> tuple[TrainState, dict[str, Any] | None]:
    restored = checkpoints.restore(exp.abstract_state(), absent=COUNTER_DEFAULTS)
    if restored is not None:
        require_same_run(checkpoints.directory.parent, restored.step, restored.meta, exp.cfg)
        if restored.meta["data"] != feed.digests:
            raise UserError(
                "the data of this run changed since its checkpoint; bring back what it was trained on, or give another "
                "--workdir"
            )
        print(f"resuming at step {restored.step}")
        return restored.state, restored.meta
    return initial_state(exp, task), None


def initial_state(exp: build.Experiment, task: Task) -> TrainState:
    """The weights of `init_from` under a fresh head, or all of them fresh."""
    state = exp.init_state()
    if exp.cfg.task.from_scratch:
        print(f"the architecture of {exp.cfg.init_from}, its weights drawn anew (task.from_scratch)")
        return state
    assert task.source is not None
    return load_initial_weights(exp, task.tokenizer, state, _without_other_heads(task.source, exp))


def _without_other_heads(source: SourceModel, exp: build.Experiment) -> SourceModel:
    """Heads of other tasks are left out, and so is that of this kind where its labels are others."""
    own = TASK_KINDS[exp.cfg.task.kind].head
    kept = own if source.config.labels == exp.model.labels or own == "question_answering" else ""
    dropped = {name for head, name in _HEADS.items() if head != kept}
    params = {name: leaf for name, leaf in source.params.items() if name not in dropped}
    return source._replace(params=params, config=dataclasses.replace(source.config, labels=exp.model.labels))


def _write_down(workdir: Path, cfg: ConfigDict, task: Task) -> None:
    write_config(workdir, cfg)
    save_tokenizer(task.tokenizer, workdir / "tokenizer")


def _train(
    exp: build.Experiment,
    task: Task,
    feed: build.Feed,
    callback: Callback,
    workdir: Path,
    checkpoints: Checkpoints,
    state: TrainState,
    restored_meta: dict[str, Any] | None,
    processes: ProcessGroup,
) -> tuple[TrainState, dict[str, float]]:
    run = build.make_run(exp, feed, workdir, checkpoints, int(state.step), restored_meta, processes)
    for line in summary(exp, task, feed):
        run.console.print(line)
    counts = np.bincount(task.train.data.features.tokens, minlength=task.tokenizer.size)
    assert isinstance(feed.batches, TaskBatches)
    start = TrainingStart(
        exp, run, int(state.step), task.tokenizer, counts, task.config, mean_batch_size=feed.batches.mean_sequences
    )
    callback.on_train_begin(start)
    return train(run, state, callback)


def summary(exp: build.Experiment, task: Task, feed: build.Feed) -> list[str]:
    """What is about to run."""
    cfg, batches = exp.cfg, feed.batches
    assert isinstance(batches, TaskBatches)
    (own, heads), features = exp.network, task.train.data.features
    named = f", labels {', '.join(task.labels[:12])}" + (" ..." if len(task.labels) > 12 else "") if task.labels else ""
    return [
        f"model: {own.num_layers} layers of {own.hidden_size}, {own.num_heads} heads, {own.vocab_size:,} pieces, "
        f"{count_params(own, heads):,} parameters, products in {own.compute_dtype}",
        f"task: {task.config.kind}, {len(features):,} examples{named}",
        f"data: {cfg.train.num_steps:,} steps of {task.config.batch_size} examples in {batches.num_sequences} rows of "
        f"{batches.seq_len} tokens are {task.config.epochs:g} epochs; padding {batches.padding:.1%}",
        *task.notes,
    ]


def _taken(exp: build.Experiment, checkpoints: Checkpoints, state: TrainState) -> tuple[int, Params]:
    """The weights to score and export: the last, or the best of those that were scored."""
    step = int(state.step)
    if exp.cfg.task.export_checkpoint == "best" and exp.cfg.checkpoint.best_metric is not None:
        best = checkpoints.best_step()
        if best is not None and best != step:
            restored = checkpoints.restore(exp.abstract_state(), best, COUNTER_DEFAULTS)
            assert restored is not None
            return best, exp.eval_params(restored.state)
    return step, exp.eval_params(state)


def print_scores(cfg: ConfigDict, step: int, figures: Mapping[str, float]) -> None:
    if figures:
        shown = (f"{name.removeprefix('eval/')} {value:.4f}" for name, value in figures.items())
        print(f"held out, step {step}: {', '.join(shown)}")


def _export(exp: build.Experiment, task: Task, params: Params, step: int, feed: build.Feed, workdir: Path) -> None:
    if exp.cfg.export.at_end:
        export_params(
            exp,
            task.tokenizer,
            params,
            step,
            feed.tokens,
            workdir,
            workdir / "export",
            num_examples=feed.examples,
        )
