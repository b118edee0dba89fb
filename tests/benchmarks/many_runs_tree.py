"""Directories of many short runs, as large sweeps of different shapes leave them.

python tests/benchmarks/many_runs_tree.py SHAPE DIRECTORY NUM_RUNS
"""

import itertools
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from report_tree import ARMS, LOG_EVERY, training

from ampsweep.config.compose import compose_points
from ampsweep.config.identity import run_directory_name
from ampsweep.config.modes import PRECISION_MODES, arm_after
from ampsweep.config.schema import Config
from ampsweep.monitors.environment import environment
from ampsweep.record import HISTORY_NAME, RunRecord
from ampsweep.record.batch_search import LARGEST_BATCH, BatchSearch, PredictedBatch, Probe
from ampsweep.record.outcome import OutOfMemory
from ampsweep.record.parts import Attempt, Contamination, StepPrediction

NUM_ROWS = 200
LONG_ROWS = 200_000
STEPS = NUM_ROWS * LOG_EVERY
SEEDS_OF_A_SIZE = 20
_MODES = ("fp32", "amp_bf16", "amp_fp16")


@dataclass(frozen=True)
class Planned:
    """A run of a tree, with what becomes of it."""

    config: Config
    fate: str = "completed"


def _seeds(base: Config, *arms: str) -> Iterator[Planned]:
    """Two arms, or as many as are given, of ever more seeds."""
    for seed in itertools.count():
        for arm in arms or ("fp32", "amp_bf16"):
            yield Planned(_at(base, arm, seed))


def _arms(base: Config) -> Iterator[Planned]:
    return _seeds(base, *ARMS)


