"""kill -9 at random moments of real runs: `python tests/benchmarks/kills.py`.

Single runs are killed and gone on with by `resume=auto`, sweeps (their own process, the process that trains, or all of
them) by `into=`, until they end by themselves; then every row and figure is compared with those of a run that nobody
killed. JSON goes to stdout, progress to stderr.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil
from rounds import machine

from ampsweep.commands import fork_server  # noqa: F401 (imports what a run needs, once for all)
from ampsweep.commands.train import main as train
from ampsweep.record import (
    CHECKPOINTS,
    HISTORY_NAME,
    LAST,
    PREVIOUS,
    RecordError,
    RunRecord,
    find_records,
    read_history,
)
from ampsweep.training.checkpoint import CheckpointError, load_checkpoint

ROOT: Final = Path(__file__).parents[2]
TRAINING: Final = (
    *("model=mlp_small", "data=digits", "tracking=disabled", "predict.with_runs=false", "trainer.log_every=1"),
    *("trainer.eval_every=10", "trainer.checkpoint_every=4", "scheduler=cosine", "precision.init_scale=1e8"),
)
RUN: Final = (*TRAINING, "precision=amp_fp16", "trainer.steps=60")
SWEEP: Final = ("-m", *TRAINING, "trainer.steps=20", "seed=0,1", "precision=fp32,amp_fp16")
SAME: Final = (
    *("train/loss", "train/grad_norm", "train/lr", "val/loss", "val/accuracy", "amp/scale", "amp/applied_steps"),
)
PARTS: Final = ("start", "middle", "middle", "end")
"""The parts of a run that a kill falls into: before its first row, between two rows, after its last one."""
POLL_S: Final = 0.002
SHARE_OF_SWEEPS: Final = 0.2
AGAIN: Final = 0.25
"""The share of runs gone on with that are killed again."""
PATIENCE_S: Final = 60.0
COUNTS: Final = (
    *("lost rows", "wrong rows", "wrong figures", "damaged files", "leftover files"),
    *("unfinished", "false completions", "tracebacks"),
)

Key = str
Rows = dict[int, dict[str, float]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        with tempfile.TemporaryDirectory() as place:
            campaign = Campaign(Path(place), random.Random(arguments.seed))
            campaign.run(arguments.kills)
            print(json.dumps(campaign.found))
        return
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        workers = [_worker(arguments, number, Path(place) / str(number)) for number in range(arguments.at_once)]
        found = [json.loads(worker.communicate()[0]) for worker in workers]
    result = {
        "kills": sum(sum(one["moments"].values()) for one in found),
        "seed": arguments.seed,
        "machine": machine([os.getloadavg()[0]]),
        "seconds": round(time.monotonic() - began, 1),
        "moments": dict(sum((Counter(one["moments"]) for one in found), Counter[str]())),
        "killed": dict(sum((Counter(one["killed"]) for one in found), Counter[str]())),
        "runs ended and compared": sum(one["num_compared"] for one in found),
        "wrong": {name: sum(one["wrong"].get(name, 0) for one in found) for name in COUNTS},
        "told": [line for one in found for line in one["told"]],
    }
    print(json.dumps(result, indent=1))


def _worker(arguments: argparse.Namespace, number: int, place: Path) -> "subprocess.Popen[str]":
    """A process that kills its share, with a folder for temporary files (and so a lock of the device) of its own."""
    share = arguments.kills // arguments.at_once + (number < arguments.kills % arguments.at_once)
    command = [sys.executable, __file__, "--worker", "--kills", str(share)]
    command += ["--seed", str(arguments.seed * 1000 + number)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TMPDIR": str(place)}
    place.mkdir()
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


@dataclass
class Unkilled:
    """What a command comes to if nobody kills it."""

    start_s: float
    """Time to the first row."""
    end_s: float
    """Time from the last row to the end."""
    rows: dict[Key, Rows]
    """Rows by config hash and step."""
    figures: dict[Key, dict[str, float]]


@dataclass
class Campaign:
    """Runs of one worker, one after the other."""

    place: Path
    random: random.Random
    found: dict[str, Any] = field(
        default_factory=lambda: (
            {"moments": Counter(), "killed": Counter(), "wrong": Counter(), "told": []} | {"num_compared": 0}
        )
    )
    num_trials: int = 0

    def run(self, num_kills: int) -> None:
        """Kill that often, and compare what has become of each run."""
        commands = (RUN, SWEEP)
        self.unkilled = {command: self._unkilled(command) for command in commands}
        while (done := sum(self.found["moments"].values())) < num_kills:
            print(f"{done} of {num_kills}: {dict(self.found['wrong'])}", file=sys.stderr, flush=True)
            self._trial(SWEEP if self.random.random() < SHARE_OF_SWEEPS else RUN)

    def _unkilled(self, command: Sequence[str]) -> Unkilled:
        for name in ("first", "second"):  # the first one warms up
            directory = self.place / f"unkilled-{name}-{len(command)}"
            began = time.monotonic()
            process = Started(command, directory)
            process.until(lambda at=directory: _num_rows(at) > 0)
            start_s, num_rows, last_s = time.monotonic() - began, 0, time.monotonic()
            while process.goes_on():
                if num_rows != (num_rows := _num_rows(directory)):
                    last_s = time.monotonic()
                time.sleep(POLL_S)
            end_s = time.monotonic() - last_s
            if (code := process.wait()) != 0:
                raise RuntimeError(f"exit code {code}:\n{process.said}")
        records = find_records(directory).records
        rows = {record.config_hash: _rows(run) for run, record in records}
        return Unkilled(start_s, end_s, rows, {record.config_hash: record.summary for _, record in records})

    def _trial(self, command: Sequence[str]) -> None:
        """Kill a command, go on with it until it has ended, and compare."""
        self.num_trials += 1
        directory = self.place / f"trial-{self.num_trials}"
        going_on: tuple[str, ...] = ()
        is_killed = True
        while is_killed:
            process = Started((*command, *going_on), directory)
            is_killed = not going_on or self.random.random() < AGAIN
            if is_killed:
                self._kill(process, self.unkilled[command], directory)
            code = process.wait()
            if "Traceback" in process.said:
                self._note("tracebacks", f"{directory.name}: {process.said[-2000:]}")
            if is_killed:
                going_on = _going_on(command, directory)
                self._look_for_false_completions(command, directory)
        if code != 0:
            self._note("unfinished", f"{directory.name}: exit code {code}: {process.said[-500:]}")
        self._compare(command, directory)

    def _kill(self, process: "Started", unkilled: Unkilled, directory: Path) -> None:
        total = sum(map(len, unkilled.rows.values()))
        match self.random.choice(PARTS):
            case "start":
                time.sleep(unkilled.start_s * self.random.random())
            case "middle":
                reached = self.random.randrange(total)
                process.until(lambda: _num_rows(directory) > reached)
                time.sleep(self.random.uniform(0.0, 0.02))
            case "end":
                process.until(lambda: _num_rows(directory) >= total)
                time.sleep(unkilled.end_s * self.random.random())
        which = self.random.choice(("all", "parent", "trainer")) if process.is_sweep else "run"
        had_ended = not process.kill(which)
        self.found["moments"]["after its end" if had_ended else _moment(directory)] += 1
        self.found["killed"][f"{which} of a sweep" if process.is_sweep else "a run"] += 1

    def _look_for_false_completions(self, command: Sequence[str], directory: Path) -> None:
        for run, record in find_records(directory).records:
            if record.status == "completed":
                faults = self._faults(command, run, record)
                if faults:
                    self._note("false completions", f"{run.name} after a kill: {faults}")
            elif record.status == "failed" and "SIGKILL" not in (record.error or "") + "killed":
                self._note("unfinished", f"{run.name} failed: {record.error}")

    def _compare(self, command: Sequence[str], directory: Path) -> None:
        """Compare everything that is left with what nobody killed."""
        found = find_records(directory)
        for error in found.unreadable:
            self._note("damaged files", str(error))
        ended = {record.config_hash: run for run, record in found.records if record.status == "completed"}
        for missing in self.unkilled[command].rows.keys() - ended.keys():
            self._note("unfinished", f"{directory.name}: {missing} did not complete")
        for run, record in found.records:
            for name, what in self._faults(command, run, record):
                self._note(name, f"{run.relative_to(self.place)}: {what}")
            if len(record.attempts) > 1:  # what a run leaves that nobody goes on with stays
                for leftover in run.rglob(".*.????????"):
                    self._note("leftover files", str(leftover.relative_to(self.place)))
        self.found["num_compared"] += len(ended)

    def _faults(self, command: Sequence[str], run: Path, record: RunRecord) -> list[tuple[str, str]]:
        unkilled = self.unkilled[command]
        expected, faults = unkilled.rows[record.config_hash], []
        try:
            rows = _rows(run, record)
        except RecordError as error:
            return [("damaged files", str(error))]
        for step, row in rows.items():
            if row != expected.get(step):
                faults.append(("wrong rows", f"step {step} is {row}, not {expected.get(step)}"))
        if record.status == "completed":
            faults += [("lost rows", f"step {step} is not there") for step in expected.keys() - rows.keys()]
            for key in SAME:
                if record.summary.get(key) != unkilled.figures[record.config_hash].get(key):
                    faults.append(("wrong figures", f"{key} is {record.summary.get(key)}"))
            faults += _damaged_checkpoints(run)
        return faults

    def _note(self, name: str, told: str) -> None:
        self.found["wrong"][name] += 1
        self.found["told"].append(f"{name}: {told}")
        print(f"{name}: {told}", file=sys.stderr, flush=True)


class Started:
    """A command line that goes on: a sweep as it is, a single run forked from here, where all is imported."""

    def __init__(self, command: Sequence[str], directory: Path) -> None:
        directory.mkdir(exist_ok=True)
        self.is_sweep = "-m" in command
        self._said = directory / "said.txt"
        arguments = [*command, f"output_dir={directory}"]
        with self._said.open("wb") as output:
            if self.is_sweep:
                python = [sys.executable, str(ROOT / "train.py"), *arguments]
                self.pid = subprocess.Popen(python, stdout=output, stderr=output, start_new_session=True).pid
            else:
                self.pid = _forked(lambda: train(arguments), output.fileno())

    def goes_on(self) -> bool:
        """Tell whether it has not ended yet."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

    def until(self, is_so: Callable[[], bool]) -> None:
        """Wait until something is so, or it has ended."""
        while self.goes_on() and not is_so():
            time.sleep(POLL_S)

    def wait(self) -> int:
        """Wait for its end and that of all it has started; returns its exit code."""
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        until = time.monotonic() + PATIENCE_S
        while _session(self.pid) and time.monotonic() < until:
            time.sleep(0.02)
        return code

    def kill(self, which: str) -> bool:
        """Kill one process of it, or all; False if there is none any more."""
        if which == "trainer":
            children = [one for one in _session(self.pid) if one.pid != self.pid]
            killed = children[-1:]  # the youngest: the one that trains, or the fork server before
        elif which == "all":
            killed = _session(self.pid)
        else:
            killed = [one for one in _session(self.pid) if one.pid == self.pid]
        for one in killed:
            with suppress(psutil.NoSuchProcess):
                one.send_signal(signal.SIGKILL)
        return bool(killed)

    @property
    def said(self) -> str:
        """What it has printed."""
        return self._said.read_text(encoding="utf-8", errors="replace")


