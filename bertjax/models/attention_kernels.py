"""Attention kernels that never hold the scores: cuDNN's on GPU, splash on TPU; and the choice among them.

Neither kernel can drop probabilities or add terms to scores; both are refused, by name, where they cannot be
exact. What is checked without the hardware: that splash, interpreted on the CPU, gives the values and gradients of the
plain form, and that both lower for their platform. Neither has been run on a GPU or TPU: `scripts/check_kernels.py`
says there whether it is right, and whether it is faster.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.models.attention_context import AttentionContext
from bertjax.models.local_attention import should_block
from bertjax.models.mesh import per_device, target_platform

BUILTIN = ("xla", "tiled")  # whatever is asked of attention, no kernel of others
LANES = 128  # width of a TPU vector register: what splash's sizes are multiples of
_BLOCKS = (512, 256, 128)
_CUDNN_HEAD = 128  # cuDNN's limit before Hopper (there 256)


def choose_kernel(config: EncoderConfig, context: AttentionContext, q: Array, k: Array, dropping: bool) -> str:
    """`xla`, `tiled`, `cudnn`, `splash` or `interpret`; `dropping` = probabilities are about to be dropped.

    A kernel that was asked for by name and cannot be exact raises `UserError`; `auto` takes one only where it can, and
    prefers blocks to a kernel that would need the window as a matrix.
    """
    wanted = config.attention_implementation
    if wanted in BUILTIN:
        return wanted
    if wanted == "auto":
        kernel = {"cpu": "tiled", "cuda": "cudnn", "tpu": "splash"}.get(target_platform(), "xla")
        if kernel in BUILTIN:
            return kernel
        if kernel_limitation(kernel, config, context, q, k, dropping):
            return "xla"
        return "xla" if kernel == "cudnn" and should_block(q.shape[1], context.window) else kernel
    reason = kernel_limitation(wanted, config, context, q, k, dropping)
    if reason:
        raise UserError(f"attention_implementation={wanted} {reason}; take xla or auto")
    return wanted


def kernel_limitation(
    kernel: str, config: EncoderConfig, context: AttentionContext, q: Array, k: Array, dropping: bool
) -> str:
    """Why this kernel cannot compute this attention; empty if it can."""
    if dropping:
        return f"cannot drop probabilities: attention_dropout must be 0 in training, not {config.attention_dropout}"
    if context.mask is not None or q.shape != k.shape:
        return "needs queries and keys of the same rows, with no mask of their own"
    if kernel == "interpret":
        return ""
    if config.compute_dtype != "bfloat16":
        return f"multiplies in bfloat16: compute_dtype must not be {config.compute_dtype}"
    if kernel == "cudnn" and (config.head_dim % 8 or config.head_dim > _CUDNN_HEAD):
        return f"needs a head size that is a multiple of 8 and at most {_CUDNN_HEAD}, not {config.head_dim}"
    if kernel == "cudnn" and q.shape[1] % 2:
        return f"needs rows of an even length, not {q.shape[1]}"
    return ""


def cudnn_attention(
    q: Float[Array, "B S N H"], k: Float[Array, "B S N H"], v: Float[Array, "B S N H"], context: AttentionContext
) -> Float[Array, "B S N H"]:
    """cuDNN's flash attention, operands bfloat16, visibility as a mask [B, 1, S, S] that all heads share.

    The mask in full: cuDNN has windows for causal attention only, and jax's public form of it knows no segments. It is
    a bias there, so that the backward pass writes a gradient of its size, which is thrown away. Has to be named: jax
    takes XLA's form otherwise. Traceable only where cuDNN is installed.
    """
    q, k, v = (x.astype(jnp.bfloat16) for x in (q, k, v))
    return jax.nn.dot_product_attention(q, k, v, mask=context.visible(), implementation="cudnn")


def splash_attention(
    q: Float[Array, "B S N H"],
    k: Float[Array, "B S N H"],
    v: Float[Array, "B S N H"],
    context: AttentionContext,
    dtype: Any,
    interpret: bool,
) -> Float[Array, "B S N H"]:
    """The TPU kernel `splash_attention`: blocks of scores that the mask rules out are not computed.

    Rows are padded with zeros to a multiple of 128, which changes nothing. Tokens see tokens of the same
    segment id, so that padding looks at padding here and at real tokens elsewhere: its outputs differ, and nobody may
    read them. `interpret` runs the kernel as ordinary jax, for tests.
    """
    length, width = q.shape[1], q.shape[3]
    padded = -(-length // LANES) * LANES

    def lay(x: Array) -> Array:
        """[B, N, S, H], padded."""
        return jnp.pad(x.astype(dtype), ((0, 0), (0, padded - length), (0, 0), (0, 0))).transpose(0, 2, 1, 3)

    scaled = q.astype(jnp.float32) / math.sqrt(width)  # the kernel does not scale
    segments = jnp.pad(context.segment_ids, ((0, 0), (0, padded - length)))
    run = functools.partial(_run_splash, padded, context.window, context.causal, interpret)
    out = per_device(run, (1, 1, 1, None), 1, lay(scaled), lay(k), lay(v), segments)  # no compiler splits a kernel
    return out.transpose(0, 2, 1, 3)[:, :length]


def _run_splash(
    length: int,
    window: int,
    causal: bool,
    interpret: bool,
    q: Float[Array, "B N S H"],
    k: Float[Array, "B N S H"],
    v: Float[Array, "B N S H"],
    segment_ids: Int[Array, "B S"],
) -> Float[Array, "B N S H"]:
    from jax.experimental.pallas.ops.tpu.splash_attention import SegmentIds

    kernel = _splash_kernel(q.shape[1], length, window, causal, interpret, q.shape[3] % LANES > 0)
    return jax.vmap(lambda q, k, v, ids: kernel(q, k, v, segment_ids=SegmentIds(ids, ids)))(q, k, v, segment_ids)


@functools.lru_cache(maxsize=32)
def _splash_kernel(heads: int, length: int, window: int, causal: bool, interpret: bool, narrow: bool) -> Any:
    """The kernel for one row; what it knows of the mask is made once, on the host.

    `narrow` heads, which fill no register, are read with the tokens along its lanes: for heads of 64 the compiler
    counts 45 % fewer cycles than for heads padded to 128, and 38 % of the memory.
    """
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernels
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    shape = (length, length)
    mask: Any = masks.FullMask(shape)
    if causal:
        mask = masks.CausalMask(shape)
    elif window:
        mask = masks.LocalMask(shape, (window // 2, window // 2), 0)
    block = next(size for size in _BLOCKS if length % size == 0)
    if window:
        block = min(block, -(-window // LANES) * LANES)
    layout = kernels.QKVLayout.SEQ_MINOR if narrow else kernels.QKVLayout.HEAD_DIM_MINOR
    layouts: Any = {"q_layout": layout, "k_layout": layout, "v_layout": layout}
    sizes = kernels.BlockSizes(block, block, block, block, block, block, block, block, **layouts)
    with jax.ensure_compile_time_eval():
        kernel = kernels.make_splash_mha(
            masks.MultiHeadMask([mask] * heads), block_sizes=sizes, head_shards=1, q_seq_shards=1, interpret=interpret
        )
        return jax.tree.map(np.asarray, kernel)
