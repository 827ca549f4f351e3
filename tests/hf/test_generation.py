"""Compares generation with that of `transformers`, token by token, on random models with frequent end tokens."""

from __future__ import annotations

import dataclasses
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers

import bertjax
from bertjax.config.encoder_decoder import EncoderDecoderConfig
from bertjax.config.generation import GenerationConfig
from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.hf.pretrained import PretrainedModel
from bertjax.models import encoder_decoder
from bertjax.models.generation import generate
from bertjax.models.logits_processors import restrict_logits
from bertjax.models.model import abstract_params

V, S = 40, 9
LENGTHS = (9, 5, 7, 3, 9, 1)
ENDS = [2, 3, 4, 5, 6, 7]
BART = {
    **{"d_model": 32, "encoder_layers": 2, "decoder_layers": 1, "max_position_embeddings": 32, "init_std": 0.5},
    **{"encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48},
    **{"bos_token_id": 0, "pad_token_id": 1, "decoder_start_token_id": 2, "forced_eos_token_id": None},
}
T5 = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "initializer_factor": 4.0}
BERT = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
BERT |= {"max_position_embeddings": 34, "initializer_range": 0.5, "pad_token_id": 1}
SEARCHES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "beam": {"num_beams": 4},
    "penalties": {"repetition_penalty": 1.7, "bad_words_ids": [[8], [9, 10], [11, 12, 13]], "min_length": 4},
    "n-grams": {"no_repeat_ngram_size": 2, "min_new_tokens": 6, "num_beams": 3, "length_penalty": 2.0},
    "several": {"num_beams": 3, "num_return_sequences": 3, "early_stopping": True, "length_penalty": 0.5}
    | {"pad_token_id": 0},
    "never": {"num_beams": 2, "early_stopping": "never", "suppress_tokens": [8, 9]},
    "forced": {"num_beams": 2, "forced_bos_token_id": 9, "forced_eos_token_id": 2, "length_penalty": -1.0},
}


def make_theirs(name: str) -> Any:
    torch.manual_seed(len(name))
    common: dict[str, Any] = {"vocab_size": V, "eos_token_id": ENDS}
    if name in ("bart", "marian", "m2m_100"):
        cls, made = {
            "bart": (transformers.BartConfig, transformers.BartForConditionalGeneration),
            "marian": (transformers.MarianConfig, transformers.MarianMTModel),
            "m2m_100": (transformers.M2M100Config, transformers.M2M100ForConditionalGeneration),
        }[name]
        model = made(cls(**common, **BART))
    elif name.startswith("t5"):
        gated: dict[str, Any] = {}
        if name == "t5 v1.1":
            gated = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "initializer_factor": 1.5}
        values = common | T5 | gated | {"decoder_start_token_id": 0, "pad_token_id": 0}
        model = transformers.T5ForConditionalGeneration(transformers.T5Config(**values))
    elif name == "gpt2":
        sizes = {"n_positions": 32, "n_embd": 32, "n_layer": 2, "n_head": 4, "initializer_range": 0.5}
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**common, **sizes, pad_token_id=1, bos_token_id=0))
    else:
        cls = {"bert2bert": transformers.BertConfig, "roberta2roberta": transformers.RobertaConfig}[name]
        configs = cls(vocab_size=V, **BERT), cls(vocab_size=V, **BERT, is_decoder=True, add_cross_attention=True)
        config = transformers.EncoderDecoderConfig.from_encoder_decoder_configs(*configs)
        config.decoder_start_token_id, config.pad_token_id = 0, 1
        model = transformers.EncoderDecoderModel(config)
        model.generation_config.update(decoder_start_token_id=0, pad_token_id=1)
    model.generation_config.eos_token_id = ENDS
    return model.eval()


def random_params(config: EncoderConfig) -> Any:
    draw = np.random.default_rng(0).standard_normal
    return jax.tree.map(lambda leaf: 0.3 * draw(leaf.shape).astype(leaf.dtype), abstract_params(config, ("mlm",)))


def make_inputs(left: bool, pad: int) -> tuple[np.ndarray, np.ndarray]:
    ids = np.random.default_rng(0).integers(8, V, (len(LENGTHS), S))
    mask = np.arange(S) < np.array(LENGTHS)[:, None]
    mask = mask[:, ::-1] if left else mask
    return np.where(mask, ids, pad), mask.astype(np.int64)


