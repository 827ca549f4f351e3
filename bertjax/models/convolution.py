"""The convolution of DeBERTa v2 xlarge: n-grams of the embeddings, added behind the first layer."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from bertjax.config.model import EncoderConfig
from bertjax.models.dropout import dropout
from bertjax.models.linear import Key, activation, dot, initializer, layer_norm


class Convolution(nnx.Module):
    """norm(layer output + act(dropout(conv(embeddings)))), zero at padding (microsoft/DeBERTa: deberta/bert.py).

    In packed rows no window reaches into another example, as if each stood alone between zeros. kernel [width, D, D].
    """

    def __init__(self, config: EncoderConfig, rngs: nnx.Rngs):
        shape = config.conv_kernel_size, config.hidden_size, config.hidden_size
        self.kernel = nnx.Param(initializer(config)(rngs.params(), shape, jnp.float32))
        self.bias = nnx.Param(jnp.zeros((config.hidden_size,), jnp.float32))
        self.norm = layer_norm(config.hidden_size, config, rngs)
        self.config = config

    @jax.named_scope("convolution")
    def __call__(
        self,
        embeddings: Float[Array, "B S D"],
        layer_output: Float[Array, "B S D"],
        segment_ids: Int[Array, "B S"],
        key: Key | None,
    ) -> Float[Array, "B S D"]:
        config = self.config
        windows = _windows(embeddings, segment_ids, config.conv_kernel_size)
        kernel = self.kernel[...].reshape(-1, config.hidden_size)
        out = dot(windows, kernel, config.compute_dtype, config.result_dtype)
        out = out + self.bias[...][None, None].astype(out.dtype)
        real = (segment_ids > 0)[:, :, None]
        out = jnp.where(real, out, jnp.zeros((), out.dtype))
        out = activation(config.conv_act)(dropout(out, config.hidden_dropout, key))
        return jnp.where(real, self.norm(layer_output + out), jnp.zeros((), out.dtype))


def _windows(x: Float[Array, "B S D"], segment_ids: Int[Array, "B S"], width: int) -> Float[Array, "B S W"]:
    """The tokens around each, side by side; zero beyond its own example: W = width * D."""
    reach = width // 2
    tokens = jnp.pad(x, ((0, 0), (reach, reach), (0, 0)))
    owners = jnp.pad(segment_ids, ((0, 0), (reach, reach)))
    parts = []
    for shift in range(width):
        here = tokens[:, shift : shift + x.shape[1]]
        same = owners[:, shift : shift + x.shape[1]] == segment_ids
        parts.append(jnp.where(same[:, :, None], here, jnp.zeros((), x.dtype)))
    return jnp.concatenate(parts, axis=-1)
