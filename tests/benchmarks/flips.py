"""Flipped bits and digits in the files of runs: `python tests/benchmarks/flips.py`.

Runs that finished, one that was stopped and one that was killed are trained for real. Then, over and over, one bit is
flipped or one digit changed in one of their files, `ampsweep report` is called in this process (for checkpoints, what
a resume reads), and its answer is compared with the one about the whole files. JSON goes to stdout, progress to stderr.
"""

import argparse
import contextlib
import io
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

import torch
from rounds import machine

from ampsweep.commands.main import main as ampsweep
from ampsweep.record import CHECKPOINTS, HISTORY_NAME, LAST, PREVIOUS, RunRecord, find_records
from ampsweep.training.checkpoint import Checkpoint, CheckpointError
from ampsweep.training.found_checkpoint import find_checkpoint

ROOT: Final = Path(__file__).parents[2]
TRAINING: Final = (
    *("model=mlp_small", "data=digits", "tracking=disabled", "predict.with_runs=false", "trainer.log_every=1"),
    *("trainer.checkpoint_every=5",),
)
SWEEP: Final = ("-m", *TRAINING, "trainer.steps=20", "seed=0,1,2", "precision=fp32,amp_fp16")
ENDLESS: Final = (*TRAINING, "trainer.steps=1000000")
ENDS: Final = {"stopped": signal.SIGTERM, "killed": signal.SIGKILL}
FILES: Final = ("run.json", HISTORY_NAME, f"{CHECKPOINTS}/{LAST}", f"{CHECKPOINTS}/{PREVIOUS}")
NUM_SHOWN: Final = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flips", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    drawn = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        _train(directory)
        began = time.monotonic()
        results: Counter[str] = Counter()
        shown: list[str] = []
        whole = Answers(directory)
        for number in range(arguments.flips):
            what, outcome = _flipped(directory, whole, drawn)
            results[f"{what}: {outcome}"] += 1
            if "crashed" in outcome or "unseen" in outcome:
                shown.append(f"flip {number}: {what}: {outcome}")
            if (number + 1) % 25 == 0:
                print(f"{number + 1} of {arguments.flips}: {dict(_summed(results))}", file=sys.stderr, flush=True)
        result = {
            "flips": arguments.flips,
            "seed": arguments.seed,
            "machine": machine([os.getloadavg()[0]]),
            "seconds": round(time.monotonic() - began, 1),
            "outcomes": _summed(results),
            "by file": dict(sorted(results.items())),
            "unseen or crashed": shown[:NUM_SHOWN],
        }
    print(json.dumps(result, indent=1))


def _train(directory: Path) -> None:
    """Train the finished runs of a sweep, one that is stopped and one that is killed."""
    command = [sys.executable, str(ROOT / "train.py"), f"output_dir={directory}"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run([*command, *SWEEP, "name=finished"], env=environment, check=True, stdout=subprocess.DEVNULL)
    for name, sent in ENDS.items():
        run = subprocess.Popen([*command, *ENDLESS, f"name={name}"], env=environment, stdout=subprocess.DEVNULL)
        while not any(path.stat().st_size > 4096 for path in (directory / name).glob(f"*/*/{HISTORY_NAME}")):
            if run.poll() is not None:
                raise RuntimeError(f"the run that was to be {name} has ended with {run.returncode}")
            time.sleep(0.05)
        run.send_signal(sent)
        run.wait()


class Answers:
    """The answers about files that are as the runs left them."""

    def __init__(self, directory: Path) -> None:
        self.comparison, told, _ = _report(directory)
        assert not told, f"of whole files it says {told}"
        self.records = dict(find_records(directory).records)
        self.states = {
            place / CHECKPOINTS / name: _bytes_of(find_checkpoint(place / CHECKPOINTS / name).checkpoint)
            for place in self.records
            for name in (LAST, PREVIOUS)
            if (place / CHECKPOINTS / name).is_file()
        }
        self.files = [file for place in self.records for name in FILES if (file := place / name).is_file()]


def _flipped(directory: Path, whole: Answers, drawn: random.Random) -> tuple[str, str]:
    """Change one file, ask, and put it right again: what was changed, and what came of it."""
    kind = drawn.choice(("run.json", "run.json", HISTORY_NAME, HISTORY_NAME, "checkpoint"))
    of_kind = [file for file in whole.files if file.name == kind or (kind == "checkpoint" and file.suffix == ".pt")]
    file = drawn.choice(of_kind)
    content = file.read_bytes()
    changed, how = _changed(content, drawn, digits=file.suffix != ".pt")
    (run,) = [place for place in whole.records if file.is_relative_to(place)]
    what = f"{how} of {kind} of a {run.relative_to(directory).parts[0]} run"
    file.write_bytes(changed)
    try:
        if kind == "checkpoint":
            return what, _of_checkpoint(run, file, whole)
        return what, _of_report(directory, run, file, whole)
    except Exception as error:  # noqa: BLE001 (any error is what is looked for)
        return what, f"crashed with {type(error).__name__}: {error}"
    finally:
        file.write_bytes(content)


def _changed(content: bytes, drawn: random.Random, *, digits: bool) -> tuple[bytes, str]:
    changed = bytearray(content)
    if digits and drawn.random() < 0.5:
        place = drawn.choice([place for place, byte in enumerate(content) if chr(byte).isdigit()])
        changed[place] = ord(drawn.choice([digit for digit in "0123456789" if ord(digit) != content[place]]))
        return bytes(changed), "a digit"
    changed[drawn.randrange(len(content))] ^= 1 << drawn.randrange(8)
    return bytes(changed), "a bit"


def _of_report(directory: Path, run: Path, file: Path, whole: Answers) -> str:
    comparison, told, text = _report(directory)
    if "Traceback" in text:
        return "crashed with a traceback"
    if any((directory / path).resolve() == file.resolve() for path in told):
        return "told"
    if comparison != whole.comparison:
        return "unseen, and a figure changed"
    covered = file.name != HISTORY_NAME or RunRecord.read(run).history_digest is not None
    return "unseen, and no figure changed" if covered else "of rows without a digest, and no figure changed"


def _report(directory: Path) -> tuple[dict[str, Any], list[str], str]:
    """The comparison as JSON without its omissions, the files these name, and what is said on stderr."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = ampsweep(["report", "--format", "json", str(directory)])
    if code != 0:
        raise RuntimeError(f"exit code {code}: {err.getvalue()}")
    comparison = json.loads(out.getvalue())
    return comparison, [one["path"] for one in comparison.pop("omissions")], err.getvalue()


def _of_checkpoint(run: Path, file: Path, whole: Answers) -> str:
    try:
        found = find_checkpoint(run)
        if file.name == LAST and found.path != file:
            return "told" if found.note else "unseen, and another checkpoint taken"
        state = _bytes_of(found.checkpoint if found.path == file else find_checkpoint(file).checkpoint)
    except CheckpointError:
        return "told"
    return "between the parts, which nobody reads" if state == whole.states[file] else "unseen, and the state changed"


def _bytes_of(checkpoint: Checkpoint) -> bytes:
    stream = io.BytesIO()
    torch.save({one.name: getattr(checkpoint, one.name) for one in fields(checkpoint)}, stream)
    return stream.getvalue()


def _summed(results: Counter[str]) -> dict[str, int]:
    summed: Counter[str] = Counter()
    for name, number in results.items():
        summed[name.partition(": ")[2].split(" with ")[0]] += number
    return dict(summed.most_common())


if __name__ == "__main__":
    main()
