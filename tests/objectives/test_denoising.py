"""Denoising: what is corrupted how often, that every text can be rebuilt, and that rows and packing change nothing."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.config.defaults import base_config
from bertjax.config.encoder_decoder import DecoderConfig, EncoderDecoderConfig
from bertjax.config.model import EncoderConfig
from bertjax.config.overrides import apply_overrides
from bertjax.errors import UserError
from bertjax.experiment.config import parse as check
from bertjax.models.model import bind
from bertjax.objectives.denoising.infilling import Infilling, permute_sentences, span_probabilities
from bertjax.objectives.denoising.retromae import RetroMae, visible_tokens
from bertjax.objectives.denoising.span_corruption import SpanCorruption, random_spans
from bertjax.objectives.denoising.tsdae import Tsdae, remaining_tokens
from bertjax.objectives.masking.settings import Masking
from bertjax.objectives.masking.tokens import Tokens, locate_tokens
from bertjax.types import Vocabulary

jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
CLS, SEP, MASK, STOP, S = 2, 3, 4, 7, 24
ZERO = jnp.zeros((), jnp.int32)
ENCODER = EncoderConfig(
    vocab_size=200,
    padded_vocab_size=256,
    hidden_size=16,
    num_layers=1,
    num_heads=2,
    intermediate_size=24,
    max_position_embeddings=S,
    hidden_dropout=0.0,
    attention_dropout=0.0,
)
MODEL = EncoderDecoderConfig.symmetric(ENCODER)
SPANS = SpanCorruption(seq_len=S, num_sentinels=16)
CONFIGS = {
    "spans": lambda vocabulary: SPANS.with_model(MODEL, vocabulary),
    "infilling": lambda vocabulary: Infilling().with_model(MODEL, vocabulary),
    "tsdae": lambda vocabulary: Tsdae().with_model(MODEL, vocabulary),
    "retromae": lambda vocabulary: RetroMae(Masking(max_predictions=8)).build({"model": ENCODER}, vocabulary),
}


def text(*ids: int) -> np.ndarray:
    return np.array([CLS, *ids, SEP], np.int32)


@pytest.fixture(scope="module")
def many(pack: Callable) -> Callable[[np.ndarray, int], dict[str, jax.Array]]:
    """`many(ids, count)`: so many examples of the same text."""

    def build(ids: np.ndarray, count: int) -> dict[str, jax.Array]:
        batch = pack([[ids]] * count, len(ids), [[number] for number in range(count)])
        return {name: jnp.asarray(array) for name, array in batch.items()}

    return build


def tokens_of(batch: dict[str, jax.Array], vocabulary: Vocabulary) -> Tokens:
    keys = jax.vmap(jax.vmap(lambda number: jax.random.fold_in(jax.random.key(5), number)))(batch["example_ids"])
    return locate_tokens(batch, keys, vocabulary, False, True)


def examples_of(batch: dict[str, Any], prefix: str = "") -> list[list[int]]:
    """The ids of every example of a batch, in its order."""
    names = ("target_ids", "target_segment_ids") if prefix else ("input_ids", "segment_ids")
    ids, segments = (np.asarray(batch[name]) for name in names)
    return [
        ids[row][segments[row] == number].tolist()
        for row in range(len(ids))
        for number in range(1, segments[row].max() + 1)
    ]


@pytest.mark.long
@pytest.mark.parametrize(
    "name", ["spans", *(pytest.param(name, marks=pytest.mark.weekly) for name in ("infilling", "tsdae", "retromae"))]
)
def test_packed_examples_are_corrupted_as_each_alone(name: str, vocabulary: Vocabulary, pack: Callable) -> None:
    draw = np.random.default_rng(2).integers
    texts = [text(*draw(5, 180, length)) for length in (9, 5, 14, 1, 2, 22)]
    rows = [[0, 1], [2, 3, 4], [5]]
    packed = pack([[texts[index] for index in row] for row in rows], S, rows)
    alone = pack([[each] for each in texts], S, [[index] for index in range(len(texts))], max_examples=3)
    objective = CONFIGS[name](vocabulary)
    corrupt = jit(objective.corrupt)
    one, other = (
        jax.device_get(corrupt(jax.tree.map(jnp.asarray, batch), jax.random.key(1), ZERO)) for batch in (packed, alone)
    )
    assert examples_of(one) == examples_of(other)
    if "target_ids" in one:
        assert examples_of(one, "target") == examples_of(other, "target")
    for row, examples in enumerate(rows):
        firsts = one["example_positions"][row][: len(examples)]
        assert one["input_ids"][row][firsts].tolist() == [CLS] * len(examples)
    again = jax.device_get(corrupt(jax.tree.map(jnp.asarray, packed), jax.random.key(1), ZERO + 1))
    # of a text with a single span T5 always drops the end
    assert name == "spans" or examples_of(again) != examples_of(one), "another batch, another corruption"


def restore(source: list[int], target: list[int], sentinels: tuple[int, ...]) -> list[int]:
    """The original text of a corrupted one, as a reader of T5's paper would."""
    spans: dict[int, list[int]] = {}
    for token in target[:-1]:
        if token in sentinels:
            current = spans.setdefault(token, [])
        else:
            current.append(token)
    assert list(spans) == list(sentinels[: len(spans)]) and target[-1] == SEP
    assert [token for token in source if token in sentinels] == list(spans)
    return [token for each in source for token in spans.get(each, [each])]


