"""LUKE and I-BERT: their texts as RoBERTa reads them, what is not read, exports as RoBERTa."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from parity.compare import random_transformers_model
from parity.families.same_tensors import CASES
from safetensors.numpy import load_file

from bertjax.errors import UserError
from bertjax.hf.pretrained import PretrainedModel, load_pretrained

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

LUKE, IBERT = (next(case for case in CASES if case.family == family) for family in ("luke", "ibert"))
IDS = np.random.default_rng(0).integers(5, 57, (2, 9))


def load(model: Any, folder: Path) -> PretrainedModel:
    model.save_pretrained(folder)
    loaded = load_pretrained(folder)
    assert isinstance(loaded, PretrainedModel)
    return loaded


def scores(model: Any) -> np.ndarray:
    with torch.no_grad():
        return model.eval()(torch.from_numpy(IDS)).logits.numpy()


@pytest.mark.parametrize("tied", [True, False])
def test_luke_scores_words_by_the_table_of_its_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, tied: bool
) -> None:
    theirs = random_transformers_model(LUKE, "LukeForMaskedLM")
    if tied:  # as published; transformers 5 does not tie it
        theirs.lm_head.decoder.weight.data = theirs.luke.embeddings.word_embeddings.weight.data.clone()
    with caplog.at_level(logging.WARNING):
        ours = load(theirs, tmp_path / "theirs")
    (warning,) = caplog.messages
    assert "is not read: e2e_query, e2w_query, entity_embeddings, entity_predictions, w2e_query" in warning
    assert ours.config.family == "roberta" and ours.heads == ("pooler", "mlm")
    np.testing.assert_allclose(ours(IDS).logits, scores(theirs), atol=2e-5)
    ours.save_pretrained(tmp_path / "ours")
    again = load_pretrained(tmp_path / "ours")
    np.testing.assert_array_equal(again(IDS).logits, ours(IDS).logits)
    classes = json.loads((tmp_path / "ours/config.json").read_text())["architectures"]
    assert classes == ["RobertaForMaskedLM" if tied else "BertjaxForMaskedLM"]
    if tied:
        back = transformers.RobertaForMaskedLM.from_pretrained(tmp_path / "ours")
        np.testing.assert_allclose(scores(back), scores(theirs), atol=2e-5)


@pytest.mark.parametrize("case", [LUKE, IBERT], ids=["luke", "ibert"])
def test_tensors_keep_their_bytes_in_the_class_of_roberta(case: Any, tmp_path: Path) -> None:
    stem = case.written_as[0]
    theirs = random_transformers_model(case, f"{stem}ForSequenceClassification")
    load(theirs, tmp_path / "theirs").save_pretrained(tmp_path / "ours")
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("theirs", "ours"))
    names = {"classifier.dense": "luke.pooler.dense", "classifier.out_proj": "classifier"} if case is LUKE else {}
    for name, array in after.items():
        module, _, leaf = name.rpartition(".")
        source = names.get(module, module.replace("roberta.", f"{stem.lower()}."))
        assert before[f"{source}.{leaf}"].tobytes() == array.tobytes(), name


@pytest.mark.parametrize("name", ["LukeForEntityClassification", "LukeForEntityPairClassification"])
def test_a_class_of_entities_is_read_without_its_head(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    theirs = random_transformers_model(LUKE, name)
    ours = load(theirs, tmp_path)
    assert ours.heads == ("pooler",) and f"{name} is read without its head" in caplog.text
    with torch.no_grad():
        expected = theirs.luke(torch.from_numpy(IDS)).last_hidden_state
    np.testing.assert_allclose(ours(IDS).last_hidden_state, expected.numpy(), atol=2e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"quant_mode": True}, "quant_mode = True is not supported: it is computed without quantization"),
        ({"hidden_act": "relu"}, "hidden_act = 'relu' is not supported"),
    ],
)
def test_quantized_numbers_are_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    random_transformers_model(IBERT, "IBertModel").save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(UserError, match=message):
        load_pretrained(tmp_path)
