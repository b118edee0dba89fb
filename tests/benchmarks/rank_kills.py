"""kill -9 of ranks at random moments of trainings on two: `python tests/benchmarks/rank_kills.py`.

The ranks are forked from here, where all is imported, with the environment that torchrun gives its processes; one of
them or both are killed, two times in three within a checkpoint. Each time the newest whole checkpoint must be, to the
last bit, the one that a training which nobody killed has written after that step, on each rank. The training goes on
from it until it is killed again, or ends, and then every row is compared. JSON goes to stdout, progress to stderr.
"""

import argparse
import json
import os
import random
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

import torch
from rounds import machine
from torch import Tensor

from ampsweep.commands import fork_server  # noqa: F401 (imports what a run needs, once for all)
from ampsweep.config.compose import compose_one
from ampsweep.config.schema import Config
from ampsweep.launch.signal_handlers import StopRequest
from ampsweep.parallel import ddp, fsdp2  # noqa: F401
from ampsweep.record import CHECKPOINTS, HISTORY_NAME, RunRecord, read_history
from ampsweep.run.directories import has_checkpoint
from ampsweep.run.rank import run_rank
from ampsweep.run.request import RunRequest
from ampsweep.training import sharded_checkpoint
from ampsweep.training.checkpoint import CheckpointError
from ampsweep.training.found_checkpoint import FoundCheckpoint, find_checkpoint

