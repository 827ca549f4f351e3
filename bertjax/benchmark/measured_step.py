"""Speed and memory of the step of a config on this machine, on a sample of the text that it is to read."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from bertjax.benchmark.bertjax_runner import BertjaxRunner
from bertjax.benchmark.text_size import TextSize
from bertjax.config.overrides import copy_config, set_values
from bertjax.data import from_config
from bertjax.experiment import build

SECONDS = 6.0  # of the steps that are timed
EVALUATION_SHARE = 0.1  # of a run: held-out text, checkpoints, the export


class MeasuredStep(NamedTuple):
    """A config with what its step takes here.

    Attributes:
        title: name of the config.
        cfg: the config.
        parameters: parameters of the model.
        body: those without the word table.
        tokens_per_second: real tokens per second of training alone.
        tokens_per_step: real tokens of a step.
        tokens_per_byte: tokens of a byte of the text.
        unigram: nats of guessing tokens by their frequency.
        state_bytes: bytes of weights and moments per device.
        step_bytes: bytes that a step needs besides.
        compile_seconds: seconds to compile it.
    """

    title: str
    cfg: ConfigDict
    parameters: int
    body: int
    tokens_per_second: float
    tokens_per_step: float
    tokens_per_byte: float
    unigram: float
    state_bytes: int
    step_bytes: int
    compile_seconds: float

    @property
    def nats_per_byte(self) -> float:
        """Nats per byte of guessing tokens by their frequency, in which vocabularies can be compared."""
        return self.unigram * self.tokens_per_byte

    def steps_in(self, seconds: float) -> int:
        """Returns the steps of a run that takes `seconds`, with its compilation, evaluations and export."""
        usable = seconds * (1.0 - EVALUATION_SHARE) - self.compile_seconds
        return int(usable * self.tokens_per_second / self.tokens_per_step)


def measure_step(title: str, cfg: ConfigDict, text: TextSize, folder: Path) -> MeasuredStep:
    """Trains a few steps on the sample of a text; a tokenizer that a config trains is trained on the sample.

    Args:
        title: name of the config.
        cfg: the config.
        text: the text.
        folder: cache of the prepared sample.
    """
    trial = copy_config(cfg)
    values: dict[str, Any] = {
        "data.sources": (f"jsonl:{text.sample}#text",),
        "data.eval_sources": (),
        "data.eval_fraction": 0.05,
        "data.cache_dir": str(folder),
        "data.workers": 1,
        "data.decontaminate": (),
    }
    set_values(trial, values)
    with contextlib.redirect_stdout(io.StringIO()):
        prepared = from_config.prepare(trial)
    exp = build.make_experiment(trial, prepared.vocabulary)
    with contextlib.closing(BertjaxRunner(exp, prepared)) as runner:
        first = runner.run(1)
        timed = runner.run(max(1, min(50, int(SECONDS / first.seconds_per_step))))
        step_bytes, state_bytes, compile_seconds = runner.step_bytes or 0, runner.state_bytes, runner.compile_seconds
    counts = np.asarray(prepared.vocabulary.counts, np.float64)
    shares = counts[counts > 0] / counts.sum()
    tokens = sum(part.tokens for corpus in prepared.training.values() for part in corpus.splits.values())
    parameters = sum(leaf.size for leaf in jax.tree.leaves(exp.abstract_state().params))
    table = prepared.vocabulary.padded_size * (exp.model.embedding_size or exp.model.hidden_size)
    return MeasuredStep(
        title=title,
        cfg=cfg,
        parameters=parameters,
        body=parameters - table,
        tokens_per_second=timed.real_tokens / timed.seconds,
        tokens_per_step=timed.real_tokens / timed.steps,
        tokens_per_byte=tokens / text.sample_bytes,
        unigram=float(-np.sum(shares * np.log(shares))),
        state_bytes=state_bytes,
        step_bytes=step_bytes,
        compile_seconds=compile_seconds,
    )
