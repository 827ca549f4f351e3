"""Estimates the cost of a run from its compiled step, without training (`--config.dry_run=true`)."""

from __future__ import annotations

import jax
from ml_collections import ConfigDict

from bertjax.config.fields import read_group
from bertjax.config.objectives import objective_class
from bertjax.config.optimizer import OptimizerConfig
from bertjax.config.phases import amounts
from bertjax.data import from_config
from bertjax.errors import UserError
from bertjax.experiment import build
from bertjax.experiment.abstract_inputs import abstract_batch, placeholder_vocabulary
from bertjax.experiment.teacher import attach_teacher, read_teacher
from bertjax.models.model import count_params
from bertjax.training.flops import bytes_per_device, peak_flops, training_flops
from bertjax.training.optimizers import lr_rules
from bertjax.training.param_rules import describe_rules
from bertjax.training.run_context import PhaseProgram
from bertjax.training.sharding import RULES
from bertjax.types import Vocabulary


def dry_run(cfg: ConfigDict) -> None:
    """Prints parameters, FLOPs and memory per device, tokens and epochs; writes nothing."""
    vocabulary, known = _vocabulary(cfg)
    uses_teacher = objective_class(cfg.objective.name).uses_teacher
    teacher = read_teacher(cfg, from_config.load_or_train_tokenizer(cfg)) if uses_teacher else None
    exp = build.make_experiment(cfg, vocabulary, None if teacher is None else teacher.network)
    attach_teacher(exp, teacher)
    model = exp.model
    state = exp.abstract_state()
    print(f"vocabulary        {model.vocab_size:,} tokens{'' if known else ' (as configured: not trained yet)'}")
    for name, network in exp.objective.networks.items():
        print(f"{name:<17} {count_params(*network):,} parameters at the true vocabulary size")
    print(f"tokens            {amounts(cfg, cfg.train.num_steps)[1]:,} at most")
    print(f"epochs            {_epochs(cfg)}")
    _print_peak(exp, _print_flops(exp))
    state_bytes = bytes_per_device(state, exp.mesh)
    print(f"state             {_mib(state_bytes)} per device ({exp.mesh.size} devices: {dict(exp.mesh.shape)})")
    if teacher is not None:
        teacher_bytes = bytes_per_device(exp.frozen, exp.mesh)
        state_bytes += teacher_bytes
        print(f"teacher           {_mib(teacher_bytes)} per device")
    memory = max(_compiled_memory(exp, program, state) for program in exp.programs)
    print(f"step              {_mib(memory)} of activations and buffers per device, from the compiled step")
    print(f"memory            {_mib(state_bytes + memory)} per device")
    config = read_group(cfg, OptimizerConfig)
    rates = lr_rules(config, state.params)
    for rules, name in ((config.decay_rules, "weight decay"), (rates, "learning rate"), (RULES, "sharding")):
        for line in describe_rules(rules, state.params, name):
            print(f"  {line}")


def _vocabulary(cfg: ConfigDict) -> tuple[Vocabulary, bool]:
    """Returns the vocabulary and True, or a placeholder of the configured size and False."""
    folder = from_config.tokenizer_folder(cfg)
    if folder is None or folder.exists():
        return from_config.load_or_train_tokenizer(cfg).vocabulary(), True
    return placeholder_vocabulary(cfg.data.vocab_size), False


def _epochs(cfg: ConfigDict) -> str:
    sequences = from_config.sequences_if_prepared(cfg)
    if sequences is None:
        return "unknown until the corpus is prepared (bertjax prepare)"
    sequences_read, _ = amounts(cfg, cfg.train.num_steps)
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


def _compiled_memory(exp: build.Experiment, program: PhaseProgram, state: object) -> int:
    """Returns the bytes of activations and buffers that the step needs per device."""
    with jax.set_mesh(exp.mesh):
        compiled = program.train_step.lower(state, exp.frozen, abstract_batch(exp, program)).compile()
    analysis = compiled.memory_analysis()
    if analysis is None:
        raise UserError("this backend does not report the memory of a compiled step")
    return analysis.temp_size_in_bytes


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"
