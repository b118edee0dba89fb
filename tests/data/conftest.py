from collections.abc import Callable, Iterator
from typing import Any

import pytest
from children import children

from ampsweep.data.base import stop_workers


@pytest.fixture
def opened() -> Iterator[Callable[[Any], Any]]:
    """`opened(data)` returns a data set whose workers end with the test; no process may be left then."""
    made: list[Any] = []

    def opened(data: Any) -> Any:
        made.append(data)
        return data

    yield opened
    for data in made:
        stop_workers(data)
    assert children() == []
