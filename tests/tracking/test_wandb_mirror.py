"""The service to a run, where W&B begins and is given up in the same moment."""

from contextlib import nullcontext
from multiprocessing import Pipe
from pathlib import Path
from threading import Event

import pytest

from ampsweep.record import RunRecord, history_line
from ampsweep.tracking.wandb import mirror
from ampsweep.tracking.wandb.mirror import WandbMirror
from ampsweep.tracking.wandb.outage import SeenServer
from ampsweep.tracking.wandb.process_messages import Done, Finish, Start

TROUBLE = "the server closes connections without an answer"


class LateRun:
    """A W&B run that is open only when its wandb-core is killed."""

    mode = "online"

    def __init__(self, killed: Event) -> None:
        self.killed, self.seen = killed, SeenServer()

    def trouble(self) -> str:
        return TROUBLE

    def listening(self) -> nullcontext[None]:
        return nullcontext()

    def open(self, *_: object, **__: object) -> None:
        assert self.killed.wait(30)

    def log(self, *_: object) -> bool:
        raise OSError("wandb-core is gone")

    def abandon(self) -> None:
        pass


def test_a_run_that_is_given_up_as_it_opens_says_so(
    record: RunRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = Event()
    monkeypatch.setattr(mirror, "kill_wandb_core", killed.set)
    (tmp_path / "history.jsonl").write_text(history_line({"step": 1, "train/loss": 1.0}))
    ours, theirs = Pipe()
    theirs.send(Finish(record))
    WandbMirror(ours, LateRun(killed), Start(record, tmp_path), grace_s=0.1).serve()
    said = []
    while not isinstance(found := theirs.recv(), Done):
        said.append(found)
    assert found.wandb.error == TROUBLE
    assert any(TROUBLE in str(line) for line in said)
