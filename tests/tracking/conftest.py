"""Fixtures of the tracking tests: a machine where nobody has logged in to W&B, a record, a reader of W&B's files."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from wandb_file import WandbFile, read_wandb_file

from ampsweep.record import Identity, RunRecord


@pytest.fixture(autouse=True)
def nobody_logged_in(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home without W&B settings, and a server address that refuses connections."""
    home = tmp_path_factory.mktemp("home")
    for name in [name for name in os.environ if name.startswith("WANDB_") or name == "NETRC"]:
        monkeypatch.delenv(name)
    for name in ("HOME", "USERPROFILE", "WANDB_CONFIG_DIR", "WANDB_DIR"):
        monkeypatch.setenv(name, str(home))
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    return home


@pytest.fixture
def record() -> RunRecord:
    identity = Identity(
        experiment="smoke",
        precision_mode="amp_bf16",
        dtype="bfloat16",
        model="gpt_tiny",
        task="language_modeling",
        data="text",
        batch_size=16,
        grad_accum_steps=1,
        steps=20,
        optimizer="adamw",
        lr=1e-3,
        compile=False,
        channels_last=False,
        seed=0,
        device="cpu",
    )
    config = {
        "precision": {"mode": "amp_bf16"},
        "model": {"name": "gpt_tiny", "num_layers": 2},
        "seed": 0,
        "into": None,
    }
    return RunRecord(
        run_id="run0123", arm="amp_bf16", pair_key="pair", config_hash="hash", identity=identity, config=config
    )


@pytest.fixture
def read_wandb() -> Callable[[Path], WandbFile]:
    return read_wandb_file
