"""A ConfigDict as frozen configs, every value checked. Needs no jax: a wrong config is refused at once."""

from __future__ import annotations

from pathlib import Path

from ml_collections import ConfigDict

from bertjax.config.distributed import DistributedConfig
from bertjax.config.fields import read_group
from bertjax.config.filters import FilterConfig
from bertjax.config.objectives import objective_config
from bertjax.config.objectives.base import STREAM_FORMATS
from bertjax.config.overrides import check_keys
from bertjax.config.parse_objective import encoder_config, mesh_config, pack_examples
from bertjax.config.phases import list_phases
from bertjax.config.sources import Source, check_source, parse_source
from bertjax.config.training import AnomalyConfig, LoopConfig, OptimizerConfig, ScheduleConfig, check_rows
from bertjax.errors import UserError, require_one_of

PLATFORMS = ("any", "cpu", "gpu", "tpu")
STRETCHES = ("tile", "interpolate")
DTYPES = ("auto", "float32", "bfloat16")
TOKENIZER_MODELS = ("wordpiece", "bpe", "unigram")
DROPOUT_PRNGS = ("threefry", "rbg")


def check(cfg: ConfigDict) -> None:
    """Raises `UserError` for whatever can be known to be wrong without reading text or asking for devices."""
    check_keys(cfg)
    require_one_of("platform", cfg.platform, PLATFORMS)
    require_one_of("init_embeddings", cfg.init_embeddings, ("refuse", "remap"))
    require_one_of("init_positions", cfg.init_positions, STRETCHES)
    require_one_of("train.compute_dtype", cfg.train.compute_dtype, DTYPES)
    require_one_of("train.dropout_prng", cfg.train.dropout_prng, DROPOUT_PRNGS)
    if cfg.deterministic and cfg.train.dropout_prng != "threefry":
        raise UserError(
            f"deterministic=true: train.dropout_prng={cfg.train.dropout_prng} gives other numbers on another mesh or "
            "version of XLA; set train.dropout_prng=threefry, or deterministic=false"
        )
    _at_least("train.num_steps", cfg.train.num_steps, 1)
    _at_least("checkpoint.keep", cfg.checkpoint.keep, 1)
    _at_least("eval.num_batches", cfg.eval.num_batches, 1)
    _check_sources(cfg)
    loop_config(cfg)
    distributed_config(cfg)
    optimizer_config(cfg)
    schedule_config(cfg)
    found = list_phases(cfg)
    for stage in found:
        try:
            _check_stage(stage.cfg)
        except UserError as error:
            where = f"from update {stage.start} on: " if len(found) > 1 else ""
            raise UserError(f"{where}{error}") from None


def _check_stage(cfg: ConfigDict) -> None:
    """What phases may change."""
    _at_least("train.microbatches", cfg.train.microbatches, 1)
    _check_rows(cfg)
    model = encoder_config(cfg)
    if cfg.data.seq_len > model.max_position_embeddings:
        raise UserError(
            f"data.seq_len={cfg.data.seq_len} is longer than the position table, "
            f"model.max_position_embeddings={model.max_position_embeddings}"
        )
    if cfg.data.example_format in ("nsp_pairs", "sop_pairs") and model.type_vocab_size == 1:
        raise UserError(
            f"data.example_format={cfg.data.example_format} has two segments, model.type_vocab_size=1: set it to 2, "
            "or to 0 for a model that does not tell them apart"
        )
    objective = objective_config(cfg)
    objective.check_example_format(cfg.data.example_format)
    objective.check_model(model)
    mesh = mesh_config(cfg)
    mesh.check_model(model.num_heads, model.intermediate_size)
    _deal_rows(cfg, mesh.row_ways or 1)


def check_batches(cfg: ConfigDict, ways: int) -> None:
    """Raises `UserError` when training or evaluation rows cannot be dealt to `ways` devices."""
    for stage in list_phases(cfg):
        _deal_rows(stage.cfg, ways)


def _deal_rows(cfg: ConfigDict, ways: int) -> None:
    objective = objective_config(cfg)
    sizes = (("train", cfg.train.batch_size, cfg.train.microbatches), ("eval", cfg.eval.batch_size, 1))
    for group, rows, microbatches in sizes:
        key = f"{group}.batch_size"
        check_rows(key, rows, microbatches, ways)
        objective.check_batch_size(key, rows, microbatches)


def sources(cfg: ConfigDict) -> list[Source]:
    """The training sources, parsed and looked for."""
    return _sources(cfg.data.sources, "data.sources")


def eval_sources(cfg: ConfigDict) -> list[Source]:
    """The held-out sources, parsed and looked for; empty when documents of the training sources are held out."""
    return _sources(cfg.data.eval_sources, "data.eval_sources")


def filter_config(cfg: ConfigDict) -> FilterConfig:
    """Which documents are left out."""
    data = cfg.data
    return FilterConfig(data.deduplicate, data.min_chars, data.max_chars, data.scripts, data.script_share)


def optimizer_config(cfg: ConfigDict) -> OptimizerConfig:
    config = OptimizerConfig(**cfg.optimizer)
    _ = config.named_rates, config.named_openings  # raise for a broken rule
    return config


