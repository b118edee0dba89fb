"""Runs on W&B that the suite has never seen (Trainer, Lightning, bare `wandb.log`), as records and histories."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from ampsweep.config.identity import digest_of_values
from ampsweep.metrics import STEP
from ampsweep.records import HISTORY_NAME, Identity, Row, RunRecord, history_line, number
from ampsweep.records.outcome import Status
from ampsweep.records.sections import Attempt, Contamination, FigureSources, WandbFacts
from ampsweep.text import GIB, by_likeness, listed
from ampsweep.tracking.wandb.library import WandbError

if TYPE_CHECKING:
    from wandb.apis.public import Run

_STEPS: Final = ("train/global_step", "trainer/global_step", "global_step", "step", "iteration", "iter", "_step")
"""Keys that count optimizer steps: Trainer's, Lightning's, those of many loops, and W&B's own count of rows."""
_WALL_TIME: Final = "_runtime"
_SAMPLES: Final = 2_000  # of the system metrics, which the server thins out
_MEMORY: Final = (
    ("memory/process_gib", re.compile(r"gpu\.process\.\d+\.memoryAllocatedBytes$"), GIB),
    ("device/memory_used_gib", re.compile(r"gpu\.\d+\.memoryAllocatedBytes$"), GIB),
    ("memory/process_gib", re.compile(r"proc\.memory\.rssMB$"), 1024),
)
"""Metrics by W&B's system metrics, with the units that make a GiB; the last is the host's, for runs without a GPU."""
_RATE: Final = re.compile(r"(?P<steps>(steps?|it|iter|iterations?|batch|batches)_?)?(per_?|/)s(ec(ond)?s?)?$")
_ENDED: Final[dict[str, Status]] = {"finished": "completed", "crashed": "failed", "failed": "failed"}


@dataclass(frozen=True)
class ForeignKeys:
    """The keys of W&B's config, dotted where nested, that say what a run is. `time`: a key of its metrics."""

    arms: tuple[str, ...]
    seed: str = "seed"
    time: str = _WALL_TIME

    def check(self, runs: Sequence["Run"]) -> None:
        """Raise WandbError for a key that no run has, with those that there are."""
        configs, logged = [leaves(run.config) for run in runs], [_numbers(run.summary_metrics) for run in runs]
        asked = [("--arm-key", key, configs) for key in self.arms] + [("--seed-key", self.seed, configs)]
        asked += [] if self.time == _WALL_TIME else [("--time-key", self.time, logged)]
        for option, key, of_runs in asked:
            if not any(key in of_run for of_run in of_runs):
                varied = listed(by_likeness(key, varied_keys(of_runs))) or "none"
                raise WandbError(f"{option} {key}: no run has it; keys with several values are {varied}")
        if (rate := _RATE.search(self.time)) is not None and rate["steps"] is None:
            raise WandbError(f"--time-key {self.time}: is no time; a time, or a rate of steps, can be compared")


