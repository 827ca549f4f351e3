"""Disentangled attention, its convolution and its decoder, against loops in float64; inputs that have no effect."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.models.disentangled_attention import (
    content_to_position,
    distance_bucket,
    log_bucket,
    position_to_content,
    used_buckets,
)
from bertjax.models.model import Model, abstract_params, bind
from bertjax.types import Params

jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})  # compilation dominates
NAMES = ("input_ids", "segment_ids", "position_ids", "token_type_ids")
S = 24
CONFIG = EncoderConfig(
    family="deberta-v2",
    vocab_size=50,
    hidden_size=20,
    num_layers=3,
    num_heads=4,
    intermediate_size=28,
    max_position_embeddings=32,
    type_vocab_size=0,
    position_embedding="none",
    attention_position="disentangled",
    position_buckets=6,
    max_relative_positions=17,
    norm_relative_embeddings=True,
    conv_kernel_size=3,
    embedding_norm="after",
    embedding_projection_bias=False,
    zero_pad_embeddings=True,
    enhanced_decoder=True,
    rtd_head="summary",
    hidden_act="gelu",
    layer_norm_eps=1e-7,
    hidden_dropout=0.0,
    attention_dropout=0.0,
)
V1 = dataclasses.replace(
    CONFIG,
    family="deberta",
    attention_bias="query_value",
    position_buckets=0,
    max_relative_positions=5,
    norm_relative_embeddings=False,
    conv_kernel_size=0,
)
SHARED = dataclasses.replace(CONFIG, share_att_key=True, pos_att_type=("p2c",))


def drawn(config: EncoderConfig) -> Params:
    """Returns parameters of which none is zero and no scale is one."""
    rng = np.random.default_rng(0)
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: jnp.asarray(rng.normal(float(path[-1].key == "scale"), 0.3, leaf.shape), jnp.float32),
        abstract_params(config, ("mlm",)),
    )


@pytest.fixture(scope="module")
def batch(rows: Callable) -> dict[str, jax.Array]:
    return device(rows([[S], [9, 11], [4, 5, 6]], S))


def device(batch: dict[str, np.ndarray]) -> dict[str, jax.Array]:
    return {name: jnp.asarray(batch[name]) for name in NAMES}


@functools.cache
def runner(config: EncoderConfig) -> Callable:
    """Returns all hidden states and the masked-word head's input at positions [B, M] (None = everywhere), jitted."""

    @jit
    def run(params: Params, batch: dict[str, jax.Array], positions: jax.Array | None = None) -> tuple[Any, Any]:
        model = bind(config, ("mlm",), params)
        encoded = model.encode(*(batch[name] for name in NAMES), collect=("hidden_states",))
        words = model.mlm_hidden_states(encoded, batch["segment_ids"], batch["position_ids"], positions)
        return encoded.hidden_states, words

    return run


# -- distances ---------------------------------------------------------------------------------------------------------


def test_buckets_of_the_released_models() -> None:
    # microsoft/DeBERTa:DeBERTa/deberta/da_utils.py, run for 256 buckets and 512 positions
    known = {128: 128, 129: 129, 131: 131, 200: 169, 201: 170, 300: 207, 400: 233, 510: 255, 511: 255, -200: -169}
    known |= {distance: distance for distance in range(-128, 129)}
    result = log_bucket(np.array(list(known)), 256, 512)
    assert result.tolist() == list(known.values())
    distances = np.arange(-511, 512)
    buckets = log_bucket(distances, 256, 512)
    assert (buckets == -log_bucket(-distances, 256, 512)).all() and (np.diff(buckets) >= 0).all()
    assert set(
        distance_bucket(distances, dataclasses.replace(V1, position_buckets=256, max_relative_positions=512))
    ) == set(range(1, 512))


def test_rows_of_the_table() -> None:
    assert distance_bucket(np.arange(-7, 8), V1).tolist() == [0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 9, 9]
    used, indices = used_buckets(V1, 8)
    assert used.tolist() == list(range(10))
    assert used[indices].tolist() == distance_bucket(np.arange(7, -8, -1), V1).tolist()


