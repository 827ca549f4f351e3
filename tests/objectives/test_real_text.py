"""Every family's masks on thousands of rows of real text (the embedded prose), against exact expectations."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from masking_lab import assert_share, chosen_of, jit, runs_of

from bertjax.config.fields import Reader
from bertjax.config.overrides import load_config
from bertjax.data.builtin import iter_python_docs
from bertjax.data.tokenizer_training import train_tokenizer
from bertjax.objectives.masking.corrupt import mask_batch
from bertjax.objectives.masking.settings import Masking
from bertjax.types import Vocabulary

CONFIGS = Path(__file__).parents[2] / "configs"
ROWS, S, STEPS = 2048, 64, 8
FAMILIES = {
    "bert.py:base": ("token", "token"),
    "roberta.py:base": ("token", "token"),
    "electra.py:base": ("token", "token"),
    "modernbert.py:base": ("token", "token"),
    "distilbert.py:base": ("frequency", "token"),
    "albert.py:base-v2": ("ngram", "token"),
    "deberta.py:v1-base": ("ngram_window", "token"),
    "spanbert.py:base": ("span", "span"),
    "shoot_out.py:whole_word": ("whole_word", "token"),
}
WORDS = ("ngram", "ngram_window", "span", "whole_word")
pytestmark = pytest.mark.weekly


@pytest.fixture(scope="module")
def text() -> tuple[dict[str, jax.Array], Vocabulary]:
    """Returns rows [CLS] text [SEP] of 12 to 64 tokens, each from a different position, and the vocabulary."""
    documents = list(iter_python_docs())[:160]
    tokenizer = train_tokenizer(documents, model="wordpiece", family="bert", vocab_size=2000, lowercase=True)
    stream = np.concatenate(tokenizer.encode_batch(documents))
    lengths = np.random.default_rng(0).integers(12, S + 1, ROWS)
    assert len(stream) > lengths.sum()
    positions = np.arange(S)[None]
    real, body = positions < lengths[:, None], (positions > 0) & (positions < lengths[:, None] - 1)
    ids = np.full((ROWS, S), tokenizer.pad_id, np.int32)
    ids[body] = stream[: body.sum()]
    ids[:, 0], ids[np.arange(ROWS), lengths - 1] = tokenizer.cls_id, tokenizer.sep_id
    batch = {
        "input_ids": ids,
        "segment_ids": real.astype(np.int32),
        "position_ids": np.where(real, positions, 0).astype(np.int32),
        "example_ids": np.arange(ROWS, dtype=np.uint32)[:, None],
        "example_epochs": np.zeros((ROWS, 1), np.uint32),
        "example_draws": np.zeros((ROWS, 1), np.uint32),
    }
    counts = np.bincount(stream, minlength=tokenizer.size)
    return {name: jnp.asarray(value) for name, value in batch.items()}, tokenizer.vocabulary(counts)


def masking_of(spec: str) -> Masking:
    cfg = load_config(f"{CONFIGS}/{spec}")
    cfg.data.seq_len = S
    cfg.objective.masking.max_predictions = None
    return Reader(cfg)(Masking)


@pytest.fixture(scope="module", params=FAMILIES)
def hidden(request: pytest.FixtureRequest, text: tuple) -> tuple[Masking, dict[str, np.ndarray], Vocabulary]:
    batch, vocabulary = text
    config = masking_of(request.param)
    assert (config.mask_unit, config.replacement_unit) == FAMILIES[request.param]
    out = jit(lambda b: mask_batch(b, jax.random.key(7), jnp.int32(0), config, vocabulary))(batch)
    return config, jax.device_get(out), vocabulary


def body_of(out: dict, vocabulary: Vocabulary) -> np.ndarray:
    """Returns the tokens that are neither padding nor [CLS] nor [SEP]."""
    return (out["segment_ids"] > 0) & ~np.isin(out["original_ids"], (vocabulary.cls_id, vocabulary.sep_id))


def test_only_what_may_be_chosen_is(hidden: tuple) -> None:
    config, out, vocabulary = hidden
    chosen, unknown = chosen_of(out), out["original_ids"] == vocabulary.unk_id
    allowed = out["segment_ids"] > 0 if config.allow_mask_special else body_of(out, vocabulary)
    assert not (chosen & ~allowed).any()
    if not config.allow_mask_unk:
        assert not (chosen & unknown).any()
    if config.allow_mask_special:  # and then they are, as often as any other token
        ends = allowed & ~body_of(out, vocabulary)
        assert_share(chosen[ends].sum(), ends.sum(), chosen[allowed].mean())


def test_as_many_are_chosen_as_the_rule_says(hidden: tuple) -> None:
    config, out, vocabulary = hidden
    chosen = chosen_of(out)
    lengths = (out["segment_ids"] > 0).sum(1)
    drawn = out["masked_weights"].sum(1)  # with replacement one token may count more than once
    expected = config.mask_rate * lengths
    if config.mask_rounding == "round":
        budget = np.maximum(1, np.rint(expected))
    elif config.mask_rounding == "ceil":
        budget = np.ceil(config.mask_rate * body_of(out, vocabulary).sum(1) - 1e-6)
    else:
        share, trials = chosen.sum() / lengths.sum(), lengths.sum()
        # floor(x + U) varies by less than a quarter per row, independent tokens by rate * (1 - rate) each
        spread = 0.5 / np.sqrt(ROWS) / lengths.mean() if config.mask_rounding == "random" else 0.5 / np.sqrt(trials)
        assert abs(share - config.mask_rate) < 4.5 * spread
        if config.mask_rounding == "random":
            assert np.abs(drawn - expected).max() < 1.0
        return
    if config.mask_unit in ("token", "span"):
        assert np.abs(drawn - budget).max() <= (1 if config.mask_rounding == "round" else 0)
        assert (drawn == budget).mean() > 0.99
    elif config.mask_unit == "ngram_window":
        assert 0.8 * expected.sum() < drawn.sum() < 1.2 * expected.sum()
    else:  # whole words, of which one may not fit
        assert (drawn <= budget + 1).all() and drawn.sum() > 0.9 * budget.sum()


def test_replaced_in_the_right_shares(hidden: tuple) -> None:
    """One decision per token, or one per run of neighbors, which then counts once."""
    config, out, vocabulary = hidden
    chosen, input_ids, original = chosen_of(out), out["input_ids"], out["original_ids"]
    if config.replacement_unit == "span":
        deciding = np.zeros_like(chosen)
        for row in range(ROWS):
            for first, last in runs_of(chosen[row]):
                deciding[row, first] = True
                kinds = {(input_ids[row, i] == vocabulary.mask_id) for i in range(first, last + 1)}
                assert len(kinds) == 1
    else:
        deciding = chosen
    total = deciding.sum()
    assert total > 3000
    masked = input_ids == vocabulary.mask_id
    assert_share((deciding & masked).sum(), total, config.mask_token_rate)
    other = deciding & ~masked & (input_ids != original)
    if config.random_token_rate == 0.0:
        assert not other.any()
    else:
        shares = np.full(vocabulary.size, 1.0 / vocabulary.size)
        if config.random_token_distribution == "unigram":
            shares = vocabulary.counts / vocabulary.counts.sum()
        same = shares[original[deciding]].mean()  # a random token may be the right one, or [MASK] itself
        expected = config.random_token_rate * (1 - same - shares[vocabulary.mask_id])
        assert_share(other.sum(), total, expected)
    assert (input_ids[~chosen] == original[~chosen]).all()


@pytest.mark.parametrize("hidden", [spec for spec, (unit, _) in FAMILIES.items() if unit in WORDS], indirect=True)
def test_words_are_chosen_whole(hidden: tuple) -> None:
    config, out, vocabulary = hidden
    chosen, body = chosen_of(out), body_of(out, vocabulary)
    # rows begin anywhere in the text: a word may continue after [CLS]
    starts = vocabulary.starts_word[out["original_ids"]] | ~body | ~np.roll(body, 1, axis=1)
    for row in range(ROWS):
        for first, last in runs_of(chosen[row]):
            assert starts[row, first]
            if config.mask_unit != "span" and config.mask_unit != "ngram_window":  # these end where their budget does
                assert starts[row, last + 1] or not body[row, last + 1]


@pytest.mark.parametrize("hidden", ["bert.py:base", "electra.py:base"], indirect=True)
def test_every_position_is_as_likely_as_another(hidden: tuple) -> None:
    """For single tokens; drawing without replacement never varies more than independent draws."""
    _, out, vocabulary = hidden
    chosen, body = chosen_of(out), body_of(out, vocabulary)
    rate = chosen.sum(1, keepdims=True) / body.sum(1, keepdims=True) * body
    for position in range(1, S - 1):
        expected, variance = rate[:, position].sum(), (rate[:, position] * (1 - rate[:, position])).sum()
        assert abs(chosen[:, position].sum() - expected) < 4.5 * np.sqrt(variance) + 1


def test_rare_tokens_are_drawn_before_frequent_ones(text: tuple) -> None:
    """DistilBERT: of two tokens in a row the rarer is drawn first with odds (c / c') ** -0.7."""
    batch, vocabulary = text
    config = masking_of("distilbert.py:base")
    function = jit(lambda batch, cursor: mask_batch(batch, jax.random.key(1), cursor, config, vocabulary))
    ids, often = np.asarray(batch["input_ids"]), np.zeros((ROWS, S))
    for cursor in range(STEPS):
        often += chosen_of(jax.device_get(function(batch, jnp.int32(cursor))))
    body = body_of({"original_ids": ids, "segment_ids": np.asarray(batch["segment_ids"])}, vocabulary)
    counts = np.maximum(vocabulary.counts[ids], 1)
    rare, frequent = often[body & (counts < 50)].mean() / STEPS, often[body & (counts > 5000)].mean() / STEPS
    assert rare > 3 * config.mask_rate * 0.9 and frequent < config.mask_rate / 2
