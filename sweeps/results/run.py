"""Run the commands of plan.yaml within a time budget: see README.md.

    python sweeps/results/run.py [KEY=VALUE ...] --budget SECONDS --out DIR [--only NAME ...] [--nanogpt CHECKOUT]

Can be called again with the same DIR as often as it takes: what is done is not done again, and a sweep that was cut off
goes on. After each command what was found lies in DIR/packed, two small files from which page.py makes the page.
Exit code 0: everything was measured; 1: something is left, and it is said what; 2: wrong input.
"""

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import yaml
from campaign.state import MULTIRUN, RUNS, Entry, State, pack, restore
from campaign.within import GRACE_S, Ended, end_leftover, run_within

from ampsweep.commands.arguments import quoted
from ampsweep.text import first_line

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parents[1]
PLAN: Final[Mapping[str, Any]] = yaml.safe_load((HERE / "plan.yaml").read_text(encoding="utf-8"))

_RESERVE_S: Final = 2.0
"""Time kept for packing at the end."""
_LEAST_S: Final = 15.0
"""Least budget left to begin a command."""
_MAX_TRIES: Final = 2
"""Commands cut off this often come last, so that one that hangs does not keep the others from being run."""
_TESTS_FAILED: Final = 1
"""pytest's exit code for failed tests, which are a finding."""
_PROGRAMS: Final = {"ampsweep": ["-m", "ampsweep.commands.main"], "pytest": ["-m", "pytest"], "python": []}
_OUTCOMES: Final = ("PASSED", "FAILED", "ERROR", "SKIPPED", "XFAIL", "XPASS")


@dataclass(frozen=True)
class Command:
    """A command of the plan as a reader would type it in the repository."""

    text: str

    @property
    def words(self) -> list[str]:
        return shlex.split(self.text)

    @property
    def file(self) -> Path | None:
        """The command's sweep file; None for the tests."""
        return next((ROOT / word for word in self.words if word.endswith(".yaml")), None)

    @property
    def name(self) -> str:
        """The name of the sweep's file, or `pytest`."""
        return self.words[0] if self.file is None else self.file.stem

    @property
    def is_sweep(self) -> bool:
        return self.words[:2] == ["ampsweep", "sweep"]

    @property
    def experiment(self) -> str:
        """The name that the sweep gives its runs."""
        assert self.file is not None
        return str(yaml.safe_load(self.file.read_text(encoding="utf-8"))["parameters"]["name"]["value"])


NAMES: Final = tuple(dict.fromkeys(Command(text).name for text in PLAN["commands"]))


def planned(*, tiny: bool, overrides: Sequence[str], only: Sequence[str] = ()) -> list[Command]:
    """The commands of a campaign in their order."""
    commands = []
    for command in map(Command, PLAN["commands"]):
        if (only and command.name not in only) or (tiny and not {"seed=1", "seed=2"}.isdisjoint(command.words)):
            continue
        added = [] if command.file is None else [*(PLAN["tiny"][command.name] if tiny else ()), *overrides]
        commands.append(Command(" ".join([command.text, *added])))
    return commands


