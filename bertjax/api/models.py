"""Models: loading, generated texts, scores of choices, and objectives for a training loop of one's own."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from ml_collections import ConfigDict

from bertjax.api.errors import python_errors
from bertjax.api.runs import Run
from bertjax.config.parse import checked_config
from bertjax.experiment import build
from bertjax.experiment.load import batch_tokens as tokens_per_batch
from bertjax.experiment.load import load_generative, require_batch_tokens, require_model
from bertjax.experiment.open_model import open_generative
from bertjax.experiment.score_choices import ChoiceResult, ChoiceTask, score_examples
from bertjax.hf.encoder_decoder.pretrained import PretrainedEncoderDecoder
from bertjax.hf.pretrained import PretrainedModel
from bertjax.hf.pretrained import load_pretrained as load_folder
from bertjax.inference.generate import Generator
from bertjax.inference.text_files import as_list, as_texts
from bertjax.objectives.base import Objective
from bertjax.types import Vocabulary

ModelSource: TypeAlias = str | os.PathLike[str] | Run | PretrainedModel


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
    generator = Generator(*open_generative(model), settings, seed, tokens_per_batch(batch_tokens))
    texts = [[each.text for each in generated] for generated in generator(as_texts("inputs", inputs))]
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
    return score_examples(open_generative(model), task, as_list("inputs", inputs), labels, list(examples), batch_tokens)


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
