"""Settings of distillation, and what a teacher must have for them."""

from __future__ import annotations

import dataclasses
import functools
from typing import ClassVar

from bertjax.config.fields import linked, phase_setting, setting
from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.objectives.base import Objective
from bertjax.objectives.masking.settings import Masking

RELATIONS = ("attention", *(f"{one}{other}" for one in "qkv" for other in "qkv"))
LOSSES = ("kd", "mlm", "cosine", "relations", "hidden_states", "attention")


@dataclasses.dataclass(frozen=True)
class DistillationSettings(Objective, group="objective.distillation"):
    """Losses between a student and its teacher, a weight of 0 = no such loss; the defaults are DistilBERT's."""

    title = "distillation"
    reads = ("model", "objective.masking")
    loss_titles: ClassVar[dict[str, str]] = {
        "kd": "Teacher: token distribution",
        "mlm": "Masked tokens",
        "cosine": "Teacher: cosine of hidden states",
        "relations": "Teacher: attention relations",
        "hidden_states": "Teacher: hidden states",
        "attention": "Teacher: attention scores",
    }
    metrics: ClassVar[dict[str, tuple[str, str]]] = {
        "teacher_mlm_loss": ("nats", "The teacher's loss of the masked tokens of the same batches."),
    }
    uses_teacher = True

    masking: Masking
    teacher: str | None = setting(
        None,
        path=True,
        help="Folder of the teacher (ours or Hugging Face's), or hub:NAME[@REVISION]; it must have the tokens of "
        "data.tokenizer.",
        resume=True,
    )
    teacher_layers: tuple[int, ...] | None = setting(
        None,
        help="The teacher's layers that the student starts as, one per layer, with embeddings and heads, such as "
        "0,2,4,7,9,11 (DistilBERT); None = everything is drawn afresh.",
        at_least=0,
    )
    mask_inputs: bool = phase_setting(
        True, help="False: both networks read the text unmasked, for losses that predict no token (later TinyBERT)."
    )
    kd_weight: float = phase_setting(
        5.0, help="Factor of the divergence from the teacher's token distribution.", at_least=0.0
    )
    kd_temperature: float = phase_setting(2.0, help="Divides the logits of both networks.", above=0.0)
    kd_positions: str = phase_setting(
        "all", help="Tokens whose distributions are compared: all or the masked ones.", choices=("all", "masked")
    )
    mlm_weight: float = phase_setting(1.0, help="Factor of the loss of masked tokens.", at_least=0.0)
    cosine_weight: float = phase_setting(1.0, help="Factor of the angle between the last states.", at_least=0.0)
    relations_weight: float = phase_setting(0.0, help="Factor of the relations below (MiniLM).", at_least=0.0)
    relations: tuple[str, ...] = phase_setting(
        ("qq", "kk", "vv"),
        help="attention = the attention probabilities, head by head; qq, kk, vv, qk, ... = scaled products of the "
        "queries, keys and values of two tokens, in relation_heads parts.",
        choices=RELATIONS,
    )
    relation_heads: int | None = phase_setting(None, help="Relation heads; None = the teacher's heads.", at_least=1)
    relation_layer: int | None = phase_setting(
        None,
        help="The teacher's layer (0 = the first) whose relations the student's last layer learns; None = its last.",
        at_least=0,
    )
    hidden_states_weight: float = phase_setting(
        0.0,
        help="Factor of the distance of embeddings and hidden states, through a learned projection where widths differ "
        "(TinyBERT).",
        at_least=0.0,
    )
    attention_weight: float = phase_setting(
        0.0, help="Factor of the distance of the attention scores of all layers (TinyBERT).", at_least=0.0
    )
    seq_len: int = linked("data.seq_len", 128)

    def check(self) -> None:
        if not self.loss_weights:
            raise UserError(
                "objective.name=distillation has no loss: set one of objective.distillation."
                f"{'_weight, '.join(LOSSES)}_weight"
            )
        if len(set(self.relations)) < len(self.relations) or not self.relations:
            raise UserError(
                f"objective.distillation.relations must be some of {', '.join(RELATIONS)}, each once; not "
                f"{', '.join(self.relations)!r}"
            )
        if not self.mask_inputs and (self.mlm_weight or (self.kd_weight and self.kd_positions == "masked")):
            raise UserError(
                "objective.distillation.mask_inputs=false leaves no token to predict: set "
                "objective.distillation.mlm_weight=0 and objective.distillation.kd_positions=all"
            )

    @property
    def summary(self) -> str:
        return f"{self.title} ({', '.join(self.loss_weights)})"

    @functools.cached_property
    def loss_weights(self) -> dict[str, float]:
        weights = {name: getattr(self, f"{name}_weight") for name in LOSSES}
        return {name: weight for name, weight in weights.items() if weight}

    @property
    def heads(self) -> tuple[str, ...]:
        """The heads of the student."""
        return ("mlm",) if self.kd_weight or self.mlm_weight else ()

    @property
    def relation_tensors(self) -> tuple[str, ...]:
        """The tensors of an attention that the relations are computed from."""
        letters = {letter for name in self.relations if name != "attention" for letter in name}
        tensors = [name for name in ("query", "key", "value") if name[0] in letters]
        return (*tensors, "scores") if "attention" in self.relations else tuple(tensors)

    def relation_layer_of(self, teacher: EncoderConfig) -> int:
        """Returns the teacher's layer whose relations are learned."""
        return teacher.num_layers - 1 if self.relation_layer is None else self.relation_layer

    def relation_heads_of(self, teacher: EncoderConfig) -> int:
        """Returns the number of relation heads for this teacher."""
        return teacher.num_heads if self.relation_heads is None else self.relation_heads

    def check_model(self, model: EncoderConfig) -> None:
        if model.causal and self.mask_inputs:
            raise UserError(
                "objective.name=distillation predicts from both sides, but model.causal attends to one; set "
                "objective.distillation.mask_inputs=false with objective.distillation.mlm_weight=0, or "
                "model.causal=false"
            )
        layers = self.teacher_layers
        if layers is not None and len(layers) != model.num_layers:
            raise UserError(
                f"objective.distillation.teacher_layers names {len(layers)} layers, but the student has "
                f"model.num_layers={model.num_layers}: name one per layer"
            )
        if self.relations_weight and self.relation_heads is not None and self.relations != ("attention",):
            _require_division(self.relation_heads, model, "the student")

    def check_teacher(self, student: EncoderConfig, teacher: EncoderConfig, heads: tuple[str, ...]) -> None:
        """Checks that a teacher suits a student; their tokenizers are compared where they are read.

        Args:
            student: the student.
            teacher: the teacher.
            heads: the teacher's heads.

        Raises:
            UserError: the teacher lacks positions, layers, heads or sizes that a loss needs.
        """
        if teacher.position_embedding == "learned" and teacher.max_position_embeddings < self.seq_len:
            raise UserError(
                f"the teacher has {teacher.max_position_embeddings} positions, fewer than data.seq_len={self.seq_len}; "
                "use shorter sequences"
            )
        if self.kd_weight and "mlm" not in heads:
            raise UserError(
                "objective.distillation.kd_weight needs a teacher with a masked-LM head; this one has "
                f"{', '.join(heads) or 'no head'}"
            )
        if teacher.causal != student.causal:
            raise UserError(f"model.causal={student.causal}, but the teacher has causal={teacher.causal}")
        if self.cosine_weight and teacher.hidden_size != student.hidden_size:
            raise UserError(
                "objective.distillation.cosine_weight compares states of one width, but model.hidden_size="
                f"{student.hidden_size} and the teacher has {teacher.hidden_size}; set it to 0 "
                "(objective.distillation.hidden_states_weight learns a projection)"
            )
        if self.hidden_states_weight or self.attention_weight:
            self._check_layer_map(student, teacher)
        if self.relations_weight:
            self._check_relations(student, teacher)

    def _check_layer_map(self, student: EncoderConfig, teacher: EncoderConfig) -> None:
        if teacher.num_layers % student.num_layers:
            raise UserError(
                "objective.distillation.hidden_states_weight and objective.distillation.attention_weight map the "
                f"student's layers evenly to the teacher's: model.num_layers={student.num_layers} must divide "
                f"{teacher.num_layers}"
            )
        if self.attention_weight:
            _check_attention("attention_weight", student, teacher, attention_layers(student, teacher))

    def _check_relations(self, student: EncoderConfig, teacher: EncoderConfig) -> None:
        layer = self.relation_layer_of(teacher)
        if layer not in range(teacher.num_layers):
            raise UserError(
                f"objective.distillation.relation_layer={layer} is not a layer of the teacher, 0 to "
                f"{teacher.num_layers - 1}"
            )
        if "attention" in self.relations:
            _check_attention("relations=attention", student, teacher, [(student.num_layers - 1, layer)])
        if self.relations != ("attention",):
            for config, whose in ((student, "the student"), (teacher, "the teacher")):
                _require_division(self.relation_heads_of(teacher), config, whose)


def attention_layers(student: EncoderConfig, teacher: EncoderConfig) -> list[tuple[int, int]]:
    """Returns (student layer, teacher layer) pairs: the last of each of the teacher's equal groups (TinyBERT)."""
    width = teacher.num_layers // student.num_layers
    return [(layer, layer * width + width - 1) for layer in range(student.num_layers)]


def _check_attention(key: str, student: EncoderConfig, teacher: EncoderConfig, layers: list[tuple[int, int]]) -> None:
    if student.num_heads != teacher.num_heads:
        raise UserError(
            f"objective.distillation.{key} compares head with head, but model.num_heads={student.num_heads} and the "
            f"teacher has {teacher.num_heads}; learn relations such as qq, kk, vv instead"
        )
    if any(student.is_local(one) or teacher.is_local(other) for one, other in layers):
        raise UserError(f"objective.distillation.{key} compares layers with global attention; one of them is local")


def _require_division(heads: int, config: EncoderConfig, whose: str) -> None:
    width = config.num_heads * config.head_dim
    if width % heads:
        raise UserError(
            f"objective.distillation.relation_heads={heads} must divide the width of {whose}'s attention, {width}"
        )
