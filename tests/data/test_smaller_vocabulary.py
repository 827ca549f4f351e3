"""Tokens removed from a vocabulary of every kind: texts of the rest are read as before, here and in `transformers`."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest
from test_changed_vocabulary import KINDS, SCRIPT, build
from test_tokenizer import CHINESE, corpus, trained

from bertjax.data.changed_vocabulary import remove_unused
from bertjax.data.tokenizer_io import load_tokenizer, save_tokenizer
from bertjax.errors import UserError


@pytest.mark.parametrize(("family", "model"), [pair for pair in KINDS if pair[1] != "sentencepiece_bpe"])
def test_texts_of_the_remaining_tokens_are_read_as_before(family: str, model: str, tmp_path: Path) -> None:
    tokenizer = build(family, model, tmp_path)
    remaining, others = (
        [text[:60] for text in corpus()[:3]],
        [*corpus()[3:9], *CHINESE, "unknown 🙂 signs, hyphen-ated Wörter"],
    )
    used = np.unique(np.concatenate(tokenizer.encode_batch(remaining)))
    smaller, old_ids = remove_unused(tokenizer, used)
    assert len(old_ids) == smaller.size < tokenizer.size and sorted(old_ids) == list(old_ids)
    assert [tokenizer.tokens[index] for index in old_ids] == smaller.tokens
    assert {tokenizer.tokens[index] for index in tokenizer.special_ids} == {
        smaller.tokens[index] for index in smaller.special_ids
    }
    for before, after in zip(tokenizer.encode_batch(remaining), smaller.encode_batch(remaining), strict=True):
        assert before.tolist() == np.array(old_ids)[after].tolist()
    for text in others:
        before, after = tokenizer.encode_with_specials(text), smaller.encode_with_specials(text)
        if model != "wordlevel":  # whose words are all or nothing
            assert smaller.decode(after) == tokenizer.decode(before)
            assert after.count(smaller.unk_id) == before.count(tokenizer.unk_id)
    texts = [*remaining, *others]
    assert runpy.run_path(str(SCRIPT))["compare_export"](smaller, texts) == len(texts)
    save_tokenizer(smaller, tmp_path / "saved")
    assert load_tokenizer(tmp_path / "saved").digest == smaller.digest


def test_a_bpe_model_of_sentencepiece_is_refused() -> None:
    tokenizer = trained("xlm-roberta", "sentencepiece_bpe")
    with pytest.raises(UserError, match="does not name its merges"):
        remove_unused(tokenizer, range(20))
