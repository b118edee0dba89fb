"""A cluster for all tests of a session, and a user's environment on it."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from cluster import PATH, OneNodeSlurm

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue")


@pytest.fixture(scope="session")
def cluster():
    """A Slurm that takes jobs; without it the tests are skipped, and say why."""
    if missing := [program for program in PROGRAMS if shutil.which(program, path=PATH) is None]:
        pytest.skip(f"needs Slurm (Debian's slurm-wlm and munge): no {', '.join(missing)}")
    directory = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))  # short: sockets lie in it
    directory.chmod(0o755)  # required by munged
    running = OneNodeSlurm(directory)
    try:
        running.start()
        yield running
    finally:
        running.stop()
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def environment(cluster, tmp_path_factory):
    """The environment of a user of the cluster who is not logged in to W&B."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB_", "SLURM_", "AMPSWEEP_"))}
    here = Path(__file__).parent
    path = os.pathsep.join([str(here), str(here.parent), os.environ.get("PYTHONPATH", "")])
    home = str(tmp_path_factory.mktemp("home"))
    return kept | cluster.environment | {"PYTHONPATH": path, "HOME": home, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
