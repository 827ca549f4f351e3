"""Prediction of one masked word at a time gives the result of a full forward pass over the masks."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import jax
import numpy as np
import pytest
from parity.compare import random_params

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.hf.pretrained import PretrainedModel
from bertjax.inference.fill_mask import fill_masks
from bertjax.inference.mlm_inference import (
    MaskMode,
    TokenBatch,
    choose_mask_mode,
    masked_token_log_probs,
    masked_token_logits,
)

MASK = 3
PLAIN = EncoderConfig(
    vocab_size=30, hidden_size=12, num_layers=2, num_heads=2, intermediate_size=14, max_position_embeddings=20
)
ENHANCED = dataclasses.replace(
    PLAIN, position_embedding="none", attention_position="disentangled", enhanced_decoder=True, type_vocab_size=0
)
RELATIVE = dataclasses.replace(
    PLAIN, position_embedding="none", attention_position="relative", type_vocab_size=0, attention_bias="none"
)
CAUSAL = dataclasses.replace(PLAIN, causal=True)


@pytest.fixture(autouse=True)
def quick() -> Iterator[None]:
    """Compiles without the expensive passes."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


def model_of(config: EncoderConfig, heads: tuple[str, ...] = ("mlm",)) -> PretrainedModel:
    return PretrainedModel(config, random_params(config, heads), heads)


def drawn() -> tuple[TokenBatch, np.ndarray, np.ndarray]:
    """Returns rows with padding, with some tokens masked, and the positions of those."""
    ids = np.random.default_rng(0).integers(4, 30, (3, 9)).astype(np.int32)
    mask = np.ones_like(ids)
    mask[1, 6:] = 0
    positions = np.array([[2, 5], [1, 4], [0, 8]], np.int32)
    hidden = np.zeros(ids.shape, bool)
    np.put_along_axis(hidden, positions, True, axis=1)
    return TokenBatch(ids, mask, np.zeros_like(ids)), hidden, positions


@pytest.mark.parametrize(
    "config",
    [PLAIN, pytest.param(ENHANCED, marks=pytest.mark.long), RELATIVE],
    ids=["plain", "enhanced decoder", "relative, one stream"],
)
def test_as_a_forward_pass_over_masks(config: EncoderConfig) -> None:
    rows, hidden, positions = drawn()
    model = model_of(config)
    out = model(np.where(hidden, MASK, rows.input_ids), rows.attention_mask)
    expected = np.take_along_axis(np.asarray(out.mlm_logits), positions[:, :, None], axis=1)
    how = MaskMode(MASK, False)
    assert how == choose_mask_mode(model, MASK, two_streams=False)
    result = np.asarray(masked_token_logits(model, rows, hidden, positions, how))
    np.testing.assert_allclose(result, expected, atol=2e-5)
    words = np.take_along_axis(rows.input_ids, positions, axis=1)
    probs = np.exp(expected) / np.exp(expected).sum(-1, keepdims=True)
    of_words = np.take_along_axis(probs, words[:, :, None], axis=2)[:, :, 0]
    log_probs = masked_token_log_probs(model, rows, hidden, positions, words, how)
    np.testing.assert_allclose(log_probs, np.log(of_words), atol=2e-5)


def test_two_streams_are_those_of_an_order() -> None:
    rows, hidden, positions = drawn()
    model = model_of(RELATIVE)
    how = choose_mask_mode(model, MASK)
    assert how.two_streams
    perm_mask = np.broadcast_to(hidden[:, None], (3, 9, 9)).astype(np.int32)
    out = model(rows.input_ids, rows.attention_mask, perm_mask=perm_mask, target_mapping=np.eye(9)[positions])
    result = masked_token_logits(model, rows, hidden, positions, how)
    np.testing.assert_allclose(result, out.mlm_logits, atol=2e-5)


def test_a_hidden_word_is_never_read() -> None:
    rows, hidden, positions = drawn()
    other = rows._replace(input_ids=np.where(hidden, 29 - rows.input_ids % 7, rows.input_ids).astype(np.int32))
    for config in (PLAIN, ENHANCED, RELATIVE):
        model = model_of(config)
        how = choose_mask_mode(model, MASK)
        result = [np.asarray(masked_token_logits(model, each, hidden, positions, how)) for each in (rows, other)]
        np.testing.assert_array_equal(*result)


def test_a_causal_position_predicts_the_next() -> None:
    rows, hidden, positions = drawn()
    model = model_of(CAUSAL)
    words = np.take_along_axis(rows.input_ids, np.minimum(positions + 1, 8), axis=1)
    logits = np.asarray(model(rows.input_ids, rows.attention_mask).mlm_logits)
    chosen = np.take_along_axis(logits, positions[:, :, None], axis=1)
    expected = np.take_along_axis(chosen, words[:, :, None], axis=2)[:, :, 0] - np.log(np.exp(chosen).sum(-1))
    result = masked_token_log_probs(model, rows, hidden, positions, words, None)
    np.testing.assert_allclose(result, expected, atol=2e-5)


