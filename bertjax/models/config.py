"""The frozen description of an encoder: sizes and choices, checked once. Needs no jax."""

from __future__ import annotations

import dataclasses

from bertjax.types import UserError

ACTIVATIONS = ("gelu", "gelu_new", "relu")  # Hugging Face's words: gelu = erf, gelu_new = tanh
INITIALIZERS = ("truncated_normal", "normal")
REMAT_POLICIES = ("none", "full", "dots")
DTYPES = ("float32", "bfloat16")


@dataclasses.dataclass(frozen=True)
class EncoderConfig:
    """One Transformer encoder; every published model is a value of this class.

    `vocab_size` is the true size of the tokenizer; `padded_vocab_size` (training only) is what the tables hold.
    Raises `UserError` for sizes that cannot be built.
    """

    vocab_size: int = 30522
    hidden_size: int = 768
    num_layers: int = 12
    num_heads: int = 12
    intermediate_size: int = 3072
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    hidden_act: str = "gelu_new"
    hidden_dropout: float = 0.1
    attention_dropout: float = 0.1
    layer_norm_eps: float = 1e-12
    initializer: str = "truncated_normal"
    initializer_range: float = 0.02
    pad_token_id: int = 0
    padded_vocab_size: int | None = None
    # How it is computed, never what it computes. Products read `compute_dtype` and write `result_dtype`, the type of
    # the activations between them; statistics (softmax, norms, losses) are float32 always.
    compute_dtype: str = "float32"
    result_dtype: str = "float32"
    remat: str = "none"
    unroll: int = 1

    def __post_init__(self) -> None:
        for name in ("vocab_size", "hidden_size", "num_layers", "num_heads", "intermediate_size"):
            _require(getattr(self, name) >= 1, f"model.{name} must be at least 1, not {getattr(self, name)}")
        for name in ("max_position_embeddings", "type_vocab_size", "unroll"):
            _require(getattr(self, name) >= 1, f"model.{name} must be at least 1, not {getattr(self, name)}")
        for name in ("hidden_dropout", "attention_dropout"):
            value = getattr(self, name)
            _require(0.0 <= value < 1.0, f"model.{name} must lie in [0, 1), not {value}")
        _require(
            self.hidden_size % self.num_heads == 0,
            f"model.hidden_size {self.hidden_size} is not divisible by model.num_heads {self.num_heads}; "
            f"head counts that divide it: {_divisors_near(self.hidden_size, self.num_heads)}",
        )
        for name, allowed in (
            ("hidden_act", ACTIVATIONS),
            ("initializer", INITIALIZERS),
            ("remat", REMAT_POLICIES),
            ("compute_dtype", DTYPES),
            ("result_dtype", DTYPES),
        ):
            value = getattr(self, name)
            _require(value in allowed, f"model.{name} must be one of {', '.join(allowed)}, not {value!r}")
        if self.padded_vocab_size is not None:
            _require(
                self.padded_vocab_size >= self.vocab_size,
                f"padded_vocab_size {self.padded_vocab_size} is smaller than model.vocab_size {self.vocab_size}",
            )

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def table_size(self) -> int:
        """Rows of the word table as it is held in memory."""
        return self.vocab_size if self.padded_vocab_size is None else self.padded_vocab_size


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise UserError(message)


def _divisors_near(number: int, wanted: int) -> str:
    divisors = [d for d in range(1, number + 1) if number % d == 0]
    nearest = sorted(sorted(divisors, key=lambda d: abs(d - wanted))[:4])
    return ", ".join(map(str, nearest))
