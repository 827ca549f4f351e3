"""The keys of rotary positions, and of their rescaling for longer texts than those of training."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from bertjax.config.fields import Settings, phase_setting, setting

ROPE_TYPES = ("default", "linear", "dynamic", "yarn", "longrope", "llama3")  # transformers' words
WITH_FACTOR = ("linear", "dynamic", "yarn", "llama3")
WITH_TURNS = ("yarn", "llama3")
BY_LENGTH = ("dynamic", "longrope")
"""Types whose rotations depend on the number of tokens of an example."""


def _rotary(config: Any) -> bool:
    return bool(config.attention_position == "rotary")


def _of(*types: str) -> dict[str, Any]:
    """Returns the declaration of a field that these types read."""
    return {
        "may_differ_from_init": True,
        "read_if": lambda config: config.attention_position == "rotary" and config.rope_type in types,
    }


@dataclasses.dataclass(frozen=True)
class RotationConfig(Settings, group="model"):
    """The frequencies of rotary positions: their bases, and how they differ from powers of these."""

    global_rope_theta: float = phase_setting(
        10_000.0,
        above=0.0,
        may_differ_from_init=True,
        read_if=_rotary,
        help="Rotary: base of layers with global attention.",
    )
    local_rope_theta: float = phase_setting(
        10_000.0,
        above=0.0,
        may_differ_from_init=True,
        read_if=lambda config: config.attention_position == "rotary" and config.local_attention > 0,
        help="Rotary: base of layers with local attention.",
    )
    rope_type: str = phase_setting(
        "default",
        choices=ROPE_TYPES,
        may_differ_from_init=True,
        read_if=_rotary,
        help="Frequencies: default, linear (divided by rope_factor), dynamic (a larger base for examples beyond "
        "rope_original_length), yarn (arXiv:2309.00071), longrope (arXiv:2402.13753), llama3 (Llama 3.1).",
    )
    rope_layers: str = phase_setting(
        "all",
        choices=("all", "global"),
        help="Layers with these frequencies; the others have default ones.",
        **_of(*ROPE_TYPES[1:]),
    )
    rope_rounding: str = setting(
        "float32",
        choices=("float32", "float16", "bfloat16"),
        read_if=lambda config: _rotary(config) and config.rope_type not in BY_LENGTH,
        help="Rotary: type to which the frequencies are rounded, as files of ESM may hold them.",
    )
    rotary_value: bool = setting(
        False, read_if=_rotary, help="Rotary: values are rotated as queries and keys are (RoFormer's rotary_value)."
    )
    rope_factor: float = phase_setting(
        1.0, above=0.0, help="Rotary: how much longer examples are than in earlier training.", **_of(*WITH_FACTOR)
    )
    rope_original_length: int = phase_setting(
        2048,
        at_least=1,
        help="Rotary: tokens per example of earlier training.",
        **_of(*WITH_TURNS, *BY_LENGTH),
    )
    rope_slow_turns: float = phase_setting(
        1.0,
        above=0.0,
        help="Rotary: what turns less often in rope_original_length tokens is divided by rope_factor.",
        **_of(*WITH_TURNS),
    )
    rope_fast_turns: float = phase_setting(
        32.0, above=0.0, help="Rotary: what turns more often is left as it is.", **_of(*WITH_TURNS)
    )
    rope_truncate: bool = phase_setting(
        True, help="Rotary: the bounds between which yarn interpolates are whole numbers.", **_of("yarn")
    )
    rope_attention_factor: float = phase_setting(
        1.0, above=0.0, help="Rotary: queries and keys are multiplied by this.", **_of("yarn", "longrope")
    )
    rope_short_factors: tuple[float, ...] = phase_setting(
        (), above=0.0, help="Rotary: divisor of every frequency up to rope_original_length tokens.", **_of("longrope")
    )
    rope_long_factors: tuple[float, ...] = phase_setting(
        (), above=0.0, help="Rotary: divisor of every frequency in longer examples.", **_of("longrope")
    )


def invalid_rotations(config: Any) -> Iterator[str]:
    """Yields why an `EncoderConfig` cannot have its rotations."""
    kind, half = config.rope_type, config.head_dim // 2
    if kind == "default":
        return
    if config.attention_position != "rotary":
        yield f"rope_type={kind} belongs to attention_position=rotary"
    if config.causal and kind in BY_LENGTH:
        yield f"rope_type={kind} rotates by the length of the example, which a causal model does not know"
    if config.rope_rounding != "float32" and kind in BY_LENGTH:
        yield f"rope_rounding={config.rope_rounding} rounds frequencies that are the same for every length: not {kind}"
    if kind in WITH_TURNS and config.rope_slow_turns >= config.rope_fast_turns:
        yield (
            f"rope_slow_turns {config.rope_slow_turns} must be less than rope_fast_turns {config.rope_fast_turns}, "
            "between which frequencies are interpolated"
        )
    if kind == "dynamic" and half < 2:
        yield "rope_type=dynamic needs heads of at least 4"
    if kind == "yarn" and 1.0 in (config.global_rope_theta, config.local_rope_theta):
        yield "rope_type=yarn needs another base than 1"
    lengths = {len(config.rope_short_factors), len(config.rope_long_factors)}
    if kind == "longrope" and lengths != {half}:
        yield f"rope_short_factors and rope_long_factors must have {half} numbers each, half of the head size"
