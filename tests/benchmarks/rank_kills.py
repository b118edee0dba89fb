"""kill -9 of ranks at random moments of trainings on two: `python tests/benchmarks/rank_kills.py`.

The ranks are forked from here, where all is imported, with the environment that torchrun gives its processes; one of
them or both are killed, two times in three within a checkpoint. Each time the newest whole checkpoint must be, to the
last bit, the one that a training which nobody killed has written after that step, on each rank. The training goes on
from it until it is killed again, or ends, and then every row is compared. JSON goes to stdout, progress to stderr.
"""

import os
import shutil
import signal
import socket
import time
from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

import torch
from kills import POLL_S, Campaign, differences, forked, main, rows_of
from torch import Tensor

from ampsweep.config.compose import compose_one
from ampsweep.config.schema import Config
from ampsweep.launch.signal_handlers import StopRequest
from ampsweep.parallel import ddp, fsdp2  # noqa: F401
from ampsweep.records import CHECKPOINTS, HISTORY_NAME, RunRecord, kept_checkpoints
from ampsweep.run.rank import run_rank
from ampsweep.run.request import RunRequest
from ampsweep.training import sharded_checkpoint
from ampsweep.training.checkpoint import CheckpointError
from ampsweep.training.found_checkpoint import FoundCheckpoint, find_checkpoint

WORLD_SIZE: Final = 2
STEPS: Final = 40
STRATEGIES: Final = ("ddp", "fsdp2")
TRAINING: Final = (
    *("model=gpt_tiny", "model.num_layers=1", "model.hidden_size=16", "model.num_heads=2", "data=synthetic_tokens"),
    *("data.vocab_size=32", "data.seq_len=16", "data.batch_size=4", "tracking=disabled", "predict.with_runs=false"),
    *("device=cpu", "trainer.log_every=1", "trainer.eval_every=20", "trainer.checkpoint_every=2"),
    *(f"trainer.steps={STEPS}", "scheduler=cosine", "precision=amp_fp16", "precision.init_scale=1e8"),
    f"parallel.num_processes={WORLD_SIZE}",
)
PATIENCE_S: Final = 12.0


class Unkilled:
    """What a training by a strategy comes to if nobody kills it."""

    def __init__(self, place: Path, strategy: str) -> None:
        self.config: Config = compose_one((*TRAINING, f"parallel={strategy}", f"output_dir={place}"))
        directory, kept = place / strategy, place / f"{strategy}-kept"
        began_s = time.monotonic()
        ranks = Ranks(self.config, directory, keep=kept)
        if (codes := ranks.codes()) != [0] * WORLD_SIZE:
            raise RuntimeError(f"exit codes {codes}: {RunRecord.read(directory).error}")
        self.whole_s = time.monotonic() - began_s
        self.rows = rows_of(directory)
        found = map(find_checkpoint, kept.iterdir())
        self.checkpoints = {one.checkpoint.step: _digests(one) for one in found}
        assert len(self.checkpoints) == STEPS // 2


class RanksOfTrainings(Campaign):
    def __init__(self, place: Path, seed: int) -> None:
        super().__init__(place, seed)
        self.unkilled = {strategy: Unkilled(place, strategy) for strategy in STRATEGIES}
        self.endings, self.num_ended, self.most_s = Counter[str](), 0, 0.0

    def facts(self) -> dict[str, Any]:
        found = {"ended by": self.endings, "most seconds until all had ended": self.most_s}
        return found | {"checkpoints compared": self.num_compared, "runs ended and compared": self.num_ended}

    def trial(self, most_kills: int) -> None:
        """Kill a training again and again until it ends; some are killed a few times only."""
        self.num_trials += 1
        strategy = STRATEGIES[self.num_trials % 2]
        unkilled, directory = self.unkilled[strategy], self.place / f"{strategy}-{self.num_trials}"
        reached = 0
        for _ in range(self.random.randint(1, min(most_kills, 8))):
            ranks = Ranks(unkilled.config, directory)
            was_killed = self._kill(ranks, unkilled.whole_s)
            self._await_end(ranks)
            if not was_killed:
                break
            reached = self._compare_checkpoint(directory, reached, unkilled)
        else:
            ranks = Ranks(unkilled.config, directory)
            ranks.wait(60)
            self._await_end(ranks)
        self._compare_end(directory, unkilled)

    def _kill(self, ranks: "Ranks", whole_s: float) -> bool:
        """Kill one rank or both; False if they had ended by themselves."""
        if self.random.random() < 1 / 3:
            ranks.wait(self.random.uniform(0, whole_s))
        else:
            wanted, seen, last = self.random.randint(1, 6), 0, None
            while ranks.alive() and seen < wanted:
                now = next(iter(_unpublished(ranks.directory)), last)
                seen, last = seen + (now != last), now
            time.sleep(self.random.choice((0.0, 0.001, 0.002, 0.004, 0.008, 0.016)))
        which = self.random.choice(((0,), (1,), (0, 1)))
        if not ranks.kill(which):
            return False
        between = "between two" if ranks.have_met() else "at the start"
        self.moments["in a checkpoint" if _unpublished(ranks.directory) else between] += 1
        self.killed["both" if len(which) > 1 else f"rank {which[0]}"] += 1
        return True

    def _await_end(self, ranks: "Ranks") -> None:
        began_s = time.monotonic()
        ranks.wait(PATIENCE_S)
        if ranks.alive():
            if ranks.have_met():  # before that, it is their launcher that ends the others
                self.note("left running", f"{ranks.directory.name} after {PATIENCE_S:g} s")
            ranks.kill(range(WORLD_SIZE))
        self.most_s = max(self.most_s, round(time.monotonic() - began_s, 1))
        ranks.codes()

    def _compare_checkpoint(self, directory: Path, before: int, unkilled: Unkilled) -> int:
        """Compare the checkpoint that the run would go on from; returns its step."""
        name, steps = directory.name, rows_of(directory) if _stamp(directory) else {}
        if not kept_checkpoints(directory):
            if before or any(step % 2 == 0 and step + 2 < max(steps) for step in steps):
                self.note("no checkpoint", f"{name} had taken one of step {before}")
            return 0
        try:
            found = find_checkpoint(directory)
        except CheckpointError as error:
            self.note("no checkpoint", str(error))
            return 0
        step = found.checkpoint.step
        if found.note is not None:
            self.note("passed over", found.note)
        if _digests(found) != unkilled.checkpoints[step]:
            self.note("other checkpoints", f"{name} of step {step}")
        if step < before:
            self.note("lost steps", f"{name} went back from step {before} to {step}")
        if (last := max(steps, default=0)) - step > 3:
            self.note("lost steps", f"{name} has rows up to {last}, and its checkpoint is of step {step}")
        self.num_compared += 1
        return step

    def _compare_end(self, directory: Path, unkilled: Unkilled) -> None:
        record = RunRecord.read(directory)
        self.endings[record.status] += 1
        if record.status != "completed":
            self.note("unfinished", f"{directory}: {record.status}: {record.error}")
            return
        self.num_ended += 1
        for name, what in differences(rows_of(directory), unkilled.rows):
            self.note(name, f"{directory}: {what}")
        for leftover in directory.rglob(".*.????????"):
            self.note("leftover files", str(leftover))


