"""The plain Transformer encoder equals torch's, and its sinusoids equal Marian's."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.models.model import abstract_params, bind
from bertjax.models.rope import absolute_sinusoids, frequencies, rotate, rotation, sinusoids
from bertjax.types import Params

torch = pytest.importorskip("torch")

LENGTH, VOCAB = 13, 31
CASES = [
    pytest.param("post", "relu", "sinusoidal", id="post-relu-sinusoidal"),  # arXiv:1706.03762
    pytest.param("pre", "relu", "learned", id="pre-relu-learned"),
    pytest.param("post", "gelu", "learned", id="post-gelu-learned"),
    pytest.param("pre", "gelu", "sinusoidal", id="pre-gelu-sinusoidal"),
]


def config_of(placement: str, act: str, position: str) -> EncoderConfig:
    return EncoderConfig(
        vocab_size=VOCAB,
        hidden_size=42,
        num_layers=3,
        num_heads=3,
        intermediate_size=50,
        max_position_embeddings=LENGTH,
        position_embedding=position,
        type_vocab_size=0,
        embedding_norm="none",
        embedding_scale=True,
        norm_placement=placement,
        hidden_act=act,
        layer_norm_eps=1e-5,
    )


def random_params(config: EncoderConfig) -> Params:
    draw = np.random.default_rng(0).standard_normal
    return jax.tree.map(lambda leaf: jnp.asarray(0.3 * draw(leaf.shape), jnp.float32), abstract_params(config, ()))


def torch_encoder(config: EncoderConfig, params: Params) -> Any:
    """Returns `torch.nn.TransformerEncoder` with our weights."""
    layer = torch.nn.TransformerEncoderLayer(
        config.hidden_size,
        config.num_heads,
        config.intermediate_size,
        dropout=0.0,
        activation=config.hidden_act,
        layer_norm_eps=config.layer_norm_eps,
        batch_first=True,
        norm_first=config.norm_placement == "pre",
    )
    last = torch.nn.LayerNorm(config.hidden_size, config.layer_norm_eps) if config.norm_placement == "pre" else None
    model = torch.nn.TransformerEncoder(layer, config.num_layers, last, enable_nested_tensor=False)
    encoder = jax.tree.map(np.asarray, params["encoder"])
    attention, feed_forward = encoder["layers"]["attention"], encoder["layers"]["feed_forward"]
    state = {}
    for index in range(config.num_layers):
        prefix, qkv = f"layers.{index}", [attention[part] for part in ("query", "key", "value")]
        state[f"{prefix}.self_attn.in_proj_weight"] = np.concatenate([part["kernel"][index].T for part in qkv])
        state[f"{prefix}.self_attn.in_proj_bias"] = np.concatenate([part["bias"][index] for part in qkv])
        linears = {"self_attn.out_proj": attention["output"], "linear1": feed_forward["intermediate"]}
        for name, part in {**linears, "linear2": feed_forward["output"]}.items():
            state[f"{prefix}.{name}.weight"], state[f"{prefix}.{name}.bias"] = (
                part["kernel"][index].T,
                part["bias"][index],
            )
        for name, part in {"norm1": attention["norm"], "norm2": feed_forward["norm"]}.items():
            state[f"{prefix}.{name}.weight"], state[f"{prefix}.{name}.bias"] = part["scale"][index], part["bias"][index]
    if last is not None:
        state |= {"norm.weight": encoder["norm"]["scale"], "norm.bias": encoder["norm"]["bias"]}
    model.load_state_dict({name: torch.tensor(np.ascontiguousarray(array)) for name, array in state.items()})
    return model.eval()


@pytest.mark.parametrize(("placement", "act", "position"), CASES)
def test_the_encoder_is_torchs(placement: str, act: str, position: str) -> None:
    config = config_of(placement, act, position)
    params = random_params(config)
    draw = np.random.default_rng(1)
    ids = draw.integers(0, VOCAB, (3, LENGTH)).astype(np.int32)
    segments = (np.arange(LENGTH)[None] < np.asarray([LENGTH, 6, 1])[:, None]).astype(np.int32)
    positions = np.tile(np.arange(LENGTH, dtype=np.int32), (3, 1))
    inputs = [jnp.asarray(each) for each in (ids, segments, positions, np.zeros_like(ids))]
    run = jax.jit(lambda params, inputs: bind(config, (), params).encode(*inputs, collect=("hidden_states",)))
    out = run(params, inputs)

    table = np.asarray(params["encoder"]["embeddings"]["word_embeddings"]["embedding"])
    embedded = table[ids] * np.sqrt(config.hidden_size, dtype=np.float32) + position_table(config, params)[positions]
    np.testing.assert_allclose(out.hidden_states[0], embedded, atol=1e-5)
    with torch.no_grad():
        expected = torch_encoder(config, params)(
            torch.tensor(embedded), src_key_padding_mask=torch.tensor(segments == 0)
        )
    real = segments > 0  # torch may skip what the mask excludes
    assert np.abs(np.asarray(out.last_hidden_state)[real] - expected.numpy()[real]).max() <= 2e-5


def position_table(config: EncoderConfig, params: Params) -> np.ndarray:
    """Returns [S, D]: the learned rows, or sine and cosine of position / 10000^(2i / D), all sines first."""
    if config.position_embedding == "learned":
        return np.asarray(params["encoder"]["embeddings"]["position_embeddings"]["embedding"])
    angles = np.arange(LENGTH)[:, None] / 10_000.0 ** (np.arange(0, config.hidden_size, 2) / config.hidden_size)
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)


def test_sinusoids_are_marians() -> None:
    marian = pytest.importorskip("transformers.models.marian.modeling_marian")
    module = marian.MarianSinusoidalPositionalEmbedding(40, 26)
    module.weight = torch.nn.Parameter(module.create_weight(), requires_grad=False)
    np.testing.assert_allclose(jax.jit(lambda: sinusoids(jnp.arange(40), 26))(), module.weight.numpy(), atol=2e-6)


def test_closed_sinusoids_are_those_of_m2m_100() -> None:
    """All rows of the published width and length; -1, padding, has none."""
    theirs = pytest.importorskip("transformers.models.m2m_100.modeling_m2m_100")
    table = theirs.M2M100SinusoidalPositionalEmbedding(1024, 1024, 1).weights.numpy()
    config = EncoderConfig(position_embedding="fairseq", position_offset=2, hidden_size=1024, num_heads=16)
    waves = jax.jit(lambda: absolute_sinusoids(config, jnp.arange(-1, 1024)))()
    # frequencies below 1 differ by a last digit, which depends on the processor: 2^-24 for each of 1,024 positions
    np.testing.assert_allclose(waves, table[1:], atol=1024 * 2.0**-24 + 1e-6)
    assert not waves[0].any()
    for width, message in ((9, "needs an even embedding width"), (2, "needs an embedding width of 4 or more")):
        with pytest.raises(UserError, match=message):
            EncoderConfig(position_embedding="fairseq", hidden_size=width, num_heads=1)


def test_rotations_make_scores_of_distances() -> None:
    """Distant or equally shifted positions give the same products; position 0 does not rotate."""
    draw = np.random.default_rng(0).normal(size=(2, 1, 1, 1, 10))
    q, k = (jnp.asarray(each, jnp.float32) for each in draw)

    @jax.jit
    def score(query_position: int, key_position: int) -> jax.Array:
        pairs = ((q, query_position), (k, key_position))
        rotated = [rotate(x, rotation(jnp.asarray([[position]]), frequencies(10, 50.0))) for x, position in pairs]
        return (rotated[0] * rotated[1]).sum()

    near, shifted, swapped = (float(score(*positions)) for positions in ((7, 3), (104, 100), (3, 7)))
    assert near == pytest.approx(shifted, abs=1e-5) != pytest.approx(swapped, abs=1e-3)
    np.testing.assert_array_equal(rotate(q, rotation(jnp.asarray([[0]]), frequencies(10, 50.0))), q)
