"""Replaced token detection: a generator fills masks, a discriminator finds its words (ELECTRA, arXiv:2003.10555).

With `sharing="gdes"` and towers of one width this is DeBERTa v3 (arXiv:2111.09543). Its released code updates the
generator first and the discriminator afterwards, from words drawn before that update: as nothing flows back from the
words and the discriminator leaves the generator's tables alone, both get the same gradients here, in one step. Only the
tables below its `delta` are one update older.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from bertjax.config.objectives.rtd import RtdConfig, RtdNetworksConfig
from bertjax.models.model import Model, bind
from bertjax.objectives.base import FlopsTerm, Key, Network, Objective, StepInputs, encoder_inputs, example_keys
from bertjax.objectives.masking import mask_batch
from bertjax.objectives.masking.tokens import SAMPLE, draw_uniforms, keys_at, tokens_of
from bertjax.objectives.rtd.networks import (
    DISCRIMINATOR_HEADS,
    GENERATOR_HEADS,
    discriminator_params,
    generator_params,
    init_networks,
)
from bertjax.objectives.vocab_loss import unigram_nll, vocab_loss_sums
from bertjax.types import Batch, Params, Sum, Vocabulary

_BLOCK = 64  # padded vocabularies are multiples of it
_MOST_REPEATS = 3
"""Samples for a position that was drawn several times; more than three draws of one come once in 50,000 tokens."""


class RtdOutputs(NamedTuple):
    """The generator's logits [B, M, V], the rows with its words [B, S], and what the discriminator makes of them.

    `scores` [B, S] are positive where a token looks replaced.
    """

    logits: Array
    input_ids: Array
    scores: Array


class ReplacedTokenDetection(Objective):
    """Generator and discriminator in one step; the discriminator is what a run is for."""

    config: RtdConfig

    def __init__(self, config: RtdConfig, towers: RtdNetworksConfig, vocabulary: Vocabulary):
        self.config, self.towers, self.vocabulary = config, towers, vocabulary
        self.loss_weights = {"mlm": config.mlm_weight, "rtd": config.disc_weight}
        self.networks = {
            "discriminator": Network(towers.discriminator, DISCRIMINATOR_HEADS),
            "generator": Network(towers.generator, GENERATOR_HEADS),
        }
        masking = config.masking
        predicted = (masking.mask_rate + masking.last_rate) / 2.0
        self.flops_terms = (FlopsTerm(towers.generator, predicted), FlopsTerm(towers.discriminator, 0.0))
        self.unigram_nll = unigram_nll(vocabulary)

    def init(self, key: Key) -> Params:
        return init_networks(self.towers, key)

    def network_params(self, params: Params, name: str) -> Params:
        complete = {"generator": generator_params, "discriminator": discriminator_params}[name]
        return complete(self.towers, params)

    def corrupt(self, batch: Batch, key: Key, cursor: Array) -> Batch:
        """Hides words for the generator, and adds the random numbers `sample_noise` [B, M, R, 2] that its words take.

        They belong to the tokens, like those that chose them, and are new at every cursor even where masks repeat.
        """
        hidden = mask_batch(batch, key, cursor, self.config.masking, self.vocabulary)
        keys = example_keys(jax.random.fold_in(key, cursor), batch)
        tokens = tokens_of(batch, keys, self.vocabulary, allow_mask_special=True, allow_mask_unk=True)
        places = hidden["masked_positions"]
        repeats = _MOST_REPEATS if self.config.average_repeats else 1
        noise = draw_uniforms(keys_at(tokens, places), SAMPLE, 2 * repeats)
        return {**hidden, "sample_noise": noise.reshape(*places.shape, repeats, 2)}

    def counts(self, batch: Batch) -> dict[str, Array]:
        """Draws of masked words, and all real tokens: the discriminator judges [CLS] and [SEP], too."""
        real = (batch["segment_ids"] > 0).astype(jnp.float32)
        return {"mlm": batch["masked_weights"].sum(), "rtd": real.sum()}

    def loss(
        self, params: Params, inputs: StepInputs, batch: Batch, key: Key, train: bool
    ) -> tuple[dict[str, Sum], dict]:
        guesses = self.guess(params, batch, key if train else None)
        sums = vocab_loss_sums("mlm", guesses.logits, batch["masked_ids"], batch["masked_weights"])
        if not train:
            baseline = jnp.asarray(self.unigram_nll)[batch["masked_ids"]] * batch["masked_weights"]
            sums["unigram_loss"] = Sum(baseline.sum(), sums["mlm"].count)
        # By comparison: a word that the generator got right is an original one.
        is_replaced = guesses.input_ids != batch["original_ids"]
        return sums | rtd_loss_sums(guesses.scores, is_replaced, batch["segment_ids"]), inputs.carry

    def guess(self, params: Params, batch: Batch, key: Key | None = None) -> RtdOutputs:
        """Both towers on a corrupted batch; `key` switches dropout on."""
        first, second = (None, None) if key is None else jax.random.split(key)
        logits = self._generate(self._network(params, "generator"), batch, first)
        model, seen = self._network(params, "discriminator"), replaced(batch, self._words(logits, batch))
        hidden = model.encode(**{**encoder_inputs(batch), "input_ids": seen}, key=second).last_hidden_state
        return RtdOutputs(logits, seen, model.rtd_logits(hidden, batch["example_positions"], batch["segment_ids"]))

    def _network(self, params: Params, name: str) -> Model:
        network = self.networks[name]
        return bind(network.config, network.heads, self.network_params(params, name))

    def _generate(self, model: Model, batch: Batch, key: Key | None) -> Float[Array, "B M V"]:
        encoded = model.encode(**encoder_inputs(batch), key=key)
        places = batch["segment_ids"], batch["position_ids"]
        return model.mlm_logits(model.mlm_hidden_states(encoded, *places, batch["masked_positions"], key))

    def _words(self, logits: Float[Array, "B M V"], batch: Batch) -> Int[Array, "B M"]:
        """The generator's word for every masked position, also for those that masking left as they are."""
        words = sample_tokens(logits, batch["sample_noise"], self.config.temperature, self.vocabulary.size)
        if not self.config.average_repeats:
            return words[..., 0]
        times = jnp.clip(batch["masked_weights"].astype(jnp.int32), 1, words.shape[-1])
        drawn = jnp.arange(words.shape[-1])[None, None, :] < times[..., None]
        return jnp.where(drawn, words, 0).sum(axis=-1) // times


