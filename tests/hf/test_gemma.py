"""Gemma 1, 2 and 3: config.json of both generations of transformers, refusals, and EmbeddingGemma's folders."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
import transformers

import bertjax
from bertjax.config.model import EncoderConfig
from bertjax.config.presets import PRESETS
from bertjax.errors import UserError
from bertjax.hf.export_plan import plan_export
from bertjax.hf.keymaps.gemma import FAMILIES

GLOBAL, LOCAL = "full_attention", "sliding_attention"
SIZES: dict[str, Any] = {
    "vocab_size": 60,
    "hidden_size": 16,
    "intermediate_size": 20,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "pad_token_id": 0,
}


def read(family: str, **values: Any) -> EncoderConfig:
    return FAMILIES[family].parse_config({**SIZES, **values})


def test_the_published_files_of_both_generations_are_read() -> None:
    """gemma-3-1b-pt in the form of version 4, and as version 5 writes it."""
    sizes = {"hidden_size": 1152, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256}
    values = {**sizes, "num_hidden_layers": 26, "sliding_window": 512, "vocab_size": 262144}
    old = {"rope_theta": 1_000_000, "rope_local_base_freq": 10_000, "rope_scaling": None, "sliding_window_pattern": 6}
    config = FAMILIES["gemma3_text"].parse_config(values | old)
    written = FAMILIES["gemma3_text"].render_config(config, "Gemma3ForCausalLM")
    assert FAMILIES["gemma3_text"].parse_config(written) == config
    theirs = json.loads(transformers.Gemma3TextConfig(**values).to_json_string(use_diff=False))
    assert FAMILIES["gemma3_text"].parse_config(theirs) == config
    for key in (
        "layer_types",
        "rope_parameters",
        "sliding_window",
        "query_pre_attn_scalar",
        "use_bidirectional_attention",
    ):
        assert written[key] == theirs[key], key
    assert [layer for layer in range(26) if not config.is_local(layer)] == [5, 11, 17, 23]
    assert (config.local_attention, config.global_rope_theta, config.local_rope_theta) == (1022, 1e6, 1e4)


def test_the_rescaled_rotation_of_global_layers_is_read_in_both_forms() -> None:
    """As gemma-3-4b-pt has it; versions 4 and 5 of transformers find what they look for in an export."""
    linear = {"rope_type": "linear", "factor": 8.0}
    config = read("gemma3_text", rope_scaling=linear)
    assert (config.rope_type, config.rope_factor, config.rope_layers) == ("linear", 8.0, "global")
    assert read("gemma3_text", rope_parameters={GLOBAL: {**linear, "rope_theta": 1e6}}) == config
    plan = plan_export(config, ("mlm",))
    assert plan.family is FAMILIES["gemma3_text"] and plan.config_json["rope_scaling"] == linear
    theirs = transformers.Gemma3TextConfig(**plan.config_json).rope_parameters
    assert theirs == plan.config_json["rope_parameters"] and theirs[LOCAL] == {
        "rope_type": "default",
        "rope_theta": 1e4,
    }


@pytest.mark.parametrize("name", [name for name, values in PRESETS.items() if values.get("family") in FAMILIES])
def test_a_preset_is_of_its_class(name: str) -> None:
    """The class holds all of it, with scores of tokens, and all is read back."""
    config = EncoderConfig.from_preset(name)
    plan = plan_export(config, ("mlm",))
    assert (plan.architecture, plan.unsupported) == (next(iter(FAMILIES[config.family].architectures)), ())


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ((1, 3), (2, 1)),  # as without a list
        ((0, 2), (2, 0)),
        ((2,), (3, 2)),
        ((0, 3), (3, 0)),
        ((), (0, 0)),
        ((0, 1, 2, 3), (1, 0)),
    ],
)
def test_lists_of_kinds_are_periods(layers: tuple[int, ...], expected: tuple[int, int]) -> None:
    types = [GLOBAL if layer in layers else LOCAL for layer in range(4)]
    config = read("gemma2", layer_types=types, sliding_window=3)
    assert (config.global_attn_every_n_layers, config.first_global_layer) == expected
    assert config.local_attention == (0 if len(layers) == 4 else 4)
    assert FAMILIES["gemma2"].render_config(config, "Gemma2Model")["layer_types"] == types
    assert plan_export(config, ()).family is FAMILIES["gemma2"]


def test_windows_count_the_query_itself_or_the_tokens_on_both_sides() -> None:
    assert read("gemma2", sliding_window=1).local_attention == 1
    assert read("gemma2", sliding_window=5, is_causal=False).local_attention == 10
    assert read("gemma3_text", sliding_window=5).local_attention == 8
    encoder = read("gemma3_text", sliding_window=5, use_bidirectional_attention=True)
    assert (encoder.local_attention, encoder.causal) == (5, False)
    written = FAMILIES["gemma3_text"].render_config(encoder, "Gemma3TextModel")
    assert written["sliding_window"] == 5 and written["use_bidirectional_attention"] is True
    assert transformers.Gemma3TextConfig(**written).sliding_window == 5 // 2 + 1  # as it masks


def test_a_head_without_a_class_is_in_the_sidecar() -> None:
    plan = plan_export(read("gemma3_text"), ("token_classification",))
    assert (plan.architecture, plan.stored_heads) == ("Gemma3TextModel", ())
    assert any(path.startswith("token_head/") for path in plan.sidecar_paths) and "token_head" in plan.limitation
    assert plan_export(read("gemma2"), ("token_classification",)).architecture == "Gemma2ForTokenClassification"


@pytest.mark.parametrize(("family", "key"), [("gemma2", "is_causal"), ("gemma3_text", "use_bidirectional_attention")])
def test_a_decoder_that_became_an_encoder_says_so(family: str, key: str) -> None:
    config = EncoderConfig(**{**vars(read(family, sliding_window=3)), "causal": False})
    plan = plan_export(config, ("mlm",))
    assert plan.family is FAMILIES[family] and plan.config_json["use_bidirectional_attention"] is True
    assert plan.config_json["sliding_window"] == {"gemma2": 2, "gemma3_text": 4}[family]
    assert "encoder that it is" in plan.requirement and key in plan.requirement
    assert FAMILIES[family].parse_config(plan.config_json).causal is False


def test_fewer_layers_than_a_period_remain_of_the_class() -> None:
    """Layers of these kinds are written as the list; the period that it is read back as computes the same."""
    values = {"local_attention": 6, "global_attn_every_n_layers": 6, "local_rope_theta": 10.0}
    for layers, first in ((1, 5), (3, 0), (4, 2), (8, 5)):
        config = EncoderConfig(
            **{**vars(read("gemma3_text")), **values, "num_layers": layers, "first_global_layer": first}
        )
        plan = plan_export(config, ("mlm",))
        assert (plan.architecture, plan.unsupported) == ("Gemma3ForCausalLM", ())


def test_what_a_class_cannot_hold_is_not_written_as_that_class() -> None:
    config = read("gemma2")
    for changes in (
        {"norm_zero_centered": False},
        {"embedding_scale": False},
        {"local_rope_theta": 7.0},
        {"norm_placement": "pre"},
        {"qk_norm": True},
    ):
        plan = plan_export(EncoderConfig(**{**vars(config), **changes}), ())
        assert plan.family is None and next(iter(changes)) in " ".join(plan.unsupported)
    capped = EncoderConfig(**{**vars(read("gemma3_text")), "attention_soft_cap": 5.0})
    assert plan_export(capped, ()).unsupported == ("attention_soft_cap",)
    assert plan_export(EncoderConfig(**{**vars(read("gemma")), "logit_soft_cap": 5.0}), ("mlm",)).family is None


@pytest.mark.parametrize(
    ("family", "values", "message"),
    [
        ("gemma", {"use_bidirectional_attention": True}, "needs is_causal = false"),
        ("gemma2", {"use_bidirectional_attention": True}, "needs is_causal = false"),
        ("gemma", {"hidden_activation": "relu"}, "hidden_activation = 'relu'"),
        ("gemma", {"mlp_bias": True}, "mlp_bias"),
        ("gemma2", {"sliding_window": None}, "sliding_window must be a whole number"),
        ("gemma2", {"sliding_window": 0}, "sliding_window must be at least 1"),
        ("gemma2", {"layer_types": [GLOBAL, GLOBAL, LOCAL, LOCAL]}, "every n-th layer"),
        ("gemma2", {"layer_types": [LOCAL, LOCAL, GLOBAL, GLOBAL]}, "every n-th layer"),
        ("gemma2", {"layer_types": [GLOBAL]}, "for each of 4 layers"),
        ("gemma2", {"attn_logit_softcapping": 0.0}, "attention_soft_cap must"),
        ("gemma2", {"query_pre_attn_scalar": 0}, "attention_scale_size must"),
        ("gemma3_text", {"attn_logit_softcapping": 50.0}, "has no such cap"),
        ("gemma3_text", {"is_causal": False}, "use_bidirectional_attention says"),
        (
            "gemma3_text",
            {"rope_scaling": {"factor": 8.0, "rope_type": "other"}},
            "rope_type = 'other' is not supported",
        ),
        ("gemma3_text", {"rope_scaling": "linear"}, "rope_scaling must be a table"),
        ("gemma3_text", {"rope_parameters": {"rope_type": "default", "rope_theta": 5.0}}, "must be tables"),
        (
            "gemma3_text",
            {"rope_parameters": {LOCAL: {"rope_type": "linear", "factor": 8.0}}},
            "rescales sliding_attention",
        ),
        ("gemma3_text", {"rope_parameters": {LOCAL: {"rope_theta": -1.0}}}, "rope_theta must be positive"),
        ("gemma3_text", {"rope_local_base_freq": 0}, "rope_local_base_freq must be positive"),
        ("gemma3_text", {"sliding_window_pattern": 0}, "sliding_window_pattern must be at least 1"),
        (
            "gemma3_text",
            {"use_bidirectional_attention": True, "architectures": ["Gemma3TextForSequenceClassification"]},
            "scores the last token",
        ),
    ],
)
def test_refusals(family: str, values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=f"config.json: .*{message}"):
        read(family, **values)


@pytest.fixture(scope="module")
def embedding_gemma(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of the layout of google/embeddinggemma-300m, as the library writes it."""
    library = pytest.importorskip("sentence_transformers")
    from sentence_transformers.base.modules import Dense, Normalize, Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    encoder, folder = tmp_path_factory.mktemp("encoder"), tmp_path_factory.mktemp("gemma")
    torch.manual_seed(0)
    config = transformers.Gemma3TextConfig(
        **SIZES, sliding_window=3, use_bidirectional_attention=True, sliding_window_pattern=3, query_pre_attn_scalar=6
    )
    model = transformers.Gemma3TextModel(config)
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(encoder)
    words = ["<pad>", "<eos>", "<bos>", "<unk>", *"abcdefghijk", "task", "query", ":", "|"]
    rules = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="<unk>"))
    rules.pre_tokenizer = pre_tokenizers.Whitespace()
    rules.post_processor = processors.TemplateProcessing(
        single="<bos> $A <eos>", special_tokens=[("<bos>", 2), ("<eos>", 1)]
    )
    names = {f"{name}_token": f"<{name}>" for name in ("pad", "eos", "bos", "unk")}
    transformers.PreTrainedTokenizerFast(tokenizer_object=rules, **names, model_max_length=32).save_pretrained(encoder)
    identity = {"bias": False, "activation_function": torch.nn.Identity()}
    steps = [Transformer(str(encoder)), Pooling(16), Dense(16, 24, **identity), Dense(24, 16, **identity), Normalize()]
    prompts = {"query": "task : query | ", "document": "title : "}
    library.SentenceTransformer(modules=steps, prompts=prompts, device="cpu").save_pretrained(str(folder))
    return folder