def _sizes(base: Config) -> Iterator[Planned]:
    """Ever more sizes of model and batch, five arms by 20 seeds each: a tenth as many models as batch sizes."""
    for number in itertools.count():
        model = {**base.model, "name": f"gpt_{128 * (number // 10 + 1)}", "hidden_size": 128 * (number // 10 + 1)}
        data = {**base.data, "batch_size": 8 * (number % 10 + 1)}
        for seed, arm in itertools.product(range(SEEDS_OF_A_SIZE), ARMS):
            yield Planned(_at(replace(base, model=model, data=data), arm, seed))


def _random_search(base: Config) -> Iterator[Planned]:
    """A learning rate of its own for every five runs, one an arm: as many workloads."""
    for number in itertools.count():
        optimizer = {**base.optimizer, "lr": 1e-4 * (1 + number)}
        for arm in ARMS:
            yield Planned(_at(replace(base, optimizer=optimizer), arm, 0))


def _failures(base: Config) -> Iterator[Planned]:
    """Every second run has an end or a fault of its own."""
    fates = ("oom", "diverged", "failed", "interrupted", "unsupported", "contaminated", "cut short", "disproved")
    fates += ("no history", "torn history", "damaged history", "changed history", "unreadable", "not finite")
    for number, planned in enumerate(_arms(base)):
        yield replace(planned, fate=fates[number // 2 % len(fates)]) if number % 2 else planned


def _alone(base: Config) -> Iterator[Planned]:
    """Arms whose learning rate is not the baseline's: no run is in a pair, and the reason is looked for."""
    for planned in _arms(base):
        optimizer = {**base.optimizer, "lr": 2e-3}
        is_baseline = planned.config.precision.mode == "fp32"
        yield planned if is_baseline else Planned(replace(planned.config, optimizer=optimizer))


def _resumed(base: Config) -> Iterator[Planned]:
    """Three arms, each resumed from the middle in each of the three, of ever more seeds."""
    for seed in itertools.count():
        for saved_in, arm in itertools.product((None, *_MODES), _MODES):
            yield Planned(replace(_at(base, arm, seed), resume=saved_in))


def _predicted(base: Config) -> Iterator[Planned]:
    """Every run with a prediction, and every second one only predicted."""
    for planned in _arms(base):
        yield replace(planned, fate="with prediction")
        yield replace(planned, fate="predicted")


def _searches(base: Config) -> Iterator[Planned]:
    """The largest batch of each arm, searched with ever more seeds."""
    search = replace(base, max_batch=replace(base.max_batch, search=True))
    return (replace(planned, fate="searched") for planned in _arms(search))


def _long(base: Config) -> Iterator[Planned]:
    """One long history among the others."""
    for number, planned in enumerate(_arms(base)):
        yield replace(planned, fate="long") if number == 1 else planned


SHAPES = {
    "seeds": _seeds,
    "arms": _arms,
    "sizes": _sizes,
    "random_search": _random_search,
    "failures": _failures,
    "alone": _alone,
    "resumed": _resumed,
    "predicted": _predicted,
    "searches": _searches,
    "long": _long,
}


def base_config() -> Config:
    overrides = ["model=gpt_tiny", f"trainer.steps={STEPS}", f"trainer.log_every={LOG_EVERY}"]
    return compose_points(overrides, multirun=False).points[0].config


def write_runs(shape: str, directory: Path, num_runs: int) -> None:
    """Write those of the first `num_runs` runs that `directory` lacks."""
    facts = environment(torch.device("cpu"))
    planned = itertools.islice(SHAPES[shape](base_config()), num_runs)
    directory.mkdir(parents=True, exist_ok=True)
    known = {place.name for place in directory.iterdir()}
    for number, one in enumerate(planned):
        name = run_directory_name(one.config) + ("-predicted" if one.fate == "predicted" else "")
        if name not in known:
            place = directory / name
            place.mkdir()
            _write_run(place, one, facts, np.random.default_rng(number))


def _at(base: Config, arm: str, seed: int) -> Config:
    return replace(base, precision=PRECISION_MODES[arm], seed=seed)


def _write_run(place: Path, one: Planned, facts: dict[str, object], rng: np.random.Generator) -> None:
    record = training(place, one.config, facts, rng, LONG_ROWS if one.fate == "long" else NUM_ROWS)
    _end(record, one.fate, rng)
    path = place / HISTORY_NAME
    content = path.read_bytes()
    if one.fate in ("no history", "predicted"):
        path.unlink()
    elif one.fate in ("torn history", "interrupted"):
        record.history_digest = None
        path.write_bytes(content[:-20])
    elif one.fate == "damaged history":
        path.write_bytes(content.replace(b'"train/loss": ', b'"train/loss": what', 1))
    elif one.fate == "changed history":
        path.write_bytes(content.replace(b"0.", b"1.", 1))
    elif one.fate == "not finite":
        record.history_digest = None
        rows = content.splitlines(keepends=True)
        path.write_bytes(b"".join([*rows[:-1], _with(rows[-1], "train/loss", "NaN")]))
    record.write(place)
    if one.fate == "unreadable":
        text = (place / "run.json").read_text(encoding="utf-8")
        (place / "run.json").write_text(text[: len(text) // 2], encoding="utf-8")


def _with(row: bytes, key: str, value: object) -> bytes:
    return json.dumps(json.loads(row) | {key: value}).encode() + b"\n"


def _end(record: RunRecord, fate: str, rng: np.random.Generator) -> None:
    """Change the record of a completed run into that of another end."""
    if (saved_in := record.config["resume"]) is not None:
        note = "the state of the GradScaler begins afresh: the checkpoint has none"
        whole = f"{saved_in} {record.identity.seed}"
        attempt = Attempt(host="here", pid=1, from_step=STEPS // 2, notes=[note], saved_in=saved_in, saved_by=whole)
        record.arm, record.attempts = arm_after(record.arm, saved_in, STEPS // 2), [attempt]
    else:
        record.run_id = f"{record.arm} {record.identity.seed}"
    if fate == "oom":
        asked = int(rng.integers(2**20, 2**30))
        record.oom = OutOfMemory(phase="backward", step=2, requested_bytes=asked, in_use_bytes=2**33)
        record.status, record.error = "oom", record.oom.sentence
    elif fate in ("diverged", "failed", "interrupted", "unsupported"):
        record.status, record.error = fate, f"RuntimeError: {fate} at step {int(rng.integers(1, STEPS))}"
    elif fate == "contaminated":
        reason = f"other processes kept {rng.random():.1f} of 2 cores busy"
        record.contamination = Contamination(verdict="contaminated", reasons=[reason])
    elif fate == "cut short":
        record.cut_short = "trainer.max_seconds=60 was reached"
    elif fate == "disproved":
        record.proof.flops = {"bfloat16": 4, "float16": 4}  # of which no mode computes more than half in its dtype
    elif fate == "searched":
        size = int(rng.integers(900, 1000))
        oom = OutOfMemory(phase="backward", step=2, requested_bytes=3 * 2**20, in_use_bytes=62 * 2**20)
        probes = [Probe(batch_size=size >> place, outcome="trains", peak_bytes=2**30 >> place) for place in range(8)]
        probes.append(Probe(batch_size=size + 1, outcome="oom", oom=oom, error=oom.sentence))
        predicted = PredictedBatch(batch_size=size)
        record.batch_search = BatchSearch(limit=65536, first=size, stride=1, probes=probes, predicted=predicted)
        record.summary |= {LARGEST_BATCH: size}
        record.identity.batch_size = size
    if fate in ("with prediction", "predicted"):
        total = record.memory.peak_bytes
        record.prediction = StepPrediction(
            target="cuda", peak_bytes=total, peak=record.memory.peak, measured_bytes=total, error_pct=0.1 * rng.normal()
        )
    if fate == "predicted":
        record.kind, record.summary, record.history_digest = "predicted", {}, None
    if record.status != "completed":
        record.summary = {}


if __name__ == "__main__":
    write_runs(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
