import json
import os
import time
from pathlib import Path

import datasets
import numpy as np
import pytest

import bertjax.data.parts as parts_module
import bertjax.data.prepare as prepare_module
import bertjax.data.tokenize_documents as encode_module
from bertjax.config.data import FilterConfig
from bertjax.data.corpus import open_corpus
from bertjax.data.prepare import CorpusRecipe, prepare_corpus
from bertjax.data.sources import is_held_out
from bertjax.data.word_cache import flatten_ids
from bertjax.errors import UserError


class Words:
    """A tokenizer of numbers: the text "3 14" has the ids 3 and 14."""

    digest = "numbers"
    unk_id, lowercase = -1, False

    def __init__(self, size=1000):
        self.size = size

    def encode_flat(self, texts):
        return flatten_ids([[int(word) for word in text.split()] for text in texts])


def split(text):
    return text.split(".")


def prepare(cache_dir, documents, **changes):
    options = {
        "source_name": "toys",
        "source_digest": "toys v1",
        "tokenizer": Words(),
        "split_sentences": split,
        "cache_dir": cache_dir,
    }
    names = ("eval_fraction", "max_document_tokens", "shard_tokens")
    recipe = {name: changes.pop(name) for name in names if name in changes}
    filters = FilterConfig(**changes.pop("filters", {}))
    return prepare_corpus(
        documents, recipe=CorpusRecipe(**({"eval_fraction": 0.0, "filters": filters} | recipe)), **(options | changes)
    )


def documents(count, seed=0):
    rng = np.random.default_rng(seed)
    for _ in range(count):
        sentences = [rng.integers(0, 1000, rng.integers(0, 9)) for _ in range(rng.integers(0, 6))]
        yield ".".join(" ".join(map(str, sentence)) for sentence in sentences)


def rows(folder):
    return [(row["input_ids"], row["sentence_lengths"]) for row in datasets.load_from_disk(str(folder))]


def expected(texts):
    """Returns the expected rows, one document at a time."""
    out = []
    for text in texts:
        sentences = [[int(word) for word in sentence.split()] for sentence in text.split(".")]
        sentences = [sentence for sentence in sentences if sentence]
        if sentences:
            out.append(
                ([token for sentence in sentences for token in sentence], [len(sentence) for sentence in sentences])
            )
    return out


def test_rows_are_the_documents(tmp_path):
    prepared = prepare(tmp_path, ["1 2.3", " . 4 5 6", "", " . "])
    assert rows(prepared.folder / "train") == [([1, 2, 3], [2, 1]), ([4, 5, 6], [3])]
    assert rows(prepared.folder / "eval") == []
    assert prepared.splits["train"][:4] == (2, 3, 6, 2)
    assert prepared.splits["eval"][:4] == (0, 0, 0, 0)
    assert not prepared.reused
    assert [path.name for path in tmp_path.iterdir()] == [prepared.digest]


def test_one_pass_writes_both_splits(tmp_path):
    texts = list(documents(500))
    prepared = prepare(tmp_path, iter(texts), eval_fraction=0.3)
    held_out = [is_held_out(text, 0.3) for text in texts]
    for name, is_eval in (("train", False), ("eval", True)):
        remaining = [text for text, held in zip(texts, held_out, strict=True) if held is is_eval]
        assert rows(prepared.folder / name) == expected(remaining)
        size = prepared.splits[name]
        assert size.documents + size.dropped_documents == len(remaining)
    train = np.concatenate([ids for ids, _ in rows(prepared.folder / "train")])
    assert np.array_equal(np.load(prepared.folder / "counts.npy"), np.bincount(train, minlength=1000))


def test_all_may_be_held_out(tmp_path):
    prepared = prepare(tmp_path, ["1 2"], eval_fraction=1.0)
    assert rows(prepared.folder / "eval") == [([1, 2], [2])]
    assert prepared.splits["train"].tokens == 0
    assert open_corpus(prepared.folder)["train"].open().num_documents == 0


@pytest.mark.parametrize(("size", "dtype"), [(1 << 16, "uint16"), ((1 << 16) + 1, "int32")])
def test_ids_are_stored_small(tmp_path, size, dtype):
    prepared = prepare(tmp_path, [f"{size - 1}"], tokenizer=Words(size))
    features = datasets.load_from_disk(str(prepared.folder / "train")).features
    assert features == {
        "input_ids": datasets.List(datasets.Value(dtype)),
        "sentence_lengths": datasets.List(datasets.Value("int32")),
    }
    assert rows(prepared.folder / "train") == [([size - 1], [1])]


def test_equal_inputs_give_equal_files(tmp_path):
    folders = [prepare(tmp_path / name, documents(300), eval_fraction=0.1).folder for name in "ab"]
    names = [sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file()) for folder in folders]
    assert names[0] == names[1] and Path("train/state.json") in names[0]
    for name in names[0]:
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes(), name


def test_batch_limits_leave_no_trace(tmp_path, monkeypatch):
    whole = prepare(tmp_path / "whole", documents(200), eval_fraction=0.2)
    monkeypatch.setattr(prepare_module, "DOCUMENTS_PER_BATCH", 7)
    monkeypatch.setattr(encode_module, "CHARACTERS_PER_BATCH", 20)
    parts = prepare(tmp_path / "parts", documents(200), eval_fraction=0.2)
    assert parts.splits == whole.splits
    assert rows(parts.folder / "train") == rows(whole.folder / "train")


