"""Run one of the calls of plan.yaml: see README.md.

    python sweeps/results/run.py CALL --out DIR [KEY=VALUE ...]

DIR/callN.tar.xz holds what was found so far at any time, also when the call is cut; from these files page.py makes the
page. Exit code 0: everything was measured; 1: something is left, and it is said what; 2: wrong input.
"""

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import yaml
from campaign.call import RUNS, Call, Entry

from ampsweep.records.run_record import run_directories
from ampsweep.text import first_line

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parents[1]
PLAN: Final[Mapping[str, Any]] = yaml.safe_load((HERE / "plan.yaml").read_text(encoding="utf-8"))

CALL_S: Final = 560.0
"""Time after which a call begins no command and ends the one that runs."""
GRACE_S: Final = 8.0
"""Time that a command has to end once it was asked to."""
_LEAST_S: Final = 15.0
"""Least time left to begin a command."""
_PATIENCE: Final = 10
"""A tiny call may take as many times as long: the machine that shows that it works may be slow or busy."""
_LOOK_S: Final = 2.0
"""Time between two looks for runs that have ended."""
_TIMED_OUT: Final = (124, -signal.SIGKILL)
"""Exit codes of `timeout`: the command was ended, or killed, which kills `timeout` as well."""
_TESTS_FAILED: Final = 1
"""pytest's exit code for failed tests, which are a finding."""
_PROGRAMS: Final = {"ampsweep": ["-m", "ampsweep.commands.main"], "pytest": ["-m", "pytest"], "python": []}


@dataclass(frozen=True)
class Command:
    """A command of the plan as a reader would type it in the repository, and the seconds it may take."""

    text: str
    limit_s: float

    @property
    def words(self) -> list[str]:
        return shlex.split(self.text)

    @property
    def experiment(self) -> str | None:
        """The name of the experiment that its figures belong to; None for the tests."""
        named = [word.removeprefix("name=") for word in self.words if word.startswith("name=")]
        return next(iter([*named, *(Path(word).stem for word in self.words if word.endswith(".yaml"))]), None)

    @property
    def is_sweep(self) -> bool:
        return "train.py" in self.words or self.words[:2] == ["ampsweep", "sweep"]

    def typed(self, directory: Path) -> list[str]:
        """The command line, with the directory of its runs."""
        program, *words = self.words
        where = [f"output_dir={directory / RUNS}", "tracking=disabled"] if self.is_sweep else []
        if "doctor" in words:
            where = [f"output_dir={directory}", "tracking=disabled"]
        return [sys.executable, *_PROGRAMS[program], *words, *where]


def planned(call: int, *, tiny: bool, overrides: Sequence[str] = ()) -> list[Command]:
    """The commands of a call in their order."""
    commands = []
    for line in PLAN["calls"][call]:
        seconds, text = line.split(maxsplit=1)
        command = Command(text, float(seconds) * (_PATIENCE if tiny else 1))
        if command.experiment is not None:
            added = [*(PLAN["tiny"][command.experiment] if tiny else ()), *overrides]
            by_key = {word.partition("=")[0]: word for word in [*command.words, *added]}  # the last of a key counts
            command = Command(shlex.join(by_key.values()), command.limit_s)
        commands.append(command)
    return commands


