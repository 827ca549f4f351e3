"""XLNet's inputs and gradients; test_parity.py compares the outputs of all its classes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from gradients_lab import assert_same_gradients, loaded, perturbed  # noqa: E402
from parity.compare import random_params  # noqa: E402
from parity.families.xlnet import draw_order  # noqa: E402

from bertjax.config.model import EncoderConfig  # noqa: E402
from bertjax.errors import UserError  # noqa: E402
from bertjax.hf.forward import target_positions  # noqa: E402
from bertjax.hf.pretrained import PretrainedModel, load_pretrained  # noqa: E402
from bertjax.models.model import bind  # noqa: E402
from bertjax.models.two_stream import run_two_streams  # noqa: E402
from bertjax.types import Params  # noqa: E402

SIZES: dict[str, Any] = {"vocab_size": 37, "d_model": 14, "n_layer": 3, "n_head": 2, "d_inner": 11, "mem_len": 6}
B, S, T = 3, 9, 4


def theirs(**changes: Any) -> Any:
    return perturbed(transformers.XLNetLMHeadModel(transformers.XLNetConfig(**SIZES | changes)))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> PretrainedModel:
    return loaded(theirs(), tmp_path_factory.mktemp("xlnet"))


def drawn_batch(seed: int = 0) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(seed).integers
    mask = np.ones((B, S), np.int64)
    mask[1, :3] = 0
    types = np.tile(np.arange(S) >= 5, (B, 1)).astype(np.int64)
    return {"input_ids": draw(0, 37, (B, S)), "attention_mask": mask, "token_type_ids": types}


@pytest.mark.long
def test_gradients_of_the_permutation_loss_are_torchs(tmp_path: Path) -> None:
    """Of the mean over all targets, with a memory from the rows before."""
    hf, before, batch = theirs(clamp_len=6), drawn_batch(), drawn_batch(1)
    ours = loaded(hf, tmp_path)
    order = draw_order(batch)
    labels = np.random.default_rng(2).integers(0, 37, (B, T))

    def tensors(arrays: dict[str, np.ndarray]) -> dict[str, Any]:
        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    with torch.no_grad():
        mems = hf(**tensors(before), use_mems=True).mems
    expected = hf(**tensors(batch | order), mems=mems, use_mems=True, labels=torch.from_numpy(labels)).loss
    memory = ours(**before, output_memory=True).memory
    streams = {
        "memory": memory,
        "visible": jnp.asarray(order["perm_mask"] == 0),
        "targets": jnp.asarray(target_positions(order["target_mapping"], (B, S)), jnp.int32),
    }
    inputs = {
        "input_ids": batch["input_ids"],
        "segment_ids": batch["attention_mask"],
        "position_ids": np.zeros((B, S)),
        "token_type_ids": batch["token_type_ids"],
    }
    inputs = {name: jnp.asarray(array, jnp.int32) for name, array in inputs.items()}

    def loss(params: Params) -> jax.Array:
        network = bind(ours.config, ours.heads, params)
        states = run_two_streams(network.encoder, **inputs, **streams).targets
        scores = jax.nn.log_softmax(network.mlm_logits(states))
        return -jnp.take_along_axis(scores, jnp.asarray(labels)[..., None], axis=-1).mean()

    assert_same_gradients(ours, hf, loss, expected)


@pytest.mark.long
def test_two_rows_of_one_text_go_on_from_each_other(model: PretrainedModel) -> None:
    batch = drawn_batch()
    plain = model(**batch)
    assert plain.memory is None and model(**batch, perm_mask=np.zeros((B, S, S), int)).memory is None
    first = model(**batch, output_memory=True)
    np.testing.assert_allclose(first.last_hidden_state, plain.last_hidden_state, atol=1e-6)
    assert first.memory.shape == (3, B, 6, 14)
    second = model(**batch, memory=first.memory)
    assert np.abs(second.mlm_logits - plain.mlm_logits).max() > 1e-3


def test_targets_have_logits_and_no_other_head_does(model: PretrainedModel) -> None:
    batch = drawn_batch()
    config, heads = model.config, ("mlm", "token_classification", "sequence_classification")
    params = random_params(config, heads)
    out = PretrainedModel(config, params, heads)(**batch, **draw_order(batch), output_hidden_states=True)
    assert out.mlm_logits.shape == (B, T, 37) and out.last_hidden_state.shape == (B, T, 14)
    assert out.hidden_states.shape == (4, B, S, 14) and out.target_hidden_states.shape == (4, B, T, 14)
    assert out.token_logits is None and out.sequence_logits is None


def one_hot(*positions: int) -> np.ndarray:
    return np.broadcast_to(np.eye(S)[list(positions)], (B, len(positions), S))


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"target_mapping": one_hot(2, 2)}, r"names token 2 of sequence 0 twice"),
        ({"target_mapping": 0 * one_hot(2)}, r"target_mapping\[0, 0\] holds 0 ones"),
        ({"target_mapping": one_hot(2) + one_hot(3)}, r"target_mapping\[0, 0\] holds 2 ones"),
        ({"target_mapping": one_hot(2) / 2}, "must hold 0 and 1"),
        ({"target_mapping": one_hot(2)[:, 0]}, r"must have shape \[sequences, targets, tokens\]"),
        ({"target_mapping": one_hot(2)[:, :, 1:]}, r"in shape \[3, 1, 9\]"),
        ({"perm_mask": np.zeros((B, S))}, r"perm_mask must hold 0 and 1 in shape \[3, 9, 9\]"),
        ({"perm_mask": np.full((B, S, S), -1)}, "perm_mask must hold 0 and 1"),
        ({"memory": np.zeros((3, 4, B, 14))}, r"memory has shape \[3, 4, 3, 14\]"),
        ({"memory": np.zeros((2, B, 4, 14))}, r"expected \[3 layers, 3 sequences"),
    ],
)
def test_errors_of_the_inputs_are_named(model: PretrainedModel, more: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        model(**drawn_batch(), **more)


def test_other_models_have_no_streams() -> None:
    config = EncoderConfig(vocab_size=20, hidden_size=8, num_layers=1, num_heads=2, intermediate_size=8)
    bert = PretrainedModel(config, random_params(config, ()), ())
    with pytest.raises(UserError, match="need attention_position=relative"):
        bert(np.ones((1, 4), int), output_memory=True)


def test_half_of_an_odd_batch_is_refused(tmp_path: Path) -> None:
    ours = loaded(theirs(bi_data=True), tmp_path)
    with pytest.raises(UserError, match="3 sequences must be even"):
        ours(**drawn_batch())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"same_length": True}, "attends as far back"),
        ({"attn_type": "sideways"}, "known are bi and uni"),
        ({"summary_type": "mean"}, "the last token represents a text"),
        ({"summary_use_proj": False}, "the summary has a dense layer"),
        ({"summary_activation": None}, "known are tanh"),
        ({"d_head": 5}, "must be d_model / n_head"),
        ({"mem_len": "long"}, "mem_len must be a whole number or null"),
        ({"ff_activation": "mish"}, "known are"),
        ({"d_model": 15, "n_head": 3, "d_head": 5}, "even hidden_size"),
    ],
)
def test_configs_that_would_compute_something_else_are_refused(
    model: PretrainedModel, tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    model.save_pretrained(tmp_path / "m")
    file = tmp_path / "m" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    with pytest.raises(UserError, match=words):
        load_pretrained(tmp_path / "m")


def test_lengths_of_zero_mean_no_limit(model: PretrainedModel, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path / "m")
    file = tmp_path / "m" / "config.json"
    values = json.loads(file.read_text())
    for options, expected in (({"mem_len": 0, "reuse_len": 0}, (None, None)), ({}, (6, None))):
        file.write_text(json.dumps(values | options))
        config = load_pretrained(tmp_path / "m").config
        assert (config.mem_len, config.reuse_len) == expected
    del values["mem_len"]  # absent: the default of XLNetConfig
    file.write_text(json.dumps(values))
    assert load_pretrained(tmp_path / "m").config.mem_len == 512
