"""PyTorch encoder of a model that was pretrained with bertjax. Needs torch and transformers only.

Every part is a choice of `BertjaxConfig`. B sequences, S tokens, N heads of size H, D hidden size, V tokens.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import (
    BaseModelOutputWithPoolingAndCrossAttentions,
)
from transformers.utils.generic import can_return_tuple

from .configuration_bertjax import BertjaxConfig
from .heads_bertjax import (
    BertjaxPooler,
)
from .layers_bertjax import (
    ACTIVATIONS,
    BertjaxContext,
    BertjaxDistanceEmbeddings,
    BertjaxEmbeddings,
    BertjaxGroup,
    BertjaxLayer,
    BertjaxRelativeAttention,
    BertjaxSpanConvolution,
    BertjaxZeroCenteredLayerNorm,
    BertjaxZeroCenteredRMSNorm,
    bias_bucket,
    bias_factors,
    log_bucket,
    make_norm,
    sinusoids,
)
from .rotation_bertjax import rotation


class BertjaxConvolution(nn.Conv1d):
    """Convolution of the embeddings, added after the first layer (DeBERTa v2 xlarge)."""

    def __init__(self, config: BertjaxConfig):
        width = config.conv_kernel_size
        super().__init__(config.hidden_size, config.hidden_size, width, padding=width // 2)
        self.norm = make_norm(config)
        self.act = ACTIVATIONS[config.conv_act]
        self.dropout = nn.Dropout(config.hidden_dropout)

    def forward(self, embeddings: Tensor, hidden: Tensor, mask: Tensor | None) -> Tensor:  # type: ignore[override]
        """Returns the output of the first layer with the convolution added [B, S, D].

        Args:
            embeddings, hidden: input and output of the first layer [B, S, D].
            mask: True at real tokens [B, S]; None = all tokens are real.
        """
        real = torch.ones_like(hidden[..., :1]) if mask is None else mask[:, :, None].to(hidden.dtype)
        out = super().forward((embeddings * real).transpose(1, 2)).transpose(1, 2)
        return self.norm(hidden + self.act(self.dropout(out * real))) * real


class BertjaxDepthWeights(nn.Module):
    """Weights of the hidden states after every block, for those after either block of a layer."""

    def __init__(self, config: BertjaxConfig):
        super().__init__()
        first = torch.eye(2 * config.num_layers, 2 * config.num_layers + 1).roll(1, dims=1)
        self.weights = nn.Parameter(first.unflatten(0, (-1, 2)))


class BertjaxPreTrainedModel(PreTrainedModel):
    """Base of all classes."""

    config: BertjaxConfig
    config_class = BertjaxConfig
    base_model_prefix = "encoder"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _keys_to_ignore_on_load_unexpected = [r"^(encoder\.)?(\w+_head|decoder_positions|pooler)\."]
    _no_split_modules = ["BertjaxLayer", "BertjaxEmbeddings"]

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, BertjaxDistanceEmbeddings | BertjaxRelativeAttention | BertjaxSpanConvolution):
            for parameter in module.parameters(recurse=False):
                nn.init.normal_(parameter, std=self.config.initializer_range)
        if isinstance(module, BertjaxZeroCenteredRMSNorm | BertjaxZeroCenteredLayerNorm):
            nn.init.zeros_(module.weight)

    def resize_token_embeddings(self, *arguments: Any, **options: Any) -> nn.Module:  # type: ignore[override]
        """Resizes the tables of tokens, with what continues them in the head of masked tokens."""
        table: nn.Module = super().resize_token_embeddings(*arguments, **options)
        for module in self.modules():
            further = getattr(module, "further_table", None)
            if further is not None:
                size = (self.config.vocab_size, further.shape[1])
                rows = further.new_empty(size).normal_(0, self.config.initializer_range)
                count = min(len(rows), len(further))
                rows[:count] = further.data[:count]
                module.further_table = nn.Parameter(rows)
        return table


def visible_keys(mask: Tensor | None) -> Tensor | None:
    """Returns which keys all queries see [B, 1, 1, K], by a mask of real tokens [B, K]; all where none is real."""
    if mask is None:
        return None
    visible = mask.bool()[:, None, None]
    return visible | ~visible.any(dim=-1, keepdim=True)


class BertjaxModel(BertjaxPreTrainedModel):
    """The encoder, with a pooler if the model was pretrained with one or the head needs it.

    Attributes:
        counts_padding: True where a position table with an offset counts padding, too, as in encoder-decoders.
    """

    counts_padding = False

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
        shares_biases = config.attention_position == "relative_bias" and config.relative_attention_shared
        if shares_biases and config.relative_bias == "learned":
            self.relative_attention_bias = nn.Embedding(config.relative_attention_num_buckets, config.num_heads)
        if config.attention_position == "relative":  # start of the second stream of pretraining; not read here
            self.register_buffer("mask_embedding", torch.zeros(config.hidden_size))
        self.convolution = BertjaxConvolution(config) if config.conv_kernel_size else None
        self.depth_weighted_average = BertjaxDepthWeights(config) if config.depth_weighted_average else None
        self.norm = make_norm(config, present=config.norm_placement != "post", has_bias=config.last_norm_bias)
        self.output_dropout = nn.Dropout(config.output_dropout)
        self.distance_dropout = nn.Dropout(config.rate("embedding_dropout"))
        self.decoder = None
        if config.decoder_layers is not None:  # it reads the same tokens, one late
            self.decoder = BertjaxModel(config.decoder_config(), add_pooling_layer=False)
            self.decoder.embeddings.word_embeddings = None  # type: ignore[assignment]
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
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPoolingAndCrossAttentions:
        """Computes the hidden states of every token.

        Args:
            input_ids: [B, S].
            attention_mask: 1 = real token [B, S]; None = all tokens are real.
            token_type_ids: [B, S]; None = zeros.
            position_ids: rows of the position table [B, S]; None = counted from the first.
            inputs_embeds: word embeddings instead of `input_ids` [B, S, E].
            output_attentions: also return the probabilities of all layers; needs `attn_implementation="eager"`.
            output_hidden_states: also return the hidden states of all layers.
            encoder_hidden_states: output of the encoder, for a decoder [B, K, D2].
            encoder_attention_mask: 1 = real token of the encoder, for a decoder [B, K]; None = all are real.
        """
        mask = None if attention_mask is None else attention_mask.bool()
        words = inputs_embeds
        if words is None:
            assert input_ids is not None
            words = self.embeddings.look_up(input_ids, mask)
        positions, types = self.position_ids(words, input_ids, position_ids), token_type_ids
        types = torch.zeros_like(positions) if types is None else types
        hidden = embeddings = self.embeddings(words, positions, types, mask)
        contexts = {local: self.context(hidden, positions, types, mask, local) for local in (False, True)}
        for context in contexts.values():
            context.cross = BertjaxContext(visible_keys(encoder_attention_mask))
        distances = self.distances(hidden)
        states, attentions, crossed, averages = [hidden], [], [], self.depth_weighted_average
        past = [] if averages is None else [hidden]
        for index, layers in enumerate(self.layer_list()):
            for layer in layers:
                context = contexts[self.config.is_local(index)]
                row = None if averages is None else averages.weights[index]
                outputs = layer(hidden, distances, context, None, encoder_hidden_states, row, *past)
                hidden, probabilities, of_encoder, *new = outputs
                attentions.append(probabilities)
                crossed.append(of_encoder)
                past += new
            if index == 0 and self.convolution is not None:
                hidden = self.convolution(embeddings, hidden, mask)
            states.append(hidden)
        hidden = self.output_dropout(self.norm(hidden))
        with_states = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        with_attentions = self.config.output_attentions if output_attentions is None else output_attentions
        if with_attentions and self.config._attn_implementation != "eager":
            raise ValueError('output_attentions needs a model loaded with attn_implementation="eager"')
        states[-1] = hidden
        if self.decoder is not None:
            decoded = self.decoder(
                None,
                attention_mask,
                token_type_ids,
                position_ids,
                self.one_late(words, mask),
                output_attentions=with_attentions,
                output_hidden_states=True,
                encoder_hidden_states=hidden,
                encoder_attention_mask=attention_mask,
            )
            hidden, states = decoded.last_hidden_state, [*states, *decoded.hidden_states]
            attentions, crossed = [*attentions, *(decoded.attentions or ())], list(decoded.cross_attentions or ())
        with_crossed = with_attentions and (encoder_hidden_states is not None or self.decoder is not None)
        return BaseModelOutputWithPoolingAndCrossAttentions(
            last_hidden_state=hidden,
            pooler_output=None if self.pooler is None else self.pooler(self.summary(hidden, mask, input_ids)),
            hidden_states=tuple(states) if with_states else None,
            attentions=tuple(attentions) if with_attentions else None,
            cross_attentions=tuple(crossed) if with_crossed else None,
        )

    def one_late(self, words: Tensor, mask: Tensor | None) -> Tensor:
        """Returns the word embeddings of the tokens before, and of the token that a decoder starts with [B, S, E].

        Args:
            words: word embeddings [B, S, E].
            mask: True at real tokens [B, S]; None = all tokens are real.
        """
        real = torch.ones_like(words[..., 0], dtype=torch.bool) if mask is None else mask
        index = torch.arange(words.shape[1], device=words.device)
        if self.config.decoder_start == "last":
            first = words[torch.arange(words.shape[0], device=words.device), (index * real).argmax(dim=1)][:, None]
        else:
            token = self.config.eos_token_id if self.config.decoder_start == "eos" else self.config.pad_token_id
            first = self.embeddings.word_embeddings.weight[token][None, None]
        late = torch.cat([torch.zeros_like(words[:, :1]), words[:, :-1]], dim=1)
        begins = index[None] == real.long().argmax(dim=1, keepdim=True)
        return torch.where(begins[:, :, None], first, late)

    def layer_list(self) -> list[list[BertjaxLayer]]:
        """Returns the layers in the order in which they run; those of a group run together."""
        if self.config.num_groups is None:
            return [[layer] for layer in self.layers]  # type: ignore[list-item]
        size = self.config.num_layers / self.config.num_groups
        groups = [self.groups[int(index / size)] for index in range(self.config.num_layers)]
        return [list(group.layers) for group in groups]  # type: ignore[arg-type]

    def position_ids(self, words: Tensor, input_ids: Tensor | None, position_ids: Tensor | None) -> Tensor:
        """Returns positions from 0 [B, S]; where the table has an offset, padding may not count (RoBERTa).

        Args:
            words: word embeddings [B, S, E].
            input_ids: [B, S]; None = unknown.
            position_ids: rows of the position table [B, S]; None = counted.
        """
        if position_ids is not None:
            return position_ids.expand(words.shape[:2]) - self.config.position_offset
        real = torch.ones(words.shape[:2], dtype=torch.long, device=words.device)
        skips = self.config.decoder_layers is None and not self.counts_padding
        if self.config.position_offset and input_ids is not None and skips:
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
        config, context = self.config, BertjaxContext(real=mask)
        index = torch.arange(hidden.shape[1], device=hidden.device)
        distances = index[:, None] - index[None]
        visible = None if mask is None else mask[:, None, None, :].expand(-1, 1, index.shape[0], -1)
        window = distances.abs() <= config.local_attention // 2 if local else None
        for rule in (window, distances >= 0 if config.causal else None):
            if rule is not None:
                visible = rule[None, None] if visible is None else visible & rule
        if visible is not None:  # queries that see nothing are padding; a softmax over nothing is not a number
            visible = visible | (distances == 0) if config.attention_position == "relative" else visible
            context.visible = visible | ~visible.any(dim=-1, keepdim=True)
        if config.attention_position == "rotary":
            context.rotation = rotation(config, position_ids, mask, local)
        if config.attention_position == "disentangled":
            if config.position_buckets:
                distances = log_bucket(distances, config.position_buckets, config.max_distance)
            span = config.attention_span
            context.columns = (distances + span).clamp(0, 2 * span - 1)[None]
        if config.attention_position == "relative_bias":
            learned = config.relative_bias == "learned"
            context.columns = (bias_bucket(distances, config) if learned else distances.abs())[None]
        if config.attention_position == "relative":
            if config.bi_data:  # the second half of the batch is text in reverse
                backward = torch.arange(hidden.shape[0], device=hidden.device)[:, None, None] >= hidden.shape[0] // 2
                distances = torch.where(backward, -distances, distances)
            context.columns = (distances + index.shape[0] - 1).expand(hidden.shape[0], -1, -1)
            if config.relative_segments:
                context.types_differ = (token_type_ids[:, :, None] != token_type_ids[:, None])[:, None]
        return context

    def distances(self, hidden: Tensor) -> Tensor | None:
        """Returns the embeddings (or biases) of all distances that relative positions have [R, D]; None without."""
        if self.config.attention_position == "disentangled":
            return self.relative()
        if self.config.attention_position == "relative_bias" and self.config.relative_attention_shared:
            if self.config.relative_bias == "learned":
                return self.relative_attention_bias.weight
            lengths = torch.arange(hidden.shape[1], device=hidden.device, dtype=hidden.dtype)
            return -lengths[:, None] * bias_factors(self.config.num_heads, lengths)
        if self.config.attention_position != "relative":
            return None
        distances = torch.arange(1 - hidden.shape[1], hidden.shape[1], device=hidden.device)
        if self.config.clamp_len > 0:
            distances = distances.clamp(-self.config.clamp_len, self.config.clamp_len)
        return self.distance_dropout(sinusoids(distances, self.config.hidden_size).to(hidden.dtype))

    def summary(self, hidden: Tensor, mask: Tensor | None, input_ids: Tensor | None = None) -> Tensor:
        """Returns one vector per sequence [B, D]: of its first token, of its last, or the mean of the real ones.

        The last token of a causal model is the last one that is not the pad token, as in classes of `transformers`;
        pooling=eos takes the last end token.

        Args:
            hidden: hidden states [B, S, D].
            mask: True = real token [B, S].
            input_ids: ids of the tokens [B, S]; None: the last token counts, whatever it is.
        """
        if self.config.pooling in ("mean", "late"):
            weights = torch.ones_like(hidden[..., :1]) if mask is None else mask[:, :, None].to(hidden.dtype)
            return (hidden * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1.0)
        ends = self.config.pooling == "eos"
        if (ends or (self.config.pooling == "last" and self.config.causal)) and input_ids is not None:
            counts = input_ids == self.config.eos_token_id if ends else input_ids != self.config.pad_token_id
            last = (torch.arange(hidden.shape[1], device=hidden.device) * counts).argmax(dim=-1)
            return hidden[torch.arange(hidden.shape[0], device=hidden.device), last]
        return hidden[:, {"first": 0, "last": -1, "eos": -1}[self.config.pooling]]

    def decode(
        self,
        states: tuple[Tensor, ...],
        table: nn.Embedding,
        input_ids: Tensor | None,
        attention_mask: Tensor | None,
        position_ids: Tensor | None,
    ) -> Tensor:
        """Runs the last layer twice over queries that start with an absolute position (DeBERTa's decoder) [B, S, D].

        Args:
            states: hidden states of all layers.
            table: absolute positions.
            input_ids, attention_mask, position_ids: as in `forward`.
        """
        source, last = states[-2], len(states) - 2
        positions = self.position_ids(source, input_ids, position_ids)
        mask = None if attention_mask is None else attention_mask.bool()
        context = self.context(source, positions, torch.zeros_like(positions), mask, self.config.is_local(last))
        hidden, distances = source + table(positions.clamp(min=0)), self.distances(source)
        for _ in range(2):
            hidden, *_ = self.layers[last](hidden, distances, context, source)
        return hidden
