"""Tokenizers of every family: training, special tokens, encoding, files, and agreement with transformers."""
# ruff: noqa: RUF001 - Chinese punctuation is intended

from __future__ import annotations

import functools
import json
import os
import random
import subprocess
import sys
import time
import unicodedata
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import pytest

from bertjax.config.data import FIXED_VOCABULARIES
from bertjax.data import foreign_tokenizer
from bertjax.data.builtin import clean_paragraphs
from bertjax.data.special_tokens import FAMILIES
from bertjax.data.tokenizer import Tokenizer
from bertjax.data.tokenizer_io import load_tokenizer, save_huggingface_tokenizer, save_tokenizer
from bertjax.data.tokenizer_training import sample_documents, train_tokenizer
from bertjax.errors import UserError

CHINESE = ["我们今天去北京大学学习。", "北京大学的学生今天学习中文。", "今天的天气很好，我们去学习中文！"]
TEXTS = [
    *CHINESE,
    "The assertion is tested, when the class is made.",
    "Naïve café, ﬁne: 3.14 and  two   spaces.",
    "mixed 北京 and English\tin one line",
    "\x00 control \u200b characters\x07 here",
    "unknown 🙂 signs Ж",
    "",
    " ",
    "x" * 150 + " long",
]
# every family with its own model, and mixtures of them
PAIRS = [(name, spec.model) for name, spec in FAMILIES.items() if spec.model not in FIXED_VOCABULARIES] + [
    ("bert", "bpe"),
    ("bert", "unigram"),
    ("albert", "wordpiece"),
    ("roberta", "unigram"),
    ("modernbert", "wordpiece"),
    ("xlm-roberta", "sentencepiece_bpe"),
    ("bert", "wordlevel"),
    ("roberta", "char"),
]
KINDS = {"sentencepiece_bpe": "bpe", "char": "wordlevel"}  # kinds that are trained under another name


@functools.cache
def corpus() -> tuple[str, ...]:
    names = sorted(topics)[:25]
    return (*("\n".join(clean_paragraphs(topics[name])) for name in names), *(CHINESE * 4))


@functools.cache
def trained(family: str, model: str, vocab_size: int = 400) -> Tokenizer:
    return train_tokenizer(corpus(), model=model, family=family, vocab_size=vocab_size)


def tokens_of(tokenizer: Tokenizer, text: str) -> list[str]:
    return [tokenizer.tokens[i] for i in tokenizer.encode_batch([text])[0]]


@pytest.mark.parametrize(("family", "model"), PAIRS)
def test_special_tokens_have_the_ids_of_the_family(family: str, model: str) -> None:
    tokenizer, spec = trained(family, model), FAMILIES[family]
    assert tokenizer.size == len(tokenizer.tokens) == (116 if model == "char" else 400)
    assert tuple(tokenizer.tokens[: len(spec.first)]) == spec.first
    if spec.last:
        assert tuple(tokenizer.tokens[-len(spec.last) :]) == spec.last
    assert sorted(tokenizer.tokens[i] for i in tokenizer.special_ids) == sorted(spec.special)
    for role in ("pad", "unk", "cls", "sep", "mask"):
        index = getattr(tokenizer, f"{role}_id")
        assert (tokenizer.tokens[index] if index >= 0 else None) == spec.roles.get(role)


def test_the_published_numbers() -> None:
    def ids(family: str) -> tuple[int, ...]:
        t = trained(family, FAMILIES[family].model)
        return t.pad_id, t.unk_id, t.cls_id, t.sep_id, t.mask_id

    assert ids("bert") == ids("electra") == ids("distilbert") == ids("spanbert") == (0, 1, 2, 3, 4)
    assert ids("roberta") == (1, 3, 0, 2, 399)
    assert ids("albert") == (0, 1, 2, 3, 4)
    assert ids("deberta") == ids("deberta-v2") == ids("deberta-v3") == (0, 3, 1, 2, 399)
    assert ids("xlnet") == (5, 0, 3, 4, 6)
    assert ids("modernbert") == (398, 395, 396, 397, 399)
    assert ids("gpt2") == (399, 399, 399, 399, -1)