# lengths of one block and several, odd and even; 24 has blocks of 24, 81 one of 81, 144 three of 48
@pytest.mark.parametrize("length", [1, 24, 81, 144])
def test_scores_by_distance_are_the_definition(length: int) -> None:
    rng = np.random.default_rng(length)
    x = rng.normal(size=(2, length, 3, 4)).astype(np.float32)
    rows = rng.normal(size=(2 * length - 1, 3, 4)).astype(np.float32)  # by decreasing distance
    index = length - 1 - (np.arange(length)[:, None] - np.arange(length)[None, :])  # of distance i - j
    expected = np.einsum("binh,ijnh->bnij", x, rows[index]), np.einsum("bjnh,ijnh->bnij", x, rows[index])
    terms = (content_to_position, position_to_content)

    @jit
    def run(inputs: tuple[jax.Array, ...], positions: jax.Array | None) -> list[jax.Array]:
        return [term(x, jnp.asarray(rows), positions, CONFIG) for term, x in zip(terms, inputs, strict=True)]

    for result, reference in zip(run((x, x), None), expected, strict=True):
        np.testing.assert_allclose(result, reference, atol=1e-5)
    queries = jnp.asarray(rng.integers(0, length, (2, 5)), jnp.int32)
    few = jnp.take_along_axis(jnp.asarray(x), queries[:, :, None, None], axis=1)
    for result, reference in zip(run((few, x), queries), expected, strict=True):
        np.testing.assert_allclose(result, np.take_along_axis(reference, queries[:, None, :, None], axis=2), atol=1e-5)


def test_gradients_of_the_scores_are_not_scattered(batch: dict[str, jax.Array]) -> None:
    params = drawn(CONFIG)

    def loss(layers: Params) -> jax.Array:
        model = bind(CONFIG, ("mlm",), params | {"encoder": params["encoder"] | {"layers": layers}})
        return model.encode(*(batch[name] for name in NAMES)).last_hidden_state.sum()

    text = str(jax.make_jaxpr(jax.grad(loss))(params["encoder"]["layers"]))
    assert "dot_general" in text and "scatter" not in text


# -- a layer and the decoder, in float64 -------------------------------------------------------------------------------


def dense(x: np.ndarray, layer: Params) -> np.ndarray:
    return x @ layer["kernel"] + layer.get("bias", 0.0)


def normed(x: np.ndarray, norm: Params) -> np.ndarray:
    centered = x - x.mean(-1, keepdims=True)
    return centered / np.sqrt((centered**2).mean(-1, keepdims=True) + 1e-7) * norm["scale"] + norm["bias"]


def gelu(x: np.ndarray) -> np.ndarray:
    return x * 0.5 * (1.0 + np.vectorize(math.erf)(x / math.sqrt(2.0)))


def layer_by_definition(
    config: EncoderConfig, weights: Params, table: np.ndarray, queries: np.ndarray, source: np.ndarray
) -> np.ndarray:
    """One layer of one text, as described in arXiv:2006.03654; queries [S, D] attend to source [S, D]."""
    attention, terms = weights["attention"], config.pos_att_type
    of_keys, of_queries = ("key", "query") if config.share_att_key else ("position_key", "position_query")
    distances = np.arange(len(source))[:, None] - np.arange(len(source))[None, :]
    rows = distance_bucket(distances, config)

    def heads(x: np.ndarray) -> np.ndarray:
        return x.reshape(*x.shape[:-1], config.num_heads, config.head_dim)

    q, k, v = (heads(dense(x, attention[n])) for n, x in (("query", queries), ("key", source), ("value", source)))
    scores = np.einsum("inh,jnh->nij", q, k)
    if "c2p" in terms:
        scores += np.einsum("inh,ijnh->nij", q, heads(dense(table, attention[of_keys]))[rows])
    if "p2c" in terms:
        scores += np.einsum("jnh,ijnh->nij", k, heads(dense(table, attention[of_queries]))[rows])
    scores = np.exp(scores / math.sqrt(config.head_dim * (1 + len(terms))))
    mixed = np.einsum("nij,jnh->inh", scores / scores.sum(-1, keepdims=True), v).reshape(queries.shape)
    x = normed(queries + dense(mixed, attention["output"]), attention["norm"])
    feed = weights["feed_forward"]
    return normed(x + dense(gelu(dense(x, feed["intermediate"])), feed["output"]), feed["norm"])


def decoded_by_definition(config: EncoderConfig, params: Params, hidden: np.ndarray) -> np.ndarray:
    """Returns the input of the masked-word head, for the input [S, D] of the last layer of one text."""
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    relative = params["encoder"]["relative"]
    table = (
        normed(relative["embedding"], relative["norm"]) if config.norm_relative_embeddings else relative["embedding"]
    )
    last = jax.tree.map(lambda leaf: leaf[-1], params["encoder"]["layers"])
    states = params["decoder_positions"]["embedding"][: len(hidden)] + hidden
    for _ in range(2):
        states = layer_by_definition(config, last, table, states, hidden)
    return states