class Ranks:
    """The processes of one training, forked from here; `keep`: a folder for a copy of each checkpoint."""

    def __init__(self, config: Config, directory: Path, keep: Path | None = None) -> None:
        directory.mkdir(exist_ok=True)
        self.directory, self._codes, self._stamp = directory, dict[int, int](), _stamp(directory)
        checkpoint = directory if kept_checkpoints(directory) else None
        request = RunRequest(config, directory, checkpoint=checkpoint)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        with Path(os.devnull).open("wb") as quiet:
            works = [lambda rank=rank: _work(request, rank, port, keep) for rank in range(WORLD_SIZE)]
            self.pids = [forked(work, quiet.fileno()) for work in works]

    def alive(self) -> bool:
        """Whether a rank goes on."""
        for pid in self.pids:
            if pid not in self._codes:
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    self._codes[pid] = os.waitstatus_to_exitcode(status)
        return len(self._codes) < len(self.pids)

    def wait(self, seconds: float) -> None:
        """Wait for their end, and no longer than this."""
        until_s = time.monotonic() + seconds
        while self.alive() and time.monotonic() < until_s:
            time.sleep(POLL_S)

    def have_met(self) -> bool:
        """Whether they have begun to train."""
        return _stamp(self.directory) != self._stamp

    def kill(self, which: Sequence[int]) -> bool:
        """Kill these ranks; False if one of them had ended before."""
        self.alive()
        killed = [pid for rank in which if (pid := self.pids[rank]) not in self._codes]
        for pid in killed:  # if it has ended meanwhile it is there still, as nobody has waited for it
            os.kill(pid, signal.SIGKILL)
        return len(killed) == len(which)

    def codes(self) -> list[int]:
        """Their exit codes, once they have ended."""
        while self.alive():
            time.sleep(0.01)
        return [self._codes[pid] for pid in self.pids]


def _work(request: RunRequest, rank: int, port: int, keep: Path | None) -> int:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"WORLD_SIZE": str(WORLD_SIZE), "LOCAL_WORLD_SIZE": str(WORLD_SIZE)}
    publish = sharded_checkpoint._publish

    def copy_and_publish(temporary: Path, to: Path) -> None:
        shutil.copytree(temporary, keep / temporary.name)
        publish(temporary, to)

    if keep is not None and rank == 0:
        sharded_checkpoint._publish = copy_and_publish
    with StopRequest() as stop:
        run_rank(request, send=lambda message: None, stop=stop)
    return 0


def _unpublished(directory: Path) -> list[Path]:
    """Checkpoints that are being written."""
    return [*(directory / CHECKPOINTS).glob(".last.*")]


def _digests(found: FoundCheckpoint) -> dict[str, str]:
    """The digests of what each rank has saved of the training, whatever the form of its pickle."""
    contents = {file.name: torch.load(file, weights_only=True) for file in found.path.glob("*.pt")}
    for content in contents.values():
        del content["observed"]  # of the instruments: what the process that goes on sees is its own
    return {name: blake2b(repr(_plain(content)).encode()).hexdigest() for name, content in contents.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.dtype, value.shape, None if value.is_meta else value.tolist()
    if isinstance(value, dict):
        return sorted((str(key), _plain(one)) for key, one in value.items())
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value


def _stamp(directory: Path) -> int:
    """The time of the history's last change, which the first rank makes; 0 before there is one."""
    path = directory / HISTORY_NAME
    return path.stat().st_mtime_ns if path.exists() else 0


if __name__ == "__main__":
    main(RanksOfTrainings, 100, __doc__)
