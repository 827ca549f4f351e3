"""Tokenizers of public models, built here with their published rules: equal to `transformers`, with all specials."""

from __future__ import annotations

import functools
import json
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest
from test_tokenizer import CHINESE, corpus

from bertjax.config.data import DataConfig
from bertjax.data.special_tokens import DECLARED
from bertjax.data.tokenizer import Tokenizer
from bertjax.data.tokenizer_io import load_tokenizer, save_tokenizer
from bertjax.data.tokenizer_training import train_tokenizer
from bertjax.data.vocab_transfer import match_tokens
from bertjax.errors import UserError

TEXTS = [
    *corpus()[:6],
    *CHINESE,
    "Naïve café, ﬁne: 3.14159 and 1000  two   spaces",
    "unknown 🙂 signs Ж 👩‍👩‍👧",
    "def f(x):\n    return x + 1  # code\t",
]
# tokens of pad, cls, sep and mask, as declared or added
ROLES = {
    "Llama 2": ("</s>", "<s>", "</s>", "<mask>"),
    "Llama 3": ("<|end_of_text|>", "<|begin_of_text|>", "<|end_of_text|>", "<|mask|>"),
    "Gemma 2": ("<pad>", "<bos>", "<eos>", "<mask>"),
    "mmBERT": ("<pad>", "<bos>", "<eos>", "<mask>"),
    "Qwen 2": ("<|endoftext|>", "<|cls|>", "<|endoftext|>", "<|mask|>"),
    "GPT-NeoX": ("<|padding|>", "<|endoftext|>", "<|endoftext|>", "<|mask|>"),
    "XLM-R": ("<pad>", "<s>", "</s>", "<mask>"),
    "CamemBERT": ("<pad>", "<s>", "</s>", "<mask>"),
    "T5": ("<pad>", "<cls>", "</s>", "<mask>"),
}


@functools.cache
def script() -> SimpleNamespace:
    return SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "tokenizer_table.py")))


def build(name: str, folder: Path) -> Tokenizer:
    script().SOURCES[name].write([line for text in corpus() for line in text.split("\n")], folder, 800)
    return load_tokenizer(folder)


@pytest.mark.parametrize("name", ROLES)
def test_ids_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    lines = [line for text in corpus() for line in text.split("\n")]
    tokenizer, same, exported = script().compare_source(name, lines, TEXTS, 800)
    assert (same, exported) == (len(TEXTS), len(TEXTS))
    ids = (tokenizer.pad_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id)
    assert tuple(tokenizer.tokens[index] for index in ids) == ROLES[name]
    text = tokenizer.encode_with_specials("the assertion")
    assert (text[0], text[-1]) == (tokenizer.cls_id, tokenizer.sep_id)
    assert text[1:-1] == tokenizer.encode_batch(["the assertion"])[0].tolist()
    marked = tokenizer.encode_with_specials(f"the {ROLES[name][3]} is")
    assert marked.count(tokenizer.mask_id) == 1 and marked[-2] == tokenizer.encode_batch(["the is"])[0][-1]
    literal = tokenizer.encode_batch([" ".join(tokenizer.tokens[index] for index in tokenizer.special_ids)])[0]
    assert not set(literal.tolist()) & {*tokenizer.special_ids} - {tokenizer.unk_id}
    save_tokenizer(tokenizer, tmp_path / "saved")
    again = load_tokenizer(tmp_path / "saved")
    assert (again.digest, again.spec, again.mask_id) == (tokenizer.digest, tokenizer.spec, tokenizer.mask_id)
    assert again.complete(("pad", "cls", "sep", "mask")) is again


def test_added_special_tokens_come_after_the_ids_of_the_model(tmp_path: Path) -> None:
    before = build("Qwen 2", tmp_path)
    after = before.complete(("pad", "cls", "sep", "mask"))
    assert (before.family, before.cls_id, before.mask_id) == (DECLARED, -1, -1)
    assert after.tokens[: before.size] == before.tokens and after.tokens[before.size :] == ["<|cls|>", "<|mask|>"]
    result = match_tokens(before, after)
    assert result.parts == [*([index] for index in range(before.size)), [], []] and result.fresh == 2
    assert before.complete(("pad", "cls", "sep")).mask_id == -1  # causal models have no mask token


