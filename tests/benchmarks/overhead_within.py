"""A step's cost above a bare loop's within one process: `python tests/benchmarks/overhead_within.py`, see README.md.

Processes differ from each other by more than the suite costs a step of 5 ms. Here blocks of steps alternate in one, on
the same sizes and batches: the suite's training, and the bare loop within `ampsweep.record` and under the hooks of
`ampsweep record`. The rows go to `history.jsonl`; W&B's process beside the training is not there, and the device is
sampled in all blocks alike. Beside the time, that of the processor: where others compute as well, it tells more. JSON
goes to stdout.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from loops import ampsweep_overrides
from rounds import against_bare, machine
from workload import SIZES, Batches, Size, fresh

import ampsweep
from ampsweep.config.compose import compose_one
from ampsweep.integrations.script.hooks import Hooks
from ampsweep.integrations.script.session import VARIABLE, Session
from ampsweep.integrations.script.watcher import ScriptWatcher
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
    parser.add_argument("--scaler", action="store_true", help="with a GradScaler in every loop, all in float32")
    arguments = parser.parse_args()
    if not THRESHOLDS.items() <= os.environ.items():
        sys.exit(subprocess.run([sys.executable, *sys.argv], env=os.environ | THRESHOLDS, check=False).returncode)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as directory:
        measured = _measure(arguments.size, arguments.rounds, Path(directory), with_scaler=arguments.scaler)
    print(json.dumps(measured, indent=1))


def _measure(size: str, num_rounds: int, directory: Path, *, with_scaler: bool) -> dict[str, object]:
    overrides = ampsweep_overrides(SIZES[size], log_every=10)
    config = compose_one([*overrides, *(["precision.grad_scaler=true"] if with_scaler else [])])
    built, history, steps = build(config, CPU, build_data(config, CPU)), Tracker(), STEPS[size]
    history.start(new_record(config, device="cpu"), directory, resume_after=None)
    trainer = assemble_trainer(config, built, CPU, tracker=history)
    bare, own, hooked = (Loop(SIZES[size], with_scaler=with_scaler) for _ in range(3))
    run = ampsweep.record(
        model=own.model,
        optimizer=own.optimizer,
        scaler=own.scaler if with_scaler else None,
        directory=directory / "own",
    )
    session = Session(folder=str(directory), root=str(directory / "hooked"))
    os.environ[VARIABLE] = session.variable()  # after the other recording, which would take part in the session
    watcher = ScriptWatcher(session)
    watcher.hooks.close()

    def under_hooks() -> None:
        watcher.hooks = Hooks(watcher)
        hooked.run(steps)
        watcher.hooks.close()

    blocks = {
        "bare": partial(bare.run, steps),
        "bare, with the gradients' norm": partial(bare.run, steps, with_norm=True),
        "ampsweep.record, log_every=10": partial(own.run, steps, run),
        "ampsweep record, by hooks": under_hooks,
        **{f"ampsweep, log_every={every}": partial(_suite, trainer, steps, every) for every in (10, 1)},
    }
    with trainer.instruments, run:
        for block in blocks.values():  # the first steps are traced, and what follows is warm
            block()
        rounds = [
            {name: _timed(blocks[name]) for name in random.sample([*blocks], len(blocks))} for _ in range(num_rounds)
        ]
    watcher.end()
    times, cpu_times = ({name: [one[name][which] for one in rounds] for name in blocks} for which in (0, 1))
    return {
        "size": size,
        "machine": machine([os.getloadavg()[0]]),
        "num_rounds": num_rounds,
        "variants": {name: against_bare(times[name], times["bare"]) for name in blocks},
        "processor time": {name: against_bare(cpu_times[name], cpu_times["bare"]) for name in blocks},
    }


def _timed(block: Callable[[], None]) -> tuple[float, float]:
    """Microseconds a step of a block took, from the first step's batch to the last one's, and this thread's of all."""
    begin, began_s = len(Batches.fetched_s), time.thread_time()
    block()
    spent_s, marks = time.thread_time() - began_s, Batches.fetched_s[begin:]
    return 1e6 * (marks[-1] - marks[0]) / (len(marks) - 1), 1e6 * spent_s / len(marks)


class Loop:
    """A training by hand, as `ampsweep` does it with the same overrides."""

    def __init__(self, size: Size, *, with_scaler: bool) -> None:
        self.model, self._data, self.optimizer = fresh(size)
        self.scaler = torch.amp.GradScaler("cpu", enabled=with_scaler)

    def run(self, steps: int, recording: ampsweep.record | None = None, *, with_norm: bool = False) -> None:
        for index in range(steps + 1):
            if recording is None:
                self._step(index, with_norm=with_norm)
                continue
            with recording.step():
                loss = self._step(index)
            recording.log(loss=loss)

    def _step(self, index: int, *, with_norm: bool = False) -> torch.Tensor:
        inputs, targets = self._data.train_batch(index)
        loss = F.mse_loss(self.model(inputs), targets)
        self.scaler.scale(loss).backward()
        if with_norm:
            torch.nn.utils.get_total_norm([parameter.grad for parameter in self.model.parameters()])
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        return loss


def _suite(trainer: Trainer, steps: int, log_every: int) -> None:
    trainer.config.log_every = log_every
    trainer.num_steps = trainer.step + steps + 1
    ending = trainer.train(SimpleNamespace(reason=""))
    assert ending.status == "completed", ending


if __name__ == "__main__":
    main()