def test_a_token_is_predicted_from_the_one_before_it() -> None:
    rows, hidden, positions = drawn()
    plain, shifted = model_of(PLAIN), model_of(dataclasses.replace(PLAIN, masked_next_token=True))
    how = choose_mask_mode(shifted, MASK)
    with pytest.raises(UserError, match="a text begins with a mask: write a word first"):
        masked_token_logits(shifted, rows, hidden, positions, how)
    hidden[:, 0], positions = False, np.maximum(positions, 1)
    hidden[2, 1] = True
    result = masked_token_logits(shifted, rows, hidden, positions, how)
    np.testing.assert_array_equal(result, masked_token_logits(plain, rows, hidden, positions - 1, how))
    ids = np.where(hidden, MASK, rows.input_ids)
    before, at = (np.asarray(each(ids, rows.attention_mask).mlm_logits) for each in (plain, shifted))
    np.testing.assert_array_equal(at[:, 1:], before[:, :-1])


def test_refused() -> None:
    with pytest.raises(UserError, match=r"no head for masked words \(it has none at all\)"):
        choose_mask_mode(model_of(PLAIN, ()), MASK)
    with pytest.raises(UserError, match="the generator: bertjax export --network generator"):
        choose_mask_mode(model_of(PLAIN, ("rtd",)), MASK)
    with pytest.raises(UserError, match="left to right only"):
        choose_mask_mode(model_of(CAUSAL), MASK)
    with pytest.raises(UserError, match="no mask token"):
        choose_mask_mode(model_of(PLAIN), -1)
    assert choose_mask_mode(model_of(RELATIVE), -1).two_streams


class Words:
    """A tokenizer that splits at spaces, with a configurable mask token."""

    def __init__(self, mask: str) -> None:
        from tokenizers import Tokenizer, models, pre_tokenizers

        self.tokens = ["[PAD]", "[UNK]", "the", mask, *[f"w{number}" for number in range(26)]]
        self.mask_id, self.unk_id, self.special_ids, self.size = MASK, 1, (0, 1, MASK), len(self.tokens)
        self.engine = Tokenizer(models.WordLevel({each: index for index, each in enumerate(self.tokens)}, "[UNK]"))
        self.engine.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        self.engine.add_special_tokens([mask])

    def encode_with_specials(self, text: str) -> list[int]:
        return list(self.engine.encode(text).ids)

    def decode(self, ids: list[int]) -> str:
        return self.engine.decode(ids, skip_special_tokens=False)


@pytest.mark.parametrize("spelling", ["[MASK]", "<mask>"])
def test_masks_are_known_by_either_spelling(spelling: str) -> None:
    model, tokenizer = model_of(PLAIN), Words(spelling)
    ways = [fill_masks(model, tokenizer, [f"w1 {mask} w2 {mask} the"], 3) for mask in ("[MASK]", "<mask>", "[mask]")]
    assert ways[0] == ways[1] == ways[2] and [len(mask) for mask in ways[0][0]] == [3, 3]


def test_special_tokens_are_listed_only_on_request_and_rows_without_a_token_never() -> None:
    """The probabilities are those of `transformers`' pipeline: a softmax over all rows, those of special tokens too."""
    model, tokenizer = model_of(PLAIN), Words("[MASK]")
    tokenizer.tokens = tokenizer.tokens[:-3]
    [[everything]] = fill_masks(model, tokenizer, ["the [MASK]"], 100, special_tokens=True)
    [[words]] = fill_masks(model, tokenizer, ["the [MASK]"], 100)
    special = {tokenizer.tokens[number] for number in tokenizer.special_ids}
    assert sorted(each.token for each in everything) == sorted(tokenizer.tokens)
    assert words == [each for each in everything if each.token not in special]
    assert 0.5 < sum(each.probability for each in everything) < 1


def test_any_number_of_sentences() -> None:
    model, tokenizer = model_of(PLAIN), Words("[MASK]")
    sentences = [f"w{number % 20} [MASK] " + "the " * (number % 5) for number in range(70)]
    together = fill_masks(model, tokenizer, sentences, 2)
    assert len(together) == 70
    for number in (0, 33, 69):
        alone = fill_masks(model, tokenizer, [sentences[number]], 2)[0]
        assert [each.token for each in alone[0]] == [each.token for each in together[number][0]]
        np.testing.assert_allclose(
            [e.probability for e in alone[0]], [e.probability for e in together[number][0]], atol=1e-6
        )
    assert fill_masks(model, tokenizer, []) == []
