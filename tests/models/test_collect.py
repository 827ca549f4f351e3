"""Parts of the attention of single layers equal those of `transformers`, and reproduce the layer's output."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.hf.pretrained import load_pretrained
from bertjax.models.attention_context import attention_mask
from bertjax.models.layer import ATTENTION_TENSORS
from bertjax.models.model import bind, init_params

jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
S = 12
SMALL = EncoderConfig(
    vocab_size=50,
    hidden_size=24,
    num_layers=3,
    num_heads=3,
    intermediate_size=32,
    max_position_embeddings=S,
    initializer_range=0.3,
)
VARIANTS: dict[str, dict[str, Any]] = {
    "post-norm": {},
    "pre-norm, rotary, windows": {
        "norm_placement": "pre",
        "attention_position": "rotary",
        "position_embedding": "none",
        "local_attention": 4,
        "global_attn_every_n_layers": 2,
        "first_attention_norm": False,
    },
    "disentangled, convolution": {
        "attention_position": "disentangled",
        "position_embedding": "none",
        "conv_kernel_size": 3,
    },
    "relative": {"attention_position": "relative", "attention_bias": "none", "position_embedding": "none"},
    "shared": {"num_groups": 2},
}


def inputs() -> dict[str, jax.Array]:
    rng = np.random.default_rng(0)
    segments = np.array([[1] * 7 + [2] * 5, [1] * 9 + [0] * 3])
    positions = np.array([[*range(7), *range(5)], [*range(9), 0, 0, 0]])
    arrays = {
        "input_ids": rng.integers(5, 50, (2, S)),
        "segment_ids": segments,
        "position_ids": positions,
        "token_type_ids": np.zeros((2, S), int),
    }
    return {name: jnp.asarray(array, jnp.int32) for name, array in arrays.items()}


def test_the_parts_are_those_of_transformers(tmp_path: Any) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=50,
        hidden_size=24,
        num_hidden_layers=3,
        num_attention_heads=3,
        intermediate_size=32,
        max_position_embeddings=S,
        initializer_range=0.3,
        attn_implementation="eager",
    )
    theirs = transformers.BertModel(config).eval()
    theirs.save_pretrained(tmp_path)
    rows = {name: value[1:] for name, value in inputs().items()} | {"position_ids": jnp.arange(S)[None]}
    hooked: dict[str, np.ndarray] = {}
    for name in ("query", "key", "value"):
        getattr(theirs.encoder.layer[1].attention.self, name).register_forward_hook(
            lambda _, __, out, name=name: hooked.update({name: out.detach().numpy()})
        )
    with torch.no_grad():
        out = theirs(
            torch.tensor(np.asarray(rows["input_ids"], np.int64)),
            attention_mask=torch.tensor(np.asarray(rows["segment_ids"], np.int64)),
            output_attentions=True,
        )
    ours = load_pretrained(tmp_path)
    names = tuple(f"layers/1/{part}" for part in ATTENTION_TENSORS)
    result = jit(lambda params: bind(ours.config, (), params).encode(**rows, collect=names).attention_tensors)(
        {"encoder": ours.params["encoder"]}
    )
    assert set(result) == set(names)
    for name in ("query", "key", "value"):
        np.testing.assert_allclose(result[f"layers/1/{name}"].reshape(1, S, 24), hooked[name], atol=2e-5, err_msg=name)
    np.testing.assert_allclose(result["layers/1/probabilities"], out.attentions[1].numpy(), atol=1e-5)
    q, k = (hooked[name].reshape(S, 3, 8) for name in ("query", "key"))
    scores = np.einsum("qnh,knh->nqk", q, k) / np.sqrt(8)
    np.testing.assert_allclose(result["layers/1/scores"][0], scores, atol=1e-4)


@pytest.mark.long
@pytest.mark.parametrize(
    "variant",
    [
        pytest.param(
            each,
            marks=[]
            if each == "post-norm"
            else pytest.mark.long
            if each == "disentangled, convolution"
            else pytest.mark.weekly,
        )
        for each in VARIANTS
    ],
)
def test_the_probabilities_average_the_values_as_the_layer_does(variant: str) -> None:
    """Post-norm and pre-norm, every kind of positions: attention composed of the parts equals the layer's output."""
    config = dataclasses.replace(SMALL, **VARIANTS[variant])
    rows = inputs()
    names = ("layers/2/probabilities", "layers/2/value", "layers/1/scores", "before_last")
    params = jit(lambda key: init_params(config, (), key))(jax.random.key(0))

    @jit
    def run(params: Any) -> tuple[Any, Any, Any, Any]:
        model = bind(config, (), params)
        encoded = model.encode(**rows, collect=names)
        also = model.encode(**rows, collect=("hidden_states", *names)) if "norm" in variant else encoded
        layer = model.encoder.layer(2)
        contexts = model.encoder.contexts(rows["segment_ids"], rows["position_ids"], rows["token_type_ids"])
        read, norm = encoded.before_last, layer.attention.norm
        x = norm(read) if config.norm_placement == "pre" else read
        return encoded, also, model.encode(**rows), layer.attention(x, contexts[config.is_local(2)], None)

    encoded, also, plain, output = run(params)
    np.testing.assert_allclose(encoded.last_hidden_state, plain.last_hidden_state, atol=1e-5)
    assert plain.attention_tensors == {} and set(encoded.attention_tensors) == {
        name for name in names if name.startswith("layers")
    }
    for name in encoded.attention_tensors:
        np.testing.assert_allclose(
            also.attention_tensors[name], encoded.attention_tensors[name], atol=1e-4, err_msg=name
        )
    shares, values = encoded.attention_tensors["layers/2/probabilities"], encoded.attention_tensors["layers/2/value"]
    hooked = attention_mask(rows["segment_ids"], config.local_attention if config.is_local(2) else 0)
    real = np.asarray(rows["segment_ids"]) > 0
    assert not np.where(hooked, 0.0, shares).swapaxes(1, 2)[real].any()
    mixed = jnp.einsum("bnqk,bknh->bqnh", shares, values).reshape(2, S, 24)
    layer = bind(config, (), params).encoder.layer(2)
    expected = np.asarray(layer.attention.output(mixed))
    np.testing.assert_allclose(expected[real], np.asarray(output)[real], atol=1e-5)


def test_what_cannot_be_collected_is_refused() -> None:
    rows = inputs()
    for config, name, message in (
        (SMALL, "layers/3/query", "layers are 0 to 2"),
        (SMALL, "layers/1/keys", "tensors query, key, value"),
        (dataclasses.replace(SMALL, num_groups=1, inner_layers=2), "layers/1/query", "inner_layers=2"),
    ):
        with pytest.raises(UserError, match=message):
            jax.eval_shape(
                lambda key, config=config, name=name: (
                    bind(config, (), init_params(config, (), key)).encode(**rows, collect=(name,)).last_hidden_state
                ),
                jax.random.key(0),
            )
