"""Heads with one output: `predict` gives what CrossEncoder and the pipeline give, by the function that is stored."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from parity.compare import random_params

import bertjax
from bertjax.config.model import EncoderConfig
from bertjax.data.tokenizer_training import train_tokenizer
from bertjax.errors import UserError
from bertjax.hf.cross_encoder import stored_activation
from bertjax.hf.save import save_pretrained
from bertjax.tasks.regression import Regression

torch = pytest.importorskip("torch")
sentence_transformers = pytest.importorskip("sentence_transformers")

PAIRS = [("the cat sees", "a dog"), ("a dog", "the cat sees the dog"), ("dog", "dog")]
HEADS = ("pooler", "sequence_classification")


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A head for numbers as finetuning exports it, with a single token type, where BERT's tokenizer has two."""
    tokenizer = train_tokenizer(["the cat sees a dog"] * 9, model="wordpiece", family="bert", vocab_size=60)
    sizes = {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "intermediate_size": 16}
    sizes |= {"vocab_size": tokenizer.size, "max_position_embeddings": 32, "type_vocab_size": 1}
    config = EncoderConfig(labels=("LABEL_0",), **sizes)
    folder = tmp_path_factory.mktemp("cross") / "model"
    facts = {"tokenizer": tokenizer.fitted(config), "config_keys": Regression().config_keys}
    save_pretrained(folder, random_params(config, HEADS), config, heads=HEADS, **facts)
    return folder


def scores(model: object) -> np.ndarray:
    return np.array([record["score"] for record in bertjax.predict(model, PAIRS)])


def test_an_export_is_a_number_to_all(exported: Path) -> None:
    import transformers

    pipe = transformers.pipeline("text-classification", model=str(exported), device="cpu")
    of_pipe = [pipe({"text": text, "text_pair": pair})["score"] for text, pair in PAIRS]
    np.testing.assert_allclose(scores(exported), of_pipe, atol=1e-5)
    np.testing.assert_allclose(sentence_transformers.CrossEncoder(str(exported)).predict(PAIRS), of_pipe, atol=1e-5)
    assert np.ptp(of_pipe) > 1e-3


def test_the_function_of_a_folder_is_applied(exported: Path, tmp_path: Path) -> None:
    """Also to a loaded model and to its copy; version 6 has a file of its own, others a key of config.json."""
    encoder = sentence_transformers.CrossEncoder(str(exported), activation_fn=torch.nn.Sigmoid())
    encoder.save_pretrained(str(tmp_path / "theirs"))
    expected = encoder.predict(PAIRS)
    loaded = bertjax.load_pretrained(tmp_path / "theirs")
    loaded.save_pretrained(tmp_path / "copy")
    for model in (tmp_path / "theirs", loaded, tmp_path / "copy"):
        np.testing.assert_allclose(scores(model), expected, atol=1e-5)
    np.testing.assert_allclose(sentence_transformers.CrossEncoder(str(tmp_path / "copy")).predict(PAIRS), expected)
    assert np.abs(expected - scores(exported)).max() > 1e-2


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Tanh"}}, np.tanh(0.5)),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.activation.Sigmoid"}, 1 / (1 + np.exp(-0.5))),
        ({"sentence_transformers": {"version": "4.1.0"}}, 0.5),
        ({}, 0.5),
    ],
)
def test_older_names(keys: dict[str, object], expected: float) -> None:
    assert stored_activation(keys, {})(np.array(0.5)) == pytest.approx(expected)


def test_an_unknown_function_is_refused() -> None:
    with pytest.raises(UserError, match=r"activation_fn 'mine\.Sigmoid' .* is not supported: Identity, Sigmoid"):
        stored_activation({"sentence_transformers": {"activation_fn": "mine.Sigmoid"}}, {})
    with pytest.raises(UserError, match="holds no JSON object"):
        stored_activation({}, {"config_sentence_transformers.json": b"[1]"})
    assert stored_activation({"sentence_transformers": {"activation_fn": "mine.Softmax"}}, {}, 3)(0.5) == 0.5