WORLD_SIZE: Final = 2
STEPS: Final = 40
TRAINING: Final = (
    *("model=gpt_tiny", "model.num_layers=1", "model.hidden_size=16", "model.num_heads=2", "data=synthetic_tokens"),
    *("data.vocab_size=32", "data.seq_len=16", "data.batch_size=4", "tracking=disabled", "predict.with_runs=false"),
    *(
        "device=cpu",
        "trainer.log_every=1",
        "trainer.eval_every=20",
        "trainer.checkpoint_every=2",
        f"trainer.steps={STEPS}",
    ),
    *("scheduler=cosine", "precision=amp_fp16", "precision.init_scale=1e8", f"parallel.num_processes={WORLD_SIZE}"),
)
STRATEGIES: Final = ("ddp", "fsdp2")
SAME: Final = ("train/loss", "train/grad_norm", "train/lr", "val/loss", "amp/scale", "amp/applied_steps")
PATIENCE_S: Final = 12.0
POLL_S: Final = 0.0005
COUNTS: Final = (
    *("no checkpoint", "other checkpoints", "passed over", "lost steps", "wrong rows", "lost rows", "unfinished"),
    *("left running", "leftover files"),
)
Files = dict[str, str]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--place", type=Path, help="a folder for the runs: in memory it takes a fraction of the time")
    arguments = parser.parse_args()
    began_s = time.monotonic()
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"  # so that a rank does not set it
    with tempfile.TemporaryDirectory(dir=arguments.place) as place:
        campaigns = [
            Campaign(Path(place) / strategy, strategy, random.Random(arguments.seed * 2 + number))
            for number, strategy in enumerate(STRATEGIES)
        ]
        for number, campaign in enumerate(campaigns):
            campaign.run(arguments.kills // 2 + (arguments.kills % 2) * number)
    found = [campaign.found for campaign in campaigns]
    print(
        json.dumps(
            {
                "kills": sum(sum(one["moments"].values()) for one in found),
                "seed": arguments.seed,
                "machine": machine([os.getloadavg()[0]]),
                "seconds": round(time.monotonic() - began_s, 1),
                **{
                    name: dict(sum((Counter(one[name]) for one in found), Counter[str]()))
                    for name in ("moments", "killed", "ended by")
                },
                "checkpoints compared": sum(one["num_compared"] for one in found),
                "runs ended and compared": sum(one["num_ended"] for one in found),
                "most seconds until all had ended": max(one["most_s"] for one in found),
                "wrong": {name: sum(one["wrong"][name] for one in found) for name in COUNTS},
                "told": [line for one in found for line in one["told"]],
            },
            indent=1,
        )
    )


class Campaign:
    """Runs by one strategy, one after the other."""

    def __init__(self, place: Path, strategy: str, chance: random.Random) -> None:
        self.place, self.strategy, self.random = place, strategy, chance
        self.config: Config = compose_one((*TRAINING, f"parallel={strategy}", f"output_dir={place}"))
        self.found: dict[str, Any] = {
            "moments": Counter(),
            "killed": Counter(),
            "ended by": Counter(),
            "wrong": Counter(),
            "told": [],
            "num_compared": 0,
            "num_ended": 0,
            "most_s": 0.0,
        }
        self.num_runs = 0

    def run(self, num_kills: int) -> None:
        """Kill that often, and compare what has become of each run."""
        self._run_unkilled()
        while (done := sum(self.found["moments"].values())) < num_kills:
            print(f"{self.strategy}: {done} of {num_kills}: {dict(self.found['wrong'])}", file=sys.stderr, flush=True)
            self._run_killed(num_kills - done)

    def _run_unkilled(self) -> None:
        """Train once, and keep the digests of each checkpoint."""
        directory = self._directory("unkilled")
        self.checkpoints: dict[int, Files] = {}
        began_s = time.monotonic()
        ranks = Ranks(self.config, directory, keep=directory.with_name("kept"))
        while ranks.alive():
            if _num_rows(directory) == 0:
                self.start_s = time.monotonic() - began_s
            time.sleep(POLL_S)
        if (codes := ranks.codes()) != [0] * WORLD_SIZE:
            raise RuntimeError(f"exit codes {codes}: {RunRecord.read(directory).error}")
        self.whole_s = time.monotonic() - began_s
        self.rows = _rows(directory)
        for path in directory.with_name("kept").iterdir():
            found = find_checkpoint(path)
            self.checkpoints[found.checkpoint.step] = _files(found)
        assert len(self.checkpoints) == STEPS // 2

    def _run_killed(self, most_kills: int) -> None:
        """Kill a training again and again until it ends; some are killed a few times only."""
        self.num_runs += 1
        directory = self._directory(f"run-{self.num_runs}")
        num_kills, reached = self.random.randint(1, min(most_kills, 8)), 0
        for _ in range(num_kills):
            ranks = Ranks(self.config, directory)
            was_killed = self._kill(ranks, directory)
            self._await_end(ranks)
            if not was_killed:
                break
            reached = self._compare_checkpoint(directory, reached)
        else:
            ranks = Ranks(self.config, directory)
            until_s = time.monotonic() + 60
            while ranks.alive() and time.monotonic() < until_s:
                time.sleep(0.02)
            self._await_end(ranks)
        self._compare_end(directory)
        shutil.rmtree(directory)

    def _kill(self, ranks: "Ranks", directory: Path) -> bool:
        """Kill one rank or both; False if they had ended by themselves."""
        moment = self.random.choice(("any", "in a checkpoint", "in a checkpoint"))
        if moment == "any":
            until_s = time.monotonic() + self.random.uniform(0, self.whole_s)
            while ranks.alive() and time.monotonic() < until_s:
                time.sleep(POLL_S)
        else:
            wanted, seen, last = self.random.randint(1, 6), 0, None
            while ranks.alive() and seen < wanted:
                now = next(iter(_temporary(directory)), last)
                seen, last = seen + (now != last), now
            time.sleep(self.random.choice((0.0, 0.001, 0.002, 0.004, 0.008, 0.016)))
        which = self.random.choice(((0,), (1,), (0, 1)))
        if not ranks.kill(which):
            return False
        told = "in a checkpoint" if _temporary(directory) else "between two" if ranks.have_met() else "at the start"
        self.found["moments"][told] += 1
        self.found["killed"]["both" if len(which) > 1 else f"rank {which[0]}"] += 1
        return True

    def _await_end(self, ranks: "Ranks") -> None:
        began_s = time.monotonic()
        while ranks.alive() and time.monotonic() - began_s < PATIENCE_S:
            time.sleep(0.01)
        if ranks.alive():
            # Before they have met, it is their launcher that ends the others.
            if ranks.have_met():
                self._note("left running", f"{ranks.directory.name} after {PATIENCE_S:g} s")
            ranks.kill(range(WORLD_SIZE))
        self.found["most_s"] = max(self.found["most_s"], round(time.monotonic() - began_s, 1))
        ranks.codes()

    def _compare_checkpoint(self, directory: Path, before: int) -> int:
        """Compare the checkpoint that the run would go on from; returns its step."""
        if not has_checkpoint(directory):
            if before or any(step % 2 == 0 and step + 2 < max(_rows(directory)) for step in _rows(directory)):
                self._note("no checkpoint", f"{directory.name} had taken one of step {before}")
            return 0
        try:
            found = find_checkpoint(directory)
        except CheckpointError as error:
            self._note("no checkpoint", str(error))
            return 0
        step = found.checkpoint.step
        if found.note is not None:
            self._note("passed over", found.note)
        if _files(found) != self.checkpoints[step]:
            self._note("other checkpoints", f"{directory.name} of step {step}")
        if step < before:
            self._note("lost steps", f"{directory.name} went back from step {before} to {step}")
        if (last := max(_rows(directory), default=0)) - step > 3:
            self._note("lost steps", f"{directory.name} has rows up to {last}, and its checkpoint is of step {step}")
        self.found["num_compared"] += 1
        return step

    def _compare_end(self, directory: Path) -> None:
        record = RunRecord.read(directory)
        self.found["ended by"][record.status] += 1
        if record.status != "completed":
            self._note("unfinished", f"{directory.name}: {record.status}: {record.error}")
            return
        self.found["num_ended"] += 1
        rows = _rows(directory)
        for step, row in rows.items():
            if row != self.rows.get(step):
                self._note("wrong rows", f"{directory.name}: step {step} is {row}, not {self.rows.get(step)}")
        for step in self.rows.keys() - rows.keys():
            self._note("lost rows", f"{directory.name}: step {step}")
        for leftover in directory.rglob(".*.????????"):
            self._note("leftover files", str(leftover))

    def _directory(self, name: str) -> Path:
        directory = self.place / self.config.name / name / "run"
        directory.mkdir(parents=True)
        return directory

    def _note(self, name: str, told: str) -> None:
        self.found["wrong"][name] += 1
        self.found["told"].append(f"{self.strategy}: {name}: {told}")
        print(f"{name}: {told}", file=sys.stderr, flush=True)


class Ranks:
    """The processes of one training, forked from here; `keep`: a folder for a copy of each checkpoint."""

    def __init__(self, config: Config, directory: Path, keep: Path | None = None) -> None:
        self.directory, self._codes, self._stamp = directory, dict[int, int](), _stamp(directory)
        checkpoint = directory if has_checkpoint(directory) else None
        request = RunRequest(config, directory, checkpoint=checkpoint)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.pids = [_forked(request, rank, port, keep if rank == 0 else None) for rank in range(WORLD_SIZE)]

    def alive(self) -> bool:
        """Tell whether one of them goes on."""
        for pid in self.pids:
            if pid not in self._codes:
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    self._codes[pid] = os.waitstatus_to_exitcode(status)
        return len(self._codes) < len(self.pids)

    def have_met(self) -> bool:
        """Tell whether they have begun to train."""
        return _stamp(self.directory) != self._stamp

    def kill(self, which: Any) -> bool:
        """Kill these ranks; False if one of them had ended before."""
        self.alive()
        killed = [pid for rank in which if (pid := self.pids[rank]) not in self._codes]
        for pid in killed:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return len(killed) == len(list(which))

    def codes(self) -> list[int]:
        """Their exit codes, once they have ended."""
        while self.alive():
            time.sleep(0.01)
        return [self._codes[pid] for pid in self.pids]


def _forked(request: RunRequest, rank: int, port: int, keep: Path | None) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        os.environ |= {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "WORLD_SIZE": str(WORLD_SIZE),
            "LOCAL_WORLD_SIZE": str(WORLD_SIZE),
        }
        if keep is not None:
            _keep_each(keep)
        with StopRequest() as stop:
            run_rank(request, send=lambda message: None, stop=stop)
        code = 0
    except BaseException:  # noqa: BLE001 (it must not come back into the process it was forked from)
        code = 1
    finally:
        os._exit(code)


def _keep_each(place: Path) -> None:
    """Copy each checkpoint that this process publishes."""
    publish = sharded_checkpoint._publish

    def keep(temporary: Path, to: Path) -> None:
        shutil.copytree(temporary, place / temporary.name)
        publish(temporary, to)

    sharded_checkpoint._publish = keep


def _temporary(directory: Path) -> list[Path]:
    """Checkpoints that are being written."""
    try:
        return [path for path in (directory / CHECKPOINTS).iterdir() if path.name.startswith(".last.")]
    except FileNotFoundError:
        return []


def _files(found: FoundCheckpoint) -> Files:
    """The digests of what each rank has saved of the training, whatever the form of its pickle."""
    contents = {file.name: torch.load(file, weights_only=True) for file in found.path.glob("*.pt")}
    for content in contents.values():
        del content["observed"]  # of the instruments: what the process that goes on sees is its own
    return {name: _digest(content) for name, content in contents.items()}


def _digest(content: Any) -> str:
    """The digest of plain values and tensors."""
    return blake2b(repr(_plain(content)).encode()).hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.dtype, value.shape, None if value.is_meta else value.tolist()
    if isinstance(value, dict):
        return sorted((str(key), _plain(one)) for key, one in value.items())
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value


def _stamp(directory: Path) -> int:
    """The time of the history's last change, which the first rank makes; 0 before there is one."""
    try:
        return (directory / HISTORY_NAME).stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def _num_rows(directory: Path) -> int:
    try:
        return (directory / HISTORY_NAME).read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def _rows(directory: Path) -> dict[int, dict[str, float]]:
    """The figures of the history that are the same each time, by step."""
    if not (directory / HISTORY_NAME).exists():
        return {}
    return {row["step"]: {key: row[key] for key in SAME if key in row} for row in read_history(directory)}


if __name__ == "__main__":
    main()
