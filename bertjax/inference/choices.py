"""Choices by likelihood: how probable a model finds each of several continuations of a prompt (arXiv:2005.14165)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.data.tokenizer import Tokenizer
from bertjax.errors import UserError
from bertjax.hf.encoder_decoder.pretrained import PretrainedEncoderDecoder
from bertjax.hf.forward import max_input_length
from bertjax.hf.generate import generation_settings
from bertjax.hf.pretrained import PretrainedModel
from bertjax.inference.generate import Generative, require_generative, with_token_ids
from bertjax.inference.pseudo_likelihood import Likelihoods, PartScores, causal_parts, sum_parts
from bertjax.inference.text_batches import TOKENS_PER_BATCH, TokenizedTexts, batch_by_length, require_max_length
from bertjax.models.generation import start_token

NORMS = ("tokens", "characters", "none")
_ADVICE = "; take fewer examples in the prompt"


def score_continuations(
    model: Generative,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    continuations: Sequence[str],
    *,
    tokens: int = TOKENS_PER_BATCH,
    on_progress: Callable[[int, int], None] | None = None,
) -> Likelihoods:
    """Returns the log-likelihood of every continuation of its prompt, and the number of its tokens.

    Args:
        model: a causal model, which reads both as one text; or an encoder-decoder, whose source is the prompt.
        tokenizer: its tokenizer.
        prompts: n prompts.
        continuations: n continuations, with the space before them, where there is one.
        tokens: token slots of a batch.
        on_progress: called with the number of continuations done and their total.

    Raises:
        UserError: the model has no likelihood, or a text is too long.
    """
    require_generative(model)
    if isinstance(model, PretrainedModel):
        texts = _joined(tokenizer, prompts, continuations)
        require_max_length(texts.lengths, max_input_length(model.config), prompts, _ADVICE)
        parts = causal_parts(model, texts, tokens)
    else:
        parts = _target_parts(model, tokenizer, prompts, continuations, tokens)
    return sum_parts(parts, len(prompts), on_progress)


def normalize(likelihoods: Likelihoods, continuations: Sequence[str], norm: str) -> np.ndarray:
    """Returns log-likelihoods per token, per character or as they are, float64 [n].

    Args:
        likelihoods: result of `score_continuations`.
        continuations: the continuations.
        norm: one of `NORMS`.
    """
    if norm == "none":
        return likelihoods.totals
    characters = np.array([len(each.strip()) for each in continuations])
    return likelihoods.totals / np.maximum(likelihoods.tokens if norm == "tokens" else characters, 1)


def _joined(tokenizer: Tokenizer, prompts: Sequence[str], continuations: Sequence[str]) -> TokenizedTexts:
    """Returns prompts with their continuations; `words` is -1 in the prompt, which has no score.

    Both are tokenized together, for a token may begin with the space between them.
    """
    ids, words = [], []
    for prompt, continuation in zip(prompts, continuations, strict=True):
        before, whole = (_bare(tokenizer, text) for text in (prompt, prompt + continuation))
        if not before:
            before, whole = [tokenizer.cls_id], [tokenizer.cls_id, *whole]
        pairs = zip(before, whole, strict=False)
        common = next((index for index, (one, other) in enumerate(pairs) if one != other), min(len(before), len(whole)))
        if common >= len(whole) or whole[0] < 0:
            raise UserError(f"the continuation {continuation!r} of {prompt[-60:]!r} holds no token")
        ids.append(np.array(whole, np.int32))
        words.append(np.where(np.arange(len(whole)) < max(common, 1), -1, 0).astype(np.int32))
    offsets = np.cumsum([0, *map(len, ids)])
    return TokenizedTexts(np.concatenate(ids), np.zeros(offsets[-1], np.int32), np.concatenate(words), offsets)


def _bare(tokenizer: Tokenizer, text: str) -> list[int]:
    """Returns the tokens of a text without a token that ends it."""
    ids = tokenizer.encode_with_specials(text)
    return ids[:-1] if ids and ids[-1] == tokenizer.sep_id else ids


def _target_parts(
    model: PretrainedEncoderDecoder,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    continuations: Sequence[str],
    tokens: int,
) -> Iterator[PartScores]:
    """Yields the log-probabilities of continuations as targets, end token included."""
    start = start_token(model.config, generation_settings(with_token_ids(model.generation, tokenizer), {}))
    sources = [np.array(tokenizer.encode_with_specials(text)) for text in prompts]
    targets = [np.array([*tokenizer.encode_batch([text.strip()])[0], tokenizer.sep_id]) for text in continuations]
    lengths = np.array([len(each) for each in sources])
    require_max_length(lengths, max_input_length(model.config.encoder), prompts, _ADVICE)
    limit = max_input_length(model.config.decoder)
    require_max_length(np.array([len(each) for each in targets]), limit, continuations, _ADVICE)
    width, done = -(-max(map(len, targets)) // 8) * 8, 0
    width = width if limit is None else min(width, limit)
    for batch in batch_by_length(lengths, max_input_length(model.config.encoder), max(1, tokens // 2)):
        source, source_mask = _padded([sources[each] for each in batch.members], batch.length)
        target, mask = _padded([targets[each] for each in batch.members], width)
        shifted = np.concatenate([np.full((len(target), 1), start), target[:, :-1]], axis=1)
        logits = model(source, source_mask, shifted, np.ones_like(mask)).logits
        scores = jnp.take_along_axis(jax.nn.log_softmax(logits), jnp.asarray(target)[:, :, None], axis=2)[:, :, 0]
        is_real = np.arange(len(target)) < batch.num_real
        done += batch.num_real
        yield PartScores(scores, (mask > 0) & is_real[:, None], batch.members, done, len(sources))


def _padded(ids: Sequence[np.ndarray], length: int) -> tuple[np.ndarray, np.ndarray]:
    mask = np.arange(length) < np.array([len(each) for each in ids])[:, None]
    padded = np.zeros(mask.shape, np.int32)
    padded[mask] = np.concatenate(ids)
    return padded, mask.astype(np.int32)
