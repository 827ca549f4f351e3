"""A task's data, from its sources to features, in one call for every kind of task."""

from __future__ import annotations

from collections.abc import Sequence

from bertjax.config.task import TaskConfig
from bertjax.data.tokenizer import Tokenizer
from bertjax.finetuning.features import TextData, text_data
from bertjax.finetuning.qa_features import QaData, qa_data
from bertjax.finetuning.readers.examples import Examples, QaExamples, TextExamples
from bertjax.finetuning.token_features import TokenData, token_data

TaskData = TextData | TokenData | QaData
"""Features of a split, with what turns predictions back into labels, words or answers, and notes to show."""


def make_features(
    config: TaskConfig, examples: Examples, tokenizer: Tokenizer, labels: Sequence[str] = (), training: bool = False
) -> TaskData:
    """Returns the features of examples; `labels` are the result of `collect_labels` for the training data."""
    if isinstance(examples, TextExamples):
        return text_data(config, examples, tokenizer, labels, training)
    if isinstance(examples, QaExamples):
        return qa_data(config, examples, tokenizer, training)
    return token_data(config, examples, tokenizer, labels)
