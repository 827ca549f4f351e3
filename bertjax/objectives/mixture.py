"""Several objectives on one network: every batch's rows are divided among them (GPT-BERT, arXiv:2410.24159).

There a row is read either from both sides, with words hidden that are predicted from the place before them, or from
left to right; both are next-token prediction, by the same weights under two masks.
"""

from __future__ import annotations

import jax
import numpy as np
from jaxtyping import Array

from bertjax.config.model import EncoderConfig
from bertjax.config.objectives.clm import ClmConfig
from bertjax.config.objectives.mixture import Member, MixtureConfig, member_encoder
from bertjax.objectives.base import FlopsTerm, Key, Network, Objective, StepInputs
from bertjax.objectives.clm import CausalLanguageModel
from bertjax.objectives.mlm import MaskedLanguageModel
from bertjax.types import Batch, Params, Sum, Vocabulary

MemberObjective = MaskedLanguageModel | CausalLanguageModel


class MixtureOfObjectives(Objective):
    """Members with their own rows; the loss is the mean of theirs, weighted by their shares of the rows.

    A corrupted batch holds the members' arrays under `NAME/array`, each with its own number of rows.
    """

    config: MixtureConfig

    def __init__(self, config: MixtureConfig, model: EncoderConfig, vocabulary: Vocabulary):
        self.config = config
        self.members = {member.name: _member(member, model, vocabulary) for member in config.members}
        shares = {member.name: member.share for member in config.members}
        self.loss_weights = {
            loss: shares[name] * weight
            for name, member in self.members.items()
            for loss, weight in member.loss_weights.items()
        }
        heads = dict.fromkeys(head for member in self.members.values() for head in _network(member).heads)
        self.networks = {"model": Network(model, tuple(heads))}
        self.flops_terms = tuple(
            FlopsTerm(each.config, shares[name] * each.predictions, shares[name] * each.passes, each.trained)
            for name, member in self.members.items()
            for each in member.flops_terms
        )

    def init(self, key: Key) -> Params:
        """The parameters of all members, which share what has the same name."""
        params: Params = {}
        for member in self.members.values():
            params = {**member.init(key), **params}
        return params

    def corrupt(self, batch: Batch, key: Key, cursor: Array) -> Batch:
        rows = self.config.rows(len(batch["input_ids"]))
        ends = np.cumsum([0, *rows])
        parts: dict[str, Array] = {}
        for (name, member), start, end in zip(self.members.items(), ends[:-1], ends[1:], strict=True):
            own = {label: value[start:end] for label, value in batch.items()}
            parts |= {f"{name}/{label}": value for label, value in member.corrupt(own, key, cursor).items()}
        return parts

    def counts(self, batch: Batch) -> dict[str, Array]:
        found: dict[str, Array] = {}
        for name, member in self.members.items():
            found |= member.counts(part_of(batch, name))
        return found

    def loss(
        self, params: Params, inputs: StepInputs, batch: Batch, key: Key, train: bool
    ) -> tuple[dict[str, Sum], dict]:
        sums: dict[str, Sum] = {}
        for index, (name, member) in enumerate(self.members.items()):
            own = {part: params[part] for part in _parts(member)}
            found, _ = member.loss(own, inputs, part_of(batch, name), jax.random.fold_in(key, index), train)
            # the baseline of the first member keeps its name
            sums |= {f"{name}_{label}" if label in sums else label: value for label, value in found.items()}
        return sums, inputs.carry


def part_of(batch: Batch, name: str) -> Batch:
    """The arrays of one member."""
    return {label.removeprefix(f"{name}/"): value for label, value in batch.items() if label.startswith(f"{name}/")}


def _member(member: Member, model: EncoderConfig, vocabulary: Vocabulary) -> MemberObjective:
    own = member_encoder(member.name, model)
    if isinstance(member.config, ClmConfig):
        return CausalLanguageModel(member.config, own, vocabulary)
    return MaskedLanguageModel(member.config, own, vocabulary)


def _network(member: MemberObjective) -> Network:
    return next(iter(member.networks.values()))


def _parts(member: MemberObjective) -> list[str]:
    """The top-level names of a member's parameters."""
    return list(jax.eval_shape(member.init, jax.random.key(0)))
