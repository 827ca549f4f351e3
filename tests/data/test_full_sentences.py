"""Rows of whole sentences (arXiv:1907.11692, section 4.2), against the rule applied sentence by sentence."""

import types

import numpy as np
import pytest

from bertjax.data.corpus import Corpus, offsets
from bertjax.data.formats import make_format
from bertjax.data.formats.contiguous import _walk
from bertjax.errors import UserError

PAD, CLS, SEP = 0, 2, 3
SPECIAL_IDS = types.SimpleNamespace(pad_id=PAD, cls_id=CLS, sep_id=SEP)
FIRST_ID = 10


def corpus_of(documents):
    """Returns a corpus of documents with these sentence lengths; token t has the id FIRST_ID + t."""
    lengths = [length for document in documents for length in document]
    ids = np.arange(FIRST_ID, FIRST_ID + sum(lengths), dtype=np.int32)
    return Corpus([ids], np.array(lengths), offsets([len(document) for document in documents]), np.zeros(0), "toy")


def one_by_one(documents, seq_len, crossing):
    """RoBERTa's rule (fairseq: `complete`, `complete_doc`): a sentence joins the row if it fits."""
    longest, token = seq_len - 2, FIRST_ID
    rows, row = [], []
    for document in documents:
        for sentence in document:
            for begin in range(0, sentence, longest):  # sentences longer than a row are cut
                ids = list(range(token + begin, token + min(sentence, begin + longest)))
                if row and len(row) + len(ids) > longest:
                    rows.append(row)
                    row = []
                row = row + ids
            token += sentence
        if row:
            row = [*row, SEP]
        if not crossing or len(row) >= longest:
            rows.append(row)
            row = []
    ended = [row[:-1] if row[-1] == SEP else row for row in [*rows, row] if row]
    return [[CLS, *row, SEP] for row in ended if len(row) > 1]


def random_documents(seed, maximum=9, longest=14):
    rng = np.random.default_rng(seed)
    return [rng.integers(1, longest, rng.integers(1, maximum)).tolist() for _ in range(40)]


def form_of(documents, name, seq_len, **settings):
    return make_format(name, corpus_of(documents), seq_len=seq_len, seed=1, special_ids=SPECIAL_IDS, **settings)


def all_rows(form, epoch=0):
    return form.sequences(epoch, np.arange(form.num_sequences(epoch)))


FORMATS = {"full_sentences": True, "doc_sentences": False}


@pytest.mark.parametrize(("name", "crossing"), FORMATS.items())
@pytest.mark.parametrize("seq_len", [4, 9, 16, 40, 300, 10_000])
@pytest.mark.parametrize("seed", range(4))
def test_rows_are_those_of_the_rule_one_by_one(name, crossing, seq_len, seed):
    documents = random_documents(seed)
    rows = all_rows(form_of(documents, name, seq_len))["input_ids"]
    assert sorted(row[row != PAD].tolist() for row in rows) == sorted(one_by_one(documents, seq_len, crossing))


def test_rows_cross_documents_with_a_separator():
    form = form_of([[3, 2], [4], [1, 1], [9]], "full_sentences", 12)
    rows = sorted(row[row != PAD].tolist() for row in all_rows(form)["input_ids"])
    ids = [FIRST_ID + t for t in range(20)]
    assert (
        rows
        == sorted(
            [
                [CLS, *ids[:5], SEP, *ids[5:9], SEP],  # the separator at the end of the row is the row's own
                [CLS, *ids[9:11], SEP],
                [CLS, *ids[11:20], SEP],
            ]
        )
    )


def test_rows_stay_in_their_documents():
    form = form_of([[3, 2, 4], [1, 1]], "doc_sentences", 9)
    rows = sorted(row[row != PAD].tolist() for row in all_rows(form)["input_ids"])
    ids = [FIRST_ID + t for t in range(11)]
    assert rows == [[CLS, *ids[:5], SEP], [CLS, *ids[5:9], SEP], [CLS, *ids[9:], SEP]]


def test_a_row_is_one_example():
    """A separator inside a row does not split its attention."""
    batch = all_rows(form_of([[3], [4]], "full_sentences", 12))
    assert batch["segment_ids"].tolist() == [[1] * 10 + [0] * 2]
    assert batch["position_ids"].tolist() == [[*range(10), 0, 0]]
    assert not batch["token_type_ids"].any()
    assert batch["example_positions"].tolist() == [[0]]


@pytest.mark.parametrize("name", FORMATS)
def test_no_token_is_lost_but_those_that_are_counted(name):
    """P28: tokens in = tokens of the rows + rows of one token that are dropped."""
    documents = random_documents(7, maximum=3, longest=12)
    form = form_of(documents, name, 9)
    ids = np.concatenate([row[row >= FIRST_ID] for row in all_rows(form)["input_ids"]])
    assert len(ids) == len(set(ids.tolist()))
    assert len(ids) + form.dropped_examples == sum(map(sum, documents))
    assert form.dropped_examples > 0 or name == "full_sentences"


@pytest.mark.parametrize("name", FORMATS)
def test_epochs_hold_the_same_rows_in_another_order(name):
    form = form_of(random_documents(0), name, 30, dupe_factor=2)
    one, other = all_rows(form, 0), all_rows(form, 1)
    ids = [batch["example_ids"][:, 0] for batch in (one, other)]
    assert ids[0].tolist() != ids[1].tolist()
    assert len(set(ids[0].tolist())) == len(ids[0])
    assert one["input_ids"][np.argsort(ids[0])].tolist() == other["input_ids"][np.argsort(ids[1])].tolist()
    assert (one["example_draws"][:, 0] == 0).all() and (other["example_draws"][:, 0] == 1).all()


@pytest.mark.parametrize("step", [1, 2, 7, 64, 1000])
@pytest.mark.parametrize("longest", [1, 3, 50])
def test_walking_in_windows_changes_nothing(step, longest):
    rng = np.random.default_rng(step)
    after = np.arange(500) + rng.integers(1, longest + 1, 500)
    position, expected = 0, []
    while position < len(after):
        expected.append(position)
        position = int(after[position])
    assert _walk(after, step).tolist() == expected


@pytest.mark.parametrize("name", FORMATS)
def test_rows_too_short_and_text_too_little(name):
    with pytest.raises(UserError, match=r"data\.seq_len must be at least 4 for sentences, not 3"):
        form_of([[5]], name, 3)
    assert form_of([[1]], name, 8).num_sequences(0) == 0
    assert form_of([], name, 8).num_sequences(0) == 0
