"""Settings of attention with linear biases. Imports no jax."""

from __future__ import annotations

import dataclasses

from bertjax.extensions import AttentionConfig, EncoderConfig, UserError, setting


@dataclasses.dataclass(frozen=True)
class AlibiConfig(AttentionConfig, group="model.alibi"):
    """Attention with linear biases (ALiBi, arXiv:2108.12409), here of the distance to either side."""

    attention_class = "bertjax_extras.alibi:AlibiAttention"
    attention_positions = ("none",)

    max_bias: float = setting(
        8.0, above=0.0, help="Factors of the distance are 2^(-max_bias h / heads) for head h = 1, 2, ..."
    )
    trainable: bool = setting(False, help="Train these factors (section 3 of the paper: no better).")

    def check_model(self, model: EncoderConfig) -> None:
        if model.position_embedding == "learned":
            raise UserError("model.attention_class=alibi replaces positions: set model.position_embedding=none")
