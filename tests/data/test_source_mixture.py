import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bertjax.data.formats import ExampleFormat
from bertjax.data.mixture import PERIOD, EpochStream, Mixture


class Counted(ExampleFormat):
    """Format that knows only the lengths of its epochs."""

    def __init__(self, lengths):
        self.lengths, self.requested = lengths, []

    @property
    def period(self):
        return len(self.lengths)

    def sequences(self, epoch, indices):
        raise NotImplementedError

    def num_sequences(self, epoch):
        self.requested.append(epoch)
        return self.lengths[epoch % len(self.lengths)]


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=8), st.integers(0, 5))
def test_every_source_is_read_without_gaps(weights, seed):
    mixture = Mixture(weights, seed)
    rows = 3 * mixture.period + 17
    source, index = mixture.locate(np.arange(rows))
    for number in range(len(weights)):
        assert np.array_equal(index[source == number], np.arange((source == number).sum()))
    assert mixture.num_used(rows) == np.bincount(source, minlength=len(weights)).tolist()


def test_shares_are_the_weights():
    source, _ = Mixture([3, 1], seed=1).locate(np.arange(PERIOD))
    assert np.bincount(source).tolist() == [3072, 1024]
    halves = source.reshape(8, -1).mean(axis=1)
    assert (np.abs(halves - 0.25) < 0.08).all()  # shuffled, not one after the other


def test_rare_sources_occur():
    source, _ = Mixture([1e9, 1], seed=1).locate(np.arange(PERIOD + 1))
    assert np.bincount(source).tolist() == [PERIOD, 1]


def test_any_row_can_be_located_alone():
    mixture = Mixture([5, 2, 1], seed=3)
    rows = np.random.default_rng(0).integers(0, 2**50, 1000)
    source, index = mixture.locate(rows)
    for i in range(0, 1000, 100):
        assert [x.tolist() for x in mixture.locate(rows[i : i + 1])] == [[source[i]], [index[i]]]
    assert mixture.num_used(int(rows[0]))[source[0]] == index[0]


def test_the_seed_shuffles():
    one, other = (Mixture([1, 1], seed).locate(np.arange(100))[0] for seed in (1, 2))
    assert not np.array_equal(one, other)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.permutations(range(60)))
def test_epochs_are_laid_end_to_end(lengths, order):
    stream = [(epoch, row) for epoch in range(60) for row in range(lengths[epoch % len(lengths)])][:60]
    epochs = EpochStream(Counted(lengths))
    for index in order:
        result = epochs.locate(np.array([index]))
        assert (result[0][0], result[1][0]) == stream[index]
    result = epochs.locate(np.array(order))
    assert list(zip(*result, strict=True)) == [stream[index] for index in order]


def test_lengths_are_requested_when_needed():
    form = Counted([10, 12, 11, 13])
    epochs = EpochStream(form)
    epochs.locate(np.array([9]))
    assert set(form.requested) == {0}
    epochs.locate(np.array([22]))
    assert set(form.requested) == {0, 1, 2}
    assert [x.tolist() for x in epochs.locate(np.array([46 * 10**9 + 10]))] == [[4 * 10**9 + 1], [0]]
