"""The README and the pages under docs/: their tables are right, their links lead somewhere, their commands run."""

import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict, fields
from pathlib import Path

import pytest
import torch
from torch import nn
from users_machine import users_machine

from ampsweep.commands.main import main as ampsweep_main
from ampsweep.commands.train import main as train_main
from ampsweep.config.modes import MODES, PRECISION_MODES, step_dtypes
from ampsweep.config.schema import ParallelConfig, PrecisionConfig, TrackingConfig, TrainerConfig
from ampsweep.metrics import METRICS
from ampsweep.precision import Precision

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
ELSEWHERE = {
    "python -m venv": ".ci/run",
    "wandb sweep ": "tests/sweeps/test_agents.py",
    "wandb agent ": "tests/sweeps/test_agents.py",
    "ampsweep doctor ": "tests/doctor/test_doctor_command.py",
    "ampsweep record ": "tests/integrations/test_recorded_commands.py",
    "ampsweep compare ": "tests/commands/test_command_runs.py",
    "ampsweep sweep their_sweep.yaml": "tests/commands/test_command_runs.py",
    "ampsweep sync ": "tests/commands/test_sync_command.py",
    "ampsweep report wandb://": "tests/commands/test_wandb_online.py",
    "ampsweep report 'wandb://": "tests/commands/test_wandb_online.py",
    "ampsweep report --wandb ": "tests/commands/test_wandb_online.py",
    "ampsweep report --publish ": "tests/report/test_wandb_views.py",
    "python train.py -m hydra/launcher=": "tests/commands/test_launchers.py",
    "python train.py -m trainer.compile=true": "tests/commands/test_precision_modes.py",
    "torchrun ": "tests/slurm/test_job_scripts.py",
}
"""Commands that need a W&B server, a compiler or another launcher, by how they begin, and where they are run."""
NEEDS = {
    "data=image_folder": "PIL",
    "data=stored": "datasets",
    "python finetune.py": "transformers",
    "python lit.py": "lightning",
    "python accelerated.py": "accelerate",
    "data=streamed": "datasets",
    **dict.fromkeys(("fp8_", "adamw_8bit", "experiment=modes", "experiment=optimizer_states"), "torchao"),
}
"""Packages that commands need and a plain installation has not, by a word of theirs."""
SHORT = ("trainer.epochs=null", "trainer.steps=4", "trainer.warmup_steps=1", "predict.with_runs=false")
SHORT_MATRIX = (*SHORT, "trainer.checkpoint_every=3", "seed=0")
SHORTER = {
    "experiment=resume_matrix": SHORT_MATRIX,
    "resume=": SHORT[:1],  # the length is that of what is resumed
    "experiment=max_batch": (*SHORT, "max_batch.limit=16", "precision=fp32,amp_bf16"),
    "experiment=ddp_vs_fsdp2": (*SHORT, "precision=amp_bf16", "parallel.mixed_precision=policy", "seed=0"),
    "train.py": SHORT,
    "ampsweep sweep": SHORT,
}
"""Overrides that shorten a command, by a word of it; the first that fits."""


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    """All command lines of all pages, without comments, each once."""
    text = "\n".join(block for page in PAGES for block in blocks(page, "bash")).replace("\\\n", " ")
    lines = [" ".join(line.partition(" # ")[0].split()) for line in text.splitlines()]
    return list(dict.fromkeys(line for line in lines if line))


@pytest.fixture(scope="module")
def checkout(temporary, tmp_path_factory) -> Iterator[Path]:
    """A directory as a reader's: the program and its sweeps, the modules and configs that the pages show, a sweep."""
    place = tmp_path_factory.mktemp("checkout")
    for name in ("train.py", "sweeps"):
        (place / name).symlink_to(ROOT / name)
    for block in [block for page in PAGES for language in ("python", "yaml") for block in blocks(page, language)]:
        if named := re.match(r"# (\S+\.(?:py|yaml))\n", block):
            file = place / named[1]
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block)
    sweep = "python train.py -m seed=0,1 precision=fp32,amp_bf16 model=mlp_small name=fp32_vs_amp"
    with users_machine(place, tmp_path_factory.mktemp("home"), temporary), pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_MODE", "disabled")
        run(place, sweep, "trainer.steps=4", "trainer.checkpoint_every=2", "predict.with_runs=false")
        yield place


