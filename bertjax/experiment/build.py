"""Builds the objects of a ConfigDict: objective, optimizer, jitted steps, and the inputs of the training loop."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from ml_collections import ConfigDict

from bertjax.checkpoint.manager import Checkpoints
from bertjax.checkpoint.settings import Checkpointing
from bertjax.config.fields import Reader
from bertjax.config.model import EncoderConfig
from bertjax.config.overrides import flatten
from bertjax.config.phases import Phase
from bertjax.data import from_config
from bertjax.data.from_config import Prepared
from bertjax.errors import UserError, comma_list
from bertjax.experiment.config import Config, check_batch_sizes, parse
from bertjax.io.jsonl import JsonlLog
from bertjax.io.tree_paths import map_with_path
from bertjax.models import encoder_decoder
from bertjax.models.linear import abstract
from bertjax.models.model import count_params
from bertjax.objectives.base import Network, Objective
from bertjax.runtime import platform
from bertjax.runtime.process_group import SINGLE_PROCESS, ProcessGroup
from bertjax.training.evaluate import make_evaluate
from bertjax.training.flops import peak_flops, training_flops
from bertjax.training.logging import Console, MetricWriter, TensorBoardWriter, WandbWriter
from bertjax.training.optimizer import ema_params
from bertjax.training.run_context import Batches, PhaseProgram, RunContext
from bertjax.training.schedule import join_schedules
from bertjax.training.sharding import host_copy, local_sequences, make_mesh, state_shardings
from bertjax.training.state import TrainState
from bertjax.training.step import abstract_state, compile_eval_step, compile_train_step, init_state
from bertjax.types import Params, Vocabulary

_SHOWN = 4  # sources that a line names
EVAL_SEED = 0
"""Seed of held-out masks: the same for all runs, so that their metrics can be compared."""


@dataclasses.dataclass
class Experiment:
    """The objects of one config on a device mesh, with a program per phase."""

    config: Config
    mesh: jax.sharding.Mesh
    schedule: optax.Schedule
    optimizer: optax.GradientTransformation
    programs: list[PhaseProgram]  # in the order of their phases
    frozen: Any = dataclasses.field(default_factory=dict)  # weights on the mesh that are not trained
    digests: dict[str, str] = dataclasses.field(default_factory=dict)  # digests of `frozen`, stored in checkpoints

    @property
    def cfg(self) -> ConfigDict:
        """The ConfigDict, for data, networks and tasks, which read their groups from it."""
        return self.config.cfg

    @property
    def objective(self) -> Objective:
        """Objective of the last phase; the objectives of all phases have the same parameters."""
        return self.programs[-1].objective

    @property
    def network(self) -> Network:
        """Main network: the one that an export holds."""
        return next(iter(self.objective.networks.values()))

    @property
    def model(self) -> EncoderConfig:
        """Config of the main network."""
        return self.network.config

    @property
    def train_step(self) -> Any:
        """Jitted training step of the last phase."""
        return self.programs[-1].train_step

    @property
    def eval_step(self) -> Any:
        """Jitted evaluation step of the last phase."""
        return self.programs[-1].eval_step

    def at(self, cursor: int) -> Experiment:
        """Returns the experiment as it is after `cursor` batches: the last phase is the one of the last batch."""
        begun = [program for program in self.programs if program.phase.start < cursor]
        return dataclasses.replace(self, programs=begun or self.programs[:1])

    def init_state(self) -> TrainState:
        """Returns a fresh train state on the mesh."""
        with jax.set_mesh(self.mesh):
            return init_state(
                self.mesh, self.objective, self.optimizer, self.cfg.seed, self.programs[-1].phase.cfg.train.batch_size
            )

    def abstract_state(self) -> TrainState:
        """Returns shapes, dtypes and shardings of the train state; allocates nothing."""
        state = abstract_state(self.objective, self.optimizer, self.programs[-1].phase.cfg.train.batch_size)
        return jax.tree.map(
            lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
            state,
            state_shardings(state, self.mesh),
        )

    def eval_params(self, state: TrainState) -> Params:
        """Returns the weights to evaluate and export: the moving average if there is one and `eval.use_ema` is set."""
        average = ema_params(state.opt_state) if self.cfg.eval.use_ema else None
        return state.params if average is None else average


def make_experiment(
    cfg: ConfigDict | Config,
    vocabulary: Vocabulary,
    teacher: Network | None = None,
    devices: Sequence[jax.Device] | None = None,
) -> Experiment:
    """Builds objective, optimizer and jitted steps; compiles and allocates nothing.

    Args:
        cfg: checked config.
        vocabulary: the tokenizer's vocabulary.
        teacher: the network that a student learns from, at its true vocabulary.
        devices: devices of the mesh, for work that one process does alone; all devices by default.

    Raises:
        UserError: the devices do not suffice, or phases or teacher do not fit the model.
    """
    config = cfg if isinstance(cfg, Config) else parse(cfg)
    mesh = check_devices(config, devices)
    rate = join_schedules([(start, phase.schedule) for start, phase in config.phases])
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):  # kernels are chosen for the platform of the mesh
        objectives = [make_objective(phase, vocabulary, teacher) for _, phase in config.phases]
    params = abstract(objectives[-1].init)
    parts = [
        (Phase(start, phase.cfg), objective, phase.optimizer.make(rate, params, config.run.seed))
        for (start, phase), objective in zip(config.phases, objectives, strict=True)
    ]
    _require_same_state(parts)
    names_sources = len({phase.data.sources for _, phase in config.phases}) > 1
    programs = [_program(*part, mesh, names_sources) for part in parts]
    return Experiment(config, mesh, rate, parts[-1][-1], programs)


def make_objective(config: Config, vocabulary: Vocabulary, teacher: Network | None = None) -> Objective:
    """Builds the objective of a config, or of one of its phases.

    Args:
        config: the whole config.
        vocabulary: the tokenizer's vocabulary.
        teacher: the network that a student learns from, at its true vocabulary.

    Raises:
        UserError: the objective needs a teacher and there is none, or it does not suit the student.
    """
    cfg, objective = config.cfg, config.objective
    max_examples = None if objective.is_finetuning else config.data.max_examples  # a task packs as its texts fit
    encoders = {
        group: dataclasses.replace(platform.platform_config(cfg, encoder), max_examples=max_examples)
        for group, encoder in objective.read_encoders(cfg, vocabulary).items()
    }
    if teacher is not None:
        model = encoders["model"]
        encoder = dataclasses.replace(
            platform.platform_config(cfg, teacher.config),
            padded_vocab_size=model.padded_vocab_size,
            attention_implementation=model.attention_implementation,
            max_examples=max_examples,
            norm_implementation=model.norm_implementation,
            remat="none",
        )
        teacher = Network(encoder, teacher.heads)
    return objective.build(encoders, vocabulary, teacher)


def _program(
    phase: Phase,
    objective: Objective,
    optimizer: optax.GradientTransformation,
    mesh: jax.sharding.Mesh,
    names_sources: bool,
) -> PhaseProgram:
    train, length = phase.cfg.train, phase.cfg.data.seq_len
    sources = f" of {comma_list(phase.cfg.data.sources, _SHOWN)}" if names_sources else ""
    compiled = functools.partial(
        compile_train_step,
        mesh,
        objective,
        optimizer,
        batch_size=train.batch_size,
        microbatches=train.microbatches,
        seed=phase.cfg.seed,
        dropout_impl=None if train.dropout_prng == "threefry" else train.dropout_prng,
        skip_nonfinite=train.on_nonfinite == "skip",
    )
    return PhaseProgram(
        phase=phase,
        objective=objective,
        train_step=compiled(),
        train_steps=compiled(multi_step=True) if train.steps_per_dispatch > 1 else None,
        eval_step=compile_eval_step(mesh, objective, EVAL_SEED),
        flops_per_token=lambda filled: training_flops(objective, filled * length),
        title=f"batches of {train.batch_size} sequences of {length} tokens{sources}",
    )


def _require_same_state(phases: list[tuple[Phase, Objective, optax.GradientTransformation]]) -> None:
    """Raises `UserError` if phases differ in the parameters, or in what they and the optimizer carry between steps."""

    def init(phase: Phase, objective: Objective, optimizer: optax.GradientTransformation) -> Any:
        params = objective.init(jax.random.key(0))
        return params, objective.init_carry(phase.cfg.train.batch_size), optimizer.init(params)

    def state(*part: Any) -> Any:
        of = jax.eval_shape(lambda: init(*part))
        return jax.tree_util.tree_structure(of), [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(of)]

    if len(phases) == 1:
        return
    last = state(*phases[-1])
    for part in phases[:-1]:
        if state(*part) != last:
            raise UserError(
                f"the phase from step {part[0].start} on has other parameters than the last one, another state of the "
                "optimizer, or carries a memory of another size; train.phases and train.initial_batch_size must leave "
                "all three as they are"
            )


def check_devices(cfg: ConfigDict | Config, devices: Sequence[jax.Device] | None = None) -> jax.sharding.Mesh:
    """Selects the platform and the compilation cache, checks mesh and batch size, and returns the mesh.

    `devices` are those of the mesh; all by default.

    Raises:
        UserError: the devices do not suffice for the platform, the mesh or the batch size.
    """
    config = cfg if isinstance(cfg, Config) else parse(cfg)
    platform.use_platform(config.run.platform)
    platform.enable_compile_cache(config.cfg)
    platform.check_determinism(config.cfg)
    mesh = make_mesh(config.mesh, devices)
    for _, phase in config.phases:
        check_batch_sizes(phase, mesh.shape["data"] * mesh.shape["fsdp"])
    return mesh


class Feed(NamedTuple):
    """Data of a run: batches, the evaluation of a phase, digests for checkpoints, and the number of training tokens."""

    batches: Batches
    evaluate: Callable[[PhaseProgram], Callable[[Params, Any], Mapping[str, float]]]
    digests: dict[str, str]
    tokens: int
    examples: Mapping[str, int] | None = None  # labeled examples of each split, for the model card


def corpus_feed(exp: Experiment, prepared: Prepared) -> Feed:
    """Returns the data of prepared corpora; every process reads its share of a batch."""
    share = functools.partial(local_sequences, mesh=exp.mesh)

    def evaluate(program: PhaseProgram) -> Callable[[Params, Any], Mapping[str, float]]:
        eval_sets = functools.partial(from_config.eval_sets, program.phase.cfg, prepared, share)
        return make_evaluate(program.eval_step, eval_sets, program.objective, exp.mesh)

    batches = from_config.training_pipeline(exp.cfg, prepared, share)
    return Feed(batches, evaluate, prepared.digests | exp.digests, from_config.total_tokens(prepared))


def make_run(
    exp: Experiment,
    feed: Feed,
    workdir: Path,
    checkpoints: Checkpoints,
    step: int,
    restored_meta: dict[str, Any] | None = None,
    processes: ProcessGroup = SINGLE_PROCESS,
) -> RunContext:
    """Builds the inputs of the training loop.

    Args:
        exp: the experiment.
        feed: its data.
        workdir: directory of metrics and logs.
        checkpoints: the checkpoint manager.
        step: step to start or resume from.
        restored_meta: meta of the checkpoint to resume from; None for a new run.
        processes: the processes that train together.
    """
    cfg = exp.cfg
    peak = peak_flops(exp.mesh.devices.flat[0].device_kind)
    return RunContext(
        config=exp.config,
        programs=[dataclasses.replace(each, evaluate=feed.evaluate(each)) for each in exp.programs],
        frozen=exp.frozen,
        schedule=exp.schedule,
        mesh=exp.mesh,
        batches=feed.batches,
        checkpoints=checkpoints,
        meta={"config": flatten(cfg), "data": feed.digests, "tokens": feed.tokens, "examples": feed.examples},
        writers=_writers(cfg, workdir, step),
        console=Console(step, cfg.train.num_steps),
        workdir=workdir,
        peak_flops=None if peak is None else peak * exp.mesh.size,
        eval_params=exp.eval_params,
        restored_meta=restored_meta,
        processes=processes,
    )


def open_checkpoints(
    cfg: ConfigDict, workdir: Path, read_only: bool = False, processes: ProcessGroup = SINGLE_PROCESS
) -> Checkpoints:
    """Opens the checkpoints of a work directory.

    Args:
        cfg: config with the retention settings.
        workdir: the work directory.
        read_only: changes nothing, not even the remains of an interrupted save.
        processes: the processes that save together.
    """
    settings = Reader(cfg)(Checkpointing)
    return Checkpoints(workdir / "checkpoints", settings, read_only=read_only, run_on_first=processes.run_on_first)


def _writers(cfg: ConfigDict, workdir: Path, step: int) -> list[MetricWriter]:
    if jax.process_index() != 0:
        return []
    writers: list[MetricWriter] = [JsonlLog(workdir / "metrics.jsonl", step)]
    if cfg.logging.tensorboard:
        writers.append(TensorBoardWriter(workdir / "tensorboard", step))
    if cfg.logging.wandb_project is not None:
        writers.append(WandbWriter(cfg.logging.wandb_project, workdir, flatten(cfg)))
    return writers


def describe_network(network: Network) -> str:
    """Returns size, number of parameters and dtype of a network in words."""
    config, heads = network
    decoder = "" if config.decoder_layers is None else f" and {config.decoder_layers} of a decoder"
    return (
        f"{config.num_layers} layers{decoder} of {config.hidden_size}, {config.num_heads} heads, "
        f"{config.vocab_size:,} tokens, {count_params(config, heads):,} parameters, matmuls in {config.compute_dtype}"
    )


def describe_networks(objective: Objective) -> list[str]:
    """Returns a line for every network, and of an encoder-decoder one for both."""
    lines = [f"{name}: {describe_network(network)}" for name, network in objective.networks.items()]
    model = objective.encoder_decoder
    if model is not None:
        shared = {"embeddings": ", one word table", "all": ", layers of the decoder are the encoder's"}
        number = encoder_decoder.count_params(model)
        lines.append(f"encoder-decoder: {number:,} parameters{shared.get(model.sharing, '')}")
    return lines


def unpadded_params(params: Params, config: EncoderConfig) -> Params:
    """Returns host copies of the parameters without the padding of the vocabulary, gathered from all processes."""
    return _map_vocabulary(host_copy(params), lambda leaf: leaf[: config.vocab_size])


def padded_params(params: Params, config: EncoderConfig) -> Params:
    """Appends zero rows to the parameters with a vocabulary axis; the logits of these rows are masked."""

    def pad(leaf: np.ndarray) -> np.ndarray:
        return np.pad(leaf, [(0, config.table_size - leaf.shape[0]), *[(0, 0)] * (leaf.ndim - 1)])

    return _map_vocabulary(params, pad)


HAS_VOCABULARY = re.compile(r"(.*/)?(word_embeddings/(embedding|delta)|mlm_head/(further_)?table|(mlm|span)_head/bias)")
"""Paths of the parameters whose first axis is the vocabulary."""


def _map_vocabulary(params: Params, function: Callable[[np.ndarray], np.ndarray]) -> Params:
    """Applies a function to the parameters whose first axis is the vocabulary."""
    return map_with_path(lambda path, leaf: function(leaf) if HAS_VOCABULARY.fullmatch(path) else leaf, params)
