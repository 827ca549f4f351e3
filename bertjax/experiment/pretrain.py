"""Pretraining: prepares the text, starts or resumes a run, trains and exports."""

from __future__ import annotations

import contextlib
import io
import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
from ml_collections import ConfigDict

from bertjax.checkpoint.manager import Checkpoints
from bertjax.config import inputs
from bertjax.config.model import float32_config
from bertjax.config.overrides import copy_config
from bertjax.config.phases import count_sequences_and_tokens
from bertjax.data import from_config
from bertjax.data.corpus_report import corpus_warnings
from bertjax.data.from_config import Prepared
from bertjax.data.pipeline import PhasedPipeline
from bertjax.data.tokenizer_io import save_tokenizer
from bertjax.errors import comma_list, named
from bertjax.experiment import build
from bertjax.experiment.abstract_inputs import abstract_batch, require_best_metric
from bertjax.experiment.averaging import averaged_params, last_steps
from bertjax.experiment.build import Experiment
from bertjax.experiment.callbacks import Callback, TrainingStart, train
from bertjax.experiment.config import parse
from bertjax.experiment.export import export_run
from bertjax.experiment.growth import GROWING, needs_growth
from bertjax.experiment.hub_names import pin_commits
from bertjax.experiment.init_from import (
    load_initial_weights,
    require_checkpoint,
    require_init_source,
    restore_from_other_run,
)
from bertjax.experiment.load import SourceModel, StoredRun, load_source_model, write_teacher
from bertjax.experiment.processes import prepare_on_first_process, require_same_inputs, require_same_start
from bertjax.experiment.teacher import Teacher, attach_teacher, init_student_layers, read_teacher, require_teacher
from bertjax.experiment.workdir import (
    ChangedKey,
    changed_keys,
    has_checkpoints,
    hold_workdir,
    require_same_data,
    require_same_run,
    write_config,
)
from bertjax.hf.pretrained import PretrainedModel
from bertjax.inference.fill_mask import encode_sentences, fill_masks
from bertjax.runtime.process_group import SINGLE_PROCESS, ProcessGroup, connect_devices
from bertjax.training.loop import steps_per_dispatch
from bertjax.training.schedule import join_schedules
from bertjax.training.state import COUNTER_DEFAULTS, TrainState
from bertjax.types import Params

_NAMED = 3  # sources that are named before they are read
_SHOWN = 32  # sources whose shares are printed


def pretrain(
    cfg: ConfigDict,
    workdir: Path,
    processes: ProcessGroup = SINGLE_PROCESS,
    callback: Callback | None = None,
    stop_step: int | None = None,
) -> None:
    """Trains and exports a model; the same call resumes a run.

    All processes train; only the first one prepares the text, chooses the checkpoint to resume from, and writes files.

    Args:
        cfg: checked config.
        workdir: work directory of the run.
        processes: processes that train together.
        callback: called while the run trains.
        stop_step: step to save and end at, without an export, before the run is complete; None: at its end.

    Raises:
        UserError: config or data are unsuitable, or `workdir` holds another run.
        StoppedBySignal: after SIGTERM or SIGINT, when the state is saved.
    """
    require_same_start(cfg, workdir, processes)
    with hold_workdir(workdir, processes):
        _pretrain(cfg, workdir, processes, callback or Callback(), stop_step)