def assert_equal(theirs: Any, ours: Any, settings: dict[str, Any]) -> None:
    left = isinstance(ours, PretrainedModel)
    ids, mask = make_inputs(left, theirs.generation_config.pad_token_id)
    settings = {"max_new_tokens": 12} | settings
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        expected = theirs.generate(torch.tensor(ids), attention_mask=torch.tensor(mask), do_sample=False, **settings)
    result = ours.generate(ids, mask, **settings)
    skip = S if left else 1
    np.testing.assert_array_equal(result[:, skip:], expected.numpy()[:, skip:])


def load(name: str, folder: Path) -> tuple[Any, Any]:
    theirs = make_theirs(name)
    theirs.save_pretrained(folder)
    return theirs, bertjax.load_pretrained(folder)


@pytest.mark.parametrize(("name", "search"), [("bart", "several"), ("gpt2", "n-grams"), ("m2m_100", "forced")])
def test_tokens_are_those_of_transformers(name: str, search: str, tmp_path: Path) -> None:
    assert_equal(*load(name, tmp_path), SEARCHES[search])


@pytest.mark.long
@pytest.mark.parametrize("name", ("marian", "t5", "t5 v1.1", "bert2bert", "roberta2roberta"))
def test_tokens_of_all_classes(name: str, tmp_path: Path) -> None:
    assert_equal(*load(name, tmp_path), SEARCHES["several"])


@pytest.mark.long
def test_tokens_of_further_settings(tmp_path: Path) -> None:
    theirs, ours = load("bart", tmp_path)
    for search in ("greedy", "penalties", "never", "forced"):
        assert_equal(theirs, ours, SEARCHES[search])


ENCODER = EncoderConfig(
    vocab_size=V, hidden_size=32, num_layers=2, num_heads=4, intermediate_size=48, max_position_embeddings=32
)
DECODERS: dict[str, dict[str, Any]] = {
    "rotary, local, grouped, pre": {
        **{"attention_position": "rotary", "position_embedding": "none", "local_attention": 4, "num_layers": 3},
        **{"global_attn_every_n_layers": 2, "num_key_value_heads": 2, "norm_placement": "pre", "qk_norm": True},
        **{
            "first_attention_norm": False,
            "first_global_layer": 1,
            "attention_scale_size": 5,
            "attention_soft_cap": 0.7,
        },
        **{"logit_soft_cap": 0.9, "norm_zero_centered": True},
    },
    "disentangled, shared": {"attention_position": "disentangled", "position_embedding": "none", "num_groups": 1},
    "relative": {
        **{"attention_position": "relative", "attention_bias": "none", "relative_segments": True, "clamp_len": 5},
        "position_embedding": "none",
    },
    "bias, sandwich": {"attention_position": "relative_bias", "norm_placement": "sandwich", "attention_scale": False},
    "bias by layer": {"attention_position": "relative_bias", "relative_attention_shared": False},
    "two layers per group": {"num_groups": 1, "inner_layers": 2},
    "a window in every layer": {
        **{"attention_position": "rotary", "position_embedding": "none", "local_attention": 4},
        "global_attn_every_n_layers": 0,
    },
    "adapter": {"adapter_size": 5, "norm_placement": "pre"},
    "linear bias": {"attention_position": "relative_bias", "relative_bias": "linear"},
}


@pytest.mark.long
@pytest.mark.parametrize(("name", "causal"), [(name, index > 0) for index, name in enumerate(DECODERS)])
def test_a_cache_changes_nothing(name: str, causal: bool) -> None:
    decoder = dataclasses.replace(ENCODER, **DECODERS[name])
    config: Any = dataclasses.replace(decoder, causal=True)
    params = random_params(config)
    if not causal:
        config = EncoderDecoderConfig(ENCODER, decoder.as_decoder(ENCODER), "none", decoder_start_token_id=0)
        params = encoder_decoder.init_params(config, jax.random.key(0))
        params = jax.tree.map(lambda leaf: leaf * 5, params)
    ids, mask = make_inputs(True, 1)
    settings = GenerationConfig(max_new_tokens=8, num_beams=2, eos_token_id=(2, 3))
    results = [
        generate(params, config, {"input_ids": ids, "attention_mask": mask}, settings.replace(use_cache=use_cache))
        for use_cache in (True, False)
    ]
    np.testing.assert_array_equal(results[0].sequences, results[1].sequences)
    np.testing.assert_allclose(results[0].scores, results[1].scores, rtol=1e-5)


