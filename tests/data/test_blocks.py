import types

import numpy as np
import pytest

from bertjax.data.corpus import Corpus, offsets
from bertjax.data.formats import make_format
from bertjax.errors import UserError

PAD, CLS, SEP = 0, 2, 3
SPECIAL_IDS = types.SimpleNamespace(pad_id=PAD, cls_id=CLS, sep_id=SEP)
FIRST_ID = 10  # token t of the corpus has the id FIRST_ID + t


def corpus_of(document_lengths):
    total = sum(document_lengths)
    ids = np.arange(FIRST_ID, FIRST_ID + total, dtype=np.int32)
    ones = np.ones(len(document_lengths), np.int64)
    return Corpus([ids], document_lengths, offsets(ones), np.zeros(FIRST_ID + total, np.int64), "toy")


def blocks(document_lengths, seq_len=6, **settings):
    return make_format(
        "block", corpus_of(document_lengths), seq_len=seq_len, seed=1, special_ids=SPECIAL_IDS, **settings
    )


def all_rows(form, epoch=0):
    return form.sequences(epoch, np.arange(form.num_sequences(epoch)))


def test_documents_are_cut_into_full_rows():
    form = blocks([9, 2, 1, 4, 5], seq_len=6)
    rows = sorted(row[row != PAD].tolist() for row in all_rows(form)["input_ids"])
    expected = [[0, 1, 2, 3], [4, 5, 6, 7], [9, 10], [12, 13, 14, 15], [16, 17, 18, 19]]
    assert rows == sorted([CLS, *(FIRST_ID + t for t in token), SEP] for token in expected)
    assert form.num_sequences(0) == 5
    assert form.dropped_examples == 3  # tokens 8, 11 and 20: alone in their blocks


def test_layout():
    form = blocks([4, 2], seq_len=7)
    batch = all_rows(form)
    short = int(np.flatnonzero(batch["input_ids"][:, 1] == FIRST_ID + 4)[0])
    assert batch["input_ids"][short].tolist() == [CLS, FIRST_ID + 4, FIRST_ID + 5, SEP, PAD, PAD, PAD]
    assert batch["segment_ids"][short].tolist() == [1, 1, 1, 1, 0, 0, 0]
    assert batch["position_ids"][short].tolist() == [0, 1, 2, 3, 0, 0, 0]
    assert batch["token_type_ids"][short].tolist() == [0] * 7
    assert {name: (array.dtype.name, array.shape) for name, array in batch.items()} == {
        "input_ids": ("int32", (2, 7)),
        "segment_ids": ("int32", (2, 7)),
        "position_ids": ("int32", (2, 7)),
        "token_type_ids": ("int32", (2, 7)),
        "example_positions": ("int32", (2, 1)),
        "example_weights": ("float32", (2, 1)),
        "example_ids": ("uint32", (2, 1)),
        "example_epochs": ("uint32", (2, 1)),
        "example_draws": ("uint32", (2, 1)),
    }
    assert (batch["example_weights"] == 1).all() and (batch["example_positions"] == 0).all()


def test_epochs_hold_the_same_rows_in_another_order():
    form = blocks([50] * 20)
    first, second = all_rows(form, 0), all_rows(form, 1)
    assert not np.array_equal(first["input_ids"], second["input_ids"])
    by_id = [
        {int(i): row.tolist() for i, row in zip(b["example_ids"][:, 0], b["input_ids"], strict=True)}
        for b in (first, second)
    ]
    assert by_id[0] == by_id[1]
    assert len(by_id[0]) == form.num_sequences(0)


def test_draws_repeat_after_dupe_factor_epochs():
    form = blocks([50] * 3, dupe_factor=3)
    draws = [all_rows(form, epoch)["example_draws"].tolist()[0][0] for epoch in range(7)]
    assert draws == [0, 1, 2, 0, 1, 2, 0]


def test_identities_differ_between_corpora():
    one, other = corpus_of([50]), corpus_of([50])
    other.digest = "another toy"
    ids = [
        make_format("block", c, seq_len=6, seed=1, special_ids=SPECIAL_IDS).sequences(0, np.arange(3))["example_ids"]
        for c in (one, other)
    ]
    assert not set(ids[0].ravel().tolist()) & set(ids[1].ravel().tolist())


@pytest.mark.parametrize("name", ["block", "nsp_pairs"])
def test_rows_that_hold_nothing_are_refused(name):
    with pytest.raises(UserError, match=r"data\.seq_len must be at least"):
        make_format(name, corpus_of([9]), seq_len=3, seed=1, special_ids=SPECIAL_IDS)


def test_unknown_forms_are_refused():
    with pytest.raises(
        UserError, match=r"data\.example_format 'nsp' is unknown; known are block, doc_sentences, full_sentences, nsp"
    ):
        make_format("nsp", corpus_of([9]), seq_len=8, seed=1, special_ids=SPECIAL_IDS)


def test_tokenizers_without_the_special_tokens_of_a_row_are_refused():
    special_ids = types.SimpleNamespace(pad_id=PAD, cls_id=CLS, sep_id=-1)
    with pytest.raises(UserError, match="block needs a tokenizer with a sep token"):
        make_format("block", corpus_of([9]), seq_len=8, seed=1, special_ids=special_ids)


@pytest.mark.parametrize("setting", [{"dupe_factor": 0}, {"short_seq_prob": 1.5}])
def test_impossible_settings_are_refused(setting):
    with pytest.raises(UserError, match=next(iter(setting))):
        blocks([9], **setting)
