"""Speed and memory of a step on this machine, on a sample of the text that it is to read.

The size of the text is estimated from what was read of it in some seconds. For a comparison with `transformers` on a
CPU the batch is made smaller until a step of both sides fits into the memory that is left.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from bertjax.config.model import EncoderConfig, encoder_config
from bertjax.config.overrides import copy_config, set_values
from bertjax.config.source_files import source_entries
from bertjax.config.sources import Source
from bertjax.data import from_config
from bertjax.data.readers import DocumentStats
from bertjax.data.sources import held_out_number, iter_documents
from bertjax.errors import UserError
from bertjax.experiment import build
from bertjax.io.output import format_bytes
from bertjax.io.stderr import note
from bertjax.tools.bertjax_runner import BertjaxRunner
from bertjax.tools.run_length import Cost, run_seconds, run_slots, steps_in

_READING_SECONDS = 20.0  # over all sources
SAMPLE_BYTES = 3_000_000
SECTION = 20_000
"""Characters after which the sample takes another decision: one document may be a whole library."""


class TextSize(NamedTuple):
    """Size of a text.

    Attributes:
        documents: documents; estimated unless `is_exact`.
        bytes: bytes of UTF-8; estimated unless `is_exact`.
        is_exact: whether all was read.
        sample: file of JSON lines (`text`), drawn from what was read.
        sample_bytes: bytes of UTF-8 in it.
    """

    documents: int
    bytes: int
    is_exact: bool
    sample: Path
    sample_bytes: int


def measure_text(sources: Sequence[Source], errors: str, folder: Path, seconds: float = _READING_SECONDS) -> TextSize:
    """Reads sources for some seconds and writes a sample of them.

    Args:
        sources: the sources.
        errors: as in `iter_documents`.
        folder: the sample is written here.
        seconds: time for all sources.

    Raises:
        UserError: a source cannot be read, or holds no text.
    """
    sample = _Sample()
    documents = size = 0.0
    is_exact = True
    for source in sources:
        reading = DocumentStats()
        on_disk = sum(entry.size for entry in source_entries(source).values()) if source.spec.is_file else 0
        end = time.monotonic() + seconds / len(sources)
        read, count, complete = 0, 0, True
        for document in iter_documents(source, errors, reading):
            count += 1
            read += len(document.encode())
            sample.add(document)
            if time.monotonic() > end:
                complete = False
                break
        factor = 1.0 if complete or not reading.bytes else max(on_disk / reading.bytes, 1.0)
        is_exact &= complete
        documents, size = documents + factor * count, size + factor * read
    if not size:
        raise UserError(f"{', '.join(source.text for source in sources)}: there is no text in it")
    path = folder / "sample.jsonl"
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps({"text": section}, ensure_ascii=False) + "\n" for section in sample.sections)
    return TextSize(round(documents), round(size), is_exact, path, sample.size)


class _Sample:
    """A sample of at most twice `SAMPLE_BYTES`: every section is as likely as any other, and a text has one sample."""

    def __init__(self) -> None:
        self._drawn: list[tuple[int, str]] = []
        self.size, self._limit, self._count = 0, 2**64, 0

    @property
    def sections(self) -> list[str]:
        return [section for _, section in self._drawn]

    def add(self, document: str) -> None:
        for section in _sections(document):
            self._count += 1
            if (number := held_out_number(str(self._count))) < self._limit:
                self._drawn.append((number, section))
                self.size += len(section.encode())
        while self.size > 2 * SAMPLE_BYTES and len(self._drawn) > 1:
            self._limit //= 2
            self._drawn = [each for each in self._drawn if each[0] < self._limit]
            self.size = sum(len(section.encode()) for _, section in self._drawn)


def _sections(document: str) -> Iterator[str]:
    while len(document) > SECTION:
        end = (
            document.rfind("\n", SECTION // 2, SECTION) + 1 or document.rfind(" ", SECTION // 2, SECTION) + 1 or SECTION
        )
        yield document[:end]
        document = document[end:]
    yield document


_TIMED_SECONDS = 6.0  # of the steps that are timed
EVALUATION_SHARE = 0.1  # of a run: held-out text, checkpoints, the export


class MeasuredStep(NamedTuple):
    """A config with what its step takes here.

    Attributes:
        title: name of the config.
        cfg: the config.
        parameters: parameters of the model.
        body: those without the word table.
        tokens_per_second: real tokens per second of training alone.
        tokens_per_step: real tokens of a step of the last phase, as all that is measured.
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

    @property
    def cost(self) -> Cost:
        """Seconds of slots of the last phase and of compiling, without evaluations and export."""
        return Cost(self.tokens_per_step / self._slots / self.tokens_per_second, self.compile_seconds)

    @property
    def _slots(self) -> int:
        return int(self.cfg.train.batch_size * self.cfg.data.seq_len)

    def steps_in(self, seconds: float) -> int:
        """Returns the steps of a run that takes `seconds`, with its compilation, evaluations and export."""
        return steps_in(self.cfg, seconds * (1.0 - EVALUATION_SHARE), self.cost)

    def seconds_of(self, num_steps: int) -> float:
        """Returns the seconds of a run of so many steps, with its compilation, evaluations and export."""
        return run_seconds(self.cfg, num_steps, self.cost) / (1.0 - EVALUATION_SHARE)

    def tokens_of(self, num_steps: int) -> float:
        """Returns the real tokens of a run of so many steps."""
        return sum(run_slots(self.cfg, num_steps)) * self.tokens_per_step / self._slots


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
        timed = runner.run(max(1, min(50, int(_TIMED_SECONDS / first.seconds_per_step))))
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


