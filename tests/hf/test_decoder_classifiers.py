"""Classifiers of decoders, which score a text by its last token that is not the pad token."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
import transformers

import bertjax
import bertjax.hf.save as save_module
from bertjax.errors import UserError
from bertjax.hf.pretrained import PretrainedModel, load_pretrained

SIZES = {"vocab_size": 31, "num_labels": 3, "pad_token_id": 3, "hidden_size": 24, "max_position_embeddings": 16}
LAYERS = {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 20}
CLASSES: dict[str, dict[str, Any]] = {
    "Llama": LAYERS,
    "Mistral": LAYERS | {"sliding_window": None, "num_key_value_heads": 1},
    "Qwen2": LAYERS | {"num_key_value_heads": 2},
    "Qwen3": LAYERS | {"num_key_value_heads": 1, "head_dim": 8},
    "Gemma": LAYERS | {"num_key_value_heads": 1, "head_dim": 8},
    "Gemma2": LAYERS | {"num_key_value_heads": 1, "head_dim": 8, "sliding_window": 3},
    "Gemma3Text": LAYERS | {"num_key_value_heads": 2, "head_dim": 8, "sliding_window": 2},
    "GPT2": {"n_layer": 1, "n_head": 2},
    "ModernBertDecoder": LAYERS | {"bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2},
}


def classifier(name: str) -> Any:
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**SIZES, **CLASSES[name])
    model = getattr(transformers, f"{name}ForSequenceClassification")(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()


def scores(model: Any) -> np.ndarray:
    """Scores texts that are padded on either side, that hold the pad token, and that hold nothing else."""
    ids = np.random.default_rng(0).integers(4, 31, (5, 7))
    mask = np.ones_like(ids)
    ids[1, 4:], mask[1, 4:], ids[2, :3], mask[2, :3] = 3, 0, 3, 0
    ids[3, 5:], ids[4] = 3, 3
    if isinstance(model, PretrainedModel):
        return np.asarray(model(ids, mask).sequence_logits)
    with torch.no_grad():
        return model(torch.tensor(ids), attention_mask=torch.tensor(mask)).logits.numpy()


@pytest.mark.parametrize(
    "name", [name if name in ("Llama", "GPT2") else pytest.param(name, marks=pytest.mark.long) for name in CLASSES]
)
def test_scores_and_copies(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = classifier(name)
    theirs.config.problem_type = "regression"
    theirs.save_pretrained(tmp_path / "theirs")
    ours = load_pretrained(tmp_path / "theirs")
    assert isinstance(ours, PretrainedModel) and ours.heads == ("sequence_classification",)
    np.testing.assert_allclose(scores(ours), scores(theirs), atol=2e-5)
    monkeypatch.setattr(save_module, "_compare_outputs", lambda *_: None)  # here transformers compares
    ours.save_pretrained(tmp_path / "ours")
    assert not (tmp_path / "ours" / "bertjax.json").exists()
    back = getattr(transformers, f"{name}ForSequenceClassification").from_pretrained(tmp_path / "ours").eval()
    assert back.config.problem_type == "regression"
    np.testing.assert_allclose(scores(back), scores(theirs), atol=2e-5)


@pytest.mark.parametrize("side", ["left", "right"])
def test_predictions_are_those_of_a_tokenizer_that_pads_on_either_side(side: str, tmp_path: Path) -> None:
    """A reranker: pairs, a begin token first, an end token last that also pads."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    theirs = classifier("Llama")
    theirs.save_pretrained(tmp_path)
    words = {word: index for index, word in enumerate(["<unk>", "<s>", "</q>", "<end>", *"abcdefgh"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        "<s> $A <end>", "<s> $A </q> $B <end>", [("<s>", 1), ("</q>", 2), ("<end>", 3)]
    )
    names = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "<end>", "pad_token": "<end>"}
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, padding_side=side, **names)
    fast.save_pretrained(tmp_path)
    pairs = [("a b", "c"), ("d", "e f g h a b"), ("h h h", "a")]
    with torch.no_grad():
        encoded = fast([first for first, _ in pairs], [second for _, second in pairs], padding=True)
        ids, mask = torch.tensor(encoded["input_ids"]), torch.tensor(encoded["attention_mask"])
        expected = theirs(ids, attention_mask=mask).logits.softmax(-1).numpy()
    records = bertjax.predict(tmp_path, pairs)
    np.testing.assert_allclose([[*record["probabilities"].values()] for record in records], expected, atol=2e-5)
    assert np.ptp(expected[:, 0]) > 0.01


def test_a_bias_of_our_own_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    classifier("GPT2").save_pretrained(tmp_path / "theirs")
    ours = load_pretrained(tmp_path / "theirs")
    assert isinstance(ours, PretrainedModel) and "bias" not in ours.params["sequence_head"]["output"]
    ours.config = dataclasses.replace(ours.config, classifier_bias=True)
    ours.params["sequence_head"]["output"]["bias"] = np.ones(3, np.float32)
    monkeypatch.setattr(save_module, "_compare_outputs", lambda *_: None)
    ours.save_pretrained(tmp_path / "ours")
    assert load_pretrained(tmp_path / "ours").params["sequence_head"]["output"]["bias"].tolist() == [1.0, 1.0, 1.0]
    config = tmp_path / "theirs" / "config.json"
    for changes, words in (
        ({"pad_token_id": None}, "pad_token_id must be a number"),
        ({"is_causal": False}, "is_causal"),
    ):
        (tmp_path / "theirs" / "config.json").write_text(json.dumps(json.loads(config.read_text()) | changes))
        with pytest.raises(UserError, match=words):
            load_pretrained(tmp_path / "theirs")