@pytest.mark.long
@pytest.mark.parametrize(("density", "mean"), [(0.15, 3.0), (0.5, 2.0), (0.3, 1.0)])
def test_sentinels_and_their_spans_are_the_text(
    density: float, mean: float, vocabulary: Vocabulary, pack: Callable
) -> None:
    config = SpanCorruption(noise_density=density, mean_span=mean, seq_len=S, num_sentinels=16)
    objective, draw = config.with_model(MODEL, vocabulary), np.random.default_rng(0).integers
    lengths = [[22], [1, 1, 1, 1, 1, 1, 1, 1], [2] * 6, [9, 11], [4, 4, 4, 4]]
    rows = [[text(*draw(10, 180, each)) for each in row] for row in lengths]
    packed = pack(rows, S, [[8 * number + index for index in range(len(row))] for number, row in enumerate(rows)])
    batch = jax.device_get(jit(objective.corrupt)(jax.tree.map(jnp.asarray, packed), jax.random.key(0), ZERO))
    sources, targets = examples_of(batch), examples_of(batch, "target")
    for original, source, target in zip(itertools.chain(*rows), sources, targets, strict=True):
        assert restore(source, target, vocabulary.sentinel_ids) == original.tolist()
        noise, spans = (int(each) for each in config.spans(np.array(len(original) - 2)))
        assert (len(source), len(target)) == (len(original) - noise + spans, noise + spans + 1)
    alone = config.network_lengths(S, 1)
    assert (len(sources[0]), len(targets[0])) == (alone["model"], alone["decoder"]), "nothing to spare, nothing lost"


def test_lengths_and_spans_are_those_of_t5() -> None:
    """google-research/text-to-text-transfer-transformer: compute_input_and_target_lengths(512, 0.15, 3.0)."""
    config = SpanCorruption(seq_len=569)
    noise, spans = (int(each) for each in config.spans(np.array(568)))
    assert (568 - noise + spans + 1, noise + spans + 1) == (512, 114)
    assert config.network_lengths(569, 1) == {"model": 512, "decoder": 114}
    with pytest.raises(UserError, match=r"num_sentinels=100 is too small: .*data.seq_len=4096 tokens has up to 205"):
        SpanCorruption(seq_len=4096)


