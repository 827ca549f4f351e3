"""Parts of the PyTorch model of an encoder that was pretrained with bertjax: embeddings, attention, layers.

B sequences, S tokens, N heads of size H, D hidden size, R distances.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

from .configuration_bertjax import BertjaxConfig
from .rotation_bertjax import frequencies

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
    "tanh": torch.tanh,
}
KEY_BIASES = {"all": True, "query_value": False, "query_key_value": True, "none": False}
OUTPUT_BIASES = {"all": True, "query_value": True, "query_key_value": False, "none": False}
NORM_PLACEMENTS = ("post", "pre", "sandwich", "parallel", "normformer", "sub")


class BertjaxZeroCenteredRMSNorm(nn.RMSNorm):
    """Multiplies by 1 + weight (Gemma)."""

    def forward(self, hidden: Tensor) -> Tensor:
        """Returns the normed vectors [..., D]."""
        return F.rms_norm(hidden, self.normalized_shape, 1.0 + self.weight, self.eps)


class BertjaxZeroCenteredLayerNorm(nn.LayerNorm):
    """Multiplies by 1 + weight."""

    def forward(self, hidden: Tensor) -> Tensor:
        """Returns the normed vectors [..., D]."""
        return F.layer_norm(hidden, self.normalized_shape, 1.0 + self.weight, self.bias, self.eps)


class BertjaxAffine(nn.Module):
    """Multiplies and adds, without statistics (MobileBERT)."""

    def __init__(self, size: int, has_bias: bool, zero_centered: bool):
        super().__init__()
        self.weight = nn.Parameter(torch.full((size,), 0.0 if zero_centered else 1.0))
        self.bias = nn.Parameter(torch.zeros(size)) if has_bias else None
        self.added = float(zero_centered)

    def forward(self, hidden: Tensor) -> Tensor:
        """Returns the vectors [..., D]."""
        hidden = hidden * (self.added + self.weight)
        return hidden if self.bias is None else hidden + self.bias


def soft_cap(scores: Tensor, cap: float | None) -> Tensor:
    """Returns scores whose size stays below `cap`; None = as they are."""
    return scores if cap is None else cap * torch.tanh(scores / cap)


def make_norm(
    config: BertjaxConfig,
    size: int | None = None,
    present: bool = True,
    has_bias: bool = True,
    affine: bool = True,
    eps: float | None = None,
) -> nn.Module:
    """Returns a norm, or the identity.

    Args:
        config: kind, epsilon and bias.
        size: width of the normalized axis; None = the hidden size.
        present: False returns the identity.
        has_bias: False leaves out the bias of any config.
        affine: False returns a layer norm where others have no statistics.
        eps: added to the variance; None = that of the config.
    """
    size = config.hidden_size if size is None else size
    eps = config.layer_norm_eps if eps is None else eps
    if not present:
        return nn.Identity()
    if config.norm_type == "rms_norm":
        rms_norm = BertjaxZeroCenteredRMSNorm if config.norm_zero_centered else nn.RMSNorm
        return rms_norm(size, eps=eps)
    if config.norm_type == "affine" and affine:
        return BertjaxAffine(size, config.norm_bias and has_bias, config.norm_zero_centered)
    layer_norm = BertjaxZeroCenteredLayerNorm if config.norm_zero_centered else nn.LayerNorm
    return layer_norm(size, eps=eps, bias=config.norm_bias and has_bias)


def sinusoids(positions: Tensor, size: int) -> Tensor:
    """Returns all sines, then all cosines, of positions times the frequencies [..., size]."""
    angles = positions[..., None].float() * frequencies(size, 10_000.0, positions.device)
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


def closed_sinusoids(positions: Tensor, size: int) -> Tensor:
    """Returns all sines, then all cosines, of positions / 10000^(i / (size / 2 - 1)) [..., size]."""
    half = size // 2
    by = torch.exp(torch.arange(half, device=positions.device).float() * -(math.log(10_000) / (half - 1)))
    angles = positions[..., None].float() * by
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


def rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Rotates the pairs (x_i, x_{i + H/2}) of every head [B, N, S, H] by the angles of their token."""
    cosines, sines = rotation
    first, second = x.float().chunk(2, dim=-1)
    return (x.float() * cosines + torch.cat([-second, first], dim=-1) * sines).to(x.dtype)