@pytest.mark.long
@pytest.mark.parametrize(
    "config",
    [CONFIG, *(pytest.param(each, marks=pytest.mark.long) for each in (V1, SHARED))],
    ids=["v2", "v1", "p2c-shared"],
)
def test_layers_and_decoder_are_the_definition(config: EncoderConfig, batch: dict[str, jax.Array]) -> None:
    params = drawn(config)
    hidden, words = runner(config)(params, batch)
    for row, part in ((0, slice(0, S)), (1, slice(9, 20)), (2, slice(4, 9))):  # a whole row, and parts of packed rows
        before, after = (np.asarray(hidden[layer, row, part], np.float64) for layer in (-2, -1))
        wide = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
        relative = wide["encoder"]["relative"]
        table = (
            normed(relative["embedding"], relative["norm"])
            if config.norm_relative_embeddings
            else relative["embedding"]
        )
        last = jax.tree.map(lambda leaf: leaf[-1], wide["encoder"]["layers"])
        np.testing.assert_allclose(after, layer_by_definition(config, last, table, before, before), atol=2e-5)
        np.testing.assert_allclose(words[row, part], decoded_by_definition(config, params, before), atol=5e-5)


FURTHER = [pytest.param(position, marks=pytest.mark.weekly) for position in ("none", "rotary")]


@pytest.mark.long
@pytest.mark.parametrize("position", ["disentangled", *FURTHER])
def test_decoding_some_positions_is_decoding_all(batch: dict[str, jax.Array], position: str) -> None:
    changes = {} if position == "disentangled" else {"position_buckets": 0, "head_size": 6}
    config = dataclasses.replace(CONFIG, attention_position=position, **changes)
    params, run = drawn(config), runner(config)
    inputs = jnp.asarray([[0, 23, 7, 7], [9, 19, 3, 0], [14, 4, 0, 0]], jnp.int32)
    _, everywhere = run(params, batch)
    _, some = run(params, batch, inputs)
    np.testing.assert_allclose(some, jnp.take_along_axis(everywhere, inputs[:, :, None], axis=1), atol=2e-5)


def test_without_a_decoder_words_are_read_from_the_last_state(batch: dict[str, jax.Array]) -> None:
    config = dataclasses.replace(CONFIG, enhanced_decoder=False)
    inputs = jnp.asarray([[0, 23], [9, 19], [14, 4]], jnp.int32)
    hidden, words = runner(config)(drawn(config), batch, inputs)
    np.testing.assert_array_equal(words, jnp.take_along_axis(hidden[-1], inputs[:, :, None], axis=1))
    owners = [(CONFIG, "mlm"), (CONFIG, "rtd"), (config, "mlm")]  # only the masked-word head reads positions
    assert ["decoder_positions" in abstract_params(each, (head,)) for each, head in owners] == [True, False, False]


# -- invariances -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [CONFIG, pytest.param(V1, marks=pytest.mark.long)], ids=["v2", "v1"])
def test_packed_is_each_alone(config: EncoderConfig, batch: dict[str, jax.Array]) -> None:
    """Attention, convolution and decoder neither depend on other examples nor on the example's position in the row."""
    params, run = drawn(config), runner(config)
    hidden, words = run(params, batch)
    alone = {name: jnp.pad(batch[name][1:2, 9:20], ((0, 0), (0, S - 11))) for name in NAMES}
    alone["segment_ids"] = (alone["segment_ids"] > 0).astype(jnp.int32)
    alone = {name: jnp.repeat(array, 3, axis=0) for name, array in alone.items()}  # the shape that is already compiled
    alone_hidden, alone_words = run(params, alone)
    np.testing.assert_allclose(hidden[:, 1, 9:20], alone_hidden[:, 0, :11], atol=2e-5)
    np.testing.assert_allclose(words[1, 9:20], alone_words[0, :11], atol=2e-5)


def test_padding_is_zero_where_it_is_embedded_and_convolved(batch: dict[str, jax.Array]) -> None:
    hidden, _ = runner(CONFIG)(drawn(CONFIG), batch)
    padding = np.asarray(batch["segment_ids"]) == 0
    assert padding.any() and not np.asarray(hidden[:2])[:, padding].any()


