"""Pseudo-log-likelihoods compared with `transformers`, one masked copy at a time."""

from __future__ import annotations

import copy
import dataclasses
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from models_lab import quick_compilation, write_folder
from tokenizers.processors import TemplateProcessing
from tokens_lab import sentences

from bertjax.data.tokenizer import Tokenizer
from bertjax.data.tokenizer_io import load_tokenizer
from bertjax.errors import UserError
from bertjax.hf.pretrained import PretrainedModel, load_pretrained
from bertjax.inference.pseudo_likelihood import score_texts

TEXTS = ["The catmat unbelievablyhungry dogsea.", "a", *sentences(1, seed=5, longest=7)]


@pytest.fixture(autouse=True)
def quick() -> Iterator[None]:
    with quick_compilation():
        yield


class Both(NamedTuple):
    """The same model and tokenizer in transformers and in bertjax."""

    theirs: Any
    their_tokenizer: Any
    ours: PretrainedModel
    tokenizer: Tokenizer


@pytest.fixture(scope="module")
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Both:
    folder = tmp_path_factory.mktemp(request.param)
    theirs = write_folder(request.param, folder)
    return Both(*theirs, load_pretrained(folder), load_tokenizer(folder))


def of_all_families(*names: Any) -> Any:
    return pytest.mark.parametrize("both", names, indirect=True)


def their_log_probs(model: Any, **inputs: Any) -> torch.Tensor:
    with torch.no_grad():
        return torch.log_softmax(model(**inputs).logits, dim=-1)


def their_score(pair: Both, text: str, within_word: bool, shift: int = 0) -> tuple[float, int]:
    """Scores one text: every token that is not special is masked in a separate copy, and read `shift` before."""
    encoded = pair.their_tokenizer(text, return_tensors="pt", return_special_tokens_mask=True)
    words, special = encoded.word_ids(), encoded.pop("special_tokens_mask")[0]
    ids, total, count = encoded["input_ids"][0], 0.0, 0
    for index in range(len(ids)):
        if special[index]:
            continue
        masked = [other for other in range(index, len(ids)) if words[other] == words[index]] if within_word else [index]
        if "XLNet" in type(pair.theirs).__name__:
            hidden, target = torch.zeros(1, len(ids), len(ids)), torch.zeros(1, 1, len(ids))
            hidden[:, :, masked], target[0, 0, index] = 1, 1
            result = their_log_probs(pair.theirs, **encoded, perm_mask=hidden, target_mapping=target)[0, 0]
        else:
            changed = ids.clone()
            changed[masked] = pair.their_tokenizer.mask_token_id
            result = their_log_probs(pair.theirs, **{**encoded, "input_ids": changed[None]})[0, index - shift]
        total, count = total + float(result[ids[index]]), count + 1
    return total, count


FURTHER = [pytest.param(name, marks=pytest.mark.weekly) for name in ("deberta-v2", "modernbert", "roberta")]


@of_all_families("bert", "xlnet", *FURTHER)
def test_pseudo_log_likelihoods_as_transformers(both: Both) -> None:
    for mode in ("pll", "within-word"):
        expected = [their_score(both, text, mode == "within-word") for text in TEXTS]
        result = score_texts(both.ours, both.tokenizer, TEXTS, mode)
        assert result.tokens.tolist() == [count for _, count in expected] and result.tokens.max() > 4
        np.testing.assert_allclose(result.totals, [total for total, _ in expected], rtol=1e-5, err_msg=mode)
    assert np.abs(score_texts(both.ours, both.tokenizer, TEXTS, "pll").totals - result.totals).max() > 1e-3


@of_all_families("bert")
def test_a_token_is_predicted_from_the_one_before_it(both: Both) -> None:
    config = dataclasses.replace(both.ours.config, masked_next_token=True)
    model = dataclasses.replace(both.ours, config=config)
    expected = [their_score(both, text, False, shift=1)[0] for text in TEXTS]
    result = score_texts(model, both.tokenizer, TEXTS, "pll")
    np.testing.assert_allclose(result.totals, expected, rtol=1e-5)


