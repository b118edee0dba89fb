"""Runs the blocks of a campaign one after another, within a budget, and packs after each."""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from campaign.block import Block
from campaign.commands import JUNIT_NAME, ROOT, Place, environment, shown
from campaign.junit import read_junit
from campaign.ledger import BY_HAND_NAME, Call, Entry, Ledger, Status
from campaign.packing import pack
from campaign.within import GRACE_S, Ended, run_within

_RESERVE_S: Final = 2.0
"""For packing at the end."""
_PATIENCE: Final = 4.0
"""Times its expected cost after which a command is ended: it hangs, or the device is another one than was thought."""
_LEAST_PATIENCE_S: Final = 60.0

_TESTS_FAILED: Final = 1
"""pytest's exit code where some did, which is a finding."""


class Conductor:
    """One call of the campaign's command.

    Args:
        began_s: when it began, by `time.monotonic`.
        budget_s: seconds for all of it.
        packed: where the packed files go after each block.
    """

    def __init__(self, place: Place, ledger: Ledger, *, began_s: float, budget_s: float, packed: Path) -> None:
        self._place, self._ledger, self._packed = place, ledger, packed
        self._began_s, self._budget_s = began_s, budget_s
        self._call = Call(started_at=datetime.now(UTC).isoformat(timespec="seconds"), budget_s=budget_s)
        ledger.calls.append(self._call)
        ledger.commit = _commit() or ledger.commit

    def run(self, blocks: Sequence[Block]) -> None:
        """Measure what is not measured yet; what failed before comes last, since it may fail again."""
        try:
            for block in sorted(blocks, key=self._failed_before):
                missing = self._missing(block)
                if missing:
                    self._run(block, missing)
                    self._save()
                    self._say_what_is_left(block)
        finally:
            self._save()

    def remaining(self, blocks: Sequence[Block]) -> list[str]:
        """A line on each block that is not done in full: its name, and why."""
        left = [block for block in blocks if self._missing(block)]
        return [f"{block.name}: {self._entry(block).reason or 'not begun'}" for block in left]

    def _run(self, block: Block, missing: Sequence[str]) -> None:
        if block.kind == "tests" and self._place.device == "cpu":
            self._note(block, Entry(experiment=block.experiment, status="not begun", reason="it needs a CUDA device"))
            return
        arms = block.affordable(missing, self._left_s())
        entry = self._entry(block)
        left_out = [arm for arm in missing if arm not in arms]
        if left_out:
            entry.status = "not begun"
            entry.reason = (
                f"{', '.join(left_out)}: about {block.seconds(left_out[:1]):.0f} s were needed, and "
                f"{max(self._left_s() - (block.seconds(arms) if arms else 0), 0):.0f} s of the budget were left"
            )
        if arms:
            self._measure(block, arms, entry, complete=not left_out)
        self._note(block, entry)

    def _measure(self, block: Block, arms: Sequence[str], entry: Entry, *, complete: bool) -> None:
        patience_s = max(_PATIENCE * block.seconds(arms), _LEAST_PATIENCE_S)
        entry.command = shown(block, list(block.arms))
        self._say(f"{block.name}: {', '.join(arms)}")
        began_s = time.monotonic()
        # Noted before: if this process is killed, what is known is that it was cut off.
        reason, entry.status, entry.reason = entry.reason, "cut off", "the campaign was killed meanwhile"
        self._note(block, entry)
        junit = self._place.directory / JUNIT_NAME
        junit.unlink(missing_ok=True)
        try:
            ended = run_within(
                self._place.command(block, arms),
                min(patience_s, self._left_s()),
                directory=self._place.directory,
                log=self._place.directory / "logs" / f"{block.name.replace('/', '-')}.log",
                environment=environment(),
            )
        except KeyboardInterrupt:
            entry.reason = "the campaign was interrupted meanwhile"
            raise
        finally:
            entry.seconds = round(entry.seconds + time.monotonic() - began_s, 1)
        if block.kind == "tests":
            self._ledger.tests = read_junit(junit) or self._ledger.tests
        entry.status, entry.reason = self._judged(block, arms, ended)
        if entry.status == "done":
            entry.arms += arms
            if not complete:
                entry.status, entry.reason = "not begun", reason

    def _judged(self, block: Block, arms: Sequence[str], ended: Ended) -> tuple[Status, str | None]:
        """The block's status and why it is no better; what a worker found is kept."""
        if not ended.in_time:
            spent = self._left_s() <= 0
            return "cut off", "the budget was spent" if spent else f"it took over {_PATIENCE:g} times what was expected"
        if ended.code not in ((0, _TESTS_FAILED) if block.kind == "tests" else (0,)):
            return "failed", f"exit code {ended.code}: {_last_line(ended.told) or _last_line(ended.said)}"
        if block.kind in ("by_hand", "nanogpt"):
            figures = json.loads(ended.said.splitlines()[-1])
            row = {"block": block.name, "experiment": block.experiment, "kind": block.kind, "arm": arms[0]}
            with (self._place.directory / BY_HAND_NAME).open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(row | {"settings": dict(block.settings)} | figures) + "\n")
        return "done", None

    def _entry(self, block: Block) -> Entry:
        known = self._ledger.entries.get(block.name)
        return known or Entry(experiment=block.experiment, status="not begun")

    def _missing(self, block: Block) -> list[str]:
        done = self._entry(block).arms
        return [arm for arm in block.arms if arm not in done]

    def _failed_before(self, block: Block) -> bool:
        return self._entry(block).status == "failed"

    def _note(self, block: Block, entry: Entry) -> None:
        self._ledger.entries[block.name] = entry
        self._call.used_s = round(time.monotonic() - self._began_s, 1)
        self._ledger.write(self._place.directory)

    def _save(self) -> None:
        self._call.used_s = round(time.monotonic() - self._began_s, 1)
        self._ledger.write(self._place.directory)
        pack(self._place.directory, self._packed)

    def _left_s(self) -> float:
        """Seconds that a command may take now."""
        return self._budget_s - (time.monotonic() - self._began_s) - GRACE_S - _RESERVE_S

    def _say_what_is_left(self, block: Block) -> None:
        entry = self._entry(block)
        if entry.status != "done":
            self._say(f"{block.name}: {entry.status}: {entry.reason}")

    def _say(self, text: str) -> None:
        print(
            f"[{time.monotonic() - self._began_s:4.0f} of {self._budget_s:.0f} s] {text}", file=sys.stderr, flush=True
        )


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip()[:300] if lines else ""


def _commit() -> str | None:
    try:
        done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
