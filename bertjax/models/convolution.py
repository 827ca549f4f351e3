"""The convolution of DeBERTa v2 xlarge: n-grams of the embeddings, added after the first layer."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from bertjax.config.model import EncoderConfig
from bertjax.models.dropout import dropout
from bertjax.models.linear import Key, activation, dot, initializer, make_norm


class Convolution(nnx.Module):
    """norm(layer output + act(dropout(conv(embeddings)))), zero at padding (microsoft/DeBERTa: deberta/bert.py).

    In packed sequences, n-grams do not reach into another example: each sees zeros around it. kernel [width, D, D].
    """

    def __init__(self, config: EncoderConfig, rngs: nnx.Rngs):
        shape = config.conv_kernel_size, config.hidden_size, config.hidden_size
        self.kernel = nnx.Param(initializer(config)(rngs.params(), shape, jnp.float32))
        self.bias = nnx.Param(jnp.zeros((config.hidden_size,), jnp.float32))
        self.norm = make_norm(config.hidden_size, config, rngs)
        self.config = config

    @jax.named_scope("convolution")
    def __call__(
        self,
        embeddings: Float[Array, "B S D"],
        layer_output: Float[Array, "B S D"],
        segment_ids: Int[Array, "B S"],
        key: Key | None,
    ) -> Float[Array, "B S D"]:
        """Returns the output of the first layer with the convolution added [B, S, D].

        Args:
            embeddings, layer_output: input and output of the first layer [B, S, D].
            segment_ids: as in `types.Batch`.
            key: key of the dropout; None = no dropout.
        """
        config = self.config
        ngrams = _ngrams(embeddings, segment_ids, config.conv_kernel_size)
        kernel = self.kernel[...].reshape(-1, config.hidden_size)
        out = dot(ngrams, kernel, config.compute_dtype, config.result_dtype)
        out = out + self.bias[...][None, None].astype(out.dtype)
        real = (segment_ids > 0)[:, :, None]
        out = jnp.where(real, out, jnp.zeros((), out.dtype))
        out = activation(config.conv_act)(dropout(out, config.hidden_dropout, key))
        return jnp.where(real, self.norm(layer_output + out), jnp.zeros((), out.dtype))


def _ngrams(x: Float[Array, "B S D"], segment_ids: Int[Array, "B S"], width: int) -> Float[Array, "B S W"]:
    """Returns each token with its neighbors [B, S, width * D]; zero outside its example."""
    reach = width // 2
    tokens = jnp.pad(x, ((0, 0), (reach, reach), (0, 0)))
    ids = jnp.pad(segment_ids, ((0, 0), (reach, reach)))
    neighbors = []
    for shift in range(width):
        same = ids[:, shift : shift + x.shape[1]] == segment_ids
        neighbor = tokens[:, shift : shift + x.shape[1]]
        neighbors.append(jnp.where(same[:, :, None], neighbor, jnp.zeros((), x.dtype)))
    return jnp.concatenate(neighbors, axis=-1)
