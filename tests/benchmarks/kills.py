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
from pathlib import Path
from typing import Any, Final

import psutil
import torch
from rounds import machine

from ampsweep.commands import fork_server  # noqa: F401 (imports what a run needs, once for all)
from ampsweep.commands.train import main as train
from ampsweep.records import HISTORY_NAME, RecordError, RunRecord, find_records, read_history
from ampsweep.records.files import CHECKPOINTS, LAST, PREVIOUS
from ampsweep.training.checkpoint import CheckpointError, load_checkpoint

TRAINING: Final = (
    *("model=mlp_small", "data=digits", "tracking=disabled", "predict.with_runs=false", "trainer.log_every=1"),
    *("trainer.eval_every=10", "trainer.checkpoint_every=4", "scheduler=cosine", "precision.init_scale=1e8"),
)
RUN: Final = (*TRAINING, "precision=amp_fp16", "trainer.steps=60")
SWEEP: Final = ("-m", *TRAINING, "trainer.steps=20", "seed=0,1", "precision=fp32,amp_fp16")
SAME: Final = [f"train/{key}" for key in ("loss", "grad_norm", "lr")]
SAME += ["val/loss", "val/accuracy", "amp/scale", "amp/applied_steps"]
POLL_S: Final = 0.001

Rows = dict[int, dict[str, float]]
Unkilled = tuple[float, dict[str, Rows], dict[str, dict[str, float]]]
"""What a command comes to if nobody kills it: its seconds, and by config hash its runs' rows and figures."""


class Campaign:
    """Trainings that are killed, resumed and compared, one after the other.

    The `trial` of each kind kills a training at most so often, and compares what becomes of it.
    """

    def __init__(self, place: Path, seed: int) -> None:
        self.place, self.random = place, random.Random(seed)
        self.moments, self.killed, self.wrong = Counter[str](), Counter[str](), Counter[str]()
        self.notes: list[str] = []
        self.num_trials = self.num_compared = 0

    def facts(self) -> dict[str, Any]:
        return {"runs ended and compared": self.num_compared}

    def note(self, name: str, what: str) -> None:
        """Count something that is wrong."""
        self.wrong[name] += 1
        self.notes.append(f"{name}: {what}")
        print(self.notes[-1], file=sys.stderr, flush=True)


def main(campaigns: type[Any], usual_kills: int, description: str | None) -> None:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--kills", type=int, default=usual_kills)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--place", type=Path, help="a folder for the runs: in memory they take less time")
    arguments = parser.parse_args()
    began_s = time.monotonic()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=arguments.place) as place:
        # Locks of devices are in the temporary folder: with one of their own the runs wait for no others.
        os.environ |= {"OMP_NUM_THREADS": "1", "TMPDIR": place}
        tempfile.tempdir = place
        campaign = campaigns(Path(place), arguments.seed)
        while (done := campaign.moments.total()) < arguments.kills:
            print(f"{done} of {arguments.kills}: {dict(campaign.wrong)}", file=sys.stderr, flush=True)
            campaign.trial(arguments.kills - done)
    report = {"kills": campaign.moments.total(), "seed": arguments.seed, "machine": machine([os.getloadavg()[0]])}
    report |= {"seconds": round(time.monotonic() - began_s, 1), **campaign.facts()}
    report |= {name: getattr(campaign, name) for name in ("moments", "killed", "wrong", "notes")}
    print(json.dumps(report, indent=1))