@pytest.mark.long
def test_every_division_into_spans_is_as_likely(vocabulary: Vocabulary, many: Callable) -> None:
    config, count = SpanCorruption(noise_density=0.5, mean_span=2.0, seq_len=12, num_sentinels=16), 6000
    batch = many(text(*range(10, 20)), count)
    spans = np.asarray(jit(lambda: random_spans(config, tokens_of(batch, vocabulary), vocabulary))())[:, 1:-1]
    counted = Counter(map(tuple, spans.tolist()))
    assert len(counted) == 16, "5 dropped tokens and 5 others, each as 2 spans in 4 ways"
    assert all(sum(each) == 5 for each in counted)


def reference_infilling(draw: np.random.Generator, length: int, rate: float, mean: float) -> list[int]:
    """Fairseq's rule token by token: 0 = mask, else the number of the token."""
    budget, lengths = int(np.ceil(length * rate)), list[int]()
    while sum(lengths) < budget:
        lengths.append(int(draw.poisson(mean)))
    lengths[-1] -= sum(lengths) - budget
    inserts = lengths.count(0)
    lengths = [each for each in lengths if each]
    result: list[int | None] = list(range(1, length + 1))
    starts = draw.permutation(length)[: len(lengths)]
    for start in starts:
        result[start] = 0
    for start, size in zip(starts, lengths, strict=True):
        for index in range(start + 1, min(start + size, length)):
            result[index] = None
    remaining = [each for each in result if each is not None]
    total = len(remaining) + inserts
    masked, tokens = set(draw.permutation(total)[:inserts].tolist()), iter(remaining)
    return [0 if index in masked else next(tokens) for index in range(total)]


@pytest.mark.long
def test_infilling_has_the_statistics_of_fairseq(vocabulary: Vocabulary, many: Callable) -> None:
    length, count = 40, 3000
    objective = Infilling(permute_sentences=False).with_model(MODEL, vocabulary)
    batch = many(text(*range(10, 10 + length)), count)
    result = examples_of(jax.device_get(jit(objective.corrupt)(batch, jax.random.key(3), ZERO)))
    ours = [[0 if token == MASK else token - 9 for token in each[1:-1]] for each in result]
    draw = np.random.default_rng(0)
    theirs = [reference_infilling(draw, length, 0.3, 3.0) for _ in range(count)]

    def facts(each: list[int]) -> list[float]:
        tokens = [token for token in each if token]
        assert tokens == sorted(set(tokens)), "the text that remains is in order"
        gaps = [b - a - 1 for a, b in itertools.pairwise([0, *tokens, length + 1])]
        pairs = sum(a == b == 0 for a, b in itertools.pairwise(each))
        return [
            len(tokens),
            each.count(0),
            pairs,
            max(gaps),
            sum(gap == 0 for gap in gaps),
            each[0] == 0,
            each[-1] == 0,
        ]

    one, other = (np.array([facts(each) for each in side], float) for side in (ours, theirs))
    error = np.sqrt((one.var(0) + other.var(0)) / count)
    assert (np.abs(one.mean(0) - other.mean(0)) < 4 * error).all(), (one.mean(0), other.mean(0))
    np.testing.assert_allclose(one.std(0), other.std(0), rtol=0.1)
    shares = span_probabilities(3.0)
    np.testing.assert_allclose(shares[:4], np.exp(-3.0) * np.array([1, 3, 4.5, 4.5]))
    assert shares[-1] < 1e-7 < shares[-2]


@pytest.mark.long
def test_the_target_is_the_text_and_sentences_are_permuted(vocabulary: Vocabulary, many: Callable) -> None:
    sentences = [(10, STOP), (11, 12, STOP, STOP), (13, 14, 15)]  # of two the second opens a sentence
    parts = [(10, STOP), (11, 12, STOP), (STOP, 13, 14, 15)]
    batch = many(text(*itertools.chain(*sentences)), 2400)
    result = np.asarray(jit(lambda: permute_sentences(tokens_of(batch, vocabulary), vocabulary))())
    counted = Counter(map(tuple, result.tolist()))
    orders = {(CLS, *itertools.chain(*order), SEP) for order in itertools.permutations(parts)}
    assert set(counted) == orders and max(counted.values()) < 1.2 * 2400 / len(orders)
    model = EncoderDecoderConfig.symmetric(ENCODER, decoder_start_token_id=SEP)
    batch = Infilling().with_model(model, vocabulary).corrupt(batch, jax.random.key(0), ZERO)
    assert examples_of(batch, "target")[0] == text(*itertools.chain(*sentences)).tolist()
    assert np.asarray(batch["decoder_input_ids"])[0, :3].tolist() == [SEP, CLS, 10]


