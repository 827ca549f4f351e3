"""Attributions: how much every token of an input contributes to one number that a model computes."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.hf.forward import check_inputs, max_input_length
from bertjax.hf.pretrained import PretrainedModel
from bertjax.hf.sentence_transformers import pool
from bertjax.inference.mlm_inference import MaskMode
from bertjax.inference.text_batches import TOKENS_PER_BATCH, batch_by_length
from bertjax.models.model import Model, bind
from bertjax.models.two_stream import run_two_streams
from bertjax.types import Params

METHODS = ("integrated-gradients", "gradient-x-input", "leave-one-out", "attention-rollout")
STEPS = 50
"""Steps of the integral that captum takes."""
MAX_STEPS = 800
"""More steps than this are not tried."""
TOLERANCE = 0.01
"""Completeness error that needs no more steps."""
_TINY = 1e-6  # of a change of a score: what float32 does not distinguish from none


class Readout(NamedTuple):
    """Number that is explained: a sum of outputs of a head before softmax or sigmoid, or the cosine of two vectors.

    Attributes:
        config: The model.
        heads: Heads whose parameters the model has.
        head: The head whose outputs are summed; "": pooled vectors.
        masks: How tokens are masked, of the head of masked tokens.
        pooling: Mode of the vectors, as of `Pooling`.
        skipped: First tokens that are not pooled.
        num_dims: Numbers of a vector that count; None: all.
    """

    config: EncoderConfig
    heads: tuple[str, ...]
    head: str
    masks: MaskMode | None = None
    pooling: str = "mean"
    skipped: int = 0
    num_dims: int | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class ScoredWindow:
    """A sequence of S tokens, and the number that is explained: the sum over `positions` of their outputs `ids`.

    Attributes:
        input_ids, token_types: int32 [S].
        replaceable: bool [S], False for special tokens, which every baseline keeps.
        word_of_token: int [S], index of a word; -1: none.
        num_words: Number of words.
        positions: Positions whose outputs are summed.
        ids: Index of the output at each.
        vector: Vector of the other text [M]; None: not a similarity.
    """

    input_ids: np.ndarray
    token_types: np.ndarray
    replaceable: np.ndarray
    word_of_token: np.ndarray
    num_words: int
    positions: tuple[int, ...] = (0,)
    ids: tuple[int, ...] = (0,)
    vector: np.ndarray | None = None

    def sum_by_word(self, values: Float[np.ndarray, "S"]) -> Float[np.ndarray, "W"]:
        """Returns the sums of the values of the tokens of each word."""
        inside = self.word_of_token >= 0
        return np.bincount(self.word_of_token[inside], weights=values[inside], minlength=self.num_words)


class Attribution(NamedTuple):
    """Scores of words [W], the number that is explained, and what the method says besides.

    Attributes:
        steps: Steps of the integral.
        completeness_error: Distance of the sum of all scores to the change of the number from the baseline to the
            input, relative to this change.
    """

    words: np.ndarray
    score: float
    steps: int | None = None
    completeness_error: float | None = None


class MixedWindow(NamedTuple):
    """A window in which each token is its embedding times 1 - `share`, plus the baseline times `share` [S]."""

    window: ScoredWindow
    share: np.ndarray


class Attributor:
    """Computes scores and attributions of windows; compiled once per shape of a batch.

    Args:
        model: a model that reads both sides of a word, float32.
        readout: what is explained.
        baseline: embedding that replaces those of tokens [E].
        tokens: token slots of a batch.
    """

    def __init__(
        self,
        model: PretrainedModel,
        readout: Readout,
        baseline: Float[np.ndarray, "E"] | None = None,
        tokens: int = TOKENS_PER_BATCH,
    ) -> None:
        width = model.config.embedding_dim
        self.readout, self._params, self._tokens = readout, model.by_layer, tokens
        self._baseline = jax.device_put(np.zeros(width, np.float32) if baseline is None else baseline)

    def scores(self, rows: Sequence[MixedWindow]) -> Float[np.ndarray, "N"]:
        """Returns the number that is explained for every row."""
        result = np.zeros(len(rows))
        for index, score in self._run(_scores, rows):
            result[index] = score
        return result

    def gradient_x_input(self, windows: Sequence[ScoredWindow]) -> list[Attribution]:
        """Returns embedding times gradient, summed over the embedding (arXiv:1605.01713, section 2)."""
        result: dict[int, Attribution] = {}
        rows = [MixedWindow(each, np.zeros(len(each.input_ids))) for each in windows]
        for index, (score, times_input, _) in self._run(_gradients, rows):
            window = windows[index]
            scores = window.sum_by_word(times_input[: len(window.input_ids)])
            result[index] = Attribution(scores, float(score))
        return [result[index] for index in range(len(windows))]

    def integrated_gradients(self, windows: Sequence[ScoredWindow], steps: int = STEPS) -> list[Attribution]:
        """Returns integrated gradients from the baseline to the embeddings (arXiv:1703.01365).

        The integral is Gauss-Legendre's, as in captum. Windows whose error exceeds `TOLERANCE` are done again with
        twice the steps, to `MAX_STEPS` at most.

        Args:
            windows: the windows.
            steps: number of steps, at first.
        """
        full = self.scores([MixedWindow(each, np.zeros(len(each.input_ids))) for each in windows])
        empty = self.scores([MixedWindow(each, each.replaceable * 1.0) for each in windows])
        result: dict[int, Attribution] = {}
        errors, pending = np.zeros(len(windows)), list(range(len(windows)))
        while pending:
            totals = self._integrate([windows[index] for index in pending], steps)
            for index, total in zip(pending, totals, strict=True):
                change = full[index] - empty[index]
                error = abs(total.sum() - change) / max(abs(change), _TINY)
                words = windows[index].sum_by_word(total)
                result[index] = Attribution(words, float(full[index]), steps, float(error))
                errors[index] = error
            steps *= 2
            pending = [index for index in pending if errors[index] > TOLERANCE and steps <= MAX_STEPS]
        return [result[index] for index in range(len(windows))]

    def _integrate(self, windows: Sequence[ScoredWindow], steps: int) -> list[np.ndarray]:
        """Returns the attribution of every token."""
        nodes, weights = _gauss_legendre(steps)
        rows = [MixedWindow(each, (1.0 - node) * each.replaceable) for each in windows for node in nodes]
        totals = [np.zeros(len(each.input_ids)) for each in windows]
        for index, (_, times_input, times_baseline) in self._run(_gradients, rows):
            total = totals[index // steps]
            total += weights[index % steps] * (times_input - times_baseline)[: len(total)]
        return [total * each.replaceable for total, each in zip(totals, windows, strict=True)]

    def leave_one_out(
        self, windows: Sequence[ScoredWindow], shortened: Sequence[Sequence[ScoredWindow]] | None = None
    ) -> list[Attribution]:
        """Returns what the number loses without each word.

        Args:
            windows: the windows.
            shortened: each window without each of its words; None: the baseline replaces the tokens of a word.
        """
        rows = [MixedWindow(each, np.zeros(len(each.input_ids))) for each in windows]
        for index, window in enumerate(windows):
            if shortened is None:
                words = (window.word_of_token == np.arange(window.num_words)[:, None]) & window.replaceable
                rows += [MixedWindow(window, share * 1.0) for share in words]
            else:
                rows += [MixedWindow(each, np.zeros(len(each.input_ids))) for each in shortened[index]]
        scores = self.scores(rows)
        ends = len(windows) + np.cumsum([0, *(each.num_words for each in windows)])
        return [
            Attribution(scores[index] - scores[ends[index] : ends[index + 1]], float(scores[index]))
            for index in range(len(windows))
        ]

    def attention_rollout(self, windows: Sequence[ScoredWindow]) -> list[Attribution]:
        """Returns how much attention flows from the tokens to where the number is read (arXiv:2005.00928, section 3).

        Raises:
            UserError: attention is not all by which tokens reach each other.
        """
        require_rollout(self.readout)
        result: dict[int, Attribution] = {}
        rows = [MixedWindow(each, np.zeros(len(each.input_ids))) for each in windows]
        for index, (score, flow) in self._run(_rollout, rows):
            window = windows[index]
            result[index] = Attribution(window.sum_by_word(flow[: len(window.input_ids)]), float(score))
        return [result[index] for index in range(len(windows))]

    def _run(self, compute: Callable[..., Any], rows: Sequence[MixedWindow]) -> Iterator[tuple[int, Any]]:
        """Yields index and results of rows, which are run in batches of similar length."""
        lengths = np.array([len(row.share) for row in rows], np.int64)
        limit = max_input_length(self.readout.config, self.readout.heads)
        for part in batch_by_length(lengths, limit, self._tokens):
            batch = self._batch([rows[index] for index in part.members], part.length)
            with jax.default_matmul_precision("float32"):
                results = jax.device_get(compute(self._params, batch, self.readout))
            for position, index in enumerate(part.members[: part.num_real].tolist()):
                yield index, jax.tree.map(lambda values, position=position: values[position], results)

    def _batch(self, rows: Sequence[MixedWindow], length: int) -> dict[str, Any]:
        config, windows = self.readout.config, [row.window for row in rows]
        ids = _padded([each.input_ids for each in windows], length, config.pad_token_id)
        mask = _padded([np.ones_like(each.input_ids) for each in windows], length)
        types = _padded([each.token_types for each in windows], length)
        arrays = {
            "share": _padded([row.share for row in rows], length, dtype=np.float32),
            "positions": np.array([each.positions for each in windows], np.int32),
            "ids": np.array([each.ids for each in windows], np.int32),
        }
        if windows[0].vector is not None:
            arrays["vectors"] = np.stack([np.asarray(each.vector, np.float32) for each in windows])
        inputs = check_inputs(config, self.readout.heads, ids, mask, types)
        return {"inputs": inputs, "baseline": self._baseline, **jax.device_put(arrays)}


def require_rollout(readout: Readout) -> None:
    """Raises `UserError` where tokens reach each other by more than attention, or its weights cannot be had."""
    config, reason = readout.config, ""
    if readout.masks is not None and readout.masks.two_streams:
        reason = "a second stream predicts masked tokens"
    elif config.conv_kernel_size:
        reason = "a convolution follows the first layer"
    elif config.dynamic_conv_kernel_size:
        reason = "a convolution mixes neighboring tokens in every head"
    elif config.embedding_ngram not in (None, 1):
        reason = f"a token reads the embeddings of {config.embedding_ngram}"
    elif config.inner_layers > 1:
        reason = f"each of model.num_groups has inner_layers={config.inner_layers}"
    elif config.enhanced_decoder and readout.head == "mlm":
        reason = "the enhanced decoder runs the last layer twice"
    elif config.decoder_layers is not None:
        reason = "a decoder follows the encoder"
    if reason:
        raise UserError(f"attention-rollout needs the attention weights of plain layers, and here {reason}")


@functools.lru_cache
def _gauss_legendre(steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns nodes and weights of the integral from 0 to 1."""
    nodes, weights = np.polynomial.legendre.leggauss(steps)
    return (1.0 + nodes) / 2.0, weights / 2.0


