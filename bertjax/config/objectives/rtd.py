"""What replaced token detection can be told, checked once. Needs no jax."""

from __future__ import annotations

import dataclasses

from bertjax.config.model import EncoderConfig, differences
from bertjax.config.objectives.base import SENTENCE_OBJECTIVE_FORMATS
from bertjax.config.objectives.masking import MaskingConfig
from bertjax.errors import UserError, require_one_of


@dataclasses.dataclass(frozen=True)
class RtdConfig:
    """The weights multiply the means; the words that the generator offers are drawn at `temperature`.

    `average_repeats`: where a position was drawn k times (`masking.with_replacement`) the generator is asked k times,
    and ELECTRA's code puts the mean of the k ids, rounded down, in its place: an unrelated word, if they differ.
    """

    masking: MaskingConfig
    mlm_weight: float = 1.0
    disc_weight: float = 50.0
    temperature: float = 1.0
    average_repeats: bool = False

    def __post_init__(self) -> None:
        for name in ("mlm_weight", "disc_weight"):
            if getattr(self, name) < 0.0:
                raise UserError(f"objective.{name} must not be negative, not {getattr(self, name)}")
        if not self.temperature > 0.0:
            raise UserError(f"objective.temperature must be above 0, not {self.temperature}")
        if self.average_repeats and not self.masking.with_replacement:
            raise UserError(
                "objective.average_repeats needs objective.mask_with_replacement: else no position is drawn twice"
            )

    def check_model(self, model: EncoderConfig) -> None:
        if model.causal:
            raise UserError("objective.name=rtd judges words by both sides, but model.causal sees only one")

    def check_example_format(self, form: str) -> None:
        if form not in SENTENCE_OBJECTIVE_FORMATS["none"]:
            raise UserError(
                f"objective.name=rtd needs data.example_format to be one of "
                f"{', '.join(SENTENCE_OBJECTIVE_FORMATS['none'])}, not {form!r}"
            )


SHARING = ("embeddings", "gdes", "none", "all")


@dataclasses.dataclass(frozen=True)
class RtdNetworksConfig:
    """A generator with the masked-word head and a discriminator with the replaced-token head.

    `sharing` says what is one array in both: "embeddings" (ELECTRA: word, position and type tables and, where it is not
    behind a projection, their norm), "gdes" (DeBERTa v3: the discriminator adds to the generator's word and position
    tables, and leaves them alone), "all" (ELECTRA's tied towers: everything but the heads), "none".
    Raises `UserError`, with the reason, for encoders that cannot share that.
    """

    generator: EncoderConfig
    discriminator: EncoderConfig
    sharing: str = "embeddings"

    def __post_init__(self) -> None:
        require_one_of("objective.sharing", self.sharing, SHARING)
        for name in _equal_fields(self):
            ours, theirs = getattr(self.generator, name), getattr(self.discriminator, name)
            if ours != theirs:
                key = f"generator.{name.replace('_dim', '_size')}"
                way = "" if name in _VOCABULARY else f" ({key}, or objective.sharing=none)"
                raise UserError(
                    f"generator and discriminator cannot share their {_SHARED_WORDS[self.sharing]}: {name} is {ours} "
                    f"and {theirs}; make them equal{way}"
                )

    @property
    def shared_embeddings(self) -> tuple[str, ...]:
        """The parts of the embeddings that belong to both, by their names in the parameters."""
        model, names = self.discriminator, ["word_embeddings"]
        names += ["position_embeddings"] if model.position_embedding == "learned" else []
        if self.sharing == "gdes":
            return tuple(names)
        names += ["token_type_embeddings"] if model.type_vocab_size else []
        names += ["norm"] if model.embedding_norm == "before" else []
        return tuple(names)


_VOCABULARY = ("vocab_size", "padded_vocab_size")  # the tokenizer's, whatever is shared
_SHARED_WORDS = {"embeddings": "embeddings", "gdes": "embeddings", "none": "vocabulary", "all": "weights"}


def _equal_fields(towers: RtdNetworksConfig) -> list[str]:
    """The fields in which both must agree."""
    names = [*_VOCABULARY]
    if towers.sharing == "all":
        return [*names, *differences(towers.generator, towers.discriminator, heads=False)]
    if towers.sharing in ("embeddings", "gdes"):
        names += ["embedding_dim", "position_embedding"]
        if towers.discriminator.position_embedding == "learned":
            names += ["max_position_embeddings", "position_offset"]
    if towers.sharing == "embeddings":
        names += ["type_vocab_size", "embedding_norm"]
        names += ["norm_bias"] if towers.discriminator.embedding_norm == "before" else []
    return names
