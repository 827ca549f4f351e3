"""Estimates the cost of a run from its compiled step, without training (`--config.dry_run=true`)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import jax
from jax.sharding import NamedSharding
from ml_collections import ConfigDict

from bertjax.config.objectives import objective_class, require_pretraining
from bertjax.config.phases import count_sequences_and_tokens
from bertjax.data import from_config, tokenizer_from_config
from bertjax.errors import UserError
from bertjax.experiment import build
from bertjax.experiment.abstract_inputs import abstract_batch, find_vocabulary
from bertjax.experiment.config import parse
from bertjax.experiment.finetune import summary
from bertjax.experiment.task import read_task, require_task, resolve_config
from bertjax.experiment.task_feed import task_batches
from bertjax.experiment.teacher import attach_teacher, read_teacher
from bertjax.experiment.workdir import changed_keys
from bertjax.io.output import format_bytes
from bertjax.models import encoder_decoder
from bertjax.models.model import count_params
from bertjax.training.flops import bytes_per_device, peak_flops, training_flops
from bertjax.training.param_rules import describe_rules
from bertjax.training.run_context import PhaseProgram
from bertjax.training.sharding import BATCH, RULES
from bertjax.types import Batch


def dry_run(cfg: ConfigDict) -> None:
    """Prints parameters, FLOPs and memory per device, tokens and epochs of pretraining; writes nothing."""
    require_pretraining(cfg)
    vocabulary, known = find_vocabulary(cfg)
    uses_teacher = objective_class(cfg.objective.name).uses_teacher
    teacher = read_teacher(cfg, tokenizer_from_config.load_or_train_tokenizer(cfg)) if uses_teacher else None
    exp = build.make_experiment(cfg, vocabulary, None if teacher is None else teacher.network)
    attach_teacher(exp, teacher)
    print(f"vocabulary        {exp.model.vocab_size:,} tokens{'' if known else ' (as configured: not trained yet)'}")
    print(f"epochs            {_epochs(cfg)}")
    _print_costs(exp, max(_compiled_memory(exp, program, abstract_batch(exp, program)) for program in exp.programs))


def dry_run_task(cfg: ConfigDict, workdir: Path) -> None:
    """Reads a task and prints what its run would cost; writes nothing.

    Raises:
        UserError: config, model or data are unsuitable, or `workdir` holds another run.
    """
    require_task(cfg)
    build.check_devices(cfg)
    task = read_task(cfg, workdir, dry_run=True)
    batches = task_batches(cfg, task)
    cfg = resolve_config(cfg, task, batches)
    parse(cfg)
    changed_keys(workdir, cfg)
    exp = build.make_experiment(cfg, task.tokenizer.vocabulary())
    for line in summary(exp, task, batches):
        print(line)
    largest = batches.batch(int(batches.needed_sequences.argmax()))
    _print_costs(exp, _compiled_memory(exp, exp.programs[-1], _shapes(exp, largest)))


def _shapes(exp: build.Experiment, batch: Batch) -> dict[str, jax.ShapeDtypeStruct]:
    sharding = NamedSharding(exp.mesh, BATCH)
    return {name: jax.ShapeDtypeStruct(each.shape, each.dtype, sharding=sharding) for name, each in batch.items()}


def _print_costs(exp: build.Experiment, memory: int) -> None:
    """Prints the costs of an experiment whose step needs `memory` bytes of activations and buffers per device."""
    cfg, state = exp.cfg, exp.abstract_state()
    for name, network in exp.objective.networks.items():
        print(f"{name:<17} {count_params(*network):,} parameters at the true vocabulary size")
    if exp.objective.encoder_decoder is not None:
        number = encoder_decoder.count_params(exp.objective.encoder_decoder)
        print(f"encoder-decoder   {number:,} parameters, those that both share counted once")
    print(f"tokens            {count_sequences_and_tokens(cfg, cfg.train.num_steps)[1]:,} at most")
    _print_peak(exp, _print_flops(exp))
    state_bytes = bytes_per_device(state, exp.mesh)
    print(f"state             {format_bytes(state_bytes)} per device ({exp.mesh.size} devices: {dict(exp.mesh.shape)})")
    teacher_bytes = bytes_per_device(exp.frozen, exp.mesh)
    if teacher_bytes:
        print(f"teacher           {format_bytes(teacher_bytes)} per device")
    print(f"step              {format_bytes(memory)} of activations and buffers per device, from the compiled step")
    print(f"memory            {format_bytes(state_bytes + teacher_bytes + memory)} per device")
    optimizer = exp.config.optimizer
    rates = optimizer.lr_rules(state.params)
    for rules, name in ((optimizer.decay_rules, "weight decay"), (rates, "learning rate"), (RULES, "sharding")):
        for line in describe_rules(rules, state.params, name):
            print(f"  {line}")


def _epochs(cfg: ConfigDict) -> str:
    sequences = from_config.sequences_if_prepared(cfg)
    if sequences is None:
        return "unknown until the corpus is prepared (bertjax prepare)"
    sequences_read, _ = count_sequences_and_tokens(cfg, cfg.train.num_steps)
    return f"{sequences_read / sequences:.2f} of {sequences:,} sequences"


def _print_flops(exp: build.Experiment) -> float:
    """Prints one line per phase; returns the model FLOPs of the run, for sequences without padding."""
    total = 0.0
    ends = [program.phase.start for program in exp.programs[1:]] + [exp.cfg.train.num_steps]
    for program, end in zip(exp.programs, ends, strict=True):
        batch_size, length = program.phase.cfg.train.batch_size, program.phase.cfg.data.seq_len
        flops = training_flops(program.objective, length)
        step, steps = flops * batch_size * length, end - program.phase.start
        print(
            f"model FLOPs       {flops:.3e} per token, {step:.3e} per step, {step * steps:.3e} in total "
            f"({steps:,} steps x {batch_size} sequences x {length} tokens)"
        )
        total += step * steps
    return total


def _print_peak(exp: build.Experiment, flops: float) -> None:
    kind = exp.mesh.devices.flat[0].device_kind
    peak = peak_flops(kind)
    if peak is not None:
        hours = flops / (peak * exp.mesh.size) / 3600
        print(f"time              {hours / 0.4:.2f} h at 40 % of the peak of {exp.mesh.size} x {kind} (an assumption)")


def _compiled_memory(exp: build.Experiment, program: PhaseProgram, batch: Mapping[str, jax.ShapeDtypeStruct]) -> int:
    """Returns the bytes of activations and buffers that the step needs per device."""
    with jax.set_mesh(exp.mesh):
        compiled = program.train_step.lower(exp.abstract_state(), exp.frozen, batch).compile()
    analysis = compiled.memory_analysis()
    if analysis is None:
        raise UserError("this backend does not report the memory of a compiled step")
    return analysis.temp_size_in_bytes
