"""What the machine can do, from times that are given."""

import numpy as np

from gpt2tf.bench import machine


def test_limits_are_those_of_the_fastest_read_and_product(monkeypatch):
    """Of two tries of each of three readers, and two of the product; each does all of its work."""
    seconds, results = iter([3, 2, 4, 1, 0.5, 2, 0.25, 0.125]), []
    monkeypatch.setattr(machine, "timed", lambda work: results.append(work()) or next(seconds))
    found = machine.measure_limits(read_bytes=2**24, matmul_size=256, runs=1)
    assert found == machine.Limits(bytes_per_s=2**24 / 0.5, operations_per_s=2 * 256**3 / 0.125)
    for products, total, largest in (results[:3], results[3:6]):
        assert np.array_equal(products, np.full([8, 2**24 // (32 * 2048)], 2048))  # rows of ones, times ones
        assert total == 2**22
        assert largest and set(largest) == {1}
    assert results[6:] == [256, 256]


def test_timed_is_the_time_between(monkeypatch):
    clock, called = [10.0], []

    def work(*args):
        called.append(args)
        clock[0] += 2.5

    monkeypatch.setattr(machine.time, "perf_counter", lambda: clock[0])
    assert (machine.timed(work, 1, 2), called) == (2.5, [(1, 2)])