def run(place: Path, command: str, *short: str) -> str:
    """Run a line as a shell would, with an existing sweep in place of the named one; returns its output.

    A line without a path of its own runs in this process: its trainings begin in a fork server that is warm.
    """
    sweep = next((path.parent for path in place.glob("outputs/fp32_vs_amp/*/multirun.yaml")), None)
    if sweep is not None:
        named = sweep.relative_to(place).as_posix()
        (checkpoint, *_) = sweep.glob("fp32-*/checkpoints/*.pt")
        command = re.sub(r"outputs/train/[^/ ]+/\S+", checkpoint.parents[1].as_posix(), command)
        command = re.sub(r"outputs/fp32_vs_amp/2[^/ ]+|\b(OLD|NEW)\b", named, command)
    if "outputs/resume_matrix/" in command:
        run(place, "python train.py experiment=resume_matrix precision=fp32,amp_bf16", *SHORT_MATRIX)
        matrix = max(place.glob("outputs/resume_matrix/*")).relative_to(place).as_posix()
        command = re.sub(r"outputs/resume_matrix/2[^/ ]+", matrix, command)
    words = [*shlex.split(command), *short]
    if words[0] == "PYTHONPATH=.":
        program = [sys.executable, *([] if words[1] == "python" else ["-m", "ampsweep.commands.main"])]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), "."])}
        apart = {"cwd": place, "env": environment, "text": True, "timeout": 120}
        return subprocess.check_output([*program, *words[2:]], **apart)
    assert words[:2] == ["python", "train.py"] or words[0] == "ampsweep"
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = train_main(words[2:]) if words[0] == "python" else ampsweep_main(words[1:])
    assert code == 0, err.getvalue()
    return out.getvalue()


HERE = [command for command in commands() if not command.startswith(tuple(ELSEWHERE))]
SMOKE = next(command for command in HERE if command.startswith("ampsweep report"))


@pytest.mark.parametrize("command", [SMOKE, *(pytest.param(command, marks=pytest.mark.nightly) for command in HERE)])
def test_a_command_of_the_pages_runs(command, checkout):
    for package in (package for word, package in NEEDS.items() if word in command):
        pytest.importorskip(package, reason=f"{package} is not installed")
    for folder in ("photos/cats", "photos/dogs") if "data=image_folder" in command else ():
        from PIL import Image

        (checkout / folder).mkdir(parents=True, exist_ok=True)
        for number in range(12):
            Image.new("RGB", (40, 40 + number), "red").save(checkout / folder / f"{number}.jpg")
    short = next((more for word, more in SHORTER.items() if word in command), ())
    if "model=resnet18" in command and "data.batch_size" not in command:
        short = (*short, "data.batch_size=2")  # a CPU without AVX-512 takes seconds for an image in bfloat16
    if "seed=0,1,2" in command:
        short = (*short, "seed=0")
    assert run(checkout, command, *short)


def test_links_lead_somewhere_and_other_commands_are_run_elsewhere():
    for beginning, place in ELSEWHERE.items():
        assert any(command.startswith(beginning) for command in commands()), f"no page shows {beginning} any more"
        assert (ROOT / place).is_file()
    for page in [*PAGES, ROOT / "CONTRIBUTING.md"]:
        links = [link for link in re.findall(r"\]\(([^)#]+)\)", page.read_text()) if "://" not in link]
        assert (page, [link for link in links if not (page.parent / link).exists()]) == (page, [])


def test_the_page_of_metrics_has_every_key():
    text = (ROOT / "docs/metrics.md").read_text()
    rows = re.findall(r"^\| `([^`]+)` \| (.*?) \| (.*?) \| (.*?) \|$", text, re.MULTILINE)
    known = [(key, of.unit, of.meaning, of.better.replace("neither", "")) for key, of in METRICS.items()]
    assert sorted(rows) == sorted(known)


