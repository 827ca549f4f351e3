"""Invariances of the encoder's output: padding, packing, unrolling, rematerialization, narrow types."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.config.model import EncoderConfig
from bertjax.models.encoder import EncoderOutput
from bertjax.models.linear import activation
from bertjax.models.model import bind, init_params
from bertjax.types import Params

jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})  # compilation dominates
ALL = ("pooler", "mlm", "pair")
NAMES = ("input_ids", "segment_ids", "position_ids", "token_type_ids")
S = 24


def forward(config: EncoderConfig) -> Callable:
    """Returns the last hidden states and pooled summaries of positions [B, E], jitted."""

    @jit
    def run(params: Params, batch: dict, positions: jax.Array) -> tuple[jax.Array, jax.Array]:
        model = bind(config, ALL, params)
        hidden = model.encode(*(batch[name] for name in NAMES)).last_hidden_state
        return hidden, model.pooled(hidden, positions)

    return run


@pytest.fixture(scope="module")
def encode(small: EncoderConfig) -> Callable:
    return forward(small)


@pytest.fixture(scope="module")
def gradient_of(small: EncoderConfig) -> Callable:
    """`gradient_of(remat="full")(params, batch)` -> loss and gradient of a loss that depends on every parameter."""

    def build(**changes) -> Callable:
        config = dataclasses.replace(small, **changes)

        @jit
        @jax.value_and_grad
        def run(params: Params, batch: dict) -> jax.Array:
            model = bind(config, ALL, params)
            hidden = model.encode(*(batch[name] for name in NAMES)).last_hidden_state
            pooled = model.pooled(hidden, jnp.zeros((hidden.shape[0], 1), jnp.int32))
            real = (batch["segment_ids"] > 0)[..., None]
            logits = jnp.where(real, jax.nn.log_softmax(model.mlm_logits(hidden)), 0.0)
            return (logits[..., 7].sum() + jax.nn.log_softmax(model.pair_logits(pooled))[..., 0].sum()) / real.sum()

        return run

    return build


@pytest.fixture(scope="module")
def batch(rows: Callable) -> dict[str, np.ndarray]:
    return rows([[S], [9, 11], [4, 5, 6]], S)


@pytest.fixture(scope="module")
def plain_gradient(gradient_of: Callable) -> Callable:
    return gradient_of()


@pytest.fixture(scope="module")
def plain(plain_gradient: Callable, small_params: Params, batch: dict) -> tuple[jax.Array, Params]:
    return plain_gradient(small_params, batch)


def assert_trees_close(actual: Params, expected: Params, rtol: float, atol: float) -> None:
    flat, _ = jax.tree_util.tree_flatten_with_path(expected)
    for (path, reference), leaf in zip(flat, jax.tree.leaves(actual), strict=True):
        np.testing.assert_allclose(leaf, reference, rtol=rtol, atol=atol, err_msg=jax.tree_util.keystr(path))


def test_what_stands_in_the_padding_does_not_matter(encode: Callable, small_params: Params, rows: Callable) -> None:
    batch = rows([[10], [17]], S)
    zero = jnp.zeros((2, 1), jnp.int32)
    hidden, pooled = encode(small_params, batch, zero)
    padding = batch["segment_ids"] == 0
    junk = {name: np.where(padding, value + 1, value) for name, value in batch.items() if name != "segment_ids"}
    other_hidden, other_pooled = encode(small_params, {**batch, **junk}, zero)
    assert np.abs(np.asarray(hidden - other_hidden))[padding].max() > 0.1
    np.testing.assert_allclose(hidden[~padding], other_hidden[~padding], atol=1e-6)
    np.testing.assert_allclose(pooled, other_pooled, atol=1e-6)


def test_the_length_of_the_row_does_not_matter(encode: Callable, small_params: Params, rows: Callable) -> None:
    long = rows([[10], [12]], S)
    short = {name: value[:, :12] for name, value in long.items()}
    zero = jnp.zeros((2, 1), jnp.int32)
    np.testing.assert_allclose(
        encode(small_params, long, zero)[0][0, :10], encode(small_params, short, zero)[0][0, :10], atol=2e-6
    )


def test_a_packed_row_equals_each_example_alone(encode: Callable, small_params: Params, rows: Callable) -> None:
    packed = rows([[9, 11]], S)
    hidden, pooled = encode(small_params, packed, jnp.asarray([[0, 9]]))
    alone = {name: np.zeros((2, S), np.int32) for name in NAMES}
    for row, part in enumerate((slice(0, 9), slice(9, 20))):
        for name in NAMES:
            alone[name][row, : part.stop - part.start] = 1 if name == "segment_ids" else packed[name][0, part]
    single, single_pooled = encode(small_params, alone, jnp.zeros((2, 1), jnp.int32))
    np.testing.assert_allclose(hidden[0, :9], single[0, :9], atol=2e-6)
    np.testing.assert_allclose(hidden[0, 9:20], single[1, :11], atol=2e-6)
    np.testing.assert_allclose(pooled[0], single_pooled[:, 0], atol=2e-6)
    # and the second example does depend on its positions and neighbors
    crossed = {**packed, "segment_ids": np.minimum(packed["segment_ids"], 1)}
    assert np.abs(encode(small_params, crossed, jnp.asarray([[0, 9]]))[0][0, :20] - hidden[0, :20]).max() > 1e-2


def test_an_unrolled_scan_is_the_same_network(
    small: EncoderConfig, encode: Callable, small_params: Params, batch: dict
) -> None:
    zero = jnp.zeros((3, 1), jnp.int32)
    unrolled = forward(dataclasses.replace(small, unroll=3))(small_params, batch, zero)
    for ours, scanned in zip(unrolled, encode(small_params, batch, zero), strict=True):
        np.testing.assert_allclose(ours, scanned, atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("policy", [pytest.param("full", marks=pytest.mark.weekly), "dots"])
def test_rematerialization_changes_nothing(
    gradient_of: Callable, small_params: Params, batch: dict, plain: tuple, policy: str
) -> None:
    value, gradient = gradient_of(remat=policy)(small_params, batch)
    np.testing.assert_allclose(value, plain[0], rtol=1e-6)
    assert_trees_close(gradient, plain[1], rtol=1e-4, atol=1e-7)


def test_rematerialization_saves_less(small: EncoderConfig, small_params: Params, batch: dict) -> None:
    """The policies differ in the residuals that the backward pass receives."""

    def saved(policy: str) -> int:
        config = dataclasses.replace(small, remat=policy)

        def run(params: Params) -> jax.Array:
            return (
                bind(config, ALL, params).encode(*(jnp.asarray(batch[name]) for name in NAMES)).last_hidden_state.sum()
            )

        residuals = jax.eval_shape(lambda params: jax.vjp(run, params)[1], small_params)
        return sum(leaf.size for leaf in jax.tree.leaves(residuals))

    none, dots, full = (saved(policy) for policy in ("none", "dots", "full"))
    assert full < dots < none


@pytest.mark.long
def test_rematerialized_layers_keep_what_fused_attention_returned(
    small: EncoderConfig, small_params: Params, batch: dict
) -> None:
    def kernels(policy: str) -> int:
        config = dataclasses.replace(small, remat=policy, attention_implementation="interpret")

        def run(params: Params) -> jax.Array:
            inputs = (jnp.asarray(batch[name]) for name in NAMES)
            return bind(config, ALL, params).encode(*inputs).last_hidden_state.sum()

        return str(jax.make_jaxpr(jax.grad(run))(small_params)).count("pallas_call")

    assert 0 < kernels("dots") == kernels("none") < kernels("full")


@pytest.mark.long
def test_bfloat16_is_close_and_its_gradients_are_float32(
    gradient_of: Callable, small_params: Params, batch: dict, plain: tuple
) -> None:
    value, gradient = gradient_of(compute_dtype="bfloat16", result_dtype="bfloat16")(small_params, batch)
    np.testing.assert_allclose(value, plain[0], rtol=0.02)
    assert {leaf.dtype for leaf in jax.tree.leaves(gradient)} == {np.dtype("float32")}
    ours, exact = (np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)]) for tree in (gradient, plain[1]))
    assert np.isfinite(ours).all()
    assert np.linalg.norm(ours - exact) < 0.05 * np.linalg.norm(exact)


def test_rows_of_nothing_but_padding_stay_finite(
    plain_gradient: Callable, small_params: Params, batch: dict, encode: Callable
) -> None:
    empty = {name: np.concatenate([value[:2], np.zeros((1, S), np.int32)]) for name, value in batch.items()}
    hidden, pooled = encode(small_params, empty, jnp.zeros((3, 1), jnp.int32))
    assert np.isfinite(hidden).all() and np.isfinite(pooled).all()
    _, gradient = plain_gradient(small_params, empty)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


def test_hidden_states_are_collected_only_on_request(small: EncoderConfig, small_params: Params, batch: dict) -> None:
    inputs = [jnp.asarray(batch[name]) for name in NAMES]

    @jit
    def run(params: Params) -> tuple[EncoderOutput, EncoderOutput, jax.Array]:
        model = bind(small, ALL, params)
        embedded = model.encoder.embeddings(inputs[0], inputs[2], inputs[3], inputs[1], None)
        return model.encode(*inputs, collect=("hidden_states",)), model.encode(*inputs), embedded

    collected, plain, embedded = run(small_params)
    assert plain.hidden_states is None
    assert collected.hidden_states.shape == (4, 3, S, 32)
    np.testing.assert_array_equal(collected.hidden_states[-1], collected.last_hidden_state)
    np.testing.assert_allclose(collected.last_hidden_state, plain.last_hidden_state, atol=1e-6)
    np.testing.assert_allclose(collected.hidden_states[0], embedded, atol=1e-6)
    table = small_params["encoder"]["embeddings"]
    summed = sum(
        np.asarray(table[f"{kind}_embeddings"]["embedding"])[ids]
        for kind, ids in zip(("word", "position", "token_type"), (inputs[0], inputs[2], inputs[3]), strict=True)
    )
    normed = (summed - summed.mean(-1, keepdims=True)) / summed.std(-1, keepdims=True)
    np.testing.assert_allclose(
        embedded, normed * np.asarray(table["norm"]["scale"]) + np.asarray(table["norm"]["bias"]), atol=1e-5
    )


def test_every_layer_drops_other_elements(small: EncoderConfig, small_params: Params, batch: dict) -> None:
    """With a very large feed-forward bias, a hidden state is large exactly where its layer dropped nothing."""
    config = dataclasses.replace(small, hidden_dropout=0.5)
    params = jax.tree.map(jnp.asarray, small_params)
    output = params["encoder"]["layers"]["feed_forward"]["output"]
    layers = {**params["encoder"]["layers"]}
    layers["feed_forward"] = {
        **layers["feed_forward"],
        "output": {**output, "bias": jnp.full_like(output["bias"], 1e4)},
        "norm": {"scale": jnp.ones((3, 32)), "bias": jnp.zeros((3, 32))},
    }
    params = {**params, "encoder": {**params["encoder"], "layers": layers}}
    run = jit(
        lambda key: (
            bind(config, ALL, params)
            .encode(*(jnp.asarray(batch[name]) for name in NAMES), key=key, collect=("hidden_states",))
            .hidden_states
        )
    )
    nonzero = np.asarray(run(jax.random.key(0)))[1:] > 0
    np.testing.assert_allclose(nonzero.mean((1, 2, 3)), 0.5, atol=0.05)
    for one, other in ((0, 1), (1, 2), (0, 2)):
        assert abs((nonzero[one] == nonzero[other]).mean() - 0.5) < 0.05
    np.testing.assert_array_equal(nonzero, np.asarray(run(jax.random.key(0)))[1:] > 0)
    assert abs((nonzero == (np.asarray(run(jax.random.key(1)))[1:] > 0)).mean() - 0.5) < 0.05


@pytest.mark.long
@pytest.mark.parametrize("placement", [pytest.param("sandwich", marks=pytest.mark.weekly), "parallel", "normformer"])
def test_placements_of_norms_by_hand(small: EncoderConfig, batch: dict, placement: str) -> None:
    """Sandwich (arXiv:2502.02732, Peri-LN) normalizes the input and output of a block; parallel as in GPT-NeoX."""
    config = dataclasses.replace(small, norm_placement=placement, num_layers=1)
    params = init_params(config, ("mlm",), jax.random.key(0))
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda leaf: leaf + rng.normal(0.0, 0.3, leaf.shape).astype(np.float32), params)
    encoder = bind(config, ("mlm",), params).encoder
    arrays = [jnp.asarray(batch[name]) for name in NAMES]
    result, states, *_ = encoder(*arrays, collect=("hidden_states",))
    x = states[0]
    layer, context = encoder.layer(0), encoder.contexts(*arrays[1:])[False]
    attended, block = layer.attention(layer.attention.norm(x), context, None), layer.feed_forward
    if placement == "parallel":
        expected = x + attended + block(block.norm(x))
    elif placement == "normformer":
        middle = x + layer.attention.output_norm(attended)
        inner = activation(config.hidden_act)(block.intermediate(block.norm(middle)))
        expected = middle + block.output(block.inner_norm(inner))
    else:
        middle = x + layer.attention.output_norm(attended)
        expected = middle + block.output_norm(block(block.norm(middle)))
    np.testing.assert_allclose(result, encoder.norm(expected), atol=2e-6)
