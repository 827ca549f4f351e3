"""Distillation: a student learns the outputs and the internal states of a frozen teacher.

DistilBERT   kd + mlm + cosine (huggingface/transformers: research_projects/distillation/distiller.py, step)
MiniLM       relations of one layer of each (arXiv:2002.10957, arXiv:2012.15828)
TinyBERT     hidden_states + attention of all of the student's layers (huawei-noah/Pretrained-Language-Model:
             TinyBERT/general_distill.py); the original's means count padding, these do not

The teacher reads what the student reads, without dropout. Its parameters are `frozen["teacher"]`; none of them is in
the train state. Where widths differ, the student's states go through a learned projection, which belongs to the loss:
it is trained and saved in checkpoints, but is not part of the network.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError, named
from bertjax.models.attention_context import attention_mask
from bertjax.models.encoder import EncoderOutput
from bertjax.models.linear import dot, initializer
from bertjax.models.model import Model, abstract_params, bind, init_params
from bertjax.objectives.base import FlopsTerm, Key, LossOutputs, Network, StepInputs, encoder_inputs
from bertjax.objectives.distillation.losses import (
    attention_score_errors,
    cosine_distance,
    distribution_divergence,
    hidden_state_errors,
    kd_loss_sum,
    relation_divergence,
    relation_heads,
)
from bertjax.objectives.distillation.settings import DistillationSettings, attention_layers
from bertjax.objectives.masking.corrupt import mask_batch
from bertjax.objectives.mlm import Mlm
from bertjax.objectives.vocab_loss import unigram_nll, unigram_sums, vocab_loss_sums
from bertjax.types import Batch, Params, Sum, Vocabulary

_PROJECTION_KEY = 0xF17  # differs from those of the student's parameters


class Encoded(NamedTuple):
    """Student or teacher: the model, the outputs of its encoder, and the key of its dropout (None for the teacher)."""

    model: Model
    outputs: EncoderOutput
    key: Key | None

    def mlm_states(self, batch: Batch, positions: Array | None) -> Float[Array, "B T D"]:
        """Returns the inputs of the MLM head at positions [B, M] (T = M); None = everywhere (T = S)."""
        return self.model.mlm_hidden_states(
            self.outputs, batch["segment_ids"], batch["position_ids"], positions, self.key
        )

    def tensor(self, layer: int, name: str) -> Array:
        """Returns a collected tensor of a layer's attention; see `Layer.attention_tensors` for names and shapes."""
        return self.outputs.attention_tensors[f"layers/{layer}/{name}"]


