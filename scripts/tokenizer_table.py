"""Compares token ids with `transformers` for every kind of tokenizer: English, Chinese, German, code and emoji.

    python scripts/tokenizer_table.py DATA --lines 200 --vocab_size 8000

DATA holds enwiki/, zhwiki/ and multi30k/; code is the package's own source. Kinds that bertjax trains are trained,
and read back by `AutoTokenizer` from their export. Of public models the files are built here, with the normalizer,
pre-tokenizer, decoder, special tokens and template of the published ones and a vocabulary of this text. They are
read by the model's class of `transformers` and by bertjax, which adds the special tokens that masked language modeling
needs, and their export is read by `AutoTokenizer`. Prints how many lines have equal ids.

Llama 2's file is read as it stands: `LlamaTokenizer` of transformers 5 puts other rules in place of its own, and lines
that begin with a space differ.
"""

from __future__ import annotations

import argparse
import gzip
import io
import itertools
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bertjax.data.tokenizer import Tokenizer
from bertjax.data.tokenizer_io import load_tokenizer, save_huggingface_tokenizer
from bertjax.data.tokenizer_training import train_tokenizer

NEEDED = ("pad", "cls", "sep", "mask")
TRAINED = {  # kind: (model, family)
    "WordPiece": ("wordpiece", "bert"),
    "byte-level BPE": ("bpe", "roberta"),
    "unigram": ("unigram", "albert"),
    "SentencePiece BPE": ("sentencepiece_bpe", "xlm-roberta"),
    "WordLevel": ("wordlevel", "bert"),
    "characters": ("char", "bert"),
}
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_EMOJI = ["🙂", "👩‍👩‍👧‍👦", "🇩🇪", "👍🏽", "❤️", "🏳️‍🌈", "1️⃣", "🤷‍♀️", "™️", "😂😂😂"]


class Source(NamedTuple):
    """A published kind of tokenizer: how its folder is written, and the class of `transformers` that reads it."""

    write: Callable[[Sequence[str], Path, int], None]
    hf_class: str


def _special(names: Sequence[str], first: int = 0, special: bool = True) -> list[dict[str, Any]]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": special}
    return [{"id": first + index, "content": name, **flags} for index, name in enumerate(names)]


def _write(folder: Path, content: dict[str, Any], **declared: Any) -> None:
    whole = {"version": "1.0", "truncation": None, "padding": None, **content}
    (folder / "tokenizer.json").write_text(json.dumps(whole))
    (folder / "tokenizer_config.json").write_text(json.dumps(declared))


def _template(before: str, after: str | None = None) -> dict[str, Any]:
    from tokenizers import processors

    ends = [f"{before} $A", f"{before} $A {before}:1 $B:1"] if after is None else [
        f"{before} $A {after}",
        f"{before} $A {after} $B {after}",
    ]  # fmt: skip
    used = [(token, 0) for token in (before, after) if token]
    return json.loads(processors.TemplateProcessing(single=ends[0], pair=ends[1], special_tokens=used).__getstate__())


def _with_ids(template: dict[str, Any], vocabulary: dict[str, int]) -> dict[str, Any]:
    for token, entry in template["special_tokens"].items():
        entry["ids"] = [vocabulary[token]]
    return template


def _spaced_bpe(texts: Sequence[str], special: Sequence[str], vocab_size: int) -> dict[str, Any]:
    """The model of SentencePiece's BPE with byte fallback, as in a `tokenizer.json`."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    fallback = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=[*special, *fallback], limit_alphabet=2000, show_progress=False
    )
    tokenizer.train_from_iterator([f" {text}" for text in texts], trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return {**model, "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True}


def _byte_bpe(texts: Sequence[str], splitter: Any, vocab_size: int) -> dict[str, Any]:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.NFC(), splitter
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return json.loads(tokenizer.to_str())


_BYTES = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}


def _regex_splitter(digits: str) -> Any:
    from tokenizers import Regex, pre_tokenizers

    bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(_SPLIT % digits), "isolated"), bytes_only])


def write_llama2(texts: Sequence[str], folder: Path, vocab_size: int) -> None:
    """Llama 1 and 2, Mistral: a space before every text, no pre-tokenizer, byte fallback; no [MASK] and no padding."""
    special = ["<unk>", "<s>", "</s>"]
    model = _spaced_bpe(texts, special, vocab_size)
    space = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    back = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    content = {
        "added_tokens": _special(special),
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, space]},
        "pre_tokenizer": None,
        "post_processor": _with_ids(_template("<s>"), model["vocab"]),
        "decoder": {"type": "Sequence", "decoders": [back, {"type": "ByteFallback"}, {"type": "Fuse"}, strip]},
        "model": model,
    }
    tokens = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": None}
    _write(folder, content, tokenizer_class="LlamaTokenizer", legacy=False, **tokens)


def write_gemma(texts: Sequence[str], folder: Path, vocab_size: int, after: str | None = None) -> None:
    """Gemma 1 and 2: no space before a text, byte fallback, a <mask> that is not marked as special."""
    special, others = ["<pad>", "<eos>", "<bos>", "<unk>"], ["<mask>", "<2mass>", "[@BOS@]", "<unused0>"]
    model = _spaced_bpe(texts, [*special, *others], vocab_size)
    back = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    blank = {"pattern": {"String": " "}}
    content = {
        "added_tokens": [*_special(special), *_special(others, 4, special=False)],
        "normalizer": {"type": "Replace", **blank, "content": "▁"},
        "pre_tokenizer": {"type": "Split", **blank, "behavior": "MergedWithPrevious", "invert": False},
        "post_processor": _with_ids(_template("<bos>", after), model["vocab"]),
        "decoder": {"type": "Sequence", "decoders": [back, {"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": model,
    }
    tokens = {"bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>", "pad_token": "<pad>"}
    if after:
        tokens |= {"cls_token": "<bos>", "sep_token": "<eos>", "mask_token": "<mask>"}
    _write(folder, content, tokenizer_class="GemmaTokenizer", **tokens)


def write_mmbert(texts: Sequence[str], folder: Path, vocab_size: int) -> None:
    """mmBERT: Gemma 2's vocabulary between <bos> and <eos>."""
    write_gemma(texts, folder, vocab_size, after="<eos>")


