"""The cells of the matrix, from the registries of the project, and the toy models that they train."""

from __future__ import annotations

import functools
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from bertjax.config.data import FIXED_VOCABULARIES
from bertjax.config.defaults import base_config
from bertjax.config.extensions import FAMILIES
from bertjax.config.presets import PRESETS
from bertjax.data.special_tokens import FAMILIES as TOKENIZERS
from bertjax.data.tokenizer_io import save_tokenizer
from bertjax.data.tokenizer_training import train_tokenizer

NOUNS = ["cat", "dog", "bird", "house", "river", "teacher", "garden", "letter", "window", "road"]
VERBS = ["sees", "likes", "finds", "leaves", "paints", "carries"]
TEXTS = [f"The {NOUNS[i % 10]} {VERBS[i % 6]} the {NOUNS[(3 * i + 1) % 10]}." for i in range(60)]
SIZES: dict[str, Any] = {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "intermediate_size": 24}
SIZES |= {
    f"{name}_dropout": 0.0 for name in ("hidden", "attention", "attention_output", "activation", "output", "classifier")
}
SIZES |= {"max_position_embeddings": 160, "initializer_range": 0.3}
SMALLER = {"embedding_size": 8, "head_size": 8, "position_buckets": 4, "max_relative_positions": 16}
WITHOUT_BLANK = ("roberta", "gpt2", "modernbert")  # published tokenizers that put no blank before a text
# AutoTokenizer makes a Qwen2Tokenizer of any folder of these, and so reads other tokenizers by other rules.
FIXED_CLASS = ("qwen2",)
SMALLER |= {"local_attention": 6, "num_key_value_heads": 1, "num_groups": 1, "bottleneck_size": 8}
SMALLER |= {"output_embedding_size": 16}


def exported_tokenizer(export: Path) -> Any:
    """Returns the tokenizer of an export in `transformers`."""
    import transformers

    model_type = json.loads((export / "config.json").read_text())["model_type"]
    auto = transformers.PreTrainedTokenizerFast if model_type in FIXED_CLASS else transformers.AutoTokenizer
    return auto.from_pretrained(export, trust_remote_code=True)  # of bertjax, if any


OBJECTIVE_FAMILIES = {
    "mlm": "nomic_bert",
    "clm": "modernbert-decoder",
    "plm": "xlnet",
    "rtd": "electra",
    "distillation": "mpnet",
    "contrastive": "ernie",
    "mixture": "llama",
    "span_corruption": "mistral",
    "infilling": "xlm-roberta",
    "tsdae": "distilbert",
    "retromae": "roberta-prelayernorm",
}
"""The families with which the ordinary suite takes each objective; it finetunes the others."""


AUTHORS_CODE = {name for name in FAMILIES.builtin if "auto_map" in FAMILIES.load(name).constants}
"""Families whose classes are on the Hub alone."""
MODELS = {name: path for name, path in FAMILIES.builtin.items() if "family" not in FAMILIES.load(name).structure}
"""Families of models; folders of the others are read as models of one of these."""


def values_of(family: str) -> dict[str, Any]:
    """Returns the values of `model.*` of a small model of a family: its first preset, or that of a relative."""
    names = [name for name, values in PRESETS.items() if values.get("family", "bert") == family]
    relatives = {"t5": "t5-small", "bart": "bart-base", "mvp": "bart-base", "": "eurobert-210m"}
    name = (names or [next(preset for part, preset in relatives.items() if part in family)])[0]
    preset = PRESETS[name]
    smaller = {key: value for key, value in SMALLER.items() if preset.get(key)}
    values = {"preset": name, "family": family, **FAMILIES.load(family).structure, **smaller, **SIZES}
    return values | ({"num_layers": 2} if preset.get("enhanced_decoder") else {})  # which is the last layer, twice


def tokenizer_of(family: str) -> Path:
    """Returns the folder of a tokenizer of the kind that models of a family have."""
    values = PRESETS[values_of(family)["preset"]]
    return tokenizer_folder(family if family in TOKENIZERS else "roberta" if "position_offset" in values else "bert")


def with_decoder(family: str, head: str) -> dict[str, Any]:
    """Returns the values of `model.*` of the class of a family for a head, if that class has a decoder."""
    loaded = FAMILIES.load(family)
    heads = [loaded.architectures[name] for name in loaded.decoder_classes]
    return {"decoder_layers": 2, "pooling": "eos", "classifier_dense": "own"} if (head,) in heads else {}


@functools.cache
def tokenizer_folder(family: str) -> Path:
    """Trains and writes a tokenizer."""
    folder = Path(tempfile.mkdtemp(dir=os.environ["XDG_CACHE_HOME"])) / family  # deleted with the tests' cache
    model = TOKENIZERS[family].model
    model = "wordlevel" if model in FIXED_VOCABULARIES else model  # these texts are English
    save_tokenizer(train_tokenizer(TEXTS * 3, model=model, family=family, vocab_size=330), folder)
    if family in WITHOUT_BLANK:
        path = folder / "tokenizer.json"
        content = json.loads(path.read_text())
        content["pre_tokenizer"]["add_prefix_space"] = False
        path.write_text(json.dumps(content))
    return folder


def common(family: str, sizes: bool = True) -> ConfigDict:
    """Returns a config that tasks and pretraining share, of a small model; without `sizes` that of `init_from`."""
    cfg = base_config()
    cfg.platform, cfg.mesh.data = "cpu", 1
    if sizes:
        values = values_of(family)
        cfg.objective.mlm.masked_next_token = values.pop("masked_next_token", False)
        cfg.model.update(values)
        cfg.data.tokenizer = str(tokenizer_of(family))
    cfg.logging.tensorboard, cfg.report.enabled = False, False
    cfg.optimizer.learning_rate, cfg.schedule.warmup_steps, cfg.schedule.name = 1e-3, 0, "constant"
    cfg.train.compute_dtype = "float32"
    cfg.checkpoint.keep = 2
    return cfg


@functools.cache
def corpus_folder() -> Path:
    """Returns a folder with a corpus of short documents, for pretraining and what it caches."""
    folder = Path(tempfile.mkdtemp(dir=os.environ["XDG_CACHE_HOME"]))
    documents = ["\n".join(TEXTS[begin : begin + 6]) for begin in range(0, 60, 6)]
    (folder / "corpus.txt").write_text("\n\n".join(documents * 3) + "\n")
    return folder
