"""Folders of sentence-transformers: the library's vectors for every setting, or a refusal that names file and key."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

pytest.importorskip("sentence_transformers")

import torch
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Dropout, LayerNorm, Pooling
from tokenizers import Tokenizer, models, pre_tokenizers, processors

import bertjax
from bertjax.errors import UserError
from bertjax.hf.sentence_folders import read_pooling

WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    *["the", "cat", "dog", "sees"],
    *["likes", "a", "bird", "house", "query", ":"],
]
TEXTS = [
    "the cat sees a dog",
    "a Bird",
    "The house likes the cat the dog the bird a house",
    "",
    "query: [SEP] a [MASK]",
]
WIDTH, POSITIONS = 12, 11
OLD = "sentence_transformers.models"
MODULES = {
    "": f"{OLD}.Transformer",
    "1_Pooling": f"{OLD}.Pooling",
    "2_Dense": "sentence_transformers.base.modules.dense.Dense",
    "3_Dense": f"{OLD}.Dense",
    "4_LayerNorm": "sentence_transformers.sentence_transformer.modules.layer_norm.LayerNorm",
    "5_Dropout": "sentence_transformers.sentence_transformer.modules.dropout.Dropout",
    "6_Normalize": f"{OLD}.Normalize",
}
BERT, LIBRARY, POOLING = "sentence_bert_config.json", "config_sentence_transformers.json", "1_Pooling/config.json"
TOKENIZER, DENSE = "tokenizer_config.json", "2_Dense/config.json"
PROMPT = {"prompts": {"search": "query : ", "none": None}, "default_prompt_name": "search"}
ABSENT = object()
Changes = dict[str, dict[str, Any]]
Paths = tuple[str, ...]


@pytest.fixture(autouse=True, scope="module")
def quick() -> Iterator[None]:
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as the library writes it, with folders of further modules next to it."""
    encoder, folder = tmp_path_factory.mktemp("encoder"), tmp_path_factory.mktemp("base")
    torch.manual_seed(0)
    sizes = {"hidden_size": WIDTH, "num_hidden_layers": 1, "num_attention_heads": 3, "intermediate_size": 16}
    config = transformers.BertConfig(
        vocab_size=len(WORDS), max_position_embeddings=POSITIONS, initializer_range=0.5, **sizes
    )
    transformers.BertModel(config).save_pretrained(encoder)
    rules = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="[UNK]"))
    rules.pre_tokenizer = pre_tokenizers.Whitespace()
    rules.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    transformers.PreTrainedTokenizerFast(tokenizer_object=rules, **names).save_pretrained(encoder)
    steps = [Transformer(str(encoder)), Pooling(WIDTH)]
    SentenceTransformer(modules=steps, device="cpu").save_pretrained(str(folder))
    activation = {"activation_function": torch.nn.GELU(), "use_residual": True}
    for name, module in {
        "2_Dense": Dense(WIDTH, 8),
        "3_Dense": Dense(8, 8, bias=False, **activation),
        "4_LayerNorm": LayerNorm(8),
        "5_Dropout": Dropout(0.5),
        "6_Normalize": Normalize(),
        "7_Dense": Dense(3 * WIDTH, 9, **activation),
    }.items():
        (folder / name).mkdir()
        module.save(str(folder / name))
    return folder


def variant(base: Path, folder: Path, changes: Changes, further: Paths = (), modules: Any = None) -> Path:
    """Copies the folder with other values of keys, and with further modules."""
    shutil.copytree(base, folder)
    for name, values in changes.items():
        old = json.loads((folder / name).read_text()) if (folder / name).is_file() else {}
        new = {key: value for key, value in (old | values).items() if value is not ABSENT}
        (folder / name).write_text(json.dumps(new))
    types = MODULES | {"7_Dense": f"{OLD}.Dense"}
    steps = [
        {"idx": index, "name": str(index), "path": path, "type": types[path]}
        for index, path in enumerate(("", "1_Pooling", *further))
    ]
    (folder / "modules.json").write_text(json.dumps(steps if modules is None else modules))
    return folder


