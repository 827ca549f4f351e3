"""Chooses size, length, batch and rate of a run of the recipe `bertjax` for a text and a time."""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
from ml_collections import ConfigDict

from bertjax.config import inputs
from bertjax.config.objectives import objective_class, require_pretraining
from bertjax.config.overrides import copy_config, set_values
from bertjax.errors import UserError, named
from bertjax.experiment.config import load_config
from bertjax.io.output import format_bytes
from bertjax.tools.loss_law import Expected, LossLaw, read_law
from bertjax.tools.measured_step import (
    MeasuredStep,
    TextSize,
    available_bytes,
    measure_step,
    measure_text,
)

RECIPE = "bertjax"
SIZES = ("nano", "micro", "mini", "small", "base")
MIN_STEPS = 100
"""Steps of the shortest run that is planned."""
MIN_BYTES = 100_000
"""Bytes of the smallest text that a plan is made for."""
MANY_EPOCHS = 10.0
"""Epochs above which weights decay four times as strongly (LTG-BERT's authors for texts that are read so often)."""
SHORT_RUN = 8e6
"""Tokens of a run below which 16 sequences per batch teach more than 32: 0.06 nats at 4.4M, none at 10M (nano)."""
_BATCH = "train.batch_size"
_OPTIMISM = 1.5  # a size that is not measured is at most so much faster than its parameters suggest
_TOKEN_LENGTH = 0.2  # exponent: 8,192 tokens of English Wikipedia are 1.15 times as long as 4,096
_MEMORY_SHARE = 0.8
_NEAR = 4  # a speed holds for batches that are not so many times as large


class PlannedRun(NamedTuple):
    """A run of one size: what is read in the time, and the loss to expect, in shares of the unigram loss.

    Attributes:
        step: speed and size of the model.
        seconds: length of the run.
        steps: its steps.
        tokens: tokens that it reads.
        epochs: how often it reads the text.
        unique: tokens of the text.
        expected: share of the unigram loss that is left.
    """

    step: MeasuredStep
    seconds: float
    steps: int
    tokens: float
    epochs: float
    unique: float
    expected: Expected

    @property
    def nats_per_byte(self) -> float:
        """Expected loss in nats per byte, in which sizes with different vocabularies are compared."""
        return self.expected.median * self.step.nats_per_byte

    @property
    def loss(self) -> Expected:
        """Expected held-out loss in nats per masked token."""
        return Expected(*(self.step.unigram * share for share in self.expected))


@dataclasses.dataclass(frozen=True)
class Plan:
    """A planned run, with the other sizes and times that it was compared with.

    Attributes:
        minutes: minutes of training.
        text: size of the text.
        best: the size that is planned.
        sizes: all sizes that were measured.
        skipped: sizes that were not measured, with the reason.
        half: the best size for half of the time.
        tenfold: the best size for ten times the time.
        limit: what more of would help most: time, text or memory.
        changes: values of the plan, by dotted key, that are not those of the config of its name.
        cfg: the config, to train with.
    """

    minutes: float
    text: TextSize
    best: PlannedRun
    sizes: tuple[PlannedRun, ...]
    skipped: Mapping[str, str]
    half: PlannedRun
    tenfold: PlannedRun
    limit: str
    changes: Mapping[str, Any]
    cfg: ConfigDict

    @property
    def name(self) -> str:
        """Name of the config that is planned."""
        return self.best.step.title

    @property
    def memory_bytes(self) -> int:
        """Bytes that the run needs per device."""
        train, step = self.cfg.train, self.best.step
        return step.state_bytes + round(_step_bytes(step, train.batch_size, train.microbatches))


def make_plan(minutes: float, overrides: Mapping[str, Any], say: Callable[[str], None] = lambda line: None) -> Plan:
    """Measures the text and the sizes of the recipe, and chooses one.

    Args:
        minutes: minutes of training, its compilation and export included.
        overrides: values by dotted key, `data.sources` among them.
        say: called with lines of progress.

    Raises:
        UserError: there is no text, or the time is too short for any size.
    """
    seconds = require_minutes(minutes)
    base = load_config(f"{RECIPE}:{SIZES[0]}", overrides)
    with tempfile.TemporaryDirectory(prefix="bertjax-plan-") as folder:
        say("reading the text")
        text = measure_text(inputs.all_sources(base), base.data.encoding_errors, Path(folder))
        if text.bytes < MIN_BYTES:
            raise UserError(
                f"{named('text')}: {text.bytes:,} bytes are too little to learn a language from; a plan needs at least "
                f"{MIN_BYTES:,}"
            )
        measured, guessed, skipped = _measure_sizes(overrides, text, seconds, Path(folder), say)
    law = read_law()
    consider = functools.partial(_planned_run, law, text)
    sizes = tuple(consider(step, seconds) for step in measured)
    best = _best(sizes)
    if best is None:
        raise too_short(minutes, measured[0])
    half = _best([consider(step, seconds / 2) for step in measured]) or best
    tenfold = _best([consider(step, seconds * 10) for step in (*measured, *guessed)]) or best
    changes = _plan_values(best, overrides)
    return Plan(
        minutes=minutes,
        text=text,
        best=best,
        sizes=sizes,
        skipped=skipped,
        half=half,
        tenfold=tenfold,
        limit=_limit(law, best, tenfold, skipped),
        changes=changes,
        cfg=set_values(copy.deepcopy(best.step.cfg), changes),
    )


