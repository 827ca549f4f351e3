"""The encoder and the objective that a ConfigDict describes, as frozen configs; like check.py, it needs no jax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ml_collections import ConfigDict

from bertjax.config.fields import read_group
from bertjax.config.model import EncoderConfig
from bertjax.config.objectives.base import ObjectiveConfig
from bertjax.config.objectives.clm import ClmConfig
from bertjax.config.objectives.contrastive import ContrastiveConfig
from bertjax.config.objectives.distillation import LOSSES, DistillationConfig
from bertjax.config.objectives.masking import MaskingConfig, default_max_predictions
from bertjax.config.objectives.mixture import Member, MixtureConfig, parse_mixture
from bertjax.config.objectives.mlm import MlmConfig
from bertjax.config.objectives.plm import STREAM_FORMATS, PlmConfig
from bertjax.config.objectives.rtd import RtdConfig, RtdNetworksConfig
from bertjax.config.objectives.task import TaskObjectiveConfig
from bertjax.config.presets import preset
from bertjax.config.task import QaConfig, TaskConfig, TokensConfig
from bertjax.config.training import MeshConfig
from bertjax.errors import UserError, require_one_of
from bertjax.types import Vocabulary


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
    beside = ("preset", "width_ratio", "depth_ratio")
    given = {name: value for name, value in own.items() if name not in beside and value is not None}
    if own.preset is None:
        values = {**vars(model), **_scaled(cfg, model)}
    else:
        if (own.width_ratio, own.depth_ratio) != (1.0, 1.0):
            raise UserError(
                f"generator.preset={own.preset} has sizes of its own: set generator.width_ratio and "
                "generator.depth_ratio to 1, or generator.preset to None"
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
    RtdNetworksConfig(generator, model, sharing)
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
    for name in ("width_ratio", "depth_ratio"):
        if not own[name] > 0.0:
            raise UserError(f"generator.{name} must be above 0, not {own[name]}")
    hidden = round(model.hidden_size * own.width_ratio) if own.hidden_size is None else own.hidden_size
    same = hidden == model.hidden_size
    return {
        "hidden_size": hidden,
        "num_layers": max(1, round(model.num_layers * own.depth_ratio)),
        "num_heads": model.num_heads if same else max(1, hidden // model.head_dim),
        "intermediate_size": round(model.intermediate_size * hidden / model.hidden_size),
    }


def objective_config(cfg: ConfigDict) -> ObjectiveConfig:
    """The config of the objective that `objective.name` says."""
    require_one_of("objective.name", cfg.objective.name, tuple(OBJECTIVES))
    return OBJECTIVES[cfg.objective.name](cfg)


def causal_config(cfg: ConfigDict) -> ClmConfig:
    return ClmConfig()


def plm_config(cfg: ConfigDict) -> PlmConfig:
    """Published for 512 tokens: 85 predicted, 256 reused and permuted together, 384 remembered."""
    objective, form, length = cfg.objective, cfg.data.example_format, cfg.data.seq_len
    model, reused = encoder_config(cfg), reuse_len(cfg)
    remembered = (3 * length // 4 if form == "segments" else length) if model.mem_len is None else model.mem_len
    if form == "stream" and model.reuse_len not in (None, length):
        raise UserError(
            f"data.example_format=stream reuses the whole row: model.reuse_len must be data.seq_len={length} or None, "
            f"not {model.reuse_len}"
        )
    return PlmConfig(
        form=form,
        part_lengths=(reused, length - reused) if form == "segments" else (length,),
        num_predict=max(length // 6, 1) if objective.num_predict is None else objective.num_predict,
        perm_size=(reused if form == "segments" else length) if objective.perm_size is None else objective.perm_size,
        mem_len=remembered if form in STREAM_FORMATS else 0,
        max_ngram=objective.max_ngram,
        mask_alpha=objective.mask_alpha,
        mask_beta=objective.mask_beta,
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


def task_objective_config(cfg: ConfigDict) -> TaskObjectiveConfig:
    return read_group(cfg, TaskObjectiveConfig, kind=cfg.task.kind)


def task_config(cfg: ConfigDict) -> TaskConfig:
    """Returns the settings of `task`."""
    return read_group(cfg, TaskConfig, tokens=read_group(cfg, TokensConfig), qa=read_group(cfg, QaConfig))


def distill_config(cfg: ConfigDict) -> DistillationConfig:
    objective = cfg.objective
    layers = objective.teacher_layers
    if layers is not None and not all(layer.isdecimal() for layer in layers):
        raise UserError(f"objective.teacher_layers must be whole numbers such as 0,2,4,7,9,11, not {','.join(layers)}")
    same = ["masked_text", "soft_temperature", "soft_positions", "relations", "relation_heads", "relation_layer"]
    same += [f"{loss}_weight" for loss in LOSSES]
    return DistillationConfig(
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
        most = default_max_predictions(objective.masking, objective.mask_count, rate, cfg.data.seq_len)
    same = ["dynamic", "mask_rate", "mask_rate_final", "max_ngram", "max_span", "frequency_power"]
    same += ["mask_token_rate", "random_token_rate"]
    return MaskingConfig(
        mask_unit=objective.masking,
        schedule_steps=cfg.train.num_steps,
        mask_rounding=objective.mask_count,
        max_predictions=most,
        allow_mask_special=objective.mask_specials,
        allow_mask_unk=objective.mask_unknown,
        with_replacement=objective.mask_with_replacement,
        span_geometric_p=objective.span_p,
        replacement_unit=objective.mask_decision,
        random_token_distribution=objective.random_source,
        min_random_id=objective.random_first_id,
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
    "task": task_objective_config,
}


def mesh_config(cfg: ConfigDict) -> MeshConfig:
    return read_group(cfg, MeshConfig)
