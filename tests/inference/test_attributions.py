"""Attributions compared with the same sums made by torch's autograd on the model of `transformers`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from models_lab import MODELS, quick_compilation
from test_predictions import write_folder

from bertjax.data.tokenizer_io import load_tokenizer
from bertjax.errors import UserError
from bertjax.hf.pretrained import load_pretrained
from bertjax.inference.attributions import Attributor, Readout, ScoredWindow
from bertjax.inference.explained_texts import Word, find_words, text_windows, without_word
from bertjax.inference.mlm_inference import MaskMode

TEXT = "naïve 北京 cafés offer, curiously, tea"
MORE: dict[str, Any] = {
    "albert": ("AlbertConfig", "AlbertForMaskedLM", MODELS["bert"][2] | {"embedding_size": 10}),
    "electra": ("ElectraConfig", "ElectraForMaskedLM", MODELS["bert"][2] | {"embedding_size": 10}),
}
FAMILIES = [
    pytest.param(family, marks={"bert": (), "xlnet": pytest.mark.long}.get(family, pytest.mark.matrix))
    for family in ("bert", "xlnet", "roberta", "deberta-v2", "modernbert", "albert", "electra")
]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for family, entry in MORE.items():
        monkeypatch.setitem(MODELS, family, entry)
    with quick_compilation():
        yield


def make(folder: Path, head: str, name: str, family: str = "bert") -> tuple[Any, Any, Any, ScoredWindow, Readout]:
    """Returns the model of `transformers`, ours, its tokenizer, a window, and what is explained."""
    labels = ("no", "yes") if head == "QuestionAnswering" else ("no", "yes", "maybe")
    theirs, _ = write_folder(folder, head, labels, family)
    ours, tokenizer = load_pretrained(folder), load_tokenizer(folder)
    window = text_windows(tokenizer.fitted(ours.config), [(TEXT,)])[0].window
    return theirs.eval(), ours, tokenizer, window, Readout(ours.config, ours.heads, name)


def torch_gradient(
    model: Any, window: ScoredWindow, embeds: torch.Tensor, read: Callable[[Any], torch.Tensor]
) -> tuple[float, np.ndarray]:
    """Returns the score and its gradient where `embeds` replace the output of the embedding, as captum replaces it."""
    embeds = embeds.detach().clone().requires_grad_()

    handle = model.get_input_embeddings().register_forward_hook(lambda *hooked: embeds.reshape(hooked[-1].shape))
    types = torch.tensor(window.token_types[None].astype(np.int64))
    inputs = {"input_ids": torch.tensor(window.input_ids[None].astype(np.int64))}
    if "ModernBert" not in type(model).__name__:
        inputs["token_type_ids"] = types
    score = read(model(**inputs))
    score.backward()
    handle.remove()
    assert embeds.grad is not None
    return float(score.detach()), embeds.grad.numpy()


def torch_integrated(
    model: Any, window: ScoredWindow, baseline: np.ndarray, read: Callable[[Any], torch.Tensor], steps: int
) -> np.ndarray:
    """Returns integrated gradients of tokens by Gauss-Legendre, in float64."""
    table = model.get_input_embeddings().weight.detach()
    inputs = table[torch.tensor(window.input_ids)]
    empty = torch.where(torch.tensor(window.replaceable)[:, None], torch.tensor(baseline), inputs)
    nodes, weights = np.polynomial.legendre.leggauss(steps)
    total = np.zeros(inputs.shape)
    for node, weight in zip((1 + nodes) / 2, weights / 2, strict=True):
        _, gradient = torch_gradient(model, window, empty + float(node) * (inputs - empty), read)
        total += weight * gradient
    return (total * (inputs - empty).double().numpy()).sum(-1)


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_as_torch(family: str, tmp_path: Path) -> None:
    theirs, ours, tokenizer, window, readout = make(
        tmp_path, "SequenceClassification", "sequence_classification", family
    )
    window = dataclasses.replace(window, ids=(2,))

    def read(output: Any) -> torch.Tensor:
        return output.logits[0, 2]

    table = theirs.get_input_embeddings().weight.detach().numpy()
    attributor = Attributor(ours, readout, table[tokenizer.pad_id])
    result = attributor.integrated_gradients([window, window], steps=8)
    for each in result:
        assert each.completeness_error is not None and each.completeness_error < 0.01
        assert each.steps is not None
        expected = torch_integrated(theirs, window, table[tokenizer.pad_id], read, each.steps)
        assert np.abs(expected).max() > 1e-4
        np.testing.assert_allclose(each.words, window.sum_by_word(expected), rtol=1e-3, atol=2e-6)
    inputs = torch.tensor(table[window.input_ids])
    score, gradient = torch_gradient(theirs, window, inputs, read)
    (result,) = attributor.gradient_x_input([window])
    assert result.score == pytest.approx(score, abs=1e-4)
    np.testing.assert_allclose(
        result.words, window.sum_by_word((gradient * inputs.numpy()).sum(-1)), rtol=1e-3, atol=2e-6
    )


@pytest.mark.long
@pytest.mark.parametrize(
    ("head", "name"), [("TokenClassification", "token_classification"), ("QuestionAnswering", "question_answering")]
)
def test_positions_as_torch(head: str, name: str, tmp_path: Path) -> None:
    theirs, ours, _, window, readout = make(tmp_path, head, name)
    if head == "QuestionAnswering":
        window = dataclasses.replace(window, positions=(3, 5), ids=(0, 1))
    else:
        window = dataclasses.replace(window, positions=(4,), ids=(1,))

    def read(output: Any) -> torch.Tensor:
        if head == "QuestionAnswering":
            return output.start_logits[0, 3] + output.end_logits[0, 5]
        return output.logits[0, 4, 1]

    (result,) = Attributor(ours, readout).integrated_gradients([window], steps=8)
    expected = torch_integrated(theirs, window, np.zeros(18, np.float32), read, result.steps or 0)
    np.testing.assert_allclose(result.words, window.sum_by_word(expected), rtol=1e-3, atol=2e-6)


@pytest.mark.long
def test_masked_token_as_torch(tmp_path: Path) -> None:
    """The table also makes the logits, and is not part of the gradient there."""
    theirs, ours, tokenizer, window, readout = make(tmp_path, "MaskedLM", "mlm")
    ids = window.input_ids.copy()
    ids[3] = tokenizer.mask_id
    replaceable = window.replaceable & (np.arange(len(ids)) != 3)
    window = dataclasses.replace(window, input_ids=ids, replaceable=replaceable, positions=(3,), ids=(7,))
    attributor = Attributor(ours, readout._replace(masks=MaskMode(tokenizer.mask_id, False)))
    (result,) = attributor.integrated_gradients([window], steps=8)

    def read(output: Any) -> torch.Tensor:
        return output.logits[0, 3, 7]

    expected = torch_integrated(theirs, window, np.zeros(18, np.float32), read, result.steps or 0)
    np.testing.assert_allclose(result.words, window.sum_by_word(expected), rtol=1e-3, atol=2e-6)


def test_rollout_as_product_of_attentions(tmp_path: Path) -> None:
    theirs, ours, _, window, readout = make(tmp_path, "SequenceClassification", "sequence_classification")
    theirs.set_attn_implementation("eager")
    with torch.no_grad():
        attentions = theirs(torch.tensor(window.input_ids[None].astype(np.int64)), output_attentions=True).attentions
    expected = np.eye(len(window.input_ids))
    for attention in attentions:
        mixed = attention[0].mean(0).double().numpy() + np.eye(len(expected))
        expected = mixed / mixed.sum(-1, keepdims=True) @ expected
    (result,) = Attributor(ours, readout).attention_rollout([window])
    np.testing.assert_allclose(result.words, window.sum_by_word(expected[0]), atol=1e-5)
    two_streams = readout._replace(masks=MaskMode(4, True))
    with pytest.raises(UserError, match=r"attention-rollout needs .* a second stream predicts masked tokens"):
        Attributor(ours, two_streams).attention_rollout([window])


def test_rollout_begins_where_a_masked_token_is_predicted(tmp_path: Path) -> None:
    _, ours, tokenizer, window, readout = make(tmp_path, "MaskedLM", "mlm")
    window = dataclasses.replace(window, positions=(3,), ids=(7,))
    results = []
    for shifted in (False, True):
        config = dataclasses.replace(ours.config, masked_next_token=shifted)
        masked = readout._replace(config=config, masks=MaskMode(tokenizer.mask_id, False))
        at = dataclasses.replace(window, positions=(4,)) if shifted else window
        results += Attributor(dataclasses.replace(ours, config=config), masked).attention_rollout([at])
    assert results[0].score == pytest.approx(results[1].score, abs=1e-5)
    np.testing.assert_allclose(results[0].words, results[1].words, atol=1e-6)


def test_words() -> None:
    """A token joins the words that it covers; one of blanks belongs to the next word; the rest has no tokens."""
    begins, ends = np.array([0, 3, 4, 4, 8]), np.array([3, 4, 6, 9, 13])
    words, of_token = find_words("ab, c-d e f\u200b  end", begins, ends)
    assert [word.text for word in words] == ["ab,", "c-d e f"]  # a token that covers parts of several words joins them
    for (begin, end), word in zip(zip(begins, ends, strict=True), of_token, strict=True):
        assert words[word].end > begin and (words[word].start < end or begin == 3)
    words, of_token = find_words("U.S. 北京", np.array([0, 5]), np.array([4, 7]))
    assert [(word.text, word.start, word.end) for word in words] == [("U.S.", 0, 4), ("北京", 5, 7)]
    assert of_token.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("text", "start", "end", "expected"),
    [("a b c", 2, 3, "a c"), ("a b", 2, 3, "a"), ("a b", 0, 1, "b"), ("a, b", 1, 2, "a b"), ("a", 0, 1, "")],
)
def test_without_word(text: str, start: int, end: int, expected: str) -> None:
    assert without_word(text, Word(text[start:end], "text", start, end)) == expected