@pytest.mark.parametrize(("family", "model"), PAIRS)
def test_special_strings_in_raw_text_are_text(family: str, model: str) -> None:
    tokenizer = trained(family, model)
    text = "a [MASK] b <mask> c [CLS]</s><s><pad>[PAD]<sep><cls><|endoftext|> d"
    result = tokenizer.encode_batch([text])[0]
    assert not set(result.tolist()) & (set(tokenizer.special_ids) - {tokenizer.unk_id})
    assert result.dtype == np.int32 and len(result) > (6 if model == "wordlevel" else 20)


@pytest.mark.parametrize(("family", "model"), PAIRS)
def test_marked_text_keeps_its_mask(family: str, model: str) -> None:
    tokenizer = trained(family, model)
    if tokenizer.mask_id < 0:
        return
    mask = tokenizer.tokens[tokenizer.mask_id]
    ids = tokenizer.encode_with_specials(f"the {mask} is made")
    assert ids.count(tokenizer.mask_id) == ids.count(tokenizer.cls_id) == ids.count(tokenizer.sep_id) == 1
    assert ids[-1 if family == "xlnet" else 0] == tokenizer.cls_id
    plain = [i for i in ids if i not in tokenizer.special_ids]
    spaces = "  " if model == "char" else " "  # elsewhere the space before it belongs to the mask
    assert plain == tokenizer.encode_batch([f"the{spaces}is made"])[0].tolist()
    assert "made" in tokenizer.decode(ids) and mask in tokenizer.decode(ids)


def test_wordpiece_is_berts() -> None:
    uncased = trained("bert", "wordpiece")
    assert tokens_of(uncased, "北京学生")[:2] == ["北", "京"]
    assert all(len(token) == 1 for token in tokens_of(uncased, CHINESE[0]))
    assert tokens_of(uncased, "THÉ the") == ["the", "the"]
    assert tokens_of(uncased, "x" * 101) == ["[UNK]"] and "[UNK]" not in tokens_of(uncased, "x" * 100)
    assert tokens_of(uncased, "a\x00b\u00adc") == tokens_of(uncased, "abc")
    cased = train_tokenizer(corpus(), model="wordpiece", family="bert", vocab_size=400, lowercase=False)
    assert tokens_of(cased, "The the")[0] != tokens_of(cased, "The the")[-1]
    assert not any("\u4e00" <= c <= "\u9fff" and len(token) > 1 for token in uncased.tokens for c in token)


def test_rare_characters_do_not_crowd_out_words() -> None:
    strange = "".join(chr(0x4E00 + i) for i in range(3000))
    tokenizer = train_tokenizer([*corpus(), strange], model="wordpiece", family="bert", vocab_size=400)
    assert tokenizer.size == 400
    assert sum(len(token.removeprefix("##")) > 1 for token in tokenizer.tokens) > 150


def test_chinese_characters_are_words_of_a_small_vocabulary(caplog: pytest.LogCaptureFixture) -> None:
    rng = np.random.default_rng(0)
    shares = 1 / np.arange(1, 601)
    drawn = rng.choice(600, 60_000, p=shares / shares.sum())
    text = "".join(chr(0x4E00 + character) for character in drawn)
    documents = [text[start : start + 500] for start in range(0, len(text), 500)]
    tokenizer = train_tokenizer(documents, model="wordpiece", family="bert", vocab_size=700)
    assert tokenizer.unk_id not in np.concatenate(tokenizer.encode_batch(documents))
    assert not caplog.messages
    small = train_tokenizer(documents, model="wordpiece", family="bert", vocab_size=400)
    unknown = np.mean(np.concatenate(small.encode_batch(documents)) == small.unk_id)
    assert 0.02 < unknown < 0.08 and small.size == 400
    assert f"{100 * unknown:.1f} % of the characters" in caplog.messages[0]


