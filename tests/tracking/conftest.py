import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from identities import identity
from served import Wandb, machine, wandb_process
from wandb_server import KEY, WandbServer

from ampsweep.records import RunRecord
from ampsweep.records.sections import RecordedDtypes
from ampsweep.tracking.wandb.process import WandbAddress


@pytest.fixture(autouse=True)
def nobody_logged_in(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    home = tmp_path_factory.mktemp("home")
    with machine(home):
        yield home


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wandb]:
    home = tmp_path_factory.mktemp("home")
    with WandbServer() as server, wandb_process(home, **server.environment, WANDB_FINISH_TIMEOUT="30") as address:
        yield Wandb(server, address)


@pytest.fixture
def shared(served: Wandb) -> WandbAddress:
    """A W&B process for all tests that need no environment of their own."""
    return served.address


@pytest.fixture
def online(served: Wandb, monkeypatch: pytest.MonkeyPatch, record: RunRecord) -> Iterator[Wandb]:
    """A server that this machine is logged in to, the same for all tests; each has a run of its own."""
    record.run_id = secrets.token_hex(4)
    for name, value in {**served.server.environment, "WANDB_FINISH_TIMEOUT": "30"}.items():
        monkeypatch.setenv(name, value)
    yield served
    served.server.faults.clear()
    served.server.key = KEY


@pytest.fixture
def impatient(online: Wandb, monkeypatch: pytest.MonkeyPatch) -> WandbAddress:
    """Its W&B process, for a user who has not set how long the end of a run may wait."""
    monkeypatch.delenv("WANDB_FINISH_TIMEOUT")
    return online.address


@pytest.fixture
def record() -> RunRecord:
    facts = {"model": "gpt_tiny", "task": "language_modeling", "data": "text", "batch_size": 16, "steps": 20}
    return RunRecord(
        run_id="run0123",
        arm="amp_bf16",
        pair_key="pair",
        config_hash="hash",
        dtypes=RecordedDtypes(compute="bfloat16", reduction="float32"),
        identity=identity(precision_mode="amp_bf16", dtype="bfloat16", **facts),
        config={
            "precision": {"mode": "amp_bf16", "dtype": "bfloat16"},
            "data": {"batch_size": 16},
            "model": {"name": "gpt_tiny", "num_layers": 2},
            "seed": 0,
            "into": None,
            "tracking": {"mode": "auto", "project": "ampsweep", "entity": None, "group": None, "tags": []},
        },
    )
