"""The model: an encoder and heads, with its parameters as a nested dict."""

from __future__ import annotations

import dataclasses
import functools
from typing import TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.models.disentangled_attention import restrict_queries
from bertjax.models.encoder import Encoder, EncoderOutput, describe_module
from bertjax.models.heads import (
    MlmHead,
    Pooler,
    QuestionHead,
    ReplacedTokenHead,
    ScoreHead,
    SpanBoundaryHead,
    contact_features,
    contact_probabilities,
    gather_positions,
    pool_examples,
    summary_per_token,
)
from bertjax.models.layer_stack import join_stacks
from bertjax.models.linear import Key, KeyStream, Linear, abstract_module, initializer
from bertjax.types import Params

HEADS = (
    "pooler",
    "mlm",
    "pair",
    "rtd",
    "span_boundary",
    "sequence_classification",
    "token_classification",
    "question_answering",
    "multiple_choice",
    "contact",
)

_DECODER_KEY = 0xDEC0DE  # derives the dropout key of a decoder, distinct from the encoder's


class Model(nnx.Module):
    """An encoder with any of `HEADS`. `pair` and `classifier_dense="pooler"` need the pooler.

    With `config.decoder_layers` a decoder follows, whose states the heads read.

    Args:
        config: architecture and heads.
        heads: names from `HEADS`; the attributes of all others are None.
        rngs: the stream `params` draws the parameters.
        words: False leaves out the word table: every call brings `inputs_embeds`.

    Raises:
        UserError: a head is unknown, or needs the pooler.
    """

    def __init__(self, config: EncoderConfig, heads: tuple[str, ...], rngs: nnx.Rngs, words: bool = True):
        check_heads(config, heads)
        self.encoder = Encoder(config, rngs, words)
        has_decoder = config.decoder_layers is not None
        self.decoder = Model(config.decoder_config(), (), rngs, words=False) if has_decoder else None
        self.pooler = Pooler(config, rngs) if "pooler" in heads else None
        self.mlm_head = MlmHead(config, rngs) if "mlm" in heads else None
        self.decoder_positions = _decoder_positions(config, rngs) if "mlm" in heads else None
        self.pair_head = Linear(config.hidden_size, 2, config, rngs) if "pair" in heads else None
        self.rtd_head = ReplacedTokenHead(config, rngs) if "rtd" in heads else None
        self.span_head = SpanBoundaryHead(config, rngs) if "span_boundary" in heads else None

        def score_head(name: str, num_scores: int, dense: bool, bias: bool = True) -> ScoreHead | None:
            return ScoreHead(config, num_scores, dense, rngs, bias) if name in heads else None

        of_texts = config.classifier_dense == "own", config.classifier_bias
        self.sequence_head = score_head("sequence_classification", config.num_labels, *of_texts)
        self.token_head = score_head("token_classification", config.num_labels, config.token_classifier_dense)
        self.choice_head = score_head("multiple_choice", 1, choice_layer(config) == "own")
        self.answer_head: ScoreHead | QuestionHead | None
        if config.answer_head == "question" and "question_answering" in heads:
            self.answer_head = QuestionHead(config, rngs)
        else:
            self.answer_head = score_head("question_answering", 2, config.token_classifier_dense)
        maps = config.num_layers * config.num_heads
        self.contact_head = Linear(maps, 1, config, rngs) if "contact" in heads else None
        self.config = config

    def __repr__(self) -> str:
        return describe_module(self, self.config)

    __str__ = __repr__

    def encode(
        self,
        input_ids: Int[Array, "B S"],
        segment_ids: Int[Array, "B S"],
        position_ids: Int[Array, "B S"],
        token_type_ids: Int[Array, "B S"],
        key: Key | None = None,
        collect: tuple[str, ...] = (),
        encoder_hidden_states: Float[Array, "B K D2"] | None = None,
        encoder_attention_mask: Int[Array, "B K"] | None = None,
        inputs_embeds: Float[Array, "B S E"] | None = None,
    ) -> EncoderOutput:
        """Runs the encoder, and collects what `mlm_hidden_states` needs; the arrays are those of `types.Batch`.

        A decoder runs after it: the last hidden state is the decoder's, whose hidden states follow the encoder's.

        Args:
            input_ids, segment_ids, position_ids, token_type_ids, key, collect, encoder_hidden_states,
                encoder_attention_mask, inputs_embeds: as in `Encoder.__call__`.
        """
        if self.decoder_positions is not None:
            collect = (*collect, "before_last")
        tokens = input_ids, segment_ids, token_type_ids, position_ids
        encoded = self.encoder(
            *tokens,
            key=key,
            collect=collect,
            encoder_hidden_states=encoder_hidden_states,
            encoder_attention_mask=encoder_attention_mask,
            inputs_embeds=inputs_embeds,
        )
        if self.decoder is None:
            return encoded
        words = self.encoder.embeddings.look_up(input_ids) if inputs_embeds is None else inputs_embeds
        decoded = self.decoder.encoder(
            *tokens,
            key=None if key is None else jax.random.fold_in(key, _DECODER_KEY),
            collect=tuple(name for name in collect if name == "hidden_states"),
            encoder_hidden_states=encoded.last_hidden_state,
            encoder_attention_mask=segment_ids,
            inputs_embeds=self._one_late(words, segment_ids),
        )
        states = None
        if encoded.hidden_states is not None and decoded.hidden_states is not None:
            states = jnp.concatenate([encoded.hidden_states, decoded.hidden_states])
        return encoded._replace(last_hidden_state=decoded.last_hidden_state, hidden_states=states)

    def _one_late(self, words: Float[Array, "B S E"], segment_ids: Int[Array, "B S"]) -> Float[Array, "B S E"]:
        """Returns the word embeddings of the tokens before, and of `decoder_start` before the first of an example."""
        before = jnp.pad(segment_ids[:, :-1], ((0, 0), (1, 0)), constant_values=-1)
        if self.config.decoder_start == "last":
            index = jnp.broadcast_to(jnp.arange(words.shape[1], dtype=jnp.int32)[None], words.shape[:2])
            ends = segment_ids != jnp.pad(segment_ids[:, 1:], ((0, 0), (0, 1)), constant_values=-1)
            last = jax.lax.cummin(jnp.where(ends, index, words.shape[1]), axis=1, reverse=True)
            first = gather_positions(words, last)
        else:
            token = self.config.eos_token_id if self.config.decoder_start == "eos" else self.config.pad_token_id
            first = self.encoder.embeddings.look_up(jnp.full((1, 1), token, jnp.int32))
        late = jnp.pad(words[:, :-1], ((0, 0), (1, 0), (0, 0)))
        return jnp.where((segment_ids != before)[:, :, None], first, late)

    def mlm_hidden_states(
        self,
        encoded: EncoderOutput,
        segment_ids: Int[Array, "B S"],
        position_ids: Int[Array, "B S"],
        positions: Int[Array, "B M"] | None = None,
        key: Key | None = None,
    ) -> Float[Array, "B M D"]:
        """Returns the input of the MLM head: the last hidden state, or the output of DeBERTa's enhanced decoder.

        With `config.masked_next_token` it is the state of the token before, and of the first token its own.

        Args:
            encoded: output of `encode`.
            segment_ids, position_ids: as in `types.Batch`.
            positions: tokens to return [B, M]; None = all.
            key: key of the decoder's dropout; None = no dropout.
        """
        if self.decoder_positions is not None:
            assert encoded.before_last is not None  # `encode` collects it
            return self._enhanced_decoder(encoded.before_last, segment_ids, position_ids, positions, key)
        hidden = encoded.last_hidden_state
        if self.config.predicts_from_previous:
            indices = jnp.broadcast_to(jnp.arange(hidden.shape[1], dtype=jnp.int32), hidden.shape[:2])
            positions = jnp.maximum((indices if positions is None else positions) - 1, 0)
        return hidden if positions is None else gather_positions(hidden, positions)

    def _enhanced_decoder(
        self, hidden: Array, segment_ids: Array, position_ids: Array, positions: Array | None, key: Key | None
    ) -> Array:
        """Runs the last layer twice over queries that start as hidden state + absolute position.

        Keys and values are the hidden states both times, so queries do not see one another, and only those at
        `positions` are run (microsoft/DeBERTa:DeBERTa/apps/models/masked_language_model.py runs all).
        """
        assert self.decoder_positions is not None
        keys = (None, None) if key is None else jax.random.split(jax.random.fold_in(key, _DECODER_KEY))
        last, no_types = self.config.num_layers - 1, jnp.zeros_like(segment_ids)
        context = self.encoder.contexts(segment_ids, position_ids, no_types)[self.config.is_local(last)]
        x = hidden + self.decoder_positions(position_ids).astype(hidden.dtype)
        if positions is not None and self.config.attention_position == "disentangled":
            x, context, positions = gather_positions(x, positions), restrict_queries(context, positions), None
        layer = self.encoder.layer(last)
        for layer_key in keys:
            x = layer(x, context, layer_key, hidden)
        return x if positions is None else gather_positions(x, positions)

    def mlm_logits(self, hidden: Float[Array, "*b D"]) -> Float[Array, "*b V"]:
        """Returns vocabulary logits of hidden states; gather the masked positions first, for this is expensive."""
        return _present(self.mlm_head)(hidden, self.word_embedding_table())

    def word_embedding_table(self) -> Float[Array, "V D"]:
        """The table of word embeddings, which the MLM head shares."""
        return self.encoder.embeddings.word_table

    def pooled(
        self, hidden: Float[Array, "B S D"], positions: Int[Array, "B E"], segment_ids: Int[Array, "B S"] | None = None
    ) -> Float[Array, "B E D"]:
        """Returns the pooler output of every example. Args: as in `sequence_logits`."""
        return _present(self.pooler)(self._summaries(hidden, positions, segment_ids))

    def pair_logits(self, pooled: Float[Array, "*b D"]) -> Float[Array, "*b 2"]:
        """Returns the logits of the sentence-pair head in float32, from pooled vectors."""
        return _present(self.pair_head)(pooled).astype("float32")

    def rtd_logits(
        self, hidden: Float[Array, "B S D"], positions: Int[Array, "B E"], segment_ids: Int[Array, "B S"]
    ) -> Float[Array, "B S"]:
        """Returns one score per token, positive where it looks replaced. Args: as in `sequence_logits`."""
        summaries = None
        if self.config.rtd_head == "summary":
            summaries = summary_per_token(hidden, positions, segment_ids)
        return _present(self.rtd_head)(hidden, summaries)

    def span_logits(
        self, left: Float[Array, "B M D"], right: Float[Array, "B M D"], positions: Int[Array, "B M"]
    ) -> Float[Array, "B M V"]:
        """Returns vocabulary logits of the tokens of spans. Args: as in `SpanBoundaryHead.__call__`."""
        return _present(self.span_head)(left, right, positions, self.word_embedding_table())

    def sequence_logits(
        self,
        hidden: Float[Array, "B S D"],
        positions: Int[Array, "B E"],
        segment_ids: Int[Array, "B S"] | None = None,
        key: Key | None = None,
    ) -> Float[Array, "B E C"]:
        """Returns the scores of C labels for every example.

        Args:
            hidden: last hidden state [B, S, D].
            positions: summary token of each example [B, E].
            segment_ids: example of each token [B, S]; needed for the mean over tokens only.
            key: key of the dropout; None = no dropout.
        """
        return self._example_scores(
            self.sequence_head, self.config.classifier_dense, hidden, positions, segment_ids, key
        )

    def choice_logits(
        self,
        hidden: Float[Array, "B S D"],
        positions: Int[Array, "B E"],
        segment_ids: Int[Array, "B S"] | None = None,
        key: Key | None = None,
    ) -> Float[Array, "B E 1"]:
        """Returns the score of every choice, each of which is an example. Args: as in `sequence_logits`."""
        return self._example_scores(self.choice_head, choice_layer(self.config), hidden, positions, segment_ids, key)

    def _example_scores(
        self,
        head: ScoreHead | None,
        dense: str,
        hidden: Array,
        positions: Array,
        segment_ids: Array | None,
        key: Key | None,
    ) -> Array:
        if self.config.pooling == "late":
            return self._summaries(_present(head)(hidden, key), positions, segment_ids)
        summary = self._summaries(hidden, positions, segment_ids)
        if dense == "pooler":
            summary = _present(self.pooler)(summary)
        return _present(head)(summary, key)

    def token_logits(self, hidden: Float[Array, "B S D"], key: Key | None = None) -> Float[Array, "B S C"]:
        """Returns the logits of the C labels of every token; `key` draws the dropout, None = no dropout."""
        return _present(self.token_head)(hidden, key)

    def answer_logits(
        self,
        hidden: Float[Array, "B S D"],
        input_ids: Int[Array, "B S"],
        segment_ids: Int[Array, "B S"],
        key: Key | None = None,
    ) -> Float[Array, "B S 2"]:
        """Returns the scores of every token to be the first and the last of the answer.

        Args:
            hidden: last hidden state [B, S, D].
            input_ids: tokens [B, S].
            segment_ids: example of each token [B, S].
            key: key of the dropout; None = no dropout.
        """
        head = _present(self.answer_head)
        return head(hidden, input_ids, segment_ids) if isinstance(head, QuestionHead) else head(hidden, key)

    def contacts(
        self,
        input_ids: Int[Array, "B S"],
        segment_ids: Int[Array, "B S"],
        position_ids: Int[Array, "B S"],
        token_type_ids: Int[Array, "B S"],
        residues: Bool[Array, "B S"],
    ) -> Float[Array, "B R R"]:
        """Returns how likely the pairs of tokens between the first and the last are in contact; R = S - 2.

        Args:
            input_ids, segment_ids, position_ids, token_type_ids: as of `encode`.
            residues: False at tokens that stand for none; see `contact_features`.
        """
        names = tuple(f"layers/{layer}/probabilities" for layer in range(self.config.num_layers))
        encoded = self.encode(input_ids, segment_ids, position_ids, token_type_ids, collect=names)
        maps = jnp.stack([encoded.attention_tensors[name] for name in names], axis=1)
        return contact_probabilities(_present(self.contact_head), contact_features(maps, residues))

    def _summaries(self, hidden: Array, positions: Array, segment_ids: Array | None) -> Array:
        if segment_ids is None:
            if self.config.pooling in ("mean", "late"):
                raise ValueError(f"pooling={self.config.pooling} needs segment_ids")
            segment_ids = jnp.ones(hidden.shape[:2], "int32")
        return pool_examples(hidden, positions, segment_ids, self.config)


