"""RetroMAE (arXiv:2205.12035): besides masked tokens, one layer rebuilds a text from its first token's state.

Enhanced decoding (section 3.3; staoxiao/RetroMAE:src/pretrain): the queries are the first token's last state plus the
position of each token; keys and values are the text itself, its first token replaced by that state. What a position
may see is drawn for each of them: all tokens but a share, never itself, always the special tokens. The layer reads the
encoder's embeddings and writes into its masked-LM head; the encoder with this head is exported. The authors' code
masks whole words in the decoder, this one tokens.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from bertjax.config.fields import phase_setting
from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.models.heads import gather_positions
from bertjax.models.linear import Key
from bertjax.models.model import Model, bind, init_params
from bertjax.models.rope import absolute_sinusoids
from bertjax.objectives.base import (
    FlopsTerm,
    LossOutputs,
    Objective,
    StepInputs,
    encoder_inputs,
    example_keys,
)
from bertjax.objectives.denoising.layout import WHOLE_TEXTS
from bertjax.objectives.masking.corrupt import mask_batch
from bertjax.objectives.masking.settings import Masking
from bertjax.objectives.masking.tokens import SAMPLE, is_text, locate_tokens, token_keys
from bertjax.objectives.vocab_loss import chunked_vocab_loss_sums, unigram_nll, unigram_sums, vocab_loss_sums
from bertjax.types import Batch, Params, Vocabulary

_LAYER_KEY = 0x2E7  # differs from those of the encoder's parameters
_VISIBLE_KEY = 0x515


@dataclasses.dataclass(frozen=True)
class RetroMae(Objective, group="objective.retromae"):
    """An encoder with the MLM head, and a layer for training alone."""

    title = "masked auto-encoder of texts"
    reads = ("model", "objective.masking")
    heads = ("mlm",)
    loss_weights: ClassVar[dict[str, float]] = {"mlm": 1.0, "retromae": 1.0}
    example_formats = WHOLE_TEXTS
    loss_titles: ClassVar[dict[str, str]] = {"mlm": "Masked tokens", "retromae": "Text from its first token"}

    masking: Masking
    decoder_mask_rate: float = phase_setting(
        0.5,
        at_least=0.0,
        below=1.0,
        help="Share of the tokens that each token of the decoder does not see, another choice for each (0.5 to 0.7).",
    )

    @property
    def summary(self) -> str:
        return f"{self.title} (RetroMAE, {self.decoder_mask_rate:.0%} masked in the decoder; {self.masking.summary})"

    @property
    def embedding_pooling(self) -> str:
        return "first"

    def check_model(self, model: EncoderConfig) -> None:
        if model.causal or model.attention_position == "relative":
            raise UserError(
                "objective.name=retromae embeds a text by its first token, which sees all others: not with "
                "model.causal=true or model.attention_position=relative"
            )
        if model.embedding_ngram not in (None, 1):
            raise UserError("objective.name=retromae: model.embedding_ngram would show its decoder the next token")

    @functools.cached_property
    def reader(self) -> EncoderConfig:
        """The layer that rebuilds the text."""
        return one_layer(self.model)

    @property
    def flops_terms(self) -> tuple[FlopsTerm, ...]:
        return (FlopsTerm(self.model, self.masking.predicted_share), FlopsTerm(self.reader, 1.0))

    def init(self, key: Key) -> Params:
        """Returns the parameters of the encoder and its head, and those of the layer as `reader`."""
        layer = init_params(self.reader, (), jax.random.fold_in(key, _LAYER_KEY))["encoder"]
        parts = {name: part for name, part in layer.items() if name != "embeddings"}
        return {**init_params(self.model, self.heads, key), "reader": parts}

    def network_params(self, params: Params, name: str) -> Params:
        return {part: value for part, value in params.items() if part != "reader"}

    def corrupt(self, batch: Batch, key: Key, cursor: Array) -> Batch:
        """Masks the encoder's tokens, and adds the keys by which every token chooses what it sees in the decoder."""
        keys = example_keys(jax.random.fold_in(jax.random.fold_in(key, cursor), _VISIBLE_KEY), batch)
        tokens = locate_tokens(batch, keys, self.vocabulary, allow_mask_special=False, allow_mask_unk=True)
        draws = jax.vmap(jax.vmap(lambda each: jax.random.bits(jax.random.fold_in(each, SAMPLE))))(token_keys(tokens))
        rebuilt = {"rebuilt_weights": tokens.candidates.astype(jnp.float32), "visible_draws": draws}
        return {**mask_batch(batch, key, cursor, self.masking, self.vocabulary), **rebuilt}

    def counts(self, batch: Batch) -> dict[str, Array]:
        return {"mlm": batch["masked_weights"].sum(), "retromae": batch["rebuilt_weights"].sum()}

    def loss(self, params: Params, inputs: StepInputs, batch: Batch, key: Key, train: bool) -> LossOutputs:
        first, second = jax.random.split(key) if train else (None, None)
        model = bind(self.model, self.heads, self.network_params(params, "model"))
        encoded = model.encode(**encoder_inputs(batch), key=first)
        states = model.mlm_hidden_states(
            encoded, batch["segment_ids"], batch["position_ids"], batch["masked_positions"], first
        )
        targets = batch["masked_ids"], batch["masked_weights"]
        sums = vocab_loss_sums("mlm", model.mlm_logits(states), *targets)
        sums = sums if train else sums | unigram_sums("mlm", unigram_nll(self.vocabulary), *targets)
        reader = {"encoder": {**params["reader"], "embeddings": params["encoder"]["embeddings"]}}
        rebuilt = self._rebuild(model, reader, encoded.last_hidden_state, batch, second)
        return sums | chunked_vocab_loss_sums(
            "retromae", model, rebuilt, batch["original_ids"], batch["rebuilt_weights"]
        ), inputs.carry

    def _rebuild(
        self, model: Model, params: Params, states: Float[Array, "B S D"], batch: Batch, key: Key | None
    ) -> Float[Array, "B S D"]:
        """Returns the outputs of the layer for every token."""
        keys = (None,) * 3 if key is None else jax.random.split(key, 3)
        segments, positions, types = (batch[name] for name in ("segment_ids", "position_ids", "token_type_ids"))
        reader = bind(self.reader, (), params).encoder
        original = model.encoder.embeddings(batch["original_ids"], positions, types, segments, keys[0])
        example = jnp.clip(segments - 1, 0, batch["example_positions"].shape[1] - 1)
        summaries = gather_positions(states, batch["example_positions"])
        summary = jnp.take_along_axis(summaries, example[:, :, None], axis=1).astype(original.dtype)
        source = jnp.where((positions == 0)[:, :, None], summary, original)
        queries = summary + position_states(model, positions).astype(summary.dtype)
        visible = visible_tokens(batch, self.vocabulary, self.decoder_mask_rate)
        context = reader.contexts(segments, positions, types)[False]._replace(mask=visible[:, None])
        return reader.finish(reader.layer(0)(queries, context, keys[1], source), keys[2])


