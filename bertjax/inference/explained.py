"""Inputs to explain: windows and words, and the output of the model with its name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from bertjax.data.tokenizer import Tokenizer
from bertjax.errors import UserError, comma_list, named
from bertjax.hf.forward import max_input_length
from bertjax.hf.pretrained import PretrainedModel
from bertjax.hf.sentence_transformers import Pooling
from bertjax.inference.attributions import ScoredWindow
from bertjax.inference.explained_texts import (
    Word,
    WordedWindow,
    find_words,
    fixed_ids,
    require_words,
    text_windows,
    without_word,
)
from bertjax.inference.fill_mask import with_mask_token
from bertjax.inference.mlm_inference import MaskMode, TokenBatch, masked_token_logits
from bertjax.inference.predict import Predictions, Predictor
from bertjax.inference.predict_inputs import PredictInputs
from bertjax.tasks.features import TextData
from bertjax.tasks.qa_features import QaData, tokenize_contexts
from bertjax.tasks.readers.examples import QaExamples, TextExamples, WordExamples
from bertjax.tasks.templates import find_template
from bertjax.tasks.token_features import OUTSIDE, TokenData, encode_words

Shorten = Callable[[], list[list[ScoredWindow]]]


@dataclasses.dataclass(frozen=True, eq=False)
class Explained:
    """One input.

    Attributes:
        target: Name of the class, tag, answer or token that is explained; None: the model computes one number.
        parts: Its windows; of a similarity one for each text, while the vector of the other text is given.
        shorten: Makes the windows without each of their words; None where what is explained has a position.
        word: The word whose tag is explained.
    """

    target: str | None
    parts: list[WordedWindow]
    shorten: Shorten | None = None
    word: Word | None = None


def explain_task(
    predictor: Predictor, tokenizer: Tokenizer, inputs: PredictInputs, target: str | None, word: str | None
) -> list[Explained]:
    """Returns what is explained of the examples of a task.

    Args:
        predictor: reads the examples, and predicts what is explained without `target`.
        tokenizer: tokenizer of the model.
        inputs: the examples.
        target: class or tag, or an answer that the context holds.
        word: the word whose tag is explained, or its number; None: that whose tag other than O has the highest score.

    Raises:
        UserError: an example does not fit into the model or has no words, or has no such target or word.
    """
    form = predictor.config.spec.examples
    if word is not None and form is not WordExamples:
        raise UserError(f"{named('word', word)}: only tags are explained word by word")
    predictions = predictor(inputs)
    if form is QaExamples:
        return [_answer(tokenizer, predictions, index, target) for index in range(len(inputs.ids))]
    if predictor.num_truncated:
        raise UserError(
            f"{predictor.num_truncated:,} of the texts are longer than {predictor.config.max_length:,} tokens, and "
            f"would be explained without their ends; shorten them, or set {named('max_length')} if the model reads more"
        )
    ids = None if target is None or predictor.num_classes == 1 else _label(predictor, target)
    if predictor.num_classes == 1 and target is not None:
        raise UserError(f"{named('target', target)}: the model computes one number, which needs no target")
    if form is WordExamples:
        return [_tag(tokenizer, inputs, predictions, index, ids, word) for index in range(len(inputs.ids))]
    return _classes(predictor, tokenizer, inputs, predictions, ids)


def _label(predictor: Predictor, target: str) -> int:
    if target not in predictor.labels:
        raise UserError(f"{named('target', target)} is not a label of the model; it has {comma_list(predictor.labels)}")
    return predictor.labels.index(target)


def _classes(
    predictor: Predictor, tokenizer: Tokenizer, inputs: PredictInputs, predictions: Predictions, label: int | None
) -> list[Explained]:
    """Returns texts and pairs with their most likely classes, or with one class."""
    examples = inputs.examples
    assert isinstance(examples, TextExamples) and isinstance(predictions.data, TextData)
    texts: list[tuple[str, ...]] = [(text,) for text in examples.texts]
    if examples.pairs is not None:
        texts = list(zip(examples.texts, examples.pairs, strict=True))
    windows = text_windows(tokenizer, texts)
    require_words(windows, examples.locations, None)
    result = []
    for index, (of_example, window) in enumerate(zip(texts, windows, strict=True)):
        chosen = int(predictions.scores[index].argmax()) if label is None else label

        def shorten(
            of_example: tuple[str, ...] = of_example, words: Sequence[Word] = window.words, chosen: int = chosen
        ) -> list[list[ScoredWindow]]:
            return [[_with_ids(each, chosen) for each in _shortened(tokenizer, of_example, words)]]

        part = dataclasses.replace(window, window=_with_ids(window, chosen))
        name = None if predictor.num_classes == 1 else predictor.labels[chosen]
        result.append(Explained(name, [part], shorten))
    return result


def _with_ids(each: WordedWindow, chosen: int) -> ScoredWindow:
    return dataclasses.replace(each.window, ids=(chosen,))


def _shortened(
    tokenizer: Tokenizer, texts: tuple[str, ...], words: Sequence[Word], skipped: int = 0
) -> list[WordedWindow]:
    """Returns the windows of an example without each of its words."""
    fields = ("text", "pair")
    shorter = []
    for word in words:
        index = fields.index(word.field)
        text = texts[index][:skipped] + without_word(texts[index][skipped:], word)
        shorter.append((*texts[:index], text, *texts[index + 1 :]))
    windows = text_windows(tokenizer, shorter, fields, skipped)
    if any(not len(each.window.input_ids) for each in windows):
        raise UserError("a text of one word has no token without it; choose another baseline than remove")
    return windows


def _tag(
    tokenizer: Tokenizer,
    inputs: PredictInputs,
    predictions: Predictions,
    index: int,
    label: int | None,
    word: str | None,
) -> Explained:
    """Returns the tag of one word of a sentence."""
    data, location = predictions.data, inputs.examples.locations[index]
    assert isinstance(data, TokenData)
    features, texts, split = data.features, data.words[index], inputs.split_texts[index]
    begin, end = features.offsets[index : index + 2]
    of_words = slice(data.word_offsets[index], data.word_offsets[index + 1])
    first = data.first_token_of_word[of_words]
    lengths, _ = encode_words(tokenizer, texts)
    if lengths.sum() + find_template(tokenizer, False).num_special > end - begin:
        raise UserError(f"{location}: the sentence has {lengths.sum():,} tokens, more than the model reads; shorten it")
    read = np.flatnonzero(first >= 0)
    if not len(read):
        raise UserError(f"{location}: the text has no word to explain")
    word_of_token, words = np.full(end - begin, -1), []
    for word_index, number in enumerate(read.tolist()):
        position = first[number] - begin
        word_of_token[position : position + lengths[number]] = word_index
        span = (None, None) if split is None else split[1].spans[number]
        words.append(Word(texts[number], "text" if split else "words", *span))
    scores = predictions.scores[first[read]]
    chosen = _best_tagged(data.labels, scores) if word is None else _find_word(words, word, location)
    tag = int(scores[chosen].argmax()) if label is None else label
    ids = features.tokens[begin:end]
    window = ScoredWindow(
        ids,
        features.token_types[begin:end],
        (word_of_token >= 0) & ~np.isin(ids, fixed_ids(tokenizer)),
        word_of_token,
        len(words),
        (int(first[read[chosen]] - begin),),
        (tag,),
    )
    return Explained(data.labels[tag], [WordedWindow(window, words, 0)], None, words[chosen])


def _best_tagged(labels: Sequence[str], scores: np.ndarray) -> int:
    """Returns the word whose tag is not O with the highest score; with O everywhere, that of the highest score."""
    tags, best = scores.argmax(axis=1), scores.max(axis=1)
    is_outside = np.array([labels[tag] == OUTSIDE for tag in tags])
    return int(np.where(is_outside & ~is_outside.all(), -np.inf, best).argmax())


def _find_word(words: Sequence[Word], word: str, location: str) -> int:
    texts = [each.text for each in words]
    if word in texts:
        return texts.index(word)
    if word.isdecimal() and int(word) < len(words):
        return int(word)
    raise UserError(
        f"{location}: {named('word', word)} is not among its words; give one of its words, or a number from 0"
    )


def _answer(tokenizer: Tokenizer, predictions: Predictions, index: int, target: str | None) -> Explained:
    """Returns an answer in the window of its context that gives it the highest score."""
    data, record = predictions.data, predictions.records[index]
    assert isinstance(data, QaData)
    examples, features = data.examples, data.features
    context, location = examples.contexts[examples.context_of[index]], examples.locations[index]
    windows = np.flatnonzero(features.example == index)
    start, end = record["start"], record["end"]
    if target is not None:
        start = context.find(target)
        if start < 0 or not target.strip():
            raise UserError(f"{location}: {named('target', target)} is not a text in the context")
        end = start + len(target)
    best: tuple[float, int, int, int] | None = None
    for window in windows.tolist():
        summary = int(features.summary_position[window])
        span = (summary, summary) if start is None else _positions(data, window, start, end)
        if span is not None:
            tokens = features.offsets[window] + np.array(span)
            score = float(predictions.scores[tokens[0], 0] + predictions.scores[tokens[1], 1])
            ranked = (-score if start is None else score, window, *span)
            best = ranked if best is None or ranked > best else best
    if best is None:
        raise UserError(f"{location}: no window of the context holds {named('target', target)} whole")
    _, window, *positions = best
    part = _question_window(tokenizer, data, window, examples.questions[index], context)
    scored = dataclasses.replace(part.window, positions=tuple(positions), ids=(0, 1))
    answer = "" if start is None else context[start:end]
    return Explained(answer, [dataclasses.replace(part, window=scored)])


def _context_spans(data: QaData, window: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the characters that the context tokens of a window cover."""
    tokens = slice(data.first_token[window], data.first_token[window] + data.context_length[window])
    return data.contexts.begins[tokens], data.contexts.ends[tokens]


