"""Rotary positions of a PyTorch model that was pretrained with bertjax: default and rescaled frequencies.

The formulas are those of `transformers` (modeling_rope_utils.py); lengths are those of each text without its padding.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .configuration_bertjax import BertjaxConfig


def powers(size: int, base: float, device: torch.device) -> Tensor:
    """Returns base^(2i / size), float32 [size / 2].

    Args:
        size: width of what is rotated or added.
        base: base of the powers.
        device: device of the result.
    """
    return base ** (torch.arange(0, size, 2, device=device).float() / size)


def frequencies(size: int, base: float, device: torch.device) -> Tensor:
    """Returns 1 / base^(2i / size), float32 [size / 2]. Args: as of `powers`."""
    return 1.0 / powers(size, base, device)


def rotation(config: BertjaxConfig, position_ids: Tensor, mask: Tensor | None, local: bool) -> tuple[Tensor, Tensor]:
    """Returns the cosines and sines of every token [B, 1, S, H].

    Args:
        config: bases, rescaling and rounding.
        position_ids: from 0 [B, S].
        mask: True at real tokens [B, S]; None = all tokens are real.
        local: True for layers with a window.
    """
    base = config.local_rope_theta if local else config.global_rope_theta
    kind = "default" if local and config.rope_layers == "global" else config.rope_type
    if kind in ("dynamic", "longrope"):
        real = torch.ones_like(position_ids) if mask is None else mask.long()
        table = frequencies_by_length(config, base, real.sum(dim=1))[:, None, None]
    else:
        device = position_ids.device
        plain = kind == "default"
        table = frequencies(config.head_dim, base, device) if plain else scaled_frequencies(config, base, device)
        table = table.to(getattr(torch, config.rope_rounding)).float()
    angles = position_ids[:, None, :, None].float() * table
    angles = torch.cat([angles, angles], dim=-1)
    factor = config.rope_attention_factor if kind in ("yarn", "longrope") else 1.0
    return angles.cos() * factor, angles.sin() * factor


def scaled_frequencies(config: BertjaxConfig, base: float, device: torch.device) -> Tensor:
    """Returns the frequencies of linear, yarn and llama3 [H / 2].

    Args:
        config: type and factors.
        base: base of the powers.
        device: device of the result.
    """
    size, plain = config.head_dim, frequencies(config.head_dim, base, device)
    if config.rope_type == "linear":
        return plain / config.rope_factor
    if config.rope_type == "llama3":
        turns = config.rope_original_length / (2 * math.pi / plain)
        share = (turns - config.rope_slow_turns) / (config.rope_fast_turns - config.rope_slow_turns)
        share = share.clamp(0, 1)
        return (1 - share) * plain / config.rope_factor + share * plain
    low, high = (
        size * math.log(config.rope_original_length / (turns * 2 * math.pi)) / (2 * math.log(base))
        for turns in (config.rope_fast_turns, config.rope_slow_turns)
    )
    if config.rope_truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    width = 0.001 if low == high else high - low
    slow = ((torch.arange(size // 2, device=device).float() - low) / width).clamp(0, 1)
    return plain / config.rope_factor * slow + plain * (1 - slow)


def frequencies_by_length(config: BertjaxConfig, base: float, lengths: Tensor) -> Tensor:
    """Returns the frequencies of dynamic and longrope [B, H / 2].

    Args:
        config: type and factors.
        base: base of the powers.
        lengths: tokens of every text [B].
    """
    size, original, device = config.head_dim, config.rope_original_length, lengths.device
    if config.rope_type == "longrope":
        factors = (config.rope_short_factors, config.rope_long_factors)
        short, long = (1.0 / (torch.tensor(each, device=device) * powers(size, base, device)) for each in factors)
        return torch.where(lengths[:, None] > original, long, short)
    growth = config.rope_factor * lengths.clamp(min=original) / original - (config.rope_factor - 1)
    exponents = -torch.arange(0, size, 2, device=device).float() / (size - 2)
    return frequencies(size, base, device) * growth[:, None] ** exponents
