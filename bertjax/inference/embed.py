"""Embeddings of texts: one vector per text, batched by length, pooled as the model was trained to be."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np
from jaxtyping import Float

from bertjax.data.tokenizer import Tokenizer
from bertjax.hf.inputs import max_input_length, require_readable
from bertjax.hf.pretrained import PretrainedModel
from bertjax.hf.sentence_transformers import Pooling, drop_heads, pool
from bertjax.inference.text_batches import (
    TOKENS_PER_BATCH,
    TextEncoder,
    TokenizedTexts,
    batch_by_length,
    read_forwards,
)

_MEAN = Pooling()


class Embedder:
    """Maps texts to vectors.

    Args:
        model: the model; its heads are not used.
        tokenizer: its tokenizer.
        pooling: mean: over all tokens, special ones included; cls: the token that represents a text, the first one, or
            the last one in models that summarise there (XLNet, GPT-2).
        tokens: token slots of a batch.

    Attributes:
        num_truncated: Number of texts so far that were longer than `max_length`.

    Raises:
        UserError: `pooling.max_length` is beyond the model's positions.
    """

    def __init__(
        self,
        model: PretrainedModel,
        tokenizer: Tokenizer,
        pooling: Pooling = _MEAN,
        tokens: int = TOKENS_PER_BATCH,
    ) -> None:
        self.pooling, self.num_truncated, self._tokens = pooling, 0, tokens
        self._model = model = read_forwards(drop_heads(model))
        require_readable(model.config, pooling.max_length, "--max-length")
        self.max_length = pooling.max_length or max_input_length(model.config) or model.config.max_position_embeddings
        self._encoder = TextEncoder(tokenizer, self.max_length)

    def __call__(self, texts: Sequence[str]) -> Float[np.ndarray, "n D"]:
        """Returns the vectors of texts, float32, in their order."""
        encoded = self._encoder(texts)
        self.num_truncated += encoded.num_truncated
        vectors = np.zeros((len(encoded), self._model.config.hidden_size), np.float32)
        for batch in batch_by_length(encoded.lengths, self.max_length, self._tokens):
            batch_vectors = self._embed(encoded, batch.members, batch.length)
            vectors[batch.members[: batch.num_real]] = batch_vectors[: batch.num_real]
        return vectors

    def _embed(self, texts: TokenizedTexts, members: np.ndarray, length: int) -> np.ndarray:
        batch = texts.token_batch(members, length, self._model.config.pad_token_id)
        hidden = self._model(*batch).last_hidden_state
        weights = batch.attention_mask
        if self.pooling.mode == "cls":  # the mean over this one token
            is_last = self._model.config.pooling == "last"
            position = texts.lengths[members] - 1 if is_last else np.zeros(len(members), np.int64)
            weights = (np.arange(length) == position[:, None]).astype(np.int32)
        return np.asarray(pool(hidden, jax.device_put(weights), "mean", self.pooling.normalize))