class Caller:
    """Runs the commands of a call one after another.

    Args:
        ends_s: the time of `time.monotonic` at which the call is over.
    """

    def __init__(self, directory: Path, call: Call, ends_s: float) -> None:
        self._directory, self._call, self._ends_s = directory, call, ends_s
        self._packed, self._is_asked_to_end = 0, False

    def ask_to_end(self, *_: object) -> None:
        """End the command that runs at the next look: a handler of signals, which may come within any line of ours."""
        self._is_asked_to_end = True

    def run(self, commands: Sequence[Command]) -> None:
        try:
            for command in commands:
                self._run(command, self._call.entries[command.text])
                self._call.pack(self._directory)
        finally:
            self._call.pack(self._directory)

    def _run(self, command: Command, entry: Entry) -> None:
        seconds = min(command.limit_s, self._ends_s - time.monotonic() - GRACE_S)
        if seconds < _LEAST_S:
            entry.reason = "the call's time was spent before"
            return
        print(f"[{seconds:3.0f} s] {command.text}", file=sys.stderr, flush=True)
        began_s = time.monotonic()
        entry.status, entry.reason = "cut off", "the call was cut off meanwhile"  # if nobody comes to say more
        try:
            code = self._wait(command, entry, seconds)
        finally:
            entry.seconds = round(time.monotonic() - began_s, 1)
        if code in _TIMED_OUT:
            entry.reason = f"its {seconds:.0f} s were spent"
        elif code == 0 or (command.words[0] == "pytest" and code == _TESTS_FAILED):
            entry.status, entry.reason = "done", None
        else:
            told = ((self._directory / "last.err").read_text(errors="replace").strip() or entry.printed).splitlines()
            entry.status, entry.reason = "failed", f"exit code {code}: {first_line(told[-1]) if told else 'no word'}"
        if entry.reason:
            print(f"{entry.status}: {entry.reason}", file=sys.stderr, flush=True)

    def _wait(self, command: Command, entry: Entry, seconds: float) -> int:
        """Run a command to its end or for this long, packing what it finds; return its exit code.

        `timeout` has a process group of its own, with which it ends all that the command started, even if this process
        was killed.
        """
        within = ["timeout", "-s", "INT", "-k", f"{GRACE_S:g}", f"{seconds:.1f}"]
        out = self._directory / "last.out"
        with out.open("wb") as stdout, (self._directory / "last.err").open("wb") as stderr:
            process = subprocess.Popen(
                [*within, *command.typed(self._directory)], cwd=ROOT, env=_environment(), stdout=stdout, stderr=stderr
            )
            try:
                while not self._is_asked_to_end:
                    try:
                        return process.wait(_LOOK_S)
                    except subprocess.TimeoutExpired:
                        self._keep(command, entry, out)
                raise KeyboardInterrupt
            finally:
                if process.poll() is None:
                    process.send_signal(signal.SIGINT)
                    process.wait()
                self._keep(command, entry, out)

    def _keep(self, command: Command, entry: Entry, out: Path) -> None:
        """Pack what was found if there is more of it than before."""
        if not command.is_sweep:
            printed = out.read_text(encoding="utf-8", errors="replace")
            entry.printed = printed.replace(f"{self._directory}/", "")  # where the doctor has written
        ended = [place for place in run_directories(self._directory / RUNS) if _has_ended(place)]
        if (found := len(ended) + len(entry.printed)) != self._packed:
            self._call.pack(self._directory)
            self._packed = found


def _has_ended(place: Path) -> bool:
    return bool(json.loads((place / "run.json").read_bytes())["status"] != "interrupted")


def _environment() -> Mapping[str, str]:
    """Environment of every command: the suite can be imported even if it is not installed."""
    paths = [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)}


def main() -> int:
    began_s, arguments = time.monotonic(), _arguments()
    out: Path = arguments.out.expanduser().resolve()
    commands = planned(arguments.call, tiny=arguments.tiny, overrides=arguments.overrides)
    call = Call(
        number=arguments.call,
        tiny=arguments.tiny,
        began_at=datetime.now(UTC).isoformat(timespec="seconds"),
        entries={command.text: Entry() for command in commands},
        commit=_commit(),
    )
    if (out / RUNS).exists():
        print(f"error: {out} holds the runs of another call; choose another --out", file=sys.stderr)
        return 2
    out.mkdir(parents=True, exist_ok=True)
    caller = Caller(out, call, began_s + CALL_S * (_PATIENCE if call.tiny else 1))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, caller.ask_to_end)
    try:
        caller.run(commands)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    entries = call.entries.items()
    left = [f"left: {text}: {entry.reason or entry.status}" for text, entry in entries if entry.status != "done"]
    print("\n".join([f"{len(commands) - len(left)} of {len(commands)} commands are done: {out / call.file}", *left]))
    return 1 if left else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("call", type=int, choices=[*PLAN["calls"]], metavar="CALL", help="the number of a call")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="of this call alone")
    parser.add_argument("--tiny", action="store_true", help="shows on any machine that it works")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="for every sweep, such as device=cpu")
    return parser.parse_intermixed_args()


def _commit() -> str | None:
    try:
        done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


if __name__ == "__main__":
    sys.exit(main())
