"""The config of a run: every group of settings, as the class that uses it; `parse` makes it from a ConfigDict.

`python -m bertjax.experiment.config` writes the list of keys, `bertjax/config/keys.json`.
"""

from __future__ import annotations

import copy
import dataclasses
import os
import typing
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Self

from ml_collections import ConfigDict

from bertjax.checkpoint.settings import Checkpointing
from bertjax.config import keys
from bertjax.config.data import DataConfig, FilterConfig, SourceMixtureConfig
from bertjax.config.distributed import DistributedConfig, MeshConfig, check_batch_size
from bertjax.config.encoder_decoder import DecoderConfig
from bertjax.config.extensions import OBJECTIVES, TASK_KINDS
from bertjax.config.fields import Reader, Setting, Settings, declare
from bertjax.config.inputs import eval_sources, evaluation_sources, sources
from bertjax.config.model import NETWORK_GROUPS, EncoderConfig, GeneratorConfig, PresetConfig, network_keys
from bertjax.config.objectives import STREAM_FORMATS, ObjectiveChoice, objective_class
from bertjax.config.overrides import check_keys, set_values
from bertjax.config.overrides import load_config as read_config_file
from bertjax.config.phases import list_phases
from bertjax.config.run import ExportConfig, LoggingConfig, ReportConfig, RunConfig
from bertjax.config.task import TaskConfig
from bertjax.errors import UserError
from bertjax.objectives.base import Objective
from bertjax.objectives.masking.settings import Masking
from bertjax.objectives.seq2seq import Seq2Seq
from bertjax.training.optimizer import Optimizer
from bertjax.training.schedule import Schedule
from bertjax.training.settings import Evaluation, Profile, Train


class PhaseConfig(NamedTuple):
    """A part of the run: its first batch and its config."""

    start: int
    config: Config


@dataclasses.dataclass(frozen=True)
class Config:
    """All settings of a run, checked. A group is read before those that follow it here.

    Attributes:
        cfg: the ConfigDict, for data, networks and tasks, which read their groups from it.
        phases: the configs of the run's phases, the first from batch 0; () in the config of a phase.
    """

    cfg: ConfigDict
    run: RunConfig
    data: DataConfig
    filters: FilterConfig
    source_mixture: SourceMixtureConfig
    distributed: DistributedConfig
    train: Train
    eval: Evaluation
    checkpoint: Checkpointing
    profile: Profile
    export: ExportConfig
    logging: LoggingConfig
    report: ReportConfig
    optimizer: Optimizer
    schedule: Schedule
    model: EncoderConfig
    objective: Objective
    mesh: MeshConfig
    phases: tuple[PhaseConfig, ...] = ()

    @classmethod
    def read(cls, cfg: ConfigDict) -> Self:
        """Makes all groups of a config; raises `UserError` for a value that is not allowed."""
        reader = Reader(cfg)
        groups = {name: reader(hint) for name, hint in _GROUP_FIELDS.items() if name != "objective"}
        return cls(cfg=cfg, objective=reader(OBJECTIVES.load(cfg.objective.name)), **groups)

    @property
    def best_metric(self) -> str | None:
        """The metric that selects the best checkpoint: `checkpoint.best_metric`, else a task's main metric."""
        metric = self.objective.main_metric
        return f"eval/{metric}" if self.checkpoint.best_metric is None and metric else self.checkpoint.best_metric


def read_objective(cfg: ConfigDict) -> Objective:
    """Reads the objective that `objective.name` chooses; raises `UserError` for a value that is not allowed."""
    objective: Objective = Reader(cfg)(OBJECTIVES.load(cfg.objective.name))
    return objective


def parse(cfg: ConfigDict) -> Config:
    """Returns the config of a run and of its phases, with every check that needs neither text nor devices.

    Raises:
        UserError: A key or value is not allowed; names the dotted key.
    """
    check_keys(cfg)
    _check_run(cfg)
    listed, phases = list_phases(cfg), []
    for start, phase in listed:
        try:
            phases.append(PhaseConfig(start, Config.read(phase)))
            _check_phase(phases[-1].config)
        except UserError as error:
            where = f"from step {start} on: " if len(listed) > 1 else ""
            raise UserError(f"{where}{error}") from None
    whole = phases[-1].config if listed[-1].cfg is cfg else Config.read(cfg)
    if whole.eval.patience is not None and whole.best_metric is None:
        raise UserError(
            "eval.patience waits for a better checkpoint.best_metric, which is None: name a metric such as "
            "eval/mlm_loss"
        )
    return dataclasses.replace(whole, phases=tuple(phases))


