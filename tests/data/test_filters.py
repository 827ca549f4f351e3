"""Filters of a corpus; every document and token is accounted for (P28)."""

from __future__ import annotations

import json
import random
import sys
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prepare_lab import digest, documents, prepare, tokenizer

import bertjax.data.filters as filters_module
import bertjax.data.prepare as prepare_module
from bertjax.config.data import SCRIPTS, FilterConfig
from bertjax.config.overrides import apply_overrides, load_config
from bertjax.data import from_config
from bertjax.data.filters import DocumentFilter, EvaluationText, script_share, shingles
from bertjax.data.sentence_splitter import split_sentences
from bertjax.errors import UserError


def filter_texts(texts: list[str], batch: int = 1000, **settings: object) -> tuple[list[str], dict[str, int]]:
    filter_ = DocumentFilter(FilterConfig(**settings))  # type: ignore[arg-type]
    out = [text for start in range(0, len(texts), batch) for text in filter_.filter(texts[start : start + batch])]
    return out, {name: count for name, count in filter_.num_dropped.items() if count}


@given(st.lists(st.integers(0, 30)), st.integers(1, 7))
def test_the_first_of_equal_texts_stays(numbers: list[int], batch: int) -> None:
    texts = [f"text {number}" for number in numbers]
    result, num_dropped = filter_texts(texts, batch, deduplicate=True)
    assert result == list(dict.fromkeys(texts))
    assert num_dropped.get("duplicates", 0) == len(texts) - len(result)


def test_many_texts_are_remembered_in_few_sorted_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [str(number) for number in range(5000)]
    random.Random(0).shuffle(texts)
    filter_ = DocumentFilter(FilterConfig(deduplicate=True))
    for start in range(0, 5000, 13):
        assert len(filter_.filter(texts[start : start + 13])) == min(13, 5000 - start)
    assert filter_.filter(texts) == []
    runs = filter_._duplicates._runs
    assert len(runs) <= filters_module._MAX_RUNS and sum(map(len, runs)) == 5000


def test_lengths_are_counted_in_characters() -> None:
    texts = ["a", "ab", "图书馆", "abcd", "abcde"]
    assert filter_texts(texts, min_chars=2, max_chars=4) == (texts[1:4], {"too_short": 1, "too_long": 1})


@pytest.mark.parametrize(
    ("text", "scripts", "share"),
    [
        ("abc DEF ñ", ("latin",), 1.0),
        ("\uff41\uff42", ("latin",), 1.0),  # full width
        ("abc где", ("cyrillic",), 0.5),
        ("图书 ひらがな カタカナ", ("han", "hiragana", "katakana"), 1.0),
        ("图书ab", ("han",), 0.5),
        ("한국어 ελληνικά", ("hangul", "greek"), 1.0),
        ("123 ... !", ("latin",), 0.0),
    ],
)
def test_scripts_are_identified_by_their_letters(text: str, scripts: tuple[str, ...], share: float) -> None:
    assert script_share(text, scripts) == pytest.approx(share)


def test_every_script_has_letters() -> None:
    for number, script in enumerate(SCRIPTS):
        assert (filters_module._letter_kinds() == 2 + number).sum() > 25, script