def log_bucket(distances: Tensor, buckets: int, max_distance: int) -> Tensor:
    """Returns signed buckets of distances: one each up to `buckets` / 2, then a logarithmic scale (DeBERTa v2).

    Args:
        distances: query - key.
        buckets: number of buckets on either side.
        max_distance: distance whose bucket is the last.
    """
    middle = buckets // 2
    size = distances.abs().clamp(min=max(middle, 1)).float()
    scale = torch.log(torch.tensor((max_distance - 1) / middle))
    far = torch.ceil(torch.log(size / middle) / scale * (middle - 1)).long() + middle
    return torch.where(distances.abs() <= middle, distances, distances.sign() * far)


def bias_bucket(distances: Tensor, config: BertjaxConfig) -> Tensor:
    """Returns buckets of distances: half of a side for one distance each, then a logarithmic scale (T5)."""
    buckets = config.relative_attention_num_buckets // (1 if config.causal else 2)
    start = 0 if config.causal else torch.where(distances < 0, buckets, 0)
    size = distances.clamp(min=0) if config.causal else distances.abs()
    exact = buckets // 2
    scale = math.log(config.relative_attention_max_distance / exact)
    far = exact + (torch.log(size.clamp(min=1).float() / exact) / scale * (buckets - exact)).long()
    return start + torch.where(size < exact, size, far.clamp(max=buckets - 1))


def bias_factors(num_heads: int, like: Tensor) -> Tensor:
    """Returns the factors of the distances, per head (ALiBi), as `bias_factors` of bertjax does [N].

    Args:
        num_heads: number of heads.
        like: gives type and device.
    """
    lower = 1 << (num_heads.bit_length() - 1)
    factors = [2.0 ** (-8.0 * index / lower) for index in range(1, lower + 1)]
    factors += [2.0 ** (-4.0 * index / lower) for index in range(1, 2 * lower + 1, 2)]
    return torch.tensor(factors[:num_heads], dtype=like.dtype, device=like.device)


@dataclasses.dataclass
class BertjaxContext:
    """Inputs that all global layers share, or all local ones.

    Attributes:
        visible: True where a query sees a key [B, 1, S, S]; None = everywhere.
        rotation: cosines and sines of every token [B, 1, S, H], for rotary positions.
        columns: column of the table of distances for every query and key [1 or B, S, S], for relative positions.
        types_differ: True where query and key have different token types [B, 1, S, S], for relative segments.
        real: True at real tokens [B, S], for convolutions; None = all tokens are real.
        cross: context of the attention to the output of the encoder, for a decoder.
    """

    visible: Tensor | None = None
    rotation: tuple[Tensor, Tensor] | None = None
    columns: Tensor | None = None
    types_differ: Tensor | None = None
    real: Tensor | None = None
    cross: BertjaxContext | None = None


