"""What training can be told, checked once. Needs no jax, so that a wrong config is refused at once."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bertjax.config.fields import Settings, setting
from bertjax.errors import UserError, comma_list, require_one_of

OPTIMIZERS = ("adamw", "lamb", "stable_adamw", "muon")
MOMENT_DTYPES = ("float32", "bfloat16")
DECAYING = ("bert", "electra", "linear", "polynomial", "cosine", "wsd", "slanted_triangular")
REPEATING = ("step", "exponential", "cyclical")
RISING = ("rising_linear", "rising_exponential")
SCHEDULES = (*DECAYING, *REPEATING, *RISING, "inverse_sqrt", "constant")
AXES = ("data", "fsdp", "tensor")

Rules = Sequence[tuple[str, Any]]
"""(regex over a parameter's whole path, value); the first that matches wins."""


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """What `optimizer` of a config says; `bias_correction=False` is BERT's (google-research/bert#153).

    `learning_rate` is the peak, which only the decay of `stable_adamw` asks for: the rate itself is the schedule's.
    `decay_exclude`, `trust_exclude` and `muon_include` list regexes of parameters; `rates` lists "REGEX=FACTOR" on the
    learning rate, before `layerwise_lr_decay`; `unfreeze` lists "REGEX=UPDATE", before `unfreeze_every`. None: default
    of those that only one optimizer reads.
    """

    name: str = "adamw"
    learning_rate: float = 1.0
    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-6
    bias_correction: bool = False
    weight_decay: float = 0.01
    clip_norm: float = 1.0
    decay_exclude: tuple[str, ...] = (r".*/(bias|scale)",)
    lr_mults: tuple[str, ...] = ()
    layerwise_lr_decay: float | None = None
    layerwise_lr_decay_top: int = 1
    bottom_lr: float | None = None
    unfreeze: tuple[str, ...] = ()
    unfreeze_every: int | None = None
    trust_exclude: tuple[str, ...] | None = None
    muon_include: tuple[str, ...] | None = None
    muon_momentum: float | None = None
    muon_rms: float | None = None
    ema_decay: float | None = None
    moments_dtype: str = "float32"

    def __post_init__(self) -> None:
        require_one_of("optimizer.name", self.name, OPTIMIZERS)
        require_one_of("optimizer.moments_dtype", self.moments_dtype, MOMENT_DTYPES)
        _check_readers("optimizer", self, OPTIMIZER_READERS)
        self._check_numbers()
        for key in ("decay_exclude", "trust_exclude", "muon_include"):
            _check_regexes(f"optimizer.{key}", getattr(self, key) or ())

    def _check_numbers(self) -> None:
        for name in ("b1", "b2"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise UserError(f"optimizer.{name} must lie in [0, 1), not {getattr(self, name)}")
        for name in ("eps", "weight_decay", "clip_norm", "layerwise_lr_decay_top", "muon_rms"):
            if (getattr(self, name) or 0.0) < 0.0:
                raise UserError(f"optimizer.{name} must not be negative, not {getattr(self, name)}")
        if self.unfreeze_every is not None and self.unfreeze_every < 1:
            raise UserError(f"optimizer.unfreeze_every must be at least 1, not {self.unfreeze_every}")
        if self.bottom_lr is not None and self.layerwise_lr_decay is not None:
            raise UserError("optimizer.bottom_lr and optimizer.layerwise_lr_decay exclude each other")
        if self.bottom_lr is not None and not 0.0 < self.bottom_lr <= self.learning_rate:
            raise UserError(
                f"optimizer.bottom_lr must lie between 0 and optimizer.learning_rate={self.learning_rate}, not "
                f"{self.bottom_lr}"
            )
        for name in ("ema_decay", "layerwise_lr_decay", "muon_momentum"):
            value = getattr(self, name)
            if value is not None and not 0.0 < value < 1.0:
                raise UserError(f"optimizer.{name} must lie between 0 and 1, not {value}")

    @property
    def decay_rules(self) -> Rules:
        return [*((pattern, 0.0) for pattern in self.decay_exclude), (".*", 1.0)]

    @property
    def trust_rules(self) -> Rules:
        """1 where LAMB rescales; what does not decay is left out (google-research/albert:lamb_optimizer.py)."""
        excluded = self.decay_exclude if self.trust_exclude is None else self.trust_exclude
        return [*((pattern, 0.0) for pattern in excluded), (".*", 1.0)]

    @property
    def muon_rules(self) -> Rules:
        """1 where Muon works: the matrices of the layers, unless the config names others."""
        included = (r"(.*/)?layers/\d+/.*kernel",) if self.muon_include is None else self.muon_include
        return [*((pattern, 1.0) for pattern in included), (".*", 0.0)]

    @property
    def named_rates(self) -> Rules:
        """The rates that the config names; `optimizers.lr_rules` has those of the layers, too."""
        return parse_rules(self.lr_mults, "optimizer.lr_mults")

    @property
    def named_openings(self) -> Rules:
        """The updates from which on parameters move, as the config names them."""
        return parse_rules(self.unfreeze, "optimizer.unfreeze", "UPDATE")


OPTIMIZER_READERS = {
    "trust_exclude": ("lamb",),
    "muon_include": ("muon",),
    "muon_momentum": ("muon",),
    "muon_rms": ("muon",),
}
SCHEDULE_READERS = {
    "end_lr_ratio": (*DECAYING, *REPEATING, *RISING),
    "power": ("polynomial",),
    "decay_steps": ("wsd",),
    "period_steps": REPEATING,
    "factor": REPEATING,
}


def _check_readers(group: str, config: Any, readers: Mapping[str, tuple[str, ...]]) -> None:
    """Raises `UserError` for a key that is set, but that the chosen name has no use for."""
    for key, names in readers.items():
        if getattr(config, key) is not None and config.name not in names:
            raise UserError(
                f"{group}.{key} says nothing to {group}.name={config.name} (it is for {', '.join(names)}); "
                "set it to None"
            )


def _check_regexes(key: str, patterns: Iterable[str]) -> None:
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise UserError(f"{key}: {pattern!r} is no regular expression ({error})") from None


def parse_rules(texts: Iterable[str], key: str, number: str = "FACTOR") -> list[tuple[str, float]]:
    """`("REGEX=FACTOR", ...)` as rules; a broken one names the config key it came from."""
    rules = []
    for text in texts:
        pattern, _, value = text.rpartition("=")
        try:
            re.compile(pattern)
            rules.append((pattern, float(value)))
        except (re.error, ValueError) as error:
            raise UserError(f"{key}: {text!r} is not REGEX={number} ({error})") from None
        if not pattern:
            raise UserError(f"{key}: {text!r} is not REGEX={number} (no regex)")
    return rules


@dataclasses.dataclass(frozen=True)
class ScheduleConfig:
    """`warmup_steps` of linear warm-up, then the decay called `name` until `num_steps`.

    None is the default of what only some schedules read: see `end`, `decay` and `period`.
    """

    name: str
    learning_rate: float
    warmup_steps: int
    num_steps: int
    end_lr_ratio: float | None = None
    power: float | None = None
    decay_steps: int | None = None
    period_steps: int | None = None
    factor: float | None = None

    def __post_init__(self) -> None:
        require_one_of("schedule.name", self.name, SCHEDULES)
        if not self.learning_rate > 0:
            raise UserError(f"optimizer.learning_rate must be positive, not {self.learning_rate}")
        _check_readers("schedule", self, SCHEDULE_READERS)
        self._check_steps()
        if self.end_lr_ratio is not None and not 0.0 <= self.end_lr_ratio < 1.0:
            raise UserError(f"schedule.end_lr_ratio must lie in [0, 1), not {self.end_lr_ratio}")
        if self.power is not None and not self.power > 0.0:
            raise UserError(f"schedule.power must be positive, not {self.power}")
        if self.factor is not None and not 0.0 < self.factor <= 1.0:
            raise UserError(f"schedule.factor must lie in (0, 1], not {self.factor}")

    def _check_steps(self) -> None:
        if not 0 <= self.warmup_steps <= self.num_steps:
            raise UserError(
                f"schedule.warmup_steps must lie in 0..train.num_steps = {self.num_steps}, not {self.warmup_steps}"
            )
        if self.name in ("inverse_sqrt", "slanted_triangular") and self.warmup_steps == 0:
            raise UserError(f"schedule.name={self.name} begins with a rise: schedule.warmup_steps must be at least 1")
        if self.name == "cyclical" and self.warmup_steps > 0:
            raise UserError(
                f"schedule.name=cyclical has a rise in every cycle: set schedule.warmup_steps to 0, not "
                f"{self.warmup_steps}"
            )
        if self.name in RISING and (self.warmup_steps or not self.end_lr_ratio):
            raise UserError(
                f"schedule.name={self.name} rises from schedule.end_lr_ratio, which must be above 0, without "
                "schedule.warmup_steps"
            )
        rest = self.num_steps - self.warmup_steps
        if self.decay_steps is not None and not 1 <= self.decay_steps <= rest:
            raise UserError(
                f"schedule.decay_steps must lie in 1..train.num_steps - schedule.warmup_steps = {rest}, not "
                f"{self.decay_steps}"
            )
        least = 2 if self.name == "cyclical" else 1
        if self.period_steps is not None and self.period_steps < least:
            raise UserError(f"schedule.period_steps must be at least {least}, not {self.period_steps}")

    @property
    def end(self) -> float:
        """The lowest share of the peak: 0, or the 1/32 of arXiv:1801.06146 where the triangle slants."""
        default = 1 / 32 if self.name == "slanted_triangular" else 0.0
        return default if self.end_lr_ratio is None else self.end_lr_ratio

    @property
    def decay(self) -> int:
        """Updates of the last, falling part: a tenth of the run."""
        default = min(self.num_steps // 10, self.num_steps - self.warmup_steps)
        return max(default if self.decay_steps is None else self.decay_steps, 1)

    @property
    def period(self) -> int:
        """Updates from one drop, or one cycle, to the next: a quarter of the run."""
        return max(-(-self.num_steps // 4), 2) if self.period_steps is None else self.period_steps


@dataclasses.dataclass(frozen=True)
class MeshConfig(Settings, group="mesh"):
    """Devices along the axes of the mesh; the product of the three is the number of devices."""

    data: int = setting(-1, resume=True, help="Sequences are split, weights are copied; -1: the remaining devices.")
    fsdp: int = setting(
        1,
        resume=True,
        help="Sequences are split, and so are weights and optimizer state, which are gathered layer by layer; "
        "-1: the remaining devices.",
    )
    tensor: int = setting(1, resume=True, help="Heads and feed-forward widths are split; -1: the remaining devices.")

    def check(self) -> None:
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
                raise UserError(f"mesh.tensor={self.tensor} does not divide {name}={size}; {comma_list(fits)} do")


def check_rows(key: str, rows: int, microbatches: int, ways: int) -> None:
    """Raises `UserError` when the rows of a batch cannot be dealt evenly to microbatches and devices."""
    unit = microbatches * ways
    if rows < 1 or rows % unit:
        below = rows // unit * unit
        nearest = comma_list(size for size in (below, below + unit) if size > 0)
        raise UserError(
            f"{key}={rows} is not divisible by {unit}: train.microbatches={microbatches} times the {ways} devices "
            f"that share the rows (mesh.data * mesh.fsdp); nearest that are: {nearest}"
        )


ON_FAULT = ("raise", "skip", "rollback")


@dataclasses.dataclass(frozen=True)
class AnomalyConfig:
    """What happens when a loss, a gradient or an update is no number, and when a loss is far above those before it.

    Every field is a key of `train`, explained in `bertjax/config/defaults/training.py`.
    """

    on_nonfinite: str = "raise"
    max_nonfinite: int = 5
    spike_factor: float | None = None
    skip_batches: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _ = self._skipped  # raises for what cannot be read
        require_one_of("train.on_nonfinite", self.on_nonfinite, ON_FAULT)
        if self.max_nonfinite < 1:
            raise UserError(f"train.max_nonfinite must be at least 1, not {self.max_nonfinite}")
        if self.spike_factor is not None and not self.spike_factor > 0:
            raise UserError(f"train.spike_factor must be positive, not {self.spike_factor}")

    @functools.cached_property
    def _skipped(self) -> list[range]:
        """What `skip_batches` says, in order."""
        found = []
        for text in self.skip_batches:
            match = re.fullmatch(r"(\d+)(?:-(\d+))?", text)
            batches = range(int(match[1]), int(match[2] or match[1]) + 1) if match else range(0)
            if not batches:
                raise UserError(f"train.skip_batches: {text!r} is neither a batch such as 57 nor several such as 57-60")
            found.append(batches)
        return sorted(found, key=lambda batches: batches.start)

    def after_skipped(self, cursor: int) -> int:
        """The first batch from `cursor` on that is not left out."""
        for batches in self._skipped:
            cursor = batches.stop if cursor in batches else cursor
        return cursor

    def next_skipped(self, cursor: int) -> int:
        """The first batch from `cursor` on that is left out, or one that no run reaches."""
        return min((batches.start for batches in self._skipped if batches.start >= cursor), default=sys.maxsize)


@dataclasses.dataclass(frozen=True)
class LoopConfig:
    """When the loop does what, in steps (and minutes, for checkpoints).

    It ends early when `best_metric` has not been better for `patience` evaluations; None = never.
    """

    num_steps: int
    log_interval_steps: int
    eval_interval_steps: int
    checkpoint_interval_steps: int
    checkpoint_interval_minutes: float | None
    profile_steps: str | None = None
    anomalies: AnomalyConfig = AnomalyConfig()
    steps_per_dispatch: int = 1
    best_metric: str | None = None
    patience: int | None = None

    def __post_init__(self) -> None:
        if self.patience is not None and self.patience < 1:
            raise UserError(f"eval.patience must be at least 1, not {self.patience}")
        if self.patience is not None and self.best_metric is None:
            raise UserError(
                "eval.patience waits for a better checkpoint.best_metric, which is None: name a figure such as "
                "eval/mlm_loss"
            )
        for key, value in (
            ("train.num_steps", self.num_steps),
            ("train.log_interval_steps", self.log_interval_steps),
            ("train.steps_per_dispatch", self.steps_per_dispatch),
        ):
            if value < 1:
                raise UserError(f"{key} must be at least 1, not {value}")
        for key, value in (
            ("eval.interval_steps", self.eval_interval_steps),
            ("checkpoint.interval_steps", self.checkpoint_interval_steps),
        ):
            if value < 0:
                raise UserError(f"{key} must not be negative, not {value}")
        if self.profiled and self.profiled.start > self.num_steps:
            raise UserError(
                f"profile.steps={self.profile_steps} begins behind the last update, train.num_steps={self.num_steps}"
            )

    @functools.cached_property
    def profiled(self) -> range:
        """The updates to record a trace of, counted from 1; empty = none."""
        if self.profile_steps is None:
            return range(0)
        match = re.fullmatch(r"(\d+):(\d+)", self.profile_steps)
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise UserError(
                f"profile.steps={self.profile_steps!r} is not FIRST:LAST, two updates counted from 1, such as 10:15"
            )
        return range(int(match[1]), int(match[2]) + 1)
