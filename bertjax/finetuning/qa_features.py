"""Questions and windows of their contexts, with places of answers as characters and as tokens."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np

from bertjax.config.task import TaskConfig
from bertjax.data.corpus import offsets as ends_of
from bertjax.data.counter_rng import IntArray
from bertjax.data.special_tokens import family_of
from bertjax.data.tokenizer import Tokenizer
from bertjax.data.word_cache import flatten_ids
from bertjax.errors import UserError
from bertjax.finetuning.features import Features, truncation_note
from bertjax.finetuning.readers.examples import QaExamples
from bertjax.finetuning.templates import TokenRanges, assemble_windows, encode_texts, find_template, range_begins

_CONTEXTS_PER_CALL = 1024


@dataclasses.dataclass(frozen=True, eq=False)
class TokenizedContexts:
    """Contexts as tokens: `lengths` int64 [contexts]; of all tokens, end to end, the ids int32 and the characters.

    `begins` and `ends` int64 [tokens] are those of their own context.
    """

    lengths: IntArray
    ids: np.ndarray
    begins: np.ndarray
    ends: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class QaData:
    """Features of questions, one or several windows each, and where the contexts are in them.

    examples: the questions as they were read · contexts: their tokens · context_place int64 [n], the first token of the
    context in every window · first_token int64 [n], which of all context tokens that is · context_length int64 [n], how
    many of them the window holds · notes: what there is to say.
    """

    features: Features
    examples: QaExamples
    contexts: TokenizedContexts
    context_position: IntArray
    first_token: IntArray
    context_length: IntArray
    notes: tuple[str, ...]


def qa_data(config: TaskConfig, examples: QaExamples, tokenizer: Tokenizer, training: bool = False) -> QaData:
    """The windows of every question, those that transformers' `run_qa` makes with `stride=task.qa.doc_stride`.

    The question comes first, in families padded on the left (XLNet) the context. A window holds the answer where all of
    it lies inside; else its start and end are the summary token. Training leaves out questions whose answer's text does
    not stand at its offset. Raises `UserError` where all are.
    """
    notes = list(examples.notes)
    chosen = np.arange(len(examples))
    if training and examples.answers is not None:
        chosen = np.flatnonzero(_in_place(examples))
        if len(chosen) < len(examples):
            count = len(examples) - len(chosen)
            notes.append(f"{count:,} of {len(examples):,} questions are left out: the answer is not at answer_start")
        if not len(chosen):
            raise UserError("task.train: no answer stands at its answer_start; it counts characters, from 0")
    template = find_template(tokenizer, is_pair=True)
    questions = TokenRanges.of(*encode_texts(tokenizer, [examples.questions[i] for i in chosen]))
    asked = questions.cut(np.minimum(questions.lengths, config.qa.max_question_length))
    num_truncated = int((asked.lengths < questions.lengths).sum())
    notes += truncation_note(
        num_truncated, len(chosen), f"task.qa.max_question_length={config.qa.max_question_length}", "questions"
    )
    contexts = tokenize_contexts(tokenizer, examples.contexts)
    context_of = np.array(examples.context_of, np.int64)[chosen]
    rooms = config.max_length - template.num_special - asked.lengths
    which, starts, lengths = _windows(contexts.lengths[context_of], rooms, config.qa.doc_stride)

    first_token = ends_of(contexts.lengths)[:-1][context_of[which]] + starts
    question = dataclasses.replace(asked, starts=asked.starts[which], lengths=asked.lengths[which])
    context = TokenRanges(contexts.ids, first_token, lengths)
    is_context_first = family_of(tokenizer.family).padding_side == "left"
    parts = [context, question] if is_context_first else [question, context]
    tokens, offsets, types, summary_position = assemble_windows(template, parts)
    place = range_begins(template, parts, 0 if is_context_first else 1)
    values = {}
    if examples.answers is not None:
        spans = _answer_tokens(examples, chosen, contexts)
        values = _labels(spans[which], contexts, first_token, lengths, place, summary_position)
    features = Features(tokens, offsets, types, chosen[which].astype(np.int32), summary_position, values)
    notes.append(_window_note(config, len(chosen), values, summary_position))
    return QaData(features, examples, contexts, place, first_token, lengths, tuple(notes))


def tokenize_contexts(tokenizer: Tokenizer, contexts: Sequence[str]) -> TokenizedContexts:
    """The tokens of contexts with the characters [begin, end) that each of them stands for."""
    lengths, ids, spans = [], [], []
    for first in range(0, len(contexts), _CONTEXTS_PER_CALL):
        group = list(contexts[first : first + _CONTEXTS_PER_CALL])
        encodings = tokenizer.engine.encode_batch(group, add_special_tokens=False)
        counts, found = flatten_ids([encoding.ids for encoding in encodings])
        both = itertools.chain.from_iterable(itertools.chain.from_iterable(each.offsets for each in encodings))
        lengths.append(counts)
        ids.append(found)
        spans.append(np.fromiter(both, np.int64, 2 * len(found)).reshape(-1, 2))
    begins, ends = np.concatenate(spans).T if spans else np.zeros((2, 0), np.int64)
    return TokenizedContexts(
        np.concatenate(lengths), np.concatenate(ids), np.ascontiguousarray(begins), np.ascontiguousarray(ends)
    )


def _windows(lengths: IntArray, rooms: IntArray, stride: int) -> tuple[IntArray, IntArray, IntArray]:
    """Of every window which question it asks, where in the context it begins and how many of its tokens it holds.

    Windows follow each other until one reaches the end, and share `stride` tokens (the `tokenizers` library's rule).
    """
    steps = rooms - stride
    counts = 1 + np.maximum(-(-(lengths - rooms) // steps), 0)
    which = np.repeat(np.arange(len(lengths)), counts)
    number = np.arange(len(which)) - ends_of(counts)[:-1][which]
    starts = number * steps[which]
    return which, starts, np.minimum(rooms[which], lengths[which] - starts)


def _in_place(examples: QaExamples) -> np.ndarray:
    """bool [questions]: whether the first answer stands where it says, blanks aside; True where there is none."""
    assert examples.answers is not None
    found = np.ones(len(examples), bool)
    for index, (answers, context) in enumerate(zip(examples.answers, examples.context_of, strict=True)):
        if answers.texts:
            text, start = answers.texts[0], answers.starts[0]
            there = examples.contexts[context][start : start + len(text)]
            found[index] = bool(text.strip()) and (there == text or there.split() == text.split())
    return found


def _answer_tokens(examples: QaExamples, chosen: IntArray, contexts: TokenizedContexts) -> IntArray:
    """int64 [chosen, 4]: the characters [begin, end) of the first answer of every question, and the first and last
    token (among those of all contexts) that it lies on; begin is -1 where there is no answer.
    """
    assert examples.answers is not None
    spans = np.full((len(chosen), 4), -1, np.int64)
    for row, index in enumerate(chosen):
        answers = examples.answers[index]
        if answers.texts:
            spans[row, :2] = answers.starts[0], answers.starts[0] + len(answers.texts[0])
    context = np.array(examples.context_of, np.int64)[chosen]
    # Characters of all contexts on one line: a context begins behind the end of the one before.
    widest = max(int(contexts.ends.max(initial=0)), int(spans[:, 1].max(initial=0))) + 2
    of_token = np.repeat(np.arange(len(contexts.lengths)), contexts.lengths) * widest
    begins, ends = (np.maximum.accumulate(of_token + each) for each in (contexts.begins, contexts.ends))
    spans[:, 2] = np.searchsorted(begins, context * widest + spans[:, 0], side="right") - 1
    spans[:, 3] = np.searchsorted(ends, context * widest + spans[:, 1], side="left")
    return spans


def _labels(
    spans: IntArray,
    contexts: TokenizedContexts,
    first_token: IntArray,
    lengths: IntArray,
    place: IntArray,
    summary_position: np.ndarray,
) -> dict[str, np.ndarray]:
    """Where the answer starts and ends in every window, the summary token's place where all of it is not there."""
    last_token = first_token + np.maximum(lengths, 1) - 1
    inside = (spans[:, 0] >= 0) & (lengths > 0)
    inside[inside] = contexts.begins[first_token[inside]] <= spans[inside, 0]
    inside[inside] = contexts.ends[last_token[inside]] >= spans[inside, 1]
    found = {}
    for name, token in (("start_labels", spans[:, 2]), ("end_labels", spans[:, 3])):
        # Unlike here, run_qa's own loop goes past the context where the answer begins in the last token of a window.
        own = np.clip(token, first_token, last_token) - first_token + place
        found[name] = np.where(inside, own, summary_position).astype(np.int32)
    return found


def _window_note(
    config: TaskConfig, questions: int, values: dict[str, np.ndarray], summary_position: np.ndarray
) -> str:
    """How many windows there are, and in how many the answer is."""
    note = f"{questions:,} questions in {len(summary_position):,} windows of at most {config.max_length} tokens"
    if values:
        note += f", {int((values['start_labels'] != summary_position).sum()):,} of which hold the answer"
    return note
