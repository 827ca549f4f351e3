"""Replaced token detection: a generator fills masks, a discriminator finds its tokens (ELECTRA, arXiv:2003.10555).

With `embedding_sharing="gdes"` and networks of one width this is DeBERTa v3 (arXiv:2111.09543). Its released code
updates the generator first and the discriminator afterwards, from tokens drawn before that update. As no gradient flows
through the tokens and the discriminator does not train the generator's tables, both get the same gradients here, in one
step; only the tables below `delta` are one step older.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from bertjax.config.model import EncoderConfig
from bertjax.config.objectives.rtd import RtdConfig, RtdNetworksConfig
from bertjax.models.model import Model, bind
from bertjax.objectives.base import (
    FlopsTerm,
    Key,
    LossOutputs,
    Network,
    Objective,
    StepInputs,
    encoder_inputs,
    example_keys,
)
from bertjax.objectives.masking.corrupt import mask_batch
from bertjax.objectives.masking.tokens import SAMPLE, draw_uniforms, locate_tokens, token_keys_at
from bertjax.objectives.rtd.networks import (
    DISCRIMINATOR_HEADS,
    GENERATOR_HEADS,
    discriminator_params,
    generator_params,
    init_networks,
)
from bertjax.objectives.sentence_pairs import classify_pairs, pair_loss_weights, with_pair_heads
from bertjax.objectives.vocab_loss import unigram_nll, unigram_sums, vocab_loss_sums
from bertjax.types import Batch, Params, Sum, Vocabulary

_BLOCK = 64  # padded vocabularies are multiples of it
_MAX_REPEATS = 3
"""Samples for a position that was drawn several times; more than three draws of one come once in 50,000 tokens."""


class RtdOutputs(NamedTuple):
    """Outputs of both networks.

    Attributes:
        generator_logits: [B, M, V], of the masked positions.
        input_ids: [B, S], the sequences with the generator's tokens.
        discriminator_logits: [B, S], positive where a token looks replaced.
        discriminator_states: [B, S, D], its last hidden states.
    """

    generator_logits: Array
    input_ids: Array
    discriminator_logits: Array
    discriminator_states: Array


class ReplacedTokenDetection(Objective):
    """Generator and discriminator, trained in one step; an export holds the discriminator."""

    config: RtdConfig

    def __init__(self, config: RtdConfig, encoders: RtdNetworksConfig, vocabulary: Vocabulary):
        self.config, self.encoders, self.vocabulary = config, encoders, vocabulary
        self.loss_weights = {"mlm": config.mlm_weight, "rtd": config.disc_weight, **pair_loss_weights(config)}
        self.networks = {
            "discriminator": Network(encoders.discriminator, with_pair_heads(DISCRIMINATOR_HEADS, config)),
            "generator": Network(encoders.generator, GENERATOR_HEADS),
        }
        self.flops_terms = (
            FlopsTerm(encoders.generator, config.masking.predicted_share),
            FlopsTerm(encoders.discriminator, 0.0),
        )
        self.unigram_nll = unigram_nll(vocabulary)

    @classmethod
    def build(
        cls,
        config: RtdConfig,
        encoders: Mapping[str, EncoderConfig],
        vocabulary: Vocabulary,
        teacher: Network | None = None,
    ) -> Objective:
        shared = RtdNetworksConfig(encoders["generator"], encoders["model"], config.embedding_sharing)
        return cls(config, shared, vocabulary)

    def init(self, key: Key) -> Params:
        return init_networks(self.encoders, key, self.networks["discriminator"].heads)

    def network_params(self, params: Params, name: str) -> Params:
        complete = {"generator": generator_params, "discriminator": discriminator_params}[name]
        return complete(self.encoders, params)

    def corrupt(self, batch: Batch, key: Key, cursor: Array) -> Batch:
        """Masks tokens for the generator and adds `sample_noise` [B, M, R, 2], from which its tokens are drawn.

        The noise belongs to the tokens, like the one that selects them, and is new at every cursor even where masks
        repeat.
        """
        masked = mask_batch(batch, key, cursor, self.config.masking, self.vocabulary)
        keys = example_keys(jax.random.fold_in(key, cursor), batch)
        tokens = locate_tokens(batch, keys, self.vocabulary, allow_mask_special=True, allow_mask_unk=True)
        positions = masked["masked_positions"]
        repeats = _MAX_REPEATS if self.config.average_repeats else 1
        noise = draw_uniforms(token_keys_at(tokens, positions), SAMPLE, 2 * repeats)
        return {**masked, "sample_noise": noise.reshape(*positions.shape, repeats, 2)}

    def counts(self, batch: Batch) -> dict[str, Array]:
        """Returns the draws of masked tokens, and all real tokens: the discriminator classifies [CLS] and [SEP]."""
        is_real = (batch["segment_ids"] > 0).astype(jnp.float32)
        counts = {"mlm": batch["masked_weights"].sum(), "rtd": is_real.sum(), "pair": batch["example_weights"].sum()}
        return {name: counts[name] for name in self.loss_weights}

    def loss(self, params: Params, inputs: StepInputs, batch: Batch, key: Key, train: bool) -> LossOutputs:
        outputs = self.forward(params, batch, key if train else None)
        targets = batch["masked_ids"], batch["masked_weights"]
        sums = vocab_loss_sums("mlm", outputs.generator_logits, *targets)
        if not train:
            sums |= unigram_sums("mlm", self.unigram_nll, *targets)
        # By comparison: a token that the generator got right is an original one.
        is_replaced = outputs.input_ids != batch["original_ids"]
        sums |= rtd_loss_sums(outputs.discriminator_logits, is_replaced, batch["segment_ids"])
        # The discriminator reads replaced tokens, so the order of its segments is that of corrupted text, as in BERT.
        model = self._bind(params, "discriminator")
        return sums | classify_pairs(model, outputs.discriminator_states, batch), inputs.carry

    def forward(self, params: Params, batch: Batch, key: Key | None = None) -> RtdOutputs:
        """Runs both networks.

        Args:
            params: the trained parameters.
            batch: a corrupted batch.
            key: the key of dropout; None = no dropout.
        """
        generator_key, discriminator_key = (None, None) if key is None else jax.random.split(key)
        logits = self._generator_logits(self._bind(params, "generator"), batch, generator_key)
        ids = replace_masked(batch, self._sample(logits, batch))
        model = self._bind(params, "discriminator")
        inputs = {**encoder_inputs(batch), "input_ids": ids}
        states = model.encode(**inputs, key=discriminator_key).last_hidden_state
        scores = model.rtd_logits(states, batch["example_positions"], batch["segment_ids"])
        return RtdOutputs(logits, ids, scores, states)

    def _bind(self, params: Params, name: str) -> Model:
        network = self.networks[name]
        return bind(network.config, network.heads, self.network_params(params, name))

    def _generator_logits(self, model: Model, batch: Batch, key: Key | None) -> Float[Array, "B M V"]:
        encoded = model.encode(**encoder_inputs(batch), key=key)
        positions = batch["masked_positions"]
        return model.mlm_logits(
            model.mlm_hidden_states(encoded, batch["segment_ids"], batch["position_ids"], positions, key)
        )

    def _sample(self, logits: Float[Array, "B M V"], batch: Batch) -> Int[Array, "B M"]:
        """Draws the generator's token for every masked position, also for those that masking left as they are."""
        ids = sample_tokens(logits, batch["sample_noise"], self.config.temperature, self.vocabulary.size)
        if not self.config.average_repeats:
            return ids[..., 0]
        times = jnp.clip(batch["masked_weights"].astype(jnp.int32), 1, ids.shape[-1])
        is_drawn = jnp.arange(ids.shape[-1])[None, None, :] < times[..., None]
        return jnp.where(is_drawn, ids, 0).sum(axis=-1) // times


