"""The forward pass of a loaded model: float32, without dropout, with the output of every head."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bertjax.config.model import EncoderConfig
from bertjax.hf.inputs import Inputs
from bertjax.models.encoder import EncoderOutput
from bertjax.models.model import Model, bind
from bertjax.models.two_stream import run_two_streams
from bertjax.types import Params


class ModelOutput(NamedTuple):
    """Outputs of a loaded model; None where the model has no such head, or the output was not requested.

    With two streams (XLNet with `target_mapping`) `last_hidden_state` and `mlm_logits` belong to the T targets, and
    other heads have no output.

    Attributes:
        rtd_logits: positive = replaced.
        choice_logits: of each row, which is a choice; `transformers` returns them by question.
        start_logits, end_logits: scores of the first and the last token of an answer.
        hidden_states, target_hidden_states: states of all L layers, embeddings first.
    """

    last_hidden_state: Float[Array, "B S D"]
    pooler_output: Float[Array, "B D"] | None = None
    mlm_logits: Float[Array, "B S V"] | None = None
    pair_logits: Float[Array, "B 2"] | None = None
    rtd_logits: Float[Array, "B S"] | None = None
    sequence_logits: Float[Array, "B K"] | None = None
    choice_logits: Float[Array, "B"] | None = None
    token_logits: Float[Array, "B S K"] | None = None
    start_logits: Float[Array, "B S"] | None = None
    end_logits: Float[Array, "B S"] | None = None
    hidden_states: Float[Array, "L1 B S D"] | None = None
    target_hidden_states: Float[Array, "L1 B T D"] | None = None
    memory: Float[Array, "L B M D"] | None = None

    @property
    def logits(self) -> Array | None:
        """The logits that the model's class in `transformers` calls `logits`; shapes as in the fields."""
        candidates = (self.sequence_logits, self.choice_logits, self.token_logits, self.mlm_logits, self.rtd_logits)
        return next((logits for logits in candidates if logits is not None), None)


def run_model(
    config: EncoderConfig,
    heads: tuple[str, ...],
    params: Params,
    inputs: Inputs,
    *,
    streams: Inputs | None = None,
    output_hidden_states: bool = False,
) -> ModelOutput:
    """Runs a model without dropout; compiled once per shape.

    Args:
        config: architecture.
        heads: heads whose parameters `params` holds.
        params: parameters, float32.
        inputs: what `check_inputs` returns.
        streams: what `check_two_stream_inputs` returns; None = one stream.
        output_hidden_states: also return the states of all layers.
    """
    with jax.default_matmul_precision("float32"):  # accelerators would multiply float32 in lower precision
        return _forward(params, inputs, streams, config, heads, output_hidden_states)


@functools.partial(jax.jit, static_argnums=(3, 4, 5))
def _forward(
    params: Params,
    inputs: Inputs,
    streams: Inputs | None,
    config: EncoderConfig,
    heads: tuple[str, ...],
    output_hidden_states: bool,
) -> ModelOutput:
    model = bind(config, heads, params)
    collect = ("hidden_states",) if output_hidden_states else ()
    if streams is None:
        encoded = model.encode(**inputs, collect=collect)
        outputs = _head_outputs(model, heads, encoded, inputs)
        return ModelOutput(encoded.last_hidden_state, hidden_states=encoded.hidden_states, **outputs)
    out = run_two_streams(model.encoder, **inputs, **streams, collect=collect)
    last = out.content if out.targets is None else out.targets
    heads = heads if out.targets is None else tuple(head for head in heads if head == "mlm")
    return ModelOutput(
        last,
        hidden_states=out.hidden_states,
        target_hidden_states=out.target_states,
        memory=out.memory,
        **_head_outputs(model, heads, EncoderOutput(last), inputs),
    )


def _head_outputs(model: Model, heads: tuple[str, ...], encoded: EncoderOutput, inputs: Inputs) -> dict[str, Array]:
    """Computes all heads that read hidden states alone (the span-boundary head also needs spans)."""
    hidden, segment_ids = encoded.last_hidden_state, inputs["segment_ids"]
    batch_size, length = segment_ids.shape
    positions = jnp.full((batch_size, 1), length - 1 if model.config.pooling == "last" else 0, jnp.int32)
    if model.config.pooling == "last" and model.config.causal:  # as in transformers, whatever the attention mask says
        is_text = inputs["input_ids"] != model.config.pad_token_id
        positions = jnp.argmax(jnp.arange(length)[None] * is_text, axis=1, keepdims=True).astype(jnp.int32)
    outputs: dict[str, Array] = {}
    if "pooler" in heads:
        outputs["pooler_output"] = model.pooled(hidden, positions, segment_ids)[:, 0]
    if "mlm" in heads:
        states = model.mlm_hidden_states(encoded, segment_ids, inputs["position_ids"])
        outputs["mlm_logits"] = model.mlm_logits(states)[..., : model.config.vocab_size]
    if "pair" in heads:
        outputs["pair_logits"] = model.pair_logits(outputs["pooler_output"])
    if "rtd" in heads:
        outputs["rtd_logits"] = model.rtd_logits(hidden, jnp.zeros_like(positions), segment_ids)
    if "sequence_classification" in heads:
        outputs["sequence_logits"] = model.sequence_logits(hidden, positions, segment_ids)[:, 0]
    if "multiple_choice" in heads:
        outputs["choice_logits"] = model.choice_logits(hidden, positions, segment_ids)[:, 0, 0]
    if "token_classification" in heads:
        outputs["token_logits"] = model.token_logits(hidden)
    if "question_answering" in heads:
        logits = model.answer_logits(hidden)
        outputs |= {"start_logits": logits[..., 0], "end_logits": logits[..., 1]}
    return outputs


def predict_contacts(
    config: EncoderConfig, heads: tuple[str, ...], params: Params, inputs: Inputs, end_id: int
) -> Float[Array, "B R R"]:
    """Returns the contacts of a protein model; see `PretrainedModel.predict_contacts`.

    Args:
        config, heads, params, inputs: as of `run_model`.
        end_id: id of the end token.
    """
    residues = (inputs["segment_ids"] > 0) & (inputs["input_ids"] != end_id)
    with jax.default_matmul_precision("float32"):
        return _contacts(params, inputs, residues, config, heads)


@functools.partial(jax.jit, static_argnums=(3, 4))
def _contacts(params: Params, inputs: Inputs, residues: Array, config: EncoderConfig, heads: tuple[str, ...]) -> Array:
    return bind(config, heads, params).contacts(**inputs, residues=residues)
