"""The search for the largest batch: right for every truth, and resumed where it was interrupted."""

from itertools import product

import pytest

from ampsweep.records.batch_search import BatchSearch, Probe
from ampsweep.records.outcome import OutOfMemory

LIMIT = 40


def probe(size, truth):
    """The answer of a device on which batches up to `truth` train."""
    if size <= truth:
        return Probe(batch_size=size, outcome="trains", peak_bytes=size)
    return Probe(batch_size=size, outcome="oom", oom=OutOfMemory(phase="forward"), error="too large")


def ended(search, truth):
    """Take the search to its end; return the batches it asked for."""
    asked = []
    while (size := search.next_batch) is not None:
        asked.append(size)
        search.add(probe(size, truth))
    return asked


@pytest.mark.parametrize("doubling", [True, False])
def test_it_finds_the_largest_batch_from_wherever_it_begins(doubling):
    for truth, first in product(range(LIMIT + 3), range(1, LIMIT + 3)):
        search = BatchSearch(limit=LIMIT, first=first, stride=first if doubling else 1)
        asked = ended(search, truth)
        assert search.largest == min(truth, LIMIT)
        assert all(1 <= size <= LIMIT for size in asked)
        assert len(set(asked)) == len(asked) <= 12, "nothing is asked twice, and it is logarithmic"
        assert (search.refusing is None) == (truth >= LIMIT)
        if search.refusing is not None:
            assert search.refusing.batch_size == search.largest + 1, "the very next batch was tried"


def test_a_good_guess_takes_few_probes_and_none_bisects():
    assert ended(BatchSearch(limit=65536, first=1000, stride=1), 1000) == [1000, 1001]
    assert len(ended(BatchSearch(limit=65536, first=1000, stride=1), 1007)) <= 8
    assert len(ended(BatchSearch(limit=65536, first=1000, stride=1), 993)) <= 8
    assert ended(BatchSearch(limit=65536, first=8, stride=8), 50) == [8, 16, 32, 64, 48, 56, 52, 50, 51]


def test_a_batch_that_fails_later_moves_the_search_below_it():
    search = BatchSearch(limit=LIMIT, first=8, stride=8)
    ended(search, 20)
    search.add(probe(20, truth=18))
    assert ended(search, 18) == [18, 19]
    assert search.largest == 18
    assert [tried.batch_size for tried in search.probes].count(20) == 1


def test_on_a_device_with_gaps_it_finds_a_batch_below_a_failure():
    search = BatchSearch(limit=LIMIT, first=8, stride=8)
    while (size := search.next_batch) is not None:
        search.add(probe(size, 0 if size in (20, 24, 32) else LIMIT))
    assert search.largest == 19
    assert search.refusing.batch_size == 20