def load_config(config: str | os.PathLike[str] | ConfigDict, overrides: Mapping[str, Any] | None = None) -> ConfigDict:
    """Returns a config, checked, to look at, change and pass on.

    Args:
        config: What `--config` takes, such as `bert:base` or `my/config.py:ARGUMENT`; or a ConfigDict, which is copied.
        overrides: Values by dotted key, such as `{"train.num_steps": 100, "data.sources": "text:corpus/*.txt"}`.

    Raises:
        UserError: The file cannot be read, or a key or value is not allowed.
    """
    cfg = copy.deepcopy(config) if isinstance(config, ConfigDict) else read_config_file(os.fspath(config))
    parse(set_values(cfg, overrides or {}))
    return cfg


def command_config(
    config: str | os.PathLike[str] | ConfigDict, overrides: Mapping[str, Any] | None = None
) -> ConfigDict:
    """Returns the checked config of a command that cannot estimate (`dry_run=true`) what it would cost."""
    cfg = load_config(config, overrides)
    if cfg.dry_run:
        raise UserError("dry_run=true estimates what pretrain and finetune cost; this command has no such estimate")
    return cfg


def _check_run(cfg: ConfigDict) -> None:
    """Checks what is the same in all phases."""
    if cfg.deterministic and cfg.train.dropout_prng == "rbg":
        raise UserError(
            f"deterministic=true: train.dropout_prng={cfg.train.dropout_prng} gives other numbers on another mesh or "
            "version of XLA; set train.dropout_prng=threefry, or deterministic=false"
        )
    if cfg.resume_from is not None and cfg.init_from is not None:
        raise UserError("init_from and resume_from both set the state to start from: use one of them")
    reader = Reader(cfg)
    for group in (DataConfig, FilterConfig, SourceMixtureConfig, DistributedConfig, Train, Profile):
        reader(group)
    if not objective_class(cfg.objective.name).is_finetuning:
        _check_eval_sources(cfg)
    if cfg.export.average_last > cfg.checkpoint.keep:
        raise UserError(
            f"export.average_last={cfg.export.average_last} needs as many checkpoints: raise checkpoint.keep to that"
        )


def _check_eval_sources(cfg: ConfigDict) -> None:
    for key, listed in (("data.eval_sources", eval_sources(cfg)), ("data.decontaminate", evaluation_sources(cfg))):
        if any(source.weight is not None or source.epochs for source in listed):
            what = "held-out sources have" if key == "data.eval_sources" else "evaluation text has"
            raise UserError(f"{key}: {what} no weights and no epochs")


def _check_phase(config: Config) -> None:
    """Checks groups against each other."""
    labels = config.objective.is_finetuning and not TASK_KINDS.load(config.cfg.task.kind).has_targets
    if config.model.decoder_layers is not None and not labels:
        raise UserError(
            f"model.decoder_layers={config.model.decoder_layers} is for tasks that label texts or find answers; set it "
            "to None, encoder-decoders of other objectives have their decoder in decoder.*"
        )
    config.objective.check_model(config.model)
    config.mesh.check_model(config.model)
    check_batch_sizes(config, config.mesh.batch_shards or 1)
    if not config.objective.is_finetuning:  # a task reads none of data.*
        _check_examples(config)


def _check_examples(config: Config) -> None:
    """Checks what examples are made of the corpus, and that the model reads them."""
    _check_lengths(config)
    example_format = config.data.example_format
    if example_format in ("nsp_pairs", "sop_pairs") and config.model.type_vocab_size == 1:
        raise UserError(
            f"data.example_format={example_format} has two segments, model.type_vocab_size=1: set it to 2, or to "
            "0 for a model without token types"
        )
    config.objective.check_example_format(example_format)
    _check_sources(config)
    if example_format in STREAM_FORMATS:
        _check_stream(config)
    _check_packing(config)