Head = TypeVar("Head", bound=nnx.Module)


def _present(head: Head | None) -> Head:
    if head is None:
        raise ValueError("the model was built without this head; name it in `heads`")
    return head


def _decoder_positions(config: EncoderConfig, rngs: nnx.Rngs) -> nnx.Embed | None:
    """Returns the absolute positions of the enhanced decoder, if the config has one."""
    if not config.enhanced_decoder:
        return None
    draw = initializer(config)
    return nnx.Embed(config.max_position_embeddings, config.hidden_size, embedding_init=draw, rngs=rngs)


def choice_layer(config: EncoderConfig) -> str:
    """Returns the layer before the score of a choice, one of `classifier_dense`."""
    return config.classifier_dense if config.choice_dense == "as_classifier" else config.choice_dense


def check_heads(config: EncoderConfig, heads: tuple[str, ...]) -> None:
    """Checks the names of heads; raises `UserError` if one is unknown or needs the pooler and there is none."""
    unknown = [head for head in heads if head not in HEADS]
    if unknown:
        raise UserError(f"unknown head {unknown[0]!r}; known heads: {', '.join(HEADS)}")
    readers = ["pair"] if "pair" in heads else []
    if "sequence_classification" in heads and config.classifier_dense == "pooler":
        readers.append("sequence_classification")
    if "multiple_choice" in heads and choice_layer(config) == "pooler":
        readers.append("multiple_choice")
    if readers and "pooler" not in heads:
        raise UserError(f"the head {readers[0]} needs the head pooler; heads are {', '.join(heads)}")