@of_all_families("bert")
def test_the_first_token_needs_one_before_it(both: Both) -> None:
    """A tokenizer that adds nothing to a text lends its separator; without one the first token has no probability."""
    model = dataclasses.replace(both.ours, config=dataclasses.replace(both.ours.config, masked_next_token=True))
    bare = copy.copy(both.tokenizer)
    engine = type(bare.engine).from_str(bare.engine.to_str())
    engine.post_processor = TemplateProcessing(single="$A", pair="$A $B", special_tokens=[])
    bare.backend = types.SimpleNamespace(marked=engine)
    counts = []
    for bare.cls_id in (both.tokenizer.cls_id, -1):
        added = [bare.cls_id] if bare.cls_id >= 0 else []
        ids = np.array([[*added, *engine.encode(TEXTS[0]).ids]], np.int32)
        total = 0.0
        for index in range(1, ids.shape[1]):
            masked = np.where(np.arange(ids.shape[1]) == index, bare.mask_id, ids)
            row = their_log_probs(both.theirs, input_ids=torch.tensor(masked))[0, index - 1]
            total += float(row[int(ids[0, index])])
        result = score_texts(model, bare, TEXTS[:1], "pll")
        np.testing.assert_allclose(result.totals, [total], rtol=1e-5)
        counts.append(int(result.tokens[0]))
    assert counts[0] == counts[1] + 1


@of_all_families("gpt2")
def test_log_likelihoods_as_transformers(both: Both) -> None:
    """The first token follows the end of the text before."""
    boundary, expected = both.their_tokenizer.convert_tokens_to_ids("<|endoftext|>"), []
    for text in TEXTS:
        ids = torch.tensor([[boundary, *both.their_tokenizer(text)["input_ids"]]])
        result = their_log_probs(both.theirs, input_ids=ids)[0, :-1]
        expected.append(float(result.gather(1, ids[0, 1:, None]).sum()))
    result = score_texts(both.ours, both.tokenizer, TEXTS)
    np.testing.assert_allclose(result.totals, expected, rtol=1e-5)
    for mode in ("pll", "within-word"):
        with pytest.raises(UserError, match="left to right"):
            score_texts(both.ours, both.tokenizer, TEXTS, mode)


@pytest.mark.long
@of_all_families("bert")
def test_neither_batches_nor_neighbors_change_a_score(both: Both) -> None:
    texts = [TEXTS[0], "The cat " * 9]
    alone = [score_texts(both.ours, both.tokenizer, [text], "pll").totals[0] for text in texts]
    reported: list[tuple[int, int]] = []
    small = score_texts(
        both.ours,
        both.tokenizer,
        texts,
        "pll",
        tokens=72,
        on_progress=lambda done, total: reported.append((done, total)),
    )
    np.testing.assert_allclose(small.totals, alone, rtol=1e-6)
    assert reported[-1][0] == reported[-1][1] == small.tokens.sum() and len(reported) > 5


@of_all_families("bert", "gpt2")
def test_special_tokens_in_a_text_are_read_but_not_scored(both: Both) -> None:
    special = both.tokenizer.tokens[both.tokenizer.sep_id]
    plain, typed = score_texts(both.ours, both.tokenizer, ["The cat", f"The{special} cat"]).tokens.tolist()
    both_halves = score_texts(both.ours, both.tokenizer, ["The", " cat"]).tokens.sum()
    assert typed == both_halves >= plain


@of_all_families("bert")
def test_refused(both: Both) -> None:
    with pytest.raises(UserError, match="score must be one of pll, within-word, likelihood"):
        score_texts(both.ours, both.tokenizer, ["a"], "loglik")
    with pytest.raises(UserError, match="no likelihood; take score=pll"):
        score_texts(both.ours, both.tokenizer, ["a"], "likelihood")
    with pytest.raises(UserError, match=r"longer than the 512 that the model reads: 'cat cat"):
        score_texts(both.ours, both.tokenizer, ["a", "cat " * 600], "pll")
    headless = PretrainedModel(both.ours.config, {"encoder": both.ours.params["encoder"]}, ())
    with pytest.raises(UserError, match="no head for masked words"):
        score_texts(headless, both.tokenizer, ["a"], "pll")
    assert score_texts(both.ours, both.tokenizer, [], "pll").totals.shape == (0,)
    assert score_texts(both.ours, both.tokenizer, [""], "pll").totals.tolist() == [0.0]
