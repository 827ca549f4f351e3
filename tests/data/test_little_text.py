"""Text of which `data.eval_fraction` would hold out nothing: something is held out, the same at every start."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bertjax.config.overrides import load_config, set_values
from bertjax.data import from_config
from bertjax.data.corpus import open_corpus
from bertjax.errors import UserError

SENTENCES = [
    f"The {noun} finds the {other}." for noun in ("cat", "dog", "bird") for other in ("road", "key", "river", "sea")
]


def prepare(folder: Path, *texts: str) -> tuple[from_config.Prepared, list[str]]:
    paths = [folder / f"{number}.txt" for number in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
    cfg = set_values(
        load_config("bert:smoke"),
        {
            "data.sources": ",".join(f"text:{path}" for path in paths),
            "data.cache_dir": folder / "cache",
            "data.vocab_size": 80,
            "data.eval_fraction": 1e-9,
        },
    )
    lines: list[str] = []
    return from_config.prepare(cfg, lines.append), lines


def texts_of(prepared: from_config.Prepared, corpora: dict[str, from_config.PreparedCorpus], split: str) -> list[str]:
    texts = []
    for prepared_corpus in corpora.values():
        if prepared_corpus.splits[split].tokens:
            corpus = open_corpus(prepared_corpus.folder)[split].open()
            (ids,) = corpus.read(np.zeros(1, int), np.array([corpus.num_tokens]))
            texts.append(prepared.tokenizer.decode(ids.tolist()))
    return texts


def test_one_document_of_several(tmp_path: Path) -> None:
    documents = [" ".join(SENTENCES[number : number + 3]) for number in range(9)]
    prepared, lines = prepare(tmp_path, "\n\n".join(documents), "Another source.")
    several, single = prepared.training.values()
    assert several.splits["eval"].documents == 1 and several.splits["train"].documents == 8
    assert single.splits["eval"].documents == 0 and prepared.held_out == prepared.training
    assert any("eval_fraction=1e-09 holds out no document: one of text:" in line for line in lines)
    again, lines = prepare(tmp_path, "\n\n".join(documents), "Another source.")
    assert again.digests == prepared.digests and any("one of text:" in line for line in lines)


@pytest.mark.parametrize("copies", [1, 3])
def test_the_end_of_a_single_one(tmp_path: Path, copies: int) -> None:
    prepared, lines = prepare(tmp_path, "\n\n".join([" ".join(SENTENCES)] * copies))
    assert any("the last 10% of the sentences of text:" in line for line in lines)
    head = " ".join(SENTENCES[:-1]).lower()
    assert texts_of(prepared, prepared.training, "train") == [" ".join([head] * copies)]
    assert texts_of(prepared, prepared.held_out, "eval") == [" ".join(["the bird finds the sea."] * copies)]
    assert prepare(tmp_path, "\n\n".join([" ".join(SENTENCES)] * copies))[0].digests == prepared.digests


def test_the_end_of_a_single_sentence(tmp_path: Path) -> None:
    prepared, _ = prepare(tmp_path, "The cat finds the key")
    assert texts_of(prepared, prepared.training, "train") == ["the cat finds the"]
    assert texts_of(prepared, prepared.held_out, "eval") == ["key"]
    prepared, _ = prepare(tmp_path, "Word")
    with pytest.raises(UserError, match="no text is held out, because there is too little"):
        from_config.require_held_out(prepared)
