"""PyTorch model of an encoder that was pretrained with bertjax. Needs torch and transformers only.

Every part is a choice of `BertjaxConfig`. B sequences, S tokens, N heads of size H, D hidden size, V tokens.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import (
    BaseModelOutputWithPooling,
    CausalLMOutput,
    MaskedLMOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.utils import ModelOutput
from transformers.utils.generic import can_return_tuple

from .configuration_bertjax import BertjaxConfig
from .heads_bertjax import (
    BertjaxMlmHead,
    BertjaxPooler,
    BertjaxReplacedTokenHead,
    BertjaxScoreHead,
    BertjaxSpanHead,
)
from .layers_bertjax import (
    BertjaxContext,
    BertjaxConvolution,
    BertjaxDistanceEmbeddings,
    BertjaxEmbeddings,
    BertjaxGroup,
    BertjaxLayer,
    BertjaxRelativeAttention,
    bias_bucket,
    frequencies,
    log_bucket,
    make_norm,
    sinusoids,
)


class BertjaxPreTrainedModel(PreTrainedModel):
    """Base of all classes."""

    config: BertjaxConfig
    config_class = BertjaxConfig
    base_model_prefix = "encoder"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _keys_to_ignore_on_load_unexpected = [r"^\w+_head\.", r"^decoder_positions\.", r"^(encoder\.)?pooler\."]
    _no_split_modules = ["BertjaxLayer", "BertjaxEmbeddings"]

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, BertjaxDistanceEmbeddings | BertjaxRelativeAttention):
            for parameter in module.parameters(recurse=False):
                nn.init.normal_(parameter, std=self.config.initializer_range)


class BertjaxModel(BertjaxPreTrainedModel):
    """The encoder, with a pooler if the model was pretrained with one or the head needs it."""

    def __init__(self, config: BertjaxConfig, add_pooling_layer: bool | None = None):
        super().__init__(config)
        self.embeddings = BertjaxEmbeddings(config)
        if config.num_groups is None:
            has_norms = [config.first_attention_norm or layer > 0 for layer in range(config.num_layers)]
            self.layers = nn.ModuleList([BertjaxLayer(config, has_norm) for has_norm in has_norms])
        else:
            self.groups = nn.ModuleList([BertjaxGroup(config) for _ in range(config.num_groups)])
        if config.attention_position == "disentangled":
            self.relative = BertjaxDistanceEmbeddings(config)
        if config.attention_position == "relative_bias":
            self.relative_attention_bias = nn.Embedding(config.relative_attention_num_buckets, config.num_heads)
        if config.attention_position == "relative":  # start of the second stream of pretraining; not read here
            self.register_buffer("mask_embedding", torch.zeros(config.hidden_size))
        self.convolution = BertjaxConvolution(config) if config.conv_kernel_size else None
        self.norm = make_norm(config, present=config.norm_placement != "post")
        self.output_dropout = nn.Dropout(config.output_dropout)
        self.distance_dropout = nn.Dropout(config.rate("embedding_dropout"))
        has_pooler = "pooler" in config.heads if add_pooling_layer is None else add_pooling_layer
        self.pooler = BertjaxPooler(config) if has_pooler else None
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.embeddings.word_embeddings

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.embeddings.word_embeddings = value  # type: ignore[assignment]

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPooling:
        """Computes the hidden states of every token.

        Args:
            input_ids: [B, S].
            attention_mask: 1 = real token [B, S]; None = all tokens are real.
            token_type_ids: [B, S]; None = zeros.
            position_ids: rows of the position table [B, S]; None = counted from the first.
            inputs_embeds: word embeddings instead of `input_ids` [B, S, E].
            output_attentions: also return the probabilities of all layers; needs `attn_implementation="eager"`.
            output_hidden_states: also return the hidden states of all layers.
        """
        words = self.embeddings.word_embeddings(input_ids) if inputs_embeds is None else inputs_embeds
        positions, types = self.position_ids(words, input_ids, position_ids), token_type_ids
        types = torch.zeros_like(positions) if types is None else types
        mask = None if attention_mask is None else attention_mask.bool()
        hidden = embeddings = self.embeddings(words, positions, types, mask)
        contexts = {local: self.context(hidden, positions, types, mask, local) for local in (False, True)}
        distances = self.distances(hidden)
        states, attentions = [hidden], []
        for index, layers in enumerate(self.layer_list()):
            for layer in layers:
                hidden, probabilities = layer(hidden, distances, contexts[self.config.is_local(index)])
                attentions.append(probabilities)
            if index == 0 and self.convolution is not None:
                hidden = self.convolution(embeddings, hidden, mask)
            states.append(hidden)
        hidden = self.output_dropout(self.norm(hidden))
        with_states = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        with_attentions = self.config.output_attentions if output_attentions is None else output_attentions
        if with_attentions and self.config._attn_implementation != "eager":
            raise ValueError('output_attentions needs a model loaded with attn_implementation="eager"')
        return BaseModelOutputWithPooling(
            last_hidden_state=hidden,
            pooler_output=None if self.pooler is None else self.pooler(self.summary(hidden, mask)),
            hidden_states=(*states[:-1], hidden) if with_states else None,
            attentions=tuple(attentions) if with_attentions else None,
        )

    def layer_list(self) -> list[list[BertjaxLayer]]:
        """Returns the layers in the order in which they run; those of a group run together."""
        if self.config.num_groups is None:
            return [[layer] for layer in self.layers]  # type: ignore[list-item]
        size = self.config.num_layers / self.config.num_groups
        groups = [self.groups[int(index / size)] for index in range(self.config.num_layers)]
        return [list(group.layers) for group in groups]  # type: ignore[arg-type]

    def position_ids(self, words: Tensor, input_ids: Tensor | None, position_ids: Tensor | None) -> Tensor:
        """Returns positions from 0 [B, S]; where the table has an offset, padding is not counted (RoBERTa).

        Args:
            words: word embeddings [B, S, E].
            input_ids: [B, S]; None = unknown.
            position_ids: rows of the position table [B, S]; None = counted.
        """
        if position_ids is not None:
            return position_ids.expand(words.shape[:2]) - self.config.position_offset
        real = torch.ones(words.shape[:2], dtype=torch.long, device=words.device)
        if self.config.position_offset and input_ids is not None:
            real = (input_ids != self.config.pad_token_id).long()
        return real.cumsum(dim=1) * real - 1

    def context(
        self, hidden: Tensor, position_ids: Tensor, token_type_ids: Tensor, mask: Tensor | None, local: bool
    ) -> BertjaxContext:
        """Returns what the global or the local layers share.

        Args:
            hidden: input of the first layer [B, S, D].
            position_ids: from 0 [B, S].
            token_type_ids: [B, S].
            mask: True at real tokens [B, S]; None = all tokens are real.
            local: True for layers with a window.
        """
        config, context = self.config, BertjaxContext()
        index = torch.arange(hidden.shape[1], device=hidden.device)
        distances = index[:, None] - index[None]
        visible = None if mask is None else mask[:, None, None, :].expand(-1, 1, len(index), -1)
        window = distances.abs() <= config.local_attention // 2 if local else None
        for rule in (window, distances >= 0 if config.causal else None):
            if rule is not None:
                visible = rule[None, None] if visible is None else visible & rule
        if visible is not None:  # queries that see nothing are padding; a softmax over nothing is not a number
            visible = visible | (distances == 0) if config.attention_position == "relative" else visible
            context.visible = visible | ~visible.any(dim=-1, keepdim=True)
        if config.attention_position == "rotary":
            base = config.local_rope_theta if local else config.global_rope_theta
            angles = position_ids[:, None, :, None].float() * frequencies(config.head_dim, base, hidden.device)
            angles = torch.cat([angles, angles], dim=-1)
            context.rotation = angles.cos(), angles.sin()
        if config.attention_position == "disentangled":
            if config.position_buckets:
                distances = log_bucket(distances, config.position_buckets, config.max_distance)
            span = config.attention_span
            context.columns = (distances + span).clamp(0, 2 * span - 1)[None]
        if config.attention_position == "relative_bias":
            context.columns = bias_bucket(distances, config)[None]
        if config.attention_position == "relative":
            if config.bi_data:  # the second half of the batch is text in reverse
                backward = torch.arange(len(hidden), device=hidden.device)[:, None, None] >= len(hidden) // 2
                distances = torch.where(backward, -distances, distances)
            context.columns = (distances + len(index) - 1).expand(len(hidden), -1, -1)
            if config.relative_segments:
                context.types_differ = (token_type_ids[:, :, None] != token_type_ids[:, None])[:, None]
        return context

    def distances(self, hidden: Tensor) -> Tensor | None:
        """Returns the embeddings (or biases) of all distances that relative positions have [R, D]; None without."""
        if self.config.attention_position == "disentangled":
            return self.relative()
        if self.config.attention_position == "relative_bias":
            return self.relative_attention_bias.weight
        if self.config.attention_position != "relative":
            return None
        distances = torch.arange(1 - hidden.shape[1], hidden.shape[1], device=hidden.device)
        if self.config.clamp_len > 0:
            distances = distances.clamp(-self.config.clamp_len, self.config.clamp_len)
        return self.distance_dropout(sinusoids(distances, self.config.hidden_size).to(hidden.dtype))

    def summary(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        """Returns one vector per sequence [B, D]: of its first token, of its last, or the mean of the real ones."""
        if self.config.pooling in ("mean", "late"):
            weights = torch.ones_like(hidden[..., :1]) if mask is None else mask[:, :, None].to(hidden.dtype)
            return (hidden * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1.0)
        return hidden[:, {"first": 0, "last": -1}[self.config.pooling]]

    def decode(
        self, states: tuple[Tensor, ...], table: nn.Embedding, input_ids: Tensor | None, inputs: dict[str, Any]
    ) -> Tensor:
        """Runs the last layer twice over queries that start with an absolute position (DeBERTa's decoder) [B, S, D].

        Args:
            states: hidden states of all layers.
            table: absolute positions.
            input_ids: [B, S].
            inputs: further arguments of `forward`.
        """
        source, mask = states[-2], inputs.get("attention_mask")
        positions = self.position_ids(source, input_ids, inputs.get("position_ids"))
        last, mask = len(states) - 2, None if mask is None else mask.bool()
        context = self.context(source, positions, torch.zeros_like(positions), mask, self.config.is_local(last))
        hidden, distances = source + table(positions.clamp(min=0)), self.distances(source)
        for _ in range(2):
            hidden, _ = self.layers[last](hidden, distances, context, source)
        return hidden


# -- classes -----------------------------------------------------------------------------------------------------------


def encoder_inputs(
    attention_mask: Tensor | None,
    token_type_ids: Tensor | None,
    position_ids: Tensor | None,
    inputs_embeds: Tensor | None,
    kwargs: dict[str, Any],
) -> dict[str, Any]:
    """Returns the keyword arguments of `BertjaxModel.forward` (`Trainer` reads the names in a class's signature).

    Args:
        attention_mask, token_type_ids, position_ids, inputs_embeds: as in `BertjaxModel.forward`.
        kwargs: further ones.
    """
    return {
        "attention_mask": attention_mask,
        "token_type_ids": token_type_ids,
        "position_ids": position_ids,
        "inputs_embeds": inputs_embeds,
        **kwargs,
    }


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

    def score_tokens(self, input_ids: Tensor | None, inputs: dict[str, Any]) -> tuple[Tensor, Any]:
        """Returns scores of the vocabulary [B, S, V], and the outputs of the encoder."""
        enhanced = self.config.enhanced_decoder
        with_states = inputs.pop("output_hidden_states", None)
        with_states = self.config.output_hidden_states if with_states is None else with_states
        outputs = self.encoder(input_ids, output_hidden_states=with_states or enhanced, **inputs)
        hidden = outputs.last_hidden_state
        if enhanced:
            hidden = self.encoder.decode(outputs.hidden_states, self.decoder_positions, input_ids, inputs)
        outputs.hidden_states = outputs.hidden_states if with_states else None
        return self.mlm_head(hidden), outputs


class BertjaxForMaskedLM(BertjaxLanguageModel):
    """Predicts masked tokens."""

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
    ) -> MaskedLMOutput:
        """Args: as in `BertjaxModel.forward`; `labels` are ids [B, S], -100 where there is no loss."""
        options = {"num_items_in_batch": kwargs.pop("num_items_in_batch", None)}
        inputs = encoder_inputs(attention_mask, token_type_ids, position_ids, inputs_embeds, kwargs)
        logits, outputs = self.score_tokens(input_ids, inputs)
        loss = None if labels is None else self.loss_function(logits, labels, self.config.vocab_size, **options)
        return MaskedLMOutput(loss, logits, outputs.hidden_states, outputs.attentions)


class BertjaxForCausalLM(BertjaxLanguageModel, GenerationMixin):
    """Predicts the next token of a causal encoder; generation runs without a cache."""

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
    ) -> CausalLMOutput:
        """Args: as in `BertjaxModel.forward`; `labels` are ids [B, S], -100 where there is no loss."""
        options = {"num_items_in_batch": kwargs.pop("num_items_in_batch", None)}
        last = kwargs.pop("logits_to_keep", 0)
        inputs = encoder_inputs(attention_mask, token_type_ids, position_ids, inputs_embeds, kwargs)
        logits, outputs = self.score_tokens(input_ids, inputs)
        loss = None if labels is None else self.loss_function(logits, labels, self.config.vocab_size, **options)
        return CausalLMOutput(loss, logits[:, -last:] if last else logits, outputs.hidden_states, outputs.attentions)

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
        inputs = encoder_inputs(attention_mask, token_type_ids, position_ids, inputs_embeds, kwargs)
        tokens, outputs = self.score_tokens(input_ids, inputs)
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


class BertjaxForSequenceClassification(BertjaxPreTrainedModel):
    """Labels of sequences or pairs of sequences."""

    def __init__(self, config: BertjaxConfig):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.encoder = BertjaxModel(config, config.classifier_dense == "pooler")
        has_dense = {"pooler": False, "own": True, "none": False}[config.classifier_dense]
        self.sequence_head = BertjaxScoreHead(config, config.num_labels, has_dense)
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
        """Args: as in `BertjaxModel.forward`; `labels` are classes [B], or numbers [B, C]."""
        kwargs.pop("num_items_in_batch", None)
        inputs = encoder_inputs(attention_mask, token_type_ids, position_ids, inputs_embeds, kwargs)
        outputs = self.encoder(input_ids, **inputs)
        mask = None if attention_mask is None else attention_mask.bool()
        if self.config.pooling == "late":
            logits = self.encoder.summary(self.sequence_head(outputs.last_hidden_state), mask)
        elif self.config.classifier_dense == "pooler":
            logits = self.sequence_head(outputs.pooler_output)
        else:
            logits = self.sequence_head(self.encoder.summary(outputs.last_hidden_state, mask))
        loss = None
        if labels is not None:
            loss = self.loss_function(labels=labels, logits=logits, pooled_logits=logits, config=self.config)
        return SequenceClassifierOutput(loss, logits, outputs.hidden_states, outputs.attentions)


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
        """Args: as in `BertjaxModel.forward`; `labels` are classes [B, S], -100 where there is no loss."""
        options = {"num_items_in_batch": kwargs.pop("num_items_in_batch", None)}
        inputs = encoder_inputs(attention_mask, token_type_ids, position_ids, inputs_embeds, kwargs)
        outputs = self.encoder(input_ids, **inputs)
        logits = self.token_head(outputs.last_hidden_state)
        loss = None if labels is None else self.loss_function(logits, labels, self.config, **options)
        return TokenClassifierOutput(loss, logits, outputs.hidden_states, outputs.attentions)


class BertjaxForQuestionAnswering(BertjaxPreTrainedModel):
    """First and last token of the answer to a question."""

    def __init__(self, config: BertjaxConfig):
        super().__init__(config)
        self.encoder = BertjaxModel(config, add_pooling_layer=False)
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
        """Args: as in `BertjaxModel.forward`; the positions are those of the answer [B]."""
        kwargs.pop("num_items_in_batch", None)
        inputs = encoder_inputs(attention_mask, token_type_ids, position_ids, inputs_embeds, kwargs)
        outputs = self.encoder(input_ids, **inputs)
        start, end = self.answer_head(outputs.last_hidden_state).unbind(dim=-1)
        loss = None
        if start_positions is not None and end_positions is not None:
            loss = self.loss_function(start, end, start_positions, end_positions)
        return QuestionAnsweringModelOutput(loss, start, end, outputs.hidden_states, outputs.attentions)
