"""A pretrained model in memory: load it from a folder, call it, save it."""

from __future__ import annotations

import os
from typing import Any

import jax
import jax.numpy as jnp

from bertjax.hf.forward import ModelOutput, run_model
from bertjax.hf.inputs import check_inputs, check_two_stream_inputs
from bertjax.hf.load import ModelWeights, read_folder
from bertjax.hf.save import save_pretrained


class PretrainedModel(ModelWeights):
    """Config, parameters and tokenizer files of a model that can be called and saved."""

    def __call__(
        self,
        input_ids: Any,
        attention_mask: Any = None,
        token_type_ids: Any = None,
        position_ids: Any = None,
        output_hidden_states: bool = False,
        *,
        memory: Any = None,
        perm_mask: Any = None,
        target_mapping: Any = None,
        output_memory: bool = False,
    ) -> ModelOutput:
        """Runs the model without dropout, in float32; compiled once per shape.

        Args:
            input_ids: [B, S].
            attention_mask: [B, S], 1 = real token; None = all tokens are real.
            token_type_ids: [B, S]; None = zeros.
            position_ids: [B, S], indices into the position table as in `transformers` (RoBERTa's first position is 2).
            output_hidden_states: also return the states of all layers.
            memory: XLNet's `mems` as an earlier call returned them, [L, B, M, D].
            perm_mask: XLNet's, [B, S, S], 1 = masked.
            target_mapping: XLNet's, [B, T, S], one-hot.
            output_memory: return the memory for the next call.

        Raises:
            UserError: an id lies outside its table (JAX would clamp it silently), or a shape or type is wrong.
        """
        inputs = check_inputs(self.config, self.heads, input_ids, attention_mask, token_type_ids, position_ids)
        streams = None
        if output_memory or any(each is not None for each in (memory, perm_mask, target_mapping)):
            shape = inputs["input_ids"].shape
            streams = check_two_stream_inputs(self.config, shape, memory, perm_mask, target_mapping)
        output = run_model(
            self.config, self.heads, self.params, inputs, streams=streams, output_hidden_states=output_hidden_states
        )
        return output if output_memory else output._replace(memory=None)

    def save_pretrained(self, folder: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Writes a folder that `transformers` loads, and reads it back to compare; see `save.save_pretrained`."""
        save_pretrained(
            folder, self.params, self.config, heads=self.heads, tokenizer=self.tokenizer_files, overwrite=overwrite
        )


def load_pretrained(folder: str | os.PathLike[str]) -> PretrainedModel:
    """Loads the model of a Hugging Face folder or of an export, in float32.

    The folder needs config.json and model.safetensors (or its shards with an index). The heads are those that the class
    in `architectures` requires, and any other that the files hold; unknown heads are named in a warning.

@functools.partial(jax.jit, static_argnums=(3, 4, 5))
def _forward_streams(
    params: Params,
    inputs: Inputs,
    streams: TwoStreamInputs,
    config: EncoderConfig,
    heads: tuple[str, ...],
    output_hidden_states: bool,
) -> ModelOutput:
    model = bind(config, heads, params)
    collect = ("hidden_states",) if output_hidden_states else ()
    out = run_two_streams(model.encoder, **inputs, **streams, collect=collect)
    last = out.content if out.targets is None else out.targets
    heads = heads if out.targets is None else tuple(head for head in heads if head == "mlm")
    outputs = _head_outputs(model, heads, EncoderOutput(last), inputs)
    return ModelOutput(
        last,
        hidden_states=out.hidden_states,
        target_hidden_states=out.target_states,
        memory=out.memory,
        **outputs,
    )


def _head_outputs(model: Model, heads: tuple[str, ...], encoded: EncoderOutput, inputs: Inputs) -> dict[str, Array]:
    """The outputs of all heads that read nothing but hidden states (the span-boundary head wants spans, too)."""
    hidden, segment_ids = encoded.last_hidden_state, inputs["segment_ids"]
    rows, length = segment_ids.shape
    positions = jnp.full((rows, 1), length - 1 if model.config.pooling == "last" else 0, jnp.int32)
    found: dict[str, Array] = {}
    if "pooler" in heads:
        found["pooler_output"] = model.pooled(hidden, positions, segment_ids)[:, 0]
    if "mlm" in heads:
        states = model.mlm_hidden_states(encoded, segment_ids, inputs["position_ids"])
        found["mlm_logits"] = model.mlm_logits(states)[..., : model.config.vocab_size]
    if "pair" in heads:
        found["pair_logits"] = model.pair_logits(found["pooler_output"])
    if "rtd" in heads:
        found["rtd_logits"] = model.rtd_logits(hidden, jnp.zeros_like(positions), segment_ids)
    if "sequence_classification" in heads:
        found["sequence_logits"] = model.sequence_logits(hidden, positions, segment_ids)[:, 0]
    if "token_classification" in heads:
        found["token_logits"] = model.token_logits(hidden)
    if "question_answering" in heads:
        scores = model.answer_logits(hidden)
        found |= {"start_logits": scores[..., 0], "end_logits": scores[..., 1]}
    return found


def max_input_length(config: EncoderConfig, heads: tuple[str, ...] = ()) -> int | None:
    """How many tokens a row can have; None where positions are computed, not looked up."""
    looked_up = config.position_embedding == "learned" or (config.enhanced_decoder and "mlm" in heads)
    return config.max_position_embeddings if looked_up else None


def check_inputs(
    config: EncoderConfig,
    heads: tuple[str, ...],
    input_ids: Any,
    attention_mask: Any = None,
    token_type_ids: Any = None,
    position_ids: Any = None,
) -> Inputs:
    """The arguments of `Model.encode`, int32 [B, S], every id within its table; raises `UserError`."""
    ids = _ids("input_ids", input_ids, None, config.vocab_size)
    if config.bi_data and len(ids) % 2:
        raise UserError(f"bi_data is set: half of the rows are read backwards, so {len(ids)} rows must be even")
    mask = np.ones(ids.shape, np.int32)
    if attention_mask is not None:
        mask = np.asarray(attention_mask)
        if mask.shape != ids.shape or not np.isin(mask, (0, 1)).all():
            raise UserError(f"attention_mask must hold 0 and 1 in shape {list(ids.shape)}, as input_ids")
    arrays = {
        "input_ids": ids,
        "segment_ids": mask,
        "position_ids": _positions(config, max_input_length(config, heads), ids, position_ids),
        "token_type_ids": _token_types(config, ids, token_type_ids),
    }
    return {name: jnp.asarray(array, jnp.int32) for name, array in arrays.items()}


def _positions(config: EncoderConfig, longest: int | None, ids: np.ndarray, given: Any) -> np.ndarray:
    """Places of the tokens, counted from 0; where the table has an offset, padding is not counted and stands at -1.

    That is what RoBERTa was trained with (transformers: create_position_ids_from_input_ids).
    """
    weights = read_folder(folder)
    params = jax.tree.map(jnp.asarray, weights.params)
    return PretrainedModel(weights.config, params, weights.heads, weights.tokenizer_files)
