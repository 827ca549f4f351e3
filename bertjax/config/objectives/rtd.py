"""Config of replaced token detection and of its two networks. Needs no jax."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Self

from ml_collections import ConfigDict

from bertjax.config.distributed import MeshConfig
from bertjax.config.fields import PRESET, phase_setting, read_group
from bertjax.config.model import EncoderConfig, differences, encoder_config, explicit_values
from bertjax.config.objectives.base import PairObjectiveConfig
from bertjax.config.objectives.masking import MaskingConfig
from bertjax.config.presets import preset
from bertjax.errors import UserError, require_one_of
from bertjax.types import Vocabulary

EMBEDDING_SHARINGS = ("embeddings", "gdes", "none", "all")


@dataclasses.dataclass(frozen=True)
class RtdConfig(PairObjectiveConfig, group="objective.rtd"):
    """Replaced token detection; the defaults are ELECTRA's."""

    title = "replaced token detection"
    objective_class = "bertjax.objectives.rtd.objective:ReplacedTokenDetection"
    loss_titles: ClassVar[dict[str, str]] = {
        "mlm": "Masked tokens",
        "rtd": "Replaced tokens",
        "pair": "Sentence pairs",
    }
    metrics: ClassVar[dict[str, tuple[str, str]]] = {
        "rtd_precision": ("share", "Tokens called replaced that are replaced."),
        "rtd_recall": ("share", "Replaced tokens that are called replaced."),
        "replaced_share": ("share", "Tokens that the generator replaced by another one."),
    }

    masking: MaskingConfig
    mlm_weight: float = phase_setting(1.0, help="Factor of the generator's mean loss of masked tokens.", at_least=0.0)
    disc_weight: float = phase_setting(50.0, help="Factor of the discriminator's mean loss.", at_least=0.0)
    temperature: float = phase_setting(
        1.0, help="Divides the generator's logits before its tokens are drawn.", above=0.0
    )
    embedding_sharing: str = phase_setting(
        "embeddings",
        help="What generator and discriminator share: embeddings = token, position and type tables and their norm, "
        "trained by both (ELECTRA); gdes = the discriminator adds to the generator's token and position tables and "
        "does not train them (DeBERTa v3); none; all = everything but the heads.",
        choices=EMBEDDING_SHARINGS,
    )
    average_repeats: bool = phase_setting(
        False,
        help="Where a position was drawn k times (objective.masking.with_replacement), replace it by the mean of k "
        "ids, rounded down, as in ELECTRA's code; False = by one token.",
    )

    @classmethod
    def from_config(cls, cfg: ConfigDict) -> Self:
        generator_config(cfg)  # raises for a generator that does not fit the model
        return super().from_config(cfg)

    @classmethod
    def read_encoders(cls, cfg: ConfigDict, vocabulary: Vocabulary | None = None) -> dict[str, EncoderConfig]:
        return {"model": encoder_config(cfg, vocabulary), "generator": generator_config(cfg, vocabulary)}

    def check(self) -> None:
        if self.average_repeats and not self.masking.with_replacement:
            raise UserError(
                "objective.rtd.average_repeats needs objective.masking.with_replacement: otherwise no position is "
                "drawn twice"
            )

    @property
    def summary(self) -> str:
        title = " and ".join(filter(None, [self.title, self.sentence_objective]))
        return f"{title} ({self.masking.summary})"

    def check_model(self, model: EncoderConfig) -> None:
        if model.causal:
            raise UserError("objective.name=rtd reads text from both sides, but model.causal attends to one")


@dataclasses.dataclass(frozen=True)
class RtdNetworksConfig:
    """A generator with the masked-LM head and a discriminator with the replaced-token head.

    Attributes:
        generator: the generator.
        discriminator: the discriminator.
        embedding_sharing: the arrays that both use. "embeddings" (ELECTRA): token, position and type tables and,
            unless a projection precedes it, their norm; "gdes" (DeBERTa v3): the discriminator adds to the generator's
            token and position tables and does not train them; "all" (ELECTRA's tied networks): everything but the
            heads; "none".

    Raises:
        UserError: the encoders differ in the shape of a shared array.
    """

    generator: EncoderConfig
    discriminator: EncoderConfig
    embedding_sharing: str = "embeddings"

    def __post_init__(self) -> None:
        require_one_of("objective.rtd.embedding_sharing", self.embedding_sharing, EMBEDDING_SHARINGS)
        for name in _equal_fields(self):
            ours, theirs = getattr(self.generator, name), getattr(self.discriminator, name)
            if ours != theirs:
                key = f"generator.{name.replace('_dim', '_size')}"
                way = "" if name in _VOCABULARY else f" ({key}, or objective.rtd.embedding_sharing=none)"
                raise UserError(
                    f"generator and discriminator cannot share their {_SHARED_WORDS[self.embedding_sharing]}: {name} "
                    f"is {ours} and {theirs}; make them equal{way}"
                )

    @property
    def shared_embeddings(self) -> tuple[str, ...]:
        """The names of the shared arrays in the parameters of the embeddings."""
        model, names = self.discriminator, ["word_embeddings"]
        names += ["position_embeddings"] if model.position_embedding == "learned" else []
        if self.embedding_sharing == "gdes":
            return tuple(names)
        names += ["token_type_embeddings"] if model.type_vocab_size else []
        names += ["norm"] if model.embedding_norm == "before" else []
        return tuple(names)


