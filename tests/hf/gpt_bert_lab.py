"""GPT-BERT in PyTorch, from the definitions of its authors' modeling_ltgbert.py; for tests.

Weights are read by the names that files of ltg/gpt-bert-babylm-base have.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

Weights = dict[str, Tensor]
EPSILON = 1e-3


def plain_norm(x: Tensor) -> Tensor:
    """Norms without parameters."""
    return functional.layer_norm(x, x.shape[-1:], eps=EPSILON)


def dense(weights: Weights, name: str, x: Tensor) -> Tensor:
    return functional.linear(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"))


def bucket(distance: int, buckets: int, longest: int) -> int:
    """Returns the row of the table for a distance: logarithmic beyond half of the buckets."""
    middle = buckets // 2
    if abs(distance) <= middle:
        return distance + buckets - 1
    size = min(abs(distance), longest - 1)
    far = math.ceil(math.log(size / middle) / math.log((longest - 1) / middle) * (middle - 1)) + middle
    return (far if distance > 0 else -far) + buckets - 1


def attention(w: Weights, name: str, x: Tensor, distances: Tensor, rows: Tensor, mask: Tensor, heads: int) -> Tensor:
    """Returns attention's part of the stream: three terms of scores, a gate, a norm before the last matrix."""
    normed, size = plain_norm(x), x.shape[-1] // heads

    def split(states: Tensor) -> Tensor:
        return states.unflatten(-1, (heads, size)).transpose(-2, -3)  # [..., N, S, H]

    query, key = map(split, dense(w, f"{name}.in_proj_qk", normed).chunk(2, dim=-1))
    query_position, key_position = map(split, dense(w, f"{name}.in_proj_qk", distances).chunk(2, dim=-1))  # [N, R, H]
    value, gate = dense(w, f"{name}.in_proj_vg", normed).chunk(2, dim=-1)
    scores = query @ key.transpose(-1, -2)
    scores = scores + torch.einsum("bnid,nijd->bnij", query, key_position[:, rows])
    scores = scores + torch.einsum("bnjd,nijd->bnij", key, query_position[:, rows])
    scores = (scores / math.sqrt(3 * size)).masked_fill(~mask[:, None, None], -math.inf)
    read = (scores.softmax(dim=-1) @ split(value)).transpose(1, 2).flatten(2)
    return dense(w, f"{name}.out_proj", plain_norm(read * functional.gelu(gate)))


def feed_forward(w: Weights, name: str, x: Tensor) -> Tensor:
    inner, gate = dense(w, f"{name}.1", plain_norm(x)).chunk(2, dim=-1)
    return dense(w, f"{name}.4", plain_norm(inner * functional.gelu(gate, approximate="tanh")))


def scores_of(w: Weights, head: str, x: Tensor) -> Tensor:
    inner = plain_norm(functional.gelu(dense(w, f"{head}.nonlinearity.1", plain_norm(x))))
    return dense(w, f"{head}.nonlinearity.5", inner)


def run(w: Weights, ids: Tensor, mask: Tensor, layers: int, heads: int, buckets: int, longest: int) -> Tensor:
    """Returns the last state of the stream; after every block it is a weighted sum of all that it was."""
    distances = functional.layer_norm(
        w["embedding.relative_embedding"],
        w["embedding.relative_embedding"].shape[-1:],
        w["embedding.relative_layer_norm.weight"],
        w["embedding.relative_layer_norm.bias"],
        EPSILON,
    )
    span = range(ids.shape[1])
    rows = torch.tensor([[bucket(i - j, buckets, longest) for j in span] for i in span])
    x = plain_norm(w["embedding.word_embedding.weight"][ids])
    stream = [x]
    for layer in range(layers):
        name = f"transformer.attention_layers.{layer}"
        stream.append(x + attention(w, name, x, distances, rows, mask, heads))
        x = torch.tensordot(w[f"transformer.dwa_modules.alphas.{2 * layer}"], torch.stack(stream), dims=1)
        stream.append(x + feed_forward(w, f"transformer.mlp_layers.{layer}.mlp", x))
        x = torch.tensordot(w[f"transformer.dwa_modules.alphas.{2 * layer + 1}"], torch.stack(stream), dims=1)
    return x