@dataclasses.dataclass(frozen=True)
class Distillation(DistillationSettings):
    """A student that is trained, and the description of a teacher whose parameters are passed to every step."""

    def build(
        self, encoders: Mapping[str, EncoderConfig], vocabulary: Vocabulary, teacher: Network | None = None
    ) -> Distillation:
        """Returns the objective with its networks; raises `UserError` where the teacher is missing or does not fit."""
        if teacher is None:
            key = named("config.objective.distillation.teacher", "FOLDER")
            raise UserError(f"objective.name=distillation needs a teacher: set {key}")
        self.check_teacher(encoders["model"], teacher.config, teacher.heads)
        return super().build(encoders, vocabulary, teacher)

    @functools.cached_property
    def teacher_network(self) -> Network:
        """The teacher, with the heads that are read."""
        assert self.inputs.teacher is not None
        config, heads = self.inputs.teacher
        return Network(config, tuple(head for head in heads if head == "mlm"))

    @property
    def is_projected(self) -> bool:
        """True if the student's states go through a learned projection."""
        return bool(self.hidden_states_weight) and self.model.hidden_size != self.teacher_network.config.hidden_size

    @property
    def flops_terms(self) -> tuple[FlopsTerm, ...]:
        masked = self.masking.predicted_share
        kd = {"all": 1.0, "masked": masked}[self.kd_positions] if self.kd_weight else 0.0
        return (
            FlopsTerm(self.model, kd + (masked if self.mlm_weight else 0.0)),
            FlopsTerm(self.teacher_network.config, kd, trained=False),
        )

    def init(self, key: Key) -> Params:
        """Returns the student's parameters and, where widths differ, a `projection` [D, the teacher's D]."""
        params = init_params(self.model, self.heads, key)
        if not self.is_projected:
            return params
        shape = self.model.hidden_size, self.teacher_network.config.hidden_size
        kernel = initializer(self.model)(jax.random.fold_in(key, _PROJECTION_KEY), shape, jnp.float32)
        return {**params, "projection": {"kernel": kernel, "bias": jnp.zeros(shape[1], jnp.float32)}}

    def network_params(self, params: Params, name: str) -> Params:
        return {part: value for part, value in params.items() if part != "projection"}

    def frozen(self, teacher: Params) -> dict[str, Params]:
        """Returns `StepInputs.frozen` for the teacher's parameters: those that are used."""
        used = abstract_params(self.teacher_network.config, self.teacher_network.heads)
        return {"teacher": {part: teacher[part] for part in used}}

    def without_teacher(self) -> Mlm | None:
        """Returns an objective that evaluates the student alone; None if it has no MLM head."""
        if not self.heads:
            return None
        return Mlm(self.masking).build({"model": self.model}, self.vocabulary)

    def corrupt(self, batch: Batch, key: Key, cursor: Array) -> Batch:
        if not self.mask_inputs:
            return batch
        return mask_batch(batch, key, cursor, self.masking, self.vocabulary)

    def counts(self, batch: Batch) -> dict[str, Array]:
        """Returns masked tokens, pairs of tokens that attend to each other (`attention`), or real tokens."""
        counts = {name: (batch["segment_ids"] > 0).sum().astype(jnp.float32) for name in self.loss_weights}
        for name in ("mlm", "kd") if self.kd_positions == "masked" else ("mlm",):
            if name in counts:
                counts[name] = batch["masked_weights"].sum()
        if "attention" in counts:
            counts["attention"] = (self._visible(batch) & _is_real(batch)[..., None]).sum(dtype=jnp.float32)
        return counts

    def loss(self, params: Params, inputs: StepInputs, batch: Batch, key: Key, train: bool) -> LossOutputs:
        student_key = key if train else None
        student = self._encode(self.networks["model"], self.network_params(params, "model"), batch, 0, student_key)
        teacher = self._encode(self.teacher_network, jax.lax.stop_gradient(inputs.frozen["teacher"]), batch, 1, None)
        counts, sums = self.counts(batch), {}
        if "kd" in self.loss_weights:
            sums["kd"] = Sum(self._kd(student, teacher, batch), counts["kd"])
        if "mlm" in self.loss_weights:
            sums |= self._mlm_sums(student, batch)
        if "cosine" in self.loss_weights:
            distance = cosine_distance(student.outputs.last_hidden_state, teacher.outputs.last_hidden_state)
            sums["cosine"] = Sum((distance * _is_real(batch)).sum(), counts["cosine"])
        if "relations" in self.loss_weights:
            sums["relations"] = Sum(self._relations(student, teacher, batch), counts["relations"])
        if "hidden_states" in self.loss_weights:
            sums["hidden_states"] = Sum(self._hidden_states(params, student, teacher, batch), counts["hidden_states"])
        if "attention" in self.loss_weights:
            sums["attention"] = Sum(self._attention(student, teacher, batch), counts["attention"])
        return sums | ({} if train else self._comparison(student, teacher, batch)), inputs.carry

    def _encode(self, network: Network, params: Params, batch: Batch, index: int, key: Key | None) -> Encoded:
        model = bind(network.config, network.heads, params)
        return Encoded(
            model, model.encode(**encoder_inputs(batch), key=key, collect=self._collected_tensors[index]), key
        )

    def _kd(self, student: Encoded, teacher: Encoded, batch: Batch) -> Array:
        everywhere = self.kd_positions == "all"
        positions = None if everywhere else batch["masked_positions"]
        weights = _is_real(batch).astype(jnp.float32) if everywhere else batch["masked_weights"]
        ours, theirs = ((side.model.mlm_logits, side.mlm_states(batch, positions)) for side in (student, teacher))
        return kd_loss_sum(ours, theirs, weights, self.kd_temperature, self.vocabulary.size)

    def _mlm_sums(self, side: Encoded, batch: Batch) -> dict[str, Sum]:
        logits = side.model.mlm_logits(side.mlm_states(batch, batch["masked_positions"]))
        return vocab_loss_sums("mlm", logits, batch["masked_ids"], batch["masked_weights"])

    def _relations(self, student: Encoded, teacher: Encoded, batch: Batch) -> Array:
        """Sums the divergences of all relations: the original gives them equal weights."""
        layers = self.model.num_layers - 1, self.relation_layer_of(self.teacher_network.config)
        visible, total = self._visible(batch), jnp.zeros(batch["segment_ids"].shape, jnp.float32)
        ours, theirs = (
            {name: side.tensor(layer, name) for name in self.relation_tensors}
            for side, layer in zip((student, teacher), layers, strict=True)
        )
        if "attention" in self.relations:
            one, other = (jnp.moveaxis(side["scores"], 1, 0) for side in (ours, theirs))
            total = total + distribution_divergence(one, other, visible).mean(axis=0)
        count = self.relation_heads_of(self.teacher_network.config)
        heads = [
            {name[0]: relation_heads(side[name], count) for name in self.relation_tensors if name != "scores"}
            for side in (ours, theirs)
        ]
        for name in self.relations:
            if name != "attention":
                pairs = [(side[name[0]], side[name[1]]) for side in heads]
                total = total + relation_divergence(pairs[0], pairs[1], visible)
        return (total * _is_real(batch)).sum()

    def _hidden_states(self, params: Params, student: Encoded, teacher: Encoded, batch: Batch) -> Array:
        """Compares the embeddings, then each student layer with the last of its group of teacher layers."""
        ours, theirs = student.outputs.hidden_states, teacher.outputs.hidden_states
        assert ours is not None and theirs is not None  # `_collected_tensors` names them
        if self.is_projected:
            projection = params["projection"]
            ours = dot(ours, projection["kernel"], self.model.compute_dtype, "float32")
            ours = ours + projection["bias"][None, None, None]
        errors = hidden_state_errors(ours, theirs[:: self.teacher_network.config.num_layers // self.model.num_layers])
        return (errors * _is_real(batch)).sum()

    def _attention(self, student: Encoded, teacher: Encoded, batch: Batch) -> Array:
        visible = self._visible(batch)
        errors = (
            attention_score_errors(student.tensor(one, "scores"), teacher.tensor(other, "scores"), visible)
            for one, other in attention_layers(self.model, self.teacher_network.config)
        )
        return (sum(errors, start=jnp.zeros(visible.shape[:2])) * _is_real(batch)).sum()

    def _comparison(self, student: Encoded, teacher: Encoded, batch: Batch) -> dict[str, Sum]:
        """Computes the losses of masked held-out tokens: by frequency, of the student and of the teacher."""
        if not self.heads or not self.mask_inputs:
            return {}
        sums = unigram_sums("mlm", unigram_nll(self.vocabulary), batch["masked_ids"], batch["masked_weights"])
        if "mlm" not in self.loss_weights:
            mlm = self._mlm_sums(student, batch)
            sums |= {"mlm_loss": mlm["mlm"], "mlm_accuracy": mlm["mlm_accuracy"]}
        if "mlm" in self.teacher_network.heads:
            sums["teacher_mlm_loss"] = self._mlm_sums(teacher, batch)["mlm"]
        return sums

    def _visible(self, batch: Batch) -> Bool[Array, "B S S"]:
        return attention_mask(batch["segment_ids"], 0, self.model.causal)[:, 0]

    @functools.cached_property
    def _collected_tensors(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Returns the names of the tensors that the encoders collect: the student's and the teacher's."""
        ours: list[str] = []
        theirs: list[str] = []
        if self.relations_weight:
            layer = self.relation_layer_of(self.teacher_network.config)
            ours += [f"layers/{self.model.num_layers - 1}/{name}" for name in self.relation_tensors]
            theirs += [f"layers/{layer}/{name}" for name in self.relation_tensors]
        if self.hidden_states_weight:
            ours.append("hidden_states")
            theirs.append("hidden_states")
        if self.attention_weight:
            for one, other in attention_layers(self.model, self.teacher_network.config):
                ours.append(f"layers/{one}/scores")
                theirs.append(f"layers/{other}/scores")
        return tuple(dict.fromkeys(ours)), tuple(dict.fromkeys(theirs))


def _is_real(batch: Batch) -> Bool[Array, "B S"]:
    return batch["segment_ids"] > 0