def test_files_of_xlm_roberta_are_read_by_its_class(tmp_path: Path) -> None:
    """The exported sentencepiece file has fairseq's ids again, and a folder of bertjax is not shifted twice."""
    import transformers

    for family, kind in (("xlm-roberta", "XLMRobertaTokenizer"), ("camembert", "CamembertTokenizer")):
        copy, export = tmp_path / family / "copy", tmp_path / family / "export"
        copy.mkdir(parents=True)
        export.mkdir()
        tokenizer = train_tokenizer(corpus(), model="unigram", family=family, vocab_size=500, lowercase=False)
        files = tokenizer.huggingface_files(512)
        (copy / "sentencepiece.bpe.model").write_bytes(files["sentencepiece.bpe.model"])
        (export / "tokenizer.json").write_bytes(files["tokenizer.json"])
        for folder in (copy, export):
            theirs = getattr(transformers, kind).from_pretrained(folder)
            assert script().count_equal(theirs, tokenizer, TEXTS, special=True) == len(TEXTS)
        bare = load_tokenizer(copy / "sentencepiece.bpe.model", family=family)
        assert script().count_equal(theirs, bare, TEXTS, special=True) == len(TEXTS)


def test_mpnet_has_tokens_of_two_vocabularies(tmp_path: Path) -> None:
    from transformers import MPNetTokenizer

    tokens = ["<s>", "<pad>", "</s>", "<unk>", "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = [*"abcdefghilmnorstuvwxy", "the", "class", "##es", *(f"##{c}" for c in "abcdefghilmnorstuvwxy")]
    (tmp_path / "vocab.txt").write_text("".join(f"{token}\n" for token in [*tokens, *words, "<mask>"]))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mpnet"}))
    tokenizer, theirs = load_tokenizer(tmp_path), MPNetTokenizer.from_pretrained(tmp_path)
    assert (tokenizer.family, tokenizer.unk_id, tokenizer.mask_id) == ("mpnet", 5, theirs.mask_token_id)
    assert script().count_equal(theirs, tokenizer, TEXTS, special=True) == len(TEXTS)
    assert script().compare_export(tokenizer, TEXTS) == len(TEXTS)


def test_words_of_a_pattern() -> None:
    """Non-overlapping k-mers of DNA, and the atoms of SMILES (the pattern of arXiv:1811.02633)."""
    dna = train_tokenizer(
        ["ACGTACGTAAN"], model="wordlevel", family="bert", vocab_size=30, token_pattern="[ACGTN]{1,6}", lowercase=False
    )
    assert [dna.tokens[index] for index in dna.encode_batch(["ACGTACGTAAN GTAANx"])[0]] == [
        *("ACGTAC", "GTAAN", "GTAAN", "[UNK]")
    ]
    atoms = r"\[[^\]]+]|Br?|Cl?|[NOSPFIbcnosp().=#+\\/:~@?>*$-]|%[0-9]{2}|[0-9]"
    aspirin = "CC(=O)Oc1ccccc1C(=O)O.[Na+].ClBr"
    smiles = train_tokenizer(
        [aspirin], model="wordlevel", family="roberta", vocab_size=40, token_pattern=atoms, lowercase=False
    )
    ids = smiles.encode_batch([aspirin])[0]
    assert [smiles.tokens[index] for index in ids][-5:] == [".", "[Na+]", ".", "Cl", "Br"]
    assert smiles.decode(ids) == aspirin and smiles.starts_word().all()
    assert script().compare_export(smiles, [aspirin, "c1ccccc1"]) == 2
    with pytest.raises(UserError, match=r"data.token_pattern='\(' is not a regular expression"):
        train_tokenizer(["a"], model="wordlevel", family="bert", vocab_size=30, token_pattern="(")
    with pytest.raises(UserError, match=r"data\.token_pattern is for data.tokenizer=wordlevel, not for bpe"):
        DataConfig(tokenizer="bpe", token_pattern="a")


def test_declared_roles_overrule_the_usual_names(tmp_path: Path) -> None:
    build("Llama 3", tmp_path)
    declared = json.loads((tmp_path / "tokenizer_config.json").read_text())
    roles = {
        "pad_token": {"__type": "AddedToken", "content": "<|reserved_special_token_1|>"},
        "mask_token": "<|reserved_special_token_0|>",
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(declared | roles))
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.tokens[tokenizer.pad_id] == "<|reserved_special_token_1|>"
    assert tokenizer.tokens[tokenizer.mask_id] == "<|reserved_special_token_0|>"
    assert tokenizer.complete(("mask",)).size == tokenizer.size
