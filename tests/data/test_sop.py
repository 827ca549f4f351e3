"""ALBERT's sentence order: exact properties, and statistics compared with a plain sequential reference."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_pairs import (
    SPECIAL_IDS,
    corpus_of,
    documents_strategy,
    joined,
    random_b,
    random_documents,
    shortened,
    summary,
)

from bertjax.data.formats import make_format
from bertjax.data.formats.sentence_pairs import count_pairs, plan_pairs


def form_of(documents, seq_len=20, short_seq_prob=0.1, dupe_factor=1, seed=1, strict=False):
    return make_format(
        "sop_pairs",
        corpus_of(documents),
        seq_len=seq_len,
        seed=seed,
        special_ids=SPECIAL_IDS,
        short_seq_prob=short_seq_prob,
        dupe_factor=dupe_factor,
        sop_drop_single_sentences=strict,
    )


def plan_of(documents, draw=0, **changes):
    corpus = corpus_of(documents)
    return corpus, plan_pairs(corpus, form_of(documents, **changes).settings, draw, "sop")


def columns(plan):
    return plan.a_start, plan.a_length, plan.b_start, plan.b_length, plan.label.astype(np.int64)


def sequential_pairs(documents, seq_len, short_seq_prob, strict, rng):
    """google-research/albert:create_pretraining_data.py; tuples (start of A, its length, those of B, label)."""
    position, texts = 0, []
    for document in documents:
        texts.append([])
        for length in document:
            texts[-1].append(list(range(position, position + length)))
            position += length
    for number, sentences in enumerate(texts):
        longest, at = seq_len - 3, 0
        target = rng.randint(2, longest) if rng.random() < short_seq_prob else longest
        while at < len(sentences):
            chunk = []
            while at < len(sentences) and sum(map(len, chunk)) < target:
                chunk.append(sentences[at])
                at += 1
            a_end = rng.randint(1, len(chunk) - 1) if len(chunk) > 1 else 1
            a, b, label = joined(chunk[:a_end]), joined(chunk[a_end:]), 0
            if len(chunk) == 1:
                if strict:
                    continue
                b, label = random_b(texts, number, target - len(a), rng), 1
            elif rng.random() < 0.5:
                a, b, label = b, a, 1
            a, b = shortened(a, b, longest, rng)
            yield a[0], len(a), b[0], len(b), label


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(
    ("documents", "seq_len", "short_seq_prob"),
    [
        (random_documents(150, 0), 32, 0.1),
        (random_documents(150, 2), 33, 0.8),
        (random_documents(150, 3, mean_sentences=3, mean_length=30), 24, 0.1),  # many chunks of one sentence
    ],
)
def test_statistics_are_those_of_the_sequential_reference(documents, seq_len, short_seq_prob, strict):
    corpus = corpus_of(documents)
    options = form_of(documents, seq_len, short_seq_prob, strict=strict).settings
    passes, rng = 60, random.Random(5)
    ours, theirs = [], []
    for draw in range(passes):
        plan = plan_pairs(corpus, options, draw, "sop")
        reference = [*zip(*sequential_pairs(documents, seq_len, short_seq_prob, strict, rng), strict=True)]
        for side, result in ((ours, columns(plan)), (theirs, tuple(map(np.array, reference)))):
            before = (result[0] < result[2]) * result[4]
            side.append(summary(*result, corpus) | {"labeled 1, A before B": float(before.sum())})
    for name in ours[0]:
        one, other = (np.array([statistics[name] for statistics in side]) for side in (ours, theirs))
        error = np.sqrt((one.var() + other.var()) / passes)
        assert abs(one.mean() - other.mean()) <= 4.5 * error + 1e-9, (name, one.mean(), other.mean(), error)


@settings(max_examples=100, deadline=None)
@given(documents_strategy, st.integers(5, 40), st.integers(0, 5), st.booleans())
def test_every_pair_fits_and_is_labeled_by_its_order(documents, seq_len, seed, strict):
    corpus, plan = plan_of(documents, seq_len=seq_len, seed=seed, strict=strict)
    assert (plan.a_length >= 1).all() and (plan.b_length >= 1).all()
    assert (plan.a_length + plan.b_length <= seq_len - 3).all()
    a_document, b_document = (
        np.searchsorted(corpus.document_tokens, start, side="right") - 1 for start in (plan.a_start, plan.b_start)
    )
    in_order = ~plan.label
    assert (a_document == b_document)[in_order].all()
    assert (plan.b_start >= plan.a_start + plan.a_length)[in_order].all()
    if strict:
        assert (a_document == b_document).all()
        assert (plan.a_start >= plan.b_start + plan.b_length)[plan.label].all()
    assert len(np.unique(plan.a_start)) == plan.num_pairs  # they are the identities


def test_half_of_the_pairs_are_swapped_and_single_sentences_are_extra():
    """P(label 1) = s + (1 - s) / 2, s the share of chunks of one sentence; strict: one half."""
    documents = [[9, 9], [30], [12, 8, 9, 9, 9]] * 700  # with 17 tokens per row: [9, 9] [30] [12, 8] [9, 9] [9]
    strict, released = (plan_of(documents, short_seq_prob=0.0, strict=strict)[1] for strict in (True, False))
    assert strict.num_pairs == 3 * 700 and released.num_pairs == 5 * 700
    for plan, share in ((strict, 0.5), (released, 0.4 + 0.6 * 0.5)):
        random_ones = 0.0 if plan is strict else 0.4
        error = np.sqrt(0.25 * (1 - random_ones) / plan.num_pairs)
        assert abs(plan.label.mean() - share) < 4.5 * error
    assert (plan_of([[30]] * 5)[1].label).all() and plan_of([[30]] * 5, strict=True)[1].num_pairs == 0


def test_a_swapped_pair_is_truncated_after_the_swap():
    """Both sides are too long and equally long: the second in the row loses one more, whichever it was in the text."""
    _, plan = plan_of([[15, 15]] * 400, seq_len=16, short_seq_prob=0.0, strict=True)
    assert plan.num_pairs == 0  # a chunk ends with the sentence that reaches the target
    _, plan = plan_of([[12, 15]] * 400, seq_len=17, short_seq_prob=0.0, strict=True)
    assert 100 < plan.label.sum() < 300
    assert set(plan.a_length.tolist()) == set(plan.b_length.tolist()) == {7}
    _, plan = plan_of([[12, 15]] * 400, seq_len=18, short_seq_prob=0.0, strict=True)
    assert set(plan.a_length.tolist()) == {8} and set(plan.b_length.tolist()) == {7}


def test_rows_hold_the_label_and_the_order():
    form = form_of([[3, 4, 2, 5, 3, 6]] * 30, seq_len=16, dupe_factor=2)
    batch = form.sequences(0, np.arange(form.num_sequences(0)))
    plan = plan_pairs(corpus_of([[3, 4, 2, 5, 3, 6]] * 30), form.settings, 0, "sop")
    assert batch["pair_labels"].shape == (plan.num_pairs, 1) and batch["pair_labels"].dtype == np.int32
    firsts = {
        int(start) + 10: (int(b) + 10, int(label))
        for start, b, label in zip(plan.a_start, plan.b_start, plan.label, strict=True)
    }
    for row in range(plan.num_pairs):
        ids = batch["input_ids"][row]
        second = int(ids[np.flatnonzero(batch["token_type_ids"][row])[0]])
        assert firsts[int(ids[1])] == (second, int(batch["pair_labels"][row, 0]))
    assert len({form.num_sequences(epoch) for epoch in (0, 2)}) == 1
    other = form.sequences(1, np.arange(form.num_sequences(1)))
    assert sorted(batch["input_ids"].tolist()) != sorted(other["input_ids"].tolist())


@pytest.mark.parametrize("strict", [False, True])
def test_counting_equals_planning(strict):
    documents = random_documents(60, 10)
    form = form_of(documents, dupe_factor=5, strict=strict)
    corpus = corpus_of(documents)
    planned = [plan_pairs(corpus, form.settings, epoch % 5, "sop").num_pairs for epoch in range(7)]
    assert [form.num_sequences(epoch) for epoch in range(7)] == planned
    assert planned[0] == count_pairs(corpus, form.settings, 0, "sop")