def _padded(values: Iterable[np.ndarray], length: int, fill: int = 0, dtype: Any = np.int32) -> np.ndarray:
    return np.stack([np.pad(each.astype(dtype), (0, length - len(each)), constant_values=fill) for each in values])


@functools.partial(jax.jit, static_argnums=2)
def _scores(params: Params, batch: dict[str, Any], readout: Readout) -> Float[Array, "R"]:
    return _read(params, batch, readout, _embed(params, batch)[1])


@functools.partial(jax.jit, static_argnums=2)
def _gradients(
    params: Params, batch: dict[str, Any], readout: Readout
) -> tuple[Float[Array, "R"], Float[Array, "R S"], Float[Array, "R S"]]:
    """Returns the scores, and their gradients times the embeddings of the input and times the baseline."""
    inputs, mixed = _embed(params, batch)

    def total(embeds: Array) -> tuple[Array, Array]:
        scores = _read(params, batch, readout, embeds)
        return scores.sum(), scores

    gradients, scores = jax.grad(total, has_aux=True)(mixed)
    return scores, (gradients * inputs).sum(-1), gradients @ batch["baseline"]


@functools.partial(jax.jit, static_argnums=2)
def _rollout(params: Params, batch: dict[str, Any], readout: Readout) -> tuple[Float[Array, "R"], Float[Array, "R S"]]:
    """Returns the scores, and the rows of the product of (A + I) / 2 over layers where the scores are read."""
    layers = [f"layers/{layer}/probabilities" for layer in range(readout.config.num_layers)]
    model = bind(readout.config, readout.heads, params)
    encoded = model.encode(**batch["inputs"], collect=("hidden_states", *layers))
    rows = _reading_weights(batch, readout)[:, None]
    for layer in reversed(layers):
        attention = encoded.attention_tensors[layer].mean(axis=1)
        mixed = (attention + jnp.eye(attention.shape[1])[None]) / 2.0
        rows = rows @ (mixed / mixed.sum(-1, keepdims=True))
    return _read(params, batch, readout, None), rows[:, 0]


