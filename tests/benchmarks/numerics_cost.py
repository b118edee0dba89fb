"""The cost of watching numerics at its default cadence: `python tests/benchmarks/numerics_cost.py`, see README.md.

Two trainings of one config, of which one is watched, alternate in blocks within one process, at a step of 5 ms. Looks
are rare and dear, so that the ratio is that of the sums over all blocks. JSON goes to stdout, with the number of Python
calls in a step of the training that is not watched.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from time import perf_counter, thread_time
from types import FrameType
from typing import Any

import torch
from loops import ampsweep_overrides
from overhead_within import CPU, ENVIRONMENT, NoStop
from rounds import machine
from workload import SIZES

from ampsweep.config.compose import compose_points
from ampsweep.training.assembly import assemble_trainer
from ampsweep.training.components.built import build, build_data
from ampsweep.training.trainer import Trainer

STEPS = 40
"""Of a block; a multiple of the logging interval."""
WORKLOADS = {
    "mlp": (*ampsweep_overrides(SIZES["large"], log_every=10), "trainer.max_grad_norm=1.0"),
    "mlp, not clipped": ampsweep_overrides(SIZES["large"], log_every=10),
    "gpt": (
        *("model=gpt_tiny", "model.hidden_size=32", "model.num_heads=2", "model.num_layers=2", "data=synthetic_tokens"),
        *("data.vocab_size=64", "data.seq_len=32", "data.batch_size=8", "device=cpu", "tracking=disabled"),
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--workload", choices=tuple(WORKLOADS), action="append", help="all, if none is given")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--calls", action="store_true", help="count Python calls only; for other versions, too")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if not arguments.worker:
        command = [sys.executable, __file__, *sys.argv[1:], "--worker"]
        sys.exit(subprocess.run(command, env=os.environ | ENVIRONMENT, check=False).returncode)
    torch.set_num_threads(1)
    chosen = arguments.workload or [*WORKLOADS]
    overrides = {name: (*WORKLOADS[name], f"precision={arguments.precision}") for name in chosen}
    found: dict[str, Any] = {name: {"calls_of_a_step": _num_calls(each)} for name, each in overrides.items()}
    if not arguments.calls:
        for name, each in overrides.items():
            found[name] |= _measure(each, arguments.rounds)
    print(json.dumps({"machine": machine([os.getloadavg()[0]]), **found}, indent=1))


def _measure(overrides: Sequence[str], num_rounds: int) -> dict[str, object]:
    trainers = {"off": _trainer(overrides), "on": _trainer([*overrides, "numerics.watch=true"], may_watch=True)}
    for trainer in trainers.values():
        trainer.instruments.__enter__()
        _block(trainer)  # the first steps are traced and looked into, and what follows is warm
    rounds = [{name: _timed_ms(trainers[name]) for name in random.sample([*trainers], 2)} for _ in range(num_rounds)]
    watched = trainers["on"]
    return {
        "step_ms": {name: statistics.median(one[name][0] for one in rounds) for name in trainers},
        "ratio": _ratio([{name: both[0] for name, both in one.items()} for one in rounds]),
        "processor_time_ratio": _ratio([{name: both[1] for name, both in one.items()} for one in rounds]),
        "num_looks": len(watched.instruments.watch.numerics().steps),  # type: ignore[attr-defined]
        "num_steps": watched.step,
        "watch_pct": watched.instruments.summary()["instrumentation/watch_pct"],
    }


def _trainer(overrides: Sequence[str], **more: bool) -> Trainer:
    config = compose_points([*overrides, "trainer.steps=100000"], multirun=False).points[0].config
    return assemble_trainer(config, build(config, CPU, build_data(config, CPU)), CPU, **more)


def _timed_ms(trainer: Trainer) -> tuple[float, float]:
    """Time of a step, and its processor time, in which other processes count less."""
    began, began_cpu = perf_counter(), thread_time()
    _block(trainer)
    return 1e3 * (perf_counter() - began) / STEPS, 1e3 * (thread_time() - began_cpu) / STEPS


def _block(trainer: Trainer) -> None:
    trainer.num_steps = trainer.step + STEPS
    ending = trainer.train(NoStop())
    assert ending.status == "completed", ending


def _ratio(rounds: Sequence[dict[str, float]]) -> list[float]:
    """The ratio of the sums, with the middle 95 % of what bootstrapped rounds give."""

    def of(some: Sequence[dict[str, float]]) -> float:
        return sum(one["on"] for one in some) / sum(one["off"] for one in some)

    again = sorted(of(random.choices(rounds, k=len(rounds))) for _ in range(2000))
    return [of(rounds), again[50], again[-51]]


def _num_calls(overrides: Sequence[str]) -> int:
    """Python calls of one step of a training that is not watched, from the instruments' beginning to their end."""
    trainer = _trainer(overrides)
    with trainer.instruments, trainer.precision.flags():
        for _ in range(12):
            _step(trainer)
        return _counted(lambda: _step(trainer))


def _step(trainer: Trainer) -> None:
    trainer.step += 1
    with trainer.instruments.step():
        trainer.train_step()


def _counted(work: Callable[[], None]) -> int:
    num_calls = 0

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal num_calls
        num_calls += event == "call"

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return num_calls


if __name__ == "__main__":
    main()
