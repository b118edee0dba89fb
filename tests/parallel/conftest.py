import pytest
from rank_pair import RankPair


@pytest.fixture(scope="session")
def pair():
    """Two ranks of one gloo group, in processes that run case after case."""
    ranks = RankPair()
    yield ranks
    ranks.end()
