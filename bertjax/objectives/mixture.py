"""Several objectives on one network: the sequences of every batch are divided among them (GPT-BERT, arXiv:2410.24159).

There a sequence is read either from both sides, with masked tokens that are predicted from the position before them, or
from left to right: both are next-token prediction with the same weights under two attention masks.
"""

from __future__ import annotations

import jax
import numpy as np
from jaxtyping import Array

from bertjax.config.model import EncoderConfig
from bertjax.config.objectives.clm import ClmConfig
from bertjax.config.objectives.mixture import Member, MixtureConfig, member_encoder
from bertjax.objectives.base import FlopsTerm, Key, LossOutputs, Network, Objective, StepInputs
from bertjax.objectives.clm import CausalLanguageModel
from bertjax.objectives.mlm import MaskedLanguageModel
from bertjax.types import Batch, Params, Sum, Vocabulary


class MixtureOfObjectives(Objective):
    """Members with their own sequences; the loss is the mean of theirs, weighted by their shares of the sequences.

    A corrupted batch holds the members' arrays under `NAME/array`, each with its own batch size.
    """

    config: MixtureConfig

    def __init__(self, config: MixtureConfig, model: EncoderConfig, vocabulary: Vocabulary):
        self.config = config
        self.members = {member.name: _build_member(member, model, vocabulary) for member in config.objectives}
        shares = {member.name: member.share for member in config.objectives}
        self.loss_weights = {
            loss: shares[name] * weight
            for name, member in self.members.items()
            for loss, weight in member.loss_weights.items()
        }
        networks = [network for member in self.members.values() for network in member.networks.values()]
        heads = dict.fromkeys(head for network in networks for head in network.heads)
        self.networks = {"model": Network(model, tuple(heads))}
        self.flops_terms = tuple(
            FlopsTerm(each.config, shares[name] * each.predictions, shares[name] * each.passes, each.trained)
            for name, member in self.members.items()
            for each in member.flops_terms
        )

    def init(self, key: Key) -> Params:
        """Returns the parameters of all members, which share those of the same name."""
        params: Params = {}
        for member in self.members.values():
            params = {**member.init(key), **params}
        return params

    def corrupt(self, batch: Batch, key: Key, cursor: Array) -> Batch:
        ends = np.cumsum([0, *self.config.batch_sizes(len(batch["input_ids"]))])
        corrupted: dict[str, Array] = {}
        for (name, member), start, end in zip(self.members.items(), ends[:-1], ends[1:], strict=True):
            current = {array: value[start:end] for array, value in batch.items()}
            corrupted |= {f"{name}/{array}": value for array, value in member.corrupt(current, key, cursor).items()}
        return corrupted

    def counts(self, batch: Batch) -> dict[str, Array]:
        counts: dict[str, Array] = {}
        for name, member in self.members.items():
            counts |= member.counts(member_batch(batch, name))
        return counts

    def loss(self, params: Params, inputs: StepInputs, batch: Batch, key: Key, train: bool) -> LossOutputs:
        sums: dict[str, Sum] = {}
        for index, (name, member) in enumerate(self.members.items()):
            current = {part: params[part] for part in jax.eval_shape(member.init, jax.random.key(0))}
            member_key = jax.random.fold_in(key, index)
            sums |= member.loss(current, inputs, member_batch(batch, name), member_key, train)[0]
        return sums, inputs.carry


def member_batch(batch: Batch, name: str) -> Batch:
    """Returns the arrays of one member of a corrupted batch."""
    return {array.removeprefix(f"{name}/"): value for array, value in batch.items() if array.startswith(f"{name}/")}


def _build_member(
    member: Member, model: EncoderConfig, vocabulary: Vocabulary
) -> MaskedLanguageModel | CausalLanguageModel:
    encoder = member_encoder(member.config, model)
    if isinstance(member.config, ClmConfig):
        return CausalLanguageModel(member.config, encoder, vocabulary)
    return MaskedLanguageModel(member.config, encoder, vocabulary)