def measure_length(cfg: ConfigDict, minutes: float, say: Callable[[str], None]) -> tuple[MeasuredStep, int]:
    """Returns the measured step of a config, and the steps of a run of so many minutes.

    Args:
        cfg: the config.
        minutes: minutes of training, its compilation and export included.
        say: called with lines of progress.

    Raises:
        UserError: the time is too short, or the objective needs a teacher.
    """
    seconds = require_minutes(minutes)
    require_pretraining(cfg)
    if objective_class(cfg.objective.name).uses_teacher:
        raise UserError(f"{named('minutes')} cannot measure an objective with a teacher: set config.train.num_steps")
    with tempfile.TemporaryDirectory(prefix="bertjax-plan-") as folder:
        say("measuring a few steps")
        text = measure_text(inputs.all_sources(cfg), cfg.data.encoding_errors, Path(folder), seconds=5.0)
        step = measure_step("this config", cfg, text, Path(folder))
    steps = step.steps_in(seconds)
    if steps < MIN_STEPS:
        raise too_short(minutes, step)
    return step, steps


def too_short(minutes: float, step: MeasuredStep) -> UserError:
    """Returns the error for a time in which the fewest steps do not fit."""
    return UserError(
        f"{named('minutes', f'{minutes:g}')}: {MIN_STEPS} steps of {step.title} take "
        f"{step.seconds_of(MIN_STEPS) / 60:.1f} minutes here, compilation included"
    )


def require_minutes(minutes: float) -> float:
    """Returns the seconds; raises `UserError` unless the minutes are a positive number."""
    if not (math.isfinite(minutes) and minutes > 0):
        raise UserError(f"{named('minutes', f'{minutes:g}')} must be a positive number")
    return 60.0 * minutes


def _measure_sizes(
    overrides: Mapping[str, Any], text: TextSize, seconds: float, folder: Path, say: Callable[[str], None]
) -> tuple[list[MeasuredStep], list[MeasuredStep], dict[str, str]]:
    """Measures sizes from the smallest on, but for those that could not be better even if they were fast.

    Returns:
        The measured sizes, guesses of the others that fit into the memory, and why these were not measured.
    """
    measured, guessed, skipped = list[MeasuredStep](), list[MeasuredStep](), dict[str, str]()
    for size in SIZES:
        name = f"{RECIPE}:{size}"
        cfg = load_config(name, overrides)
        if measured:
            guess = _guess(measured[-1], name, cfg)
            if (needed := guess.state_bytes + guess.step_bytes) > _free_bytes():
                skipped[size] = f"needs about {format_bytes(needed)} of memory"
                continue
            if reason := _hopeless(text, measured, guess, seconds):
                guessed.append(guess)
                skipped[size] = reason
                continue
        say(f"measuring {name}")
        measure = measure_step if _BATCH in overrides else functools.partial(_measure_planned_batch, seconds)
        measured.append(measure(name, cfg, text, folder))
    return measured, guessed, skipped


def _measure_planned_batch(seconds: float, name: str, cfg: ConfigDict, text: TextSize, folder: Path) -> MeasuredStep:
    """Measures a size, again where its run would take batches four times as large: accelerators are faster with them.

    Returns:
        The measured step; its tokens and bytes per step are those of the config's batch.
    """
    step = measure_step(name, cfg, text, folder)
    base = measured_batch = cfg.train.batch_size
    while True:
        batch = batch_size(step.tokens_of(step.steps_in(seconds)), cfg.data.seq_len)
        if batch < _NEAR * measured_batch:
            return step
        larger = copy_config(cfg)
        larger.train.batch_size = measured_batch = batch
        larger.train.microbatches = parts = _microbatches(step, batch)
        again = measure_step(name, larger, text, folder)
        share = base / batch
        step = again._replace(
            cfg=cfg,
            tokens_per_step=share * again.tokens_per_step,
            step_bytes=round(share * again.step_bytes * parts / cfg.train.microbatches),
        )


def _step_bytes(step: MeasuredStep, batch: int, microbatches: int) -> float:
    """Returns the bytes that a step with another batch needs besides the state."""
    train = step.cfg.train
    return step.step_bytes * batch / train.batch_size * train.microbatches / microbatches


def _microbatches(step: MeasuredStep, batch: int) -> int:
    """Returns into how many parts a batch is cut: those of the config, doubled until each fits into the memory."""
    free, parts = _free_bytes() - step.state_bytes, step.cfg.train.microbatches
    while _step_bytes(step, batch, parts) > free and batch // parts > step.cfg.train.batch_size:
        parts *= 2
    return parts


