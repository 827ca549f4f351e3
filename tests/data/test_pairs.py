"""BERT's sentence pairs: exact properties, and statistics compared with a plain sequential reference."""

import math
import random
import types

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bertjax.data.formats.sentence_pairs as pairs_module
from bertjax.data.corpus import Corpus, offsets
from bertjax.data.counter_rng import CounterRng
from bertjax.data.formats import make_format
from bertjax.data.formats.sentence_pairs import PairPlan, count_pairs, plan_pairs

PAD, CLS, SEP = 0, 2, 3
SPECIAL_IDS = types.SimpleNamespace(pad_id=PAD, cls_id=CLS, sep_id=SEP)
FIRST_ID = 10


def corpus_of(documents):
    """`documents` are lists of sentence lengths; token t of the corpus has the id FIRST_ID + t."""
    lengths = [length for document in documents for length in document]
    ids = np.arange(FIRST_ID, FIRST_ID + sum(lengths), dtype=np.int32)
    return Corpus([ids], lengths, offsets([len(d) for d in documents]), np.zeros(0, np.int64), "toy")


def form_of(documents, seq_len=20, short_seq_prob=0.1, dupe_factor=1, seed=1):
    return make_format(
        "nsp_pairs",
        corpus_of(documents),
        seq_len=seq_len,
        seed=seed,
        special_ids=SPECIAL_IDS,
        short_seq_prob=short_seq_prob,
        dupe_factor=dupe_factor,
    )


def plan_of(documents, draw=0, **changes):
    corpus = corpus_of(documents)
    return corpus, plan_pairs(corpus, form_of(documents, **changes).settings, draw)


def random_documents(count, seed, mean_sentences=8, mean_length=9):
    rng = np.random.default_rng(seed)
    sizes = rng.geometric(1 / mean_sentences, count)
    return [rng.geometric(1 / mean_length, size).tolist() for size in sizes]


# --- the reference: one document after another, tokens in lists, dropped one by one ---


def sequential_pairs(documents, seq_len, short_seq_prob, rng):
    """Returns tuples (start of A, length of A, start of B, length of B, label)."""
    position, texts = 0, []
    for document in documents:
        texts.append([])
        for length in document:
            texts[-1].append(list(range(position, position + length)))
            position += length
    return [
        pair for number in range(len(texts)) for pair in pairs_of_document(texts, number, seq_len, short_seq_prob, rng)
    ]


def pairs_of_document(texts, number, seq_len, short_seq_prob, rng):
    longest = seq_len - 3
    target = rng.randint(2, longest) if rng.random() < short_seq_prob else longest
    sentences, at = texts[number], 0
    while at < len(sentences):
        chunk = []
        while at < len(sentences) and sum(map(len, chunk)) < target:
            chunk.append(sentences[at])
            at += 1
        a_end = rng.randint(1, len(chunk) - 1) if len(chunk) > 1 else 1
        a = joined(chunk[:a_end])
        label = int(len(chunk) == 1 or rng.random() < 0.5)
        if label:
            b = random_b(texts, number, target - len(a), rng)
            at -= len(chunk) - a_end
        else:
            b = joined(chunk[a_end:])
        a, b = shortened(a, b, longest, rng)
        yield a[0], len(a), b[0], len(b), label


def joined(sentences):
    return [token for sentence in sentences for token in sentence]


def random_b(texts, number, length, rng):
    for _ in range(10):
        other = rng.randrange(len(texts))
        if other != number:
            break
    b = []
    for sentence in texts[other][rng.randrange(len(texts[other])) :]:
        b = b + sentence
        if len(b) >= length:
            break
    return b


def shortened(a, b, longest, rng):
    a, b = list(a), list(b)
    while len(a) + len(b) > longest:
        (a if len(a) > len(b) else b).pop(0 if rng.random() < 0.5 else -1)
    return a, b


