"""PyTorch encoder with a decoder that attends to it, trained with bertjax. Needs torch and transformers only.

B sequences, S tokens of the source, T tokens of the target, D hidden size, V tokens of the vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GenerationMixin
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput
from transformers.utils.generic import can_return_tuple

from .configuration_bertjax import BertjaxEncoderDecoderConfig
from .encoder_bertjax import BertjaxModel, BertjaxPreTrainedModel
from .heads_bertjax import BertjaxMlmHead

WORD_TABLE = "embeddings.word_embeddings.weight"


class BertjaxForConditionalGeneration(BertjaxPreTrainedModel, GenerationMixin):
    """Predicts the tokens of a target from a source; generation runs without a cache."""

    config: BertjaxEncoderDecoderConfig  # type: ignore[assignment]
    config_class = BertjaxEncoderDecoderConfig  # type: ignore[assignment]
    base_model_prefix = ""
    main_input_name = "input_ids"

    def __init__(self, config: BertjaxEncoderDecoderConfig):
        super().__init__(config)
        self.encoder = BertjaxModel(config.encoder)
        self.decoder = BertjaxModel(config.decoder, add_pooling_layer=False)
        self.encoder.counts_padding = self.decoder.counts_padding = True
        self.mlm_head = BertjaxMlmHead(config.decoder)
        if config.sharing == "all" and hasattr(self.decoder, "mask_embedding"):
            del self.decoder.mask_embedding  # only parameters can be tied; nothing reads it here
        self._tied_weights_keys = self.tied_names()
        self.post_init()

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False

    def tied_names(self) -> dict[str, str]:
        """Returns the names of parameters that are others: name -> name of the other."""
        encoder, decoder = (
            {name: tensor.shape for name, tensor in network.state_dict().items()}
            for network in (self.encoder, self.decoder)
        )
        shared = {"none": [], "embeddings": [WORD_TABLE], "all": list(decoder)}[self.config.sharing]
        equal = [name for name in shared if encoder.get(name) == decoder[name]]
        tied = {f"decoder.{name}": f"encoder.{name}" for name in equal}
        if self.config.decoder.tie_word_embeddings:
            tied["mlm_head.decoder.weight"] = tied.get(f"decoder.{WORD_TABLE}", f"decoder.{WORD_TABLE}")
        return tied

    def get_encoder(self, *_: Any, **__: Any) -> BertjaxModel:
        return self.encoder

    def get_decoder(self) -> BertjaxModel:
        return self.decoder

    def get_input_embeddings(self) -> nn.Module:
        return self.encoder.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.encoder.set_input_embeddings(value)

    def get_output_embeddings(self) -> nn.Module:
        return self.mlm_head.decoder

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        self.mlm_head.decoder = new_embeddings

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        encoder_outputs: Any = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        **kwargs: Any,
    ) -> Seq2SeqLMOutput:
        """Scores every token of the targets.

        Args:
            input_ids: source [B, S].
            attention_mask: 1 = real token of the source [B, S]; None = all tokens are real.
            decoder_input_ids: target, the start token first [B, T]; None = the labels, one token late.
            decoder_attention_mask: 1 = real token of the target [B, T].
            token_type_ids: token types of the source [B, S]; None = zeros.
            encoder_outputs: outputs of an earlier call, instead of `input_ids`.
            inputs_embeds: word embeddings instead of `input_ids` [B, S, E].
            labels: ids of the targets [B, T], -100 where there is no loss.
            output_attentions, output_hidden_states: as in `BertjaxModel.forward`, of encoder and decoder.
        """
        options = {"output_attentions": output_attentions, "output_hidden_states": output_hidden_states}
        if encoder_outputs is None:
            source = {"inputs_embeds": inputs_embeds, "token_type_ids": token_type_ids}
            encoder_outputs = self.encoder(input_ids, attention_mask, **source, **options)
        elif isinstance(encoder_outputs, tuple):
            encoder_outputs = BaseModelOutput(*encoder_outputs)
        if decoder_input_ids is None and labels is not None:
            decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        out = self.decoder(
            decoder_input_ids,
            decoder_attention_mask,
            encoder_hidden_states=encoder_outputs.last_hidden_state,
            encoder_attention_mask=attention_mask,
            **options,
        )
        last = kwargs.pop("logits_to_keep", 0)
        logits = self.mlm_head(out.last_hidden_state[:, -last:] if last else out.last_hidden_state)
        return Seq2SeqLMOutput(
            loss=None if labels is None else self.mean_loss(logits, labels, kwargs.get("num_items_in_batch")),
            logits=logits,
            decoder_hidden_states=out.hidden_states,
            decoder_attentions=out.attentions,
            cross_attentions=out.cross_attentions,
            encoder_last_hidden_state=encoder_outputs.last_hidden_state,
            encoder_hidden_states=encoder_outputs.hidden_states,
            encoder_attentions=encoder_outputs.attentions,
        )

    def mean_loss(self, logits: Tensor, labels: Tensor, count: Tensor | int | None) -> Tensor:
        """Returns the mean negative log-likelihood of the labels.

        Args:
            logits: [B, T, V].
            labels: ids [B, T], -100 where there is no loss.
            count: number of labels of all batches of a step; None = those of this one.
        """
        flat = logits.flatten(0, 1).float(), labels.flatten().to(logits.device)
        if count is None:
            return F.cross_entropy(*flat)
        return F.cross_entropy(*flat, reduction="sum") / count

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """Returns the labels one token late, after the start token; padding instead of -100 [B, T]."""
        start, padding = self.config.decoder_start_token_id, self.config.decoder.pad_token_id
        if start is None:
            raise ValueError("set model.config.decoder_start_token_id: the token before the first of a target")
        inputs = torch.cat([torch.full_like(labels[:, :1], start), labels[:, :-1]], dim=1)
        return inputs.masked_fill(inputs == -100, padding)

    def prepare_inputs_for_generation(  # type: ignore[override]
        self, input_ids: Tensor, encoder_outputs: Any = None, attention_mask: Tensor | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """Returns the whole target in every step.

        Args:
            input_ids: the target so far [B, T].
            encoder_outputs: outputs of the encoder.
            attention_mask: mask of the source.
            **kwargs: further inputs; only the mask of the target is used.
        """
        return {
            "encoder_outputs": encoder_outputs,
            "attention_mask": attention_mask,
            "decoder_input_ids": input_ids,
            "decoder_attention_mask": kwargs.get("decoder_attention_mask"),
            **{name: kwargs[name] for name in ("output_attentions", "output_hidden_states") if name in kwargs},
        }