def _positions(data: QaData, window: int, start: int, end: int) -> tuple[int, int] | None:
    """Returns the first and the last token of characters of the context; None where the window lacks one."""
    begins, ends = _context_spans(data, window)
    inside = np.flatnonzero((ends > start) & (begins < end))
    if not len(inside) or begins[inside[0]] > start or ends[inside[-1]] < end:
        return None
    first = int(data.context_position[window])
    return first + int(inside[0]), first + int(inside[-1])


def _question_window(tokenizer: Tokenizer, data: QaData, window: int, question: str, context: str) -> WordedWindow:
    features, template = data.features, find_template(tokenizer, is_pair=True)
    begin, end = features.offsets[window : window + 2]
    ids, word_of_token = features.tokens[begin:end], np.full(end - begin, -1)
    context_begin, length = int(data.context_position[window]), int(data.context_length[window])
    question_tokens = tokenize_contexts(tokenizer, [question])
    count = int(end - begin) - length - template.num_special  # of a long question the first ones are read
    is_first = context_begin > len(template.gaps[0])
    position = len(template.gaps[0]) if is_first else context_begin + length + len(template.gaps[1])
    words, of_token = find_words(question, question_tokens.begins[:count], question_tokens.ends[:count], "question")
    word_of_token[position : position + count] = of_token
    others, of_context = find_words(context, *_context_spans(data, window), "context")
    word_of_token[context_begin : context_begin + length] = np.where(of_context < 0, -1, of_context + len(words))
    summary = int(features.summary_position[window])
    replaceable = (word_of_token >= 0) & ~np.isin(ids, fixed_ids(tokenizer))
    types = features.token_types[begin:end]
    scored = ScoredWindow(ids, types, replaceable, word_of_token, len(words) + len(others))
    return WordedWindow(scored, words + others, summary)