@pytest.mark.long
def test_tsdae_deletes_words_and_never_all(vocabulary: Vocabulary, many: Callable) -> None:
    starts = np.flatnonzero(vocabulary.starts_word)
    inside = int(np.flatnonzero(~vocabulary.starts_word)[-1])
    words = [int(each) for each in starts[starts > 30][:10]]
    batch = many(text(*itertools.chain(*((word, inside) for word in words))), 2000)
    tokens = tokens_of(batch, vocabulary)
    stays = np.asarray(remaining_tokens(tokens, vocabulary, 0.6))
    assert stays[:, [0, -1]].all()
    assert (stays[:, 1:-1:2] == stays[:, 2:-1:2]).all(), "whole words"
    assert abs(stays[:, 1:-1].mean() - 0.4) < 0.02
    last = np.asarray(remaining_tokens(tokens, vocabulary, 0.999))[:, 1:-1:2]
    assert (last.sum(1) >= 1).all() and (last.mean(0) > 0.07).all(), "any word may be the one that stays"


@pytest.mark.long
def test_the_decoder_of_tsdae_sees_one_vector(vocabulary: Vocabulary, pack: Callable) -> None:
    objective = Tsdae().with_model(EncoderDecoderConfig.symmetric(ENCODER, "all"), vocabulary)
    packed = jax.tree.map(jnp.asarray, pack([[text(10, 11, 12), text(13, 14)]], S, [[0, 1]]))
    batch = objective.corrupt(packed, jax.random.key(0), ZERO)
    assert examples_of(batch, "target") == [[10, 11, 12, SEP], [13, 14, SEP]]
    states = jax.random.normal(jax.random.key(1), (1, S, 16))
    vectors, examples = objective.decoder_source(states, batch)
    second = int(batch["example_positions"][0, 1])
    np.testing.assert_array_equal(vectors[0], states[0, jnp.array([0, second])])
    assert examples.tolist() == [[1, 2]]
    assert objective.encoder_decoder is None and list(objective.networks) == ["model", "decoder"]
    assert not any("cross" not in path for path in objective.init(jax.random.key(0))["decoder"]["encoder"]["layers"])


