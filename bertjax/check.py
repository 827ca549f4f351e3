"""A ConfigDict as frozen configs, every value checked. Needs no jax: a wrong config is refused at once."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from bertjax.data.filters import FilterConfig
from bertjax.data.sources import Source, check_source, parse_source
from bertjax.distributed.config import DistributedConfig
from bertjax.models.config import EncoderConfig
from bertjax.models.towers_config import TowersConfig
from bertjax.models.zoo import preset
from bertjax.objectives.config import CausalConfig, MaskingConfig, MlmConfig, ObjectiveConfig, most_predictions
from bertjax.objectives.contrastive_config import ContrastiveConfig
from bertjax.objectives.distill_config import LOSSES, DistillConfig
from bertjax.objectives.mixture_config import Member, MixtureConfig, parse_mixture
from bertjax.objectives.plm_config import STREAM_FORMS, PlmConfig
from bertjax.objectives.rtd_config import RtdConfig
from bertjax.overrides import check_keys
from bertjax.stages import stages
from bertjax.training.config import FaultConfig, LoopConfig, MeshConfig, OptimizerConfig, ScheduleConfig, check_rows
from bertjax.types import UserError, Vocabulary

PLATFORMS = ("any", "cpu", "gpu", "tpu")
STRETCHES = ("tile", "interpolate")
DTYPES = ("auto", "float32", "bfloat16")
TOKENIZER_MODELS = ("wordpiece", "bpe", "unigram")
DROPOUT_PRNGS = ("threefry", "rbg")


def check(cfg: ConfigDict) -> None:
    """Raises `UserError` for whatever can be known to be wrong without reading text or asking for devices."""
    check_keys(cfg)
    _one_of("platform", cfg.platform, PLATFORMS)
    _one_of("init_embeddings", cfg.init_embeddings, ("refuse", "remap"))
    _one_of("init_positions", cfg.init_positions, STRETCHES)
    _one_of("train.compute_dtype", cfg.train.compute_dtype, DTYPES)
    _one_of("train.dropout_prng", cfg.train.dropout_prng, DROPOUT_PRNGS)
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
    found = stages(cfg)
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
    objective = objective_config(cfg)
    objective.check_form(cfg.data.form)
    objective.check_model(model)
    mesh = mesh_config(cfg)
    mesh.check_model(model.num_heads, model.intermediate_size)
    _deal_rows(cfg, mesh.row_ways or 1)


def check_batches(cfg: ConfigDict, ways: int) -> None:
    """Raises `UserError` when training or evaluation rows cannot be dealt to `ways` devices."""
    for stage in stages(cfg):
        _deal_rows(stage.cfg, ways)


def _deal_rows(cfg: ConfigDict, ways: int) -> None:
    objective = objective_config(cfg)
    sizes = (("train", cfg.train.batch_size, cfg.train.microbatches), ("eval", cfg.eval.batch_size, 1))
    for group, rows, microbatches in sizes:
        key = f"{group}.batch_size"
        check_rows(key, rows, microbatches, ways)
        if isinstance(objective, MixtureConfig):
            objective.check_rows(key, rows, microbatches)


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


def generator_config(cfg: ConfigDict, vocabulary: Vocabulary | None = None) -> EncoderConfig:
    """The network that offers words to the model: its own values over those of a preset, or of the model, scaled.

    Raises `UserError` for one that cannot share with the model what `objective.sharing` says, or cannot fill masks.
    """
    model, own, sharing = encoder_config(cfg, vocabulary), cfg.generator, cfg.objective.sharing
    beside = ("preset", "width_share", "depth_share")
    given = {name: value for name, value in own.items() if name not in beside and value is not None}
    if own.preset is None:
        values = {**vars(model), **_scaled(cfg, model)}
    else:
        if (own.width_share, own.depth_share) != (1.0, 1.0):
            raise UserError(
                f"generator.preset={own.preset} has sizes of its own: set generator.width_share and "
                "generator.depth_share to 1, or generator.preset to None"
            )
        values = preset(own.preset)
        values |= {name: getattr(model, name) for name in ("vocab_size", "padded_vocab_size", "pad_token_id")}
    hidden = (values | given)["hidden_size"]
    if hidden != model.hidden_size or own.preset is not None:
        # Tables of its own are as wide as it is (google-research/electra:pretrain/run_pretraining.py), shared ones not.
        same = sharing == "none" or hidden == model.embedding_dim
        values["embedding_size"] = None if same else model.embedding_dim
    try:
        generator = EncoderConfig(**values | given)
    except UserError as error:
        raise UserError(f"the generator: {str(error).replace('model.', 'generator.')}") from None
    TowersConfig(generator, model, sharing)
    if generator.causal:
        raise UserError("objective.name=rtd reads both sides of a word: set model.causal and generator.causal to false")
    if cfg.data.seq_len > generator.max_position_embeddings:
        raise UserError(
            f"data.seq_len={cfg.data.seq_len} is longer than the generator's position table, "
            f"generator.max_position_embeddings={generator.max_position_embeddings}"
        )
    mesh_config(cfg).check_model(generator.num_heads, generator.intermediate_size)
    return generator


def _scaled(cfg: ConfigDict, model: EncoderConfig) -> dict[str, int]:
    """Sizes of a generator by its shares, rounded as in google-research/electra:util/training_utils.py.

    There heads are 64 wide and the feed-forward block is four times as wide as the layer; here both are as the model's.
    """
    own = cfg.generator
    for name in ("width_share", "depth_share"):
        if not own[name] > 0.0:
            raise UserError(f"generator.{name} must be above 0, not {own[name]}")
    hidden = round(model.hidden_size * own.width_share) if own.hidden_size is None else own.hidden_size
    same = hidden == model.hidden_size
    return {
        "hidden_size": hidden,
        "num_layers": max(1, round(model.num_layers * own.depth_share)),
        "num_heads": model.num_heads if same else max(1, hidden // model.head_dim),
        "intermediate_size": round(model.intermediate_size * hidden / model.hidden_size),
    }


def objective_config(cfg: ConfigDict) -> ObjectiveConfig:
    """The config of the objective that `objective.name` says."""
    _one_of("objective.name", cfg.objective.name, tuple(OBJECTIVES))
    return OBJECTIVES[cfg.objective.name](cfg)


def causal_config(cfg: ConfigDict) -> CausalConfig:
    return CausalConfig()


def plm_config(cfg: ConfigDict) -> PlmConfig:
    """Published for 512 tokens: 85 predicted, 256 reused and permuted together, 384 remembered."""
    objective, form, length = cfg.objective, cfg.data.form, cfg.data.seq_len
    model, reused = encoder_config(cfg), reuse_len(cfg)
    remembered = (3 * length // 4 if form == "segments" else length) if model.mem_len is None else model.mem_len
    if form == "stream" and model.reuse_len not in (None, length):
        raise UserError(
            f"data.form=stream goes on behind the whole row: model.reuse_len must be data.seq_len={length} or None, "
            f"not {model.reuse_len}"
        )
    return PlmConfig(
        form=form,
        parts=(reused, length - reused) if form == "segments" else (length,),
        num_predict=max(length // 6, 1) if objective.num_predict is None else objective.num_predict,
        perm_size=(reused if form == "segments" else length) if objective.perm_size is None else objective.perm_size,
        mem_len=remembered if form in STREAM_FORMS else 0,
        max_ngram=objective.max_ngram,
        alpha=objective.mask_alpha,
        beta=objective.mask_beta,
        whole_words=objective.ngram_words,
    )


def reuse_len(cfg: ConfigDict) -> int:
    """Tokens after which the next row of form segments begins: half a row where the model does not say."""
    given = encoder_config(cfg).reuse_len
    return cfg.data.seq_len // 2 if given is None else given


def pack_examples(cfg: ConfigDict) -> int:
    """Most examples in a row."""
    if cfg.data.packing == "none":
        return 1
    return max(8, cfg.data.seq_len // 32) if cfg.data.pack_examples is None else cfg.data.pack_examples


def mlm_config(cfg: ConfigDict) -> MlmConfig:
    objective = cfg.objective
    weights = (objective.mlm_weight, objective.pair_weight, objective.span_boundary)
    return MlmConfig(masking_config(cfg), objective.pair, *weights, objective.predict_next)


def rtd_config(cfg: ConfigDict) -> RtdConfig:
    objective = cfg.objective
    if objective.pair != "none":
        raise UserError(f"objective.name=rtd judges no pairs: set objective.pair=none, not {objective.pair}")
    generator_config(cfg)  # raises for one that does not go with the model
    same = ("mlm_weight", "disc_weight", "temperature", "average_repeats")
    return RtdConfig(masking_config(cfg), **{name: objective[name] for name in same})


def distill_config(cfg: ConfigDict) -> DistillConfig:
    objective = cfg.objective
    layers = objective.teacher_layers
    if layers is not None and not all(layer.isdecimal() for layer in layers):
        raise UserError(f"objective.teacher_layers must be whole numbers such as 0,2,4,7,9,11, not {','.join(layers)}")
    same = ["masked_text", "soft_temperature", "soft_positions", "relations", "relation_heads", "relation_layer"]
    same += [f"{loss}_weight" for loss in LOSSES]
    return DistillConfig(
        masking_config(cfg),
        teacher_layers=None if layers is None else tuple(int(layer) for layer in layers),
        **{name: objective[name] for name in same},
    )


def contrastive_config(cfg: ConfigDict) -> ContrastiveConfig:
    objective = cfg.objective
    return ContrastiveConfig(
        masking_config(cfg),
        objective.pooling,
        objective.contrast_temperature,
        objective.mlm_weight,
        cfg.train.microbatches,
    )


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


def mixture_config(cfg: ConfigDict) -> MixtureConfig:
    shares = parse_mixture(cfg.objective.mixture)
    return MixtureConfig(tuple(Member(name, share, OBJECTIVES[name](cfg)) for name, share in shares))


OBJECTIVES: dict[str, Callable[[ConfigDict], Any]] = {
    "mixture": mixture_config,
    "mlm": mlm_config,
    "clm": causal_config,
    "plm": plm_config,
    "distill": distill_config,
    "contrastive": contrastive_config,
    "rtd": rtd_config,
}


def optimizer_config(cfg: ConfigDict) -> OptimizerConfig:
    config = OptimizerConfig(**cfg.optimizer)
    _ = config.named_rates  # raises for a broken rule
    return config


def schedule_config(cfg: ConfigDict) -> ScheduleConfig:
    return ScheduleConfig(learning_rate=cfg.optimizer.learning_rate, num_steps=cfg.train.num_steps, **cfg.schedule)


def distributed_config(cfg: ConfigDict) -> DistributedConfig:
    return DistributedConfig(**cfg.distributed)


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
        faults=FaultConfig(
            cfg.train.on_fault, cfg.train.max_faults, cfg.train.spike_factor, tuple(cfg.train.skip_batches)
        ),
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
    _one_of("data.errors", data.errors, ("strict", "replace"))
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
    if cfg.data.form in STREAM_FORMS and len(cfg.data.sources) > 1:
        raise UserError(
            f"data.form={cfg.data.form}: rows go on from batch to batch, so there is one source, not "
            f"{len(cfg.data.sources)}; a pattern such as text:corpus/*.txt names many files"
        )
    if cfg.data.form in STREAM_FORMS and encoder_config(cfg).bi_data:
        for key in ("train", "eval"):
            if cfg[key].batch_size % 2:
                raise UserError(
                    f"model.bi_data reads half of the rows backwards: {key}.batch_size={cfg[key].batch_size} must be "
                    "even"
                )


def _check_packing(cfg: ConfigDict) -> None:
    _one_of("data.packing", cfg.data.packing, ("none", "best_fit"))
    _at_least("data.pack_window", cfg.data.pack_window, 1)
    _at_least("data.pack_examples", pack_examples(cfg), 1)
    objective = objective_config(cfg)
    members = [member.config for member in objective.members] if isinstance(objective, MixtureConfig) else [objective]
    reason = None
    if cfg.data.form in STREAM_FORMS:
        reason = f"rows of data.form={cfg.data.form} are full, and go on from batch to batch"
    elif any(isinstance(member, PlmConfig) for member in members):
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


def _one_of(key: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        near = difflib.get_close_matches(value, allowed, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise UserError(f"{key} must be one of {', '.join(allowed)}, not {value!r}{hint}")


def _at_least(key: str, value: int, least: int) -> None:
    if value < least:
        raise UserError(f"{key} must be at least {least}, not {value}")
