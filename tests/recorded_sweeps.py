"""Sweeps that are trained once a session of pytest, and shared as folders by all tests that only read them."""

import contextlib
import io
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import pytest
from command_line import MLP, Finished, Swept, only_sweep
from filelock import FileLock
from users_machine import users_machine

from ampsweep.commands.train import main

MEMORY_LIMIT_GIB = 0.002
SYNTHETIC = ("data=synthetic", "data.in_features=32", "data.out_features=32", "data.num_batches=1")
SEARCH = (
    *("experiment=max_batch", "model=mlp_small", *SYNTHETIC, "data.batch_size=64", "tracking=disabled", "device=cpu"),
    *(f"trainer.memory_limit_gib={MEMORY_LIMIT_GIB}", "trainer.steps=12", "trainer.warmup_steps=2"),
    "trainer.log_every=5",
)
FAILURES = {
    "raises": ("failed", "RuntimeError: my model broke"),
    "is_killed": ("failed", "killed by SIGKILL"),
    "crashes": ("failed", "killed by SIGSEGV"),
    "hangs": ("failed", "step 3 did not end within 6.0 s (trainer.max_seconds=4, trainer.grace_seconds=2)"),
    "leaves": ("failed", "ended with exit code 7"),
    "exits": ("failed", "sys.exit(5)"),
    "runs_out_of_memory": ("oom", "out of memory in forward of step 3: 3638 TiB asked for with "),
    "diverges": ("diverged", "the validation loss is nan at step 5"),
    "has_no_half_kernel": ("unsupported", "cannot compute this model in float16: linalg.inv: Low precision dtypes"),
    "is_fine": ("completed", None),
}
"""What a user's model does in its third step, with the status and the error of the record."""
OWN = ("model=custom", "data=digits", "task=classification", "trainer.log_every=1", "device=cpu")

COMMANDS: dict[str, tuple[str, ...]] = {
    "arms": ("-m", *MLP, "trainer.steps=6", "device=cpu", "seed=0,1", "precision=fp32,amp_bf16,tf32"),
    "offline": (
        *("-m", "model=mlp_small", "model.hidden_size=32", "model.num_layers=3", "data.batch_size=8", "device=cpu"),
        *("tracking.mode=offline", "numerics.watch=true", "trainer.steps=24", "trainer.max_grad_norm=1.0"),
        "precision=fp32,amp_bf16,amp_fp16,pure_bf16,tf32",
    ),
    "failures": (
        *("-m", *OWN, "model._target_=own_models.Broken", f"+model.what={','.join(FAILURES)}", "precision=amp_fp16"),
        *("trainer.steps=5", "trainer.max_seconds=4", "trainer.grace_seconds=2", "predict.with_runs=false"),
        "tracking.mode=offline",
    ),
    "ranks": (
        *("-m", *OWN, "model._target_=own_models.BrokenRank", "+model.rank=1", "trainer.steps=6"),
        *("+model.what=is_fine,raises", "predict.with_runs=false", "tracking=disabled"),
        *("parallel=ddp", "parallel.num_processes=2"),
    ),
    "keys": ("-m", *MLP[1:], "trainer.steps=2", "model=gpt_tiny,mlp_small", "data.batch_size=4", "device=cpu"),
    "search": (*SEARCH, "precision=fp32,tf32,amp_bf16"),
}
"""Arms and seeds, one arm unsupported; every figure, sent to W&B later; every outcome; two ranks; a key that is swept
(models, which bring their own data); a search for the largest batch."""


def trained(
    arguments: Sequence[str], directory: Path, home: Path, temporary: Path, environment: Mapping[str, str] | None = None
) -> Swept:
    """Train a sweep in the empty `directory`."""
    out, err = io.StringIO(), io.StringIO()
    with users_machine(directory, home, temporary), pytest.MonkeyPatch.context() as patch:
        for name, value in (environment or {}).items():
            patch.setenv(name, value)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(arguments)
        return Swept(tuple(arguments), only_sweep(directory), Finished(code, out.getvalue(), err.getvalue()))


@pytest.fixture(scope="session")
def temporary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder for temporary files, the same for all tests of a process, because their fork server keeps it."""
    return tmp_path_factory.mktemp("tmp")


@pytest.fixture(scope="session")
def recorded(temporary: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Swept]:
    """`recorded(name)` is a sweep of `COMMANDS`, not to be changed; the workers of pytest-xdist share it."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "recorded"
    folder.mkdir(exist_ok=True)

    def recorded(name: str) -> Swept:
        directory, ended = folder / name, folder / f"{name}.json"
        with FileLock(folder / f"{name}.lock"):
            if not ended.exists():
                directory.mkdir()  # fails where an earlier test could not train it
                swept = trained(COMMANDS[name], directory, tmp_path_factory.mktemp("home"), temporary)
                ended.write_text(json.dumps(asdict(swept.ended)))
        return Swept(COMMANDS[name], only_sweep(directory), Finished(**json.loads(ended.read_text())))

    return recorded