def test_byte_bpe_says_everything() -> None:
    tokenizer = trained("roberta", "bpe")
    for text in TEXTS:
        result = tokenizer.encode_batch([text])[0]
        assert tokenizer.unk_id not in result
        assert tokenizer.decode(result).strip() == text.strip()
    assert tokens_of(tokenizer, "the class") == tokens_of(
        tokenizer, " the class"
    )  # the start of a sentence is not special


def test_starts_word() -> None:
    expected = {
        ("bert", "wordpiece"): {"[MASK]": True, "##s": False, "the": True, ",": True, "北": True},
        ("roberta", "bpe"): {"<mask>": True, "Ġthe": True, "ing": False, ",": False, "Ċ": True},
        ("albert", "unigram"): {"[MASK]": True, "▁the": True, "ing": False, ",": True, "北京": True, "3": True},
        ("xlnet", "unigram"): {"<eod>": True, "▁the": True, "ing": False, ",": True, "北京": True},
    }
    for (family, model), cases in expected.items():
        tokenizer = trained(family, model)
        starts = tokenizer.starts_word()
        assert starts.dtype == bool and starts.shape == (tokenizer.size,)
        present = {token: starts[tokenizer.tokens.index(token)] for token in cases if token in tokenizer.tokens}
        assert len(present) > len(cases) - 2
        assert present == {token: reference for token, reference in cases.items() if token in present}


@pytest.mark.parametrize(("family", "model"), [("bert", "wordpiece"), ("roberta", "bpe"), ("deberta-v2", "unigram")])
def test_word_starts_count_the_words(family: str, model: str) -> None:
    tokenizer = trained(family, model)
    ids = tokenizer.encode_batch(["the assertion makes several classes"])[0]
    assert tokenizer.starts_word()[ids].sum() == 5


def test_byte_bpe_finds_chinese_words() -> None:
    words = ["北京大学", "学生", "今天", "天气", "学习中文"]
    texts = ["".join(words[(i * k + k) % 5] for k in range(4)) for i in range(5) for _ in range(5)]
    tokenizer = train_tokenizer(texts, model="bpe", family="roberta", vocab_size=300)
    starts = {tokenizer.decode([i]): start for i, start in enumerate(tokenizer.starts_word())}
    assert starts["学"] and not starts["a"]
    assert sum(len(text) > 1 and text[0] in "北京大学生今天气习中文" and start for text, start in starts.items()) > 2


def test_vocabulary() -> None:
    tokenizer = trained("bert", "wordpiece")
    counts = np.arange(tokenizer.size)
    vocabulary = tokenizer.vocabulary(counts, multiple=64)
    assert (vocabulary.size, vocabulary.padded_size) == (400, 448)
    assert vocabulary.mask_id == 4 and vocabulary.special_ids == (0, 1, 2, 3, 4)
    assert vocabulary.counts.dtype == np.int64 and (vocabulary.counts == counts).all()
    assert tokenizer.vocabulary().counts.sum() == 0


TRAIN = """
import sys; sys.path.insert(0, {folder!r})
import test_tokenizer as t
for family, model in (("bert", "wordpiece"), ("roberta", "bpe"), ("albert", "unigram"), ("deberta-v2", "unigram")):
    print(t.train_tokenizer(t.corpus(), model=model, family=family, vocab_size=500).digest)
"""


@pytest.mark.long
def test_same_bytes_on_any_number_of_threads() -> None:
    outputs = set()
    for threads in ("1", "2", "3"):
        run = subprocess.run(
            [sys.executable, "-c", TRAIN.format(folder=str(Path(__file__).parent))],
            env={**os.environ, "RAYON_NUM_THREADS": threads, "PYTHONHASHSEED": threads},
            check=True,
            capture_output=True,
            text=True,
        )
        outputs.add(run.stdout)
    assert len(outputs) == 1 and len(set(outputs.pop().split())) == 4


def test_order_of_documents_does_not_matter_for_wordpiece() -> None:
    backwards = train_tokenizer(corpus()[::-1], model="wordpiece", family="bert", vocab_size=400)
    assert backwards.digest == trained("bert", "wordpiece").digest


