"""Has Hydra run command lines (JSON on stdin) with a job that does nothing; prints the overrides of their jobs."""

import json
import sys
from pathlib import Path

from hydra.core.hydra_config import HydraConfig

from ampsweep.commands.hydra_job import run_all
from ampsweep.config.compose import compose_points


def jobs(overrides):
    found = []

    def job(composed):
        found.append(list(HydraConfig.get().overrides.task))

    directory = Path("sweep").absolute()
    directory.mkdir(exist_ok=True)
    run_all(compose_points(overrides, multirun=True), directory, job)
    return found


print(json.dumps([jobs(overrides) for overrides in json.load(sys.stdin)]))