def one_layer(model: EncoderConfig) -> EncoderConfig:
    """Returns the config of the decoder: one global layer of the model."""
    return dataclasses.replace(
        model,
        num_layers=1,
        num_groups=None,
        inner_layers=1,
        conv_kernel_size=0,
        dynamic_conv_kernel_size=0,
        depth_weighted_average=False,
        enhanced_decoder=False,
        local_attention=0,
        global_attn_every_n_layers=1,
        first_global_layer=0,
        first_attention_norm=True,
        residual_depth=None,
    )


def position_states(model: Model, positions: Int[Array, "B S"]) -> Float[Array, "B S D"]:
    """Returns the absolute positions as hidden states of a model; zeros where attention alone knows positions."""
    config, embeddings = model.config, model.encoder.embeddings
    if embeddings.position_embeddings is not None:
        states = embeddings.position_embeddings(positions + config.position_offset)
    elif config.position_embedding in ("sinusoidal", "fairseq"):
        states = absolute_sinusoids(config, positions)
    else:
        states = jnp.zeros((*positions.shape, config.position_dim))
    if embeddings.projection is None or config.embedding_ngram is not None:
        return states
    return embeddings.projection(states)


def visible_tokens(batch: Batch, vocabulary: Vocabulary, rate: float) -> Bool[Array, "B S S"]:
    """Returns True where a token of the decoder (axis 1) sees a token of its example (axis 2).

    Args:
        batch: the corrupted batch.
        vocabulary: the tokenizer's vocabulary.
        rate: share of the tokens of an example, special ones counted, that each token does not see, at least one.
    """
    segments, positions = batch["segment_ids"], batch["position_ids"]
    length, num_examples = segments.shape[1], batch["example_positions"].shape[1]
    text = is_text(batch["original_ids"], segments, vocabulary)
    total = jnp.stack([(segments == example + 1).sum(axis=1) for example in range(num_examples)], axis=1)
    number = jnp.asarray(np.maximum(np.round(rate * np.arange(length + 1)), 1.0 if rate else 0.0), jnp.int32)[total]
    example = jnp.clip(segments - 1, 0, num_examples - 1)
    number = jnp.take_along_axis(number, example, axis=1)
    draw = jax.vmap(jax.vmap(lambda bits: jax.random.uniform(jax.random.key(bits), (length,))))
    noise = jax.vmap(lambda rows, columns: rows[:, columns])(draw(batch["visible_draws"]), positions)
    same = segments[:, :, None] == segments[:, None, :]
    noise = jnp.where(same & text[:, None, :], noise, 2.0)
    ranked = jnp.sort(noise, axis=2)
    limit = jnp.take_along_axis(ranked, jnp.minimum(number, length - 1)[:, :, None], axis=2)
    masked = (noise < limit) | jnp.eye(length, dtype=bool)[None]
    return same & (segments > 0)[:, None, :] & ~masked
