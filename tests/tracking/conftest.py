"""Fixtures of the tracking tests: a machine where nobody has logged in to W&B, a record, a reader of W&B's files."""

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from identities import identity
from served import Wandb, machine
from wandb_file import WandbFile, read_wandb_file
from wandb_server import KEY, WandbServer

from ampsweep.record import RunRecord
from ampsweep.tracking.wandb.process import WandbAddress, WandbProcess


@pytest.fixture(autouse=True)
def nobody_logged_in(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    home = tmp_path_factory.mktemp("home")
    with machine(home):
        yield home


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WandbAddress]:
    """A W&B process for all tests of a file that need no environment of their own."""
    with machine(tmp_path_factory.mktemp("home")), WandbProcess() as process:
        yield process.address


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wandb]:
    home = tmp_path_factory.mktemp("home")
    with (
        WandbServer() as server,
        machine(home, **server.environment, WANDB_FINISH_TIMEOUT="30"),
        WandbProcess() as process,
    ):
        yield Wandb(server, process.address)


@pytest.fixture
def impatient(online: Wandb, monkeypatch: pytest.MonkeyPatch) -> WandbAddress:
    """A W&B process there whose user has not said how long the end of a run may wait."""
    monkeypatch.delenv("WANDB_FINISH_TIMEOUT")
    return online.address


@pytest.fixture
def online(served: Wandb, monkeypatch: pytest.MonkeyPatch, record: RunRecord) -> Iterator[Wandb]:
    """A server that this machine is logged in to, the same for all tests of a file; each has a run of its own."""
    record.run_id = secrets.token_hex(4)
    for name, value in {**served.server.environment, "WANDB_FINISH_TIMEOUT": "30"}.items():
        monkeypatch.setenv(name, value)
    yield served
    served.server.faults.clear()
    served.server.key = KEY


@pytest.fixture
def record() -> RunRecord:
    facts = {"model": "gpt_tiny", "task": "language_modeling", "data": "text", "batch_size": 16, "steps": 20}
    config = {
        "precision": {"mode": "amp_bf16"},
        "model": {"name": "gpt_tiny", "num_layers": 2},
        "seed": 0,
        "into": None,
        "tracking": {"mode": "auto", "project": "ampsweep", "entity": None, "group": None, "tags": []},
    }
    return RunRecord(
        run_id="run0123",
        arm="amp_bf16",
        pair_key="pair",
        config_hash="hash",
        identity=identity(precision_mode="amp_bf16", dtype="bfloat16", **facts),
        config=config,
    )


@pytest.fixture
def read_wandb() -> Callable[[Path], WandbFile]:
    return read_wandb_file
