"""Heads of the PyTorch model of an encoder that was pretrained with bertjax.

B sequences, S tokens, M masked tokens, D hidden size, E width of the word embeddings, V tokens.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .configuration_bertjax import BertjaxConfig
from .layers_bertjax import ACTIVATIONS, make_norm, soft_cap


class BertjaxPooler(nn.Module):
    """act(dense(summary of the sequence))."""

    def __init__(self, config: BertjaxConfig):
        super().__init__()
        has_layer = config.pooler_act != "none"
        self.dense = nn.Linear(config.hidden_size, config.hidden_size) if has_layer else nn.Identity()
        self.act = ACTIVATIONS[config.pooler_act] if has_layer else nn.Identity()

    def forward(self, summary: Tensor) -> Tensor:
        """Returns the pooled vector of a summary [..., D]."""
        return self.act(self.dense(summary))


class BertjaxMlmHead(nn.Module):
    """(dense -> activation -> norm ->) scores of the vocabulary, tied to the word embeddings where configured.

    A second dense layer and activation may replace the norm.
    """

    def __init__(self, config: BertjaxConfig):
        super().__init__()
        size = config.output_embedding_size or config.embedding_size or config.hidden_size
        count = {"transform": 1, "two_layers": 2, "bias": 0, "tied": 0}[config.mlm_head]
        inner = (config.prediction_head_size or config.hidden_size) if count == 2 else size
        self.dense = nn.Linear(config.hidden_size, inner, bias=config.head_dense_bias) if count else None
        self.second = nn.Linear(inner, size, bias=config.head_dense_bias) if count == 2 else None
        self.norm = make_norm(config, size, count == 1, affine=False)
        has_bias = config.mlm_head != "tied" and config.mlm_bias
        width = (config.embedding_size or config.hidden_size) if config.tie_word_embeddings else size
        self.decoder = nn.Linear(width, config.vocab_size, bias=has_bias)
        self.further_table = nn.Parameter(torch.zeros(config.vocab_size, size - width)) if size > width else None
        self.act = ACTIVATIONS[config.mlm_act or config.hidden_act]
        self.scale = size**-0.5 if config.scale_logits else 1.0
        self.cap = config.logit_soft_cap

    def forward(self, hidden: Tensor) -> Tensor:
        """Returns scores [..., V] of hidden states [..., D]."""
        for layer in (self.dense, self.second):
            hidden = hidden if layer is None else self.act(layer(hidden))
        hidden = self.norm(hidden)
        hidden = hidden * self.scale
        if self.further_table is None:
            return soft_cap(self.decoder(hidden), self.cap)
        first, further = hidden.split([self.decoder.in_features, self.further_table.shape[1]], dim=-1)
        return soft_cap(self.decoder(first) + further @ self.further_table.T, self.cap)


class BertjaxReplacedTokenHead(nn.Module):
    """One score per token, high where it was replaced (ELECTRA; with "summary" DeBERTa v3)."""

    def __init__(self, config: BertjaxConfig):
        super().__init__()
        self.add_summary = {"dense": False, "summary": True}[config.rtd_head]
        self.norm = make_norm(config, present=self.add_summary)
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.output = nn.Linear(config.hidden_size, 1)
        self.act = ACTIVATIONS[config.hidden_act]

    def forward(self, hidden: Tensor) -> Tensor:
        """Returns a score per token [B, S] from hidden states [B, S, D]."""
        hidden = self.norm(hidden + hidden[:, :1]) if self.add_summary else hidden
        return self.output(self.act(self.dense(hidden)))[..., 0]


class BertjaxSpanHead(nn.Module):
    """Scores of the tokens of a span, from its outer neighbors and the position in it (SpanBERT)."""

    def __init__(self, config: BertjaxConfig):
        super().__init__()
        size, out = config.hidden_size, config.embedding_size or config.hidden_size
        self.position_embeddings = nn.Embedding(config.span_positions, config.span_position_size)
        self.first, self.first_norm = nn.Linear(2 * size + config.span_position_size, size), make_norm(config)
        self.second, self.second_norm = nn.Linear(size, out), make_norm(config, out)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        self.cap = config.logit_soft_cap
        self.act = ACTIVATIONS[config.hidden_act]

    def forward(self, left: Tensor, right: Tensor, positions: Tensor, table: Tensor) -> Tensor:
        """Returns scores [B, M, V] of masked tokens.

        Args:
            left, right: hidden states of the tokens before and after the span [B, M, D].
            positions: position in the span, from 0 [B, M].
            table: word embeddings [V, E].
        """
        hidden = torch.cat([left, right, self.position_embeddings(positions)], dim=-1)
        hidden = self.first_norm(self.act(self.first(hidden)))
        return soft_cap(F.linear(self.second_norm(self.act(self.second(hidden))), table, self.bias), self.cap)


class BertjaxScoreHead(nn.Module):
    """Scores of labels: (dense -> activation (-> norm)) -> dropout -> linear."""

    def __init__(self, config: BertjaxConfig, num_scores: int | None, has_dense: bool, has_bias: bool = True):
        super().__init__()
        size = config.hidden_size
        self.dense = nn.Linear(size, size, bias=config.head_dense_bias) if has_dense else None
        self.norm = make_norm(config, present=has_dense and config.classifier_norm)
        self.act = ACTIVATIONS[config.classifier_act]
        self.dropout = nn.Dropout(config.rate("classifier_dropout"))
        self.output = nn.Linear(size, num_scores or 2, bias=has_bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """Returns scores [..., labels] of vectors [..., D]."""
        if self.dense is not None:
            hidden = self.norm(self.act(self.dense(hidden)))
        return self.output(self.dropout(hidden))


class BertjaxAnswerLayer(nn.Sequential):
    """norm(gelu(dense)), whatever the activation and the epsilon of the model."""

    def __init__(self, config: BertjaxConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.act = nn.GELU()
        self.norm = make_norm(config, eps=1e-5)


class BertjaxQuestionHead(nn.Module):
    """Scores start and end of the answer by products with the token that asks (Splinter)."""

    def __init__(self, config: BertjaxConfig):
        super().__init__()
        self.query_start, self.query_end = BertjaxAnswerLayer(config), BertjaxAnswerLayer(config)
        self.start, self.end = BertjaxAnswerLayer(config), BertjaxAnswerLayer(config)
        size = config.hidden_size
        self.start_product, self.end_product = (nn.Linear(size, size, bias=False) for _ in range(2))
        self.token = -1 if config.question_token_id is None else config.question_token_id

    def forward(self, hidden: Tensor, input_ids: Tensor | None, mask: Tensor | None) -> Tensor:
        """Returns scores [B, S, 2] of hidden states [B, S, D].

        Args:
            hidden: [B, S, D].
            input_ids: [B, S]; None = the first token asks.
            mask: 1 = real token [B, S]; None = all tokens are real.
        """
        order = torch.ones(hidden.shape[:2], dtype=torch.long, device=hidden.device) if mask is None else mask.long()
        order = order if input_ids is None else order * (1 + (input_ids == self.token).long())
        asking = hidden[torch.arange(hidden.shape[0], device=hidden.device), order.argmax(dim=1)][:, None]
        starts = (self.start_product(self.query_start(asking)) * self.start(hidden)).sum(dim=-1)
        ends = (self.end_product(self.query_end(asking)) * self.end(hidden)).sum(dim=-1)
        return torch.stack([starts, ends], dim=-1)
