"""Settings of training: steps, anomalies, optimizer, learning rate schedule and mesh."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bertjax.config.fields import Settings, setting
from bertjax.config.run import log_interval, warmup
from bertjax.errors import UserError, comma_list

DECAYING = ("bert", "electra", "linear", "polynomial", "cosine", "wsd", "slanted_triangular")
REPEATING = ("step", "exponential", "cyclical")
RISING = ("rising_linear", "rising_exponential")
SCHEDULES = (*DECAYING, *REPEATING, *RISING, "inverse_sqrt", "constant")
AXES = ("data", "fsdp", "tensor")

Rules = Sequence[tuple[str, Any]]
"""(regex over a parameter's whole path, value); the first that matches wins."""


@dataclasses.dataclass(frozen=True)
class TrainConfig(Settings, group="train"):
    """Steps and batches; `AnomalyConfig` has the other keys of the group."""

    num_steps: int = setting(
        1_000_000,
        at_least=1,
        resume=True,
        help="Steps of the optimizer; warmup, intervals and the schedule follow it.",
    )
    batch_size: int = setting(
        256, at_least=1, phase=True, help="Sequences per step, over all devices and microbatches."
    )
    initial_batch_size: int | None = setting(
        None,
        at_least=1,
        help="Batch size at the start, which grows to `batch_size` by this number at a time (every size is compiled). "
        "The learning rate does not follow. None: no ramp.",
    )
    batch_ramp_steps: int | None = setting(
        None, at_least=0, help="Steps of that ramp; None: a tenth of the run, if `initial_batch_size` is set."
    )
    phases: tuple[str, ...] = setting(
        (),
        help='Phases at the start, one after the other: "STEPS:KEY=VALUE,KEY=VALUE" or "90%:...", such as '
        '"90%:data.seq_len=128" (BERT). All other keys, and the steps after the last phase, follow the config.',
    )
    microbatches: int = setting(
        1,
        at_least=1,
        resume=True,
        phase=True,
        help="Parts of a batch that go through the model one after the other: less memory, the same step.",
    )
    steps_per_dispatch: int = setting(
        1,
        at_least=1,
        resume=True,
        help="Steps sent to the devices at once, for models so small that a step ends before the next is sent. "
        "Intervals should be multiples of it: evaluations, checkpoints and lines of metrics end a group of steps, and "
        "the remaining steps are sent one by one. Signals are handled between groups.",
    )
    compute_dtype: str = setting(
        "auto",
        choices=("auto", "float32", "bfloat16"),
        help="Type of the inputs of matmuls; weights and sums stay float32. auto: bfloat16 on accelerators and on CPUs "
        "that multiply it fast (avx512_bf16, amx_bf16), else float32.",
    )
    log_interval_steps: int = setting(
        5000,
        at_least=1,
        resume=True,
        follows=("train.num_steps", log_interval),
        help="Steps between two lines of metrics, by default a 200th of the run and at least 10.",
    )
    dropout_prng: str = setting(
        "threefry",
        choices=("threefry", "rbg"),
        help="Random bits of dropout: threefry is the same on every mesh and machine, rbg is faster on accelerators.",
    )


@dataclasses.dataclass(frozen=True)
class AnomalyConfig(Settings, group="train", resume=True):
    """Policy for losses, gradients and weights that are not finite, and for losses far above those before them."""

    on_nonfinite: str = setting(
        "raise",
        choices=("raise", "skip", "rollback"),
        help="At a loss, gradient or weight that is not finite: raise stops the run with a report, skip leaves the "
        "step out and counts it, rollback resumes from the newest checkpoint after the batch in question. The batch is "
        "saved in the workdir.",
    )
    max_nonfinite: int = setting(
        5,
        at_least=1,
        help="Consecutive skipped steps, or returns to the same checkpoint, after which the run stops.",
    )
    spike_factor: float | None = setting(
        None,
        above=0.0,
        help="A loss is a spike if it exceeds the median of the 128 before it by more than this many standard "
        "deviations (estimated by the median), such as 10: it is counted, printed, and with rollback undone. None: no "
        "detection.",
    )
    skip_batches: tuple[str, ...] = setting(
        (), help='Batches never to train on, by number: "57" or "57-60" (inclusive). All others stay the same.'
    )

    def check(self) -> None:
        _ = self._skipped  # raises for text that is not a range

    @functools.cached_property
    def _skipped(self) -> list[range]:
        """The ranges of `skip_batches`, in order."""
        ranges = []
        for text in self.skip_batches:
            match = re.fullmatch(r"(\d+)(?:-(\d+))?", text)
            batches = range(int(match[1]), int(match[2] or match[1]) + 1) if match else range(0)
            if not batches:
                raise UserError(f"train.skip_batches: {text!r} is neither a batch such as 57 nor several such as 57-60")
            ranges.append(batches)
        return sorted(ranges, key=lambda batches: batches.start)

    def after_skipped(self, cursor: int) -> int:
        """Returns the first batch from `cursor` on that is not skipped."""
        for batches in self._skipped:
            cursor = batches.stop if cursor in batches else cursor
        return cursor

    def next_skipped(self, cursor: int) -> int:
        """Returns the first batch from `cursor` on that is skipped, or a number that no run reaches."""
        return min((batches.start for batches in self._skipped if batches.start >= cursor), default=sys.maxsize)


@dataclasses.dataclass(frozen=True)
class OptimizerConfig(Settings, group="optimizer"):
    """The optimizer; the defaults are BERT's (google-research/bert:optimization.py)."""

    name: str = setting(
        "adamw",
        choices=("adamw", "lamb", "stable_adamw", "muon"),
        help="adamw: Adam with decoupled weight decay. lamb (ALBERT): every tensor of every layer moves in proportion "
        "to its norm. stable_adamw (ModernBERT): a tensor slows down where its gradients jump; use clip_norm=0. muon: "
        "matrices of the layers move by orthogonal matrices, all else by adamw.",
    )
    learning_rate: float = setting(1e-4, above=0.0, help="Peak learning rate, reached at the end of warmup.")
    b1: float = setting(0.9, at_least=0.0, below=1.0, help="Decay of the mean of the gradients.")
    b2: float = setting(0.999, at_least=0.0, below=1.0, help="Decay of the mean of their squares.")
    eps: float = setting(1e-6, at_least=0.0, help="Added to the root of the mean square.")
    bias_correction: bool = setting(
        False, help="Correct both means for their short history; BERT and ALBERT do not (google-research/bert#153)."
    )
    weight_decay: float = setting(
        0.01,
        at_least=0.0,
        help="Share of a weight that is subtracted per step, times the learning rate; with stable_adamw times the "
        "schedule's share of the peak instead, so that much smaller numbers do the same.",
    )
    clip_norm: float = setting(1.0, at_least=0.0, help="Largest global norm of the gradient; 0: no clipping.")
    decay_exclude: tuple[str, ...] = setting(
        (r".*/(bias|scale)",),
        help='Parameters without decay: regexes of whole paths such as "encoder/layers/3/attention/query/bias".',
    )
    lr_mults: tuple[str, ...] = setting(
        (), help='"REGEX=FACTOR" on the learning rate of the parameters whose whole path matches; the first match wins.'
    )
    layerwise_lr_decay: float | None = setting(
        None,
        above=0.0,
        below=1.0,
        help="Learning rates shrink by this factor per layer from the last one down, embeddings lowest; `lr_mults` "
        "come first. None: the same rate for all layers.",
    )
    layerwise_lr_decay_top: int = setting(
        1,
        at_least=0,
        help="Power of `layerwise_lr_decay` at the last layer: 1 (FinBERT), 2 (ELECTRA's code), 0 (ULMFiT).",
    )
    bottom_lr: float | None = setting(
        None,
        above=0.0,
        help="Learning rate of the embeddings; those of the layers rise to `learning_rate`, which heads have, by equal "
        "factors (fastai's slice(bottom_lr, learning_rate)). None: see `layerwise_lr_decay`.",
    )
    unfreeze_every: int | None = setting(
        None,
        at_least=1,
        help="Gradual unfreezing: heads train from the start, the last layer after this many steps, the next one below "
        "after twice as many, ..., the embeddings last. None: all train from the start.",
    )
    unfreeze: tuple[str, ...] = setting(
        (),
        help='"REGEX=STEP" over whole paths: matching parameters train from that step on; the first match wins, before '
        '`unfreeze_every`. "encoder/embeddings/.*=1000000000" never trains.',
    )
    trust_exclude: tuple[str, ...] | None = setting(
        None, help="lamb: parameters that are not rescaled to their norm; None: those of `decay_exclude`."
    )
    muon_include: tuple[str, ...] | None = setting(
        None, help="muon: parameters that it trains, each a matrix; None: the kernels of the layers."
    )
    muon_momentum: float | None = setting(
        None, above=0.0, below=1.0, help="muon: decay of the mean of the gradients; None: 0.95."
    )
    muon_rms: float | None = setting(
        None,
        at_least=0.0,
        help="muon: root mean square of its steps; None: 0.2, like Adam's, so that both can share a learning rate "
        "(arXiv:2502.16982). 0: an orthogonal matrix times sqrt(max(1, out / in)), as first published, with learning "
        "rates about 0.02.",
    )
    ema_decay: float | None = setting(
        None,
        above=0.0,
        below=1.0,
        help="Decay of an exponential average of the weights, such as 0.9999 (4 bytes per parameter), smaller at the "
        "start; `eval.use_ema` says whether it is evaluated. None: no average.",
    )
    moments_dtype: str = setting(
        "float32",
        choices=("float32", "bfloat16"),
        help="Type of the stored means: bfloat16 takes 4 bytes per parameter instead of 8 (muon: 2 instead of 4), with "
        "stochastic rounding, because rounded to nearest they would stop moving.",
    )

    def check(self) -> None:
        _check_readers("optimizer", self, OPTIMIZER_READERS)
        if self.bottom_lr is not None and self.layerwise_lr_decay is not None:
            raise UserError("optimizer.bottom_lr and optimizer.layerwise_lr_decay exclude each other")
        if self.bottom_lr is not None and self.bottom_lr > self.learning_rate:
            raise UserError(
                f"optimizer.bottom_lr must be at most optimizer.learning_rate={self.learning_rate}, not "
                f"{self.bottom_lr}"
            )
        for key in ("decay_exclude", "trust_exclude", "muon_include"):
            _check_regexes(f"optimizer.{key}", getattr(self, key) or ())
        _ = self.parsed_lr_mults, self.parsed_unfreeze  # raise for a broken rule

    @property
    def decay_rules(self) -> Rules:
        """1 where weights decay."""
        return [*((pattern, 0.0) for pattern in self.decay_exclude), (".*", 1.0)]

    @property
    def trust_rules(self) -> Rules:
        """1 where LAMB rescales; parameters without decay are left out (google-research/albert:lamb_optimizer.py)."""
        excluded = self.decay_exclude if self.trust_exclude is None else self.trust_exclude
        return [*((pattern, 0.0) for pattern in excluded), (".*", 1.0)]

    @property
    def muon_rules(self) -> Rules:
        """1 where Muon trains: the matrices of the layers, unless the config names others."""
        included = (r"(.*/)?layers/\d+/.*kernel",) if self.muon_include is None else self.muon_include
        return [*((pattern, 1.0) for pattern in included), (".*", 0.0)]

    @property
    def parsed_lr_mults(self) -> Rules:
        """The rules of `lr_mults`; `optimizers.rate_rules` adds those of the layers."""
        return parse_rules(self.lr_mults, "optimizer.lr_mults")

    @property
    def parsed_unfreeze(self) -> Rules:
        """The rules of `unfreeze`."""
        return parse_rules(self.unfreeze, "optimizer.unfreeze", "STEP")


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
    """Raises `UserError` for a key that is set, but that the chosen name does not read."""
    for key, names in readers.items():
        if getattr(config, key) is not None and config.name not in names:
            raise UserError(
                f"{group}.{key} has no effect with {group}.name={config.name} (it is for {', '.join(names)}); "
                "set it to None"
            )


def _check_regexes(key: str, patterns: Iterable[str]) -> None:
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise UserError(f"{key}: {pattern!r} is not a regular expression ({error})") from None


def parse_rules(texts: Iterable[str], key: str, number: str = "FACTOR") -> list[tuple[str, float]]:
    """Parses ("REGEX=NUMBER", ...).

    Args:
        texts: The rules as text.
        key: The config key that messages name.
        number: What the number is, for messages.

    Raises:
        UserError: A rule is not REGEX=NUMBER.
    """
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
class ScheduleConfig(Settings, group="schedule", resume=True):
    """The learning rate over `num_steps`, by default BERT's; `end`, `decay` and `period` fill in what is None."""

    name: str = setting(
        "bert",
        choices=SCHEDULES,
        help="Shape after warmup: bert (linear to the end, counted from step 0, with a small drop where warmup ends), "
        "electra (the same decay times the warmup: no drop), linear (from the end of warmup), polynomial, cosine, wsd "
        "(constant, then 1 - sqrt), constant, inverse_sqrt (Noam), step, exponential, cyclical (triangles, without "
        "warmup), slanted_triangular (ULMFiT: warmup is its rise, a tenth of the run in the paper). rising_linear and "
        "rising_exponential go from `end_lr_ratio` up to the peak: the range tests of `bertjax lr-find`.",
    )
    learning_rate: float = setting(1e-4, key=False, help="The peak, `optimizer.learning_rate`.")
    warmup_steps: int = setting(
        10_000,
        at_least=0,
        follows=("train.num_steps", warmup),
        help="Steps of linear warmup from 0, by default 1 % of the run.",
    )
    num_steps: int = setting(1_000_000, key=False, help="Length of the run, `train.num_steps`.")
    end_lr_ratio: float | None = setting(
        None,
        at_least=0.0,
        below=1.0,
        help="Lowest learning rate as a share of the peak, at the end or between cycles; None: 0, or 1/32 of "
        "slanted_triangular.",
    )
    power: float | None = setting(
        None, above=0.0, help="polynomial: power of the remaining share of the run; None: 1, a straight line."
    )
    decay_steps: int | None = setting(
        None, at_least=1, help="wsd: steps of the decay at the end; None: a tenth of the run."
    )
    period_steps: int | None = setting(
        None,
        at_least=1,
        help="Steps between two drops (step), in which the rate falls by `factor` (exponential), or of one cycle, up "
        "and down (cyclical); None: a quarter of the run.",
    )
    factor: float | None = setting(
        None,
        above=0.0,
        at_most=1.0,
        help='Factor on the rate per period, or on the height of a cycle (0.5: "triangular2"); None: 0.1, cyclical 1.',
    )

    def check(self) -> None:
        _check_readers("schedule", self, SCHEDULE_READERS)
        if self.warmup_steps > self.num_steps:
            raise UserError(
                f"schedule.warmup_steps must lie in 0..train.num_steps = {self.num_steps}, not {self.warmup_steps}"
            )
        if self.name in ("inverse_sqrt", "slanted_triangular") and self.warmup_steps == 0:
            raise UserError(f"schedule.name={self.name} starts with a rise: schedule.warmup_steps must be at least 1")
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
        if self.decay_steps is not None and self.decay_steps > rest:
            raise UserError(
                f"schedule.decay_steps must lie in 1..train.num_steps - schedule.warmup_steps = {rest}, not "
                f"{self.decay_steps}"
            )
        if self.name == "cyclical" and self.period_steps == 1:
            raise UserError("schedule.period_steps must be at least 2, not 1")

    @property
    def end(self) -> float:
        """Lowest share of the peak: 0, or the 1/32 of arXiv:1801.06146 for slanted triangles."""
        default = 1 / 32 if self.name == "slanted_triangular" else 0.0
        return default if self.end_lr_ratio is None else self.end_lr_ratio

    @property
    def decay(self) -> int:
        """Steps of the decay at the end: a tenth of the run."""
        default = min(self.num_steps // 10, self.num_steps - self.warmup_steps)
        return max(default if self.decay_steps is None else self.decay_steps, 1)

    @property
    def period(self) -> int:
        """Steps of a period: a quarter of the run."""
        return max(-(-self.num_steps // 4), 2) if self.period_steps is None else self.period_steps


@dataclasses.dataclass(frozen=True)
class MeshConfig(Settings, group="mesh", resume=True):
    """Devices along the axes of the mesh; the product of the three is the number of devices."""

    data: int = setting(-1, help="Sequences are split, weights are copied; -1: the remaining devices.")
    fsdp: int = setting(
        1,
        help="Sequences are split, and so are weights and optimizer state, which are gathered layer by layer; "
        "-1: the remaining devices.",
    )
    tensor: int = setting(1, help="Heads and feed-forward widths are split; -1: the remaining devices.")

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
    def batch_shards(self) -> int | None:
        """Number of devices that a batch is split over; None while that depends on the devices of the machine."""
        return None if -1 in (self.data, self.fsdp) else self.data * self.fsdp

    def shape(self, num_devices: int) -> tuple[int, int, int]:
        """Returns the sizes with -1 filled in; raises `UserError` if the devices do not suffice or do not divide."""
        fixed = math.prod(size for size in self.sizes if size != -1)
        named = ", ".join(f"mesh.{axis}={size}" for axis, size in zip(AXES, self.sizes, strict=True))
        if fixed > num_devices:
            raise UserError(f"{named} needs {fixed} devices, but there are {num_devices}")
        if -1 in self.sizes and num_devices % fixed:
            raise UserError(f"{named}: {num_devices} devices cannot be split by {fixed}")
        filled = [num_devices // fixed if size == -1 else size for size in self.sizes]
        return filled[0], filled[1], filled[2]

    def check_model(self, num_heads: int, intermediate_size: int) -> None:
        """Raises `UserError` if the tensor axis would cut through a head."""
        for name, size in (("model.num_heads", num_heads), ("model.intermediate_size", intermediate_size)):
            if self.tensor > 0 and size % self.tensor:
                fits = [ways for ways in range(1, min(size, 64) + 1) if size % ways == 0]
                raise UserError(f"mesh.tensor={self.tensor} does not divide {name}={size}; {comma_list(fits)} do")


def check_batch_size(key: str, batch_size: int, microbatches: int, shards: int) -> None:
    """Checks that a batch can be split evenly.

    Args:
        key: The config key that the message names.
        batch_size: Sequences per batch.
        microbatches: Parts of the batch, one after the other.
        shards: Devices that a part is split over.

    Raises:
        UserError: The batch cannot be split.
    """
    unit = microbatches * shards
    if batch_size < 1 or batch_size % unit:
        below = batch_size // unit * unit
        nearest = comma_list(size for size in (below, below + unit) if size > 0)
        raise UserError(
            f"{key}={batch_size} is not divisible by {unit}: train.microbatches={microbatches} times the {shards} "
            f"devices that share a batch (mesh.data * mesh.fsdp); nearest that are: {nearest}"
        )


@dataclasses.dataclass(frozen=True)
class LoopConfig:
    """Intervals and limits of the training loop, in steps (for checkpoints also in minutes).

    It stops early when `best_metric` has not improved for `patience` evaluations; None: never.
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
        if self.patience is not None and self.best_metric is None:
            raise UserError(
                "eval.patience waits for a better checkpoint.best_metric, which is None: name a metric such as "
                "eval/mlm_loss"
            )
        if self.profiled and self.profiled.start > self.num_steps:
            raise UserError(
                f"profile.steps={self.profile_steps} starts after the last step, train.num_steps={self.num_steps}"
            )

    @functools.cached_property
    def profiled(self) -> range:
        """The steps to record a trace of, counted from 1; empty: none."""
        if self.profile_steps is None:
            return range(0)
        match = re.fullmatch(r"(\d+):(\d+)", self.profile_steps)
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise UserError(
                f"profile.steps={self.profile_steps!r} is not FIRST:LAST, two steps counted from 1, such as 10:15"
            )
        return range(int(match[1]), int(match[2]) + 1)