def summary(a_start, a_length, b_start, b_length, label, corpus):
    """Returns sums over the pairs of one pass that a wrong rule would change."""
    ends = corpus.sentence_tokens
    document = np.searchsorted(corpus.document_tokens, a_start, side="right")
    b_document = np.searchsorted(corpus.document_tokens, b_start, side="right")
    total = a_length + b_length
    statistics = {
        "pairs": total > 0,
        "random B": label,
        "length of A": a_length,
        "length of B": b_length,
        "length of random B": b_length * label,
        "length": total,
        "square of length": total**2,
        "full": total == total.max(),
        "A cut at the front": ~np.isin(a_start, ends),
        "A cut at the back": ~np.isin(a_start + a_length, ends),
        "B cut at the front": ~np.isin(b_start, ends),
        "B cut at the back": ~np.isin(b_start + b_length, ends),
        "A is longer": a_length > b_length,
        "random B from the same document": (document == b_document) * label,
        "sentences in A": np.searchsorted(ends, a_start + a_length) - np.searchsorted(ends, a_start),
        "position of random B": b_start * label / corpus.num_tokens,
    }
    return {name: float(values.sum()) for name, values in statistics.items()}


@pytest.mark.parametrize(
    ("documents", "seq_len", "short_seq_prob"),
    [
        (random_documents(150, 0), 32, 0.1),
        (random_documents(60, 1, mean_sentences=30, mean_length=4), 64, 0.1),
        (random_documents(150, 2), 33, 0.8),
        (random_documents(150, 3, mean_sentences=3, mean_length=40), 24, 0.1),  # sentences longer than rows
        (random_documents(2, 4, mean_sentences=60), 24, 0.1),
        (random_documents(1, 6, mean_sentences=200), 24, 0.1),  # one document: random B comes from the same document
    ],
)
def test_statistics_are_those_of_the_sequential_reference(documents, seq_len, short_seq_prob):
    corpus = corpus_of(documents)
    options = form_of(documents, seq_len, short_seq_prob).settings
    passes = max(40, 20_000 // corpus.num_sentences)
    rng = random.Random(5)
    ours, theirs = [], []
    for draw in range(passes):
        ours.append(summary(*columns(plan_pairs(corpus, options, draw)), corpus))
        reference = zip(*sequential_pairs(documents, seq_len, short_seq_prob, rng), strict=True)
        a_start, a_length, b_start, b_length, label = map(np.array, reference)
        theirs.append(summary(a_start, a_length, b_start, b_length, label, corpus))
    for name in ours[0]:
        one, other = (np.array([statistics[name] for statistics in side]) for side in (ours, theirs))
        # pairs of one document share their target, so only whole passes are independent
        error = np.sqrt((one.var() + other.var()) / passes)
        assert abs(one.mean() - other.mean()) <= 4.5 * error, (name, one.mean(), other.mean(), error)


def columns(plan):
    return plan.a_start, plan.a_length, plan.b_start, plan.b_length, plan.label.astype(np.int64)


documents_strategy = st.lists(
    st.lists(st.one_of(st.integers(1, 6), st.integers(1, 200)), min_size=1, max_size=12), min_size=1, max_size=12
)


@settings(max_examples=150, deadline=None)
@given(documents_strategy, st.integers(5, 40), st.floats(0, 1), st.integers(0, 5))
def test_every_pair_fits_and_stays_inside_its_documents(documents, seq_len, short_seq_prob, seed):
    corpus, plan = plan_of(documents, seq_len=seq_len, short_seq_prob=short_seq_prob, seed=seed)
    assert plan.num_pairs >= corpus.num_documents
    assert (plan.a_length >= 1).all() and (plan.b_length >= 1).all()
    assert (plan.a_length + plan.b_length <= seq_len - 3).all()
    begins = corpus.document_tokens
    a_document = np.searchsorted(begins, plan.a_start, side="right") - 1
    b_document = np.searchsorted(begins, plan.b_start, side="right") - 1
    assert (plan.a_start + plan.a_length <= begins[a_document + 1]).all()
    assert (plan.b_start + plan.b_length <= begins[b_document + 1]).all()
    assert set(a_document.tolist()) == set(range(corpus.num_documents))
    true_next = ~plan.label
    assert (a_document[true_next] == b_document[true_next]).all()
    assert (plan.b_start[true_next] >= (plan.a_start + plan.a_length)[true_next]).all()
    assert len(np.unique(plan.a_start)) == plan.num_pairs  # they are the identities


@settings(max_examples=100, deadline=None)
@given(documents_strategy, st.integers(5, 40), st.integers(0, 5))
def test_chunks_follow_each_other(documents, seq_len, seed):
    """Each chunk is the fewest sentences that reach the target; the next begins where this one, or its A, ended."""
    corpus, options = corpus_of(documents), form_of(documents, seq_len=seq_len, short_seq_prob=0.5, seed=seed).settings
    group = range(corpus.num_documents)
    chunks = pairs_module._cut_chunks(corpus, options, group, CounterRng("test", seed), "nsp")
    tokens = corpus.sentence_tokens
    for document in group:
        here = np.flatnonzero(chunks.document == document)
        assert len(set(chunks.target[here])) == 1  # drawn once per document
        first, end = corpus.document_sentences[document : document + 2]
        for i in here:
            assert chunks.first[i] == first < chunks.a_end[i] <= chunks.last[i] <= end
            whole = tokens[chunks.last[i]] - tokens[first]
            assert whole >= chunks.target[i] or chunks.last[i] == end
            assert tokens[chunks.last[i] - 1] - tokens[first] < chunks.target[i]
            if chunks.last[i] - first == 1:
                assert chunks.is_random[i] and chunks.a_end[i] == chunks.last[i]
            else:
                assert chunks.a_end[i] < chunks.last[i]
            first = chunks.a_end[i] if chunks.is_random[i] else chunks.last[i]
        assert first == end


def test_short_targets_are_uniform_from_two_to_the_longest():
    corpus, options = corpus_of([[1]] * 11_000), form_of([[1]], seq_len=14, short_seq_prob=1.0).settings
    targets = pairs_module._cut_chunks(corpus, options, range(11_000), CounterRng("test"), "nsp").target
    shares = np.bincount(targets, minlength=12)
    assert shares[:2].tolist() == [0, 0] and len(shares) == 12
    assert np.abs(shares[2:] - 1100).max() < 5 * np.sqrt(1100)


def test_without_truncation_every_token_is_covered_and_b_begins_where_a_ends():
    """Sentences of one token never exceed the target, so pairs show whole chunks."""
    documents = [[1] * size for size in (1, 2, 17, 40, 500)]
    corpus, plan = plan_of(documents, seq_len=20, short_seq_prob=0.0)
    true_next = ~plan.label
    assert np.array_equal(plan.b_start[true_next], (plan.a_start + plan.a_length)[true_next])
    covered = np.zeros(corpus.num_tokens, np.int64)
    for start, length in [
        *zip(plan.a_start, plan.a_length, strict=True),
        *zip(plan.b_start[true_next], plan.b_length[true_next], strict=True),
    ]:
        covered[start : start + length] += 1
    assert (covered == 1).all()
    assert 0.3 < true_next.mean() < 0.6


def test_random_b_comes_from_another_document():
    corpus, plan = plan_of([[3] * 40] * 50, seq_len=24)
    documents = [np.searchsorted(corpus.document_tokens, x, side="right") for x in (plan.a_start, plan.b_start)]
    assert (documents[0] == documents[1])[plan.label].mean() == 0  # ten tries fail once in 50**10
    assert len(set(documents[1][plan.label].tolist())) == 50


def test_truncation_takes_turns_and_both_ends():
    many = np.full(40_000, 0)
    a, b = many + 30, many + 22
    plan = pairs_module._truncate(PairPlan(many + 100, a, many + 500, b, many == 1), 41, CounterRng("test"))
    assert set(plan.a_length.tolist()) == {21} and set(plan.b_length.tolist()) == {20}  # 8 of A, then B, A, B
    for dropped, total in ((plan.a_start - 100, 9), (plan.b_start - 500, 2)):
        shares = np.bincount(dropped, minlength=total + 1) / len(many)
        binomial = [math.comb(total, k) / 2**total for k in range(total + 1)]
        assert np.abs(shares - binomial).max() < 0.012


def test_one_sentence_per_document_makes_all_pairs_random():
    _, plan = plan_of([[7]] * 30)
    assert plan.num_pairs == 30 and plan.label.all()


def test_groups_share_nothing_but_the_corpus(monkeypatch):
    """Documents are drawn in groups, by threads; pairs still span the corpus and do not change."""
    monkeypatch.setattr(pairs_module, "SENTENCES_PER_GROUP", 50)
    documents = random_documents(100, 8)
    corpus, plan = plan_of(documents)
    assert len(list(pairs_module._groups(corpus))) > 5
    _, again = plan_of(documents)
    for one, other in zip(columns(plan), columns(again), strict=True):
        assert np.array_equal(one, other)
    assert plan.num_pairs == count_pairs(corpus, form_of(documents).settings, 0)
    assert plan.b_start[plan.label].max() > 0.9 * corpus.num_tokens
    assert plan.b_start[plan.label].min() < 0.1 * corpus.num_tokens


def test_layout():
    form = form_of([[3, 4, 2, 5, 3, 6]] * 4, seq_len=16)
    plan = plan_pairs(corpus_of([[3, 4, 2, 5, 3, 6]] * 4), form.settings, 0)
    batch = form.sequences(0, np.arange(form.num_sequences(0)))
    assert batch["pair_labels"].shape == (plan.num_pairs, 1) and batch["pair_labels"].dtype == np.int32
    visible = set()
    for row in range(plan.num_pairs):
        one = {name: array[row] for name, array in batch.items()}
        i = int(np.flatnonzero(plan.a_start + FIRST_ID == one["input_ids"][1])[0])
        visible.add(i)
        a = list(range(FIRST_ID + plan.a_start[i], FIRST_ID + plan.a_start[i] + plan.a_length[i]))
        b = list(range(FIRST_ID + plan.b_start[i], FIRST_ID + plan.b_start[i] + plan.b_length[i]))
        used, rest = len(a) + len(b) + 3, 13 - len(a) - len(b)
        assert one["input_ids"].tolist() == [CLS, *a, SEP, *b, SEP] + [PAD] * rest
        assert one["token_type_ids"].tolist() == [0] * (len(a) + 2) + [1] * (len(b) + 1) + [0] * rest
        assert one["segment_ids"].tolist() == [1] * used + [0] * rest
        assert one["position_ids"].tolist() == list(range(used)) + [0] * rest
        assert one["pair_labels"].tolist() == [int(plan.label[i])]
    assert visible == set(range(plan.num_pairs))


def test_pairs_are_redrawn_every_epoch_with_the_period_dupe_factor():
    form = form_of(random_documents(40, 9), dupe_factor=2)

    def epoch(number):
        batch = form.sequences(number, np.arange(form.num_sequences(number)))
        assert (batch["example_draws"] == number % 2).all()
        return batch["input_ids"]

    first, second, third = epoch(0), epoch(1), epoch(2)
    assert sorted(first.tolist()) == sorted(third.tolist()) != sorted(second.tolist())
    assert not np.array_equal(first, third)
    assert np.array_equal(epoch(0), first)


def test_the_seed_changes_the_pairs():
    documents = random_documents(40, 9)
    assert not np.array_equal(plan_of(documents, seed=1)[1].a_length[:30], plan_of(documents, seed=2)[1].a_length[:30])


def test_counting_equals_planning():
    documents = random_documents(60, 10)
    form = form_of(documents, dupe_factor=5)
    counted = [form.num_sequences(epoch) for epoch in range(7)]
    assert counted == [plan_pairs(corpus_of(documents), form.settings, epoch % 5).num_pairs for epoch in range(7)]


def test_a_failed_plan_is_tried_again(monkeypatch):
    form = form_of(random_documents(5, 11))
    attempts = []

    def fail_once(*arguments):
        attempts.append(1)
        if len(attempts) == 1:
            raise MemoryError("no memory")
        return plan_pairs(*arguments)

    monkeypatch.setattr(pairs_module, "plan_pairs", fail_once)
    with pytest.raises(MemoryError):
        form.sequences(0, np.arange(1))
    assert form.sequences(0, np.arange(1))["input_ids"].shape == (1, 20)


def test_plan_is_small():
    _, plan = plan_of(random_documents(50, 12))
    assert isinstance(plan, PairPlan)
    assert sum(getattr(plan, name).itemsize for name in vars(plan)) <= 13  # bytes per pair
