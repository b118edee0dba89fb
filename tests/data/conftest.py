import pytest
from children import children

from ampsweep.data.base import stop_workers


@pytest.fixture
def opened():
    """`opened(data)` returns a data set whose workers end with the test; no process may be left then."""
    made = []
    yield lambda data: made.append(data) or data
    for data in made:
        stop_workers(data)
    assert children() == []
