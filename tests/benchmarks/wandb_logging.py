"""The processes of `wandb_faults.py`: one that logs rows for a while, and one that syncs what others have left."""

import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Final

from ampsweep.config.errors import UserError
from ampsweep.config.schema import TrackingConfig
from ampsweep.record import Identity, RunRecord
from ampsweep.record.parts import MemoryUse, ModeProof

PERIOD_S: Final = 0.1
"""Between two rows."""


def log_rows(directory: Path, seconds: float, resume_after: int | None) -> None:
    """Track a run that does nothing but log; says when it could begin, waits for a line, and says how long it took.

    `added_s` is what tracking kept from such a run: its start, its rows and its end, less ``seconds``. `exit_s` is how
    long the W&B process took to end after that, which a command waits for once.
    """
    from ampsweep.tracking.tracker import TrackingCheck, make_tracker
    from ampsweep.tracking.wandb.process import WandbProcess

    record = RunRecord.read(directory)
    config = TrackingConfig(**record.config["tracking"])
    with WandbProcess() as wandb:
        TrackingCheck(config, wandb.address).require()
        print(flush=True)
        sys.stdin.readline()
        began = time.perf_counter()
        tracker = make_tracker(config, None, lambda line: print(line, file=sys.stderr), wandb.address)
        tracker.start(record, directory, resume_after=resume_after)
        record.write(directory)
        first = time.perf_counter()
        num_rows, reached = round(seconds / PERIOD_S), resume_after or 0
        for number in range(1, num_rows + 1):
            step = reached + number
            tracker.log({"train/loss": 1 / step, "train/lr": 1e-3}, step)
            time.sleep(max(0.0, first + number * PERIOD_S - time.perf_counter()))
        record.status, record.summary = "completed", {"train/loss": 0.5}
        # Tables in W&B.
        record.memory, record.proof = MemoryUse(peak={"parameters": 4096}), ModeProof(outputs={"float32": 9})
        lost = None
        try:
            tracker.finish(record)
        except OSError as error:  # the disk is full
            lost = str(error)
        ended = time.perf_counter()
        if lost is None:
            record.write(directory)
    exit_s = time.perf_counter() - ended
    print(json.dumps({"added_s": ended - began - num_rows * PERIOD_S, "exit_s": exit_s, "lost": lost}), flush=True)


def serve_syncs() -> None:
    """`ampsweep sync` for each line on stdin, which names directory and environment; a line about each."""
    from ampsweep.commands.sync import sync_directories

    for line in sys.stdin:
        order = json.loads(line)
        os.environ.update(order["environment"])
        said: list[str] = []
        try:
            sync_directories([Path(order["directory"])], said.append)
        except UserError as error:
            said.append(f"error: {error}")
        print("; ".join(said), flush=True)


def new_record() -> RunRecord:
    """The record of such a run."""
    identity = Identity(
        experiment="faults",
        precision_mode="fp32",
        dtype="float32",
        model="none",
        task="none",
        data="none",
        batch_size=1,
        grad_accum_steps=1,
        steps=300,
        optimizer="none",
        lr=0.0,
        compile=False,
        channels_last=False,
        seed=0,
        device="cpu",
    )
    config = {"tracking": asdict(TrackingConfig(mode="online", project="faults"))}
    return RunRecord(
        run_id=os.urandom(4).hex(), arm="fp32", pair_key="p", config_hash="h", identity=identity, config=config
    )


def main() -> None:
    if sys.argv[1] == "sync":
        serve_syncs()
    else:
        _, _, directory, seconds, *resume_after = sys.argv
        log_rows(Path(directory), float(seconds), int(resume_after[0]) if resume_after else None)


if __name__ == "__main__":
    main()
