"""Workloads of a stranger's project, each trained in three modes: `python tests/benchmarks/own_workloads.py`.

They lie in `own_workloads/`, outside the suite: models, data and tasks (`zoo`), configs (`conf`), and the same
trainings written by hand from torch's own parts (`plain_loops.py`). Each workload is trained as a sweep, trained again
with kill -9 in the middle of every run and gone on with by `into=`, and trained by hand. JSON goes to stdout, progress
to stderr, a table in Markdown to `--table FILE`.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch

from ampsweep.record import CHECKPOINTS, LAST, RunRecord, find_records, read_history
from ampsweep.training.checkpoint import load_checkpoint

ROOT: Final = Path(__file__).parents[2]
HERE: Final = Path(__file__).parent / "own_workloads"
sys.path.insert(0, str(HERE))

from zoo.folder import write_digits  # noqa: E402

MODES: Final = ("fp32", "amp_bf16", "amp_fp16")
WORKLOADS: Final = tuple(sorted(path.stem for path in (HERE / "conf/experiment").glob("*.yaml")))
EVERY: Final = 8
KILLED_AT: Final = 19
"""Step within which each run is killed; the last checkpoint is then three steps old."""
MORE_STEPS: Final = {"digits_gan": 2, "digits_wgan_gp": 2, "autoencoder": 2}
"""Optimizers that step within one step of training, where there are several."""
TRAINING: Final = ("tracking=disabled", "device=cpu", "trainer.log_every=1", f"trainer.checkpoint_every={EVERY}")
NOT_COMPARED: Final = ("perf/", "memory/", "device/", "instrumentation/")
"""Figures that differ from run to run: what remains has to be equal bitwise."""


@dataclass(kw_only=True)
class Found:
    """What became of one workload in one mode. Facts that there are none of are None."""

    workload: str
    mode: str
    outcome: str
    error: str | None = None
    measured_bytes: int | None = None
    predicted_bytes: int | None = None
    refused: str | None = None
    """The sentence of a prediction that cannot be made."""
    resumed_from: int | None = None
    differences_after_resume: list[str] = field(default_factory=list)
    """The rows and parts of the last checkpoint that a killed run did not make as the other one did."""
    by_hand_error: str | None = None
    num_equal_losses: int | None = None
    num_losses: int | None = None
    largest_difference: float | None = None
    """Of a step's loss from that of the loop written by hand, in parts of the latter."""
    largest_weight_difference: float | None = None
    """Of any final weight from that of the loop, in parts of the largest weight of its tensor."""

    @property
    def prediction_error(self) -> int | None:
        if self.predicted_bytes is None or self.measured_bytes is None:
            return None
        return self.predicted_bytes - self.measured_bytes


def examine(name: str, modes: Sequence[str], directory: Path) -> list[Found]:
    """Train a workload in these modes in every way, below `directory`."""
    for place in ("whole", "killed"):
        (directory / place).mkdir()
        if name == "images":
            write_digits(directory / place / "images")
    settings = (f"experiment={name}", f"precision={','.join(modes)}", *TRAINING)
    _train(directory / "whole", *settings)
    killed_at = KILLED_AT * MORE_STEPS.get(name, 1)
    _train(directory / "killed", *settings, AMPSWEEP_TEST_KILL_AT=str(killed_at))
    (sweep,) = (path.parent for path in (directory / "killed").rglob("multirun.yaml"))
    killed_at_all = _runs(sweep)
    _train(directory / "killed", *settings, f"into={sweep}")
    whole, resumed = _runs(directory / "whole"), _runs(sweep)
    found = []
    for mode in modes:
        path, record = whole[mode]
        one = Found(workload=name, mode=mode, outcome=record.status, error=record.error)
        found.append(one)
        if record.status == "completed":
            _predicted(one, record)
            assert killed_at_all[mode][1].status == "failed", "it was killed"
            _compare_resumed(one, path, *resumed[mode])
    by_hand = _train_by_hand(name, directory, {mode: whole[mode][1].config for mode in modes})
    for one in found:
        _compare_by_hand(one, whole[one.mode][0], by_hand[one.mode])
    return found


def _train(directory: Path, *overrides: str, **environment: str) -> None:
    """`python train.py -m` as its user types it in an own project; a sweep that fails says so on stderr.

    With temporary files of its own it waits for no other training on this machine: nothing here is timed.
    """
    command = [sys.executable, str(ROOT / "train.py"), "--config-dir", str(HERE / "conf"), "-m", *overrides]
    path = _path(HERE, *([HERE / "killed"] if environment else []))
    done = subprocess.run(
        command,
        cwd=directory,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, "TMPDIR": str(directory), **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        timeout=600,
        check=False,
    )
    if done.returncode != (1 if environment else 0):
        print(f"{' '.join(overrides)} ended with {done.returncode}:\n{done.stderr}", file=sys.stderr)
    if done.returncode == 2:
        raise RuntimeError(done.stderr)


def _path(*first: Path) -> str:
    """The PYTHONPATH with these directories before what is there."""
    return os.pathsep.join([*map(str, first), *filter(None, [os.environ.get("PYTHONPATH")])])


def _runs(directory: Path) -> dict[str, tuple[Path, RunRecord]]:
    """The runs below a directory by mode; those of `into=` are the sweep's own."""
    return {record.identity.precision_mode: (path, record) for path, record in find_records(directory).records}


def _predicted(one: Found, record: RunRecord) -> None:
    one.measured_bytes = record.memory.peak_bytes
    assert record.prediction is not None, "every run was to be predicted"
    one.predicted_bytes, one.refused = record.prediction.peak_bytes, record.prediction.refused