def old_modes(*modes: str) -> dict[str, Any]:
    names = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")
    sizes = {"word_embedding_dimension": WIDTH, "pooling_mode": ABSENT, "embedding_dimension": ABSENT}
    return sizes | {f"pooling_mode_{name}": name in modes for name in names}


EVERY = ["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
ACCEPTED: dict[str, tuple[Changes, Paths]] = {
    "as the library writes it": ({}, ()),
    "the old layout": (
        {BERT: {key: ABSENT for key in ("transformer_task", "modality_config", "module_output_name")}}
        | {LIBRARY: {"__version__": {}, "model_type": ABSENT, "prompts": ABSENT}}
        | {POOLING: old_modes("mean_tokens", "cls_token") | {"include_prompt": ABSENT}},
        ("6_Normalize",),
    ),
    "the length of the module": ({BERT: {"max_seq_length": 6}}, ()),
    "the length of the tokenizer": ({TOKENIZER: {"model_max_length": 6}}, ()),
    "the module's length counts more": ({BERT: {"max_seq_length": 6}, TOKENIZER: {"model_max_length": 5}}, ()),
    "the other end": ({TOKENIZER: {"model_max_length": 6, "truncation_side": "left"}}, ()),
    "lower case": ({BERT: {"do_lower_case": True, "max_seq_length": None}}, ()),
    "an older name": ({"sentence_roberta_config.json": {"max_seq_length": 6, "do_lower_case": True}}, ()),
    "every mode": ({POOLING: {"pooling_mode": EVERY}}, ()),
    "no mode is the mean": ({POOLING: old_modes()}, ()),
    "a prompt": ({LIBRARY: PROMPT}, ()),
    "a prompt that is null": ({LIBRARY: PROMPT | {"default_prompt_name": "none"}}, ()),
    "an empty prompt": ({LIBRARY: {"default_prompt_name": "query", "prompts": {}}}, ()),
    "a prompt that does not count": ({LIBRARY: PROMPT, POOLING: {"pooling_mode": EVERY, "include_prompt": False}}, ()),
    "a prompt without text": (
        {LIBRARY: PROMPT, POOLING: {"pooling_mode": "lasttoken", "include_prompt": False}, BERT: {"max_seq_length": 3}},
        (),
    ),
    "some numbers": ({LIBRARY: {"truncate_dim": 5, "similarity_fn_name": "dot"}}, ("6_Normalize",)),
    "more numbers than there are": ({LIBRARY: {"truncate_dim": 50}}, ()),
    "layers": ({}, ("2_Dense", "3_Dense", "4_LayerNorm", "5_Dropout", "6_Normalize")),
    "layers in another order": ({}, ("6_Normalize", "2_Dense")),
    "all": (
        {BERT: {"max_seq_length": 6, "do_lower_case": True}, TOKENIZER: {"truncation_side": "left"}}
        | {LIBRARY: PROMPT | {"truncate_dim": 7}}
        | {POOLING: {"pooling_mode": ["max", "mean", "cls"], "include_prompt": False}},
        ("7_Dense", "6_Normalize"),
    ),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_the_vectors_are_the_librarys(name: str, base: Path, tmp_path: Path) -> None:
    changes, further = ACCEPTED[name]
    folder = variant(base, tmp_path / "st", changes, further)
    if name == "an older name":
        (folder / BERT).unlink()
    expected = SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
    result = bertjax.embed(folder, TEXTS)
    np.testing.assert_allclose(result, expected, atol=1e-5)
    if name != "all":
        return
    loaded = bertjax.load_pretrained(folder)
    np.testing.assert_array_equal(bertjax.embed(loaded, TEXTS), result)
    loaded.save_pretrained(tmp_path / "again")
    np.testing.assert_array_equal(bertjax.embed(tmp_path / "again", TEXTS), result)
    assert bertjax.embed(folder, []).shape == (0, 7)


def module(path: str = "", type: str = f"{OLD}.Transformer", **others: Any) -> dict[str, Any]:
    return {"idx": 0, "name": path, "path": path, "type": type} | others


TWO = [module(), module("1_Pooling", f"{OLD}.Pooling")]
REFUSED: dict[str, tuple[str, str, Any, str]] = {
    "task": (BERT, "transformer_task", "fill-mask", "hidden states"),
    "modalities": (BERT, "modality_config", {"image": {}}, "only texts"),
    "output": (BERT, "module_output_name", "scores", "hidden states"),
    "call": (BERT, "processing_kwargs", {"text": {"max_length": 3}}, "not read"),
    "arguments": (BERT, "model_args", {"dtype": "bfloat16"}, "not read"),
    "new arguments": (BERT, "config_kwargs", {"num_hidden_layers": 1}, "not read"),
    "another tokenizer": (BERT, "tokenizer_name_or_path", "elsewhere", "of the folder"),
    "unknown of the module": (BERT, "surprise", 1, "not known"),
    "length": (BERT, "max_seq_length", "9", "positive whole number"),
    "case": (BERT, "do_lower_case", 1, "true or false"),
    "other kind": (LIBRARY, "model_type", "SparseEncoder", "no vectors of sentences"),
    "prompt": (LIBRARY, "default_prompt_name", "nowhere", "not one of its prompts"),
    "numbers": (LIBRARY, "truncate_dim", 0, "positive whole number"),
    "unknown of the library": (LIBRARY, "surprise", 1, "not known"),
    "mode": (POOLING, "pooling_mode", ["mean", "sum"], "must be of cls"),
    "modes": (POOLING, "pooling_mode", [], "must be of cls"),
    "tokens of the prompt": (POOLING, "include_prompt", "no", "true or false"),
    "unknown of pooling": (POOLING, "surprise", 1, "not known"),
    "activation": (DENSE, "activation_function", "torch.nn.modules.activation.PReLU", "not supported"),
    "code": (DENSE, "activation_function", "package.Tanh", "not supported"),
    "input": (DENSE, "module_input_name", "token_embeddings", "vectors of sentences"),
    "size": (DENSE, "in_features", 7, "by its config.json"),
    "unknown of a layer": (DENSE, "surprise", 1, "not known"),
    "limit": (TOKENIZER, "model_max_length", "long", "positive number"),
    "padding": (TOKENIZER, "padding_side", "left", "other texts of a batch"),
    "mask": (TOKENIZER, "model_input_names", ["input_ids"], "padding would be read"),
    "own code": ("modules.json", "type", [*TWO, module("2", "package.Normalize")], "never run"),
    "other modules": ("modules.json", "type", [*TWO, module("2", f"{OLD}.CNN")], "not Transformer, Pooling, CNN"),
    "no pooling": ("modules.json", "type", [module()], "not Transformer"),
    "subfolder": ("modules.json", "path", [module("0_T"), TWO[1]], "must lie in the folder"),
    "twice": ("modules.json", "name", [*TWO, TWO[1]], "two modules"),
    "unknown of modules": ("modules.json", "surprise", [module(surprise=1), TWO[1]], "not known"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_library_would_compute_otherwise_is_refused(name: str, base: Path, tmp_path: Path) -> None:
    file, key, value, reason = REFUSED[name]
    modules, changes = (value, {}) if file == "modules.json" else (None, {file: {key: value}})
    folder = variant(base, tmp_path / "st", changes, ("2_Dense",), modules)
    with pytest.raises(UserError) as error:
        read_pooling(folder, bertjax.load_pretrained(base).config if name == "padding" else None)
    message = str(error.value)
    assert file.replace("config", "") in message.replace("config", "").replace("model.safetensors", ".json")
    assert (key in message or name == "size") and reason in message and "\n" not in message


def test_weights_of_a_layer_are_safetensors(base: Path, tmp_path: Path) -> None:
    folder = variant(base, tmp_path / "st", {}, ("2_Dense",))
    (folder / "2_Dense" / "model.safetensors").rename(folder / "2_Dense" / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"2_Dense has no model\.safetensors"):
        read_pooling(folder)