def _check_lengths(config: Config) -> None:
    seq_len, encoders = config.data.seq_len, config.objective.read_encoders(config.cfg)
    for group, length in config.objective.network_lengths(seq_len, config.data.max_examples).items():
        limit = encoders[group].max_position_embeddings
        if length > limit:
            raise UserError(
                f"data.seq_len={seq_len} {'is' if length == seq_len else f'gives {group} {length} tokens,'} longer "
                f"than the position table, {group}.max_position_embeddings={limit}"
            )


def check_batch_sizes(config: Config, shards: int) -> None:
    """Raises `UserError` if training or held-out batches of a phase cannot be split over this many devices."""
    sizes = [("train", config.train.batch_size, config.train.microbatches), ("eval", config.eval.batch_size, 1)]
    # A task's batches of training follow from its examples and the devices.
    for group, batch_size, microbatches in sizes[1:] if config.objective.is_finetuning else sizes:
        key = f"{group}.batch_size"
        check_batch_size(key, batch_size, microbatches, shards)
        config.objective.check_batch_size(key, batch_size, microbatches)


def _check_sources(config: Config) -> None:
    training = sources(config.cfg)
    weighted = [source for source in training if source.weight is not None]
    if weighted and len(weighted) < len(training):
        raise UserError("data.sources: give every source a weight (@NUMBER) or none of them")
    if weighted and config.source_mixture.mixture_alpha is not None:
        raise UserError("data.mixture_alpha mixes by size: remove @WEIGHT from data.sources, or set it to None")


def _check_stream(config: Config) -> None:
    if (count := len(sources(config.cfg))) > 1:
        raise UserError(
            f"data.example_format={config.data.example_format}: streams need a single source, not {count}; a pattern "
            "such as text:corpus/*.txt names many files"
        )
    for group in (config.train, config.eval):
        if config.model.bi_data and group.batch_size % 2:
            raise UserError(
                f"model.bi_data reverses half of the sequences: {group.group}.batch_size={group.batch_size} must be "
                "even"
            )


def _check_packing(config: Config) -> None:
    data, reason = config.data, None
    if data.example_format in STREAM_FORMATS:
        reason = f"sequences of data.example_format={data.example_format} are full and continue in the next batch"
    elif not config.objective.can_pack:
        reason = f"objective.name={config.cfg.objective.name} permutes whole sequences, across examples"
    if reason is not None and data.packing != "none":
        raise UserError(f"data.packing={data.packing} has nothing to pack: {reason}; set data.packing=none")


_GROUP_FIELDS: dict[str, Any] = {
    name: hint
    for name, hint in typing.get_type_hints(Config).items()
    if isinstance(hint, type) and issubclass(hint, Settings)
}


def declared_groups() -> Iterator[type[Settings]]:
    """Yields every class that declares keys, those of the model apart."""
    yield from (RunConfig, Evaluation, Checkpointing, ExportConfig, LoggingConfig, ReportConfig, Profile)
    yield from (PresetConfig, GeneratorConfig, DecoderConfig, DataConfig, FilterConfig, SourceMixtureConfig)
    yield from (Train, Optimizer, Schedule, MeshConfig, DistributedConfig, TaskConfig, *TASK_KINDS.builtins())
    yield from (ObjectiveChoice, Masking, Seq2Seq, *OBJECTIVES.builtins())


def declared_keys() -> dict[str, Setting]:
    """Returns {dotted key: declaration} as the classes declare them: what `keys.json` must hold."""
    networks = {key: each for group in NETWORK_GROUPS for key, each in network_keys(group).items()}
    return declare(declared_groups()) | networks


def objective_facts() -> dict[str, keys.ObjectiveFacts]:
    """Returns the facts of bertjax's own objectives that `keys.json` must hold."""
    facts = {}
    for name in OBJECTIVES.builtin:
        cls = OBJECTIVES.load(name)
        facts[name] = keys.ObjectiveFacts(keys.groups_read_by(cls), cls.uses_teacher, cls.is_finetuning)
    return facts


if __name__ == "__main__":
    keys.PATH.write_text(keys.to_json(declared_keys(), objective_facts()), encoding="utf-8")