@pytest.mark.long
def test_the_decoder_reads_positions_and_neighbors_but_no_other_query(batch: dict[str, jax.Array]) -> None:
    params = drawn(CONFIG)
    model: Model = bind(CONFIG, ("mlm",), params)
    inputs = batch["segment_ids"][:1], batch["position_ids"][:1]
    targets = jnp.asarray([[3, 8, 15]], jnp.int32)
    encoded = model.encode(*(batch[name][:1] for name in NAMES))

    @jit
    def read(table: jax.Array, before_last: jax.Array) -> jax.Array:
        moved = bind(CONFIG, ("mlm",), params | {"decoder_positions": {"embedding": table}})
        return moved.mlm_hidden_states(encoded._replace(before_last=before_last), *inputs, targets)

    table, before = params["decoder_positions"]["embedding"], encoded.before_last
    words = read(table, before)
    moved = np.abs(read(table.at[8].add(1.0), before) - words).max((0, 2))
    assert moved[1] > 1e-2 and moved[[0, 2]].max() == 0.0
    assert np.abs(read(table, before.at[0, 20].add(1.0)) - words).max((0, 2)).min() > 1e-4


@pytest.mark.long
def test_unrolled_and_rematerialized_are_the_same(batch: dict[str, jax.Array]) -> None:
    params = drawn(CONFIG)

    def gradient(config: EncoderConfig) -> Params:
        @jit
        @jax.grad
        def run(params: Params) -> jax.Array:
            model = bind(config, ("mlm",), params)
            encoded = model.encode(*(batch[name] for name in NAMES))
            inputs = batch["segment_ids"], batch["position_ids"], jnp.asarray([[1, 5], [10, 3], [0, 7]], jnp.int32)
            logits = model.mlm_logits(model.mlm_hidden_states(encoded, *inputs))
            return jax.nn.log_softmax(logits)[..., 7].mean()

        return run(params)

    plain, other = gradient(CONFIG), gradient(dataclasses.replace(CONFIG, remat="full", unroll=2))
    assert all(np.abs(leaf).max() > 0.0 for leaf in jax.tree.leaves(plain))  # every parameter has a gradient
    for mine, yours in zip(jax.tree.leaves(plain), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(mine, yours, atol=2e-6, rtol=1e-3)


@pytest.mark.long
def test_dropout_and_narrow_types(batch: dict[str, jax.Array]) -> None:
    params = drawn(CONFIG)
    noisy = dataclasses.replace(CONFIG, hidden_dropout=0.1, compute_dtype="bfloat16", result_dtype="bfloat16")

    @functools.partial(jit, static_argnums=0)
    def words(config: EncoderConfig, key: jax.Array | None) -> jax.Array:
        model = bind(config, ("mlm",), params)
        inputs = batch["segment_ids"], batch["position_ids"]
        return model.mlm_hidden_states(model.encode(*(batch[name] for name in NAMES), key), *inputs, key=key)

    exact, narrow = words(CONFIG, None), words(noisy, None)
    one, again, two = (words(noisy, jax.random.key(seed)) for seed in (1, 1, 2))
    assert narrow.dtype == jnp.bfloat16 and np.abs(exact - narrow.astype(jnp.float32)).mean() < 0.05
    np.testing.assert_array_equal(one, again)
    assert np.abs((one - two).astype(jnp.float32)).mean() > 0.05


def test_the_table_is_dropped_anew_in_every_layer(batch: dict[str, jax.Array]) -> None:
    config = dataclasses.replace(CONFIG, hidden_dropout=0.5)
    encoder = bind(config, ("mlm",), drawn(config)).encoder
    context = encoder.contexts(*(batch[name] for name in NAMES[1:]))[False]
    x = jnp.asarray(np.random.default_rng(0).normal(size=(3, S, 20)), jnp.float32)
    attention = jit(lambda key: encoder.layer(0).attention(x, context, key))  # nothing else in it is dropped
    whole, one, two = (attention(key) for key in (None, jax.random.key(1), jax.random.key(2)))
    assert min(np.abs(one - whole).mean(), np.abs(one - two).mean()) > 0.01


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"position_buckets": 1}, "position_buckets must be 0"),
        ({"position_buckets": 34}, "position_buckets 34"),
        ({"pos_att_type": ("c2p", "c2p")}, "names a term twice"),
        ({"conv_kernel_size": 2}, "must be odd"),
        ({"attention_position": "relative", "attention_bias": "none", "position_buckets": 0}, "two streams"),
    ],
)
def test_mixtures_that_make_no_sense_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        dataclasses.replace(CONFIG, **changes)
