"""Settings of the training loop: steps, batches, anomalies, intervals."""

from __future__ import annotations

import dataclasses
import functools
import re
import sys

from bertjax.config.fields import Settings, phase_setting, setting
from bertjax.config.run import log_interval
from bertjax.errors import UserError


@dataclasses.dataclass(frozen=True)
class TrainConfig(Settings, group="train"):
    """Steps and batches; `AnomalyConfig` has the other keys of the group."""

    num_steps: int = setting(
        1_000_000, at_least=1, resume=True, help="Steps of the optimizer; warmup, intervals and the schedule follow it."
    )
    batch_size: int = phase_setting(256, at_least=1, help="Sequences per step, over all devices and microbatches.")
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
        '"90%:data.seq_len=128" (BERT). All other keys, and the steps after the last phase, follow the config. They '
        "may change text, masks, lengths, rates and more (docs/continued.md).",
    )
    microbatches: int = phase_setting(
        1,
        at_least=1,
        resume=True,
        help="Parts of a batch that go through the model one after the other: less memory, the same step.",
    )
    steps_per_dispatch: int = setting(
        1,
        at_least=1,
        at_most=10_000,
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
    result_dtype: str = setting(
        "auto",
        choices=("auto", "float32", "bfloat16"),
        help="Type of what layers compute and hand on: results of matmuls, norms, the residual stream; sums, softmax "
        "and losses stay float32. auto: that of the inputs of matmuls on accelerators, float32 on CPUs. bfloat16 needs "
        "inputs of matmuls in bfloat16; float32 takes up to twice the memory and its traffic.",
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
        choices=("threefry", "hash", "rbg"),
        help="Random bits of dropout: threefry and hash are the same on every mesh and machine. hash takes a third "
        "of threefry's operations and stores no mask on accelerators; rbg is jax's generator of the hardware.",
    )

    def check(self) -> None:
        if self.result_dtype == "bfloat16" and self.compute_dtype == "float32":
            raise UserError(
                "train.result_dtype=bfloat16 and train.compute_dtype=float32: matmuls of float32 inputs have float32 "
                "results; set train.compute_dtype=bfloat16 as well, or leave train.result_dtype=auto"
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
        5, at_least=1, help="Consecutive skipped steps, or returns to the same checkpoint, after which the run stops."
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
        """The steps to record a trace of, counted from 1; empty: none.

        Raises:
            UserError: `profile.steps` is not FIRST:LAST.
        """
        if self.profile_steps is None:
            return range(0)
        match = re.fullmatch(r"(\d+):(\d+)", self.profile_steps)
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise UserError(
                f"profile.steps={self.profile_steps!r} is not FIRST:LAST, two steps counted from 1, such as 10:15"
            )
        return range(int(match[1]), int(match[2]) + 1)
