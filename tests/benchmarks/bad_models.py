"""A sweep of tiny models, many of them bad: `python tests/benchmarks/bad_models.py`, see README.md.

Some raise, exit, crash, run out of memory or never return, in construction, forward, backward, optimizer, evaluation or
data (`bad_model_parts.py`). JSON goes to stdout: outcomes expected and recorded, and what the sweep left behind.
"""

import argparse
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from pathlib import Path
from typing import Any, Final

import psutil
from rounds import environment, machine

from ampsweep.record import find_records

MOMENTS: Final = ("construction", "forward", "backward", "optimizer", "evaluation", "data")
ENDS: Final = ("raise", "exit", "leave", "segfault", "abort", "kill")
STANDS: Final = ("sleep", "spin")
MAX_SECONDS, GRACE_SECONDS = 1.0, 0.5
COMMAND: Final = (
    *(sys.executable, str(Path(__file__).parents[2] / "train.py"), "-m"),
    *("model=custom", "model._target_=bad_model_parts.Model"),
    *("data=custom", "data._target_=bad_model_parts.Data", "data.batch_size=4", "+data.case=${model.case}"),
    *("task=regression", "optimizer=sgd", "device=cpu", "tracking=disabled", "predict.with_runs=false"),
    *("trainer.steps=8", "trainer.log_every=1", "trainer.warmup_steps=0"),
    *(f"trainer.max_seconds={MAX_SECONDS}", f"trainer.grace_seconds={GRACE_SECONDS}"),
)


def cases(num_points: int, seed: int) -> list[str]:
    """`DEED-MOMENT-NUMBER` of each point: all deeds at all moments, as far as there is room, among good models."""
    bad = [*itertools.product((*ENDS, "no_memory", *STANDS), MOMENTS), ("hold_python", "forward")]
    source = random.Random(seed)
    source.shuffle(bad)
    bad = bad[: num_points // 2]
    all_of_them = [*bad, *[("nothing", "never")] * (num_points - len(bad))]
    source.shuffle(all_of_them)
    return [f"{deed}-{moment}-{number}" for number, (deed, moment) in enumerate(all_of_them)]


def expected(case: str) -> str:
    """The status that a case should be recorded with."""
    return {"nothing": "completed", "no_memory": "oom"}.get(case.split("-")[0], "failed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="where stderr is kept")
    arguments = parser.parse_args()
    chosen, mark = cases(arguments.points, arguments.seed), uuid.uuid4().hex
    with tempfile.TemporaryDirectory() as place:
        temporary = Path(place) / "tmp"
        temporary.mkdir()
        variables = environment(Path(place)) | {"TMPDIR": str(temporary), "AMPSWEEP_CAMPAIGN": mark}
        command = [*COMMAND, f"+model.case={','.join(chosen)}", f"output_dir={place}/outputs"]
        began_s = time.monotonic()
        done = subprocess.run(command, cwd=place, env=variables, capture_output=True, text=True, check=False)
        seconds = time.monotonic() - began_s
        time.sleep(1.0)
        result = {
            "points": len(chosen),
            "seconds": round(seconds, 1),
            "exit_code": done.returncode,
            "stderr_lines": len(done.stderr.splitlines()),
            "tracebacks_on_stderr": done.stderr.count("Traceback"),
            **_outcomes(chosen, Path(place) / "outputs"),
            "left_behind": _left_behind(Path(place), temporary, mark),
            "machine": machine([os.getloadavg()[0]]),
        }
        if arguments.keep is not None:
            (arguments.keep / "stderr.txt").write_text(done.stderr, encoding="utf-8")
    print(json.dumps(result, indent=1))


def _outcomes(chosen: list[str], outputs: Path) -> dict[str, Any]:
    found = find_records(outputs)
    records = {record.config["model"]["case"]: (path, record) for path, record in found.records}
    table = Counter(f"{expected(case)} -> {_status(records, case)}" for case in chosen)
    wrong = {
        case: "no record" if case not in records else f"{records[case][1].status}: {records[case][1].error}"
        for case in chosen
        if _status(records, case) != expected(case)
    }
    stood = [case for case in chosen if case.split("-")[0] in (*STANDS, "hold_python") and case in records]
    return {
        "expected -> recorded": dict(sorted(table.items())),
        "wrong": wrong,
        "unreadable": len(found.unreadable),
        "stood_still": len(stood),
        "and_says_so": sum("trainer.max_seconds" in (records[case][1].error or "") for case in stood),
        "failed_without_error.txt": [
            case
            for case, (path, record) in records.items()
            if record.status == "failed" and not (path / "error.txt").exists()
        ],
        "without_an_end": [case for case, (_, record) in records.items() if record.ended_at is None],
    }


def _status(records: dict[str, Any], case: str) -> str:
    return records[case][1].status if case in records else "no record"


def _left_behind(place: Path, temporary: Path, mark: str) -> dict[str, Any]:
    """Processes of the sweep, temporary files, and parts of files in run directories."""
    processes = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("AMPSWEEP_CAMPAIGN") == mark and process.status() != psutil.STATUS_ZOMBIE:
                processes.append(" ".join(process.cmdline())[:80])
        except psutil.Error:
            continue
    parts = [path.name for path in (place / "outputs").rglob(".*") if path.name != ".hydra"]
    empty = [path.name for path in (place / "outputs").rglob("*") if path.is_file() and path.stat().st_size == 0]
    return {
        "processes": processes,
        "temporary_files": sorted(path.name for path in temporary.iterdir()),
        "parts_of_files": parts,
        "empty_files": dict(Counter(empty)),
    }


if __name__ == "__main__":
    main()
