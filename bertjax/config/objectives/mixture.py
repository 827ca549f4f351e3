"""Config of a mixture of objectives. Needs no jax."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple, Self

from ml_collections import ConfigDict

from bertjax.config.fields import phase_setting, read_group
from bertjax.config.model import EncoderConfig
from bertjax.config.objectives.base import ObjectiveConfig
from bertjax.config.objectives.clm import ClmConfig
from bertjax.config.objectives.masking import MaskingConfig
from bertjax.config.objectives.mlm import MlmConfig
from bertjax.errors import UserError

MEMBERS: dict[str, type[MlmConfig] | type[ClmConfig]] = {"mlm": MlmConfig, "clm": ClmConfig}


class Member(NamedTuple):
    """An objective of the mixture and its share of the sequences of every batch."""

    name: str
    share: float
    config: MlmConfig | ClmConfig


@dataclasses.dataclass(frozen=True)
class MixtureConfig(ObjectiveConfig, group="objective.mixture"):
    """Objectives that share one network, each with its own sequences of the batch (GPT-BERT)."""

    title = "a mixture of objectives"
    objective_class = "bertjax.objectives.mixture:MixtureOfObjectives"
    uses = (MaskingConfig, MlmConfig, ClmConfig)

    objectives: tuple[Member, ...]
    members: tuple[str, ...] = phase_setting(
        ("mlm@15", "clm@1"),
        help="NAME@WEIGHT of mlm and clm, which share a network; weights are shares of the sequences and of the loss.",
    )

    @classmethod
    def from_config(cls, cfg: ConfigDict) -> Self:
        shares = parse_members(cfg.objective.mixture.members)
        return read_group(
            cfg, cls, objectives=tuple(Member(name, share, MEMBERS[name].from_config(cfg)) for name, share in shares)
        )

    def check(self) -> None:
        names = [member.name for member in self.objectives]
        if len(names) < 2 or len(set(names)) < len(names):
            raise UserError(
                f"objective.mixture.members needs two objectives or more, each once, not {', '.join(names) or '()'}"
            )

    @property
    def summary(self) -> str:
        return f"{' and '.join(member.config.title for member in self.objectives)} ({', '.join(self.members)})"

    @property
    def predicts_at_mask(self) -> bool:
        return all(member.config.predicts_at_mask for member in self.objectives)

    def batch_sizes(self, batch_size: int) -> list[int]:
        """Returns the sequences of each member: its share of the batch, rounded, and at least one."""
        sizes = [max(1, round(member.share * batch_size)) for member in self.objectives]
        largest = max(range(len(sizes)), key=sizes.__getitem__)
        sizes[largest] += batch_size - sum(sizes)
        return sizes

    def check_batch_size(self, key: str, batch_size: int, microbatches: int) -> None:
        for member, size in zip(self.objectives, self.batch_sizes(batch_size), strict=True):
            if size < 1 or size % microbatches:
                raise UserError(
                    f"objective.mixture.members gives {member.name} {size} of {key}={batch_size} sequences, which "
                    f"train.microbatches={microbatches} does not divide; change the share or the batch"
                )

    def check_model(self, model: EncoderConfig) -> None:
        for member in self.objectives:
            member.config.check_model(member_encoder(member.config, model))

    def check_example_format(self, example_format: str) -> None:
        for member in self.objectives:
            member.config.check_example_format(example_format)


def member_encoder(config: MlmConfig | ClmConfig, model: EncoderConfig) -> EncoderConfig:
    """Returns the shared network as a member runs it: causal for the one that predicts next tokens."""
    return dataclasses.replace(model, causal=isinstance(config, ClmConfig))


def parse_members(texts: Sequence[str]) -> list[tuple[str, float]]:
    """Parses `("mlm@15", "clm@1")` into names and shares that sum to 1; raises `UserError` for anything else."""
    parsed = []
    for text in texts:
        name, _, weight = text.partition("@")
        try:
            share = float(weight)
        except ValueError:
            share = 0.0
        if name not in MEMBERS or not 0.0 < share < float("inf"):
            raise UserError(
                f"objective.mixture.members: {text!r} is not NAME@WEIGHT with a name of {', '.join(MEMBERS)}"
            )
        parsed.append((name, share))
    total = sum(share for _, share in parsed)
    return [(name, share / total) for name, share in parsed]
