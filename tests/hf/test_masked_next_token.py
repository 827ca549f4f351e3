"""Models that predict a masked token from the token before it, in the classes of `transformers`."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from parity.compare import random_params

from bertjax.config.defaults import base_config
from bertjax.config.model import EncoderConfig
from bertjax.experiment.continued import copy_architecture
from bertjax.hf.export_plan import plan_export
from bertjax.hf.keymaps import FAMILIES
from bertjax.hf.pretrained import load_pretrained
from bertjax.hf.save import save_pretrained

torch = pytest.importorskip("torch")

BERT = EncoderConfig(
    vocab_size=30, hidden_size=12, num_layers=2, num_heads=2, intermediate_size=14, max_position_embeddings=20,
    masked_next_token=True,
)  # fmt: skip
LLAMA = EncoderConfig(
    **FAMILIES["llama"].structure,
    vocab_size=30, hidden_size=12, num_layers=2, num_heads=2, intermediate_size=14, max_position_embeddings=20,
    family="llama", hidden_act="silu", masked_next_token=True,
)  # fmt: skip
IDS = np.random.default_rng(0).integers(3, 30, (2, 9)).astype(np.int32)
MASK = np.array([[1] * 9, [1] * 6 + [0] * 3], np.int32)


@pytest.mark.parametrize("config", [BERT, LLAMA], ids=["bert", "llama"])
def test_scores_are_at_the_masked_token(config: EncoderConfig, tmp_path: Path) -> None:
    """A class for masked tokens has them there; a decoder's, which scores what comes next, at the token before."""
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

    params = random_params(config, ("mlm",))
    save_pretrained(tmp_path, params, config, heads=("mlm",))
    ours, real = load_pretrained(tmp_path), MASK > 0
    assert ours.config.masked_next_token and ours.config.family == ("bertjax" if config is BERT else "llama")
    logits = np.asarray(ours(IDS, MASK).mlm_logits)
    plain = dataclasses.replace(ours, config=dataclasses.replace(ours.config, masked_next_token=False))
    before = np.asarray(plain(IDS, MASK).mlm_logits)
    np.testing.assert_array_equal(logits[:, 1:], before[:, :-1])
    auto: Any = AutoModelForMaskedLM if config is BERT else AutoModelForCausalLM
    theirs = auto.from_pretrained(tmp_path, trust_remote_code=True).eval()
    with torch.no_grad():
        scores = theirs(torch.tensor(IDS), attention_mask=torch.tensor(MASK)).logits.numpy()
    np.testing.assert_allclose(scores[real], (logits if config is BERT else before)[real], atol=2e-5)


@pytest.mark.parametrize("config", [BERT, LLAMA], ids=["bert", "llama"])
def test_continuing_learns_by_the_same_positions(config: EncoderConfig, tmp_path: Path) -> None:
    save_pretrained(tmp_path, random_params(config, ("mlm",)), config, heads=("mlm",))
    cfg = base_config()
    assert copy_architecture(cfg, str(tmp_path)) == "mlm" and cfg.objective.mlm.masked_next_token


def test_only_scores_of_masked_tokens_need_code(tmp_path: Path) -> None:
    """The encoder of such a model, and one that was finetuned, are what they are without it."""
    assert plan_export(BERT, ()).architecture == "BertModel"
    assert plan_export(BERT, ("pooler", "sequence_classification")).architecture == "BertForSequenceClassification"
    plan = plan_export(BERT, ("mlm",))
    assert plan.family is None and "masked_next_token" in plan.limitation
    decoder = plan_export(LLAMA, ("mlm",))
    assert decoder.architecture == "LlamaForCausalLM" and decoder.sidecar_fields == ("masked_next_token",)
    assert "without masked_next_token, which only bertjax reads" in decoder.limitation
    save_pretrained(tmp_path, random_params(LLAMA, ("mlm",)), LLAMA, heads=("mlm",))
    assert json.loads((tmp_path / "config.json").read_text())["is_causal"] is False
