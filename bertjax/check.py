"""A ConfigDict as frozen configs, every value checked. Needs no jax: a wrong config is refused at once."""

from __future__ import annotations

import difflib
from pathlib import Path

from ml_collections import ConfigDict

from bertjax.data.sources import Source, check_source, parse_source
from bertjax.models.config import EncoderConfig
from bertjax.models.zoo import preset
from bertjax.objectives.config import CausalConfig, MaskingConfig, MlmConfig, most_predictions
from bertjax.overrides import check_keys
from bertjax.training.config import LoopConfig, MeshConfig, OptimizerConfig, ScheduleConfig, check_rows
from bertjax.types import UserError, Vocabulary

OBJECTIVES = ("mlm", "clm")
PLATFORMS = ("any", "cpu", "gpu", "tpu")
DTYPES = ("auto", "float32", "bfloat16")
TOKENIZER_MODELS = ("wordpiece", "bpe", "unigram")
DROPOUT_PRNGS = ("threefry", "rbg")


def check(cfg: ConfigDict) -> None:
    """Raises `UserError` for whatever can be known to be wrong without reading text or asking for devices."""
    check_keys(cfg)
    _one_of("platform", cfg.platform, PLATFORMS)
    _one_of("train.compute_dtype", cfg.train.compute_dtype, DTYPES)
    _one_of("train.dropout_prng", cfg.train.dropout_prng, DROPOUT_PRNGS)
    _at_least("train.microbatches", cfg.train.microbatches, 1)
    _at_least("checkpoint.keep", cfg.checkpoint.keep, 1)
    _at_least("eval.num_batches", cfg.eval.num_batches, 1)
    _check_data(cfg)
    model = encoder_config(cfg)
    if cfg.data.seq_len > model.max_position_embeddings:
        raise UserError(
            f"data.seq_len={cfg.data.seq_len} is longer than the position table, "
            f"model.max_position_embeddings={model.max_position_embeddings}"
        )
    objective = objective_config(cfg)
    objective.check_form(cfg.data.form)
    objective.check_model(model)
    loop_config(cfg)
    optimizer_config(cfg)
    schedule_config(cfg)
    mesh = mesh_config(cfg)
    mesh.check_model(model.num_heads, model.intermediate_size)
    check_batches(cfg, mesh.row_ways or 1)


def check_batches(cfg: ConfigDict, ways: int) -> None:
    """Raises `UserError` when training or evaluation rows cannot be dealt to `ways` devices."""
    check_rows("train.batch_size", cfg.train.batch_size, cfg.train.microbatches, ways)
    check_rows("eval.batch_size", cfg.eval.batch_size, 1, ways)


def sources(cfg: ConfigDict) -> list[Source]:
    """The training sources, parsed and looked for."""
    return _sources(cfg.data.sources, "data.sources")


def eval_sources(cfg: ConfigDict) -> list[Source]:
    """The held-out sources, parsed and looked for; empty when documents of the training sources are held out."""
    return _sources(cfg.data.eval_sources, "data.eval_sources")


def encoder_config(cfg: ConfigDict, vocabulary: Vocabulary | None = None) -> EncoderConfig:
    """The preset with the config's own values over it; vocabulary and padding are the tokenizer's once there is one."""
    values = preset(cfg.model.preset)
    values |= {name: value for name, value in cfg.model.items() if name != "preset" and value is not None}
    values |= {"vocab_size": cfg.data.vocab_size}
    if vocabulary is not None:
        values |= {
            "vocab_size": vocabulary.size,
            "padded_vocab_size": vocabulary.padded_size,
            "pad_token_id": vocabulary.pad_id,
        }
    return EncoderConfig(**values)


def objective_config(cfg: ConfigDict) -> MlmConfig | CausalConfig:
    """The config of the objective that `objective.name` says."""
    _one_of("objective.name", cfg.objective.name, OBJECTIVES)
    return CausalConfig() if cfg.objective.name == "clm" else mlm_config(cfg)


def mlm_config(cfg: ConfigDict) -> MlmConfig:
    objective = cfg.objective
    weights = (objective.mlm_weight, objective.pair_weight, objective.span_boundary)
    return MlmConfig(masking_config(cfg), objective.pair, *weights)


def masking_config(cfg: ConfigDict) -> MaskingConfig:
    """How tokens are hidden, for every objective that hides some."""
    objective = cfg.objective
    final, most = objective.mask_rate_final, objective.max_predictions
    if most is None:
        rate = min(max(objective.mask_rate, final or 0.0, 0.0), 1.0)
        most = most_predictions(objective.masking, objective.mask_count, rate, cfg.data.seq_len)
    same = ["dynamic", "mask_rate", "mask_rate_final", "mask_specials", "mask_unknown", "max_ngram", "max_span"]
    same += ["span_p", "frequency_power", "mask_token_rate", "random_token_rate", "random_source", "random_first_id"]
    return MaskingConfig(
        unit=objective.masking,
        schedule_steps=cfg.train.num_steps,
        count=objective.mask_count,
        max_predictions=most,
        with_replacement=objective.mask_with_replacement,
        decision=objective.mask_decision,
        **{name: objective[name] for name in same},
    )


def optimizer_config(cfg: ConfigDict) -> OptimizerConfig:
    config = OptimizerConfig(**cfg.optimizer)
    _ = config.named_rates  # raises for a broken rule
    return config


def schedule_config(cfg: ConfigDict) -> ScheduleConfig:
    return ScheduleConfig(learning_rate=cfg.optimizer.learning_rate, num_steps=cfg.train.num_steps, **cfg.schedule)


def mesh_config(cfg: ConfigDict) -> MeshConfig:
    return MeshConfig(cfg.mesh.data, cfg.mesh.fsdp, cfg.mesh.tensor)


def loop_config(cfg: ConfigDict) -> LoopConfig:
    return LoopConfig(
        num_steps=cfg.train.num_steps,
        log_interval_steps=cfg.train.log_interval_steps,
        eval_interval_steps=cfg.eval.interval_steps,
        checkpoint_interval_steps=cfg.checkpoint.interval_steps,
        checkpoint_interval_minutes=cfg.checkpoint.interval_minutes,
        profile_start_step=cfg.profile.start_step,
        profile_num_steps=cfg.profile.num_steps,
    )


def _check_data(cfg: ConfigDict) -> None:
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
    _at_least("data.seq_len", data.seq_len, 8)
    _at_least("data.vocab_size", data.vocab_size, 8)
    _at_least("data.dupe_factor", data.dupe_factor, 1)
    _one_of("data.errors", data.errors, ("strict", "replace"))
    if not 0.0 <= data.short_seq_prob <= 1.0:
        raise UserError(f"data.short_seq_prob must lie in [0, 1], not {data.short_seq_prob}")
    if data.tokenizer not in TOKENIZER_MODELS and not Path(data.tokenizer).expanduser().exists():
        raise UserError(
            f"data.tokenizer={data.tokenizer!r} is neither one of {', '.join(TOKENIZER_MODELS)} (train one) nor a "
            "folder or file that exists"
        )


def _sources(texts: tuple[str, ...], key: str) -> list[Source]:
    parsed = [parse_source(text) for text in texts]
    for source in parsed:
        check_source(source)
    if len({source.text for source in parsed}) < len(parsed):
        raise UserError(f"{key} names a source twice")
    return parsed


def _one_of(key: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        near = difflib.get_close_matches(value, allowed, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise UserError(f"{key} must be one of {', '.join(allowed)}, not {value!r}{hint}")


def _at_least(key: str, value: int, least: int) -> None:
    if value < least:
        raise UserError(f"{key} must be at least {least}, not {value}")
