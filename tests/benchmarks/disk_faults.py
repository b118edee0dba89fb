"""Commands on a disk without room: `python tests/benchmarks/disk_faults.py`, see README.md; needs the right to mount.

Each trial has a small disk of its own (a tmpfs), a limit on the size of files, or a place that cannot be written. JSON
goes to stdout: what was said, the exit code, and the state of the records.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from rounds import environment, machine

from ampsweep.record import find_records

TRAIN: Final = (sys.executable, str(Path(__file__).parents[2] / "train.py"))
MLP: Final = (
    *("model=mlp_small", "device=cpu", "trainer.steps=40", "trainer.log_every=1", "predict.with_runs=false"),
    "output_dir=disk/outputs",
)
ALONE: Final = (*TRAIN, *MLP, "tracking=disabled")
SWEEP: Final = (*ALONE, "-m", "seed=0,1,2")
REPORT: Final = (sys.executable, "-m", "ampsweep.commands.main", "report", "disk/outputs")


@dataclass(frozen=True)
class Fault:
    """A command in a place where not everything can be written."""

    command: tuple[str, ...]
    disk: str | None = None
    """Options of the disk's mount; None: there is room."""
    file_size: int | None = None
    """The largest size of a file, in bytes."""
    stdout: str | None = None
    variables: dict[str, str] = field(default_factory=dict)
    before: tuple[str, ...] = ()
    """A command that runs first, while there is room; then the disk is filled or made read-only (`after`)."""
    after: str | None = None


FAULTS: Final = {
    "alone, no room at all": Fault(ALONE, "size=4k"),
    "alone, room for its directory": Fault(ALONE, "size=8k"),
    "alone, room for its first record": Fault(ALONE, "size=20k"),
    "alone, room for some rows": Fault(ALONE, "size=28k"),
    "alone, room for all but its last record": Fault(ALONE, "size=40k"),
    "alone, no inode for its directory": Fault(ALONE, "size=3m,nr_inodes=3"),
    "alone, no inode for Hydra's files": Fault(ALONE, "size=3m,nr_inodes=6"),
    "alone, no inode for its record": Fault(ALONE, "size=3m,nr_inodes=9"),
    "alone, no room for a checkpoint": Fault((*ALONE, "trainer.checkpoint_every=10"), "size=300k"),
    "alone, room for one checkpoint": Fault((*ALONE, "trainer.checkpoint_every=10"), "size=1400k"),
    "alone, no room for W&B": Fault((*TRAIN, *MLP, "tracking.mode=offline"), "size=72k"),
    "alone, files of 1 KiB": Fault(ALONE, file_size=1024),
    "alone, files of 64 KiB and a checkpoint": Fault((*ALONE, "trainer.checkpoint_every=10"), file_size=65536),
    "alone, a directory that is read-only": Fault(ALONE, "size=3m", after="ro"),
    "sweep, no room at all": Fault(SWEEP, "size=4k"),
    "sweep, room for one run": Fault(SWEEP, "size=100k"),
    "sweep, room for all but the comparison": Fault(SWEEP, "size=160k"),
    "sweep, no inode for the second run": Fault(SWEEP, "size=3m,nr_inodes=16"),
    "sweep, files of 16 KiB": Fault(SWEEP, file_size=16384),
    "report on a full disk": Fault(REPORT, "size=400k", before=SWEEP, after="full"),
    "report on a read-only disk": Fault(REPORT, "size=3m", before=SWEEP, after="ro"),
    "report to a full stdout": Fault(REPORT, "size=30m", before=SWEEP, stdout="/dev/full"),
    "alone, no room for temporary files": Fault(ALONE, variables={"TMPDIR": "full"}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", nargs="+", choices=list(FAULTS), default=list(FAULTS))
    arguments = parser.parse_args()
    faults, loads = {}, []
    for name in arguments.faults:
        faults[name] = _try(FAULTS[name])
        loads.append(os.getloadavg()[0])
        print(name, json.dumps(faults[name]), file=sys.stderr, flush=True)
    most = max(one["lines_on_stderr"] for one in faults.values())
    tracebacks = sum(one["tracebacks"] for one in faults.values())
    print(
        json.dumps(
            {"most_lines": most, "tracebacks": tracebacks, "faults": faults, "machine": machine(loads)}, indent=1
        )
    )


def _try(fault: Fault) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name, _disk(Path(name) / "disk", fault.disk) as disk:
        place = Path(name)
        variables = environment(place) | {"TMPDIR": name} | fault.variables
        if fault.before:
            subprocess.run(fault.before, cwd=place, env=variables, capture_output=True, check=True)
        if "full" in variables.values():
            full = place / "full"
            full.mkdir()
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k,nr_inodes=1", "tmpfs", str(full)], check=True)
            variables["TMPDIR"] = str(full)
        if fault.after == "ro":
            subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        if fault.after == "full":
            _fill(disk)
        limit = None if fault.file_size is None else _limited(fault.file_size)
        try:
            return _tried(fault, place, variables, limit)
        finally:
            if (place / "full").is_dir():
                subprocess.run(["umount", "--lazy", str(place / "full")], check=True)


def _tried(fault: Fault, place: Path, variables: dict[str, str], limit: Callable[[], None] | None) -> dict[str, Any]:
    with open(fault.stdout or os.devnull, "wb") as stdout:  # noqa: PTH123  a device
        done = subprocess.run(
            fault.command,
            cwd=place,
            env=variables,
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            preexec_fn=limit,
            timeout=300,
        )
    lines = [line for line in done.stderr.splitlines() if "before the run began" not in line]
    found = find_records(place / "disk")
    return {
        "exit_code": done.returncode,
        "said": [line.replace(str(place), ".") for line in lines[:8]],
        "lines_on_stderr": len(lines),
        "tracebacks": done.stderr.count("Traceback"),
        "records": [record.status for _, record in found.records],
        "unreadable": [str(error).replace(str(place), ".") for error in found.unreadable],
        "parts_of_files": [path.name for path in (place / "disk").rglob(".*") if path.name != ".hydra"],
    }


def _limited(size: int) -> Callable[[], None]:
    return partial(resource.setrlimit, resource.RLIMIT_FSIZE, (size, size))


def _fill(disk: Path) -> None:
    with (disk / "ballast").open("wb", buffering=0) as ballast:
        try:
            while True:
                ballast.write(b"0" * 4096)
        except OSError:
            return


@contextmanager
def _disk(disk: Path, options: str | None) -> Iterator[Path]:
    """A folder, on a disk of its own if it has options."""
    disk.mkdir()
    if options is None:
        yield disk
        return
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(disk)], check=True)
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


if __name__ == "__main__":
    main()
