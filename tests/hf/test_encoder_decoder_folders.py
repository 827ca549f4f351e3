"""Encoder-decoders in folders: gradients, what is carried along, warm starts, our own format, refusals."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from parity.compare import random_transformers_model
from parity.families.encoder_decoder import CASES
from safetensors.numpy import load_file, save_file

from bertjax.config.encoder_decoder import EncoderDecoderConfig
from bertjax.config.generation import GenerationConfig
from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.hf.encoder_decoder.family import FAMILIES
from bertjax.hf.encoder_decoder.pretrained import PretrainedEncoderDecoder, from_encoders
from bertjax.hf.generate import _INERT_KEYS
from bertjax.hf.keymap import params_to_tensors
from bertjax.hf.load import read_folder
from bertjax.hf.pretrained import load_pretrained
from bertjax.hf.save import save_pretrained
from bertjax.io.tree_paths import flatten_tree
from bertjax.models.encoder_decoder import complete_params, init_params
from bertjax.models.model import init_params as init_single
from bertjax.objectives.base import StepInputs
from bertjax.objectives.seq2seq import Seq2Seq
from bertjax.types import Params, Vocabulary

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

T5 = next(case for case in CASES if case.name.startswith("v1.0"))
SIZES: dict[str, Any] = dict(vocab_size=50, hidden_size=24, num_layers=2, num_heads=2, intermediate_size=20)
BERT = EncoderConfig(**SIZES, max_position_embeddings=16, hidden_act="gelu", initializer="normal")


def batch_of(vocab_size: int) -> dict[str, np.ndarray]:
    """Returns a source and a target of three sequences, one of them padded."""
    draw, batch = np.random.default_rng(0).integers, {}
    for prefix, length in (("", 9), ("target_", 7)):
        segments = np.ones((3, length), np.int32)
        segments[1, 4:] = 0
        ids = "input_ids" if prefix == "" else "target_ids"
        batch[ids] = np.where(segments > 0, draw(5, vocab_size, (3, length)), 0).astype(np.int32)
        batch[f"{prefix}segment_ids"] = segments
        batch[f"{prefix}position_ids"] = np.tile(np.arange(length, dtype=np.int32), (3, 1))
    return batch | {"token_type_ids": np.zeros_like(batch["input_ids"])}


@pytest.mark.long
def test_the_loss_and_its_gradients_are_torchs(tmp_path: Path) -> None:
    """T5, with label smoothing as torch has it: its share of every token is e / V instead of e / (V - 1) of others."""
    theirs = random_transformers_model(T5, "T5ForConditionalGeneration")
    theirs.config.dropout_rate = 0.0
    theirs.save_pretrained(tmp_path)
    ours = load_pretrained(tmp_path)
    assert isinstance(ours, PretrainedEncoderDecoder)
    size = ours.config.encoder.vocab_size
    smoothing = 0.1
    vocabulary = Vocabulary(size, size, 0, 1, 2, 3, 4, (0, 1, 2, 3, 4), np.ones(size, bool), np.ones(size, int))
    objective = Seq2Seq(label_smoothing=smoothing * (size - 1) / size).with_model(ours.config, vocabulary)
    batch = batch_of(size)
    ready = objective.corrupt(jax.tree.map(jnp.asarray, batch), jax.random.key(0), jnp.int32(0))

    def mean_loss(params: Params) -> jax.Array:
        total = objective.loss(params, StepInputs({}, {}), ready, jax.random.key(0), False)[0]["seq2seq"]
        return total.value / total.count

    loss, grads = jax.jit(jax.value_and_grad(mean_loss))(ours.params)
    labels = torch.from_numpy(np.where(batch["target_segment_ids"] > 0, batch["target_ids"], -100)).long()
    out = theirs(
        input_ids=torch.from_numpy(batch["input_ids"]),
        attention_mask=torch.from_numpy(batch["segment_ids"]),
        decoder_input_ids=torch.from_numpy(np.array(ready["decoder_input_ids"])),
        decoder_attention_mask=torch.from_numpy(batch["target_segment_ids"]),
    )
    expected = torch.nn.functional.cross_entropy(out.logits.transpose(1, 2), labels, label_smoothing=smoothing)
    expected.backward()
    assert float(loss) == pytest.approx(expected.item(), rel=1e-5)
    named = dict(theirs.named_parameters())
    tensors = params_to_tensors(FAMILIES["t5"].make_keymap(ours.config), grads, ours.config.encoder, ())
    assert len(tensors) == len(named)
    for name, grad in tensors.items():
        np.testing.assert_allclose(grad, named[name].grad.numpy(), atol=2e-5, rtol=1e-4, err_msg=name)


def test_settings_of_generation_are_carried_along(tmp_path: Path) -> None:
    theirs = random_transformers_model(CASES[0], "BartForConditionalGeneration")
    theirs.generation_config.update(num_beams=4, forced_bos_token_id=3, length_penalty=0.6)
    theirs.save_pretrained(tmp_path / "theirs")
    ours = load_pretrained(tmp_path / "theirs")
    assert isinstance(ours, PretrainedEncoderDecoder) and ours.config.decoder_start_token_id == 2
    ours.save_pretrained(tmp_path / "ours")
    back = transformers.BartForConditionalGeneration.from_pretrained(tmp_path / "ours")
    assert back.generation_config.to_diff_dict() == theirs.generation_config.to_diff_dict()
    assert back.config.decoder_start_token_id == 2 and back.config.forced_eos_token_id == 2
    first = torch.arange(5, 13)[None]
    assert torch.equal(back.generate(first, max_new_tokens=6), theirs.generate(first, max_new_tokens=6))
    with pytest.raises(UserError, match="already holds an export"):
        ours.save_pretrained(tmp_path / "ours")
    with pytest.raises(UserError, match="'bart' is an encoder with a decoder, not a single network"):
        read_folder(tmp_path / "ours")


def change_json(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_an_old_config_json_counts_only_without_the_file_of_settings(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    theirs = random_transformers_model(CASES[0], "BartForConditionalGeneration")
    theirs.generation_config.update(forced_eos_token_id=None, num_beams=3)
    theirs.save_pretrained(tmp_path / "theirs")
    change_json(tmp_path / "theirs/config.json", forced_eos_token_id=2, num_beams=7, length_penalty=0.6, max_length=9)
    change_json(tmp_path / "theirs/generation_config.json", cache_implementation=None, tmperature=2.0)

    def settings(folder: Path) -> tuple[Any, dict[str, Any]]:
        expected = transformers.BartForConditionalGeneration.from_pretrained(folder).generation_config
        names = ("forced_eos_token_id", "num_beams", "length_penalty", "max_length", "decoder_start_token_id")
        loaded = load_pretrained(folder)
        assert {name: loaded.generation.get(name) for name in names} == {
            name: getattr(expected, name) for name in names
        }
        return loaded, {name: getattr(expected, name) for name in names}

    loaded, values = settings(tmp_path / "theirs")
    assert values["forced_eos_token_id"] is None and values["num_beams"] == 3
    assert "generation_config.json: keys that bertjax does not know are ignored: tmperature" in caplog.text
    loaded.save_pretrained(tmp_path / "copy")
    assert settings(tmp_path / "copy")[1] == values
    (tmp_path / "theirs/generation_config.json").unlink()
    loaded, values = settings(tmp_path / "theirs")
    assert values["forced_eos_token_id"] == 2 and values["num_beams"] == 7
    loaded.save_pretrained(tmp_path / "copy", overwrite=True)
    assert settings(tmp_path / "copy")[1] == values


def test_every_setting_of_transformers_is_used_refused_or_without_effect() -> None:
    unknown = transformers.GenerationConfig().to_dict().keys() - GenerationConfig.names() - {*_INERT_KEYS.split()}
    assert not unknown


@pytest.mark.parametrize(
    "name",
    ["bart", *(pytest.param(name, marks=pytest.mark.long) for name in ("mbart", "pegasus", "marian", "m2m_100"))],
)
def test_a_class_without_an_output_is_read_as_the_one_that_scores_by_the_word_table(name: str, tmp_path: Path) -> None:
    case = next(case for case in CASES if case.family == name)
    random_transformers_model(case, FAMILIES[name].headless).save_pretrained(tmp_path / "theirs")
    theirs = getattr(transformers, FAMILIES[name].architecture).from_pretrained(tmp_path / "theirs").eval()
    ours = load_pretrained(tmp_path / "theirs")
    assert isinstance(ours, PretrainedEncoderDecoder)
    ids = np.arange(5, 14)[None]
    with torch.no_grad():
        expected = theirs(input_ids=torch.from_numpy(ids), decoder_input_ids=torch.from_numpy(ids[:, :6])).logits
    np.testing.assert_allclose(ours(ids, None, ids[:, :6]).logits, expected.numpy(), atol=2e-5)
    ours.save_pretrained(tmp_path / "ours")
    back = getattr(transformers, FAMILIES[name].headless).from_pretrained(tmp_path / "ours")
    for key, tensor in load_file(tmp_path / "theirs" / "model.safetensors").items():
        written = back.state_dict()[key].numpy()
        if FAMILIES[name].headless == "PegasusModel" and "embed_positions" in key:  # computed, not stored
            np.testing.assert_allclose(written, tensor, atol=1e-6, err_msg=key)
        else:
            assert written.tobytes() == tensor.tobytes(), key


@pytest.mark.parametrize("name", ["pegasus", "marian"])
def test_a_table_that_is_computed_is_compared_with_the_file(name: str, tmp_path: Path) -> None:
    case = next(case for case in CASES if case.family == name)
    theirs = random_transformers_model(case, FAMILIES[name].architecture)
    theirs.save_pretrained(tmp_path)
    tensors, key = load_file(tmp_path / "model.safetensors"), "model.decoder.embed_positions.weight"
    table = theirs.model.decoder.embed_positions.weight.detach().numpy()
    for stored, fits in ((table, True), (table[::-1], False), (torch.tensor(table).bfloat16().float().numpy(), False)):
        save_file(tensors | {key: np.ascontiguousarray(stored)}, tmp_path / "model.safetensors", {"format": "pt"})
        with contextlib.nullcontext() if fits else pytest.raises(UserError, match=f"{key} is not the table"):
            load_pretrained(tmp_path)


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bert") / "export"
    heads = ("pooler", "mlm")
    save_pretrained(folder, jax.device_get(init_single(BERT, heads, jax.random.key(0))), BERT, heads=heads)
    return folder


@pytest.mark.parametrize("sharing", ["none", "all"])
def test_a_decoder_begins_as_an_encoder(bert: Path, tmp_path: Path, sharing: str) -> None:
    """Bert2bert and the shared form; both are an `EncoderDecoderModel` of transformers."""
    weights = read_folder(bert)
    model = from_encoders(weights, weights, sharing)
    source = flatten_tree(weights.params)
    for network in complete_params(model.config, model.params):
        for path, leaf in flatten_tree(network).items():
            assert ("cross_attention" in path) == (path not in source)
            if path in source:
                np.testing.assert_array_equal(leaf, source[path])
    model.save_pretrained(tmp_path / "out")
    back, info = transformers.EncoderDecoderModel.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(info.values()), info
    ids = np.arange(5, 14)[None]
    mine = model(ids, None, ids[:, :6]).logits
    with torch.no_grad():
        theirs = back.eval()(input_ids=torch.from_numpy(ids), decoder_input_ids=torch.from_numpy(ids[:, :6])).logits
    np.testing.assert_allclose(mine, theirs.numpy(), atol=2e-5)
    again = load_pretrained(tmp_path / "out")
    assert isinstance(again, PretrainedEncoderDecoder) and again.config.sharing == sharing


@pytest.mark.long
def test_other_mixtures_have_a_format_of_their_own(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    encoder = EncoderConfig(**SIZES, attention_position="rotary", norm_placement="pre", position_embedding="none")
    wide = dataclasses.replace(encoder, hidden_size=32, attention_position="relative_bias", feed_forward="glu")
    config = EncoderDecoderConfig(encoder, wide.as_decoder(encoder), "none", family="encoder-decoder")
    model = PretrainedEncoderDecoder(config, init_params(config, jax.random.key(0)), {"num_beams": 2})
    with caplog.at_level(logging.WARNING):
        model.save_pretrained(tmp_path / "out")
    assert "native format; transformers runs it with trust_remote_code=True" in caplog.text
    assert "(config.json: widths of 24 and 32" in caplog.text
    back = load_pretrained(tmp_path / "out")
    assert isinstance(back, PretrainedEncoderDecoder) and back.generation == {"num_beams": 2, "pad_token_id": 0}
    ids = np.arange(5, 14)[None]
    np.testing.assert_array_equal(back(ids, None, ids).logits, model(ids, None, ids).logits)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"normalize_before": True}, "normalize_before = True is not supported: norms follow the blocks"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings = False is not supported"),
        ({"architectures": ["BartForCausalLM"]}, "class BartForCausalLM is not supported"),
        ({"decoder_layers": "3"}, "decoder_layers must be a whole number"),
        ({"decoder_attention_heads": 7}, "hidden_size 30 is not divisible"),
    ],
)
def test_what_is_not_supported_is_refused(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    random_transformers_model(CASES[0], "BartForConditionalGeneration").save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(UserError, match=words):
        load_pretrained(tmp_path)


def test_a_table_of_positions_in_an_old_m2m_100_is_not_read_and_no_pad_id_is_refused(tmp_path: Path) -> None:
    case = next(case for case in CASES if case.family == "m2m_100")
    theirs = random_transformers_model(case, case.classes[0])
    theirs.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tables = {f"model.{name}.embed_positions.weights": np.zeros((5, 30), np.float32) for name in ("encoder", "decoder")}
    save_file(tensors | tables, tmp_path / "model.safetensors", {"format": "pt"})
    ours, ids = load_pretrained(tmp_path), np.arange(5, 45)[None]  # more than `max_position_embeddings`
    assert isinstance(ours, PretrainedEncoderDecoder) and ours.config.decoder.position_offset == 5
    with torch.no_grad():
        expected = theirs(input_ids=torch.from_numpy(ids), decoder_input_ids=torch.from_numpy(ids)).logits
    np.testing.assert_allclose(ours(ids, None, ids).logits, expected.numpy(), atol=2e-5)
    for pad_id in (None, 83, -1):
        change_json(tmp_path / "config.json", pad_token_id=pad_id)
        with pytest.raises(UserError, match=f"pad_token_id = {pad_id} is not supported: positions begin after it"):
            load_pretrained(tmp_path)


def test_wrong_inputs_are_refused(tmp_path: Path) -> None:
    config = EncoderDecoderConfig.symmetric(BERT)
    model = PretrainedEncoderDecoder(config, init_params(config, jax.random.key(0)))
    ids = np.ones((2, 5), int)
    with pytest.raises(UserError, match="decoder_input_ids are missing"):
        model(ids)
    with pytest.raises(UserError, match="decoder_input_ids holds 50; the model has ids 0 to 49"):
        model(ids, None, ids + 49)
    with pytest.raises(UserError, match="decoder_input_ids have 20 tokens; the model has 16 positions"):
        model(ids, None, np.ones((2, 20), int))
    with pytest.raises(UserError, match="input_ids hold 2 sequences, decoder_input_ids 1"):
        model(ids, None, ids[:1])