def _pretrain(
    cfg: ConfigDict, workdir: Path, processes: ProcessGroup, callback: Callback, stop_step: int | None
) -> None:
    connect_devices(build.check_devices(cfg))  # before tokenization, which may take hours
    pin_commits(cfg, workdir, processes)
    changes, resumes = processes.run_on_first(
        "the work directory", lambda: (changed_keys(workdir, cfg), has_checkpoints(workdir))
    )
    if not resumes:
        require_init_source(cfg)
        require_checkpoint(cfg)
    require_teacher(cfg)
    require_best_metric(cfg)
    if not resumes:
        print(f"reading {comma_list((source.text for source in inputs.all_sources(cfg)), _NAMED)}")
    prepared = prepare_on_first_process(cfg, processes)
    from_config.require_held_out(prepared)
    teacher = read_teacher(cfg, prepared.tokenizer)
    exp = build.make_experiment(cfg, prepared.vocabulary, None if teacher is None else teacher.network)
    attach_teacher(exp, teacher)
    require_same_inputs(exp, prepared.digests, processes)
    encode_sentences(prepared.tokenizer, cfg.eval.fill_mask, exp.model.max_position_embeddings)
    if not resumes:
        processes.run_on_first("the work directory", lambda: write_config(workdir, cfg))
    checkpoints = build.open_checkpoints(cfg, workdir, processes=processes)
    with contextlib.closing(checkpoints), processes.abort_on_error():
        with compile_meanwhile(exp, checkpoints.latest_step()):
            state, restored_meta = _restore_or_init(exp, prepared, teacher, checkpoints, changes, processes)
        # A resumed run keeps its old config.json until its checkpoint is accepted.
        processes.run_on_first("the work directory", lambda: _write_settings(workdir, cfg, prepared, teacher))
        step = int(state.step)
        if step >= cfg.train.num_steps:
            print(f"step {step} of {cfg.train.num_steps} is reached: nothing is left to train")
        else:
            state = _train(exp, prepared, workdir, checkpoints, state, restored_meta, processes, callback, stop_step)
        if stop_step is not None and int(state.step) == stop_step < cfg.train.num_steps:
            return
        steps = last_steps(cfg, checkpoints, step := int(state.step)) if cfg.export.at_end else (int(state.step),)
        params = exp.eval_params(state) if len(steps) == 1 else averaged_params(exp, checkpoints, steps)
    params = build.unpadded_params(params, exp.model)
    processes.run_on_first("the export", lambda: _finish(exp, prepared, workdir, step, params, steps))


def _write_settings(workdir: Path, cfg: ConfigDict, prepared: Prepared, teacher: Teacher | None) -> None:
    """Writes config, tokenizer and the description of the teacher into the work directory."""
    write_config(workdir, cfg)
    if teacher is not None:
        write_teacher(workdir, teacher.network)
    save_tokenizer(prepared.tokenizer, workdir / "tokenizer")


def _train(
    exp: build.Experiment,
    prepared: Prepared,
    workdir: Path,
    checkpoints: Checkpoints,
    state: TrainState,
    restored_meta: dict[str, Any] | None,
    processes: ProcessGroup,
    callback: Callback,
    stop_step: int | None,
) -> TrainState:
    feed = build.corpus_feed(exp, prepared)
    run = build.make_run(exp, feed, workdir, checkpoints, int(state.step), restored_meta, processes)
    run.stop_step = stop_step
    for line in summary(exp, prepared, sum(run.batches.sequences_per_epoch.values())):
        run.console.print(line)
    mixed = run.batches.mixture_lines(exp.cfg.train.num_steps) if isinstance(run.batches, PhasedPipeline) else []
    for line in mixed[:_SHOWN]:
        run.console.print(line)
    if more := len(mixed[_SHOWN:]):
        run.console.print(f"and {more:,} more sources: bertjax prepare prints all")
    callback.on_train_begin(TrainingStart(exp, run, int(state.step), prepared.tokenizer, prepared.vocabulary.counts))
    return train(run, state, callback)[0]