def replace_masked(batch: Batch, ids: Int[Array, "B M"]) -> Int[Array, "B S"]:
    """Returns the original sequences with `ids` at the masked positions."""
    original, is_masked = batch["original_ids"], batch["masked_weights"] > 0
    sequence, length = jnp.arange(len(ids))[:, None], original.shape[1]
    return original.at[sequence, jnp.where(is_masked, batch["masked_positions"], length)].set(ids, mode="drop")


def rtd_loss_sums(logits: Float[Array, "B S"], is_replaced: Array, segment_ids: Int[Array, "B S"]) -> dict[str, Sum]:
    """Computes the discriminator's cross-entropy over all real tokens and how well it finds the replaced ones.

    Args:
        logits: positive where a token looks replaced.
        is_replaced: bool [B, S].
        segment_ids: 0 = padding.

    Returns:
        `rtd`, `rtd_accuracy`, `rtd_precision`, `rtd_recall` and `replaced_share`.
    """
    is_real = (segment_ids > 0).astype(jnp.float32)
    losses = optax.sigmoid_binary_cross_entropy(logits, is_replaced.astype(jnp.float32))
    predicted, actual = (logits > 0.0) * is_real, is_replaced * is_real
    count, num_detected = is_real.sum(), (predicted * actual).sum()
    return {
        "rtd": Sum((losses * is_real).sum(), count),
        "rtd_accuracy": Sum(((predicted == actual) * is_real).sum(), count),
        "rtd_precision": Sum(num_detected, predicted.sum()),
        "rtd_recall": Sum(num_detected, actual.sum()),
        "replaced_share": Sum(actual.sum(), count),
    }


