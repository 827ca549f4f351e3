"""Models: loading, predictions, masked tokens, sentence vectors, and objectives for a training loop of one's own."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Float
from ml_collections import ConfigDict

from bertjax.api.errors import python_errors
from bertjax.api.runs import Run
from bertjax.config.parse import checked_config
from bertjax.config.task import TaskConfig
from bertjax.data.tokenizer import Tokenizer
from bertjax.data.tokenizer_io import load_tokenizer
from bertjax.errors import UserError
from bertjax.experiment import build
from bertjax.experiment.embed import EmbedOptions, override_pooling, pooling_of
from bertjax.experiment.load import (
    Generative,
    load_finetuned,
    load_generative,
    load_model,
    require_batch_tokens,
    require_model,
)
from bertjax.experiment.load import batch_tokens as tokens_per_batch
from bertjax.experiment.predict import (
    PredictOptions,
    first_record,
    make_predictor,
    require_files,
    require_one_label,
    trained_task,
)
from bertjax.experiment.score_choices import ChoiceResult, ChoiceTask, score_examples
from bertjax.hf.encoder_decoder.pretrained import PretrainedEncoderDecoder
from bertjax.hf.pretrained import PretrainedModel
from bertjax.hf.pretrained import load_pretrained as load_folder
from bertjax.inference.embed import Embedder
from bertjax.inference.fill_mask import MaskPrediction, fill_masks
from bertjax.inference.generate import Generator
from bertjax.inference.predict import Predictor, infer_task_kind
from bertjax.inference.predict_inputs import read_inputs, read_values, to_record
from bertjax.inference.predict_texts import TextPredictor
from bertjax.inference.text_files import JsonRecord
from bertjax.objectives.base import Objective
from bertjax.types import Vocabulary

log = logging.getLogger(__name__)
ModelSource: TypeAlias = str | os.PathLike[str] | Run | PretrainedModel
_predictors: weakref.WeakKeyDictionary[Any, dict[Any, Predictor | TextPredictor]] = weakref.WeakKeyDictionary()


class _Opened(NamedTuple):
    model: Any
    tokenizer: Tokenizer
    two_streams: bool | None
    trained: TaskConfig | None
    pooling: Any


@python_errors()
def load_pretrained(folder: str | os.PathLike[str]) -> PretrainedModel | PretrainedEncoderDecoder:
    """Loads a model in float32: a Hugging Face folder, an export, a run, or a name on the Hub (`hub:NAME[@REVISION]`).

    The model is called like that of `transformers` and saved by `save_pretrained`; `model.params` are its parameters
    and `model.encoder` is its `bertjax.Encoder`. The heads are those that the class in `architectures` requires, and
    any other that the files hold. A folder or run of an encoder-decoder gives both towers.

    Raises:
        UserError: A file is missing, unreadable or unsafe, or the model is not supported; names the first reason.
    """
    path = require_model(folder)
    if not (path / "checkpoints").is_dir():
        return load_folder(path)
    loaded = load_generative(path, head=None)
    if isinstance(loaded.model, PretrainedEncoderDecoder):
        return loaded.model
    files = loaded.tokenizer.huggingface_files(loaded.model.config.max_position_embeddings)
    return dataclasses.replace(loaded.model, tokenizer_files=files)


@python_errors()
def predict(
    model: ModelSource,
    inputs: Sequence[Any] | os.PathLike[str],
    *,
    kind: str | None = None,
    text_column: str | None = None,
    pair_column: str | None = None,
    id_column: str | None = None,
    header: bool | None = None,
    max_length: int | None = None,
    allow_no_answer: bool | None = None,
    top_k: int | None = None,
    batch_tokens: int | None = None,
) -> list[dict[str, Any]]:
    """Returns the predictions of a finetuned model, one record per example; what `bertjax predict` writes.

    Args:
        model: A run, a folder, `hub:NAME`, or a loaded model, which is compiled once for many calls.
        inputs: Texts, pairs of texts, lists of words, pairs of question and context, or dicts with the fields of a
            .jsonl file; or files as `pathlib.Path`, one or several.
        kind: Task, for a model with the heads of several.
        text_column: Column of the texts in files; as finetuned by default.
        pair_column: Column of second texts.
        id_column: Column of names of examples.
        header: Whether the first line of .tsv and .csv files names the columns.
        max_length: Tokens per example; as finetuned by default.
        allow_no_answer: Whether questions may have no answer.
        top_k: Probabilities or answers per record; all, and 5 answers, by default.
        batch_tokens: Tokens per batch; fewer need less memory.

    Returns:
        What `Predictor` describes: label, score and probabilities; tags and entities; or answers.

    Raises:
        UserError: The model has no task, or an example is nothing that it reads.
    """
    if isinstance(inputs, str):
        raise UserError("inputs is a single text: give a list of texts, or a file as pathlib.Path")
    values = [inputs] if isinstance(inputs, os.PathLike) else list(inputs)
    if not values:
        return []
    opened = _open(model, finetuned=True)
    options = PredictOptions(
        infer_task_kind(opened.model, kind or (opened.trained.kind if opened.trained else None)),
        text_column,
        pair_column,
        None,
        id_column,
        header=header,
        max_length=max_length,
        allow_no_answer=allow_no_answer,
        top_k=top_k,
        batch_tokens=batch_tokens,
    )
    if all(isinstance(value, os.PathLike) for value in values):
        files = [os.fspath(value) for value in values]
        require_files(files, "inputs")
        predictor = _predictor(opened, options, first_record(files))
        windows = read_inputs(predictor.config, files)
    else:
        records = [to_record(value, index, str(options.kind)) for index, value in enumerate(values)]
        predictor = _predictor(opened, options, records[0])
        windows = read_values(predictor.config, records)
    predictor.num_truncated = predictor.num_truncated_words = 0
    results = [record for window in windows for record in predictor(window).records]
    for note in predictor.notes:
        log.warning(note)
    return results


@python_errors()
def fill_mask(model: ModelSource, texts: Sequence[str], *, top_k: int = 5) -> list[list[list[MaskPrediction]]]:
    """Returns the most likely tokens for every mask of every text; what `bertjax fill-mask` prints.

    Args:
        model: A run, a folder, `hub:NAME`, or a loaded model.
        texts: Texts with [MASK] or <mask> in them.
        top_k: Tokens per mask.

    Returns:
        (token, probability) by text, mask and rank.

    Raises:
        UserError: A text has no mask or is too long, or the model has no masked language modeling head.
    """
    if top_k < 1:
        raise UserError(f"top_k must be at least 1, not {top_k}")
    opened = _open(model, head="mlm")
    return fill_masks(opened.model, opened.tokenizer, _texts(texts), top_k, opened.two_streams)


@python_errors()
def generate(
    model: ModelSource | PretrainedEncoderDecoder,
    inputs: Sequence[str],
    *,
    seed: int = 0,
    batch_tokens: int | None = None,
    **settings: Any,
) -> list[Any]:
    """Returns generated texts: of sources with an encoder-decoder, continuations of prompts with a causal model.

    Args:
        model: A run, a folder, `hub:NAME`, or a loaded model.
        inputs: The texts.
        seed: Seed of samples; a sample depends on it and on the index of its text.
        batch_tokens: Tokens per batch; fewer need less memory.
        **settings: Settings of generation, named as in `transformers`: `max_new_tokens`, `num_beams`, `do_sample`, ...

    Returns:
        One text per input; with `num_return_sequences` above 1 lists of them.

    Raises:
        UserError: The model cannot generate, or a setting is wrong.
    """
    require_batch_tokens(batch_tokens)
    generator = Generator(*_open_generative(model), settings, seed, tokens_per_batch(batch_tokens))
    texts = [[each.text for each in generated] for generated in generator(_texts(inputs))]
    return texts if generator.settings.num_return_sequences > 1 else [each[0] for each in texts]


@python_errors()
def score_choices(
    model: ModelSource | PretrainedEncoderDecoder,
    inputs: Sequence[Mapping[str, str]],
    *,
    template: str,
    choices: Mapping[str, str],
    labels: Sequence[str] | None = None,
    examples: Sequence[tuple[Mapping[str, str], str]] = (),
    norm: str = "tokens",
    batch_tokens: int | None = None,
) -> ChoiceResult:
    """Scores classes by the likelihood of their words after a prompt; what `bertjax score-choices` does.

    Args:
        model: A run, a folder, `hub:NAME`, or a loaded model: a causal model or an encoder-decoder.
        inputs: Fields of every example, by the names in the template.
        template: Prompt with fields in braces, which ends with {choice}.
        choices: Words of every label.
        labels: Labels of the inputs, for metrics.
        examples: Fields and label of examples that every prompt begins with.
        norm: What log-likelihoods are divided by: tokens, characters or none.
        batch_tokens: Tokens per batch; fewer need less memory.

    Returns:
        Labels, scores [n, classes], the best label of every example, and metrics where `labels` are known.

    Raises:
        UserError: The model has no likelihood, a text is too long, or the template cannot be used.
    """
    require_batch_tokens(batch_tokens)
    task = ChoiceTask(template, dict(choices), norm=norm)
    return score_examples(_open_generative(model), task, list(inputs), labels, list(examples), batch_tokens)


@python_errors()
def embed(
    model: ModelSource,
    texts: Sequence[str],
    *,
    pooling: str | None = None,
    normalize: bool | None = None,
    max_length: int | None = None,
    batch_tokens: int | None = None,
) -> Float[np.ndarray, "n D"]:
    """Returns one vector per text, float32; what `bertjax embed` writes.

    Args:
        model: A run, a folder, `hub:NAME`, or a loaded model.
        texts: The texts.
        pooling: `mean` or `cls`; as the folder or run says by default, otherwise the mean.
        normalize: Whether vectors have length one; as the folder says by default.
        max_length: Tokens per text; all that the model can read by default.
        batch_tokens: Tokens per batch; fewer need less memory.

    Raises:
        UserError: A setting does not suit the model.
    """
    require_batch_tokens(batch_tokens)
    opened = _open(model)
    settings = override_pooling(opened.pooling, EmbedOptions(pooling, normalize, max_length))
    embedder = Embedder(opened.model, opened.tokenizer, settings, tokens_per_batch(batch_tokens))
    vectors = embedder(_texts(texts))
    if embedder.num_truncated:
        log.warning("%d texts were longer than %d tokens, and were cut", embedder.num_truncated, embedder.max_length)
    return vectors


@python_errors()
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
    return build.make_objective(checked_config(config, overrides), vocabulary)


def _open(source: Any, head: str | None = None, *, finetuned: bool = False) -> _Opened:
    """Loads a model with its tokenizer, the settings of its finetuning and its pooling.

    Args:
        source: what the API takes as a model.
        head: chooses the first network with this head, in a run with several.
        finetuned: loads an encoder-decoder whole.
    """
    if finetuned and isinstance(source, PretrainedEncoderDecoder):
        return _Opened(*_open_generative(source), None, None, None)
    if isinstance(source, PretrainedModel):
        with tokenizer_folder(source.tokenizer_files, source.module_files) as folder:
            return _Opened(source, load_tokenizer(folder), None, None, pooling_of(folder, EmbedOptions()))
    folder = require_model(os.fspath(source))
    require_one_label(folder)
    trained = trained_task(source.workdir if isinstance(source, Run) else folder)
    if finetuned:
        return _Opened(*load_finetuned(folder, trained)[:2], None, trained, None)
    return _Opened(*load_model(folder, head), trained, pooling_of(folder, EmbedOptions()))


def _open_generative(model: ModelSource | PretrainedEncoderDecoder) -> Generative:
    if isinstance(model, PretrainedEncoderDecoder):
        with tokenizer_folder(model.tokenizer_files) as folder:
            return Generative(model, load_tokenizer(folder))
    if isinstance(model, PretrainedModel):
        return Generative(model, _open(model).tokenizer)
    return load_generative(require_model(os.fspath(model)))


@contextlib.contextmanager
def tokenizer_folder(files: Mapping[str, bytes], others: Mapping[str, bytes] | None = None) -> Iterator[Path]:
    """Yields a folder with the tokenizer's files of a loaded model, and others.

    Raises:
        UserError: The model has no tokenizer.
    """
    if not files:
        raise UserError("the model has no tokenizer; load it from a folder that holds one")
    with tempfile.TemporaryDirectory() as name:
        for path, content in {**files, **(others or {})}.items():
            (Path(name) / path).parent.mkdir(parents=True, exist_ok=True)
            (Path(name) / path).write_bytes(content)
        yield Path(name)


def _predictor(opened: _Opened, options: PredictOptions, first: JsonRecord | None) -> Predictor | TextPredictor:
    """Returns the predictor of a model, by the first record; that of a loaded model is compiled once for many calls."""
    cached = _predictors.setdefault(opened.model, {})
    is_pair = first is not None and "pair" in first.values
    if (options, is_pair) not in cached:
        cached[options, is_pair] = make_predictor(opened.model, opened.tokenizer, opened.trained, options, first)
    return cached[options, is_pair]


def _texts(texts: Sequence[str]) -> list[str]:
    if isinstance(texts, str):
        raise UserError("texts is a single text: give a list of texts")
    return list(texts)