def write_llama3(texts: Sequence[str], folder: Path, vocab_size: int) -> None:
    """Llama 3, EuroBERT: bytes, whole words without merges, special tokens after the vocabulary."""
    content = _byte_bpe(texts, _regex_splitter("{1,3}"), vocab_size)
    size = len(content["model"]["vocab"])
    special = ["<|begin_of_text|>", "<|end_of_text|>", *(f"<|reserved_special_token_{n}|>" for n in range(8))]
    template = _with_ids(_template(special[0]), {special[0]: size})
    content |= {
        "added_tokens": _special(special, size),
        "normalizer": None,
        "post_processor": {"type": "Sequence", "processors": [{**_BYTES, "trim_offsets": False}, template]},
        "decoder": _BYTES,
        "model": {**content["model"], "ignore_merges": True},
    }
    _write(folder, content, tokenizer_class="PreTrainedTokenizerFast", bos_token=special[0], eos_token=special[1])


def write_qwen(texts: Sequence[str], folder: Path, vocab_size: int) -> None:
    """Qwen 2 and 3: bytes, every digit alone, one token for the end and for padding, none for the beginning."""
    content = _byte_bpe(texts, _regex_splitter(""), vocab_size)
    size = len(content["model"]["vocab"])
    special, others = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], ["<tool_call>", "</tool_call>"]
    content |= {
        "added_tokens": [*_special(special, size), *_special(others, size + 3, special=False)],
        "post_processor": {**_BYTES, "add_prefix_space": False, "trim_offsets": False},
        "decoder": _BYTES,
    }
    tokens = {"bos_token": None, "eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>", "unk_token": None}
    _write(folder, content, tokenizer_class="Qwen2Tokenizer", **tokens)


def write_neox(texts: Sequence[str], folder: Path, vocab_size: int) -> None:
    """GPT-NeoX, Pythia, OLMo, ModernBERT's source: bytes, and tokens for runs of spaces that are not special."""
    from tokenizers import pre_tokenizers

    content = _byte_bpe(texts, pre_tokenizers.ByteLevel(add_prefix_space=False), vocab_size)
    special, size = ["<|endoftext|>", "<|padding|>"], len(content["model"]["vocab"])
    runs = [" " * count for count in range(6, 1, -1)]
    added = [*_special(special, size), *_special(runs, size + 2, special=False)]
    for token in added[2:]:
        token["normalized"] = True
    content |= {"added_tokens": added, "post_processor": _BYTES, "decoder": _BYTES}
    tokens = dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>")
    _write(folder, content, tokenizer_class="GPTNeoXTokenizer", add_prefix_space=False, **tokens)


def _spiece(texts: Sequence[str], vocab_size: int, **options: Any) -> bytes:
    import sentencepiece

    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_writer=written, vocab_size=vocab_size, hard_vocab_limit=False,
        minloglevel=9, num_threads=8, **options,
    )  # fmt: skip
    return written.getvalue()


def write_xlm_roberta(texts: Sequence[str], folder: Path, vocab_size: int) -> None:
    """XLM-R: `sentencepiece.bpe.model` alone, whose ids fairseq shifts by one."""
    (folder / "sentencepiece.bpe.model").write_bytes(_spiece(texts, vocab_size))
    (folder / "config.json").write_text(json.dumps({"model_type": "xlm-roberta"}))


def write_camembert(texts: Sequence[str], folder: Path, vocab_size: int) -> None:
    """CamemBERT: `sentencepiece.bpe.model` after four tokens of fairseq, of which it uses two."""
    write_xlm_roberta(texts, folder, vocab_size)
    (folder / "config.json").write_text(json.dumps({"model_type": "camembert"}))


