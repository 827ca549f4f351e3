"""Plans of runs: size, length and batch for a text and a time, and the loss to expect."""

from __future__ import annotations

import datetime
import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import jax

from bertjax.commands.arguments import Flag, Out
from bertjax.commands.signatures import command
from bertjax.errors import UserError, named
from bertjax.io.output import Results, format_bytes, format_count, open_output, require_output
from bertjax.io.stderr import note
from bertjax.tools.loss_law import Expected, read_law
from bertjax.tools.plan import RECIPE, Plan, PlannedRun, make_plan

_TOKEN_BYTES = 2  # of the cached text, with vocabularies below 65,536
_STATES = 3  # checkpoints that are drawn


@command
def plan(
    text: Annotated[Sequence[str], Flag(nargs="+", metavar="SOURCE", key="data.sources")],
    minutes: float,
    *,
    save: Out = None,
) -> Results:
    """Say what to train on a text in so many minutes, and what it will be worth.

    Measures the sizes of the config bertjax by a few steps each on a sample of the text.

    Args:
        text: text to train on, as in data.sources, such as text:corpus/*.txt.gz
        minutes: minutes of training, with its compilation and export; the text is prepared before
        save: .py file for the config of the plan

    Returns:
        The values of the plan.

    Raises:
        UserError: there is no text, or the time is too short.

    Example:
        bertjax plan --text 'text:corpus/*.txt.gz' --minutes 150
    """
    if save is not None:
        require_output(save)
        if Path(save).suffix != ".py":
            raise UserError(f"{named('save', save)} must end in .py")
    texts = (text,) if isinstance(text, str) else tuple(text)
    planned = make_plan(minutes, {"data.sources": texts}, note)
    lines = describe_plan(planned)
    config, sources = RECIPE, f" --config.data.sources={shlex.quote(','.join(texts))}"
    if save is not None:
        with open_output(save, "w") as file:
            file.write(config_file(planned, texts))
        config, sources = shlex.quote(str(save)), ""
    lines += ["train it with", f"    bertjax pretrain --config {config} --minutes {minutes:g} --workdir RUN{sources}"]
    return Results(values_of(planned), lines)


def describe_plan(plan: Plan) -> list[str]:
    """Returns the plan in lines."""
    best, text = plan.best, plan.text
    step, cfg = best.step, plan.cfg
    about = "" if text.is_exact else "about "
    state = step.state_bytes * len(jax.devices())
    parts = f" in {train.microbatches} microbatches" if (train := cfg.train).microbatches > 1 else ""
    lines = [
        f"text      {about}{text.bytes / 1e6:,.1f} MB in {about}{text.documents:,} documents; "
        f"{format_count(best.unique)} tokens of a vocabulary of {cfg.data.vocab_size:,}",
        f"train     {plan.name}: {cfg.model.num_layers} layers of {cfg.model.hidden_size}, "
        f"{format_count(step.parameters)} parameters; {step.tokens_per_second:,.0f} tokens/s here",
        f"          {train.num_steps:,} steps of {train.batch_size} x {cfg.data.seq_len} tokens{parts}: "
        f"{format_count(best.tokens)} tokens, {format_epochs(best.epochs)} of the text",
        f"          learning rate {cfg.optimizer.learning_rate:g}, weight decay {cfg.optimizer.weight_decay:g}, "
        f"schedule {cfg.schedule.name}",
        f"expect    held-out loss {_loss(best.loss)}; guessing by frequency: {step.unigram:.2f}",
        f"          limited by {plan.limit}",
    ]
    if not read_law().covers(step.body, best.tokens):
        lines += ["          (outside the runs that the law was fitted to: an extrapolation)"]
    lines += [
        f"memory    {format_bytes(plan.memory_bytes)} per device",
        f"disk      {format_bytes(_TOKEN_BYTES * best.unique + _STATES * state + 4 * step.parameters)}",
        "size          tokens/s    tokens   epochs   loss (nats per byte)",
    ]
    for each in plan.sizes:
        mark = "<-" if each.step is step else ""
        lines.append(
            f"{each.step.title:13} {each.step.tokens_per_second:8,.0f} {format_count(each.tokens):>9} "
            f"{each.epochs:8.2f}   {each.loss.median:.2f} ({each.nats_per_byte:.3f}) {mark}".rstrip()
        )
    lines += [f"{size:13} {reason}" for size, reason in plan.skipped.items()]
    for name, other in (("half the time", plan.half), ("ten times", plan.tenfold)):
        lines.append(
            f"{name:13} {other.step.title}, {format_count(other.tokens)} tokens, {format_epochs(other.epochs)}: "
            f"loss {_loss(other.loss)}"
        )
    return lines


def values_of(plan: Plan) -> dict[str, Any]:
    """Returns the numbers of a plan by name."""
    best = plan.best
    return {
        "config": plan.name,
        "changes": plan.changes,
        "minutes": plan.minutes,
        "text_bytes": plan.text.bytes,
        "documents": plan.text.documents,
        "tokens": best.tokens,
        "epochs": best.epochs,
        "parameters": best.step.parameters,
        "tokens_per_second": best.step.tokens_per_second,
        "loss": best.loss._asdict(),
        "unigram_loss": best.step.unigram,
        "limit": plan.limit,
        "sizes": {each.step.title: _numbers(each) for each in plan.sizes},
        "half": {"config": plan.half.step.title, **_numbers(plan.half)},
        "tenfold": {"config": plan.tenfold.step.title, **_numbers(plan.tenfold)},
    }


def _numbers(candidate: PlannedRun) -> dict[str, float]:
    return {
        "tokens_per_second": candidate.step.tokens_per_second,
        "tokens": candidate.tokens,
        "epochs": candidate.epochs,
        "loss": candidate.loss.median,
        "nats_per_byte": candidate.nats_per_byte,
    }


def config_file(plan: Plan, texts: Sequence[str]) -> str:
    """Returns the source of a config file."""
    values = {"data.sources": tuple(texts), **plan.changes}
    shown = "".join(f"    {json.dumps(key)}: {value!r},\n" for key, value in values.items())
    return (
        f'"""{plan.name} for {plan.minutes:g} minutes on {len(jax.devices())} x {jax.devices()[0].device_kind}, '
        f'planned on {datetime.date.today()}: `bertjax plan`."""\n\n'
        "from bertjax.config.overrides import load_config, set_values\n\n"
        f"VALUES = {{\n{shown}}}\n\n\n"
        "def get_config():\n"
        f"    return set_values(load_config({plan.name!r}), VALUES)\n"
    )


def _loss(loss: Expected) -> str:
    return f"{loss.median:.2f} ({loss.low:.2f} to {loss.high:.2f})"


def format_epochs(epochs: float) -> str:
    return f"{epochs:.2f} epochs" if epochs < 1 else f"{epochs:.1f} epochs"
