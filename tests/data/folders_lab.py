"""Folders of tokenizers as published ones are laid out, at toy size, and lines in ten scripts."""

from __future__ import annotations

import functools
import io
import itertools
import json
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import sentencepiece
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

SCRIPTS = {
    "Latin": "abcdefghilmnoprstuvyzäéñøßœİ",
    "Greek": "αβγδεζηθικλμνξοπρστυφχψωάέΣ",
    "Cyrillic": "абвгдежзийклмнопрстуфхцчшыэюяЙЁ",
    "Hebrew": "אבגדהוזחטיכלמנסעפצקרשתְַָ",
    "Arabic": "ابتثجحدرسشصعغفقكلمنهويَُّ",
    "Devanagari": "अआइकखगघचजटडतदनपबमयरलवशसहािीुेो्ं",
    "Thai": "กขคงจชซดตถทนบปผพมยรลวสหอะาิีุู่้",
    "Han": "中国人大学生今天北京我们去图书馆的是在有和",
    "Kana": "あいうえおかきくけこさしすせそガギグゲパピプﾊﾞｱ",
    "Hangul": "가나다라마바사아자차카타파하한국어말",
}
"""Ten scripts, with marks, capital letters that fold oddly, and half-width kana."""
_MARKS = [
    "",
    "",
    ".",
    ",",
    "!",
    "。",
    "؟",
    "।",
    " - ",
    "'s",
    "  ",
    " (1,000)",
    "\u00a0",
    "\u3000",
    "🙂",
    "\u200d",
    "e\u0301",
    "ﬁ",
]


@functools.cache
def lines(number: int = 200) -> tuple[str, ...]:
    """Returns lines of random words, twenty lines of each script, some of them mixed, capital or oddly spaced."""
    rng = random.Random(7)
    result = []
    for script in itertools.islice(itertools.cycle(SCRIPTS), number):
        others = [script, script, script, "Latin", rng.choice(list(SCRIPTS))]
        words = []
        for _ in range(rng.randint(1, 12)):
            word = "".join(rng.choices(SCRIPTS[rng.choice(others)], k=rng.randint(1, 8)))
            change = rng.choice([str, str, str.upper, str.title])
            words.append(change(word) + rng.choice(_MARKS))
        space = rng.choice([" ", " ", " ", "  ", "\t"])
        result.append(rng.choice(["", "", " "]) + space.join(words) + rng.choice(["", "", " ", "\n"]))
    return tuple(result)


def _text() -> list[str]:
    return [line.strip() for line in lines(400)] + ["the cat and the dog sit on the mat in the house"] * 20


@functools.cache
def wordpiece(cased: bool = True) -> tuple[str, ...]:
    """Returns the words of a WordPiece vocabulary, without special tokens."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=not cased)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.train_from_iterator(_text(), trainers.WordPieceTrainer(vocab_size=900, show_progress=False))
    return tuple(sorted(tokenizer.get_vocab()))


@functools.cache
def bpe(ends_words: bool = False) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns tokens and merges of byte-level BPE; or of BPE of characters, where `</w>` ends a word."""
    tokenizer = Tokenizer(models.BPE(**({"end_of_word_suffix": "</w>"} if ends_words else {})))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if ends_words:
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        options = {"end_of_word_suffix": "</w>"}
    else:
        options = {"initial_alphabet": sorted(pre_tokenizers.ByteLevel.alphabet())}
    tokenizer.train_from_iterator(
        (line.lower() for line in _text()), trainers.BpeTrainer(vocab_size=900, show_progress=False, **options)
    )
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    return tuple(tokens), tuple(" ".join(merge) for merge in model["merges"])


@functools.cache
def sentencepiece_model(**options: Any) -> bytes:
    """Returns a sentencepiece model, of type unigram unless the options say otherwise."""
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(_text()),
        model_writer=written,
        **{"vocab_size": 700, "hard_vocab_limit": False, "minloglevel": 9, "num_threads": 1, **options},
    )
    return written.getvalue()


class Layout(NamedTuple):
    """Files of a tokenizer class: what `write` puts into a folder, and settings to change in tokenizer_config.json."""

    kind: str
    write: Callable[[Path], None]
    settings: tuple[str, ...] = ()
    config: Mapping[str, Any] = {}
    model_type: str | None = None


def _vocab(*special: str, cased: bool = True, last: tuple[str, ...] = ()) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        words = [*special, *(word for word in wordpiece(cased) if word not in special), *last]
        (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in words), encoding="utf-8")

    return write


def _vocab_with_shapes(folder: Path) -> None:
    _vocab(*_BERT)(folder)
    words = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
    for name, size in (("word_shape.json", 11), ("word_pronunciation.json", 7)):
        (folder / name).write_text(json.dumps({word: index % size for index, word in enumerate(words[:100])}))


