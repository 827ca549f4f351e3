"""TSDAE (arXiv:2104.06979): words are deleted, and a decoder rebuilds the text from the vector of what is left.

As in sentence-transformers (losses/DenoisingAutoEncoderLoss.py, datasets/DenoisingAutoEncoderDataset.py): the decoder
attends to the vector alone, has the encoder's weights (`decoder.sharing=all`), and reads the text before each token;
words are deleted independently, and one random word stays where all would go. The encoder is what is exported.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from bertjax.config.fields import setting
from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.objectives.base import FlopsTerm, Key, example_keys
from bertjax.objectives.contrastive import embed_examples
from bertjax.objectives.denoising.layout import WHOLE_TEXTS, as_target, close_gaps, drop_tokens
from bertjax.objectives.masking.tokens import ORDER, Tokens, draw_uniform, locate_tokens, locate_words, token_keys
from bertjax.objectives.seq2seq import EncoderDecoderObjective
from bertjax.types import Batch, Vocabulary


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tsdae(EncoderDecoderObjective, group="objective.tsdae"):
    """An encoder, and for training a decoder that sees one vector of it; the encoder is exported."""

    title = "denoising auto-encoder of sentences"
    loss_name = "tsdae"
    exports_decoder = False
    example_formats = WHOLE_TEXTS
    loss_titles: ClassVar[dict[str, str]] = {"tsdae": "Original text"}
    needs_mask_token = False

    deletion_rate: float = setting(
        0.6, at_least=0.0, below=1.0, help="Probability that a word is deleted before the encoder; one word stays."
    )
    pooling: str = setting(
        "first", choices=("first", "mean"), help="Vector of a text: its first token, or the mean of all tokens."
    )

    def check_model(self, model: EncoderConfig) -> None:
        super().check_model(model)
        if model.embedding_ngram not in (None, 1):
            raise UserError("objective.name=tsdae: model.embedding_ngram would show its decoder the next token")

    @property
    def summary(self) -> str:
        return f"{self.title} (TSDAE, {self.deletion_rate:.0%} of the words deleted)"

    @property
    def embedding_pooling(self) -> str:
        return self.pooling

    @property
    def flops_terms(self) -> tuple[FlopsTerm, ...]:
        remaining = 1.0 - self.deletion_rate
        return (FlopsTerm(self.seq2seq_model.encoder, 0.0, remaining), FlopsTerm(self.seq2seq_model.decoder, 1.0))

    def corrupt(self, batch: Batch, key: Key, cursor: Array) -> Batch:
        """Deletes words and adds the target: the text after its first token, which the start token stands for."""
        keys, vocabulary = example_keys(jax.random.fold_in(key, cursor), batch), self.vocabulary
        tokens = locate_tokens(batch, keys, vocabulary, allow_mask_special=False, allow_mask_unk=True)
        size, predicted = tokens.ids.shape[1], (tokens.segments > 0) & (tokens.positions > 0)
        target = as_target(*(close_gaps(predicted, size, each) for each in (tokens.ids, tokens.segments)))
        keep = remaining_tokens(tokens, vocabulary, self.deletion_rate)
        return super().corrupt({**drop_tokens(batch, keep, size, tokens.ids, vocabulary.pad_id), **target}, key, cursor)

    def decoder_source(
        self, states: Float[Array, "B S D"], batch: Batch
    ) -> tuple[Float[Array, "B E D"], Int[Array, "B E"]]:
        vectors = embed_examples(states, batch, self.pooling)
        number = jnp.arange(1, vectors.shape[1] + 1, dtype=jnp.int32)[None, :]
        return vectors.astype(states.dtype), jnp.where(batch["example_weights"] > 0, number, 0)


def remaining_tokens(tokens: Tokens, vocabulary: Vocabulary, rate: float) -> Bool[Array, "B S"]:
    """Returns False for the tokens of deleted words.

    Args:
        tokens: the tokens.
        vocabulary: the tokenizer's vocabulary.
        rate: probability that a word is deleted.
    """
    words = locate_words(tokens, vocabulary, whole=True)
    noise = jnp.take_along_axis(draw_uniform(token_keys(tokens), ORDER), words.first, axis=1)
    noise = jnp.where(words.size > 0, noise, -1.0)
    num_examples = tokens.keys.shape[1]
    sequence = jnp.arange(len(noise))[:, None]
    highest = jnp.full((len(noise), num_examples + 1), -1.0).at[sequence, words.example].max(noise)
    stays = (noise >= rate) | (noise == jnp.take_along_axis(highest, words.example, axis=1))
    return ~tokens.candidates | jnp.take_along_axis(stays, words.word_of_token, axis=1)