class BertjaxEmbeddings(nn.Module):
    """word (+ position) (+ token type) -> norm -> dropout -> projection, each where configured."""

    def __init__(self, config: BertjaxConfig):
        super().__init__()
        size = config.embedding_size or config.hidden_size
        self.word_embeddings = nn.Embedding(config.vocab_size, size)
        position_size = size if config.embedding_ngram is None else config.hidden_size
        if config.position_embedding == "learned":
            rows = config.position_offset + config.max_position_embeddings
            self.position_embeddings = nn.Embedding(rows, position_size)
        if config.type_vocab_size:
            self.token_type_embeddings = nn.Embedding(config.type_vocab_size, position_size)
        norm_size = config.hidden_size if config.embedding_norm == "after" else size
        self.norm = make_norm(config, norm_size, config.embedding_norm != "none")
        if config.embedding_size is not None:
            size = size * (config.embedding_ngram or 1)
            self.projection = nn.Linear(size, config.hidden_size, bias=config.embedding_projection_bias)
        self.dropout = nn.Dropout(config.rate("embedding_dropout"))
        self.config = config

    def look_up(self, input_ids: Tensor, mask: Tensor | None) -> Tensor:
        """Returns the word embeddings [B, S, E]; with `token_dropout` mask tokens are zero, and the others scaled.

        Args:
            input_ids: [B, S].
            mask: True at real tokens [B, S]; None = all tokens are real.
        """
        words = self.word_embeddings(input_ids)
        if not self.config.token_dropout:
            return words
        unmasked = (input_ids != self.config.mask_token_id).to(words.dtype)
        real = torch.ones_like(unmasked) if mask is None else mask.to(words.dtype)
        share = (unmasked * real).sum(dim=1, keepdim=True) / real.sum(dim=1, keepdim=True).clamp(min=1.0)
        return words * (unmasked * (1.0 - 0.15 * 0.8) / share.clamp(min=1e-6))[:, :, None]

    def forward(self, words: Tensor, position_ids: Tensor, token_type_ids: Tensor, mask: Tensor | None) -> Tensor:
        """Returns the input of the first layer [B, S, D].

        Args:
            words: word embeddings [B, S, E].
            position_ids: from 0 [B, S].
            token_type_ids: [B, S].
            mask: True at real tokens [B, S]; None = all tokens are real.
        """
        config = self.config
        x = words * math.sqrt(words.shape[-1]) if config.embedding_scale else words
        if config.embedding_ngram is not None:
            # the last neighbor first
            x = self.projection(neighbors(x, config.embedding_ngram, mask).flip(-1).transpose(2, 3).flatten(2))
        if config.embedding_norm == "words":
            x = self.norm(x)
        if config.position_embedding == "learned":
            x = x + self.position_embeddings(position_ids + config.position_offset)
        if config.position_embedding == "sinusoidal":
            x = x + sinusoids(position_ids, x.shape[-1]).to(x.dtype)
        if config.position_embedding == "fairseq":
            waves = closed_sinusoids(position_ids + config.position_offset, x.shape[-1])
            x = x + (waves * (position_ids >= 0)[:, :, None]).to(x.dtype)
        if config.type_vocab_size:
            x = x + self.token_type_embeddings(token_type_ids)
        if config.embedding_norm == "before":
            x = self.norm(x)
        if config.embedding_norm != "after":
            x = self.dropout(x)
        if config.embedding_size is not None and config.embedding_ngram is None:
            x = self.projection(x)
        if config.embedding_norm == "after":
            x = self.norm(x)
        if config.zero_pad_embeddings and mask is not None:
            x = x * mask[:, :, None]
        return self.dropout(x) if config.embedding_norm == "after" else x


def neighbors(x: Tensor, count: int, real: Tensor | None) -> Tensor:
    """Returns the tokens around each [B, S, D, count]; zero where one of the two is padding, not both.

    Args:
        x: states of tokens [B, S, D].
        count: an odd number.
        real: True at real tokens [B, S]; None = all tokens are real.
    """
    reach = count // 2
    tokens = F.pad(x, (0, 0, reach, reach)).unfold(1, count, 1)
    if real is None:
        return tokens
    same = F.pad(real.to(x.dtype), (reach, reach)).unfold(1, count, 1) == real[:, :, None]
    return tokens * same[:, :, None]


class BertjaxProjection(nn.Module):
    """norm(dense(x)), an end of a bottleneck (MobileBERT)."""

    def __init__(self, in_size: int, out_size: int, config: BertjaxConfig):
        super().__init__()
        self.dense = nn.Linear(in_size, out_size)
        self.norm = make_norm(config, out_size)

    def forward(self, hidden: Tensor) -> Tensor:
        """Returns the projection [..., out]."""
        return self.norm(self.dense(hidden))