def _compare_resumed(one: Found, whole: Path, killed: Path, record: RunRecord) -> None:
    one.resumed_from = record.attempts[-1].from_step
    expected, rows = _figures(whole), _figures(killed)
    steps = sorted(step for step in expected.keys() | rows.keys() if expected.get(step) != rows.get(step))
    one.differences_after_resume = [f"row of step {step}" for step in steps]
    states = [load_checkpoint(path / CHECKPOINTS / LAST) for path in (whole, killed)]
    first, second = (vars(state) for state in states)
    one.differences_after_resume += [key for key in first if not _equal(first[key], second[key])]


def _figures(run: Path) -> dict[int, dict[str, float]]:
    """Rows by step, without what differs from run to run."""
    rows = read_history(run)
    return {int(row["step"]): {k: v for k, v in row.items() if not k.startswith(NOT_COMPARED)} for row in rows}


def _equal(first: Any, second: Any) -> bool:
    if isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor):
        return first.dtype == second.dtype and torch.equal(first, second)
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(_equal(first[key], second[key]) for key in first)
    if isinstance(first, list | tuple) and isinstance(second, list | tuple):
        return len(first) == len(second) and all(map(_equal, first, second))
    return bool(first == second)


def _train_by_hand(name: str, directory: Path, configs: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What the loops written by hand return, by mode."""
    files = {mode: directory / f"{mode}.json" for mode in configs}
    for mode, file in files.items():
        file.write_text(json.dumps(configs[mode]))
    subprocess.run(
        [sys.executable, str(HERE / "plain_loops.py"), name, *map(str, files.values())],
        cwd=directory / "whole",
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": _path(HERE)},
        timeout=600,
        check=True,
    )
    return {mode: torch.load(file.with_suffix(".pt"), weights_only=True) for mode, file in files.items()}


def _compare_by_hand(one: Found, run: Path, by_hand: dict[str, Any]) -> None:
    one.by_hand_error = by_hand.get("error")
    if one.by_hand_error is not None or one.outcome != "completed":
        return
    losses = [row["train/loss"] for row in read_history(run) if "train/loss" in row]
    pairs = [*zip(losses, by_hand["losses"], strict=True)]
    # A scale that is too large for a penalty makes the loss no number, in both.
    differences = [
        0.0 if ours == theirs or (math.isnan(ours) and math.isnan(theirs)) else abs(ours - theirs) / abs(theirs)
        for ours, theirs in pairs
    ]
    one.num_losses, one.num_equal_losses = len(pairs), differences.count(0.0)
    one.largest_difference = max(differences)
    weights = load_checkpoint(run / CHECKPOINTS / LAST).model
    assert weights.keys() == by_hand["weights"].keys()
    one.largest_weight_difference = max(_difference(weights[key], by_hand["weights"][key]) for key in weights)


def _difference(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    if torch.equal(ours, theirs):
        return 0.0
    return float((ours.double() - theirs.double()).abs().max() / theirs.double().abs().max())


def table(found: Sequence[Found]) -> str:
    """A row for each workload, with one value for all modes where they agree."""
    lines = [
        "| workload | outcome | prediction's error | kill -9 and resume | by hand |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name in dict.fromkeys(one.workload for one in found):
        mine = [one for one in found if one.workload == name]
        cells = [_agreed(mine, tell) for tell in (_outcome, _prediction, _resume, _hand)]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _agreed(found: Sequence[Found], tell: Any) -> str:
    told = {one.mode: text for one in found if (text := tell(one))}
    if len(set(told.values())) == 1:
        return next(iter(told.values()))
    return ", ".join(f"{mode}: {text}" for mode, text in told.items())


def _outcome(one: Found) -> str:
    return one.outcome


def _prediction(one: Found) -> str:
    if one.outcome != "completed":
        return ""
    if one.refused:
        return "refused"
    return f"{one.prediction_error:+,} B" if one.prediction_error else "0 B"


def _resume(one: Found) -> str:
    if one.outcome != "completed":
        return ""
    return ", ".join(one.differences_after_resume) or "bitwise"


def _hand(one: Found) -> str:
    if one.by_hand_error is not None:
        return "raises as well" if one.outcome != "completed" else "raises"
    if one.largest_difference is None:
        return ""
    if one.largest_difference == one.largest_weight_difference == 0:
        return "bitwise"
    return f"losses within {_rounded(one.largest_difference)}, weights within {_rounded(one.largest_weight_difference)}"


def _rounded(value: float | None) -> str:
    return "0" if not value else f"1e{math.ceil(math.log10(value))}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(WORKLOADS), help="workloads, with commas between them")
    parser.add_argument("--modes", default=",".join(MODES), help="precision modes, with commas between them")
    parser.add_argument("--table", type=Path, help="file for the table")
    parser.add_argument("--keep", type=Path, help="directory for the runs; without it they are removed")
    arguments = parser.parse_args()
    found: list[Found] = []
    with tempfile.TemporaryDirectory() as temporary:
        for name in arguments.only.split(","):
            directory = (arguments.keep or Path(temporary)) / name
            directory.mkdir(parents=True)
            found += examine(name, arguments.modes.split(","), directory)
            print(table([one for one in found if one.workload == name]).splitlines()[-1], file=sys.stderr)
    print(json.dumps({"torch": torch.__version__, "found": [vars(one) for one in found]}, indent=1))
    if arguments.table is not None:
        arguments.table.write_text(table(found))


if __name__ == "__main__":
    main()
