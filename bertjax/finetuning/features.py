"""Windows: what a model reads of an example, and the features of tasks on texts and pairs of texts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from bertjax.config.task import TaskConfig
from bertjax.data.counter_rng import IntArray
from bertjax.data.tokenizer import Tokenizer
from bertjax.errors import UserError
from bertjax.finetuning.readers.examples import TextExamples
from bertjax.finetuning.readers.load import encode_labels
from bertjax.finetuning.readers.records import Places
from bertjax.finetuning.templates import TokenRanges, assemble_windows, encode_texts, find_template


@dataclasses.dataclass(frozen=True, eq=False)
class Features:
    """Windows end to end; a window is what a model reads at a time, and an example but for qa, where it may be several.

    tokens int32 [total] · offsets int64 [n + 1], where each window begins in `tokens` · token_types int8 [total] ·
    example int32 [n], of which example · summary int32 [n], the place in the window of the token that stands for it.
    labels: class_labels int32 [n] · score_labels float32 [n] · token_labels int32 [total], -1 = not scored ·
    start_labels, end_labels int32 [n], places in the window, that of the summary where it does not hold the answer;
    {} where examples were read without labels.
    """

    tokens: np.ndarray
    offsets: np.ndarray
    token_types: np.ndarray
    example: np.ndarray
    summary_position: np.ndarray
    labels: Mapping[str, np.ndarray]

    def __len__(self) -> int:
        return len(self.example)

    @property
    def lengths(self) -> np.ndarray:
        """int64 [n]: tokens of every window."""
        return np.diff(self.offsets)


@dataclasses.dataclass(frozen=True, eq=False)
class TextData:
    """Features of texts, one window an example, ids of the examples, what there is to say, and how many were cut."""

    features: Features
    ids: list[str]
    notes: tuple[str, ...]
    num_truncated: int = 0


def text_data(
    config: TaskConfig, examples: TextExamples, tokenizer: Tokenizer, labels: Sequence[str], training: bool = False
) -> TextData:
    """The features of classification and regression; `labels` are the names of the classes (`collect_labels`).

    `training` lets `task.swap_pairs` double the pairs. Raises `UserError` for unknown labels, and where a text alone is
    too long for `task.truncation`.
    """
    template = find_template(tokenizer, config.is_pair)
    texts = [encode_texts(tokenizer, examples.texts)]
    if examples.pairs is not None:
        texts.append(encode_texts(tokenizer, examples.pairs))
    room = config.max_length - template.num_special
    kept, num_truncated = _kept(config, examples, [lengths for lengths, _ in texts], room)
    parts = [TokenRanges.of(lengths, ids).cut(own) for (lengths, ids), own in zip(texts, kept, strict=True)]
    example = np.arange(len(examples), dtype=np.int32)
    if training and config.swap_pairs:
        first, second = parts
        parts = [first.followed_by(second), second.followed_by(first)]
        example = np.concatenate([example, example])
    values: dict[str, np.ndarray] = {}
    if examples.labels is not None:
        values["class_labels"] = encode_labels(labels, examples.labels, examples.places)[example]
    if examples.scores is not None:
        values["score_labels"] = np.array(examples.scores, np.float32)[example]
    tokens, offsets, types, summary_position = assemble_windows(template, parts)
    require_tokens(offsets, example, examples.places)
    notes = [
        *examples.notes,
        *truncation_note(
            num_truncated, len(examples), f"task.max_length={config.max_length}, task.truncation={config.truncation}"
        ),
    ]
    return TextData(
        Features(tokens, offsets, types, example, summary_position, values), examples.ids, tuple(notes), num_truncated
    )


def require_tokens(offsets: np.ndarray, example: np.ndarray, places: Places) -> None:
    """Raises `UserError` where a window has no token: an empty text, in families without special pieces (GPT-2)."""
    empty = np.flatnonzero(np.diff(offsets) == 0)
    if len(empty):
        raise UserError(
            f"{places[int(example[empty[0]])]}: the text has no token for this tokenizer; remove the example"
        )


def truncation_note(count: int, total: int, why: str, what: str = "examples") -> list[str]:
    """What to say where some examples are longer than they may be."""
    return [f"{count:,} of {total:,} {what} ({count / total:.1%}) are too long and were cut ({why})"] if count else []


def _kept(
    config: TaskConfig, examples: TextExamples, lengths: Sequence[IntArray], room: int
) -> tuple[list[IntArray], int]:
    """How many tokens of every text stay, and how many examples are cut."""
    kept = truncated_lengths(lengths, room, config.truncation)
    for own in kept:
        if len(own) and own.min() < 0:
            place = examples.places[int(own.argmin())]
            raise UserError(
                f"{place}: task.truncation={config.truncation} cannot make this pair fit "
                f"task.max_length={config.max_length}: the other text alone is too long; set "
                "task.truncation=longest_first, or a greater task.max_length"
            )
    is_cut = np.zeros(len(examples), bool)
    for own, full in zip(kept, lengths, strict=True):
        is_cut |= own < full
    return kept, int(is_cut.sum())


def truncated_lengths(lengths: Sequence[IntArray], room: int, rule: str) -> list[IntArray]:
    """Of texts or pairs of texts with so many tokens, how many stay of each where `room` is for both together.

    longest_first: the longer gives way until both are equal, then both, the longer keeping one more if the room is odd
    (what the `tokenizers` library does) · only_first, only_second: that text alone, and a negative number says that the
    other one leaves no room for it. A single text is cut by any rule.
    """
    if len(lengths) == 1:
        return [np.minimum(lengths[0], room)]
    first, second = lengths
    over = first + second > room
    if rule == "only_first":
        return [_rest(first, second, room, over), second]
    if rule == "only_second":
        return [first, _rest(second, first, room, over)]
    short = np.minimum(first, second)
    is_second_longer = first <= second
    fits = 2 * short <= room  # the shorter stays whole
    longer = np.where(fits, room - short, room - room // 2)
    shorter = np.where(fits, short, room // 2)
    new_first = np.where(is_second_longer, shorter, longer)
    new_second = np.where(is_second_longer, longer, shorter)
    return [np.where(over, new_first, first), np.where(over, new_second, second)]


def _rest(own: IntArray, other: IntArray, room: int, over: np.ndarray) -> IntArray:
    left = room - other
    return np.where(over, np.where(left > 0, left, -1), own)
