"""Attention kernels that never hold the scores, cuDNN's on GPUs and splash on TPUs, and the choice among all kernels.

Neither of the two can drop probabilities or add terms to scores; where they cannot be exact they are refused with the
reason. Checked without the hardware: splash, interpreted on the CPU, gives the values and gradients of the plain form,
and both kernels lower for their platform. `scripts/check_kernels.py` checks correctness and speed on GPUs and TPUs.
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
from bertjax.models.cudnn import segment_attention, segment_form
from bertjax.models.local_attention import should_block
from bertjax.models.mesh import per_device, target_platform, triton_compiles

BUILTIN = ("xla", "tiled")  # forms of our own, which support every option of the attention
LANES = 128  # width of a TPU vector register: splash's sizes are multiples of it
_BLOCKS = (512, 256, 128)
_CUDNN_MAX_HEAD = 128  # cuDNN's limit before Hopper (256 there)
_PALLAS_HEADS = (16, 32, 64, 128, 256)  # powers of two, and no dimension of a product below 16


def choose_kernel(config: EncoderConfig, context: AttentionContext, q: Array, k: Array, dropping: bool) -> str:
    """Returns `xla`, `tiled`, `cudnn`, `pallas`, `splash` or `interpret`.

    `auto` takes a kernel only where it is exact, and prefers blocks to a kernel that would need the window as a matrix.

    Args:
        config: `attention_implementation`, dtypes, sizes.
        context: visibility.
        q: queries [B, S, N, H].
        k: keys [B, K, N, H].
        dropping: True if probabilities are to be dropped.

    Raises:
        UserError: the kernel that the config names cannot be exact.
    """
    name = config.attention_implementation
    if name in BUILTIN:
        return name
    if name == "auto":
        on_gpu = "pallas" if dropping else "cudnn"
        kernel = {"cpu": "tiled", "cuda": on_gpu, "tpu": "splash"}.get(target_platform(), "xla")
        if kernel in BUILTIN:
            return kernel
        if kernel_limitation(kernel, config, context, q, k, dropping):
            return "xla"
        if kernel == "pallas" and not (
            config.compute_dtype == "bfloat16" and config.head_dim <= _CUDNN_MAX_HEAD and triton_compiles()
        ):
            return "xla"
        return "xla" if kernel == on_gpu and should_block(q.shape[1], context.window) else kernel
    reason = kernel_limitation(name, config, context, q, k, dropping)
    if reason:
        raise UserError(f"attention_implementation={name} {reason}; set xla or auto")
    return name


def kernel_limitation(
    kernel: str, config: EncoderConfig, context: AttentionContext, q: Array, k: Array, dropping: bool
) -> str:
    """Returns why this kernel cannot compute this attention, "" if it can. Args: as in `choose_kernel`."""
    if dropping and kernel != "pallas":
        return f"cannot drop probabilities: attention_dropout must be 0 in training, not {config.attention_dropout}"
    if context.mask is not None or (context.key_segment_ids is None and q.shape != k.shape):
        return "needs queries and keys of the same sequences, without an explicit mask"
    if kernel == "pallas" and (config.head_dim not in _PALLAS_HEADS):
        return f"needs a head size of {', '.join(map(str, _PALLAS_HEADS))}, not {config.head_dim}"
    if kernel in ("interpret", "pallas"):
        return ""
    if kernel == "cudnn" and config.attention_soft_cap is not None:
        return "cannot cap scores: attention_soft_cap must be None"
    if config.compute_dtype != "bfloat16":
        return f"multiplies in bfloat16: compute_dtype must not be {config.compute_dtype}"
    if kernel == "cudnn" and (config.head_dim % 8 or config.head_dim > _CUDNN_MAX_HEAD):
        return f"needs a head size that is a multiple of 8 and at most {_CUDNN_MAX_HEAD}, not {config.head_dim}"
    if kernel == "cudnn" and (q.shape[1] % 2 or k.shape[1] % 2):
        return f"needs sequences of an even length, not {q.shape[1] if q.shape[1] % 2 else k.shape[1]}"
    return ""


def cudnn_attention(
    q: Float[Array, "B S N H"], k: Float[Array, "B K N H"], v: Float[Array, "B K N H"], context: AttentionContext
) -> Float[Array, "B S N H"]:
    """Computes attention with cuDNN's flash attention, operands bfloat16.

    What examples do not say, such as a window that is not causal, is a full mask [B, 1, S, K] that all heads share. It
    becomes a bias, so the backward pass writes a gradient of its size, which is discarded. That form is traceable only
    where cuDNN is installed; jax uses XLA's form unless the implementation is named.

    Args: as in `dot_product_attention`.
    """
    q, k, v = (x.astype(jnp.bfloat16) for x in (q, k, v))
    form = segment_form(context, q.shape)
    if form != "mask":
        return segment_attention(q, k, v, context, form)
    return jax.nn.dot_product_attention(q, k, v, mask=context.visible(), implementation="cudnn")


def splash_attention(
    q: Float[Array, "B S N H"],
    k: Float[Array, "B K N H"],
    v: Float[Array, "B K N H"],
    context: AttentionContext,
    config: EncoderConfig,
    interpret: bool,
) -> Float[Array, "B S N H"]:
    """Computes attention with the TPU kernel `splash_attention`, which skips blocks of scores without a visible key.

    Sequences are padded with zeros to a multiple of 128, which changes nothing. Tokens see tokens of the same segment
    id, so padding sees padding here and real tokens elsewhere: outputs at padding differ, and must not be used.

    Args:
        q, k, v, context: as in `dot_product_attention`.
        config: type of the operands, and cap of the scores.
        interpret: runs the kernel as ordinary jax, for tests.
    """
    length, width = q.shape[1], q.shape[3]

    def pad(x: Array) -> Array:
        """Pads axis 1."""
        return jnp.pad(x, ((0, 0), (0, -x.shape[1] % LANES), *[(0, 0)] * (x.ndim - 2)))

    def heads_first(x: Array) -> Array:
        """[B, S, N, H] -> [B, N, S, H], padded."""
        return pad(x.astype(config.compute_dtype)).transpose(0, 2, 1, 3)

    scaled = q.astype(jnp.float32) / math.sqrt(width)  # the kernel does not scale
    key_ids = context.segment_ids if context.key_segment_ids is None else context.key_segment_ids
    run = functools.partial(_run_splash, context.window, context.causal, interpret, config.attention_soft_cap)
    segments = pad(context.segment_ids), pad(key_ids)
    # the compiler cannot split it
    out = per_device(run, (1, 1, 1, None, None), 1, *map(heads_first, (scaled, k, v)), *segments)
    return out.transpose(0, 2, 1, 3)[:, :length]


def _run_splash(
    window: int,
    causal: bool,
    interpret: bool,
    soft_cap: float | None,
    q: Float[Array, "B N S H"],
    k: Float[Array, "B N K H"],
    v: Float[Array, "B N K H"],
    query_ids: Int[Array, "B S"],
    key_ids: Int[Array, "B K"],
) -> Float[Array, "B N S H"]:
    from jax.experimental.pallas.ops.tpu.splash_attention import SegmentIds

    lengths = q.shape[2], k.shape[2]
    kernel = _splash_kernel(q.shape[1], lengths, window, causal, interpret, q.shape[3] % LANES > 0, soft_cap)
    return jax.vmap(lambda q, k, v, *ids: kernel(q, k, v, segment_ids=SegmentIds(*ids)))(q, k, v, query_ids, key_ids)


@functools.lru_cache(maxsize=32)
def _splash_kernel(
    heads: int,
    shape: tuple[int, int],
    window: int,
    causal: bool,
    interpret: bool,
    sequence_minor: bool,
    soft_cap: float | None,
) -> Any:
    """Builds the kernel for one sequence; the mask is analyzed once, on the host.

    `sequence_minor` puts tokens along the lanes of a register, for heads too narrow to fill one: for heads of 64 the
    compiler counts 45 % fewer cycles than for heads padded to 128, and 38 % of the memory.
    """
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernels
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    mask: Any = masks.FullMask(shape)
    if window:
        mask = masks.LocalMask(shape, (window // 2, 0 if causal else window // 2), 0)
    elif causal:
        mask = masks.CausalMask(shape)
    block_q, block_k = (next(size for size in _BLOCKS if length % size == 0) for length in shape)
    if window:
        block_q = block_k = min(block_q, -(-window // LANES) * LANES)
    layout = kernels.QKVLayout.SEQ_MINOR if sequence_minor else kernels.QKVLayout.HEAD_DIM_MINOR
    layouts: Any = {"q_layout": layout, "k_layout": layout, "v_layout": layout}
    blocks = (block_q, block_k, block_k)  # queries, keys in memory, keys at a time
    sizes = kernels.BlockSizes(*blocks, *blocks, block_q, block_k, **layouts)
    with jax.ensure_compile_time_eval():
        kernel = kernels.make_splash_mha(
            masks.MultiHeadMask([mask] * heads),
            block_sizes=sizes,
            head_shards=1,
            q_seq_shards=1,
            attn_logits_soft_cap=soft_cap,
            interpret=interpret,
        )
        return jax.tree.map(np.asarray, kernel)
