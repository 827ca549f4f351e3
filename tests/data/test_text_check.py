"""What `prepare` says about text: unknown tokens by script, deleted marks, and pairs that teach nothing."""
# ruff: noqa: SIM905 - word lists read better as words

from __future__ import annotations

import json
import random
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from prepare_lab import prepare as prepare_texts

from bertjax.config.overrides import apply_overrides, load_config
from bertjax.data import from_config
from bertjax.data.corpus_report import corpus_warnings, dropped_document_lines
from bertjax.data.tokenizer import Tokenizer
from bertjax.data.tokenizer_backends import HuggingFaceBackend
from bertjax.data.tokenizer_training import train_tokenizer

KOREAN = "한국어 텍스트는 모든 사람에게 중요한 언어 자료이다".split()
HINDI = "राम दिल्ली में रहता है हिंदी भाषा किताब पढ़ता अच्छा लड़का घर जाता".split()


def written(words: list[str], count: int, end: str = "।") -> list[str]:
    draw = random.Random(0)
    return [" ".join(draw.choices(words, k=8)) + end for _ in range(count)]


def as_foreign(tokenizer: Tokenizer) -> Tokenizer:
    """Returns a tokenizer that does not compose text, as most of the published ones."""
    content = json.loads(tokenizer.engine.to_str())
    content["normalizer"] = content["normalizer"]["normalizers"][1]
    return Tokenizer(HuggingFaceBackend(json.dumps(content)), tokenizer.family, tokenizer.lowercase)


def test_unknown_tokens_are_counted_by_script(tmp_path: Path) -> None:
    """All of them, in a corpus of any number of parts, of which a killed process may have made some."""
    texts = [f"the cat sat {text}" for text in written(KOREAN, 60, " 🙂.")]
    tokenizer = as_foreign(train_tokenizer(texts, model="wordpiece", family="bert", vocab_size=200, lowercase=False))
    parts = [unicodedata.normalize("NFD", text) for text in texts]
    made = prepare_texts(tmp_path, parts, tokenizer=tokenizer)
    ids = np.concatenate(tokenizer.encode_batch(parts))
    assert made.unknown == np.count_nonzero(ids == tokenizer.unk_id) == sum(made.check.unknown.values())
    assert made.check.unknown == {"hangul": 60 * 8}
    line = dropped_document_lines(made, tokenizer)[-1]
    assert line.startswith(f"warning: 480 unknown tokens, {480 / len(ids):.2%} of all: hangul 100%, such as '")
    assert (
        "in parts (NFD)" in line
        and dropped_document_lines(prepare_texts(tmp_path, [], tokenizer=tokenizer), tokenizer)[-1] == line
    )
    composed = prepare_texts(tmp_path, texts, tokenizer=tokenizer, source_digest="composed")
    assert (composed.unknown, dropped_document_lines(composed, tokenizer)) == (0, [])
    few = prepare_texts(tmp_path, [*texts, "Ж ☃"], tokenizer=tokenizer, source_digest="few")
    (line,) = dropped_document_lines(few, tokenizer)
    assert line.startswith("2 unknown tokens, 0.") and "cyrillic 50%, such as 'Ж'; other characters 50%" in line
    counts = few._replace(unknown=None)  # of an earlier release
    assert "unknown tokens, 0." in dropped_document_lines(counts, tokenizer)[0]


@pytest.mark.parametrize("model", ["wordpiece", "wordlevel"])
def test_marks_that_uncased_rules_delete_are_named(tmp_path: Path, model: str) -> None:
    texts = written(HINDI, 40)
    for lowercase, count in ((True, 1), (False, 0)):
        tokenizer = train_tokenizer(texts, model=model, family="bert", vocab_size=200, lowercase=lowercase)
        lines = dropped_document_lines(prepare_texts(tmp_path, texts, tokenizer=tokenizer), tokenizer)
        assert len(lines) == count
        if count:
            assert "delete 2" in lines[0] and "mostly devanagari; data.lowercase=false keeps them" in lines[0]
    accents = ["Übung naïve résumé señor Ångström Đặng"] * 100  # what the rules are for
    tokenizer = train_tokenizer(accents, model=model, family="bert", vocab_size=200, lowercase=True)
    assert (
        dropped_document_lines(
            prepare_texts(tmp_path, accents, tokenizer=tokenizer, source_digest="accents"), tokenizer
        )
        == []
    )


def warnings(folder: Path, text: str, **data: object) -> str:
    (folder / "text.txt").write_text(text)
    settings = {
        **{"sources": f"text:{folder}/text.txt", "eval_sources": f"text:{folder}/text.txt", "cache_dir": folder},
        **{"vocab_size": 200, "lowercase": False, "seq_len": 64, "example_format": "nsp_pairs", **data},
    }
    cfg = apply_overrides(
        load_config("bert:smoke"), [f"--config.data.{key}={value}" for key, value in settings.items()]
    )
    prepared = from_config.prepare(cfg, lambda _: None)
    return "\n".join(corpus_warnings(cfg.data, from_config.training_pipeline(cfg, prepared), prepared.training))


def test_pairs_that_teach_nothing_are_named(tmp_path: Path) -> None:
    """Sentences of Hindi are found; documents of one, and text of one document, are not pairs."""
    sentences = written(HINDI, 240)
    stories = "\n\n".join(" ".join(sentences[start : start + 6]) for start in range(0, 240, 6))
    assert warnings(tmp_path, stories) == ""
    single = warnings(tmp_path, "\n\n".join(sentences))
    assert "100% of the pairs have the same label, 1" in single and "nearly all documents are one sentence" in single
    assert "nearly all documents are one sentence" in warnings(tmp_path, "\n\n".join(sentences), shard_tokens=100)
    assert warnings(tmp_path, "\n\n".join(sentences), example_format="full_sentences") == ""
    one = warnings(tmp_path, "\n".join(sentences))
    assert "the text is one document" in one and "label" not in one