_SHARE = 0.5  # of the available memory; the rest is for both states, libraries and the estimate's error
_COMPARED_SECONDS = 4.0  # of a step of transformers: with its compilation and its trials all repeats take some minutes
_FLOPS_PER_SECOND = 20e9  # of a core; measured steps took 0.6 to 3 times as long as this says (Zen 3)
_CGROUP = Path("/sys/fs/cgroup")


def step_bytes(model: EncoderConfig, vocab_size: int, tokens: int) -> int:
    """Estimates the float32 bytes that a step of `transformers` and one of bertjax keep at once.

    `transformers` computes the logits of all tokens, and holds them, their normalized form and its gradient.
    """
    per_layer = 2 * (16 * model.hidden_size + 3 * model.intermediate_size)
    return 4 * tokens * (3 * vocab_size + model.num_layers * per_layer)


def step_seconds(model: EncoderConfig, vocab_size: int, tokens: int) -> float:
    """Estimates the seconds of a step of `transformers` on this CPU, which computes the logits of all tokens."""
    per_layer = 4 * model.hidden_size**2 + 3 * model.hidden_size * model.intermediate_size
    flops = 6 * tokens * (vocab_size * model.hidden_size + model.num_layers * per_layer)
    return flops / (_FLOPS_PER_SECOND * (os.cpu_count() or 1))


def available_bytes() -> int | None:
    """Returns the memory that this process may still take on Linux; None elsewhere."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        available = next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return None
    try:
        limit, used = ((_CGROUP / f"memory.{name}").read_text().strip() for name in ("max", "current"))
    except OSError:
        return available
    return available if limit == "max" else min(available, max(0, int(limit) - int(used)))


def fit_batch(cfg: ConfigDict, vocab_size: int, devices: int) -> None:
    """Halves `train.batch_size` until a step of both sides fits into the memory and takes seconds, and says so.

    Args:
        cfg: the config; its batch is changed in place.
        vocab_size: tokens of the prepared tokenizer.
        devices: a batch stays a multiple of so many sequences.
    """
    available, batch_size = available_bytes(), cfg.train.batch_size
    model = encoder_config(cfg)
    per_sequence = step_bytes(model, vocab_size, cfg.data.seq_len)
    seconds = step_seconds(model, vocab_size, cfg.data.seq_len)
    limits = [_COMPARED_SECONDS / seconds, *([] if available is None else [_SHARE * available / per_sequence])]
    while batch_size % (2 * devices) == 0 and batch_size > min(limits):
        batch_size //= 2
    if batch_size < cfg.train.batch_size:
        needed = format_bytes(cfg.train.batch_size * per_sequence)
        free = "" if available is None else f" of the {format_bytes(available)} that are available"
        note(
            f"train.batch_size={batch_size} instead of {cfg.train.batch_size} for both sides: a step of transformers "
            f"would take about {cfg.train.batch_size * seconds:.0f} s and {needed}{free}"
        )
        cfg.train.batch_size = batch_size
