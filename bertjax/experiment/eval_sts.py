"""Semantic textual similarity: correlates cosines of sentence vectors with gold scores."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from bertjax.config.task import RegressionConfig, TaskConfig
from bertjax.errors import UserError
from bertjax.experiment.embed import EmbedOptions, describe_pooling, pooling_of
from bertjax.experiment.load import batch_tokens, load_model, require_batch_tokens, require_model
from bertjax.finetuning.metrics.regression import RegressionScores
from bertjax.finetuning.readers.examples import TextExamples
from bertjax.finetuning.tasks import read_examples
from bertjax.inference.embed import Embedder
from bertjax.inference.predict_inputs import name_flags
from bertjax.inference.similarity import similarity_scores


def eval_sts(
    folder: Path,
    sources: Sequence[str],
    columns: tuple[str | None, str, str | None],
    header: bool | None,
    options: EmbedOptions,
) -> RegressionScores:
    """Prints and returns the correlation of cosines with gold similarities.

    Args:
        folder: a Hugging Face folder, an export or a work directory.
        sources: sources of sentence pairs, as in `task.train`.
        columns: columns of the two texts and of the similarity; None takes the default of the reader.
        header: whether .tsv and .csv files name their columns; None: they do if a column is given by name.
        options: how vectors are computed.

    Raises:
        UserError: a source or the model cannot be read.
    """
    require_batch_tokens(options.batch_tokens)
    text, pair, label = columns
    try:
        config = TaskConfig(
            RegressionConfig.name, tuple(sources), text_column=text, pair_column=pair, label_column=label, header=header
        )
        examples = read_examples(config)
    except UserError as error:
        raise name_flags(error) from None
    assert isinstance(examples, TextExamples) and examples.pairs is not None and examples.scores is not None
    folder = require_model(folder)
    pooling = pooling_of(folder, options)
    model, tokenizer, _ = load_model(folder)
    embedder = Embedder(model, tokenizer, pooling, batch_tokens(options.batch_tokens))
    began = time.monotonic()
    first, second = embedder(examples.texts), embedder(examples.pairs)
    scores = similarity_scores(first, second, examples.scores)
    print(f"{len(examples):,} pairs, cosines of {describe_pooling(pooling)}, in {time.monotonic() - began:.1f} s")
    print(f"spearman {scores.spearman:.4f}  pearson {scores.pearson:.4f}")
    if embedder.num_truncated:
        print(f"{embedder.num_truncated:,} texts were longer than {embedder.max_length:,} tokens, and were truncated")
    return scores
