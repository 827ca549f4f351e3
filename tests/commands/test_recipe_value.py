"""scripts/recipe_value.py: margins in standard errors, the job of the peer, and a held-out loss of the same tokens."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from types import ModuleType

import pytest
import transformers
from lab import load_script
from tokenizers import Tokenizer, models, pre_tokenizers

SCRIPTS = Path(__file__).parents[2] / "scripts"
WORDS = [
    "[PAD]",
    "[UNK]",
    "[MASK]",
    *["the", "old", "man", "and", "his", "boat", "lay", "still", "in", "water", "of", "that", "bay"],
]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script(SCRIPTS / "recipe_value.py")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a BERT of zeros, which scores all words alike, with a tokenizer of whole words."""
    folder = tmp_path_factory.mktemp("out") / "recipe-0" / "export"
    tokenizer = Tokenizer(models.WordLevel({word: at for at, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "mask_token": "[MASK]"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    network = transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=len(WORDS), **sizes))
    for parameter in network.parameters():
        parameter.data.zero_()
    network.save_pretrained(folder)
    return folder


def test_a_margin_counts_seeds_and_sampling(script: ModuleType) -> None:
    recipe, other = [0.80, 0.82, 0.84], [0.70, 0.72, 0.74]
    error = math.sqrt(2 * 0.02**2 / 3 + (0.82 * 0.18 + 0.72 * 0.28) / 1000)
    assert script.cell(other, recipe, 1000) == f"0.7200 ± 0.0200 ({0.1 / error:.1f})"
    assert script.cell(recipe, recipe, 1000) == "0.8200 ± 0.0200"
    assert script.cell([0.5], [0.6], 100).startswith("0.5000 (")


def test_a_model_of_zeros_has_the_loss_of_a_uniform_guess(script: ModuleType, model: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text(" ".join(WORDS[3:]) * 30)
    assert script.held_out_loss(model, text) == pytest.approx(math.log(len(WORDS)), rel=1e-5)


def test_the_peer_has_the_defaults_of_run_mlm_and_the_tokenizer_of_the_recipe(
    script: ModuleType, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[list[str]] = []
    monkeypatch.setattr(script, "call", called.append)
    out = model.parents[1]
    options = argparse.Namespace(out=out, text=out / "text.txt", peer_python="python", peer_size="mini", minutes=2.0)
    assert script.train("run_mlm", 0, options) == out / "run_mlm-0" / "model"
    assert called == [["python", str(SCRIPTS / "trainer_peer.py"), str(out / "run_mlm-0" / "job.json")]]
    job = json.loads((out / "run_mlm-0" / "job.json").read_text())
    assert (job["seconds"], job["rows"], job["seq_len"]) == (120.0, 8, 512)
    assert job["arguments"] == {"learning_rate": 5e-5, "weight_decay": 0.0, "seed": 0}
    assert job["model"]["vocab_size"] == len(WORDS) and job["tokenizer"] == str(model)


def test_random_weights_are_those_of_the_recipes_network(script: ModuleType, model: Path) -> None:
    folder = script.train("random", 1, argparse.Namespace(out=model.parents[1]))
    network = transformers.AutoModelForMaskedLM.from_pretrained(folder)
    table = network.bert.embeddings.word_embeddings.weight.detach()
    assert table.shape == (len(WORDS), 8) and float(table.std()) > 0.01
    assert script.train("random", 1, argparse.Namespace(out=model.parents[1])) == folder