def test_the_pages_of_modes_and_devices_have_all_dtypes():
    text = (ROOT / "docs/modes.md").read_text().partition("## Bytes a parameter")[0]
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| ([\w-]+) \| ([\w-]+) \|", text, re.MULTILINE)
    short = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
    modes = [(name, short[of.parameters], of.dtype if of.autocast else "-", of) for name, of in PRECISION_MODES.items()]
    scaled = {True: "yes", False: "-"}
    assert set(rows) == {
        (*cells, "refused" if cells[0] == "pure_fp16" else scaled[of.grad_scaler]) for *cells, of in modes
    }
    _, _, section = (ROOT / "docs/parallel.md").read_text().partition("## Which dtype is what")
    table = [[cell.strip() for cell in row.split("|")[1:-1]] for row in section.splitlines() if row.startswith("| `")]
    shown = {
        (strategy, mode): tuple(dtypes)
        for strategies, modes, *dtypes in (row for row in table if len(row) == 8)
        for strategy in re.findall(r"`(\w+)`", strategies)
        for mode in re.findall(r"`(\w+)`", modes)
    }
    takes_no_shards = {("fsdp2", mode) for mode in ("bf16_sr", "master_bf16", "master_fp16")}

    def cast_by(strategy, name):
        has_policy = strategy == "fsdp2" and MODES[name].implementation is None
        return "-" if not PRECISION_MODES[name].autocast else "policy" if has_policy else "autocast"

    assert shown == {
        (strategy, name): (cast_by(strategy, name), *asdict(step_dtypes(mode)).values())
        for strategy in ("ddp", "fsdp2")
        for name, mode in PRECISION_MODES.items()
        if name != "pure_fp16" and (strategy, name) not in takes_no_shards
    }


def test_a_parameter_has_the_dtypes_and_takes_the_bytes_of_the_table():
    pytest.importorskip("torchao")
    section = (ROOT / "docs/modes.md").read_text().partition("## Bytes a parameter")[2].partition("## ")[0]
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in section.splitlines() if row.startswith("| `")]
    shown = {mode: row[1:] for row in rows for mode in re.findall(r"`(\w+)`", row[0])}
    dtypes = {name: list(asdict(step_dtypes(mode)).values()) for name, mode in PRECISION_MODES.items()}
    assert {mode: row[:5] for mode, row in shown.items()} == dtypes
    bytes_shown = [(mode, None, float(re.match(r"\d+", row[5])[0])) for mode, row in shown.items() if mode != "tf32"]
    other_states = [("fp32", "bfloat16"), ("pure_bf16", "float32"), ("master_bf16", "bfloat16"), ("bf16_sr", "float32")]
    for mode, state_dtype, expected in (*bytes_shown, *((*of, 12) for of in other_states)):
        precision = Precision(mode, "cpu")
        model = precision.convert(nn.Sequential(nn.Linear(256, 512), nn.Linear(512, 256), nn.Linear(256, 16)))
        optimizer = precision.optimizer(torch.optim.AdamW, model.parameters(), state_dtype=state_dtype)
        for _ in range(2):
            with precision.flags():
                with precision.autocast():
                    loss = model(torch.ones(16, 256, dtype=precision.parameters_dtype)).float().square().mean()
                precision.backward(loss)
            taken = sum(p.nbytes + p.grad.nbytes for p in model.parameters())
            precision.step(optimizer)
            precision.update()
            optimizer.zero_grad()
        state = [value for state in optimizer.state.values() for key, value in state.items() if key != "step"]
        taken += sum(value.nbytes for value in state)
        assert taken / sum(p.numel() for p in model.parameters()) == expected, mode


def test_keys_that_pages_name_exist():
    for page, group, schema, is_complete in (
        ("modes.md", "precision", PrecisionConfig, True),
        ("sweeps.md", "trainer", TrainerConfig, False),
        ("wandb.md", "tracking", TrackingConfig, True),
        ("parallel.md", "parallel", ParallelConfig, True),
    ):
        rows = [row for row in (ROOT / "docs" / page).read_text().splitlines() if row.startswith("| `")]
        named = {key for row in rows for key in re.findall(rf"`{group}\.(\w+)`", row)}
        known = {field.name for field in fields(schema)} - ({"mode"} if group == "precision" else set())
        assert named <= known
        assert named == known or not is_complete


def test_contributing_shows_the_house_as_it_is():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    diff = (ROOT / "tests/precision/new_mode.diff").read_text().rstrip("\n")
    assert blocks(ROOT / "CONTRIBUTING.md", "diff") == [diff + "\n"]
    floors = re.findall(r"^\| \d+ \| (.*?) \| ", text, re.MULTILINE)
    rooms = {name.removesuffix(".py") for row in floors for name in re.findall(r"`([\w.]+)`", row)}
    found = {path.stem for path in (ROOT / "src/ampsweep").iterdir() if path.is_dir() or path.suffix == ".py"}
    assert rooms == found - {"__init__", "__pycache__"}
    named = re.findall(r"`([\w.]+/[\w./]*\w)`", text)
    missing = [path for path in named if not any((place / path).exists() for place in (ROOT, ROOT / "src/ampsweep"))]
    assert missing == ["train/grad_norm", "perf/step_ms"]