def _merges(*special: str, last: tuple[str, ...] = (), ends_words: bool = False) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        tokens, merges = bpe(ends_words)
        names = [*special, *tokens, *last]
        (folder / "vocab.json").write_text(json.dumps({name: index for index, name in enumerate(names)}))
        (folder / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{merge}\n" for merge in merges))

    return write


def _spm(name: str, **options: Any) -> Callable[[Path], None]:
    frozen = {key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}
    return lambda folder: (folder / name).write_bytes(sentencepiece_model(**frozen)) and None


_BERT = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_RULES = ("do_lower_case", "strip_accents", "tokenize_chinese_chars")
_PREFIX = ("add_prefix_space",)
_FAIRSEQ = {"unk_id": 0, "bos_id": 1, "eos_id": 2}
_T5 = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
_ALBERT = {"pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1, "user_defined_symbols": "[CLS],[SEP],[MASK]"}
_DEBERTA = {"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3, "pad_piece": "[PAD]", "bos_piece": "[CLS]"}
_DEBERTA |= {"eos_piece": "[SEP]", "unk_piece": "[UNK]"}
_XLNET = {"unk_id": 0, "bos_id": 1, "eos_id": 2, "control_symbols": "<cls>,<sep>,<pad>,<mask>,<eod>,<eop>"}
_LLAMA = {"model_type": "bpe", "byte_fallback": True, "split_digits": True, "normalization_rule_name": "identity",
          "remove_extra_whitespaces": False}  # fmt: skip

LAYOUTS = [
    Layout("BertTokenizer", _vocab(*_BERT), _RULES, model_type="bert"),
    Layout("BertTokenizerFast", _vocab(*_BERT, cased=False), _RULES),
    Layout("ElectraTokenizer", _vocab(*_BERT, cased=False), _RULES, model_type="electra"),
    Layout("DistilBertTokenizer", _vocab(*_BERT, cased=False), _RULES, model_type="distilbert"),
    Layout("MobileBertTokenizer", _vocab(*_BERT), _RULES),
    Layout("FunnelTokenizer", _vocab("<pad>", "<unk>", "<cls>", "<sep>", "<mask>", "<s>", "</s>"), _RULES),
    Layout("MPNetTokenizer", _vocab("<s>", "<pad>", "</s>", "<unk>", "[UNK]", last=("<mask>",)), _RULES),
    Layout("SplinterTokenizer", _vocab(*_BERT, "[QUESTION]"), _RULES),
    Layout("RoCBertTokenizer", _vocab_with_shapes, _RULES),
    Layout("RobertaTokenizer", _merges("<s>", "<pad>", "</s>", "<unk>", last=("<mask>",)), _PREFIX),
    Layout("BartTokenizer", _merges("<s>", "<pad>", "</s>", "<unk>", last=("<mask>",)), _PREFIX, model_type="bart"),
    Layout("LongformerTokenizer", _merges("<s>", "<pad>", "</s>", "<unk>", last=("<mask>",)), _PREFIX),
    Layout("DebertaTokenizer", _merges("[PAD]", "[CLS]", "[SEP]", "[UNK]", last=("[MASK]",)), _PREFIX),
    Layout("GPT2Tokenizer", _merges(last=("<|endoftext|>",)), _PREFIX, model_type="gpt2"),
    Layout("GPTNeoXTokenizer", _merges("<|endoftext|>", "<|padding|>"), _PREFIX),
    Layout("Qwen2Tokenizer", _merges(last=("<|endoftext|>", "<|im_start|>")), _PREFIX),
    Layout("CLIPTokenizer", _merges(last=("<|startoftext|>", "<|endoftext|>"), ends_words=True)),
    Layout("HerbertTokenizer", _merges("<s>", "<pad>", "</s>", "<unk>", "<mask>", ends_words=True), _PREFIX),
    Layout("OpenAIGPTTokenizer", _merges("<unk>", ends_words=True)),
    Layout("AlbertTokenizer", _spm("spiece.model", **_ALBERT), ("do_lower_case", "keep_accents"), model_type="albert"),
    Layout("XLNetTokenizer", _spm("spiece.model", **_XLNET), ("do_lower_case", "keep_accents"), model_type="xlnet"),
    Layout("XLMRobertaTokenizer", _spm("sentencepiece.bpe.model", **_FAIRSEQ), _PREFIX, model_type="xlm-roberta"),
    Layout("CamembertTokenizer", _spm("sentencepiece.bpe.model", **_FAIRSEQ), _PREFIX, model_type="camembert"),
    Layout("BarthezTokenizer", _spm("sentencepiece.bpe.model", **_FAIRSEQ), _PREFIX),
    Layout("MBartTokenizer", _spm("sentencepiece.bpe.model", **_FAIRSEQ)),
    Layout("DebertaV2Tokenizer", _spm("spm.model", **_DEBERTA), ("do_lower_case", "split_by_punct")),
    Layout("BigBirdTokenizer", _spm("spiece.model", pad_id=0, eos_id=1, bos_id=2, unk_id=3,
                                    user_defined_symbols="[SEP],[CLS],[MASK]"), _PREFIX),
    Layout("RemBertTokenizer", _spm("sentencepiece.model", **_ALBERT), ("do_lower_case", "keep_accents")),
    Layout("T5Tokenizer", _spm("spiece.model", **_T5), (), {"extra_ids": 5}, "t5"),
    Layout("PegasusTokenizer", _spm("spiece.model", **_T5)),
    Layout("LlamaTokenizer", _spm("tokenizer.model", **_LLAMA), (*_PREFIX, "legacy"), model_type="llama"),
]  # fmt: skip
"""Files of released models of 31 classes; what `settings` names is set both ways."""


def variants(layout: Layout, every: bool) -> Iterator[dict[str, Any]]:
    """Yields values of the settings: all combinations, or none and each of them alone both ways."""
    if every:
        for values in itertools.product((None, True, False), repeat=len(layout.settings)):
            yield {name: value for name, value in zip(layout.settings, values, strict=True) if value is not None}
        return
    yield {}
    yield from ({name: value} for name in layout.settings for value in (True, False))


def write_folder(layout: Layout, folder: Path, settings: Mapping[str, Any]) -> Path:
    """Writes the vocabulary, tokenizer_config.json and, where a model needs no class there, config.json."""
    folder.mkdir(parents=True)
    layout.write(folder)
    config = {"tokenizer_class": layout.kind, "model_max_length": 64, **layout.config, **settings}
    if layout.model_type is not None:
        (folder / "config.json").write_text(json.dumps({"model_type": layout.model_type}))
    if layout.model_type is not None and not settings and not layout.config:
        return folder  # as the first releases: files and config.json alone
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder
