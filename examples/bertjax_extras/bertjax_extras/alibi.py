"""Attention with linear biases: scores fall with the distance, by another factor in every head."""

from __future__ import annotations

from typing import Any, ClassVar

import jax.numpy as jnp
from flax import nnx

from bertjax.extensions import Attention, AttentionContext, EncoderConfig, UserError, dot_product_scores, setting


class AlibiAttention(Attention, group="model.alibi"):
    """Attention with linear biases (ALiBi, arXiv:2108.12409), here of the distance to either side."""

    positions = ("none",)
    incremental = True  # the scores know where queries are: generation may cache keys and values
    shardings: ClassVar[dict[str, tuple[str, ...]]] = {"factors": ("tensor",)}

    max_bias: float = setting(
        8.0, above=0.0, help="Factors of the distance are 2^(-max_bias h / heads) for head h = 1, 2, ..."
    )
    trainable: bool = setting(False, help="Train these factors (section 3 of the paper: no better).")

    @classmethod
    def check_model(cls, config: EncoderConfig) -> None:
        if config.position_embedding == "learned":
            raise UserError("model.attention_class=alibi replaces positions: set model.position_embedding=none")

    def init_score_parameters(self, config: Any, rngs: nnx.Rngs) -> None:
        heads = jnp.arange(1, config.num_heads + 1, dtype=jnp.float32)
        factors = 2.0 ** (-self.settings.max_bias * heads / config.num_heads)
        self.factors = nnx.Param(factors) if self.settings.trainable else None

    def scores(self, q: Any, k: Any, context: AttentionContext, key: Any = None) -> Any:
        """Returns the scores [B, N, S, K], float32."""
        heads = jnp.arange(1, self.config.num_heads + 1, dtype=jnp.float32)
        fixed = 2.0 ** (-self.settings.max_bias * heads / self.config.num_heads)
        factors = fixed if self.factors is None else self.factors[...]
        queries = context.start + jnp.arange(q.shape[1])
        distances = jnp.abs(queries[:, None] - jnp.arange(k.shape[1])[None, :])
        return dot_product_scores(q, k, self.config) - (factors[:, None, None] * distances[None])[None]