def replaced(batch: Batch, words: Int[Array, "B M"]) -> Int[Array, "B S"]:
    """The original rows with these words at the masked positions."""
    original, there = batch["original_ids"], batch["masked_weights"] > 0
    row, length = jnp.arange(len(words))[:, None], original.shape[1]
    return original.at[row, jnp.where(there, batch["masked_positions"], length)].set(words, mode="drop")


def rtd_loss_sums(logits: Float[Array, "B S"], is_replaced: Array, segment_ids: Int[Array, "B S"]) -> dict[str, Sum]:
    """Cross-entropy `rtd` over all real tokens, and how well the replaced ones are found."""
    real = (segment_ids > 0).astype(jnp.float32)
    losses = optax.sigmoid_binary_cross_entropy(logits, is_replaced.astype(jnp.float32))
    said, true = (logits > 0.0) * real, is_replaced * real
    count, found = real.sum(), (said * true).sum()
    return {
        "rtd": Sum((losses * real).sum(), count),
        "rtd_accuracy": Sum(((said == true) * real).sum(), count),
        "rtd_precision": Sum(found, said.sum()),
        "rtd_recall": Sum(found, true.sum()),
        "replaced_share": Sum(true.sum(), count),
    }


def sample_tokens(
    logits: Float[Array, "B M V"], noise: Float[Array, "B M R 2"], temperature: float, vocab_size: int
) -> Int[Array, "B M R"]:
    """R words for every place, drawn from softmax(logits / temperature) over the first `vocab_size`; no gradient.

    By inverted sums of probabilities, first of blocks of words and then inside one: two numbers in [0, 1) a word, where
    Gumbel noise takes as many as there are words, which costs more than the loss itself. Equal in distribution, but for
    the 2^-23 that is the step of the numbers.
    """
    logits = jax.lax.stop_gradient(logits)
    short = -logits.shape[-1] % _BLOCK
    if short:
        logits = jnp.pad(logits, ((0, 0), (0, 0), (0, short)))
    number = jnp.arange(logits.shape[-1], dtype=jnp.int32)
    lowest = jnp.finfo(jnp.float32).min
    logits = jnp.where((number < vocab_size)[None, None, :], logits, lowest)
    highest = logits.max(axis=-1)

    def weigh(some: Array, above: Array) -> Array:
        return jnp.where(some > lowest, jnp.exp((some - above) / temperature), 0.0)

    blocks = logits.reshape(*logits.shape[:2], -1, _BLOCK)
    block = _draw(weigh(blocks, highest[:, :, None, None]).sum(axis=-1)[:, :, None, :], noise[..., 0])
    inside = jnp.take_along_axis(blocks, block[..., None], axis=2)  # [B, M, R, _BLOCK]
    place = _draw(weigh(inside, highest[:, :, None, None]), noise[..., 1])
    # Where rounding lets a sum end above the last word that there is, that word is meant.
    return jnp.minimum(block * _BLOCK + place, vocab_size - 1)


def _draw(weights: Float[Array, "B M R N"], noise: Float[Array, "B M R2"]) -> Int[Array, "B M R2"]:
    """The first index at which the running sum exceeds its share `noise` of the total."""
    sums = jnp.cumsum(weights, axis=-1)
    return jnp.argmax(sums > noise[..., None] * sums[..., -1:], axis=-1).astype(jnp.int32)
