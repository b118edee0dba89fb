"""Lets Hydra run command lines (JSON on stdin) with a job that does nothing; prints the overrides of their jobs."""

import json
import sys

import hydra
from hydra.core.hydra_config import HydraConfig

from ampsweep.config import hydra_config  # noqa: F401  (registers the schemas)
from ampsweep.config.compose import conf_dir


def jobs(overrides):
    found = []

    def job(composed):
        found.append(list(HydraConfig.get().overrides.task))

    sys.argv = ["train.py", "--multirun", *overrides]
    hydra.main(config_path=str(conf_dir()), config_name="config", version_base="1.3")(job)()
    return found


print(json.dumps([jobs(overrides) for overrides in json.load(sys.stdin)]))