def explain_masks(
    model: PretrainedModel,
    tokenizer: Tokenizer,
    masks: MaskMode,
    inputs: PredictInputs,
    target: str | None,
) -> list[Explained]:
    """Returns the first mask of every text with its most likely token, or with one token.

    Args:
        model: a model with a head for masked tokens.
        tokenizer: its tokenizer.
        masks: how tokens are masked.
        inputs: texts with masks.
        target: the token.

    Raises:
        UserError: a text has no mask or is too long, or the target is not one token.
    """
    examples = inputs.examples
    assert isinstance(examples, TextExamples)
    windows = text_windows(tokenizer, [(with_mask_token(tokenizer, text),) for text in examples.texts])
    require_words(windows, examples.locations, max_input_length(model.config, model.heads))
    result = []
    for each, location, text in zip(windows, examples.locations, examples.texts, strict=True):
        ids = each.window.input_ids
        if tokenizer.mask_id not in ids:
            raise UserError(f"{location}: no {tokenizer.tokens[tokenizer.mask_id]} in {text[:60]!r}; write one")
        position = int(np.flatnonzero(ids == tokenizer.mask_id)[0])
        token = _likely_token(model, tokenizer, masks, each, position) if target is None else _token(tokenizer, target)
        scored = dataclasses.replace(each.window, positions=(position,), ids=(token,))
        name = tokenizer.decode([token]).strip() or tokenizer.tokens[token]
        result.append(Explained(name, [dataclasses.replace(each, window=scored)]))
    return result