def graphdef(config: EncoderConfig, heads: tuple[str, ...]) -> nnx.GraphDef:
    """Returns the structure of a model: `nnx.merge(graphdef(...), params)` is the model."""
    return _abstract_model(config, heads)[0]


@functools.lru_cache(maxsize=256)
def _abstract_model(config: EncoderConfig, heads: tuple[str, ...]) -> tuple[nnx.GraphDef, Params]:
    return abstract_module(lambda rngs: Model(config, heads, rngs))


def bind(config: EncoderConfig, heads: tuple[str, ...], params: Params) -> Model:
    """Returns the model with these parameters. Args: as in `init_params`; `params` also as of `split_stacks`."""
    params, were_split = join_stacks(params)
    if were_split:
        config = dataclasses.replace(config, unroll=max(config.num_layers, config.decoder_layers or 0))
    return nnx.merge(graphdef(config, heads), params)


def init_params(config: EncoderConfig, heads: tuple[str, ...], key: Key) -> Params:
    """Draws the parameters of a model, a nested dict of float32 arrays.

    Args:
        config: architecture and heads.
        heads: names from `HEADS`.
        key: key of the draws.
    """
    return nnx.to_pure_dict(nnx.state(Model(config, heads, KeyStream(key))))


def abstract_params(config: EncoderConfig, heads: tuple[str, ...]) -> Params:
    """Returns shapes and dtypes of `init_params` without allocating them."""
    return jax.tree.map(lambda leaf: leaf, _abstract_model(config, heads)[1])  # a copy: callers may change their tree


def count_params(config: EncoderConfig, heads: tuple[str, ...]) -> int:
    """Returns the number of parameters at the true vocabulary size; tied weights count once."""
    true = dataclasses.replace(config, padded_vocab_size=None)
    return sum(leaf.size for leaf in jax.tree.leaves(abstract_params(true, heads)))