def _embed(params: Params, batch: dict[str, Any]) -> tuple[Float[Array, "R S E"], Float[Array, "R S E"]]:
    """Returns the rows of the word table, and their mixture with the baseline."""
    table = params["encoder"]["embeddings"]["word_embeddings"]["embedding"]
    inputs, share = jnp.take(table, batch["inputs"]["input_ids"], axis=0), batch["share"][:, :, None]
    return inputs, inputs * (1.0 - share) + batch["baseline"][None, None] * share


def _read(
    params: Params, batch: dict[str, Any], readout: Readout, embeds: Float[Array, "R S E"] | None
) -> Float[Array, "R"]:
    """Returns the number that is explained."""
    model, inputs = bind(readout.config, readout.heads, params), batch["inputs"]
    positions, segment_ids = batch["positions"], inputs["segment_ids"]
    if readout.masks is not None:
        logits = _masked_logits(model, inputs, positions, readout.masks, embeds)
        return _pick(logits, batch["ids"])
    hidden = model.encode(**inputs, inputs_embeds=embeds).last_hidden_state
    if not readout.head:
        vectors = pool(hidden, segment_ids, readout.pooling, readout.skipped)[:, : readout.num_dims]
        products = (vectors * batch["vectors"]).sum(-1)
        return products / (jnp.linalg.norm(vectors, axis=-1) * jnp.linalg.norm(batch["vectors"], axis=-1))
    if readout.head == "sequence_classification":
        return _pick(model.sequence_logits(hidden, positions, segment_ids), batch["ids"])
    if readout.head == "token_classification":
        logits = model.token_logits(hidden)
    else:
        logits = model.answer_logits(hidden, inputs["input_ids"], segment_ids)
    return _pick(jnp.take_along_axis(logits, positions[:, :, None], axis=1), batch["ids"])