_VOCABULARY = ("vocab_size", "padded_vocab_size")  # the tokenizer's, whatever is shared
_SHARED_WORDS = {"embeddings": "embeddings", "gdes": "embeddings", "none": "vocabulary", "all": "weights"}


def _equal_fields(networks: RtdNetworksConfig) -> list[str]:
    """Returns the fields in which both must agree."""
    names = [*_VOCABULARY]
    if networks.embedding_sharing == "all":
        return [*names, *differences(networks.generator, networks.discriminator, heads=False)]
    if networks.embedding_sharing in ("embeddings", "gdes"):
        names += ["embedding_dim", "position_embedding"]
        if networks.discriminator.position_embedding == "learned":
            names += ["max_position_embeddings", "position_offset"]
    if networks.embedding_sharing == "embeddings":
        names += ["type_vocab_size", "embedding_norm"]
        names += ["norm_bias"] if networks.discriminator.embedding_norm == "before" else []
    return names


def generator_config(cfg: ConfigDict, vocabulary: Vocabulary | None = None) -> EncoderConfig:
    """Reads the generator: the values of `generator` over those of its preset or of the scaled model.

    `vocabulary` is that of the tokenizer, once it is known.

    Raises:
        UserError: the generator cannot share `objective.rtd.embedding_sharing` with the model, or cannot fill masks.
    """
    model, group, sharing = encoder_config(cfg, vocabulary), cfg.generator, cfg.objective.rtd.embedding_sharing
    explicit, has_preset = explicit_values(group), group.preset != "model"
    if not has_preset:
        values = {**vars(model), **_scaled(cfg, model)}
    else:
        if (group.width_ratio, group.depth_ratio) != (1.0, 1.0):
            raise UserError(
                f"generator.preset={group.preset} sets the sizes: set generator.width_ratio and "
                "generator.depth_ratio to 1, or generator.preset to model"
            )
        values = preset(group.preset)
        values |= {name: getattr(model, name) for name in ("vocab_size", "padded_vocab_size", "pad_token_id")}
    hidden = (values | explicit)["hidden_size"]
    if hidden != model.hidden_size or has_preset:
        # Its own tables have its width (google-research/electra:pretrain/run_pretraining.py), shared ones the model's.
        is_same = sharing == "none" or hidden == model.embedding_dim
        values["embedding_size"] = None if is_same else model.embedding_dim
    try:
        generator = EncoderConfig(**values | explicit)
    except UserError as error:
        raise UserError(f"the generator: {str(error).replace('model.', 'generator.')}") from None
    RtdNetworksConfig(generator, model, sharing)
    if generator.causal:
        raise UserError("objective.name=rtd reads text from both sides: set model.causal and generator.causal to false")
    if cfg.data.seq_len > generator.max_position_embeddings:
        raise UserError(
            f"data.seq_len={cfg.data.seq_len} is longer than the generator's position table, "
            f"generator.max_position_embeddings={generator.max_position_embeddings}"
        )
    read_group(cfg, MeshConfig).check_model(generator)
    return generator


def _scaled(cfg: ConfigDict, model: EncoderConfig) -> dict[str, int]:
    """Computes the generator's sizes by its shares, rounded as in google-research/electra:util/training_utils.py.

    There heads are 64 wide and the feed-forward block is four times as wide as the layer; here both follow the model.
    """
    group = cfg.generator
    hidden = round(model.hidden_size * group.width_ratio) if group.hidden_size == PRESET else group.hidden_size
    is_same = hidden == model.hidden_size
    return {
        "hidden_size": hidden,
        "num_layers": max(1, round(model.num_layers * group.depth_ratio)),
        "num_heads": model.num_heads if is_same else max(1, hidden // model.head_dim),
        "intermediate_size": round(model.intermediate_size * hidden / model.hidden_size),
    }
