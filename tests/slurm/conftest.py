"""A cluster for all tests of a session, and a user's environment on it."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import OneNodeSlurm, one_node_slurm, why_not_here


@pytest.fixture(scope="session")
def cluster() -> Iterator[OneNodeSlurm]:
    """A Slurm that takes jobs; without it the tests are skipped, and say why."""
    if (reason := why_not_here()) is not None:
        pytest.skip(reason)
    with one_node_slurm() as running:
        yield running


@pytest.fixture(scope="session")
def environment(cluster: OneNodeSlurm, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a user of the cluster who is not logged in to W&B."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB_", "SLURM_", "AMPSWEEP_"))}
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    home = str(tmp_path_factory.mktemp("home"))
    return kept | cluster.environment | {"PYTHONPATH": path, "HOME": home, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
