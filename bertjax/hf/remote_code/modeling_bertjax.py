"""PyTorch classes, by head, of an encoder that was pretrained with bertjax. Needs torch and transformers only.

Every part is a choice of `BertjaxConfig`. B sequences, S tokens, N heads of size H, D hidden size, V tokens. Every
`forward` names its inputs, because `Trainer` reads them from its signature.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GenerationMixin
from transformers.modeling_outputs import (
    CausalLMOutput,
    MaskedLMOutput,
    MultipleChoiceModelOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.utils import ModelOutput
from transformers.utils.generic import can_return_tuple

from .configuration_bertjax import BertjaxConfig
from .encoder_bertjax import BertjaxModel, BertjaxPreTrainedModel
from .heads_bertjax import (
    BertjaxMlmHead,
    BertjaxQuestionHead,
    BertjaxReplacedTokenHead,
    BertjaxScoreHead,
    BertjaxSpanHead,
)


class BertjaxLanguageModel(BertjaxPreTrainedModel):
    """Base of the classes with a head that predicts tokens."""

    _tied_weights_keys = {"mlm_head.decoder.weight": "encoder.embeddings.word_embeddings.weight"}

    def __init__(self, config: BertjaxConfig, add_pooling_layer: bool = False):
        super().__init__(config)
        self.encoder = BertjaxModel(config, add_pooling_layer)
        self.mlm_head = BertjaxMlmHead(config)
        if config.enhanced_decoder:
            self.decoder_positions = nn.Embedding(config.max_position_embeddings, config.hidden_size)

    def get_output_embeddings(self) -> nn.Module:
        return self.mlm_head.decoder

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        self.mlm_head.decoder = new_embeddings

    def score_tokens(self, *inputs: Tensor | None, **options: Any) -> tuple[Tensor, Any]:
        """Returns scores of the vocabulary [B, S, V], and the outputs of the encoder. Args: as in `BertjaxModel`."""
        enhanced = self.config.enhanced_decoder
        with_states = options.pop("output_hidden_states", None)
        with_states = self.config.output_hidden_states if with_states is None else with_states
        outputs = self.encoder(*inputs, output_hidden_states=with_states or enhanced, **options)
        hidden = outputs.last_hidden_state
        if enhanced:
            input_ids, attention_mask, _, position_ids, *_ = inputs
            hidden = self.encoder.decode(
                outputs.hidden_states, self.decoder_positions, input_ids, attention_mask, position_ids
            )
        elif self.config.masked_next_token and not self.config.causal:
            hidden = torch.cat([hidden[:, :1], hidden[:, :-1]], dim=1)
        outputs.hidden_states = outputs.hidden_states if with_states else None
        return self.mlm_head(hidden), outputs


class BertjaxForMaskedLM(BertjaxLanguageModel):
    """Predicts masked tokens."""

    output_class: type[ModelOutput] = MaskedLMOutput

    def __init__(self, config: BertjaxConfig):
        super().__init__(config)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Any,
    ) -> ModelOutput:
        """Scores the vocabulary for every masked or next token; `labels` are ids [B, S], -100 where there is no loss.

        Args: as in `BertjaxModel.forward`.
        """
        options = {"num_items_in_batch": kwargs.pop("num_items_in_batch", None)}
        last = kwargs.pop("logits_to_keep", 0)
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        logits, outputs = self.score_tokens(*inputs, **kwargs)
        loss = None if labels is None else self.loss_function(logits, labels, self.config.vocab_size, **options)
        logits = logits[:, -last:] if last else logits
        return self.output_class(loss, logits, outputs.hidden_states, outputs.attentions)


class BertjaxForCausalLM(BertjaxForMaskedLM, GenerationMixin):
    """Predicts the next token of a causal encoder; generation runs without a cache."""

    output_class = CausalLMOutput

    def prepare_inputs_for_generation(  # type: ignore[override]
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Returns the whole sequence in every step. Args: as in `forward`."""
        return {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids}


@dataclasses.dataclass
class BertjaxForPreTrainingOutput(ModelOutput):
    """Outputs of all heads that the model was pretrained with; None without the head.

    Attributes:
        loss: sum of the losses whose labels were passed.
        prediction_logits: scores of the vocabulary [B, S, V].
        seq_relationship_logits: scores of the pair of segments [B, 2].
        replaced_token_logits: [B, S], positive where a token looks replaced.
    """

    loss: Tensor | None = None
    prediction_logits: Tensor | None = None
    seq_relationship_logits: Tensor | None = None
    replaced_token_logits: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


class BertjaxForPreTraining(BertjaxLanguageModel):
    """The encoder with all heads that it was pretrained with."""

    def __init__(self, config: BertjaxConfig):
        super().__init__(config, "pooler" in config.heads)
        self.pair_head = nn.Linear(config.hidden_size, 2) if "pair" in config.heads else None
        self.rtd_head = BertjaxReplacedTokenHead(config) if "rtd" in config.heads else None
        if "span_boundary" in config.heads:  # reads spans, which only training knows
            self.span_head = BertjaxSpanHead(config)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        next_sentence_label: Tensor | None = None,
        replaced_labels: Tensor | None = None,
        **kwargs: Any,
    ) -> BertjaxForPreTrainingOutput:
        """Computes the outputs of all heads.

        Args:
            input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds: as in `BertjaxModel.forward`.
            labels: ids of masked tokens [B, S], -100 where there is no loss.
            next_sentence_label: [B].
            replaced_labels: 1 where a token was replaced [B, S], -100 where there is no loss.
            **kwargs: as in `BertjaxModel.forward`.
        """
        kwargs.pop("num_items_in_batch", None)
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        tokens, outputs = self.score_tokens(*inputs, **kwargs)
        pair = None if self.pair_head is None else self.pair_head(outputs.pooler_output)
        replaced = None if self.rtd_head is None else self.rtd_head(outputs.last_hidden_state)
        losses = []
        if labels is not None:
            losses.append(F.cross_entropy(tokens.flatten(0, 1).float(), labels.flatten()))
        if next_sentence_label is not None and pair is not None:
            losses.append(F.cross_entropy(pair.float(), next_sentence_label))
        if replaced_labels is not None and replaced is not None:
            real = replaced_labels >= 0
            losses.append(F.binary_cross_entropy_with_logits(replaced[real].float(), replaced_labels[real].float()))
        loss = torch.stack(losses).sum() if losses else None
        return BertjaxForPreTrainingOutput(loss, tokens, pair, replaced, outputs.hidden_states, outputs.attentions)


