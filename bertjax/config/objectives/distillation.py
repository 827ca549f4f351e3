"""What distillation can be told, checked once. Needs no jax."""

from __future__ import annotations

import dataclasses

from bertjax.config.model import EncoderConfig
from bertjax.config.objectives.base import SENTENCE_OBJECTIVE_FORMATS
from bertjax.config.objectives.masking import MaskingConfig
from bertjax.errors import UserError, require_one_of

SOFT_POSITIONS = ("all", "masked")
RELATIONS = ("attention", *(f"{one}{other}" for one in "qkv" for other in "qkv"))
LOSSES = ("soft", "mlm", "cosine", "relations", "hidden", "attention")


@dataclasses.dataclass(frozen=True)
class DistillationConfig:
    """The factors of the losses, 0 = no such loss; the defaults are DistilBERT's.

    Every field is a key of `objective` in `bertjax/config/defaults/objective.py`, where it is explained.
    """

    masking: MaskingConfig
    masked_text: bool = True
    teacher_layers: tuple[int, ...] | None = None
    soft_weight: float = 5.0
    soft_temperature: float = 2.0
    soft_positions: str = "all"
    mlm_weight: float = 2.0
    cosine_weight: float = 1.0
    relations_weight: float = 0.0
    relations: tuple[str, ...] = ("qq", "kk", "vv")
    relation_heads: int | None = None
    relation_layer: int | None = None
    hidden_weight: float = 0.0
    attention_weight: float = 0.0

    def __post_init__(self) -> None:
        for name in LOSSES:
            if getattr(self, f"{name}_weight") < 0.0:
                raise UserError(f"objective.{name}_weight must not be negative, not {getattr(self, f'{name}_weight')}")
        if not self.weights:
            raise UserError(
                f"objective.name=distill has nothing to learn: set one of objective.{'_weight, '.join(LOSSES)}_weight"
            )
        if not self.soft_temperature > 0.0:
            raise UserError(f"objective.soft_temperature must be above 0, not {self.soft_temperature}")
        require_one_of("objective.soft_positions", self.soft_positions, SOFT_POSITIONS)
        unknown = [name for name in self.relations if name not in RELATIONS]
        if unknown or len(set(self.relations)) < len(self.relations) or not self.relations:
            raise UserError(
                f"objective.relations must be some of {', '.join(RELATIONS)}, each once; not "
                f"{', '.join(self.relations)!r}"
            )
        if self.relation_heads is not None and self.relation_heads < 1:
            raise UserError(f"objective.relation_heads must be at least 1, not {self.relation_heads}")
        if not self.masked_text and (self.mlm_weight or (self.soft_weight and self.soft_positions == "masked")):
            raise UserError(
                "objective.masked_text=false leaves no word to predict: set objective.mlm_weight=0 and "
                "objective.soft_positions=all"
            )

    @property
    def weights(self) -> dict[str, float]:
        """The factors of the losses that there are."""
        named = {name: getattr(self, f"{name}_weight") for name in LOSSES}
        return {name: weight for name, weight in named.items() if weight}

    @property
    def heads(self) -> tuple[str, ...]:
        """What stands on the student."""
        return ("mlm",) if self.soft_weight or self.mlm_weight else ()

    @property
    def relation_parts(self) -> tuple[str, ...]:
        """The parts of an attention that the relations are made of."""
        letters = {letter for name in self.relations if name != "attention" for letter in name}
        parts = [part for part in ("query", "key", "value") if part[0] in letters]
        return (*parts, "scores") if "attention" in self.relations else tuple(parts)

    def relation_layer_of(self, teacher: EncoderConfig) -> int:
        """The teacher's layer whose relations are learned."""
        return teacher.num_layers - 1 if self.relation_layer is None else self.relation_layer

    def relation_heads_of(self, teacher: EncoderConfig) -> int:
        return teacher.num_heads if self.relation_heads is None else self.relation_heads

    def check_model(self, model: EncoderConfig) -> None:
        if model.causal and self.masked_text:
            raise UserError(
                "objective.name=distill hides words from both sides, but model.causal sees only one; set "
                "objective.masked_text=false with objective.mlm_weight=0, or model.causal=false"
            )
        layers = self.teacher_layers
        if layers is not None and len(layers) != model.num_layers:
            raise UserError(
                f"objective.teacher_layers names {len(layers)} layers, but the student has "
                f"model.num_layers={model.num_layers}: name one for each"
            )
        self._check_relation_heads(model, "the student")

    def check_example_format(self, form: str) -> None:
        if form not in SENTENCE_OBJECTIVE_FORMATS["none"]:
            raise UserError(
                f"objective.name=distill needs data.example_format to be one of "
                f"{', '.join(SENTENCE_OBJECTIVE_FORMATS['none'])}, not {form!r}"
            )

    def check_teacher(
        self, student: EncoderConfig, teacher: EncoderConfig, heads: tuple[str, ...], length: int
    ) -> None:
        """Raises `UserError` where this teacher cannot teach this student rows of `length` tokens.

        That the pieces are the same is for those to see who have the tokenizers.
        """
        if teacher.position_embedding == "learned" and teacher.max_position_embeddings < length:
            raise UserError(
                f"the teacher has {teacher.max_position_embeddings} positions, fewer than data.seq_len={length}; give "
                "shorter rows"
            )
        if self.soft_weight and "mlm" not in heads:
            raise UserError(
                "objective.soft_weight needs a teacher with a masked-word head; this one has "
                f"{', '.join(heads) or 'no head'}"
            )
        if teacher.causal != student.causal:
            raise UserError(f"model.causal={student.causal}, but the teacher has causal={teacher.causal}")
        if self.cosine_weight and teacher.hidden_size != student.hidden_size:
            raise UserError(
                "objective.cosine_weight compares states of one width, but model.hidden_size="
                f"{student.hidden_size} and the teacher has {teacher.hidden_size}; "
                "set it to 0 (objective.hidden_weight learns a projection)"
            )
        if self.hidden_weight or self.attention_weight:
            self._check_layer_map(student, teacher)
        if self.relations_weight:
            self._check_relations(student, teacher)

    def _check_layer_map(self, student: EncoderConfig, teacher: EncoderConfig) -> None:
        if teacher.num_layers % student.num_layers:
            raise UserError(
                f"objective.hidden_weight and objective.attention_weight spread the student's layers evenly over the "
                f"teacher's: model.num_layers={student.num_layers} must divide {teacher.num_layers}"
            )
        if self.attention_weight:
            pairs = attention_layers(student, teacher)
            self._check_attention("attention_weight", student, teacher, pairs)

    def _check_relations(self, student: EncoderConfig, teacher: EncoderConfig) -> None:
        layer = self.relation_layer_of(teacher)
        if layer not in range(teacher.num_layers):
            raise UserError(
                f"objective.relation_layer={layer} is none of the teacher's layers, 0 to {teacher.num_layers - 1}"
            )
        if "attention" in self.relations:
            self._check_attention("relations=attention", student, teacher, [(student.num_layers - 1, layer)])
        if self.relations != ("attention",):
            for config, whose in ((student, "the student"), (teacher, "the teacher")):
                _require_division(self.relation_heads_of(teacher), config, whose)

    def _check_relation_heads(self, model: EncoderConfig, whose: str) -> None:
        if self.relations_weight and self.relation_heads is not None and self.relations != ("attention",):
            _require_division(self.relation_heads, model, whose)

    @staticmethod
    def _check_attention(
        key: str, student: EncoderConfig, teacher: EncoderConfig, layers: list[tuple[int, int]]
    ) -> None:
        if student.num_heads != teacher.num_heads:
            raise UserError(
                f"objective.{key} compares head with head, but model.num_heads={student.num_heads} and the teacher has "
                f"{teacher.num_heads}; learn relations such as qq, kk, vv instead"
            )
        if any(student.is_local(one) or teacher.is_local(other) for one, other in layers):
            raise UserError(f"objective.{key} compares layers that see the whole row; one of them sees a window")


def attention_layers(student: EncoderConfig, teacher: EncoderConfig) -> list[tuple[int, int]]:
    """(layer of the student, layer of the teacher): the last of each of the teacher's even parts (TinyBERT)."""
    width = teacher.num_layers // student.num_layers
    return [(layer, layer * width + width - 1) for layer in range(student.num_layers)]


def _require_division(heads: int, config: EncoderConfig, whose: str) -> None:
    width = config.num_heads * config.head_dim
    if width % heads:
        raise UserError(f"objective.relation_heads={heads} must divide the width of {whose}'s attention, {width}")