def _guess(smaller: MeasuredStep, name: str, cfg: ConfigDict) -> MeasuredStep:
    """Guesses the step of a larger size: as many FLOPs per second as the smaller one, longer tokens if it has more."""
    scale = (body := body_parameters(cfg)) / smaller.body
    longer = (cfg.data.vocab_size / smaller.cfg.data.vocab_size) ** _TOKEN_LENGTH
    return smaller._replace(
        title=name,
        cfg=cfg,
        parameters=round(smaller.parameters * scale),
        body=body,
        tokens_per_second=smaller.tokens_per_second / scale,
        tokens_per_byte=smaller.tokens_per_byte / longer,
        step_bytes=round(smaller.step_bytes * math.sqrt(scale)),
        state_bytes=round(smaller.state_bytes * scale),
    )


def _free_bytes() -> float:
    """Returns the memory per device that a run may take; no limit where a device does not say what it has."""
    if jax.default_backend() == "cpu":
        free = available_bytes()
    else:
        free = min((device.memory_stats() or {}).get("bytes_limit", math.inf) for device in jax.local_devices())
    return math.inf if free is None else _MEMORY_SHARE * free


def _hopeless(text: TextSize, measured: list[MeasuredStep], guess: MeasuredStep, seconds: float) -> str:
    """Returns why a size need not be measured, "" if it may be the best."""
    consider = functools.partial(_planned_run, read_law(), text)
    fast = consider(guess._replace(tokens_per_second=_OPTIMISM * guess.tokens_per_second), seconds)
    best = _best([consider(step, seconds) for step in measured])
    if fast.steps < MIN_STEPS:
        return f"fewer than {MIN_STEPS} steps in this time"
    return "" if best is None or fast.nats_per_byte < best.nats_per_byte else "too slow here to be better"


def body_parameters(cfg: ConfigDict) -> int:
    """Returns the parameters of the layers of a gated encoder."""
    model = cfg.model
    return int(model.num_layers * (4 * model.hidden_size**2 + 3 * model.hidden_size * model.intermediate_size))


def _planned_run(law: LossLaw, text: TextSize, step: MeasuredStep, seconds: float) -> PlannedRun:
    steps = step.steps_in(seconds)
    tokens = step.tokens_of(steps)
    unique = text.bytes * step.tokens_per_byte
    expected = law.expect(step.body, max(tokens, step.tokens_per_step), unique)
    return PlannedRun(step, seconds, steps, tokens, tokens / unique, unique, expected)


def _best(candidates: tuple[PlannedRun, ...] | list[PlannedRun]) -> PlannedRun | None:
    long_enough = [each for each in candidates if each.steps >= MIN_STEPS]
    return min(long_enough, key=lambda each: each.nats_per_byte, default=None)


def _limit(law: LossLaw, best: PlannedRun, tenfold: PlannedRun, skipped: Mapping[str, str]) -> str:
    """Returns what ten times as much of would lower the expected loss most."""
    more_text = law.expect(best.step.body, best.tokens, 10 * best.unique).median * best.step.nats_per_byte
    gains = {"time": best.nats_per_byte - tenfold.nats_per_byte, "text": best.nats_per_byte - more_text}
    if any("memory" in reason for reason in skipped.values()) and best.step is max(
        (best.step, tenfold.step), key=lambda step: step.body
    ):
        return "memory"
    return max(gains, key=lambda name: gains[name])


def _plan_values(best: PlannedRun, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values by dotted key that the length of the run decides; a batch of the command line stays."""
    batch = base_batch = best.step.cfg.train.batch_size
    if _BATCH not in overrides:
        batch = batch_size(best.tokens, best.step.cfg.data.seq_len)
    values: dict[str, Any] = {"train.num_steps": max(round(best.steps * base_batch / batch), MIN_STEPS)}
    if batch != base_batch:
        rate = best.step.cfg.optimizer.learning_rate * math.sqrt(batch / base_batch)
        values |= {_BATCH: batch, "optimizer.learning_rate": float(f"{rate:.2g}")}
    if (parts := _microbatches(best.step, batch)) != best.step.cfg.train.microbatches:
        values["train.microbatches"] = parts
    if best.epochs > MANY_EPOCHS:
        values["optimizer.weight_decay"] = 4 * best.step.cfg.optimizer.weight_decay
    return values


def batch_size(tokens: float, seq_len: int) -> int:
    """Returns the sequences of a batch, the power of 2 below 0.29 D^0.571 tokens for a run of D.

    That is half of what causal models take (arXiv:2503.04715): with a batch of twice the tokens the recipe learned less
    in 15 million (docs/results.md). It is at least 16, and 32 from `SHORT_RUN` on: smaller batches were not measured.

    Args:
        tokens: tokens of the run.
        seq_len: tokens of a sequence.
    """
    tokens_per_batch = 0.29 * tokens**0.571
    return max(16 if tokens < SHORT_RUN else 32, 2 ** math.floor(math.log2(max(tokens_per_batch / seq_len, 1.0))))
