"""The doctor on trainings with one planted fault, and on healthy ones: `python tests/benchmarks/planted_faults.py`.

Each is examined by the command that a user types, in a process of its own. A fault is named rightly if the first
finding of its complaint has its kind and its module (and operator, where only one is right). The healthy trainings,
eight kinds of models, are examined for everything in amp_bf16 and, but for speed, in amp_fp16 where that does not take
minutes. JSON goes to stdout, progress to stderr.
"""

import argparse
import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).resolve().parents[1] / "doctor"
sys.path.insert(0, str(HERE))

from healthy import HEALTHY  # noqa: E402
from planted import Planted  # noqa: E402

from ampsweep.config.schema import COMPLAINTS  # noqa: E402

LIMIT_S: Final = 600


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--complaint", choices=COMPLAINTS, action="append", help="only these (default: all)")
    parser.add_argument("--name", help="only what has this in its name")
    parser.add_argument("--healthy", choices=("with", "without", "only"), default="with")
    parser.add_argument("--mode", action="append", help="of the healthy trainings (default: amp_bf16)")
    arguments = parser.parse_args()
    complaints = tuple(arguments.complaint or COMPLAINTS)
    faults = [] if arguments.healthy == "only" else [*_planted(complaints, arguments.name or "")]
    healthy = [] if arguments.healthy == "without" else [*_healthy(complaints, arguments.name or "", arguments.mode)]
    print(
        json.dumps(
            {
                "num_planted": len(faults),
                "num_right": sum(one["is_right"] for one in faults),
                "num_healthy": len(healthy),
                "num_false_alarms": sum(bool(one["findings"]) for one in healthy),
                "planted": faults,
                "healthy": healthy,
            },
            indent=1,
        )
    )


def _planted(complaints: Sequence[str], name: str) -> Iterator[dict[str, Any]]:
    for complaint in complaints:
        planted: Sequence[Planted] = importlib.import_module(f"planted_{complaint}").PLANTED
        for one in planted:
            if name in one.name:
                yield _examined(one)


def _examined(planted: Planted) -> dict[str, Any]:
    found = _doctor(*planted.overrides, f"doctor.complaints=[{planted.complaint}]")
    findings = found.get("findings", [])
    first = findings[0] if findings else {}
    is_right = (
        first.get("kind") == planted.kind
        and next(iter(first["modules"]), None) == planted.module
        and planted.operator in (None, first["operator"])
    )
    told = {"planted": planted.name, "complaint": planted.complaint, "is_right": is_right, **_in_short(found)}
    print(f"{'right' if is_right else 'WRONG'}  {planted.complaint}: {planted.name}", file=sys.stderr)
    return told


def _healthy(complaints: Sequence[str], name: str, modes: Sequence[str] | None) -> Iterator[dict[str, Any]]:
    for workload, overrides in HEALTHY.items():
        for mode in modes or ("amp_bf16",):
            asked = [one for one in complaints if one != "speed" or mode == "amp_bf16"]
            if name in workload and asked:
                found = _doctor(*overrides, f"precision={mode}", f"doctor.complaints=[{','.join(asked)}]")
                told = {"workload": workload, "mode": mode, **_in_short(found)}
                alarm = ", ".join(one["kind"] for one in told["findings"]) or told["error"] or "nothing"
                print(f"{workload} in {mode}: {alarm}", file=sys.stderr)
                yield told


def _in_short(found: dict[str, Any]) -> dict[str, Any]:
    keys = ("complaint", "kind", "modules", "operator", "place", "cost_pct", "change", "proof")
    return {
        "findings": [{key: one[key] for key in keys} for one in found.get("findings", [])],
        "unexamined": found.get("unexamined", []),
        "error": found.get("error"),
        "seconds": found["wall_s"],
        "replays": found.get("facts", {}).get("loss/replays"),
    }


def _doctor(*overrides: str) -> dict[str, Any]:
    """The diagnosis that the command prints, or the `error` that it ends with, and the time that it took."""
    command = [sys.executable, "-m", "ampsweep.commands.main", "doctor", *overrides, "tracking=disabled", "format=json"]
    path = os.pathsep.join((str(HERE), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")))
    began_s = time.monotonic()
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    wall = {"wall_s": round(time.monotonic() - began_s, 1)}
    if done.returncode != 0:
        return {"error": done.stderr[-500:], **wall}
    diagnosis: dict[str, Any] = json.loads(done.stdout)
    return diagnosis | wall


if __name__ == "__main__":
    main()