def _likely_token(
    model: PretrainedModel, tokenizer: Tokenizer, masks: MaskMode, each: WordedWindow, position: int
) -> int:
    ids = each.window.input_ids[None]
    batch = TokenBatch(ids, np.ones_like(ids), each.window.token_types[None].astype(np.int32))
    logits = masked_token_logits(model, batch, ids == tokenizer.mask_id, np.array([[position]], np.int32), masks)
    listed = np.setdiff1d(np.arange(min(len(tokenizer.tokens), model.config.vocab_size)), tokenizer.special_ids)
    return int(listed[np.asarray(logits)[0, 0, listed].argmax()])


def _token(tokenizer: Tokenizer, target: str) -> int:
    """Returns the id of a word as a token, after a blank where the vocabulary distinguishes that."""
    for spelled in (f"Ġ{target}", f"▁{target}", target):
        if spelled in tokenizer.tokens:
            return tokenizer.tokens.index(spelled)
    tokens = " ".join(tokenizer.engine.encode(target, add_special_tokens=False).tokens)
    raise UserError(f"{named('target', target)} is not one token of this model ({tokens or 'it has none'}); give one")


def explain_similarities(
    embed: Callable[[Sequence[str]], np.ndarray],
    tokenizer: Tokenizer,
    pooling: Pooling,
    inputs: PredictInputs,
    limit: int,
) -> list[Explained]:
    """Returns pairs of texts, each text while the vector of the other is given.

    Args:
        embed: returns the vectors of texts [n, D].
        tokenizer: tokenizer of the model.
        pooling: how texts are read.
        inputs: the pairs.
        limit: most tokens of a text.

    Raises:
        UserError: a text has no words or is too long.
    """
    examples = inputs.examples
    assert isinstance(examples, TextExamples) and examples.pairs is not None
    columns = [examples.texts, examples.pairs]
    read = [[_as_read(pooling, text) for text in column] for column in columns]
    skipped, fields = len(_as_read(pooling, "")), ("text", "pair")
    windows = [
        text_windows(tokenizer, [(text,) for text in column], (name,), skipped)
        for column, name in zip(read, fields, strict=True)
    ]
    vectors = [embed(column) for column in columns]
    for of_column in windows:
        require_words(of_column, examples.locations, limit)
    result = []
    for index in range(len(examples)):
        parts = [
            dataclasses.replace(of_column[index], window=_with_vector(of_column[index], other[index]))
            for of_column, other in zip(windows, vectors[::-1], strict=True)
        ]

        def shorten(index: int = index, parts: list[WordedWindow] = parts) -> list[list[ScoredWindow]]:
            result = []
            for part, column in zip(parts, read, strict=True):
                words = [word._replace(field="text") for word in part.words]
                shorter = _shortened(tokenizer, (column[index],), words, skipped)
                result.append([_with_vector(each, part.window.vector) for each in shorter])
            return result

        result.append(Explained(None, parts, shorten))
    return result


def _as_read(pooling: Pooling, text: str) -> str:
    text = pooling.prompt + text
    return text.lower() if pooling.lowercase else text


def _with_vector(each: WordedWindow, vector: np.ndarray | None) -> ScoredWindow:
    return dataclasses.replace(each.window, vector=vector)