def _pick(logits: Float[Array, "R P K"], ids: Int[Array, "R P"]) -> Float[Array, "R"]:
    """Returns the sum over positions of one output each."""
    return jnp.take_along_axis(logits, ids[:, :, None], axis=2).sum((1, 2)).astype(jnp.float32)


def _masked_logits(
    model: Model, inputs: dict[str, Any], positions: Array, masks: MaskMode, embeds: Array | None
) -> Float[Array, "R P V"]:
    if masks.two_streams:
        masked: Bool[Array, "R S"] = inputs["input_ids"] == masks.mask_id
        visible = jnp.broadcast_to(~masked[:, None, :], (*masked.shape, masked.shape[1]))
        streams = run_two_streams(model.encoder, **inputs, visible=visible, targets=positions, inputs_embeds=embeds)
        assert streams.targets is not None
        return model.mlm_logits(streams.targets)
    encoded = model.encode(**inputs, inputs_embeds=embeds)
    states = model.mlm_hidden_states(encoded, inputs["segment_ids"], inputs["position_ids"], positions)
    return model.mlm_logits(states)


def _reading_weights(batch: dict[str, Any], readout: Readout) -> Float[Array, "R S"]:
    """Returns the share of each token in what the score is read from, 1 in total."""
    mask = batch["inputs"]["segment_ids"]
    tokens = mask * (jnp.cumsum(mask, axis=1) > readout.skipped)
    mean = tokens / tokens.sum(1, keepdims=True)
    if not readout.head:
        last = jnp.argmax(jnp.cumsum(tokens, axis=1), axis=1)
        ends = {"cls": jnp.argmax(tokens, axis=1), "lasttoken": last}
        return jax.nn.one_hot(ends[readout.pooling], mask.shape[1]) if readout.pooling in ends else mean
    if readout.head == "sequence_classification" and readout.config.pooling in ("mean", "late"):
        return mean
    positions = batch["positions"]
    if readout.masks is not None and readout.config.predicts_from_previous:
        positions = positions - 1
    return jax.nn.one_hot(positions, mask.shape[1]).mean(axis=1)