def write_t5(texts: Sequence[str], folder: Path, vocab_size: int) -> None:
    """T5: unigram with <pad>, </s>, <unk>; texts end with </s>, no token begins them."""
    model = _spiece(texts, vocab_size, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    (folder / "spiece.model").write_bytes(model)
    tokens = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    declared = {"tokenizer_class": "T5Tokenizer", "extra_ids": 0, **tokens}
    (folder / "tokenizer_config.json").write_text(json.dumps(declared))


SOURCES = {
    "Llama 2": Source(write_llama2, "PreTrainedTokenizerFast"),
    "Llama 3": Source(write_llama3, "PreTrainedTokenizerFast"),
    "Gemma 2": Source(write_gemma, "GemmaTokenizer"),
    "mmBERT": Source(write_mmbert, "GemmaTokenizer"),
    "Qwen 2": Source(write_qwen, "Qwen2Tokenizer"),
    "GPT-NeoX": Source(write_neox, "GPTNeoXTokenizer"),
    "XLM-R": Source(write_xlm_roberta, "XLMRobertaTokenizer"),
    "CamemBERT": Source(write_camembert, "CamembertTokenizer"),
    "T5": Source(write_t5, "T5Tokenizer"),
}


def count_equal(theirs: Any, ours: Tokenizer, lines: Sequence[str], special: bool) -> int:
    """Counts the lines with equal ids.

    Args:
        theirs: tokenizer of `transformers`.
        ours: tokenizer of bertjax.
        lines: the lines.
        special: with special tokens around them.
    """
    ids = theirs(list(lines), add_special_tokens=special)["input_ids"]
    if special:
        return sum(a == ours.encode_with_specials(line) for a, line in zip(ids, lines, strict=True))
    return sum(a == b.tolist() for a, b in zip(ids, ours.encode_batch(lines), strict=True))


def compare_source(name: str, texts: Sequence[str], lines: Sequence[str], size: int) -> tuple[Tokenizer, int, int]:
    """Builds a published kind of tokenizer and compares it.

    Args:
        name: key of `SOURCES`.
        texts: text of the vocabulary.
        lines: lines to compare.
        size: its size.

    Returns:
        The completed tokenizer, and the numbers of equal lines with the model's class and with `AutoTokenizer`.
    """
    import transformers

    with tempfile.TemporaryDirectory() as folder:
        SOURCES[name].write(texts, Path(folder), size)
        theirs = getattr(transformers, SOURCES[name].hf_class).from_pretrained(folder)
        ours = load_tokenizer(folder)
    completed = ours.complete(NEEDED)
    return completed, count_equal(theirs, ours, lines, special=False), compare_export(completed, lines)


def compare_export(tokenizer: Tokenizer, lines: Sequence[str]) -> int:
    """Counts the lines, with special tokens, that `AutoTokenizer` reads alike from the export."""
    from transformers import AutoTokenizer

    with tempfile.TemporaryDirectory() as folder:
        save_huggingface_tokenizer(tokenizer, folder, 1 << 20)
        theirs = AutoTokenizer.from_pretrained(folder)
    assert len(theirs) == tokenizer.size
    plain = count_equal(theirs, tokenizer, lines, special=False)
    return min(plain, count_equal(theirs, tokenizer, lines, special=True))


def read_lines(data: Path, count: int) -> dict[str, list[str]]:
    """Returns so many lines of every language, from files that no vocabulary is made of."""
    code = (line for path in sorted(Path(__file__).parents[1].glob("bertjax/*/*.py")) for line in path.open())
    sources = {
        "English": _open(data / "enwiki/valid.txt.gz"),
        "Chinese": _open(data / "zhwiki/valid.txt.gz"),
        "German": _open(data / "multi30k/test_2016_flickr.de.gz"),
        "code": (line.rstrip("\n") for line in code if line.strip()),
    }
    lines = {name: list(itertools.islice(each, count)) for name, each in sources.items()}
    emoji = itertools.cycle(_EMOJI)
    lines["emoji"] = [text.replace(" ", f" {next(emoji)} ", 2) + next(emoji) for text in lines["English"]]
    return lines


def _open(path: Path) -> Any:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        yield from (line.strip() for line in file if len(line.strip()) > 20)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--lines", type=int, default=200, help="of every language")
    parser.add_argument("--vocab_size", type=int, default=8000)
    options = parser.parse_args()
    files = ("enwiki/train.txt.gz", "zhwiki/train.txt.gz", "multi30k/train.de.gz")
    texts = [line for name in files for line in itertools.islice(_open(options.data / name), 5000)]
    lines = [line for group in read_lines(options.data, options.lines).values() for line in group]
    print("| kind | family | tokens | lines | equal to its class | export equal |")
    print("| --- | --- | ---: | ---: | ---: | ---: |")
    for kind, (model, family) in TRAINED.items():
        tokenizer = train_tokenizer(texts, model=model, family=family, vocab_size=options.vocab_size, lowercase=False)
        print(f"| {kind} | {family} | {tokenizer.size:,} | {len(lines):,} | - | {compare_export(tokenizer, lines):,} |")
    for name, source in SOURCES.items():
        tokenizer, same, exported = compare_source(name, texts, lines, options.vocab_size)
        print(f"| {name} | {source.hf_class} | {tokenizer.size:,} | {len(lines):,} | {same:,} | {exported:,} |")


if __name__ == "__main__":
    main()
