"""A pretrained model in memory: load it from a folder, call it, save it."""

from __future__ import annotations

import operator
import os
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float, Int

from bertjax.errors import UserError
from bertjax.hf.encoder_decoder.pretrained import PretrainedEncoderDecoder, read_encoder_decoder
from bertjax.hf.forward import ModelOutput, check_inputs, check_two_stream_inputs, predict_contacts, run_model
from bertjax.hf.generate import generate_ids, generation_file, generation_settings
from bertjax.hf.load import ModelWeights, is_encoder_decoder, local_model, read_config_json, read_folder
from bertjax.hf.save import save_pretrained
from bertjax.models.encoder import Encoder
from bertjax.models.layer_stack import split_stacks
from bertjax.models.model import Model, bind
from bertjax.types import Params


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
            token_type_ids: [B, S]; None, or a model without token types = zeros.
            position_ids: [B, S], indices into the position table as in `transformers` (RoBERTa's first position is 2);
                None = counted from the first token.
            output_hidden_states: also return the states of all layers.
            memory: XLNet's `mems` as an earlier call returned them, [L, B, M, D].
            perm_mask: XLNet's, [B, S, S], 1 = masked.
            target_mapping: XLNet's, [B, T, S], one-hot over the tokens.
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
            self.config, self.heads, self.by_layer, inputs, streams=streams, output_hidden_states=output_hidden_states
        )
        return output if output_memory else output._replace(memory=None)

    def generate(
        self, input_ids: Any, attention_mask: Any = None, *, seed: int = 0, **settings: Any
    ) -> Int[np.ndarray, "R T"]:
        """Continues prompts with a causal model, as transformers' `generate` does.

        Args:
            input_ids: prompts [B, S], padded on either side.
            attention_mask: [B, S], 1 = real token; None = all tokens are real.
            seed: seed of samples.
            **settings: fields of `GenerationConfig`, by default those of generation_config.json.

        Returns:
            Prompts with their continuations, and padding; `num_return_sequences` of each prompt one after the other.

        Raises:
            UserError: the model is not causal, or a setting or an input is wrong.
        """
        if not self.config.causal or "mlm" not in self.heads:
            raise UserError("generation needs a causal model with a masked-token head (gpt2, objective.name=clm)")
        check_inputs(self.config, self.heads, input_ids, attention_mask)
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
        return generate_ids(self.params, self.config, inputs, generation_settings(self.generation, settings), seed)

    def predict_contacts(
        self, input_ids: Any, attention_mask: Any = None, end_token_id: int = 2
    ) -> Float[Array, "B R R"]:
        """Returns how likely every pair of residues is in contact, as `predict_contacts` of transformers' ESM.

        Args:
            input_ids: a protein between the begin and the end token in every row [B, S], then padding.
            attention_mask: [B, S], 1 = real token; None = all tokens are real.
            end_token_id: id of the end token; 2 in the vocabulary of ESM.

        Returns:
            Probabilities of the R = S - 2 tokens between the first and the last.

        Raises:
            UserError: the model has no contact head, or an input is wrong.
        """
        if "contact" not in self.heads:
            raise UserError(f"the model has no contact head; its heads are {', '.join(self.heads) or 'none'}")
        inputs = check_inputs(self.config, self.heads, input_ids, attention_mask)
        return predict_contacts(self.config, self.heads, self.params, inputs, end_token_id)

    @property
    def by_layer(self) -> Params:
        """`params` in the form in which programs read them fastest here; see `split_stacks`."""
        leaves = jax.tree.leaves(self.params)
        before, split = self.__dict__.get("_by_layer", ([], {}))
        if len(before) != len(leaves) or any(map(operator.is_not, before, leaves)):
            split = split_stacks(self.params)
            self.__dict__["_by_layer"] = leaves, split
        return split

    @property
    def module(self) -> Model:
        """The network with its heads as an `nnx.Module`, which holds the same arrays as `params`."""
        return bind(self.config, self.heads, self.params)

    @property
    def encoder(self) -> Encoder:
        """The encoder as an `nnx.Module`, to call, differentiate or train in a loop of your own."""
        return self.module.encoder

    def save_pretrained(
        self,
        folder: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        dtype: str = "float32",
        max_shard_bytes: int = 5_000_000_000,
    ) -> None:
        """Writes a folder that `transformers` loads, and reads it back to compare; see `save.save_pretrained`.

        The modules of a folder of sentence-transformers are written again, so that it embeds texts as before.

        Args:
            folder: a new or empty folder, or with `overwrite` an earlier export.
            overwrite: replace an earlier export.
            dtype: type of the weights: float32, bfloat16 or float16.
            max_shard_bytes: larger weights are split into files of this size, with an index.

        Raises:
            UserError: the folder holds something else, or the disk refused.
            ExportError: the model read back is not the model in memory.
        """
        save_pretrained(
            folder,
            self.params,
            self.config,
            heads=self.heads,
            tokenizer=self.tokenizer_files,
            card={"sentence_vectors": "pooled as `modules.json` says"} if self.module_files else None,
            overwrite=overwrite,
            dtype=dtype,
            max_shard_bytes=max_shard_bytes,
            extra_files=dict(self.module_files) | generation_file(self.generation),
            config_keys=self.config_keys,
        )


def load_pretrained(folder: str | os.PathLike[str]) -> PretrainedModel | PretrainedEncoderDecoder:
    """Loads the model of a Hugging Face folder, of an export or of the Hub (`hub:NAME[@REVISION]`), in float32.

    The folder needs config.json and model.safetensors (or its shards with an index). The heads are those that the class
    in `architectures` requires, and any other that the files hold; unknown heads are named in a warning.

    Returns:
        The model; of a class with an encoder and a decoder (BART, Marian, T5, EncoderDecoderModel) both of them.

    Raises:
        UserError: a file is missing, unreadable or unsafe, or the model is not supported; names the first reason.
    """
    folder = local_model(folder)
    if is_encoder_decoder(read_config_json(folder)[0]):
        return read_encoder_decoder(folder)
    return load_single(folder)


def load_single(folder: str | os.PathLike[str]) -> PretrainedModel:
    """Loads the model of a folder that holds one network; see `load_pretrained`."""
    weights = read_folder(folder)
    params = jax.device_put(weights.params, may_alias=False)  # jax.numpy would compile a program per shape
    files = weights.tokenizer_files, weights.module_files, weights.generation, weights.config_keys
    return PretrainedModel(weights.config, params, weights.heads, *files)