@pytest.mark.long
def test_what_a_token_of_retromae_sees(vocabulary: Vocabulary, pack: Callable) -> None:
    objective = CONFIGS["retromae"](vocabulary)
    packed = jax.tree.map(jnp.asarray, pack([[text(*range(10, 20)), text(*range(30, 38))]] * 200, S, [[0, 1]] * 200))
    packed["example_ids"] = jnp.arange(400, dtype=jnp.uint32).reshape(200, 2)
    batch = objective.corrupt(packed, jax.random.key(0), ZERO)
    visible = np.asarray(jit(lambda: visible_tokens(batch, vocabulary, 0.5))())
    first, second = visible[:, :12, :12], visible[:, 12:22, 12:22]
    assert visible[:, :22].sum() == first.sum() + second.sum(), "its own example alone"
    assert not np.diagonal(visible, axis1=1, axis2=2).any()
    assert first[:, 1:, 0].all() and first[:, :-1, -1].all(), "the special tokens"
    for block, length in ((first, 12), (second, 10)):
        inner = block[:, 1:-1, 1:-1]
        masked = length - 2 - inner.sum(2)  # half of the tokens, and the token itself if it is not among them
        assert set(np.unique(masked)) == {length // 2, length // 2 + 1}
        others = inner.sum((0, 1)) / (200 * (length - 2))
        assert others.std() < 0.03 and len(np.unique(inner[0], axis=0)) > 5, "another choice for each"


@pytest.mark.long
def test_the_layer_of_retromae_by_hand(vocabulary: Vocabulary, pack: Callable) -> None:
    """arXiv:2205.12035, equations 4 to 6; no token reads itself."""
    objective = CONFIGS["retromae"](vocabulary)
    params = objective.init(jax.random.key(0))
    packed = jax.tree.map(jnp.asarray, pack([[text(*range(10, 18))]], 10, [[0]]))
    batch = objective.corrupt(packed, jax.random.key(0), ZERO)
    model = bind(ENCODER, ("mlm",), objective.network_params(params, "model"))
    states = jax.random.normal(jax.random.key(1), (1, 10, 16))
    reader = {"encoder": {**params["reader"], "embeddings": params["encoder"]["embeddings"]}}
    result = objective._rebuild(model, reader, states, batch, None)
    layer = jax.tree.map(lambda leaf: leaf[0], params["reader"]["layers"])
    tables = params["encoder"]["embeddings"]

    def dense(x: jax.Array, part: dict[str, jax.Array]) -> jax.Array:
        return x @ part["kernel"] + part["bias"][None]

    def norm(x: jax.Array, part: dict[str, jax.Array]) -> jax.Array:
        scaled = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-12)
        return scaled * part["scale"][None] + part["bias"][None]

    positions = tables["position_embeddings"]["embedding"][:10]
    words = tables["word_embeddings"]["embedding"][batch["original_ids"][0]]
    types = tables["token_type_embeddings"]["embedding"][batch["token_type_ids"][0]]
    keys = norm(words + positions + types, tables["norm"]).at[0].set(states[0, 0])
    queries, attention = jnp.broadcast_to(states[0, :1], (10, 16)) + positions, layer["attention"]
    q, k, v = (
        dense(x, attention[name]).reshape(10, 2, 8)
        for name, x in {"query": queries, "key": keys, "value": keys}.items()
    )
    scores = jnp.einsum("qnh,knh->nqk", q, k) / np.sqrt(8.0)
    visible = visible_tokens(batch, vocabulary, 0.5)[0]
    mixed = jnp.einsum("nqk,knh->qnh", jax.nn.softmax(jnp.where(visible[None], scores, -1e30)), v).reshape(10, 16)
    hidden = norm(queries + dense(mixed, attention["output"]), attention["norm"])
    block = layer["feed_forward"]
    inner = jax.nn.gelu(dense(hidden, block["intermediate"]), approximate=False)
    np.testing.assert_allclose(result[0], norm(hidden + dense(inner, block["output"]), block["norm"]), atol=2e-5)
    other = {**batch, "original_ids": batch["original_ids"].at[0, 4].set(99)}
    moved = jnp.abs(objective._rebuild(model, reader, states, other, None) - result)[0].max(-1)
    assert moved[4] < 1e-6 < moved.max()


def test_settings_that_do_not_fit_are_refused() -> None:
    cfg = base_config()
    apply_overrides(cfg, ["--config.objective.name=infilling"])
    with pytest.raises(UserError, match=r"objective.name=infilling needs data.example_format to be one of block, doc"):
        check(cfg)
    apply_overrides(cfg, ["--config.data.example_format=block", "--config.decoder.num_heads=5"])
    with pytest.raises(UserError, match=r"the decoder: decoder.hidden_size 768 is not divisible by decoder.num"):
        check(cfg)
    apply_overrides(cfg, ["--config.decoder.num_heads=12", "--config.decoder.max_position_embeddings=64"])
    with pytest.raises(UserError, match=r"data.seq_len=128 is longer than the position table, decoder.max_position"):
        check(cfg)
    apply_overrides(cfg, ["--config.decoder.max_position_embeddings=512", "--config.decoder.hidden_size=384"])
    with pytest.raises(UserError, match=r"cannot share embeddings: embedding_dim is 768 and 384"):
        check(cfg)
    apply_overrides(cfg, ["--config.decoder.sharing=none"])
    check(cfg)
    assert DecoderConfig().start_token == "cls"