def _forked(work: Callable[[], int], output: int) -> int:
    """Do the work in a forked process, in a session of its own."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setsid()
        os.dup2(output, 1)
        os.dup2(output, 2)
        code = work()
    except BaseException as error:  # noqa: BLE001 (it must not come back into the process it was forked from)
        os.write(2, f"Traceback: {error!r}\n".encode())
    finally:
        os._exit(code)


def _session(leader: int) -> list[psutil.Process]:
    """The living processes of a session, the oldest first."""
    found = []
    for one in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, ProcessLookupError):
            if os.getsid(one.pid) == leader and one.status() != psutil.STATUS_ZOMBIE:
                found.append(one)
    return sorted(found, key=lambda one: one.create_time())


def _going_on(command: Sequence[str], directory: Path) -> tuple[str, ...]:
    """The argument that goes on with a killed command, or one that says nothing new where it left nothing."""
    if "-m" not in command:
        return ("resume=auto",)
    sweeps = sorted(path.parent for path in directory.glob("*/*/multirun.yaml"))
    return (f"into={sweeps[-1]}",) if sweeps else ("seed=0,1",)


def _moment(directory: Path) -> str:
    """The moment of a kill, by what the run has left."""
    histories = list(directory.rglob(HISTORY_NAME))
    if not histories:
        return "before the first record"
    if not any(history.stat().st_size for history in histories):
        return "before the first row"
    if list(directory.rglob(f".{LAST}.????????")):
        return "in a checkpoint"
    records = find_records(directory).records
    return "while it ended" if records and records[-1][1].status == "completed" else "while it trained"


def _num_rows(directory: Path) -> int:
    """Number of rows in all histories below the directory."""
    return sum(history.read_bytes().count(b"\n") for history in directory.glob(f"*/*/*/{HISTORY_NAME}"))


def _rows(run: Path, record: RunRecord | None = None) -> Rows:
    """The figures of the history that are the same each time, by step."""
    rows = read_history(run, None if record is None else record.history_digest)
    return {row["step"]: {key: row[key] for key in SAME if key in row} for row in rows}


def _damaged_checkpoints(run: Path) -> list[tuple[str, str]]:
    faults = []
    for name in (LAST, PREVIOUS):
        if (run / CHECKPOINTS / name).is_file():
            try:
                load_checkpoint(run / CHECKPOINTS / name)
            except CheckpointError as error:
                faults.append(("damaged files", str(error)))
    return faults


if __name__ == "__main__":
    main()
