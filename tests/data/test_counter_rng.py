import numpy as np

from bertjax.data.counter_rng import CounterRng, binomial_half, bits_to_integers, permutation


def test_a_stream_is_named():
    first = CounterRng("pairs", 1, 2).random_bits(100)
    assert np.array_equal(first, CounterRng("pairs", 1, 2).random_bits(100))
    assert not np.array_equal(first, CounterRng("pairs", 1, 3).random_bits(100))
    assert not np.array_equal(first, CounterRng("pairs", 12).random_bits(100))


def test_a_stream_does_not_depend_on_how_it_is_read():
    rng = CounterRng("x")
    parts = np.concatenate([rng.random_bits(3), rng.random_bits(1), rng.random_bits(6)])
    assert np.array_equal(parts, CounterRng("x").random_bits(10))


def test_numbers_are_always_the_same():
    """A run resumed with another version of numpy must read the same batches."""
    assert CounterRng("golden", 7).random_bits(2).tolist() == [13534796880091058135, 16918955881845620649]
    assert permutation(8, "golden", 7).tolist() == [2, 5, 7, 4, 3, 0, 6, 1]


def test_integers_are_uniform_below_their_limits():
    values = CounterRng("u").integers(np.full(70_000, 7))
    assert np.bincount(values, minlength=7).max() < 10_000 + 5 * 100
    assert (values >= 0).all() and (values < 7).all()
    top = np.full(1, 2**64 - 1, np.uint64)
    assert bits_to_integers(top, np.array([2**40])).tolist() == [2**40 - 1]
    assert bits_to_integers(top, np.array([0])).tolist() == [0]


def test_permutation_is_one():
    order = permutation(1000, "p", 1)
    assert np.array_equal(np.sort(order), np.arange(1000))
    assert not np.array_equal(order, permutation(1000, "p", 2))
    assert permutation(0, "p").shape == (0,)


def test_heads_is_binomial():
    for tosses in (1, 5, 64, 65, 1000):
        result = binomial_half(np.full(20_000, tosses), CounterRng("coins", tosses))
        assert result.min() >= 0 and result.max() <= tosses
        assert abs(result.mean() - tosses / 2) < 5 * np.sqrt(tosses / 4 / 20_000)
        assert abs(result.var() / (tosses / 4) - 1) < 0.06
    assert binomial_half(np.array([0, 3, 0]), CounterRng("coins"))[[0, 2]].tolist() == [0, 0]