class Campaign:
    """One call of this program.

    Args:
        directory: the campaign's directory.
        packed: the directory for the packed files, written after each command.
        nanogpt: a checkout of nanoGPT, if there is one.
        ends_s: the time of `time.monotonic` at which the budget is spent.
    """

    def __init__(self, directory: Path, state: State, *, packed: Path, nanogpt: Path | None, ends_s: float) -> None:
        self._directory, self._state, self._packed = directory, state, packed
        self._nanogpt, self._ends_s = nanogpt, ends_s

    def run(self, commands: Sequence[Command]) -> None:
        """Run the commands that are not done; those that failed, or were cut off again and again, come last."""
        left = [command for command in commands if self._entry(command).status != "done"]
        try:
            for command in sorted(left, key=self._is_doubtful):
                self._run(command)
                self.save()
        finally:
            self.save()

    def remaining(self, commands: Sequence[Command]) -> list[str]:
        """A line on each command that is not done, with the reason."""
        left = [(command.text, self._entry(command)) for command in commands]
        return [f"{text}: {entry.reason or 'not begun'}" for text, entry in left if entry.status != "done"]

    def save(self) -> None:
        """Write the state, and pack the findings."""
        self._state.write(self._directory)
        pack(self._directory, self._packed)

    def _run(self, command: Command) -> None:
        entry = self._state.entries.setdefault(command.text, self._entry(command))
        left_s = self._ends_s - time.monotonic() - GRACE_S - _RESERVE_S
        if "NANOGPT" in command.text and self._nanogpt is None:
            entry.status, entry.reason = "not begun", "nanoGPT's code was not brought (--nanogpt)"
            return
        if left_s < _LEAST_S:
            if entry.status == "not begun":
                entry.reason = "the budget was spent before"
            return
        print(f"[{left_s:4.0f} s left] {command.text}", file=sys.stderr, flush=True)
        began_s = time.monotonic()
        # Noted before: if this process is killed, what is known is that it was cut off.
        entry.status, entry.reason = "cut off", "the campaign was killed meanwhile"
        entry.num_tries += 1
        self._state.write(self._directory)
        try:
            ended = run_within(
                self._typed(command), left_s, directory=self._directory, cwd=ROOT, environment=environment()
            )
        except KeyboardInterrupt:
            entry.reason = "the campaign was interrupted meanwhile"
            raise
        finally:
            entry.seconds = round(entry.seconds + time.monotonic() - began_s, 1)
        self._keep(command, ended)
        if not ended.in_time:
            entry.reason = "the budget was spent"
        elif ended.code == 0 or (command.name == "pytest" and ended.code == _TESTS_FAILED):
            entry.status, entry.reason = "done", None
        else:
            lines = [line for line in (ended.err.strip() or ended.out.strip()).splitlines() if line.strip()]
            told = first_line(lines[-1]) if lines else "it said nothing"
            entry.status, entry.reason = "failed", f"exit code {ended.code}: {told}"
        if entry.reason:
            print(f"{entry.status}: {entry.reason}", file=sys.stderr, flush=True)

    def _typed(self, command: Command) -> list[str]:
        """The command line, with the directory of its runs and that of nanoGPT."""
        program, *words = (word.replace("NANOGPT", str(self._nanogpt)) for word in command.words)
        if command.is_sweep:
            runs = self._directory / RUNS
            begun = sorted(path.parent for path in (runs / command.experiment).glob(f"*/{MULTIRUN}"))
            where = f"into={quoted(str(begun[0]))}" if begun else f"output_dir={quoted(str(runs))}"
            words += [where, "tracking=disabled"]
        return [sys.executable, *_PROGRAMS[program], *words]

    def _keep(self, command: Command, ended: Ended) -> None:
        """Keep the findings among the lines that a loop by hand or pytest printed, even if it was cut off."""
        lines = [line for line in ended.out.splitlines() if line.strip()]
        if command.name == "pytest":
            self._state.tests = [line for line in lines if line.startswith(_OUTCOMES)] + lines[-1:]
        elif not command.is_sweep:
            rows = [json.loads(line) for line in lines if line.endswith("}")]
            facts = ("experiment", "arm", "seed", "compile", "vocab_size")
            known = {tuple(row[key] for key in facts): row for row in [*self._state.by_hand, *rows]}
            self._state.by_hand = list(known.values())

    def _entry(self, command: Command) -> Entry:
        return self._state.entries.get(command.text) or Entry()

    def _is_doubtful(self, command: Command) -> bool:
        entry = self._entry(command)
        return entry.status == "failed" or entry.num_tries >= _MAX_TRIES


def environment() -> Mapping[str, str]:
    """Environment of every command: the suite can be imported even if it is not installed."""
    paths = [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)}


def main() -> int:
    began_s = time.monotonic()
    arguments = _arguments()
    out = arguments.out.expanduser().resolve()
    packed = out / "packed" if arguments.packed is None else arguments.packed.expanduser().resolve()
    if arguments.nanogpt is not None and not (arguments.nanogpt / "model.py").is_file():
        return _refuse(f"--nanogpt {arguments.nanogpt}: there is no model.py in it")
    out.mkdir(parents=True, exist_ok=True)
    end_leftover(out)
    try:
        restored = restore(packed, out)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        state = State.read(out) or State(tiny=arguments.tiny, overrides=arguments.overrides, began_at=now)
    except (OSError, ValueError, tarfile.TarError) as error:
        return _refuse(f"{packed} or {out} cannot be continued: {error}")
    if (state.tiny, state.overrides) != (arguments.tiny, arguments.overrides):
        kept = " ".join([*(["--tiny"] if state.tiny else []), *state.overrides]) or "neither --tiny nor overrides"
        return _refuse(f"{out} holds a campaign with {kept}; choose another --out")
    if restored:
        print(f"{restored} runs restored from {packed}", file=sys.stderr)
    state.commit = _commit() or state.commit
    commands = planned(tiny=state.tiny, overrides=state.overrides, only=arguments.only)
    nanogpt = None if arguments.nanogpt is None else arguments.nanogpt.expanduser().resolve()
    campaign = Campaign(out, state, packed=packed, nanogpt=nanogpt, ends_s=began_s + arguments.budget)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        campaign.run(commands)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    left = campaign.remaining(commands)
    print(f"{len(commands) - len(left)} of {len(commands)} commands are done; packed: {packed}")
    for line in left:
        print(f"left: {line}")
    if left:
        print("Another call of the same command goes on.")
    return 1 if left else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=float, required=True, metavar="SECONDS", help="for this call, all in all")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="of the campaign; may exist")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=[], metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--tiny", action="store_true", help="shows on any machine that it works")
    parser.add_argument("--nanogpt", type=Path, metavar="CHECKOUT", help="nanoGPT's code, to be measured beside")
    parser.add_argument(
        "--packed", type=Path, metavar="DIR", help="of the packed files, also to continue from on another machine"
    )
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="for every sweep, such as device=cpu")
    return parser.parse_intermixed_args()


def _commit() -> str | None:
    try:
        done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _refuse(sentence: str) -> int:
    print(f"error: {sentence}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