def test_a_large_corpus_is_sampled_by_content() -> None:
    texts = [f"document {i} " + "x" * (i % 7) for i in range(500)]
    total = sum(map(len, texts))
    assert sample_documents(iter(texts), total, 0) == texts
    some = sample_documents(iter(texts), total // 3, 0)
    assert total // 8 < sum(map(len, some)) <= total // 3
    assert sorted(sample_documents(reversed(texts), total // 3, 0)) == sorted(some)
    assert sample_documents(iter(texts), total // 3, 1) != some
    assert len(sample_documents(["a" * 99, "b" * 99], 10, 0)) == 1


def test_small_corpora() -> None:
    for family, model in (("bert", "wordpiece"), ("albert", "unigram"), ("deberta-v2", "unigram"), ("gpt2", "bpe")):
        tokenizer = train_tokenizer(CHINESE + ["the cat and the hat"] * 3, model=model, family=family, vocab_size=2000)
        assert 20 < tokenizer.size < 400
        assert len(tokenizer.encode_batch(["the cat"])[0]) > 0
    for model, family, size in (("wordpiece", "bert", 20), ("bpe", "roberta", 200), ("unigram", "albert", 20)):
        with pytest.raises(UserError, match=rf"data.vocab_size {size} is too small.* need about \d+"):
            train_tokenizer(corpus(), model=model, family=family, vocab_size=size)
    for model in ("wordpiece", "bpe", "unigram"):
        with pytest.raises(UserError, match="no text"):
            train_tokenizer(["", " \n"], model=model, family="bert", vocab_size=400)
    with pytest.raises(UserError, match="wordlevel, char, protein, dna, kmers, not 'word'"):
        train_tokenizer(corpus(), model="word", family="bert", vocab_size=400)
    with pytest.raises(UserError, match="family must be one of bert"):
        train_tokenizer(corpus(), model="bpe", family="bart", vocab_size=400)


def test_long_lines_count_for_unigram() -> None:
    long = " ".join(["extraordinary"] * 3000)  # one line of 42,000 characters
    tokenizer = train_tokenizer([*corpus(), long], model="unigram", family="albert", vocab_size=400)
    assert "▁extraordinary" in tokenizer.tokens
    chinese = train_tokenizer(["图书馆里" * 3000], model="unigram", family="albert", vocab_size=400)
    assert chinese.unk_id not in chinese.encode_batch(["图书馆里"])[0]  # three bytes per character


@pytest.mark.parametrize(("family", "model"), PAIRS)
def test_save_and_load(tmp_path: Path, family: str, model: str) -> None:
    tokenizer = trained(family, model)
    save_tokenizer(tokenizer, tmp_path / "deep" / "tok")
    save_tokenizer(tokenizer, tmp_path / "deep" / "tok")  # again, over the old one
    loaded = load_tokenizer(tmp_path / "deep" / "tok")
    assert (loaded.digest, loaded.family, loaded.kind) == (tokenizer.digest, family, KINDS.get(model, model))
    assert loaded.lowercase == tokenizer.lowercase and loaded.tokens == tokenizer.tokens
    for ours, theirs in zip(tokenizer.encode_batch(TEXTS), loaded.encode_batch(TEXTS), strict=True):
        assert ours.tolist() == theirs.tolist()
    assert {p.name for p in (tmp_path / "deep").iterdir()} == {"tok"}  # no temporary folder remains


def test_digests_differ() -> None:
    digests = {trained(family, model).digest for family, model in PAIRS}
    assert len(digests) == len(PAIRS)


@pytest.mark.parametrize(("family", "model"), PAIRS)
def test_transformers_agrees(tmp_path: Path, family: str, model: str) -> None:
    from transformers import AutoTokenizer

    tokenizer, spec = trained(family, model), FAMILIES[family]
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "model.safetensors").write_text("stays")
    save_huggingface_tokenizer(tokenizer, tmp_path / "out", max_length=128)
    theirs = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert len(theirs) == theirs.vocab_size == tokenizer.size
    assert theirs.model_max_length == 128 and theirs.padding_side == spec.padding_side
    for role in ("pad", "unk", "cls", "sep", "mask"):
        index = getattr(theirs, f"{role}_token_id")
        assert (-1 if index is None else index) == getattr(tokenizer, f"{role}_id")
    lines = [*TEXTS, *corpus()[0].split("\n")]
    for text, ids in zip(lines, tokenizer.encode_batch(lines), strict=True):
        assert theirs(text, add_special_tokens=False)["input_ids"] == ids.tolist(), text
    marked = f"The {theirs.mask_token or 'class'} is made."
    assert theirs(marked)["input_ids"] == tokenizer.encode_with_specials(marked)
    assert ("token_type_ids" in theirs("a", "b")) == spec.token_types
    padded = theirs(["the", "the class is"], padding=True)
    assert len({len(ids) for ids in padded["input_ids"]}) == 1
    again = load_tokenizer(tmp_path / "out")
    assert (again.family, again.kind, again.lowercase) == (family, tokenizer.kind, tokenizer.lowercase)
    assert [x.tolist() for x in again.encode_batch(lines)] == [x.tolist() for x in tokenizer.encode_batch(lines)]
    assert (tmp_path / "out" / "model.safetensors").read_text() == "stays"


def test_wordpiece_with_other_rules_keeps_them(tmp_path: Path) -> None:
    """`BertTokenizer` of transformers would apply BERT's rules."""
    from transformers import AutoTokenizer

    berts = trained("bert", "wordpiece")
    content = json.loads(berts.engine.to_str())
    content["normalizer"] = {"type": "NFC"}
    content["pre_tokenizer"] = {"type": "WhitespaceSplit"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    tokenizer = load_tokenizer(tmp_path / "tokenizer.json")
    save_huggingface_tokenizer(tokenizer, tmp_path / "out", 64)
    ids = tokenizer.encode_batch(["THE class, is."])[0].tolist()
    assert (
        AutoTokenizer.from_pretrained(tmp_path / "out")("THE class, is.", add_special_tokens=False)["input_ids"] == ids
    )
    assert ids != berts.encode_batch(["THE class, is."])[0].tolist()


def test_pairs_have_bert_types(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = trained("bert", "wordpiece")
    save_huggingface_tokenizer(tokenizer, tmp_path, 64)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert", "vocab_size": 400}))
    result = AutoTokenizer.from_pretrained(tmp_path)("the", "is")
    assert result["token_type_ids"] == [0, 0, 0, 1, 1]
    assert [tokenizer.tokens[i] for i in result["input_ids"]] == ["[CLS]", "the", "[SEP]", "is", "[SEP]"]


def test_single_files_load(tmp_path: Path) -> None:
    bert = trained("bert", "wordpiece")
    save_huggingface_tokenizer(bert, tmp_path / "b", 64)
    assert load_tokenizer(tmp_path / "b/tokenizer.json").digest == bert.digest
    for name in ("tokenizer.json", "special_tokens_map.json"):
        (tmp_path / "b" / name).unlink()
    for folder in (tmp_path / "b/vocab.txt", tmp_path / "b"):
        assert load_tokenizer(folder).encode_flat(TEXTS)[1].tolist() == bert.encode_flat(TEXTS)[1].tolist()
    electra = load_tokenizer(tmp_path / "b/vocab.txt", family="electra", lowercase=False)
    assert (electra.family, electra.lowercase) == ("electra", False)


def test_errors_are_one_line(tmp_path: Path) -> None:
    good = trained("bert", "wordpiece")
    save_huggingface_tokenizer(good, tmp_path / "good", 64)
    content = json.loads((tmp_path / "good/tokenizer.json").read_text())
    vocabulary = content["model"]["vocab"]
    names = list(vocabulary)

    def vocab(lines: list[str]) -> bytes:
        return ("\n".join(lines) + "\n").encode()

    holes = {token: index if index < 399 else 90_000 for token, index in vocabulary.items()}
    shared = {token: index - (index == 70) for token, index in vocabulary.items()}
    added = [{**content["added_tokens"][0], "id": 77, "content": "<ent>"}]
    cases: dict[str, tuple[bytes, str]] = {
        "a/vocab.txt": (
            vocab(names),
            r"transformers cannot read vocab\.txt .*name its tokenizer_class in tokenizer_config",
        ),
        "f/tokenizer.json": (b'{"model": ', "broken JSON"),
        "g/tokenizer.json": (b"[]", "a JSON object is expected"),
        "h/tokenizer.json": (b'{"model": {"type": "Word"}}', "no WordPiece, BPE, Unigram, WordLevel model"),
        "i/tokenizer.json": (b'{"model": {"type": "BPE"}}', "broken tokenizer"),
        "j/tokenizer.json": (
            json.dumps({**content, "model": {**content["model"], "vocab": holes}}).encode(),
            r"has id 90000, but there are only 400 tokens",
        ),
        "n/tokenizer.json": (
            json.dumps({**content, "model": {**content["model"], "vocab": shared}}).encode(),
            r"have one id, 69; remove one",
        ),
        "o/tokenizer.json": (
            json.dumps({**content, "added_tokens": [*content["added_tokens"], *added]}).encode(),
            r"o/tokenizer\.json: '<ent>' has id 77, which is that of",
        ),
        "k/spiece.model": (b"nonsense", r"transformers cannot read spiece\.model"),
        "l/bertjax_tokenizer.json": (b"{}", "not of this version"),
        "m/readme.md": (b"", "holds no tokenizer"),
    }
    for name, (written, message) in cases.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(written)
        with pytest.raises(UserError, match=message) as caught:
            load_tokenizer((tmp_path / name).parent)
        assert "\n" not in str(caught.value), name
    with pytest.raises(UserError, match="no such tokenizer"):
        load_tokenizer(tmp_path / "nowhere")
    with pytest.raises(UserError, match="must be one of bert"):
        load_tokenizer(tmp_path / "good", family="bart")
    with pytest.raises(UserError, match="the family roberta needs the special tokens </s>, <mask>"):
        load_tokenizer(tmp_path / "good", family="roberta")
    with pytest.raises(UserError, match="is a file; name a folder"):
        save_tokenizer(good, tmp_path / "good/vocab.txt")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(x+x+)+y"}, "behavior": "Isolated",
                            "invert": False}}, "Regex"),
        ({"normalizer": {"type": "Replace", "pattern": {"Regex": "(a|aa)+$"}, "content": ""}}, "Regex"),
        ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}}, "precompiled_charsmap"),
        ({"post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x", "type_id": 0}}],
                             "pair": [], "special_tokens": {}}}, "no entry found"),
    ],
    ids=["regex", "regex of the normalizer", "table", "template"],
)  # fmt: skip
def test_rules_that_panic_are_refused(tmp_path: Path, capfd: Any, changes: dict[str, Any], message: str) -> None:
    content = json.loads(trained("roberta", "bpe").engine.to_str()) | changes
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=rf"tokenizer\.json: broken tokenizer \(.*{message}") as error:
        load_tokenizer(tmp_path)
    assert "\n" not in str(error.value) and not capfd.readouterr().err