def summary(exp: build.Experiment, prepared: Prepared, sequences: int) -> list[str]:
    """Returns the lines that describe a run before its first step.

    Args:
        exp: the experiment.
        prepared: its text.
        sequences: sequences per epoch.
    """
    cfg = exp.cfg
    mesh = ", ".join(f"{axis}={size}" for axis, size in exp.mesh.shape.items())
    kind = exp.mesh.devices.flat[0].device_kind
    slots, _ = count_sequences_and_tokens(cfg, cfg.train.num_steps)
    last = exp.programs[-1].phase
    lines = build.describe_networks(exp.objective)
    several = f" of {jax.process_count()} processes" if jax.process_count() > 1 else ""
    lines += [
        f"devices: {exp.mesh.size} x {kind}{several} ({mesh}), jax {jax.__version__}",
        f"data: {from_config.total_tokens(prepared):,} tokens, "
        f"{sequences:,} sequences of {last.cfg.data.seq_len} tokens per epoch; {cfg.train.num_steps:,} steps of "
        f"{last.cfg.train.batch_size} sequences are {slots / sequences:.1f} epochs",
    ]
    lines += [f"until step {after.phase.start}: {program.title}" for program, after in itertools.pairwise(exp.programs)]
    return lines + corpus_warnings(cfg.data, from_config.training_pipeline(cfg, prepared), prepared.training)


def _restore_or_init(
    exp: build.Experiment,
    prepared: Prepared,
    teacher: Teacher | None,
    checkpoints: Checkpoints,
    changes: list[ChangedKey],
    processes: ProcessGroup,
) -> tuple[TrainState, dict[str, Any] | None]:
    """Returns state and meta of the newest checkpoint, or an initial state and None.

    An initial state is that of `resume_from`, or new with weights from `init_from`, from layers of the teacher, or
    fresh.
    """
    restored = checkpoints.restore(exp.abstract_state(), absent=COUNTER_DEFAULTS)
    if restored is None and exp.cfg.resume_from is not None:
        state, changes = restore_from_other_run(exp, prepared.tokenizer, processes)
        _print_schedule_change(exp, int(state.step), changes)
        return state, None
    if restored is None:
        state = init_student_layers(exp, teacher, exp.init_state())
        if exp.cfg.init_from is not None:
            source = load_source_model(exp.cfg.init_from)
            grows = exp.objective.encoder_decoder is None and needs_growth(source.config, exp.model)
            fresh = _held_out_loss(exp, prepared, state.params) if grows else None
            state = load_initial_weights(exp, prepared.tokenizer, state, source, processes)
            if fresh is not None:
                print(_growth_losses(exp, prepared, teacher, source, state, fresh))
        return state, None
    require_same_run(checkpoints.directory.parent, restored.step, restored.meta, exp.cfg)
    require_same_data(
        restored.meta,
        dict.fromkeys(restored.meta["data"], "") | prepared.digests | exp.digests,
        f"restore the text it was trained on, or give another {named('workdir')} and take the weights alone with "
        f"{named('config.init_from')}",
    )
    print(f"resuming at step {restored.step}")
    for key, before, now in changes:
        print(f"  {key}: {before} -> {now}")
    _print_schedule_change(exp, restored.step, changes)
    return restored.state, restored.meta


def _growth_losses(
    exp: build.Experiment,
    prepared: Prepared,
    teacher: Teacher | None,
    source: SourceModel,
    state: TrainState,
    fresh: float,
) -> str:
    """Compares the held-out loss of a model that has grown with that of its source and of fresh weights."""
    cfg = copy_config(exp.cfg)
    cfg.model.update({name: getattr(source.config, name) for name in GROWING})
    small = build.make_experiment(cfg, prepared.vocabulary, None if teacher is None else teacher.network)
    small.frozen = exp.frozen
    with contextlib.redirect_stdout(io.StringIO()):
        params = load_initial_weights(small, prepared.tokenizer, small.init_state(), source).params
    grown, before = _held_out_loss(exp, prepared, state.params), _held_out_loss(small, prepared, params)
    return (
        f"held-out loss before the first step: {grown:.4f} grown (init_growth={cfg.init_growth}), {before:.4f} source, "
        f"{fresh:.4f} fresh"
    )


def _held_out_loss(exp: build.Experiment, prepared: Prepared, params: Params) -> float:
    with jax.set_mesh(exp.mesh):
        return build.corpus_feed(exp, prepared).evaluate(exp.programs[0])(params, exp.frozen)["eval/loss"]


