"""Batches and objective of a config, for a training loop of one's own: those of `bertjax pretrain`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from ml_collections import ConfigDict

from bertjax.data import from_config
from bertjax.data.from_config import Prepared
from bertjax.data.pipeline import ALL_SEQUENCES, SequenceIndex
from bertjax.data.tokenizer import Tokenizer
from bertjax.experiment.config import load_config, parse
from bertjax.objectives.base import Objective
from bertjax.types import Batch, Vocabulary


class CorpusBatches:
    """The training batches of a config, by cursor: the same for the same seed, however often they are read.

    Iterating yields the `train.num_steps` batches of the config, made ahead in a thread; `batches[cursor]` is any one.
    A batch is a dict of NumPy arrays (see `bertjax.types`): `input_ids`, `segment_ids` (0 = padding, otherwise the
    number of the example in its sequence), `position_ids`, `token_type_ids`, all int32 [B, S], and facts of every
    example. Nothing is masked yet: that is the objective's.

    Attributes:
        config: The checked config.
        tokenizer: The tokenizer that `data.tokenizer` names, or that was trained on the text.
        vocabulary: What an objective needs to know of it.
    """

    def __init__(self, config: ConfigDict, prepared: Prepared):
        self.config, self._prepared = config, prepared
        self.tokenizer: Tokenizer = prepared.tokenizer
        self.vocabulary: Vocabulary = prepared.vocabulary
        self._pipeline = from_config.training_pipeline(config, prepared)

    def __repr__(self) -> str:
        sequences = sum(self.sequences_per_epoch.values())
        size, length = self.config.train.batch_size, self.config.data.seq_len
        return f"CorpusBatches({len(self):,} batches of {size} x {length} tokens, {sequences:,} sequences per epoch)"

    def __len__(self) -> int:
        return self.config.train.num_steps

    def __iter__(self) -> Iterator[Batch]:
        return self.iterate()

    def __getitem__(self, cursor: int) -> Batch:
        return self.batch(cursor)

    def iterate(self, start: int = 0, stop: int | None = None) -> Iterator[Batch]:
        """Yields the batches [start, stop), made ahead in a thread; `stop` is `train.num_steps` by default."""
        with self._pipeline.prefetch(start, len(self) if stop is None else stop) as prefetched:
            for _, batch in prefetched:
                yield batch

    def batch(self, cursor: int, sequences: SequenceIndex = ALL_SEQUENCES) -> Batch:
        """Returns batch number `cursor`, or some of its sequences, such as those of one host."""
        return self._pipeline.batch(cursor, sequences)

    @property
    def sequences_per_epoch(self) -> Mapping[str, int]:
        """Sequences in the first epoch of every source."""
        return self._pipeline.sequences_per_epoch

    @cached_property
    def held_out(self) -> dict[str, list[Batch]]:
        """The held-out batches of every source, the same for every seed."""
        return from_config.eval_sets(self.config, self._prepared)


def batches(config: str | os.PathLike[str] | ConfigDict, overrides: Mapping[str, Any] | None = None) -> CorpusBatches:
    """Prepares the text of a config, or opens it in `data.cache_dir`, and returns its training batches.

    Args:
        config: Name, path or value of a config.
        overrides: Values by dotted key.

    Raises:
        UserError: The config is not valid, or its text cannot be read.
    """
    checked = load_config(config, overrides)
    return CorpusBatches(checked, from_config.prepare(checked))


def make_objective(
    config: str | os.PathLike[str] | ConfigDict, vocabulary: Vocabulary, overrides: Mapping[str, Any] | None = None
) -> Objective:
    """Builds the pretraining objective of a config, with its networks, for a training loop of one's own.

    Args:
        config: Name, path or value of a config.
        vocabulary: That of the tokenizer: `batches(config).vocabulary`.
        overrides: Values by dotted key.

    Returns:
        The objective: `init(key)` draws the parameters, `mean_loss(params, batch, key, cursor)` is the loss.

    Raises:
        UserError: The config is not valid, or the objective needs a teacher.
    """
    from bertjax.experiment import build  # here, because batches need no networks

    return build.make_objective(parse(load_config(config, overrides)), vocabulary)