def schedule_config(cfg: ConfigDict) -> ScheduleConfig:
    return ScheduleConfig(learning_rate=cfg.optimizer.learning_rate, num_steps=cfg.train.num_steps, **cfg.schedule)


def distributed_config(cfg: ConfigDict) -> DistributedConfig:
    return read_group(cfg, DistributedConfig)


def best_metric(cfg: ConfigDict) -> str | None:
    """The figure that tells the best checkpoint: what the config names, else the main one of a task that is scored."""
    metric = objective_config(cfg).main_metric
    if cfg.checkpoint.best_metric is None and metric is not None:
        return f"eval/{metric}"
    return cfg.checkpoint.best_metric


def loop_config(cfg: ConfigDict) -> LoopConfig:
    return LoopConfig(
        num_steps=cfg.train.num_steps,
        log_interval_steps=cfg.train.log_interval_steps,
        eval_interval_steps=cfg.eval.interval_steps,
        checkpoint_interval_steps=cfg.checkpoint.interval_steps,
        checkpoint_interval_minutes=cfg.checkpoint.interval_minutes,
        profile_steps=cfg.profile.steps,
        anomalies=AnomalyConfig(
            cfg.train.on_nonfinite, cfg.train.max_nonfinite, cfg.train.spike_factor, tuple(cfg.train.skip_batches)
        ),
        steps_per_dispatch=cfg.train.steps_per_dispatch,
        best_metric=best_metric(cfg),
        patience=cfg.eval.patience,
    )


def _check_sources(cfg: ConfigDict) -> None:
    data = cfg.data
    if not data.sources:
        raise UserError("data.sources is empty: name at least one, such as text:corpus/*.txt or builtin:python-docs")
    training, held_out = sources(cfg), eval_sources(cfg)
    weighted = [source for source in training if source.weight is not None]
    if weighted and len(weighted) < len(training):
        raise UserError("data.sources: give every source a weight (@NUMBER) or none of them")
    if any(source.weight is not None for source in held_out):
        raise UserError("data.eval_sources: held-out sources have no weights")
    if not held_out and not 0.0 < data.eval_fraction < 1.0:
        raise UserError(
            f"data.eval_fraction must lie between 0 and 1, not {data.eval_fraction}; or set data.eval_sources"
        )
    _at_least("data.vocab_size", data.vocab_size, 8)
    _at_least("data.dupe_factor", data.dupe_factor, 1)
    require_one_of("data.encoding_errors", data.encoding_errors, ("strict", "replace"))
    filter_config(cfg)
    if data.workers is not None:
        _at_least("data.workers", data.workers, 1)
    if data.tokenizer not in TOKENIZER_MODELS and not Path(data.tokenizer).expanduser().exists():
        raise UserError(
            f"data.tokenizer={data.tokenizer!r} is neither one of {', '.join(TOKENIZER_MODELS)} (train one) nor a "
            "folder or file that exists"
        )


def _check_rows(cfg: ConfigDict) -> None:
    _at_least("data.seq_len", cfg.data.seq_len, 8)
    if not 0.0 <= cfg.data.short_seq_prob <= 1.0:
        raise UserError(f"data.short_seq_prob must lie in [0, 1], not {cfg.data.short_seq_prob}")
    _check_packing(cfg)
    if cfg.data.example_format in STREAM_FORMATS and len(cfg.data.sources) > 1:
        raise UserError(
            f"data.example_format={cfg.data.example_format}: streams need a single source, not "
            f"{len(cfg.data.sources)}; a pattern such as text:corpus/*.txt names many files"
        )
    if cfg.data.example_format in STREAM_FORMATS and encoder_config(cfg).bi_data:
        for key in ("train", "eval"):
            if cfg[key].batch_size % 2:
                raise UserError(
                    f"model.bi_data reads half of the rows backwards: {key}.batch_size={cfg[key].batch_size} must be "
                    "even"
                )


def _check_packing(cfg: ConfigDict) -> None:
    require_one_of("data.packing", cfg.data.packing, ("none", "best_fit"))
    _at_least("data.pack_window", cfg.data.pack_window, 1)
    _at_least("data.pack_examples", pack_examples(cfg), 1)
    reason = None
    if cfg.data.example_format in STREAM_FORMATS:
        reason = f"rows of data.example_format={cfg.data.example_format} are full, and go on from batch to batch"
    elif not objective_config(cfg).can_pack:
        reason = f"objective.name={cfg.objective.name} permutes whole rows, so that examples would see each other"
    if reason is not None and cfg.data.packing != "none":
        raise UserError(f"data.packing={cfg.data.packing} has nothing to pack: {reason}; set data.packing=none")


def _sources(texts: tuple[str, ...], key: str) -> list[Source]:
    parsed = [parse_source(text) for text in texts]
    for source in parsed:
        check_source(source)
    if len({source.text for source in parsed}) < len(parsed):
        raise UserError(f"{key} names a source twice")
    return parsed


def _at_least(key: str, value: int, least: int) -> None:
    if value < least:
        raise UserError(f"{key} must be at least {least}, not {value}")


def cache_folder(cfg: ConfigDict) -> Path:
    """Returns the absolute path of `data.cache_dir`."""
    return Path(cfg.data.cache_dir).expanduser().absolute()
