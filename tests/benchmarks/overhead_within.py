"""A step's cost above a bare loop's within one process: `python tests/benchmarks/overhead_within.py`, see README.md.

Processes differ from each other by more than the suite costs a step of 5 ms. Here blocks of steps alternate in one, on
the same model, optimizer and batches. The rows go to `history.jsonl`; W&B's process beside the training is not there,
and the device is sampled in all blocks alike. JSON goes to stdout.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from loops import ampsweep_overrides
from rounds import against_bare, machine
from workload import SIZES, Batches

from ampsweep.config.compose import compose_one
from ampsweep.run.request import new_record
from ampsweep.tracking.tracker import Tracker
from ampsweep.training.assembly import assemble_trainer
from ampsweep.training.components.built import build, build_data
from ampsweep.training.trainer import Trainer

CPU = torch.device("cpu")
THRESHOLDS = {"MALLOC_TRIM_THRESHOLD_": str(2**30), "MALLOC_MMAP_THRESHOLD_": str(2**30)}
"""glibc gives the memory of freed gradients back to the system, or keeps it, as their order falls out: a tenth of a
step of 5 ms, and by chance more or less in each loop."""

STEPS = {"small": 400, "large": 40}
"""Of a block; a multiple of every logging interval."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=tuple(SIZES), default="large", help="a step of 0.2 ms or of 5 ms")
    parser.add_argument("--rounds", type=int, default=40)
    arguments = parser.parse_args()
    if not THRESHOLDS.items() <= os.environ.items():
        sys.exit(subprocess.run([sys.executable, *sys.argv], env=os.environ | THRESHOLDS, check=False).returncode)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as directory:
        print(json.dumps(_measure(arguments.size, arguments.rounds, Path(directory)), indent=1))


def _measure(size: str, num_rounds: int, directory: Path) -> dict[str, object]:
    config = compose_one(ampsweep_overrides(SIZES[size], log_every=10))
    built, history, steps = build(config, CPU, build_data(config, CPU)), Tracker(), STEPS[size]
    history.start(new_record(config, device="cpu"), directory, resume_after=None)
    trainer = assemble_trainer(config, built, CPU, tracker=history)
    blocks = {
        "bare": partial(_bare, trainer, steps, with_norm=False),
        "bare, with the gradients' norm": partial(_bare, trainer, steps, with_norm=True),
        **{f"ampsweep, log_every={every}": partial(_suite, trainer, steps, every) for every in (10, 1)},
    }
    with trainer.instruments:
        for block in blocks.values():  # the first steps are traced, and what follows is warm
            block()
        rounds = [
            {name: _timed(blocks[name]) for name in random.sample([*blocks], len(blocks))} for _ in range(num_rounds)
        ]
    times = {name: [one[name] for one in rounds] for name in blocks}
    variants = {name: against_bare(times[name], times["bare"]) for name in blocks}
    return {"size": size, "machine": machine([os.getloadavg()[0]]), "num_rounds": num_rounds, "variants": variants}


def _timed(block: Callable[[], None]) -> float:
    """Microseconds a step of a block took, from the first step's batch to the last one's."""
    begin = len(Batches.fetched_s)
    block()
    marks = Batches.fetched_s[begin:]
    return 1e6 * (marks[-1] - marks[0]) / (len(marks) - 1)


def _bare(trainer: Trainer, steps: int, *, with_norm: bool) -> None:
    model, data, optimizer = trainer.model, trainer.data, trainer.optimizers["optimizer"]
    model.train()
    for index in range(steps + 1):
        inputs, targets = data.train_batch(index)
        F.mse_loss(model(inputs), targets).backward()
        if with_norm:
            torch.nn.utils.get_total_norm([parameter.grad for parameter in model.parameters()])
        optimizer.step()
        optimizer.zero_grad()


def _suite(trainer: Trainer, steps: int, log_every: int) -> None:
    trainer.config.log_every = log_every
    trainer.num_steps = trainer.step + steps + 1
    ending = trainer.train(SimpleNamespace(reason=""))
    assert ending.status == "completed", ending


if __name__ == "__main__":
    main()
