"""Distillation: a student learns to do inside, and to say, what a frozen teacher does.

DistilBERT   soft + mlm + cosine (huggingface/transformers: research_projects/distillation/distiller.py, step)
MiniLM       relations of one layer of each (arXiv:2002.10957, arXiv:2012.15828)
TinyBERT     hidden + attention of all of the student's layers (huawei-noah/Pretrained-Language-Model:
             TinyBERT/general_distill.py); the original's means count padding, these do not

The teacher reads what the student reads, without dropout. Its parameters are `frozen["teacher"]`; nothing of it is in
the train state. Where the widths differ, the student's states go through a learned projection, which belongs to the
loss: it is trained and checkpointed, and no part of the network.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from bertjax.config.model import EncoderConfig
from bertjax.config.objectives.distillation import DistillationConfig, attention_layers
from bertjax.config.objectives.mlm import MlmConfig
from bertjax.models.attention_context import attention_mask
from bertjax.models.encoder import EncoderOutput
from bertjax.models.linear import dot, initializer
from bertjax.models.model import Model, abstract_params, bind, init_params
from bertjax.objectives.base import FlopsTerm, Key, Network, Objective, StepInputs, encoder_inputs
from bertjax.objectives.distillation.losses import (
    attention_score_errors,
    cosine_distance,
    distribution_divergence,
    hidden_state_errors,
    kd_loss_sum,
    relation_divergence,
    relation_heads,
)
from bertjax.objectives.masking import mask_batch
from bertjax.objectives.mlm import MaskedLanguageModel
from bertjax.objectives.vocab_loss import unigram_nll, vocab_loss_sums
from bertjax.types import Batch, Params, Sum, Vocabulary

_PROJECTION_KEY = 0xF17  # apart from the student's own parameters


class Side(NamedTuple):
    """One of the two: the model, what its encoder returned, and the key of its dropout (None = the teacher's)."""

    model: Model
    encoded: EncoderOutput
    key: Key | None

    def words(self, batch: Batch, positions: Array | None) -> Float[Array, "B T D"]:
        """What its masked-word head reads at these places; None = everywhere."""
        return self.model.mlm_hidden_states(
            self.encoded, batch["segment_ids"], batch["position_ids"], positions, self.key
        )


class Distillation(Objective):
    """A student network that is trained, and the description of a teacher whose parameters are given to every step."""

    config: DistillationConfig

    def __init__(self, config: DistillationConfig, model: EncoderConfig, teacher: Network, vocabulary: Vocabulary):
        self.config = config
        self.model, self.vocabulary = model, vocabulary
        self.heads, self.loss_weights = config.heads, config.weights
        self.networks = {"model": Network(model, self.heads)}
        self.teacher = Network(teacher.config, tuple(head for head in teacher.heads if head == "mlm"))
        self.projected = bool(config.hidden_weight) and model.hidden_size != teacher.config.hidden_size
        masked = MlmConfig(config.masking).predicted_share
        soft = {"all": 1.0, "masked": masked}[config.soft_positions] if config.soft_weight else 0.0
        self.flops_terms = (
            FlopsTerm(model, soft + (masked if config.mlm_weight else 0.0)),
            FlopsTerm(teacher.config, soft, trained=False),
        )
        self.unigram_nll = unigram_nll(vocabulary)
        self._collect = self._wanted()

    def init(self, key: Key) -> Params:
        """The student's parameters and, where there is one, the projection [D, teacher's D]."""
        params = init_params(self.model, self.heads, key)
        if not self.projected:
            return params
        shape = self.model.hidden_size, self.teacher.config.hidden_size
        kernel = initializer(self.model)(jax.random.fold_in(key, _PROJECTION_KEY), shape, jnp.float32)
        return {**params, "projection": {"kernel": kernel, "bias": jnp.zeros(shape[1], jnp.float32)}}

    def network_params(self, params: Params, name: str) -> Params:
        return {part: value for part, value in params.items() if part != "projection"}

    def frozen(self, teacher: Params) -> dict[str, Params]:
        """`StepInputs.frozen` of a teacher's parameters: those that are run."""
        run = abstract_params(self.teacher.config, self.teacher.heads)
        return {"teacher": {part: teacher[part] for part in run}}

    def alone(self) -> MaskedLanguageModel | None:
        """The student judged by itself, for want of its teacher; None if it has no masked-word head to judge."""
        if not self.heads:
            return None
        return MaskedLanguageModel(MlmConfig(self.config.masking, pair="none"), self.model, self.vocabulary)

    def corrupt(self, batch: Batch, key: Key, cursor: Array) -> Batch:
        return (
            mask_batch(batch, key, cursor, self.config.masking, self.vocabulary) if self.config.masked_text else batch
        )

    def counts(self, batch: Batch) -> dict[str, Array]:
        """Masked words; pairs of tokens that see each other (`attention`); real tokens for all others."""
        counts = {name: (batch["segment_ids"] > 0).sum().astype(jnp.float32) for name in self.loss_weights}
        for name in ("mlm", "soft") if self.config.soft_positions == "masked" else ("mlm",):
            if name in counts:
                counts[name] = batch["masked_weights"].sum()
        if "attention" in counts:
            counts["attention"] = (self._visible(batch) & _real(batch)[..., None]).sum(dtype=jnp.float32)
        return counts

    def loss(
        self, params: Params, inputs: StepInputs, batch: Batch, key: Key, train: bool
    ) -> tuple[dict[str, Sum], dict]:
        student_key = key if train else None
        student = self._side(self.networks["model"], self.network_params(params, "model"), batch, 0, student_key)
        teacher = self._side(self.teacher, jax.lax.stop_gradient(inputs.frozen["teacher"]), batch, 1, None)
        counts, sums = self.counts(batch), {}
        if "soft" in self.loss_weights:
            sums["soft"] = Sum(self._soft(student, teacher, batch), counts["soft"])
        if "mlm" in self.loss_weights:
            sums |= self._words("mlm", student, batch)
        if "cosine" in self.loss_weights:
            distance = cosine_distance(student.encoded.last_hidden_state, teacher.encoded.last_hidden_state)
            sums["cosine"] = Sum((distance * _real(batch)).sum(), counts["cosine"])
        if "relations" in self.loss_weights:
            sums["relations"] = Sum(self._relations(student, teacher, batch), counts["relations"])
        if "hidden" in self.loss_weights:
            sums["hidden"] = Sum(self._hidden(params, student, teacher, batch), counts["hidden"])
        if "attention" in self.loss_weights:
            sums["attention"] = Sum(self._attention(student, teacher, batch), counts["attention"])
        return sums | ({} if train else self._compared(student, teacher, batch)), inputs.carry

    def _side(self, network: Network, params: Params, batch: Batch, which: int, key: Key | None) -> Side:
        model = bind(network.config, network.heads, params)
        return Side(model, model.encode(**encoder_inputs(batch), key=key, collect=self._collect[which]), key)

    def _soft(self, student: Side, teacher: Side, batch: Batch) -> Array:
        everywhere = self.config.soft_positions == "all"
        positions = None if everywhere else batch["masked_positions"]
        weights = _real(batch).astype(jnp.float32) if everywhere else batch["masked_weights"]
        ours, theirs = ((side.model.mlm_logits, side.words(batch, positions)) for side in (student, teacher))
        return kd_loss_sum(ours, theirs, weights, self.config.soft_temperature, self.vocabulary.size)

    def _words(self, name: str, side: Side, batch: Batch) -> dict[str, Sum]:
        logits = side.model.mlm_logits(side.words(batch, batch["masked_positions"]))
        return vocab_loss_sums(name, logits, batch["masked_ids"], batch["masked_weights"])

    def _relations(self, student: Side, teacher: Side, batch: Batch) -> Array:
        """The sum over the relations: the original gives all of them the same weight."""
        layers = self.model.num_layers - 1, self.config.relation_layer_of(self.teacher.config)
        visible, total = self._visible(batch), jnp.zeros(batch["segment_ids"].shape, jnp.float32)
        ours, theirs = (
            {part: side.encoded.attention_tensors[f"layers/{layer}/{part}"] for part in self.config.relation_parts}
            for side, layer in zip((student, teacher), layers, strict=True)
        )
        if "attention" in self.config.relations:
            one, other = (jnp.moveaxis(side["scores"], 1, 0) for side in (ours, theirs))
            total = total + distribution_divergence(one, other, visible).mean(axis=0)
        count = self.config.relation_heads_of(self.teacher.config)
        cut = [
            {part[0]: relation_heads(side[part], count) for part in self.config.relation_parts if part != "scores"}
            for side in (ours, theirs)
        ]
        for name in self.config.relations:
            if name != "attention":
                pairs = [(side[name[0]], side[name[1]]) for side in cut]
                total = total + relation_divergence(pairs[0], pairs[1], visible)
        return (total * _real(batch)).sum()

    def _hidden(self, params: Params, student: Side, teacher: Side, batch: Batch) -> Array:
        """Embeddings beside embeddings, then each of the student's layers beside the end of its part of the teacher."""
        ours, theirs = student.encoded.hidden_states, teacher.encoded.hidden_states
        assert ours is not None and theirs is not None  # `_wanted` asks for them
        if self.projected:
            projection = params["projection"]
            ours = dot(ours, projection["kernel"], self.model.compute_dtype, "float32")
            ours = ours + projection["bias"][None, None, None]
        error = hidden_state_errors(ours, theirs[:: self.teacher.config.num_layers // self.model.num_layers])
        return (error * _real(batch)).sum()

    def _attention(self, student: Side, teacher: Side, batch: Batch) -> Array:
        visible = self._visible(batch)
        errors = (
            attention_score_errors(
                student.encoded.attention_tensors[f"layers/{one}/scores"],
                teacher.encoded.attention_tensors[f"layers/{other}/scores"],
                visible,
            )
            for one, other in attention_layers(self.model, self.teacher.config)
        )
        return (sum(errors, start=jnp.zeros(visible.shape[:2])) * _real(batch)).sum()

    def _compared(self, student: Side, teacher: Side, batch: Batch) -> dict[str, Sum]:
        """Held out: what guessing, the student and the teacher lose on masked words, whatever the student learns."""
        if not self.heads or not self.config.masked_text:
            return {}
        baseline = jnp.asarray(self.unigram_nll)[batch["masked_ids"]] * batch["masked_weights"]
        sums = {"unigram_loss": Sum(baseline.sum(), batch["masked_weights"].sum())}
        if "mlm" not in self.loss_weights:
            found = self._words("mlm", student, batch)
            sums |= {"mlm_loss": found["mlm"], "mlm_accuracy": found["mlm_accuracy"]}
        if "mlm" in self.teacher.heads:
            sums["teacher_mlm_loss"] = self._words("mlm", teacher, batch)["mlm"]
        return sums

    def _visible(self, batch: Batch) -> Bool[Array, "B S S"]:
        return attention_mask(batch["segment_ids"], 0, self.model.causal)[:, 0]

    def _wanted(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """What the encoders are to keep, the student's and the teacher's."""
        ours: list[str] = []
        theirs: list[str] = []
        if self.config.relations_weight:
            layer = self.config.relation_layer_of(self.teacher.config)
            ours += [f"layers/{self.model.num_layers - 1}/{part}" for part in self.config.relation_parts]
            theirs += [f"layers/{layer}/{part}" for part in self.config.relation_parts]
        if self.config.hidden_weight:
            ours.append("hidden_states")
            theirs.append("hidden_states")
        if self.config.attention_weight:
            for one, other in attention_layers(self.model, self.teacher.config):
                ours.append(f"layers/{one}/scores")
                theirs.append(f"layers/{other}/scores")
        return tuple(dict.fromkeys(ours)), tuple(dict.fromkeys(theirs))


def _real(batch: Batch) -> Bool[Array, "B S"]:
    return batch["segment_ids"] > 0