TEXTS = ["a b c d e f g h i j k", "k", "c a b", "", "e e e e"]


def test_the_vectors_of_embedding_gemma_are_the_librarys(embedding_gemma: Path, tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    expected = SentenceTransformer(str(embedding_gemma), device="cpu").encode(TEXTS)
    assert expected.shape == (5, 16)
    result = bertjax.embed(embedding_gemma, TEXTS)
    np.testing.assert_allclose(result, expected, atol=1e-5)
    bertjax.load_pretrained(embedding_gemma).save_pretrained(tmp_path / "again")
    for path in embedding_gemma.rglob("*"):
        if path.suffix == ".safetensors" or path.parent != embedding_gemma:  # tensors and the files of the modules
            again = tmp_path / "again" / path.relative_to(embedding_gemma)
            assert path.is_dir() or again.read_bytes() == path.read_bytes(), path
    back = SentenceTransformer(str(tmp_path / "again"), device="cpu")
    np.testing.assert_array_equal(back.encode(TEXTS), expected)
    query = SentenceTransformer(str(embedding_gemma), device="cpu").encode(TEXTS, prompt_name="query")
    folder = shutil.copytree(embedding_gemma, tmp_path / "query")
    library = folder / "config_sentence_transformers.json"
    library.write_text(json.dumps(json.loads(library.read_text()) | {"default_prompt_name": "query"}))
    np.testing.assert_allclose(bertjax.embed(folder, TEXTS), query, atol=1e-5)
