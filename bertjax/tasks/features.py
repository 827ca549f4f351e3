"""Windows, the inputs of the model, and the features of classification and regression."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from bertjax.config.task import TaskConfig
from bertjax.data.counter_rng import IntArray
from bertjax.data.tokenizer import Tokenizer
from bertjax.errors import UserError, named
from bertjax.tasks.readers.examples import TextExamples
from bertjax.tasks.readers.labels import encode_labels
from bertjax.tasks.templates import TokenRanges, assemble_windows, encode_texts, find_template


@dataclasses.dataclass(frozen=True, eq=False)
class Targets:
    """Targets of n windows end to end: the tokens that a decoder predicts.

    Attributes:
        tokens: int32 [total].
        offsets: int64 [n + 1], where each target begins in `tokens`.
    """

    tokens: np.ndarray
    offsets: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class Features:
    """n windows end to end. A window is one input of the model: an example or, of a question, a part of its context.

    Attributes:
        tokens: int32 [total].
        offsets: int64 [n + 1], where each window begins in `tokens`.
        token_types: int8 [total].
        example: int32 [n], index of the example.
        summary_position: int32 [n], position in the window of the token that represents it.
        labels: {} if the examples were read without labels, else some of class_labels int32 [n]; score_labels
            float32 [n]; token_labels int32 [total], -1: not scored; start_labels and end_labels int32 [n], positions in
            the window, that of the summary if the window does not hold the answer; choice_labels int32 [n], 1: right,
            0: wrong, -1: no choice, and choice_groups int32 [n], the example.
        targets: Targets of the windows where a decoder predicts some.
        group: Windows of an example that stay together in a batch, one after the other.
    """

    tokens: np.ndarray
    offsets: np.ndarray
    token_types: np.ndarray
    example: np.ndarray
    summary_position: np.ndarray
    labels: Mapping[str, np.ndarray]
    targets: Targets | None = None
    group: int = 1

    def __len__(self) -> int:
        return len(self.example)

    @property
    def sides(self) -> tuple[Features | Targets, ...]:
        """Windows and, where there are any, their targets."""
        return (self,) if self.targets is None else (self, self.targets)

    @property
    def side_lengths(self) -> np.ndarray:
        """Number of tokens of each window and of its target, int64 [n, sides]."""
        return np.stack([np.diff(side.offsets) for side in self.sides], axis=1)

    @property
    def num_tokens(self) -> int:
        """Number of tokens of all windows and targets."""
        return sum(len(side.tokens) for side in self.sides)

    @property
    def lengths(self) -> np.ndarray:
        """Number of tokens of each window, int64 [n]."""
        return np.diff(self.offsets)


@dataclasses.dataclass(frozen=True, eq=False)
class TextData:
    """Features of texts, one window per example; remarks, and the number of truncated examples."""

    features: Features
    notes: tuple[str, ...]
    num_truncated: int = 0


def text_data(
    config: TaskConfig, examples: TextExamples, tokenizer: Tokenizer, labels: Sequence[str], training: bool = False
) -> TextData:
    """Returns the features of classification and regression.

    Args: as of `TaskKind.make_features`; `training` lets `task.swap_pairs` double the pairs.

    Raises:
        UserError: a label is unknown, or `task.truncation` cannot make a pair fit.
    """
    template = find_template(tokenizer, config.is_pair)
    texts = [encode_texts(tokenizer, examples.texts)]
    if examples.pairs is not None:
        texts.append(encode_texts(tokenizer, examples.pairs))
    limit = config.max_length - template.num_special
    new_lengths, num_truncated = _truncate(config, examples, [lengths for lengths, _ in texts], limit)
    side = tokenizer.spec.truncation_side
    parts = [TokenRanges.of(*each).truncate(lengths, side) for each, lengths in zip(texts, new_lengths, strict=True)]
    example = np.arange(len(examples), dtype=np.int32)
    if training and config.swap_pairs:
        first, second = parts
        parts = [first.followed_by(second), second.followed_by(first)]
        example = np.concatenate([example, example])
    values: dict[str, np.ndarray] = {}
    if examples.labels is not None:
        values["class_labels"] = encode_labels(labels, examples.labels, examples.locations)[example]
    if examples.scores is not None:
        values["score_labels"] = np.array(examples.scores, np.float32)[example]
    tokens, offsets, types, summary = assemble_windows(template, parts)
    require_tokens(offsets, example, examples.locations)
    reason = f"task.max_length={config.max_length}, task.truncation={config.truncation}"
    notes = [*examples.notes, *truncation_note(num_truncated, len(examples), reason)]
    return TextData(Features(tokens, offsets, types, example, summary, values), tuple(notes), num_truncated)


def require_tokens(offsets: np.ndarray, example: np.ndarray, locations: Sequence[str]) -> None:
    """Raises `UserError` if a window is empty: an empty text in a family without special tokens (GPT-2).

    Args:
        offsets: `Features.offsets` [windows + 1].
        example: `Features.example` [windows].
        locations: where the examples were read.
    """
    empty = np.flatnonzero(np.diff(offsets) == 0)
    if len(empty):
        raise UserError(
            f"{locations[int(example[empty[0]])]}: the text has no token for this tokenizer; remove the example"
        )


def require_token_ids(features: Features, vocab_size: int, name: str) -> None:
    """Raises `UserError` for token ids outside the vocabulary, where JAX would silently read another row.

    Args:
        features: the windows.
        vocab_size: size of the model's vocabulary.
        name: name of the split, for the message.
    """
    for side in features.sides:
        tokens = side.tokens
        if not tokens.size or tokens.view(np.uint32).max() < vocab_size:  # as unsigned, negative numbers are large
            continue
        index = int(np.argmax(tokens.view(np.uint32) >= vocab_size))
        window = int(np.searchsorted(side.offsets, index, side="right")) - 1
        raise UserError(
            f"task.{name}: example {int(features.example[window])} holds token id {int(tokens[index])}, but the model "
            f"has {vocab_size} tokens; take tokenizer and weights of one model"
        )


def truncation_note(count: int, total: int, reason: str, what: str = "examples") -> list[str]:
    """Returns the remark that items were truncated; [] if none were.

    Args:
        count: number of truncated items.
        total: number of all items.
        reason: the settings that limit the length.
        what: name of the items.
    """
    return (
        [f"{count:,} of {total:,} {what} ({count / total:.1%}) are too long and were cut ({reason})"] if count else []
    )


def _truncate(
    config: TaskConfig, examples: TextExamples, lengths: Sequence[IntArray], limit: int
) -> tuple[list[IntArray], int]:
    """Returns the kept tokens of every text, and how many examples are truncated."""
    new_lengths = truncated_lengths(lengths, limit, config.truncation)
    for of_text in new_lengths:
        if len(of_text) and of_text.min() < 0:
            raise UserError(
                f"{examples.locations[int(of_text.argmin())]}: task.truncation={config.truncation} cannot make this "
                f"pair fit {named('task.max_length', config.max_length)}: the other text alone is too long; set "
                f"task.truncation=longest_first, or a greater {named('task.max_length')}"
            )
    is_truncated = np.zeros(len(examples), bool)
    for of_text, full in zip(new_lengths, lengths, strict=True):
        is_truncated |= of_text < full
    return new_lengths, int(is_truncated.sum())


def truncated_lengths(lengths: Sequence[IntArray], limit: int, strategy: str) -> list[IntArray]:
    """Returns how many tokens to keep of each text so that an example has at most `limit`.

    Args:
        lengths: tokens of the texts, one array [n] for single texts, two for pairs.
        limit: tokens of an example, without special tokens.
        strategy: longest_first: the longer text is truncated until both are equal, then both, where the second keeps
            one more if the limit is odd and it is the longer one (as the `tokenizers` library does); only_first and
            only_second: that text alone; -1 if the other one leaves nothing for it. Single texts are always truncated.
    """
    if len(lengths) == 1:
        return [np.minimum(lengths[0], limit)]
    first, second = lengths
    over = first + second > limit
    if strategy == "only_first":
        return [_remaining(first, second, limit, over), second]
    if strategy == "only_second":
        return [first, _remaining(second, first, limit, over)]
    short = np.minimum(first, second)
    is_second_longer = first <= second
    fits = 2 * short <= limit  # the shorter one is kept whole
    longer = np.where(fits, limit - short, limit - limit // 2)
    shorter = np.where(fits, short, limit // 2)
    new_first = np.where(is_second_longer, shorter, longer)
    new_second = np.where(is_second_longer, longer, shorter)
    return [np.where(over, new_first, first), np.where(over, new_second, second)]


def _remaining(lengths: IntArray, others: IntArray, limit: int, over: np.ndarray) -> IntArray:
    left = limit - others
    return np.where(over, np.where(left > 0, left, -1), lengths)
