"""What training can be told, checked once. Needs no jax, so that a wrong config is refused at once."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

from bertjax.types import UserError

OPTIMIZERS = ("adamw",)
SCHEDULES = ("bert", "linear", "cosine", "constant")
AXES = ("data", "fsdp", "tensor")

Rules = Sequence[tuple[str, Any]]
"""(regex over a parameter's whole path, value); the first that matches wins."""


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """AdamW; `bias_correction=False` is BERT's (google-research/bert#153). `clip_norm` 0 = no clipping.

    `decay_exclude` lists regexes of parameters without weight decay; `rates` lists "REGEX=FACTOR" on the learning rate.
    """

    name: str = "adamw"
    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-6
    bias_correction: bool = False
    weight_decay: float = 0.01
    clip_norm: float = 1.0
    decay_exclude: tuple[str, ...] = (r".*/(bias|scale)",)
    rates: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.name not in OPTIMIZERS:
            raise UserError(f"optimizer.name must be one of {', '.join(OPTIMIZERS)}, not {self.name!r}")
        for name in ("b1", "b2"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise UserError(f"optimizer.{name} must lie in [0, 1), not {getattr(self, name)}")
        for name in ("eps", "weight_decay", "clip_norm"):
            if getattr(self, name) < 0.0:
                raise UserError(f"optimizer.{name} must not be negative, not {getattr(self, name)}")

    @property
    def decay_rules(self) -> Rules:
        return [*((pattern, 0.0) for pattern in self.decay_exclude), (".*", 1.0)]

    @property
    def rate_rules(self) -> Rules:
        return [*parse_rules(self.rates, "optimizer.rates"), (".*", 1.0)]


def parse_rules(texts: Iterable[str], key: str) -> list[tuple[str, float]]:
    """`("REGEX=FACTOR", ...)` as rules; a broken one names the config key it came from."""
    rules = []
    for text in texts:
        pattern, _, value = text.rpartition("=")
        try:
            re.compile(pattern)
            rules.append((pattern, float(value)))
        except (re.error, ValueError) as error:
            raise UserError(f"{key}: {text!r} is not REGEX=FACTOR ({error})") from None
        if not pattern:
            raise UserError(f"{key}: {text!r} is not REGEX=FACTOR (no regex)")
    return rules


@dataclasses.dataclass(frozen=True)
class ScheduleConfig:
    """`warmup_steps` of linear warm-up, then the decay called `name` until `num_steps`."""

    name: str
    learning_rate: float
    warmup_steps: int
    num_steps: int

    def __post_init__(self) -> None:
        if self.name not in SCHEDULES:
            raise UserError(f"schedule.name must be one of {', '.join(SCHEDULES)}, not {self.name!r}")
        if not 0 <= self.warmup_steps <= self.num_steps:
            raise UserError(
                f"schedule.warmup_steps must lie in 0..train.num_steps = {self.num_steps}, not {self.warmup_steps}"
            )
        if not self.learning_rate > 0:
            raise UserError(f"optimizer.learning_rate must be positive, not {self.learning_rate}")


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    """Devices along the axes `data`, `fsdp`, `tensor`; at most one of them -1, the rest of the devices."""

    data: int = -1
    fsdp: int = 1
    tensor: int = 1

    def __post_init__(self) -> None:
        sizes = self.sizes
        if sizes.count(-1) > 1 or any(size < 1 and size != -1 for size in sizes):
            raise UserError(
                f"mesh.data, mesh.fsdp and mesh.tensor must be positive, at most one of them -1, not {sizes}"
            )

    @property
    def sizes(self) -> tuple[int, int, int]:
        return self.data, self.fsdp, self.tensor

    @property
    def row_ways(self) -> int | None:
        """Among how many devices the rows of a batch are dealt; None while that depends on the devices there are."""
        return None if -1 in (self.data, self.fsdp) else self.data * self.fsdp

    def shape(self, num_devices: int) -> tuple[int, int, int]:
        """The sizes with -1 filled in; `UserError` when the devices do not suffice or do not divide."""
        fixed = math.prod(size for size in self.sizes if size != -1)
        named = ", ".join(f"mesh.{axis}={size}" for axis, size in zip(AXES, self.sizes, strict=True))
        if fixed > num_devices:
            raise UserError(f"{named} needs {fixed} devices, but there are {num_devices}")
        if -1 in self.sizes and num_devices % fixed:
            raise UserError(f"{named}: {num_devices} devices cannot be split by {fixed}")
        filled = [num_devices // fixed if size == -1 else size for size in self.sizes]
        return filled[0], filled[1], filled[2]

    def check_model(self, num_heads: int, intermediate_size: int) -> None:
        """Raises `UserError` when the tensor axis would cut through a head."""
        for name, size in (("model.num_heads", num_heads), ("model.intermediate_size", intermediate_size)):
            if self.tensor > 0 and size % self.tensor:
                fits = [ways for ways in range(1, min(size, 64) + 1) if size % ways == 0]
                raise UserError(f"mesh.tensor={self.tensor} does not divide {name}={size}; {_listed(fits)} do")


def check_rows(key: str, rows: int, microbatches: int, ways: int) -> None:
    """Raises `UserError` when the rows of a batch cannot be dealt evenly to microbatches and devices."""
    unit = microbatches * ways
    if rows < 1 or rows % unit:
        below = rows // unit * unit
        nearest = _listed(size for size in (below, below + unit) if size > 0)
        raise UserError(
            f"{key}={rows} is not divisible by {unit}: train.microbatches={microbatches} times the {ways} devices "
            f"that share the rows (mesh.data * mesh.fsdp); nearest that are: {nearest}"
        )


@dataclasses.dataclass(frozen=True)
class LoopConfig:
    """When the loop does what, in steps (and minutes, for checkpoints)."""

    num_steps: int
    log_interval_steps: int
    eval_interval_steps: int
    checkpoint_interval_steps: int
    checkpoint_interval_minutes: float | None
    profile_start_step: int | None = None
    profile_num_steps: int = 0

    def __post_init__(self) -> None:
        for key, value in (("train.num_steps", self.num_steps), ("train.log_interval_steps", self.log_interval_steps)):
            if value < 1:
                raise UserError(f"{key} must be at least 1, not {value}")
        for key, value in (
            ("eval.interval_steps", self.eval_interval_steps),
            ("checkpoint.interval_steps", self.checkpoint_interval_steps),
            ("profile.num_steps", self.profile_num_steps),
        ):
            if value < 0:
                raise UserError(f"{key} must not be negative, not {value}")


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))
