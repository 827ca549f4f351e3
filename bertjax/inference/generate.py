"""Generation of texts: with an encoder-decoder from sources, with a causal model from prompts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from bertjax.config.generation import GenerationConfig
from bertjax.config.model import EncoderConfig
from bertjax.data.tokenizer import Tokenizer
from bertjax.errors import UserError
from bertjax.hf.encoder_decoder.pretrained import PretrainedEncoderDecoder
from bertjax.hf.forward import max_input_length
from bertjax.hf.generate import generation_settings
from bertjax.hf.pretrained import PretrainedModel
from bertjax.inference.text_batches import TOKENS_PER_BATCH, TextEncoder, batch_by_length, require_max_length
from bertjax.models.generation import generate

Generative = PretrainedModel | PretrainedEncoderDecoder


class GeneratedText(NamedTuple):
    """One generated text, with its score as in `models.generation.Generated` and the number of its tokens.

    `ended`: whether it has an end token; else it reached the greatest length.
    """

    text: str
    score: float
    tokens: int
    ended: bool


class Generator:
    """Generates texts in batches of similar length; the samples of a text depend on its index, never on the batch.

    Args:
        model: an encoder-decoder, or a causal model with the head `mlm`.
        tokenizer: its tokenizer.
        arguments: settings of generation by name.
        seed: seed of samples.
        tokens: token slots of a batch, padding and beams included.

    Raises:
        UserError: the model cannot generate, or a setting is wrong.
    """

    def __init__(
        self,
        model: Generative,
        tokenizer: Tokenizer,
        arguments: Mapping[str, Any],
        seed: int = 0,
        tokens: int = TOKENS_PER_BATCH,
    ) -> None:
        self.is_causal = isinstance(model, PretrainedModel)
        require_generative(model)
        self.model, self.tokenizer = model, tokenizer
        self.settings = generation_settings(with_token_ids(model.generation, tokenizer), arguments)
        self.key = jax.random.key(seed)
        self.tokens = max(1, tokens // max(self.settings.num_beams, self.settings.num_return_sequences))
        self.num_truncated = self.num_unfinished = self.num_tokens = 0

    def __call__(
        self, texts: Sequence[str], first: int = 0, on_progress: Callable[[int, int], None] | None = None
    ) -> list[list[GeneratedText]]:
        """Returns the generated texts of every text, best first.

        Args:
            texts: sources or prompts.
            first: index of the first one, for samples.
            on_progress: called with the number of texts done and their total.
        """
        ids = [self.encode(text) for text in texts]
        lengths, limit = np.array([len(each) for each in ids]), self._limit()
        require_max_length(lengths, limit, texts)
        results: list[list[GeneratedText]] = [[] for _ in texts]
        done = 0
        for batch in batch_by_length(lengths, limit, self.tokens) if texts else ():
            members = batch.members[: batch.num_real]
            generated = self._generate([ids[each] for each in members], members + first)
            for member, texts_of_member in zip(members, generated, strict=True):
                results[member] = texts_of_member
            done += len(members)
            if on_progress is not None:
                on_progress(done, len(texts))
        return results

    def encode(self, text: str) -> list[int]:
        """Returns the tokens of a source, truncated to what the model reads; of a prompt, those before its end.

        Raises:
            UserError: a prompt is blank, and the model has no token that begins a text.
        """
        ids = self.tokenizer.encode_with_specials(text)
        if not self.is_causal:
            limit = self._limit()
            if limit is not None and len(ids) > limit:
                self.num_truncated += 1
                return TextEncoder(self.tokenizer, limit)([text]).ids.tolist()
            return ids
        ends = {*self.settings.eos_token_id, self.tokenizer.sep_id}
        while ids and ids[-1] in ends:
            ids.pop()
        if not ids and self.settings.bos_token_id is not None:
            ids = [self.settings.bos_token_id]
        if not ids:
            raise UserError("a prompt is blank, and the model has no token that begins a text; write something")
        return ids

    def _limit(self) -> int | None:
        return max_input_length(encoder_of(self.model))

    def _generate(self, ids: Sequence[Sequence[int]], indices: np.ndarray) -> list[list[GeneratedText]]:
        length = max(map(len, ids))
        padded = np.array([[*each, *[0] * (length - len(each))] for each in ids], np.int32)
        mask = np.arange(length) < np.array([len(each) for each in ids])[:, None]
        inputs = {"input_ids": padded, "attention_mask": mask.astype(np.int32), "example_ids": indices}
        result = generate(self.model.params, self.model.config, inputs, self.settings, self.key)
        return [
            [self._text(*one) for one in zip(*each, strict=True)]
            for each in zip(result.sequences, result.lengths, result.scores, strict=True)
        ]

    def _text(self, ids: np.ndarray, length: int, score: float) -> GeneratedText:
        ids = ids[: int(length)]
        ended = bool(len(ids)) and int(ids[-1]) in self.settings.eos_token_id
        self.num_unfinished += not ended
        self.num_tokens += len(ids)
        text = self.tokenizer.engine.decode(ids.tolist(), skip_special_tokens=True)
        return GeneratedText(text, float(score), len(ids), ended)


def encoder_of(model: Generative) -> EncoderConfig:
    """Returns the config of the network that reads the inputs."""
    return model.config if isinstance(model, PretrainedModel) else model.config.encoder


def require_generative(model: Generative) -> None:
    """Raises `UserError` for a model that cannot generate."""
    if isinstance(model, PretrainedModel) and (not model.config.causal or "mlm" not in model.heads):
        raise UserError(
            "this model cannot generate: give an encoder-decoder, or a causal model with its head (gpt2, "
            "objective.name=clm)"
        )


def with_token_ids(values: Mapping[str, Any], tokenizer: Tokenizer) -> dict[str, Any]:
    """Returns the settings of a model's folder, with the special tokens of its tokenizer where it names none."""
    ids = {"eos_token_id": tokenizer.sep_id, "pad_token_id": tokenizer.pad_id, "bos_token_id": tokenizer.cls_id}
    return {name: each for name, each in ids.items() if each >= 0} | {
        name: value for name, value in values.items() if value is not None
    }


def describe_search(settings: GenerationConfig) -> str:
    """Returns how tokens are chosen, in words."""
    if settings.num_beams > 1:
        return f"beam search with {settings.num_beams} beams"
    return "sampling" if settings.do_sample else "greedy search"
