"""Shows the batches of a config as the model sees them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict
from rich.console import Console
from rich.text import Text

from bertjax.data import from_config
from bertjax.data.tokenizer import Tokenizer
from bertjax.errors import UserError
from bertjax.experiment import build
from bertjax.experiment.teacher import read_teacher
from bertjax.io.atomic import atomic_file
from bertjax.training.state import purpose_key

_WEIGHTS = ("masked_weights", "next_weights", "target_weights")
"""Weights of predictions: masked tokens, or for causal models every token with a next one."""

PAIR_NAMES = ("B follows A", "B does not follow A")


def inspect_data(cfg: ConfigDict, num_batches: int, num_sequences: int, out: Path | None, first: int = 0) -> None:
    """Prints sequences of some batches of a run, with the masks of their phase.

    Args:
        cfg: checked config.
        num_batches: number of batches.
        num_sequences: sequences to print per batch.
        out: .npz file for all arrays of the batches.
        first: number of the first batch.

    Raises:
        UserError: the run has no such batches, their text cannot be prepared, or `out` cannot be written or would hold
            batches of two shapes.
    """
    if num_batches < 1:
        raise UserError(f"--batches must be at least 1, not {num_batches}")
    if not 0 <= first <= cfg.train.num_steps - num_batches:
        raise UserError(
            f"--first {first}, --batches {num_batches}: the run has the batches 0 to {cfg.train.num_steps - 1}"
        )
    if out is not None and out.suffix != ".npz":
        raise UserError(f"--out {out} must end in .npz")
    prepared = from_config.prepare(cfg)
    teacher = read_teacher(cfg, prepared.tokenizer)
    exp = build.make_experiment(cfg, prepared.vocabulary, None if teacher is None else teacher.network)
    pipeline = from_config.training_pipeline(cfg, prepared)
    corrupt = jax.jit(lambda objective, *arguments: objective.corrupt(*arguments), static_argnums=0)
    key = purpose_key(cfg.seed, "corrupt")
    batches = [
        jax.device_get(corrupt(exp.at(cursor + 1).objective, pipeline.batch(cursor), key, np.int32(cursor)))
        for cursor in range(first, first + num_batches)
    ]
    if out is not None and len({tuple(array.shape for array in batch.values()) for batch in batches}) > 1:
        raise UserError(
            f"--out {out}: these batches are of phases with other shapes; write those of one phase at a time"
        )
    console = Console(soft_wrap=True, highlight=False)
    for cursor, batch in enumerate(batches, first):
        for name, part in members(batch).items():
            console.print(f"batch {cursor}{f', {name}' if name else ''}: {describe(part)}")
            for row in range(min(num_sequences, len(part["input_ids"]))):
                console.print(render_row(part, row, prepared.tokenizer))
    if out is not None:
        write_arrays(out, batches)
        console.print(
            f"{num_batches} {'batch' if num_batches == 1 else 'batches'} in {out}: " + ", ".join(sorted(batches[0]))
        )


def members(batch: dict[str, np.ndarray]) -> dict[str, dict[str, np.ndarray]]:
    """Splits the batch of a mixture of objectives by member; other batches have one member without a name."""
    if "input_ids" in batch:
        return {"": batch}
    by_member: dict[str, dict[str, np.ndarray]] = {}
    for label, value in batch.items():
        name, _, array_name = label.partition("/")
        by_member.setdefault(name, {})[array_name] = value
    return by_member


def describe(batch: dict[str, np.ndarray]) -> str:
    """Describes a batch: sequences, packed examples, padding, predictions, labels."""
    real = batch["segment_ids"] > 0
    parts = [f"{real.shape[0]} sequences of {real.shape[1]}", f"padding {100 * (1 - real.mean()):.1f} %"]
    examples = batch["example_weights"]
    if examples.shape[1] > 1:
        parts.insert(1, f"{examples.sum() / len(examples):.2f} examples per sequence")
    weights = next((batch[name] for name in _WEIGHTS if name in batch), None)
    if weights is not None:
        predicted = int(weights.sum())
        parts.append(f"{predicted} predictions ({100 * predicted / max(real.sum(), 1):.1f} % of the tokens)")
    if "pair_labels" in batch:
        unrelated = float(batch["pair_labels"].sum() / max(examples.sum(), 1))
        parts.append(f"{100 * unrelated:.1f} % of the pairs do not follow each other")
    return ", ".join(parts)


def render_row(batch: dict[str, Any], row: int, tokenizer: Tokenizer) -> Text:
    """Renders one sequence: masked tokens as `[original -> input]`, colors by segment, lines by example, the target.

    Args:
        batch: the batch.
        row: index of the sequence.
        tokenizer: tokenizer of the run.
    """
    text = Text()
    latest = 0
    predicted: set[int] = set()
    if "masked_positions" in batch:
        predicted = set(batch["masked_positions"][row][batch["masked_weights"][row] > 0].tolist())
    for position in np.flatnonzero(batch["segment_ids"][row]):
        example = int(batch["segment_ids"][row, position])
        if example != latest:
            text.append(_heading(batch, row, example), style="bold")
            latest = example
        token = tokenizer.tokens[batch["input_ids"][row, position]]
        if position in predicted:
            # a permutation masks no input
            original = tokenizer.tokens[batch.get("original_ids", batch["input_ids"])[row, position]]
            replaced = f" -> {'kept' if token == original else token}" if "original_ids" in batch else ""
            text.append(f"[{original}{replaced}] ", style="bold red")
        elif batch["input_ids"][row, position] in tokenizer.special_ids:
            text.append(f"{token} ", style="dim")
        else:
            text.append(f"{token} ", style="cyan" if batch["token_type_ids"][row, position] else "green")
    padding = int((batch["segment_ids"][row] == 0).sum())
    if padding:
        text.append(f"+ {padding} padding", style="dim")
    if "target_ids" in batch:
        ids = batch["target_ids"][row][batch["target_segment_ids"][row] > 0]
        text.append(f"\n  target: {' '.join(tokenizer.tokens[each] for each in ids)}", style="bold red")
    return text


def _heading(batch: dict[str, Any], row: int, example: int) -> str:
    """Returns the text before an example: a new line unless it is the first, and the label of its pair."""
    sign = "\n  & " if example > 1 else ""
    label = f"  ({PAIR_NAMES[int(batch['pair_labels'][row, example - 1])]}) " if "pair_labels" in batch else ""
    return sign + (label.lstrip() if sign else label)


def write_arrays(out: Path, batches: list[dict[str, np.ndarray]]) -> None:
    """Writes an npz with all arrays of the batches, concatenated along their first axis.

    Raises:
        UserError: the file cannot be written.
    """
    arrays = {name: np.concatenate([np.asarray(batch[name]) for batch in batches]) for name in batches[0]}
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(out) as file:
            np.savez_compressed(file, allow_pickle=False, **arrays)
    except OSError as error:
        raise UserError(f"cannot write {out}: {error.strerror or error}") from error