def score_texts(encoder: BertjaxModel, head: nn.Module, outputs: Any, attention_mask: Any, input_ids: Any) -> Tensor:
    """Scores texts [B, C] from their pooled vectors, those of an encoder with a pooler, or the mean of all tokens."""
    mask = None if attention_mask is None else attention_mask.bool()
    if encoder.config.pooling == "late":
        return encoder.summary(head(outputs.last_hidden_state), mask)
    if outputs.pooler_output is not None:
        return head(outputs.pooler_output)
    return head(encoder.summary(outputs.last_hidden_state, mask, input_ids))


class BertjaxForSequenceClassification(BertjaxPreTrainedModel):
    """Labels of sequences or pairs of sequences."""

    def __init__(self, config: BertjaxConfig):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.encoder = BertjaxModel(config, config.classifier_dense == "pooler")
        has_dense = {"pooler": False, "own": True, "none": False}[config.classifier_dense]
        self.sequence_head = BertjaxScoreHead(config, config.num_labels, has_dense, config.classifier_bias)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Any,
    ) -> SequenceClassifierOutput:
        """Scores the classes of every text; `labels` are classes [B], or numbers [B, C].

        Args: as in `BertjaxModel.forward`.
        """
        kwargs.pop("num_items_in_batch", None)
        outputs = self.encoder(input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, **kwargs)
        logits = score_texts(self.encoder, self.sequence_head, outputs, attention_mask, input_ids)
        loss = None
        if labels is not None:
            loss = self.loss_function(labels=labels, logits=logits, pooled_logits=logits, config=self.config)
        return SequenceClassifierOutput(loss, logits, outputs.hidden_states, outputs.attentions)


class BertjaxForMultipleChoice(BertjaxPreTrainedModel):
    """The right one of several texts."""

    def __init__(self, config: BertjaxConfig):
        super().__init__(config)
        dense = config.classifier_dense if config.choice_dense == "as_classifier" else config.choice_dense
        self.encoder = BertjaxModel(config, dense == "pooler")
        self.choice_head = BertjaxScoreHead(config, 1, dense == "own")
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Any,
    ) -> MultipleChoiceModelOutput:
        """Scores every choice; all inputs are [B, C, S], `labels` [B] numbers of the right choices.

        Args: as in `BertjaxModel.forward`.
        """
        kwargs.pop("num_items_in_batch", None)
        inputs = (input_ids, attention_mask, token_type_ids, position_ids)
        rows = [None if each is None else each.reshape(-1, each.shape[-1]) for each in inputs]
        outputs = self.encoder(*rows, **kwargs)
        logits = score_texts(self.encoder, self.choice_head, outputs, rows[1], rows[0]).reshape(input_ids.shape[:2])
        loss = None if labels is None else F.cross_entropy(logits.float(), labels)
        return MultipleChoiceModelOutput(loss, logits, outputs.hidden_states, outputs.attentions)


class BertjaxForTokenClassification(BertjaxPreTrainedModel):
    """Labels of tokens."""

    def __init__(self, config: BertjaxConfig):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.encoder = BertjaxModel(config, add_pooling_layer=False)
        self.token_head = BertjaxScoreHead(config, config.num_labels, config.token_classifier_dense)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Any,
    ) -> TokenClassifierOutput:
        """Scores the classes of every token; `labels` are classes [B, S], -100 where there is no loss.

        Args: as in `BertjaxModel.forward`.
        """
        options = {"num_items_in_batch": kwargs.pop("num_items_in_batch", None)}
        outputs = self.encoder(input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, **kwargs)
        logits = self.token_head(outputs.last_hidden_state)
        loss = None if labels is None else self.loss_function(logits, labels, self.config, **options)
        return TokenClassifierOutput(loss, logits, outputs.hidden_states, outputs.attentions)


class BertjaxForQuestionAnswering(BertjaxPreTrainedModel):
    """First and last token of the answer to a question."""

    def __init__(self, config: BertjaxConfig):
        super().__init__(config)
        self.encoder = BertjaxModel(config, add_pooling_layer=False)
        self.answer_head: nn.Module
        if config.answer_head == "question":
            self.answer_head = BertjaxQuestionHead(config)
        else:
            self.answer_head = BertjaxScoreHead(config, 2, config.token_classifier_dense)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        **kwargs: Any,
    ) -> QuestionAnsweringModelOutput:
        """Scores every token as the first and the last of the answer; the positions are those of the answer [B].

        Args: as in `BertjaxModel.forward`.
        """
        kwargs.pop("num_items_in_batch", None)
        outputs = self.encoder(input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, **kwargs)
        reads = (input_ids, attention_mask) if self.config.answer_head == "question" else ()
        start, end = self.answer_head(outputs.last_hidden_state, *reads).unbind(dim=-1)
        loss = None
        if start_positions is not None and end_positions is not None:
            loss = self.loss_function(start, end, start_positions, end_positions)
        return QuestionAnsweringModelOutput(loss, start, end, outputs.hidden_states, outputs.attentions)