def test_a_corpus_of_many_files_is_one(tmp_path, monkeypatch):
    whole = prepare(tmp_path / "whole", documents(300))
    monkeypatch.setattr(parts_module, "CHARACTERS_PER_PART", 1000)  # no trace of the parts
    parts = prepare(tmp_path / "parts", documents(300), shard_tokens=100)
    assert len(list((parts.folder / "train").glob("*.arrow"))) > 3
    assert rows(parts.folder / "train") == rows(whole.folder / "train")
    one, many = (open_corpus(folder)["train"].open() for folder in (whole.folder, parts.folder))
    begins, lengths = one.document_tokens[:-1], np.diff(one.document_tokens)
    assert all(map(np.array_equal, one.read(begins, lengths), many.read(begins, lengths)))


def test_long_documents_are_cut_at_sentence_ends(tmp_path):
    prepared = prepare(tmp_path, ["1 1.2 2.3 3.4 4", "5.6", "7 7 7 7 7 7 7 7.8"], max_document_tokens=4)
    assert rows(prepared.folder / "train") == [
        ([1, 1, 2, 2], [2, 2]),
        ([3, 3, 4, 4], [2, 2]),
        ([5, 6], [1, 1]),
        ([7] * 8, [8]),
        ([8], [1]),
    ]


def test_gigantic_sentences_are_cut_at_spaces(tmp_path, monkeypatch):
    monkeypatch.setattr(encode_module, "CHARACTERS_PER_SENTENCE", 10)
    prepared = prepare(tmp_path, ["11 22 33 44 55 66", "0000000001" * 2 + "2"])
    assert rows(prepared.folder / "train")[0] == ([11, 22, 33, 44, 55, 66], [3, 3])
    assert rows(prepared.folder / "train")[1] == ([1, 1, 2], [1, 1, 1])


def test_a_prepared_corpus_is_not_read_again(tmp_path):
    def never():
        raise AssertionError("read again")
        yield

    first = prepare(tmp_path, documents(20))
    second = prepare(tmp_path, never())
    assert second.reused and second[:3] == first[:3]


@pytest.mark.parametrize(
    "change",
    [{"source_digest": "toys v2"}, {"eval_fraction": 0.5}, {"max_document_tokens": 9}, {"tokenizer": Words()}],
)
def test_the_name_is_what_it_was_made_of(tmp_path, change):
    if "tokenizer" in change:
        change["tokenizer"].digest = "other numbers"
    texts = list(documents(50))
    assert prepare(tmp_path, texts).folder != prepare(tmp_path, texts, **change).folder


@pytest.mark.parametrize("damaged", ["train/data-00000.arrow", "meta.json", "counts.npy"])
def test_a_damaged_folder_is_made_again(tmp_path, damaged):
    folder = prepare(tmp_path, documents(100)).folder
    whole = (folder / damaged).read_bytes()
    (folder / damaged).write_bytes(whole[: len(whole) // 2])
    with pytest.warns(UserWarning, match="damaged"):
        again = prepare(tmp_path, documents(100))
    assert not again.reused
    assert (folder / damaged).read_bytes() == whole
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]


def test_of_two_at_the_same_time_one_wins(tmp_path):
    def documents_while_another_prepares():
        yield from documents(30)
        winner.append(prepare(tmp_path, documents(30)))

    winner = []
    late = prepare(tmp_path, documents_while_another_prepares())
    assert late.folder == winner[0].folder and late.splits == winner[0].splits
    assert [path.name for path in tmp_path.iterdir()] == [late.folder.name]
    open_corpus(late.folder)


@pytest.mark.parametrize("texts", [[], ["", " . ."]])
def test_an_empty_corpus_is_named(tmp_path, texts):
    with pytest.raises(UserError, match="source toys is empty"):
        prepare(tmp_path, texts)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("wrong", ["1000", "-1"])
def test_ids_outside_the_vocabulary_are_refused(tmp_path, wrong):
    with pytest.raises(UserError, match=f"document 2 of source toys.*id {wrong}, .* 1000 tokens"):
        prepare(tmp_path, ["1 2", f"3 {wrong}"])
    assert list(tmp_path.iterdir()) == []


def test_a_source_that_fails_leaves_nothing(tmp_path):
    def failing():
        yield "1 2"
        raise UserError("line 2 is not UTF-8")

    with pytest.raises(UserError, match="line 2"):
        prepare(tmp_path, failing())
    assert list(tmp_path.iterdir()) == []


def test_leftovers_of_killed_processes_go_after_a_day(tmp_path):
    for name, age in ((".old.tmp", 25), (".new.tmp", 1)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.raw.arrow").write_text("half")
        for path in (tmp_path / name / "train.raw.arrow", tmp_path / name):
            os.utime(path, (time.time() - age * 3600,) * 2)
    folder = prepare(tmp_path, ["1 2"]).folder
    assert sorted(path.name for path in tmp_path.iterdir()) == [".new.tmp", folder.name]


def test_progress_counts_documents_and_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(prepare_module, "DOCUMENTS_PER_BATCH", 2)
    calls = []
    prepare(tmp_path, ["1 2", "3", "4\u2003 5"], progress=lambda done, size: calls.append((done, size)))
    assert calls == [(2, 4), (3, 4 + 6)]


def test_no_progress_bar_is_drawn(tmp_path, capfd):
    prepare(tmp_path, documents(20))
    assert capfd.readouterr() == ("", "")
    assert not datasets.are_progress_bars_disabled()


def test_meta_tells_what_it_was_made_of(tmp_path):
    prepared = prepare(tmp_path, documents(20), eval_fraction=0.25)
    meta = json.loads((prepared.folder / "meta.json").read_text())
    assert (meta["source"], meta["source_digest"], meta["tokenizer_digest"]) == ("toys", "toys v1", "numbers")
    assert meta["eval_fraction"] == 0.25 and meta["splits"]["eval"] == prepared.splits["eval"]._asdict()