def sample_tokens(
    logits: Float[Array, "B M V"], noise: Float[Array, "B M R 2"], temperature: float, vocab_size: int
) -> Int[Array, "B M R"]:
    """Draws R tokens per position from softmax(logits / temperature); no gradient flows through them.

    By inverting cumulative probabilities, first of blocks of tokens and then inside one: two random numbers per token,
    where Gumbel noise takes one per entry of the vocabulary, which costs more than the loss itself. The distribution
    is the same, up to 2^-23, the resolution of the numbers.

    Args:
        logits: scores of the vocabulary.
        noise: uniform in [0, 1).
        temperature: divides the logits.
        vocab_size: tokens that may be drawn; the rest of V is padding.
    """
    logits = jax.lax.stop_gradient(logits)
    padding = -logits.shape[-1] % _BLOCK
    if padding:
        logits = jnp.pad(logits, ((0, 0), (0, 0), (0, padding)))
    index = jnp.arange(logits.shape[-1], dtype=jnp.int32)
    lowest = jnp.finfo(jnp.float32).min
    logits = jnp.where((index < vocab_size)[None, None, :], logits, lowest)
    highest = logits.max(axis=-1)

    def weigh(some: Array, above: Array) -> Array:
        return jnp.where(some > lowest, jnp.exp((some - above) / temperature), 0.0)

    blocks = logits.reshape(*logits.shape[:2], -1, _BLOCK)
    block = _draw(weigh(blocks, highest[:, :, None, None]).sum(axis=-1)[:, :, None, :], noise[..., 0])
    inside = jnp.take_along_axis(blocks, block[..., None], axis=2)  # [B, M, R, _BLOCK]
    offset = _draw(weigh(inside, highest[:, :, None, None]), noise[..., 1])
    # Where rounding lets a sum end above the last token that there is, that token is meant.
    return jnp.minimum(block * _BLOCK + offset, vocab_size - 1)


def _draw(weights: Float[Array, "B M R N"], noise: Float[Array, "B M R2"]) -> Int[Array, "B M R2"]:
    """Returns the first index at which the cumulative sum exceeds the share `noise` of the total."""
    sums = jnp.cumsum(weights, axis=-1)
    return jnp.argmax(sums > noise[..., None] * sums[..., -1:], axis=-1).astype(jnp.int32)
