"""Settings of a run as a whole: seed, start, platform, outputs; the intervals that follow its length."""

from __future__ import annotations

import dataclasses
import functools

from ml_collections import ConfigDict, FieldReference

from bertjax.config.fields import Settings, setting
from bertjax.config.nodes import derived


def interval(steps: int, times: int, at_least: int) -> int:
    """Returns the number of steps between two events.

    Args:
        steps: Length of the run in steps.
        times: Number of events per run.
        at_least: Smallest interval.
    """
    return max(-(-steps // times), at_least)


def every(config: ConfigDict, times: int, at_least: int = 100) -> FieldReference:
    """Returns a reference to the interval at which something happens `times` times per run.

    Args:
        config: The config whose `train.num_steps` it follows.
        times: Number of events.
        at_least: Smallest interval in steps, so that short runs are not spent on evaluations and checkpoints.
    """
    return derived(config, "train.num_steps", functools.partial(interval, times=times, at_least=at_least))


def warmup(steps: int) -> int:
    """Returns the default of `schedule.warmup_steps`: a hundredth of the run."""
    return steps // 100


def log_interval(steps: int) -> int:
    """Returns the default of `train.log_interval_steps`: about 200 lines per run."""
    return interval(steps, 200, at_least=10)


def eval_interval(steps: int) -> int:
    """Returns the default of `eval.interval_steps` and `checkpoint.interval_steps`: 20 per run."""
    return interval(steps, 20, at_least=100)


@dataclasses.dataclass(frozen=True)
class RunConfig(Settings):
    """The keys without a group."""

    seed: int = setting(
        0, at_least=0, at_most=2**32 - 1, help="Seeds everything random: weights, order of the data, masks, dropout."
    )
    init_from: str | None = setting(
        None,
        path=True,
        resume=True,
        help="Folder of a model (ours or Hugging Face's), or hub:NAME[@REVISION], whose weights a run without "
        "checkpoints starts from; None: random weights.",
    )
    resume_from: str | None = setting(
        None,
        resume=True,
        help="RUN@STEP: checkpoint of another run whose state a run without checkpoints starts from: weights, "
        "optimizer, step and position in the data. Schedule, text and other settings may differ; None: a new state.",
    )
    init_embeddings: str = setting(
        "refuse",
        choices=("refuse", "remap"),
        resume=True,
        help="If `init_from` has another tokenizer: refuse, or remap: equal tokens keep their embeddings, others start "
        "as the mean of the old tokenizer's tokens of their text.",
    )
    init_positions: str = setting(
        "tile",
        choices=("tile", "interpolate"),
        resume=True,
        help="If `init_from` has fewer positions: tile repeats its table, interpolate stretches it. A longer table is "
        "cut.",
    )
    init_growth: str = setting(
        "refuse",
        choices=("refuse", "tile", "stack", "identity"),
        resume=True,
        help="If `init_from` is smaller: refuse, or copy its units and layers. tile: each layer repeated before the "
        "next (ModernBERT); stack: the stack repeated, sums over copies divided by their number; identity: as stack, "
        "and added layers begin by adding nothing. At the start, the held-out loss is compared.",
    )
    dry_run: bool = setting(
        False, resume=True, help="Print parameters, FLOPs, memory, tokens and epochs; train and write nothing."
    )
    platform: str = setting(
        "any",
        choices=("any", "cpu", "gpu", "tpu"),
        resume=True,
        help="Required platform; the run fails rather than fall back to another.",
    )
    deterministic: bool = setting(
        False,
        resume=True,
        help="Stop where the same command could give other numbers: train.dropout_prng=rbg, or a GPU without "
        "XLA_FLAGS=--xla_gpu_deterministic_ops=true in the environment.",
    )
    compile_cache: bool = setting(
        True,
        resume=True,
        help="Keep compiled steps in `data.cache_dir`/xla, so that the next run of the same shapes does not compile. "
        "JAX_COMPILATION_CACHE_DIR in the environment names another folder.",
    )


@dataclasses.dataclass(frozen=True)
class ExportConfig(Settings, group="export", resume=True):
    """The Hugging Face folder of a run."""

    at_end: bool = setting(True, help="Write `export/`, a Hugging Face folder, into the workdir when the run ends.")
    average_last: int = setting(
        1,
        at_least=1,
        help="Checkpoints in the last fifth of the run whose mean is exported at its end, and in a task scored; at "
        "most `checkpoint.keep`. 1: the weights themselves.",
    )


@dataclasses.dataclass(frozen=True)
class LoggingConfig(Settings, group="logging", resume=True):
    """Writers of metrics besides metrics.jsonl, which is always written."""

    tensorboard: bool = setting(True, help="Write TensorBoard events into the workdir.")
    wandb_project: str | None = setting(
        None, help="Weights & Biases project to report to (needs the extra `wandb`); None: none."
    )


@dataclasses.dataclass(frozen=True)
class ReportConfig(Settings, group="report", resume=True):
    """`report.html` in the workdir, rewritten after every evaluation."""

    enabled: bool = setting(
        True,
        help="Write the report and probe the model for it: predictions for `eval.fill_mask` at every evaluation, "
        "attention and nearest tokens four times per run. false: `bertjax report` can still draw the metrics later.",
    )
    sentence: str | None = setting(
        None, help='Sentence whose attention is shown, up to 24 tokens; None: the first of `eval.fill_mask`, "": none.'
    )
    tokens: tuple[str, ...] = setting(
        (), help="Tokens whose nearest neighbors in the embedding table are shown; (): eight frequent words."
    )


GROUPS: tuple[type[Settings], ...] = (
    RunConfig,
    ExportConfig,
    LoggingConfig,
    ReportConfig,
)
"""The dataclasses that declare these keys."""
