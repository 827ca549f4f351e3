"""What a mixture of objectives can be told, checked once. Needs no jax."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from bertjax.config.model import EncoderConfig
from bertjax.config.objectives.clm import ClmConfig
from bertjax.config.objectives.mlm import MlmConfig
from bertjax.errors import UserError

MEMBERS = ("mlm", "clm")


class Member(NamedTuple):
    """One of the objectives, and the share of every batch's rows that are its own."""

    name: str
    share: float
    config: MlmConfig | ClmConfig


@dataclasses.dataclass(frozen=True)
class MixtureConfig:
    """Objectives that share one network, each with its rows of the batch; the shares sum to 1."""

    members: tuple[Member, ...]

    def __post_init__(self) -> None:
        names = [member.name for member in self.members]
        if len(names) < 2 or len(set(names)) < len(names):
            raise UserError(
                f"objective.mixture needs two objectives or more, each once, not {', '.join(names) or '()'}"
            )

    def rows(self, batch_size: int) -> list[int]:
        """How many rows of a batch are each member's: shares rounded, every member with one at least."""
        found = [max(1, round(member.share * batch_size)) for member in self.members]
        largest = max(range(len(found)), key=found.__getitem__)
        found[largest] += batch_size - sum(found)
        return found

    def check_rows(self, key: str, batch_size: int, microbatches: int) -> None:
        """Raises `UserError` when a member's rows cannot be dealt to microbatches; devices may have unequal shares."""
        for member, rows in zip(self.members, self.rows(batch_size), strict=True):
            if rows < 1 or rows % microbatches:
                raise UserError(
                    f"objective.mixture gives {member.name} {rows} of {key}={batch_size} rows, which "
                    f"train.microbatches={microbatches} does not divide; change the share or the batch"
                )

    def check_model(self, model: EncoderConfig) -> None:
        for member in self.members:
            member.config.check_model(member_encoder(member.name, model))

    def check_example_format(self, form: str) -> None:
        for member in self.members:
            member.config.check_example_format(form)


def member_encoder(name: str, model: EncoderConfig) -> EncoderConfig:
    """The shared network as a member runs it: what predicts the next token sees only what came before."""
    return dataclasses.replace(model, causal=name == "clm")


def parse_mixture(texts: Sequence[str]) -> list[tuple[str, float]]:
    """`("mlm@0.9375", "clm@0.0625")` as names and shares that sum to 1; raises `UserError`."""
    parsed = []
    for text in texts:
        name, _, weight = text.partition("@")
        try:
            share = float(weight)
        except ValueError:
            share = 0.0
        if name not in MEMBERS or not 0.0 < share < float("inf"):
            raise UserError(f"objective.mixture: {text!r} is not NAME@WEIGHT with a name of {', '.join(MEMBERS)}")
        parsed.append((name, share))
    total = sum(share for _, share in parsed)
    return [(name, share / total) for name, share in parsed]
