"""A user's model whose run a test holds or burdens: it obeys a file named after its job, once it has begun to learn."""

import os
import time
from pathlib import Path

import torch
from own_models import Digits


class Ordered(Digits):
    """Obeys in the fifth step of each process.

    Args:
        orders: the directory of the orders: `3` for the job 12_3, or `job` for one that is in no array. The order
            `wait` holds the run until it is taken back, with a file `3.obeyed` meanwhile; `eat` takes all memory.
    """

    def __init__(self, orders):
        super().__init__()
        self._order = Path(orders) / os.environ.get("SLURM_ARRAY_TASK_ID", "job")
        self._eaten = []

    def happens(self, step):
        if step != 5 or "SLURM_JOB_ID" not in os.environ:
            return
        obeyed = self._order.with_name(f"{self._order.name}.obeyed")
        while self._order.exists():
            if self._order.read_text() == "eat":
                self._eaten.append(torch.ones(2**24))
            obeyed.touch()
            time.sleep(0.05)
        obeyed.unlink(missing_ok=True)
