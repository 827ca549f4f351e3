import json

import numpy as np
import pytest
from corpus_folders import update_digests

from bertjax.data.corpus import Corpus, offsets, open_corpus
from bertjax.data.prepare import CorpusRecipe, prepare_corpus
from bertjax.data.word_cache import flatten_ids
from bertjax.errors import UserError


class Letters:
    unk_id, lowercase = -1, False
    size, digest = 26, "letters"

    def encode_flat(self, texts):
        return flatten_ids([[ord(letter) - ord("a") for letter in text] for text in texts])


@pytest.fixture
def folder(tmp_path):
    prepared = prepare_corpus(
        ["abc de", "f", "ghij klm nop"] * 900,  # more than one record batch
        source_name="letters",
        source_digest="letters",
        tokenizer=Letters(),
        split_sentences=str.split,
        recipe=CorpusRecipe(eval_fraction=0.0),
        cache_dir=tmp_path,
    )
    return prepared.folder


def test_open_corpus(folder):
    corpus = open_corpus(folder)["train"].open()
    assert (corpus.num_documents, corpus.num_sentences, corpus.num_tokens) == (2700, 5400, 900 * 16)
    assert corpus.document_sentences[:4].tolist() == [0, 2, 3, 6]
    assert corpus.sentence_tokens[:7].tolist() == [0, 3, 5, 6, 10, 13, 16]
    assert corpus.document_tokens[:4].tolist() == [0, 5, 6, 16]
    assert corpus.counts.tolist() == [900] * 16 + [0] * 10
    begins = corpus.document_tokens[:-1]
    texts = corpus.read(begins, np.diff(corpus.document_tokens))
    assert [ids.tolist() for ids in texts] == [list(range(5)), [5], list(range(6, 16))] * 900


def test_reading_copies_nothing(folder):
    corpus = open_corpus(folder)["train"].open()
    one, same = (corpus.read(np.array([16]), np.array([5]))[0] for _ in range(2))
    assert np.shares_memory(one, same)
    assert one.dtype == np.uint16 and not one.flags.owndata and not one.flags.writeable


def in_memory(chunks):
    lengths = [len(chunk) for chunk in chunks]
    chunks = np.split(np.arange(sum(lengths), dtype=np.uint16), np.cumsum(lengths)[:-1])
    return Corpus(chunks, lengths, np.arange(len(chunks) + 1), np.zeros(100, np.int64), "memory")


def test_gather_writes_slices_of_many_chunks():
    corpus = in_memory([[0] * 4, [], [0] * 1, [0] * 5])
    out = np.full((4, 6), 99, np.int32)
    corpus.gather(np.array([5, 0, 4, 9]), np.array([5, 3, 1, 0]), out, np.array([1, 2, 0, 6]))
    assert out.tolist() == [
        [99, 5, 6, 7, 8, 9],
        [99, 99, 0, 1, 2, 99],
        [4, 99, 99, 99, 99, 99],
        [99] * 6,
    ]


def test_offsets():
    assert offsets([2, 0, 3]).tolist() == [0, 2, 2, 5]
    assert offsets([]).tolist() == [0]


def test_boundaries_must_fit_the_tokens():
    with pytest.raises(ValueError, match="sum"):
        Corpus([np.arange(5)], [2, 2], np.array([0, 2]), np.zeros(9), "x")


def test_a_damaged_folder_is_named(folder):
    arrow = folder / "train" / "data-00000.arrow"
    whole = arrow.read_bytes()
    arrow.write_bytes(whole[:-100])
    with pytest.raises(UserError, match=f"{folder} is damaged .*bytes instead of"):
        open_corpus(folder)
    arrow.unlink()
    with pytest.raises(UserError, match=f"{folder} is damaged .*data-00000.arrow is missing"):
        open_corpus(folder)


@pytest.mark.parametrize("cut", [2000, 12000])  # in the first record batch and between batches
def test_damage_that_sizes_do_not_show(folder, cut):
    arrow = folder / "train" / "data-00000.arrow"
    arrow.write_bytes(arrow.read_bytes()[:cut])
    meta = json.loads((folder / "meta.json").read_text())
    meta["files"]["train/data-00000.arrow"] = cut
    (folder / "meta.json").write_text(json.dumps(meta))
    with pytest.raises(UserError, match=f"{folder} is damaged .*other bytes"):
        open_corpus(folder)["train"].open()
    update_digests(folder)
    with pytest.raises(UserError, match=f"{folder} is damaged"):
        open_corpus(folder)["train"].open()


@pytest.mark.parametrize("position", [900, -900])
def test_a_flipped_bit_is_damage(folder, position):
    arrow = folder / "train" / "data-00000.arrow"
    raw = bytearray(arrow.read_bytes())
    raw[position] ^= 4
    arrow.write_bytes(raw)
    with pytest.raises(UserError, match=r"train/data-00000\.arrow has other bytes than were written"):
        open_corpus(folder)["train"].open()


def test_sizes_must_be_those_that_were_written(folder):
    meta = json.loads((folder / "meta.json").read_text())
    meta["splits"]["train"]["sentences"] += 1
    (folder / "meta.json").write_text(json.dumps(meta))
    with pytest.raises(UserError, match=r"\(2700, 5400, 14400\) documents.* instead of \(2700, 5401, 14400\)"):
        open_corpus(folder)


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UserError, match=r"meta\.json is missing"):
        open_corpus(tmp_path / "nothing")


def test_another_format_is_refused(folder):
    meta = json.loads((folder / "meta.json").read_text()) | {"format_version": 0}
    (folder / "meta.json").write_text(json.dumps(meta))
    with pytest.raises(UserError, match="format 0"):
        open_corpus(folder)