def varied_keys(of_runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The keys of runs that have several values, those with the fewest first."""
    values: dict[str, set[str]] = {}
    for of_run in of_runs:
        for key, value in of_run.items():
            values.setdefault(key, set()).add(str(value))
    return sorted((key for key, found in values.items() if len(found) > 1), key=lambda key: len(values[key]))


def write_foreign(run: "Run", keys: ForeignKeys, directory: Path) -> str | None:
    """Write the record and the history of a run into `directory`; return the reason if it cannot be compared."""
    config = leaves(run.config)
    if missing := [key for key in (*keys.arms, keys.seed) if key not in config]:
        return f"has no {' and no '.join(missing)} in its config"
    if (seed := re.fullmatch(r"(-?\d+)(\.0)?", str(config[keys.seed]))) is None:
        return f"has {keys.seed}={config[keys.seed]} in its config, which is no whole number"
    logged = [_numbers(row) for row in run.scan_history(use_cache=False)]
    counter = next((key for key in _STEPS if 2 * sum(key in row for row in logged) >= len(logged)), "_step")
    rows = _by_step(logged, counter)
    own = {key: value for key, value in config.items() if key not in (*keys.arms, keys.seed)}
    record = _record(run, arm_label({key: config[key] for key in keys.arms}), int(seed[1]), own)
    last = _without_wandbs(_numbers(run.summary_metrics), counter)
    for row in rows.values():
        last |= row
    record.summary = json.loads(history_line(last))
    step_ms = _wall_ms(logged, counter) if keys.time == _WALL_TIME else _logged_ms(keys.time, logged, last, rows)
    if step_ms is not None:
        record.summary["perf/step_ms"] = step_ms
        record.taken_from = FigureSources(time=keys.time, steps=counter)
    record.taken_from |= FigureSources(arm=list(keys.arms), seed=keys.seed, memory=_take_memory(record, run))
    lines = (history_line({STEP: step, **values}) for step, values in rows.items())
    (directory / HISTORY_NAME).write_text("".join(lines), encoding="utf-8")
    record.write(directory)
    return None


def arm_label(values: Mapping[str, Any]) -> str:
    """The arm of config values: a flag's name, or the value of another key.

    >>> arm_label({"fp16": False, "bf16": True}), arm_label({"args.bf16": False}), arm_label({"precision": "16-mixed"})
    ('bf16', 'no bf16', '16-mixed')
    """
    words, off = [], []
    for key, value in values.items():
        text, name = str(value), re.split(r"[./]", key)[-1]
        if text.lower() == "false":
            off.append(f"no {name}")
        else:
            words.append(name if text.lower() == "true" else text)
    return " ".join(words or off)


def _record(run: "Run", arm: str, seed: int, own: dict[str, Any]) -> RunRecord:
    machine, status = run.metadata or {}, _ENDED.get(run.state, "interrupted")
    device_name = machine.get("gpu")
    device = "auto" if device_name is None else "cuda"
    facts = [run.entity, run.project, device_name, seed]
    return RunRecord(
        run_id=run.id,
        source="wandb",
        arm=arm,
        pair_key=digest_of_values(facts),
        config_hash=digest_of_values([facts, arm, own]),
        identity=Identity(
            experiment=run.project, precision_mode=arm, seed=seed, device=device, device_name=device_name
        ),
        config={"own": own},
        status=status,
        error=None if status == "completed" else f"its state on W&B is {run.state}",
        started_at=run.created_at,
        contamination=Contamination(verdict="unknown", reasons=["W&B alone recorded them"]),
        attempts=[Attempt(host=machine.get("host"))],
        wandb=wandb_facts(run),
    )


def wandb_facts(run: "Run") -> WandbFacts:
    place = {"entity": run.entity, "project": run.project, "group": run.group}
    return WandbFacts(id=run.id, mode="online", url=run.url, **place)


def leaves(values: Mapping[str, Any]) -> Row:
    """Values by dotted keys; images, tables and such stay whole."""
    found: Row = {}
    for key, value in values.items():
        is_nested = isinstance(value, Mapping) and "_type" not in value
        found |= {f"{key}.{name}": leaf for name, leaf in leaves(value).items()} if is_nested else {key: value}
    return found


def _numbers(values: Mapping[str, Any]) -> Row:
    """The numbers among values; those that JSON does not have come as strings."""
    known = {key: number(value) for key, value in leaves(values).items()}
    return {key: value for key, value in known.items() if type(value) in (int, float)}


def _without_wandbs(row: Row, counter: str) -> Row:
    return {key: value for key, value in row.items() if not key.startswith("_") and key not in (STEP, counter)}


def _by_step(logged: Sequence[Row], counter: str) -> dict[int, Row]:
    """Rows by ascending step; rows of one step, such as of training and evaluation, become one."""
    rows: dict[int, Row] = {}
    for row in logged:
        if 0 <= row.get(counter, -1) < 2**53:
            rows.setdefault(int(row[counter]), {}).update(_without_wandbs(row, counter))
    return dict(sorted(rows.items()))


def _wall_ms(logged: Sequence[Row], counter: str) -> float | None:
    """Wall time of a step in ms: the median over intervals, from the last row of a step to the first of the next."""
    known = [(row[_WALL_TIME], row[counter]) for row in logged if counter in row and _WALL_TIME in row]
    found = [
        1000 * (later_s - at_s) / (later - step)
        for (at_s, step), (later_s, later) in pairwise(known)
        if later > step and later_s > at_s
    ]
    return median(found) if found else None


def _logged_ms(key: str, logged: Sequence[Row], last: Row, rows: Mapping[int, Row]) -> float | None:
    """A step's time in ms by a key that the training logged: the median of several rows, or a total over its steps."""
    in_rows = [row[key] for row in logged if key in row]
    value = median(in_rows) if in_rows else last.get(key, 0.0)
    if not value > 0:
        return None
    if _RATE.search(key):
        return float(1000 / value)
    ms = float(value if re.search(r"(^|_)(ms|millis\w*)$", key.lower()) else 1000 * value)
    is_total = len(in_rows) < 2 and not re.search(r"step|iter|batch", key.lower())
    return ms / max(1, *rows) if is_total else ms


def _take_memory(record: RunRecord, run: "Run") -> str | None:
    """Add the largest samples of memory, each on the fullest device; return W&B's name of the first that there is."""
    largest: Row = {}
    samples: Any = run.history(samples=_SAMPLES, pandas=False, stream="system")
    for sample in map(_numbers, samples):
        largest |= {key: max(value, largest.get(key, value)) for key, value in sample.items()}
    has_gpu = record.identity.device_name is not None or any("gpu." in key for key in largest)
    taken: list[str] = []
    for metric, pattern, of_gib in _MEMORY[: 2 if has_gpu else 3]:
        if keys := [key for key in largest if pattern.search(key)]:
            taken.append(max(keys, key=largest.__getitem__))
            record.summary[metric] = largest[taken[-1]] / of_gib
    return taken[0] if taken else None