@pytest.mark.long
def test_rules_that_take_too_long_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They read an added token for hours when the library builds the tokenizer, and no other thread runs meanwhile."""
    monkeypatch.setattr(foreign_tokenizer, "_SECONDS", 3.0)
    content = json.loads(trained("roberta", "bpe").engine.to_str())
    added = {**content["added_tokens"][0], "id": 400, "content": "a" * 400, "normalized": True, "special": False}
    content["added_tokens"].append(added)
    content["normalizer"] = {"type": "Replace", "pattern": {"Regex": "(a|aa){22}b"}, "content": ""}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"tokenizer\.json: its rules need more than 3 s for a line of text"):
        load_tokenizer(tmp_path)


MODELS = [("bert", "wordpiece"), ("roberta", "bpe"), ("albert", "unigram"), ("xlm-roberta", "sentencepiece_bpe")]


@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize(("family", "model"), [*MODELS, ("bert", "wordlevel"), ("bert", "char")])
def test_text_in_parts_has_the_ids_of_composed_text(tmp_path: Path, family: str, model: str, lowercase: bool) -> None:
    """Here, in a stored folder and in transformers: Korean of a Mac, accents, signs of Hindi and kana."""
    from transformers import AutoTokenizer

    words = ["한국어", "텍스트는", "Übung", "naïve", "tiếng", "Việt", "Ångström", "हिंदी", "क़लम", "がっこう", "ガッコウ"]
    texts = [" ".join(words[start:] + words[:start]) for start in range(len(words))] * 9
    tokenizer = train_tokenizer(texts, model=model, family=family, vocab_size=330, lowercase=lowercase)
    composed = [ids.tolist() for ids in tokenizer.encode_batch(words)]
    assert [ids.tolist() for ids in tokenizer.encode_batch([nfd(word) for word in words])] == composed
    assert not any(tokenizer.unk_id in ids for ids in composed)
    if model == "unigram":
        assert tokens_of(tokenizer, "ｶﾞｯｺｳ") == tokens_of(tokenizer, "ガッコウ")
    if lowercase:
        return
    save_tokenizer(tokenizer, tmp_path / "ours")
    stored = load_tokenizer(tmp_path / "ours").encode_flat([nfd(texts[0])])[1]
    assert stored.tolist() == tokenizer.encode_flat([texts[0]])[1].tolist()
    save_huggingface_tokenizer(tokenizer, tmp_path / "theirs", 64)
    theirs = AutoTokenizer.from_pretrained(tmp_path / "theirs")
    for text in (texts[0], nfd(texts[0])):
        assert theirs(text, add_special_tokens=False)["input_ids"] == tokenizer.encode_batch([texts[0]])[0].tolist()


def nfd(text: str) -> str:
    return unicodedata.normalize("NFD", text)


@pytest.mark.parametrize(("family", "model", "length"), [("bert", "wordpiece", 60_000), ("roberta", "bpe", 60_000)])
def test_endless_words_are_not_trained_on(family: str, model: str, length: int) -> None:
    """The library takes the square of their length; the words next to them count."""
    letters = random.Random(0).choices("abcdefgh", k=length)
    texts = ["the novelty of the novel"] * 5
    endless = [*texts[1:], f"the {''.join(letters)}, novelty of (the novel)"]
    start = time.perf_counter()
    tokenizer = train_tokenizer(endless, model=model, family=family, vocab_size=300)
    assert time.perf_counter() - start < 4
    assert tokens_of(tokenizer, "novelty") == tokens_of(
        train_tokenizer([*texts, "(,)abcdefgh"], model=model, family=family, vocab_size=300), "novelty"
    )


def test_our_folder_without_its_model(tmp_path: Path) -> None:
    save_tokenizer(trained("albert", "unigram"), tmp_path)
    (tmp_path / "spiece.model").unlink()
    with pytest.raises(UserError, match="its model file is gone"):
        load_tokenizer(tmp_path)


def test_code_in_a_folder_is_never_run(tmp_path: Path) -> None:
    save_huggingface_tokenizer(trained("bert", "wordpiece"), tmp_path, 64)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    config["auto_map"] = {"AutoTokenizer": ["evil.Tokenizer", None]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    assert load_tokenizer(tmp_path).size == 400
    assert not (tmp_path / "ran").exists()


def test_a_list_of_texts_of_any_kind() -> None:
    for family, model in (("bert", "wordpiece"), ("roberta", "bpe"), ("albert", "unigram")):
        tokenizer = trained(family, model)
        assert tokenizer.encode_batch([]) == []
        result = tokenizer.encode_batch(["", "the", ""])
        assert [len(ids) for ids in result] == [0, 1, 0]
        assert all(ids.dtype == np.int32 and ids.ndim == 1 for ids in result)
        many = tokenizer.encode_batch(TEXTS * 50)
        assert [x.tolist() for x in many] == [x.tolist() for x in tokenizer.encode_batch(TEXTS)] * 50
