"""Settings of the optimizer and of its learning rate."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bertjax.config.fields import Settings, phase_setting, setting
from bertjax.config.run import warmup
from bertjax.errors import UserError

DECAYING = ("bert", "electra", "linear", "polynomial", "cosine", "wsd", "slanted_triangular")
REPEATING = ("step", "exponential", "cyclical")
RISING = ("rising_linear", "rising_exponential")
SCHEDULES = (*DECAYING, *REPEATING, *RISING, "inverse_sqrt", "constant")

Rules = Sequence[tuple[str, Any]]
"""(regex over a parameter's whole path, value); the first that matches wins."""


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
    learning_rate: float = phase_setting(
        1e-4, above=0.0, help="Peak learning rate, reached at the end of warmup; phases may have others."
    )
    b1: float = phase_setting(0.9, at_least=0.0, below=1.0, help="Decay of the mean of the gradients.")
    b2: float = phase_setting(0.999, at_least=0.0, below=1.0, help="Decay of the mean of their squares.")
    eps: float = phase_setting(1e-6, at_least=0.0, help="Added to the root of the mean square.")
    bias_correction: bool = setting(
        False, help="Correct both means for their short history; BERT and ALBERT do not (google-research/bert#153)."
    )
    weight_decay: float = phase_setting(
        0.01,
        at_least=0.0,
        help="Share of a weight that is subtracted per step, times the learning rate; with stable_adamw times the "
        "schedule's share of the peak instead, so that much smaller numbers do the same.",
    )
    clip_norm: float = phase_setting(1.0, at_least=0.0, help="Largest global norm of the gradient; 0: no clipping.")
    decay_exclude: tuple[str, ...] = phase_setting(
        (r".*/(bias|scale)",),
        help='Parameters without decay: regexes of whole paths such as "encoder/layers/3/attention/query/bias".',
    )
    lr_mults: tuple[str, ...] = phase_setting(
        (), help='"REGEX=FACTOR" on the learning rate of the parameters whose whole path matches; the first match wins.'
    )
    layerwise_lr_decay: float | None = phase_setting(
        None,
        above=0.0,
        below=1.0,
        help="Learning rates shrink by this factor per layer from the last one down, embeddings lowest; `lr_mults` "
        "come first. None: the same rate for all layers.",
    )
    layerwise_lr_decay_top: int = phase_setting(
        1,
        at_least=0,
        help="Power of `layerwise_lr_decay` at the last layer: 1 (FinBERT), 2 (ELECTRA's code), 0 (ULMFiT).",
    )
    bottom_lr: float | None = phase_setting(
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
    trust_exclude: tuple[str, ...] | None = phase_setting(
        None, help="lamb: parameters that are not rescaled to their norm; None: those of `decay_exclude`."
    )
    muon_include: tuple[str, ...] | None = setting(
        None, help="muon: parameters that it trains, each a matrix; None: the kernels of the layers."
    )
    muon_momentum: float | None = phase_setting(
        None, above=0.0, below=1.0, help="muon: decay of the mean of the gradients; None: 0.95."
    )
    muon_rms: float | None = phase_setting(
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
        """Parameter rules whose value is 1 where weights decay."""
        return [*((pattern, 0.0) for pattern in self.decay_exclude), (".*", 1.0)]

    @property
    def trust_rules(self) -> Rules:
        """Parameter rules, 1 where LAMB rescales (google-research/albert:lamb_optimizer.py); default: `decay_rules`."""
        excluded = self.decay_exclude if self.trust_exclude is None else self.trust_exclude
        return [*((pattern, 0.0) for pattern in excluded), (".*", 1.0)]

    @property
    def muon_rules(self) -> Rules:
        """Parameter rules, 1 where Muon trains: the matrices of the layers, unless the config names others."""
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

    name: str = phase_setting(
        "bert",
        choices=SCHEDULES,
        help="Shape after warmup: bert (linear to the end, counted from step 0, with a small drop where warmup ends), "
        "electra (the same decay times the warmup: no drop), linear (from the end of warmup), polynomial, cosine, wsd "
        "(constant, then 1 - sqrt), constant, inverse_sqrt (Noam), step, exponential, cyclical (triangles, without "
        "warmup), slanted_triangular (ULMFiT: warmup is its rise, a tenth of the run in the paper). rising_linear and "
        "rising_exponential go from `end_lr_ratio` up to the peak: the range tests of `bertjax lr-find`.",
    )
    learning_rate: float = setting(1e-4, key=False, help="The peak, `optimizer.learning_rate`.")
    warmup_steps: int = phase_setting(
        10_000,
        at_least=0,
        follows=("train.num_steps", warmup),
        help="Steps of linear warmup from 0, by default 1 % of the run.",
    )
    num_steps: int = setting(1_000_000, key=False, help="Length of the run, `train.num_steps`.")
    end_lr_ratio: float | None = phase_setting(
        None,
        at_least=0.0,
        below=1.0,
        help="Lowest learning rate as a share of the peak, at the end or between cycles; None: 0, or 1/32 of "
        "slanted_triangular.",
    )
    power: float | None = phase_setting(
        None, above=0.0, help="polynomial: power of the remaining share of the run; None: 1, a straight line."
    )
    decay_steps: int | None = phase_setting(
        None, at_least=1, help="wsd: steps of the decay at the end; None: a tenth of the run."
    )
    period_steps: int | None = phase_setting(
        None,
        at_least=1,
        help="Steps between two drops (step), in which the rate falls by `factor` (exponential), or of one cycle, up "
        "and down (cyclical); None: a quarter of the run.",
    )
    factor: float | None = phase_setting(
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