def _print_schedule_change(exp: build.Experiment, step: int, changes: list[ChangedKey]) -> None:
    """Prints how a change of length, schedule or peak changes the learning rate."""
    rated = ("train.num_steps", "train.phases", "schedule.", "optimizer.learning_rate")
    keys = [each for each in changes if each[0].startswith(rated)]
    if not keys:
        return
    old = copy_config(exp.cfg)
    for key, before, _ in keys:
        group, leaf = key.split(".")
        old[group][leaf] = before
    was = join_schedules([(start, phase.schedule) for start, phase in parse(old).phases])
    last = exp.cfg.train.num_steps - 1
    print(
        f"  learning rate of the next step: {float(was(step)):.3e} before, {float(exp.schedule(step)):.3e} now; "
        f"of the last one ({last}): {float(exp.schedule(last)):.3e}"
    )


def _finish(
    exp: build.Experiment, prepared: Prepared, workdir: Path, step: int, params: Params, averaged: tuple[int, ...]
) -> None:
    """Prints predictions for `eval.fill_mask`, and exports if the config says so."""
    print_mask_predictions(exp, prepared, params)
    if exp.cfg.export.at_end:
        meta = {"tokens": from_config.total_tokens(prepared)}
        export_run(StoredRun(exp, prepared.tokenizer, params, step, meta, averaged), workdir, workdir / "export")


def print_mask_predictions(exp: build.Experiment, prepared: Prepared, params: Params) -> None:
    """Prints the most likely tokens for the masks of `eval.fill_mask`.

    Args:
        exp: the experiment.
        prepared: its text and tokenizer.
        params: host parameters without vocabulary padding.
    """
    sentences = list(exp.cfg.eval.fill_mask)
    if not sentences:
        return
    networks = [each for each in exp.objective.networks.items() if each[1].stands_alone]
    name, network = next((each for each in networks if "mlm" in each[1].heads), next(iter(networks)))
    network_params = exp.objective.network_params(params, name)
    model = PretrainedModel(float32_config(network.config), network_params, network.heads)
    two_streams = exp.objective.two_streams
    predictions = fill_masks(model, prepared.tokenizer, sentences, two_streams=two_streams)
    for sentence, masks in zip(sentences, predictions, strict=True):
        print(sentence)
        print("    " + "  ".join(f"{filling.token} {filling.probability:.2f}" for filling in masks[0]))


@contextlib.contextmanager
def compile_meanwhile(exp: Experiment, latest_step: int | None) -> Iterator[None]:
    """Compiles the program of the first dispatch in a thread while the body of the `with` statement runs.

    jax keeps what it has compiled by shapes, so the first dispatch finds the program. On two processors a cold start
    gains half a second; on an accelerator compiling takes minutes, as does restoring a large state.

    Args:
        exp: Run to compile for, with its frozen weights attached.
        latest_step: Step of the newest checkpoint; None = there is none. Nothing is compiled after the last step, nor
            for a state from `resume_from`, whose step is known when it is restored.
    """
    if latest_step == exp.cfg.train.num_steps or (latest_step is None and exp.cfg.resume_from is not None):
        yield
        return
    thread = threading.Thread(target=_compile, args=(exp, latest_step or 0), name="compile")
    thread.start()
    try:
        yield
    finally:
        thread.join()


def _compile(exp: Experiment, step: int) -> None:
    program = exp.at(step + 1).programs[-1]
    batch, size = abstract_batch(exp, program), steps_per_dispatch(exp.config, step)
    train_step, inputs = (program.train_step, batch) if size == 1 else (program.train_steps, [batch] * size)
    with contextlib.suppress(Exception), jax.set_mesh(exp.mesh):  # the first dispatch compiles again and raises
        train_step.lower(exp.abstract_state(), exp.frozen, inputs).compile()