def test_documents_of_other_scripts_go() -> None:
    texts = ["English text.", "Русский текст.", "half пол"]
    assert filter_texts(texts, scripts=("latin",), script_share=0.5) == ([texts[0], texts[2]], {"other_script": 1})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"min_chars": -1}, "at least 0"),
        ({"min_chars": 5, "max_chars": 4}, "leaves no document"),
        ({"max_chars": 0}, "at least 1, not 0"),
        ({"scripts": ("latn",)}, r"must be one of arabic.*not 'latn'"),
        ({"script_share": 0.0}, r"must lie in \(0, 1\], not 0"),
        ({"script_share": 1.5}, r"must lie in \(0, 1\], not 1.5"),
    ],
)
def test_filters_that_make_no_sense(settings: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        FilterConfig(**settings)


def test_every_filter_gives_a_corpus_of_its_own(tmp_path: Path) -> None:
    texts = documents(30) * 2
    settings: list[dict] = [
        {},
        {"deduplicate": True},
        {"min_chars": 40},
        {"max_chars": 200},
        {"scripts": ("latin",)},
        {"scripts": ("latin",), "script_share": 0.9},
    ]
    folders = {prepare(tmp_path, texts, FilterConfig(**each)).folder for each in settings}
    assert len(folders) == len(settings)
    assert prepare(tmp_path, texts, FilterConfig(script_share=0.9)).reused  # text without scripts has none


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_nothing_is_lost_without_being_counted(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """P28: documents in = documents kept + documents dropped; tokens in = tokens of both splits, exactly."""
    pool = [*documents(12), "ab", "Русский текст.", "\u200b", "\ufffd", "the cat. " * 40]
    texts = data.draw(st.lists(st.sampled_from(pool), min_size=1, max_size=40))
    filters = FilterConfig(deduplicate=data.draw(st.booleans()), min_chars=data.draw(st.sampled_from([0, 3])))
    recipe = prepare_module.CorpusRecipe(0.3, filters, max_document_tokens=data.draw(st.sampled_from([8, 1 << 20])))
    try:
        made = prepare(tmp_path_factory.mktemp("cache"), texts, recipe=recipe)
    except UserError as error:
        assert "is empty" in str(error)
        return
    stored, _ = filter_texts(texts, deduplicate=filters.deduplicate, min_chars=filters.min_chars)
    lengths = [sum(map(len, tokenizer().encode_batch(split_sentences(text)))) for text in stored]
    sizes = made.splits.values()
    assert sum(size.tokens for size in sizes) == sum(lengths)
    assert sum(size.dropped_documents for size in sizes) == lengths.count(0)
    assert len(texts) == made.facts["kept"] + sum(
        made.facts[reason] for reason in ("too_short", "too_long", "other_script", "duplicates")
    )
    if recipe.max_document_tokens == 1 << 20:
        assert sum(size.documents for size in sizes) == len(lengths) - lengths.count(0)


def test_the_facts_are_kept_with_the_corpus(tmp_path: Path) -> None:
    texts = [*documents(20), *documents(3), "ab"]
    made = prepare(
        tmp_path, texts, FilterConfig(deduplicate=True, min_chars=3), read_facts=lambda: {"empty": 2, "cut": 0}
    )
    expected = {"empty": 2, "cut": 0, "too_short": 1, "too_long": 0, "other_script": 0, "duplicates": 3, "kept": 20}
    assert made.facts == expected
    assert json.loads((made.folder / "meta.json").read_text())["facts"] == expected
    again = prepare(tmp_path, [], FilterConfig(deduplicate=True, min_chars=3))
    assert again.reused and again.facts == expected
    assert np.load(made.folder / "counts.npy").sum() == made.splits["train"].tokens


def test_a_corpus_of_which_nothing_stays_says_so(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"filters .* leave out all of its 5 documents"):
        prepare(tmp_path, documents(5), FilterConfig(min_chars=10_000))
    assert list(tmp_path.iterdir()) == []


def near(seed: int, changed: int, length: int = 400) -> str:
    """Returns a text of random words, of which so many differ from those of the seed."""
    draw = random.Random(seed)
    words = [f"word{draw.randrange(10_000)}" for _ in range(length)]
    for index in random.Random(changed).sample(range(length), changed):
        words[index] = f"other{index}"
    return " ".join(words)


def similarity(a: str, b: str) -> float:
    first, second = set(shingles(a)), set(shingles(b))
    return len(first & second) / len(first | second)


@pytest.mark.parametrize("threshold", [0.5, 0.7, 0.8, 0.95])
def test_near_duplicates_are_those_above_the_threshold(threshold: float) -> None:
    """Far above it all are found, far below none; the estimate has a standard deviation of at most 0.045."""
    for changed in (1, 3, 6, 10, 20, 40, 80):
        texts = [text for seed in range(12) for text in (near(seed, 0), near(seed, changed))]
        exact = similarity(texts[0], texts[1])
        result, num_dropped = filter_texts(texts, 5, near_duplicates=threshold)
        assert result[0] == texts[0]
        if exact > threshold + 0.15 or (threshold == 0.95 and changed == 1):
            assert num_dropped == {"near_duplicates": 12}
        elif exact < threshold - 0.2:
            assert num_dropped == {}


def test_near_duplicates_ignore_case_punctuation_and_layout() -> None:
    text = near(3, 0)
    texts = [text, text.upper().replace(" ", ",  "), text.title() + "!", "¡!", "¡!", "...", "one", "One.", "two"]
    assert filter_texts(texts, near_duplicates=1.0) == ([text, "¡!", "¡!", "...", "one", "two"], {"near_duplicates": 3})
    han = "自然语言处理是人工智能的一个方向。研究人与计算机之间用自然语言通信的方法。" * 2
    assert filter_texts([han, han.replace("。", "、"), han[::-1]], near_duplicates=0.9)[0] == [han, han[::-1]]


def test_a_dropped_text_is_not_remembered() -> None:
    """A chain of small changes ends where the first text is too far away."""
    words = near(1, 0, 300).split()
    chain = [" ".join(words[start : start + 200]) for start in range(0, 100, 10)]
    result, _ = filter_texts(chain, near_duplicates=0.6)
    assert 2 <= len(result) <= 5 and similarity(chain[0], chain[-1]) < 0.4


def test_near_duplicates_are_counted_in_a_prepared_corpus(tmp_path: Path) -> None:
    """With the same result for any number of workers, and under another name than without the filter."""
    texts = [text for seed in range(30) for text in (near(seed, 0, 60), near(seed, 1, 60))]
    made = [prepare(tmp_path / str(each), texts, FilterConfig(near_duplicates=0.7), workers=each) for each in (1, 2)]
    assert [corpus.facts["near_duplicates"] for corpus in made] == [30, 30]
    assert made[0].folder.name == made[1].folder.name != prepare(tmp_path, texts).folder.name
    assert digest(made[0].folder) == digest(made[1].folder)


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rensa", None)
    with pytest.raises(UserError, match=r"pip install 'bertjax\[dedup\]'"):
        FilterConfig(near_duplicates=0.8)


QUOTE = "Which river did the old teacher find after the garden of the red window in spring?"  # 16 words


def keep_clean(evaluation: list[str], texts: list[str]) -> list[str]:
    return DocumentFilter(FilterConfig(), EvaluationText(evaluation)).filter(texts)


def test_documents_that_quote_evaluation_text_are_dropped() -> None:
    words = QUOTE.split()
    quoting = [
        QUOTE,
        f"Before. {QUOTE.upper()} After.",
        "\n".join(words),
        " ".join(words[:13]) + " and more",
        "x " + " ".join(words[3:]),
    ]
    clean = [" ".join(words[:12]), " ".join(words[4:]), " ".join(words[::-1]), "", "one"]
    assert keep_clean([QUOTE], [*quoting, *clean]) == clean
    filter_ = DocumentFilter(FilterConfig(min_chars=5), EvaluationText([QUOTE]))
    filter_.filter([*quoting, *clean])
    assert filter_.num_dropped["contaminated"] == len(quoting) and filter_.num_dropped["too_short"] == 2


def test_short_evaluation_texts_are_compared_whole_or_ignored() -> None:
    words = QUOTE.split()
    evaluation = EvaluationText([" ".join(words[:8]), " ".join(words[:7]), "", "好" * 8])
    assert (evaluation.num_texts, evaluation.num_ignored) == (4, 2)
    texts = [" ".join(words[:8]) + " x", " ".join(words[:7]) + " x", "前好好好好好好好好后", "好好好好好好好"]
    assert [evaluation.is_quoted_in(text) for text in texts] == [True, False, True, False]


HINDI = "राम दिल्ली में रहता है और बहुत अच्छा गाता है इसलिए सब लोग उसको सुनते हैं"  # 15 words


def test_texts_of_all_scripts_are_compared_by_whole_words() -> None:
    """Vowel signs count, a word is one word, and a text in parts (NFD) is the composed one."""
    words = HINDI.split()
    assert EvaluationText([" ".join(words[:7])]).num_ignored == 1
    other_signs = HINDI.translate(str.maketrans("ािीुे", "ोीिूै"))
    parts = unicodedata.normalize("NFD", "Überall läßt man früh größere Äpfel für ältere Bären übrig, öfter als nötig")
    clean = keep_clean([HINDI, unicodedata.normalize("NFC", parts)], [HINDI, other_signs, parts])
    assert clean == [other_signs]
    texts = [HINDI, other_signs, parts, unicodedata.normalize("NFC", parts)]
    assert filter_texts(texts, near_duplicates=0.9) == ([HINDI, other_signs, parts], {"near_duplicates": 1})


def test_only_the_runs_decide_the_digest() -> None:
    one, same, other = (EvaluationText([text]) for text in (QUOTE, QUOTE.lower() + "\n", QUOTE + " more"))
    assert one.digest == same.digest != other.digest != EvaluationText([]).digest


def test_many_words_are_hashed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filters_module, "_MAX_WORDS", 5)
    assert keep_clean([QUOTE, "other words " * 10], [f"see: {QUOTE}", "clean"]) == ["clean"]


def test_evaluation_text_is_neither_in_the_corpus_nor_in_the_vocabulary(tmp_path: Path) -> None:
    rare = QUOTE.replace("river", "qqqqq")
    texts = documents(60)
    (tmp_path / "text.txt").write_text("\n\n".join([*texts, *[f"Before. {rare} After."] * 30]))
    (tmp_path / "test.jsonl").write_text(json.dumps({"question": rare}) + "\n" + json.dumps({"question": "short"}))
    settings_ = {
        "data.sources": f"text:{tmp_path / 'text.txt'}",
        "data.cache_dir": tmp_path / "cache",
        "data.vocab_size": 150,
        "data.eval_fraction": 0.1,
        "data.decontaminate": f"jsonl:{tmp_path / 'test.jsonl'}#question",
    }

    def prepare_with(**changes: str) -> tuple[from_config.Prepared, list[str]]:
        lines: list[str] = []
        arguments = [f"--config.{key}={value}" for key, value in (settings_ | changes).items()]
        return from_config.prepare(apply_overrides(load_config("bert:smoke"), arguments), lines.append), lines

    prepared, lines = prepare_with()
    (corpus,) = prepared.training.values()
    assert corpus.facts["contaminated"] == 30 and not any("q" in token for token in prepared.tokenizer.tokens)
    assert "  30 documents left out, which quote evaluation text (data.decontaminate)" in lines
    assert "  1 of 2 evaluation texts ignored: less than 8 words" in lines
    unfiltered, _ = prepare_with(**{"data.decontaminate": ""})
    assert unfiltered.digests != prepared.digests and any("q" in token for token in unfiltered.tokenizer.tokens)
    (tmp_path / "test.jsonl").write_text(json.dumps({"question": "another question " * 8}))
    changed, _ = prepare_with()
    assert changed.digests not in (prepared.digests, unfiltered.digests)