@pytest.mark.long
def test_samples_are_a_function_of_seed_and_example() -> None:
    config = dataclasses.replace(ENCODER, causal=True)
    params, ids = random_params(config), make_inputs(True, 1)[0][:4]
    settings = GenerationConfig(max_new_tokens=6, do_sample=True, top_k=0)
    inputs = {"input_ids": ids, "example_ids": np.arange(4)}
    whole = generate(params, config, inputs, settings, jax.random.key(1)).sequences
    part = {name: array[2:] for name, array in inputs.items()}
    np.testing.assert_array_equal(generate(params, config, part, settings, jax.random.key(1)).sequences, whole[2:])
    assert (generate(params, config, inputs, settings, jax.random.key(2)).sequences != whole).any()


@pytest.mark.long
def test_samples_have_the_distribution_of_the_model() -> None:
    config = dataclasses.replace(ENCODER, causal=True)
    params = random_params(config)
    prompt, count = np.array([[8, 9, 10]]), 1024
    settings = GenerationConfig(max_new_tokens=1, do_sample=True, top_k=12, top_p=0.9, temperature=1.5)
    settings = settings.replace(num_return_sequences=count)
    drawn = generate(params, config, {"input_ids": prompt}, settings).sequences.ravel()
    logits = PretrainedModel(config, params, ("mlm",))(prompt).logits[:, -1]
    expected = np.asarray(jax.nn.softmax(restrict_logits(logits, settings)))[0]
    assert 1 < (expected > 0).sum() <= 12
    np.testing.assert_allclose(np.bincount(drawn, minlength=V) / count, expected, atol=0.06)
    assert set(np.flatnonzero(np.bincount(drawn, minlength=V))) <= set(np.flatnonzero(expected))


def test_restricted_logits_are_those_of_transformers() -> None:
    logits = np.random.default_rng(0).normal(size=(5, V)).astype(np.float32) * 3
    theirs = torch.tensor(logits)
    for warper in (
        transformers.TemperatureLogitsWarper(0.7),
        transformers.TopKLogitsWarper(9),
        transformers.TopPLogitsWarper(0.8),
    ):
        theirs = warper(None, theirs)
    ours = restrict_logits(jnp.asarray(logits), GenerationConfig(temperature=0.7, top_k=9, top_p=0.8, do_sample=True))
    np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-5)


ERRORS: dict[str, tuple[dict[str, Any], str]] = {
    "unknown": ({"temprature": 2.0}, "generation has no setting 'temprature'; did you mean temperature"),
    "not supported": ({"penalty_alpha": 0.6}, "penalty_alpha is not supported in generation"),
    "range": ({"top_p": 0.0}, "generation.top_p must lie in (0, 1]"),
    "id": ({"eos_token_id": 99}, "settings of generation name token 99; the model has ids 0 to 39"),
    "table": ({"max_new_tokens": 100}, "the model has 32 positions"),
    "length": ({"max_length": 3}, "max_length=3 leaves none to add"),
    "several": ({"num_return_sequences": 2}, "needs as many beams"),
    "both": ({"num_beams": 2, "do_sample": True}, "do not go together"),
    "words": ({"bad_words_ids": [[]]}, "bad_words_ids expects lists"),
    "empty": ({"attention_mask": [[0, 0, 0]]}, "input 0 has no token"),
    "input": ({"input_ids": [[50, 1, 2]]}, "input_ids holds 50"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_are_one_line(name: str) -> None:
    config = dataclasses.replace(ENCODER, causal=True)
    arguments, message = ERRORS[name]
    model = PretrainedModel(config, random_params(config), ("mlm",))
    with pytest.raises(UserError) as error:
        model.generate(**({"input_ids": [[8, 9, 10]]} | arguments))
    assert message in str(error.value) and "\n" not in str(error.value)
    with pytest.raises(UserError, match="causal"):
        PretrainedModel(ENCODER, model.params, ("mlm",)).generate([[8]])