class RunsAndSweeps(Campaign):
    def __init__(self, place: Path, seed: int) -> None:
        super().__init__(place, seed)
        self.unkilled = {command: self._unkilled(command) for command in (RUN, SWEEP)}

    def _unkilled(self, command: Sequence[str]) -> Unkilled:
        directory, began_s = self.place / f"unkilled-{len(command)}", time.monotonic()
        process = Started(command, directory)
        if (code := process.wait()) != 0:
            raise RuntimeError(f"exit code {code}:\n{process.output}")
        whole_s, records = time.monotonic() - began_s, find_records(directory).records
        rows = {record.config_hash: rows_of(run) for run, record in records}
        return whole_s, rows, {record.config_hash: record.summary for _, record in records}

    def trial(self, most_kills: int) -> None:
        self.num_trials += 1
        command = SWEEP if self.random.random() < 0.2 else RUN
        directory = self.place / f"trial-{self.num_trials}"
        resuming, is_killed = (), True
        while is_killed:
            process = Started((*command, *resuming), directory)
            is_killed = not resuming or self.random.random() < 0.25
            if is_killed:
                self._kill(process, self.unkilled[command], directory)
            code = process.wait()
            if "Traceback" in process.output:
                self.note("tracebacks", f"{directory.name}: {process.output[-2000:]}")
            if is_killed:
                resuming = _resuming(command, directory)
                self._look_for_false_completions(command, directory)
        if code != 0:
            self.note("unfinished", f"{directory.name}: exit code {code}: {process.output[-500:]}")
        self._compare(command, directory)

    def _kill(self, process: "Started", unkilled: Unkilled, directory: Path) -> None:
        """Kill soon after a row, which may be the last, or at any time."""
        whole_s, rows, _ = unkilled
        total = sum(map(len, rows.values()))
        moment = self.random.choice(("after a row", "after a row", "after the last row", "at any time"))
        if moment == "at any time":
            time.sleep(whole_s * self.random.random())
        else:
            wanted = total if "last" in moment else self.random.randint(1, total)
            while process.goes_on() and num_rows(directory) < wanted:
                time.sleep(POLL_S)
            time.sleep(self.random.uniform(0.0, 0.2 if "last" in moment else 0.02))
        which = self.random.choice(("all", "parent", "trainer")) if process.is_sweep else "run"
        was_alive = process.kill(which)
        self.moments[moment if was_alive else "after its end"] += 1
        self.killed[f"{which} of a sweep" if process.is_sweep else "a run"] += 1

    def _look_for_false_completions(self, command: Sequence[str], directory: Path) -> None:
        for run, record in find_records(directory).records:
            if record.status == "completed" and (faults := self._faults(command, run, record)):
                self.note("false completions", f"{run.name} after a kill: {faults}")
            elif record.status == "failed" and "SIGKILL" not in (record.error or "") + "killed":
                self.note("unfinished", f"{run.name} failed: {record.error}")

    def _compare(self, command: Sequence[str], directory: Path) -> None:
        """Compare everything that is left with what nobody killed."""
        found = find_records(directory)
        for error in found.unreadable:
            self.note("damaged files", str(error))
        ended = {record.config_hash for _, record in found.records if record.status == "completed"}
        for missing in self.unkilled[command][1].keys() - ended:
            self.note("unfinished", f"{directory.name}: {missing} did not complete")
        for run, record in found.records:
            for name, what in self._faults(command, run, record):
                self.note(name, f"{run.relative_to(self.place)}: {what}")
            if len(record.attempts) > 1:  # what a run leaves that nobody resumes stays
                for leftover in run.rglob(".*.????????"):
                    self.note("leftover files", str(leftover.relative_to(self.place)))
        self.num_compared += len(ended)

    def _faults(self, command: Sequence[str], run: Path, record: RunRecord) -> list[tuple[str, str]]:
        _, rows, figures = self.unkilled[command]
        try:
            faults = differences(rows_of(run, record), rows[record.config_hash])
        except RecordError as error:
            return [("damaged files", str(error))]
        if record.status != "completed":
            return [fault for fault in faults if fault[0] != "lost rows"]
        for key in SAME:
            if record.summary.get(key) != figures[record.config_hash].get(key):
                faults.append(("wrong figures", f"{key} is {record.summary.get(key)}"))
        for path in (run / CHECKPOINTS / LAST, run / CHECKPOINTS / PREVIOUS):
            try:
                if path.is_file():
                    load_checkpoint(path)
            except CheckpointError as error:
                faults.append(("damaged files", str(error)))
        return faults


class Started:
    """A command line that goes on: a sweep as it is, a single run forked from here, where all is imported."""

    def __init__(self, command: Sequence[str], directory: Path) -> None:
        directory.mkdir(exist_ok=True)
        self.is_sweep = "-m" in command
        self._output = directory / "output.txt"
        arguments = [*command, f"output_dir={directory}"]
        with self._output.open("wb") as output:
            if self.is_sweep:
                python = [sys.executable, str(Path(__file__).parents[2] / "train.py"), *arguments]
                self.pid = subprocess.Popen(python, stdout=output, stderr=output, start_new_session=True).pid
            else:
                self.pid = forked(lambda: train(arguments), output.fileno())

    def goes_on(self) -> bool:
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

    def wait(self) -> int:
        """Wait for its end and that of all that it has started; returns its exit code."""
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        until = time.monotonic() + 60
        while _session(self.pid) and time.monotonic() < until:
            time.sleep(0.02)
        return code

    def kill(self, which: str) -> bool:
        """Kill one process of it, or all; False if there is none any more."""
        killed = _session(self.pid)
        if which == "trainer":
            killed = [one for one in killed if one.pid != self.pid][-1:]  # the youngest; before it the fork server
        elif which != "all":
            killed = [one for one in killed if one.pid == self.pid]
        for one in killed:
            with suppress(psutil.NoSuchProcess):
                one.send_signal(signal.SIGKILL)
        return bool(killed)

    @property
    def output(self) -> str:
        return self._output.read_text(encoding="utf-8", errors="replace")


def forked(work: Callable[[], int], output: int) -> int:
    """Do the work in a forked process, in a session of its own; returns its id."""
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


def _resuming(command: Sequence[str], directory: Path) -> tuple[str, ...]:
    """The argument that resumes a killed command, or one that changes nothing where it left nothing."""
    if "-m" not in command:
        return ("resume=auto",)
    sweeps = sorted(path.parent for path in directory.glob("*/*/multirun.yaml"))
    return (f"into={sweeps[-1]}",) if sweeps else ("seed=0,1",)


def num_rows(directory: Path) -> int:
    """Number of rows in all histories below the directory."""
    return sum(history.read_bytes().count(b"\n") for history in directory.glob(f"**/{HISTORY_NAME}"))


def rows_of(run: Path, record: RunRecord | None = None) -> Rows:
    """The figures of the history that are the same each time, by step."""
    rows = read_history(run, None if record is None else record.history_digest)
    return {row["step"]: {key: row[key] for key in SAME if key in row} for row in rows}


def differences(rows: Rows, expected: Rows) -> list[tuple[str, str]]:
    """What is wrong with a run's rows, by name."""
    wrong = [(step, row, expected.get(step)) for step, row in rows.items() if row != expected.get(step)]
    faults = [("wrong rows", f"step {step} is {row}, not {other}") for step, row, other in wrong]
    return faults + [("lost rows", f"step {step} is not there") for step in expected.keys() - rows.keys()]


if __name__ == "__main__":
    main(RunsAndSweeps, 200, __doc__)
