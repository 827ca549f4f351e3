"""Features of question answering: questions with windows of their contexts, and the tokens of answers."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np

from bertjax.config.task import TaskConfig
from bertjax.data.corpus import offsets as ends_of
from bertjax.data.counter_rng import IntArray
from bertjax.data.tokenizer import Tokenizer
from bertjax.data.word_cache import flatten_ids
from bertjax.errors import UserError
from bertjax.tasks.features import Features, truncation_note
from bertjax.tasks.readers.examples import QaExamples
from bertjax.tasks.templates import TokenRanges, assemble_windows, encode_texts, find_template, range_begins

_CONTEXTS_PER_CALL = 1024
_UNANSWERABLE, _MISPLACED = -1, -2


@dataclasses.dataclass(frozen=True, eq=False)
class TokenizedContexts:
    """Contexts as tokens, end to end.

    Attributes:
        lengths: int64 [contexts], number of tokens.
        ids: int32 [tokens].
        begins, ends: int64 [tokens], the characters [begin, end) of its context that each token covers.
    """

    lengths: IntArray
    ids: np.ndarray
    begins: np.ndarray
    ends: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class QaData:
    """Features of questions, one or several windows each, and the contexts in them.

    Attributes:
        features: The n windows.
        examples: The questions as they were read.
        contexts: Tokens of the contexts.
        context_position: int64 [n], position in the window of the first token of the context.
        first_token: int64 [n], index of that token among all context tokens.
        context_length: int64 [n], number of context tokens in the window.
        notes: Remarks to print.
    """

    features: Features
    examples: QaExamples
    contexts: TokenizedContexts
    context_position: IntArray
    first_token: IntArray
    context_length: IntArray
    notes: tuple[str, ...]


def qa_data(
    config: TaskConfig, examples: QaExamples, tokenizer: Tokenizer, labels: Sequence[str] = (), training: bool = False
) -> QaData:
    """Returns the windows of every question, as transformers' `run_qa` makes them with `stride=doc_stride`.

    The question comes first; in families that are padded on the left (XLNet), the context. A window holds the answer
    if all of it is inside; else the labels of start and end are the summary token.

    Args: as of `TaskKind.make_features`, of which `labels` is not used; `training` leaves out questions whose
        answer is not at its offset.

    Raises:
        UserError: no question is left.
    """
    notes = list(examples.notes)
    chosen = np.arange(len(examples))
    if examples.answers is not None:
        answer = _answers_at_offset(examples)
        notes += _misplaced_note(examples, np.flatnonzero(answer == _MISPLACED), training)
        if training:
            chosen = np.flatnonzero(answer != _MISPLACED)
        if not len(chosen):
            raise UserError("task.train: no answer stands at its answer_start; it counts characters, from 0")
    # no answer stands at [CLS], or else at the begin token, in any model, as in run_qa
    template = dataclasses.replace(find_template(tokenizer, is_pair=True), summary_skips=None, summary_id=None)
    whole = TokenRanges.of(*encode_texts(tokenizer, [examples.questions[i] for i in chosen]))
    questions = whole.truncate(np.minimum(whole.lengths, config.spec.max_question_length))
    num_truncated = int((questions.lengths < whole.lengths).sum())
    reason = f"task.qa.max_question_length={config.spec.max_question_length}"
    notes += truncation_note(num_truncated, len(chosen), reason, "questions")
    contexts = tokenize_contexts(tokenizer, examples.contexts)
    context_of = np.array(examples.context_of, np.int64)[chosen]
    limits = config.max_length - template.num_special - questions.lengths
    which, starts, lengths = _windows(contexts.lengths[context_of], limits, config.spec.doc_stride)

    first_token = ends_of(contexts.lengths)[:-1][context_of[which]] + starts
    question = dataclasses.replace(questions, starts=questions.starts[which], lengths=questions.lengths[which])
    context = TokenRanges(contexts.ids, first_token, lengths)
    is_context_first = tokenizer.spec.padding_side == "left"
    parts = [context, question] if is_context_first else [question, context]
    tokens, offsets, types, summary = assemble_windows(template, parts)
    position = range_begins(template, parts, 0 if is_context_first else 1)
    values = {}
    if examples.answers is not None:
        spans = _answer_tokens(examples, chosen, answer[chosen], contexts)
        values = _labels(spans[which], contexts, first_token, lengths, position, summary)
    features = Features(tokens, offsets, types, chosen[which].astype(np.int32), summary, values)
    notes.append(_window_note(config, len(chosen), values, summary))
    return QaData(features, examples, contexts, position, first_token, lengths, tuple(notes))


def tokenize_contexts(tokenizer: Tokenizer, contexts: Sequence[str]) -> TokenizedContexts:
    """Tokenizes contexts and keeps the characters [begin, end) that each token covers, with the blank before a word.

    The library would cut it off, by post-processors which do not know where a pre-tokenizer added one: "msterdam".
    """
    engine = type(tokenizer.engine).from_str(tokenizer.engine.to_str())  # a copy
    engine.post_processor = None
    lengths, ids, spans = [], [], []
    for first in range(0, len(contexts), _CONTEXTS_PER_CALL):
        group = list(contexts[first : first + _CONTEXTS_PER_CALL])
        encodings = engine.encode_batch(group, add_special_tokens=False)
        counts, result = flatten_ids([encoding.ids for encoding in encodings])
        numbers = itertools.chain.from_iterable(itertools.chain.from_iterable(each.offsets for each in encodings))
        lengths.append(counts)
        ids.append(result)
        spans.append(np.fromiter(numbers, np.int64, 2 * len(result)).reshape(-1, 2))
    begins, ends = np.concatenate(spans).T if spans else np.zeros((2, 0), np.int64)
    return TokenizedContexts(
        np.concatenate(lengths), np.concatenate(ids), np.ascontiguousarray(begins), np.ascontiguousarray(ends)
    )


def _windows(lengths: IntArray, limits: IntArray, stride: int) -> tuple[IntArray, IntArray, IntArray]:
    """Returns for every window its question, its first token in the context and its number of context tokens.

    Windows follow each other until one reaches the end, and share `stride` tokens (rule of the `tokenizers` library).
    """
    steps = limits - stride
    counts = 1 + np.maximum(-(-(lengths - limits) // steps), 0)
    which = np.repeat(np.arange(len(lengths)), counts)
    starts = (np.arange(len(which)) - ends_of(counts)[:-1][which]) * steps[which]
    return which, starts, np.minimum(limits[which], lengths[which] - starts)


def _answers_at_offset(examples: QaExamples) -> IntArray:
    """Returns int64 [questions]: the first answer that is at its offset, apart from blanks.

    `_UNANSWERABLE` stands for a question without answers, `_MISPLACED` for one whose answers are all elsewhere.
    """
    assert examples.answers is not None
    result = np.full(len(examples), _UNANSWERABLE)
    for index, (answers, context_of) in enumerate(zip(examples.answers, examples.context_of, strict=True)):
        if answers.texts:
            context, pairs = examples.contexts[context_of], enumerate(zip(*answers, strict=True))
            result[index] = next((i for i, (text, start) in pairs if _is_at(text, start, context)), _MISPLACED)
    return result


def _is_at(text: str, start: int, context: str) -> bool:
    at_offset = context[start : start + len(text)] if start >= 0 else ""
    return bool(text.strip()) and (at_offset == text or at_offset.split() == text.split())


def _misplaced_note(examples: QaExamples, misplaced: IntArray, training: bool) -> list[str]:
    """Returns the remark on questions none of whose answers is at its `answer_start`; names the first one."""
    if not len(misplaced):
        return []
    first = int(misplaced[0])
    effect = "left out" if training else "scored by their texts, without answer in the loss"
    return [
        f"{len(misplaced):,} of {len(examples):,} questions are {effect}: no answer is at its answer_start (first "
        f"{examples.locations[first]}, {examples.ids[first]!r})"
    ]


def _answer_tokens(examples: QaExamples, chosen: IntArray, answer: IntArray, contexts: TokenizedContexts) -> IntArray:
    """Returns int64 [chosen, 4]: characters [begin, end) of the chosen answer, its first and last token.

    Tokens are counted among those of all contexts; begin is -1 without answer.

    Args:
        examples: the questions.
        chosen: int64 [chosen], indices of the questions.
        answer: int64 [chosen], the answer of each, as of `_answers_at_offset`.
        contexts: tokens of the contexts.
    """
    assert examples.answers is not None
    spans = np.full((len(chosen), 4), -1, np.int64)
    for row in np.flatnonzero(answer >= 0):
        texts, starts = examples.answers[chosen[row]]
        spans[row, :2] = starts[answer[row]], starts[answer[row]] + len(texts[answer[row]])
    context = np.array(examples.context_of, np.int64)[chosen]
    # Characters of all contexts on one axis: a context begins after the end of the one before.
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
    position: IntArray,
    summary: np.ndarray,
) -> dict[str, np.ndarray]:
    """Returns start and end of the answer in every window, or the position of the summary token."""
    last_token = first_token + np.maximum(lengths, 1) - 1
    inside = (spans[:, 0] >= 0) & (lengths > 0)
    inside[inside] = contexts.begins[first_token[inside]] <= spans[inside, 0]
    inside[inside] = contexts.ends[last_token[inside]] >= spans[inside, 1]
    result = {}
    for name, token in (("start_labels", spans[:, 2]), ("end_labels", spans[:, 3])):
        # Unlike here, run_qa's own loop leaves the context if the answer begins in the last token of a window.
        in_window = np.clip(token, first_token, last_token) - first_token + position
        result[name] = np.where(inside, in_window, summary).astype(np.int32)
    return result


def _window_note(config: TaskConfig, questions: int, values: dict[str, np.ndarray], summary: np.ndarray) -> str:
    note = f"{questions:,} questions in {len(summary):,} windows of at most {config.max_length} tokens"
    if values:
        note += f", {int((values['start_labels'] != summary).sum()):,} of which hold the answer"
    return note