class BertjaxGroupedLinear(nn.Linear):
    """Multiplies every group of channels by itself (SqueezeBERT); weights [out, in / groups]."""

    def __init__(self, in_size: int, out_size: int, groups: int = 1, bias: bool = True):
        super().__init__(in_size // groups, out_size, bias=bias)
        self.groups = groups

    def forward(self, hidden: Tensor) -> Tensor:
        """Returns the product [..., out]."""
        if self.groups == 1:
            return super().forward(hidden)
        weights = self.weight.unflatten(0, (self.groups, -1))
        out = torch.einsum("...gi,goi->...go", hidden.unflatten(-1, (self.groups, -1)), weights).flatten(-2)
        return out if self.bias is None else out + self.bias


class BertjaxSpanConvolution(nn.Module):
    """Sums the values around a token by a kernel of its query and of a span of keys (ConvBERT, arXiv:2008.02496)."""

    def __init__(self, config: BertjaxConfig):
        super().__init__()
        width, inner, bias = config.hidden_size, config.num_heads * config.head_dim, config.attention_bias != "none"
        self.num_heads, self.size = config.num_heads, config.dynamic_conv_kernel_size
        self.depthwise = nn.Parameter(torch.zeros(self.size, 1, width))
        self.key = nn.Linear(width, inner, bias=bias)
        self.weights = nn.Linear(inner, self.num_heads * self.size, bias=bias)
        self.value = nn.Linear(width, inner, bias=bias)

    def forward(self, hidden: Tensor, query: Tensor, real: Tensor | None) -> Tensor:
        """Returns the sums of all heads [B, S, N, H].

        Args:
            hidden: input of the attention block [B, S, D].
            query: its projection to queries [B, S, N * H].
            real: True at real tokens [B, S]; None = all tokens are real.
        """
        span = (neighbors(hidden, self.size, real) * self.depthwise[:, 0].T).sum(dim=-1)
        kernels = self.weights(self.key(span) * query).unflatten(-1, (self.num_heads, 1, self.size))
        values = neighbors(self.value(hidden), self.size, real).unflatten(2, (self.num_heads, -1))
        return (values * kernels.float().softmax(dim=-1).to(values.dtype)).sum(dim=-1)


class BertjaxAttention(nn.Module):
    """Multi-head attention, with rotary positions or none; the layer applies the norm."""

    def __init__(self, config: BertjaxConfig, has_norm: bool = True, source_size: int | None = None):
        super().__init__()
        width, size, source = config.layer_width, config.head_dim, source_size or config.layer_width
        inner, shared = config.num_heads * size, (config.num_key_value_heads or config.num_heads) * size
        groups = config.attention_groups if source_size is None else 1
        self.query = BertjaxGroupedLinear(width, inner, groups, bias=config.attention_bias != "none")
        self.key = BertjaxGroupedLinear(source, shared, groups, bias=KEY_BIASES[config.attention_bias])
        projects = source_size is None and config.attention_bottleneck
        values = config.hidden_size if projects else source
        self.bottleneck = BertjaxProjection(values, width, config) if projects else nn.Identity()
        self.value = BertjaxGroupedLinear(values, shared, groups, bias=config.attention_bias != "none")
        convolves = config.dynamic_conv_kernel_size > 0
        self.output = nn.Linear(inner * (1 + convolves), width, bias=OUTPUT_BIASES[config.attention_bias])
        self.convolution = BertjaxSpanConvolution(config) if convolves else None
        gate = config.attention_gate and nn.Linear(width, self.output.in_features, bias=config.attention_bias != "none")
        self.gate = gate or None
        self.inner_norm = make_norm(config, self.output.in_features, config.norm_placement == "sub")
        self.norm = make_norm(config, width, has_norm)
        self.output_norm = make_norm(config, width, config.norm_placement in ("sandwich", "normformer"))
        self.norms_heads = config.qk_norm_over == "head"
        normed = (size, size) if self.norms_heads else (inner, shared)
        self.query_norm, self.key_norm = (make_norm(config, n, config.qk_norm, self.norms_heads) for n in normed)
        self.scale = (config.attention_scale_size or size) ** -0.5 if config.attention_scale else 1.0
        self.config = config

    def forward(
        self, hidden: Tensor, positions: Tensor | None, context: BertjaxContext, source: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Returns the attention block without norm and residual [B, S, D], and the probabilities of "eager" attention.

        Args:
            hidden: hidden states of the queries [B, S, D].
            positions: embeddings of distances, for relative positions.
            context: visibility and positions.
            source: hidden states of keys and values; None = `hidden`.
        """
        source = hidden if source is None else source
        query, key = (projected := self.query(self.bottleneck(hidden))), self.key(self.bottleneck(source))
        if self.norms_heads:
            query, key = self.query_norm(self.split_heads(query)), self.key_norm(self.split_heads(key))
        else:
            query, key = self.split_heads(self.query_norm(query)), self.split_heads(self.key_norm(key))
        value = self.split_heads(self.value(source))
        if context.rotation is not None:
            query, key = rotate(query, context.rotation), rotate(key, context.rotation)
            value = rotate(value, context.rotation) if self.config.rotary_value else value
        key, value = self.copy_heads(key), self.copy_heads(value)
        query, bias = self.position_scores(query, key, positions, context)
        mask = context.visible
        if bias is not None:
            mask = bias if mask is None else bias.masked_fill(~mask, -torch.inf)
        attended, probabilities = self.attend(query, key, value, mask)
        heads = attended.transpose(1, 2)
        if self.convolution is not None:
            heads = torch.cat([heads, self.convolution(hidden, projected, context.real)], dim=-1)
        heads = heads.flatten(2)
        if self.gate is not None:
            heads = ACTIVATIONS[self.config.attention_gate or ""](self.gate(hidden)) * heads
        return self.output(self.inner_norm(heads)), probabilities

    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Returns the values [B, N, S, H] averaged by the softmax of the scores, and the probabilities if "eager".

        Args:
            query, key, value: [B, N, S, H].
            mask: boolean, or added to the scores; None = every query sees every key.
        """
        rate = self.config.attention_dropout if self.training else 0.0
        cap = self.config.attention_soft_cap
        if self.config._attn_implementation != "eager" and cap is None:  # whose kernels know no caps
            return F.scaled_dot_product_attention(query, key, value, mask, rate, scale=self.scale), None
        scores = soft_cap(query @ key.transpose(2, 3) * self.scale, cap)
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
        probabilities = F.dropout(scores.float().softmax(dim=-1).to(value.dtype), rate)
        return probabilities @ value, probabilities

    def position_scores(
        self, query: Tensor, key: Tensor, positions: Tensor | None, context: BertjaxContext
    ) -> tuple[Tensor, Tensor | None]:
        """Returns the queries, and what positions add to the scaled scores [B, N, S, S]; None = nothing.

        Args:
            query, key: [B, N, S, H].
            positions: embeddings of distances [R, D].
            context: columns and segments.
        """
        return query, None

    def split_heads(self, x: Tensor) -> Tensor:
        """Splits the last axis: [..., S, heads * H] -> [..., heads, S, H]."""
        return x.unflatten(-1, (-1, self.config.head_dim)).transpose(-2, -3)

    def copy_heads(self, x: Tensor) -> Tensor:
        """Copies the heads that several query heads share [..., heads, S, H]."""
        return x.repeat_interleave(self.config.num_heads // x.shape[-3], dim=-3)


def gather_columns(scores: Tensor, columns: Tensor) -> Tensor:
    """Returns scores[b, n, i, columns[b, i, j]] of scores by distance [B, N, S, R]."""
    return scores.gather(3, columns[:, None].expand(*scores.shape[:3], -1))


class BertjaxDisentangledAttention(BertjaxAttention):
    """Adds scores of content against the embedding of the distance, and the reverse (DeBERTa, arXiv:2006.03654)."""

    def __init__(self, config: BertjaxConfig, has_norm: bool = True):
        super().__init__(config, has_norm)
        sizes, terms = (config.hidden_size, config.num_heads * config.head_dim), config.pos_att_type
        if not config.share_att_key and "c2p" in terms:
            self.position_key = nn.Linear(*sizes, bias=KEY_BIASES[config.attention_bias])
        if not config.share_att_key and "p2c" in terms:
            self.position_query = nn.Linear(*sizes, bias=config.attention_bias != "none")
        self.dropout = nn.Dropout(config.hidden_dropout)
        self.scale = (config.head_dim * (1 + len(terms))) ** -0.5

    def position_scores(
        self, query: Tensor, key: Tensor, positions: Tensor | None, context: BertjaxContext
    ) -> tuple[Tensor, Tensor | None]:
        """Computes the scores of distances. Args: as in `BertjaxAttention.position_scores`."""
        assert positions is not None and context.columns is not None
        table, bias = self.dropout(positions), None
        if "c2p" in self.config.pos_att_type:
            projection = self.key if self.config.share_att_key else self.position_key
            embeddings = self.copy_heads(self.split_heads(projection(table)))
            bias = gather_columns(query @ embeddings.transpose(1, 2), context.columns)
        if "p2c" in self.config.pos_att_type:
            projection = self.query if self.config.share_att_key else self.position_query
            embeddings = self.split_heads(projection(table))
            scores = gather_columns(key @ embeddings.transpose(1, 2), context.columns.transpose(1, 2)).transpose(2, 3)
            bias = scores if bias is None else bias + scores
        return query, None if bias is None else bias * self.scale


class BertjaxRelativeAttention(BertjaxAttention):
    """Adds scores of distances and segments, with biases of their own (XLNet, arXiv:1906.08237)."""

    def __init__(self, config: BertjaxConfig, has_norm: bool = True):
        super().__init__(config, has_norm)
        heads = (config.num_heads, config.head_dim)
        self.position = nn.Linear(config.hidden_size, heads[0] * heads[1], bias=False)
        self.content_bias = nn.Parameter(torch.zeros(heads))
        self.position_bias = nn.Parameter(torch.zeros(heads))
        if config.relative_segments:
            self.segment_bias = nn.Parameter(torch.zeros(heads))
            self.segment_embeddings = nn.Parameter(torch.zeros(2, *heads))

    def position_scores(
        self, query: Tensor, key: Tensor, positions: Tensor | None, context: BertjaxContext
    ) -> tuple[Tensor, Tensor | None]:
        """Computes the scores of distances. Args: as in `BertjaxAttention.position_scores`."""
        assert positions is not None and context.columns is not None
        embeddings = self.split_heads(self.position(positions))
        bias = gather_columns((query + self.position_bias[:, None]) @ embeddings.transpose(1, 2), context.columns)
        if context.types_differ is not None:  # only the difference counts: the softmax ignores what keys share
            same, other = self.segment_embeddings
            scores = ((query + self.segment_bias[:, None]) * (other - same)[:, None]).sum(-1, keepdim=True)
            bias = bias + scores * context.types_differ
        return query + self.content_bias[:, None], bias * self.scale


class BertjaxBiasedAttention(BertjaxAttention):
    """Adds a bias per head and distance, the same in all layers (T5, MPNet, ALiBi) or not (UMT5)."""

    def __init__(self, config: BertjaxConfig, has_norm: bool = True, source_size: int | None = None):
        super().__init__(config, has_norm, source_size)
        if not config.relative_attention_shared:
            self.relative_attention_bias = nn.Embedding(config.relative_attention_num_buckets, config.num_heads)

    def position_scores(
        self, query: Tensor, key: Tensor, positions: Tensor | None, context: BertjaxContext
    ) -> tuple[Tensor, Tensor | None]:
        """Looks up the biases. Args: as in `BertjaxAttention.position_scores`."""
        table = positions if self.config.relative_attention_shared else self.relative_attention_bias.weight
        assert table is not None and context.columns is not None
        return query, table[context.columns].permute(0, 3, 1, 2)


ATTENTION_CLASSES: dict[str, type[BertjaxAttention]] = {
    "none": BertjaxAttention,
    "rotary": BertjaxAttention,
    "disentangled": BertjaxDisentangledAttention,
    "relative": BertjaxRelativeAttention,
    "relative_bias": BertjaxBiasedAttention,
}


class BertjaxFeedForward(nn.Module):
    """dense -> activation -> dense, or the gated form; the layer applies the norms before and after."""

    def __init__(self, config: BertjaxConfig):
        super().__init__()
        sizes, bias = (config.layer_width, config.intermediate_size), config.feed_forward_bias
        inner_bias, groups = bias and config.feed_forward_inner_bias, config.feed_forward_groups
        gate = BertjaxGroupedLinear(*sizes, groups, bias=inner_bias) if config.feed_forward == "glu" else None
        self.gate, self.intermediate = gate, BertjaxGroupedLinear(*sizes, groups, bias=inner_bias)
        self.output = BertjaxGroupedLinear(*sizes[::-1], groups, bias=bias)
        self.norm = make_norm(config, sizes[0])
        self.output_norm = make_norm(config, sizes[0], config.norm_placement == "sandwich")
        self.inner_norm = make_norm(config, config.intermediate_size, config.norm_placement in ("normformer", "sub"))
        self.act = ACTIVATIONS[config.hidden_act]
        self.dropout = nn.Dropout(config.activation_dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        """Returns the block without norm and residual [B, S, D]."""
        inner = self.intermediate(hidden)
        inner = self.act(inner) if self.gate is None else self.act(self.gate(hidden)) * inner
        return self.output(self.dropout(self.inner_norm(inner)))


class BertjaxAdapter(nn.Module):
    """dense -> activation -> dense after the feed-forward block (X-MOD)."""

    def __init__(self, config: BertjaxConfig, size: int):
        super().__init__()
        self.intermediate = nn.Linear(config.hidden_size, size)
        self.output = nn.Linear(size, config.hidden_size)
        self.norm = make_norm(config, present=config.norm_placement != "post")
        self.act = ACTIVATIONS[config.hidden_act]

    def forward(self, hidden: Tensor) -> Tensor:
        """Returns what is added to the hidden states [B, S, D]."""
        return self.output(self.act(self.intermediate(self.norm(hidden))))


class BertjaxLayer(GradientCheckpointingLayer):
    """Attention, of a decoder cross-attention, feed-forward block; each with residual and norms at `norm_placement`."""

    def __init__(self, config: BertjaxConfig, has_attention_norm: bool = True):
        super().__init__()
        self.attention = ATTENTION_CLASSES[config.attention_position](config, has_attention_norm)
        self.feed_forward = BertjaxFeedForward(config)
        for number in range(1, config.num_feedforward_networks):
            self.add_module(f"feed_forward_{number}", BertjaxFeedForward(config))
        self.count = config.num_feedforward_networks
        ends, narrow = (config.hidden_size, config.layer_width), config.bottleneck_size is not None
        self.bottleneck = BertjaxProjection(*ends, config) if narrow else nn.Identity()
        self.expansion = BertjaxProjection(*ends[::-1], config) if narrow else None
        self.reads_narrow = config.use_bottleneck_attention
        self.dropout = nn.Dropout(config.hidden_dropout)
        self.adapter = None if config.adapter_size is None else BertjaxAdapter(config, config.adapter_size)
        crossed = config.cross_attention_hidden_size
        self.cross_attention = None if crossed is None else BertjaxAttention(config, source_size=crossed)
        self.attention_dropout = nn.Dropout(config.rate("attention_output_dropout"))
        self.feed_forward_dropout = nn.Dropout(config.rate("feed_forward_dropout"))
        self.divisor = math.sqrt(config.num_layers / config.residual_depth) if config.residual_depth else 1.0
        self.placement = NORM_PLACEMENTS[NORM_PLACEMENTS.index(config.norm_placement)]

    def forward(
        self,
        hidden: Tensor,
        positions: Tensor | None,
        context: BertjaxContext,
        source: Tensor | None = None,
        encoded: Tensor | None = None,
        weights: Tensor | None = None,
        *past: Tensor,
    ) -> tuple[Tensor | None, ...]:
        """Returns hidden states, the probabilities of both attention blocks if "eager", and what averages need later.

        All of it is tensors, not tuples of them, which checkpoints of gradients would not see.

        Args:
            hidden, positions, context, source: as in `BertjaxAttention.forward`.
            encoded: output of the encoder, for a decoder [B, K, D2].
            weights: weights of averages over depth after either block [2, 2 * layers + 1]; None = no averages.
            *past: hidden states from the embeddings on, for these averages.
        """
        attention, cross, feed_forward = self.attention, self.cross_attention, self.feed_forward
        crossed = None
        if self.placement == "post":
            read, layer_input, hidden = self.read(hidden), hidden, self.bottleneck(hidden)
            source = None if source is None else self.read(source)
            attended, probabilities = attention(read, positions, context, source)
            hidden = attention.norm(hidden + self.attention_dropout(self.added(attention, attended)))
            if cross is not None:
                attended, crossed = cross(hidden, None, context.cross, encoded)
                hidden = cross.norm(hidden + self.attention_dropout(self.added(cross, attended)))
            for number in range(self.count):
                block = getattr(self, f"feed_forward_{number}") if number else feed_forward
                hidden = block.norm(hidden + self.feed_forward_dropout(self.added(block, block(hidden))))
            if self.expansion is not None:
                hidden = self.expansion.norm(layer_input + self.dropout(self.expansion.dense(hidden)))
            return self.adapt(hidden), probabilities, crossed
        attended, probabilities = attention(attention.norm(hidden), positions, context)
        attended = hidden + self.attention_dropout(self.added(attention, attended))
        parallel = self.placement == "parallel"
        if cross is not None:
            added, crossed = cross(cross.norm(hidden if parallel else attended), None, context.cross, encoded)
            attended = attended + self.attention_dropout(self.added(cross, added))
        attended, states = average(attended, past, weights)
        added = self.added(feed_forward, feed_forward(feed_forward.norm(hidden if parallel else attended)))
        hidden, states = average(self.adapt(attended + self.feed_forward_dropout(added)), states, weights)
        return hidden, probabilities, crossed, *states[len(past) :]

    def read(self, hidden: Tensor) -> Tensor:
        """Returns what the attention of a post-norm layer reads."""
        return self.bottleneck(hidden) if self.reads_narrow else hidden

    def added(self, block: BertjaxAttention | BertjaxFeedForward, output: Tensor) -> Tensor:
        """Returns what the output of a block adds to the residual stream, before its dropout [B, S, D]."""
        return block.output_norm(output) / self.divisor

    def adapt(self, hidden: Tensor) -> Tensor:
        """Returns the hidden states with those of the adapter, where there is one [B, S, D]."""
        if self.adapter is None:
            return hidden
        hidden = hidden + self.feed_forward_dropout(self.adapter(hidden))
        return self.feed_forward.norm(hidden) if self.placement == "post" else hidden


def average(hidden: Tensor, past: tuple[Tensor, ...], weights: Tensor | None) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Returns the weighted sum of the hidden states so far, and these (DenseFormer, arXiv:2402.02622).

    Args:
        hidden: hidden states after a block [B, S, D].
        past: those before, from the embeddings on; of an odd number before the first block of a layer.
        weights: weights after either block [2, 2 * layers + 1]; None = the sum is `hidden`.
    """
    if weights is None:
        return hidden, past
    row, past = weights[(len(past) + 1) % 2], (*past, hidden)
    return torch.stack([row[index] * each for index, each in enumerate(past)]).sum(dim=0), past


class BertjaxGroup(nn.Module):
    """Layers that share their parameters with those of other groups of layers (ALBERT)."""

    def __init__(self, config: BertjaxConfig):
        super().__init__()
        self.layers = nn.ModuleList([BertjaxLayer(config) for _ in range(config.inner_layers)])


class BertjaxDistanceEmbeddings(nn.Module):
    """Table of distance embeddings, shared by all layers (DeBERTa)."""

    def __init__(self, config: BertjaxConfig):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2 * config.attention_span, config.hidden_size))
        self.norm = make_norm(config, present=config.norm_relative_embeddings)

    def forward(self) -> Tensor:
        """Returns the table [2 * attention_span, D]."""
        return self.norm(self.weight)
