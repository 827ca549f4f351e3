"""One vector a text, for any number of texts: batched by length, pooled as the model was trained to be."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from bertjax.errors import UserError
from bertjax.hf.inputs import max_input_length
from bertjax.hf.pretrained import PretrainedModel
from bertjax.hf.sentence_transformers import Pooling, drop_heads, pool
from bertjax.inference.text_batches import EncodingTokenizer, TextEncoder, TokenizedTexts, batch_by_length

TOKENS = 8192
"""Of a batch, padding included."""
_MEAN = Pooling()


class Embedder:
    """Texts to vectors, float32 [n, D]; `cut` counts the texts that were longer than it reads.

    pooling=mean is over all tokens, special ones too; cls is the token that stands for a text: the first, or the last
    where the model summarises there (XLNet, GPT-2). Raises `UserError` for a `max_length` beyond the model's positions.
    """

    def __init__(
        self, model: PretrainedModel, tokenizer: EncodingTokenizer, pooling: Pooling = _MEAN, tokens: int = TOKENS
    ) -> None:
        self.pooling, self.cut, self._tokens = pooling, 0, tokens
        self._model = drop_heads(model)
        if self._model.config.bi_data:  # half of a batch would be read backwards
            self._model = dataclasses.replace(
                self._model, config=dataclasses.replace(self._model.config, bi_data=False)
            )
        longest = max_input_length(self._model.config)
        if longest is not None and pooling.max_length is not None and pooling.max_length > longest:
            raise UserError(f"max-length {pooling.max_length} is beyond the {longest} tokens that the model can read")
        self.max_length = pooling.max_length or longest or self._model.config.max_position_embeddings
        self._reader = TextEncoder(tokenizer, self.max_length)

    def __call__(self, texts: Sequence[str]) -> Float[np.ndarray, "n D"]:
        """The vectors in the order of the texts."""
        read = self._reader(texts)
        self.cut += read.cut
        vectors = np.zeros((len(read), self._model.config.hidden_size), np.float32)
        for batch in batch_by_length(read.lengths, self.max_length, self._tokens):
            found = self._vectors(read, batch.members, batch.length)
            vectors[batch.members[: batch.real]] = found[: batch.real]
        return vectors

    def _vectors(self, texts: TokenizedTexts, members: np.ndarray, length: int) -> np.ndarray:
        rows = texts.rows(members, length, self._model.config.pad_token_id)
        hidden = self._model(*rows).last_hidden_state
        pooled = rows.attention_mask
        if self.pooling.mode == "cls":  # a mean over this one token
            last = self._model.config.pooling == "last"
            place = texts.lengths[members] - 1 if last else np.zeros(len(members), np.int64)
            pooled = (np.arange(length) == place[:, None]).astype(np.int32)
        return np.asarray(pool(hidden, jnp.asarray(pooled), "mean", self.pooling.normalize))
