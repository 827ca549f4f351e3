"""Models: generated texts, and scores of choices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bertjax.api.errors import python_errors
from bertjax.experiment.load import batch_tokens as tokens_per_batch
from bertjax.experiment.load import require_batch_tokens
from bertjax.experiment.open_model import ModelSource, open_generative
from bertjax.experiment.score_choices import ChoiceResult, ChoiceTask, score_examples
from bertjax.hf.encoder_decoder.pretrained import PretrainedEncoderDecoder
from bertjax.inference.generate import Generator
from bertjax.inference.text_files import as_list, as_texts


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
