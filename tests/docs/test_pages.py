"""The README and the pages under docs/: what they tell is so, and their commands run."""

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
from users_machine import users_machine

from ampsweep.commands.main import main as ampsweep_main
from ampsweep.commands.train import main as train_main
from ampsweep.config.modes import MODES, PRECISION_MODES, step_dtypes
from ampsweep.config.schema import ParallelConfig, PrecisionConfig, TrackingConfig, TrainerConfig
from ampsweep.metrics import METRICS

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
ELSEWHERE = {
    "python -m venv": ".ci/run",
    "wandb sweep ": "tests/sweeps/test_agents.py",
    "wandb agent ": "tests/sweeps/test_agents.py",
    "ampsweep doctor ": "tests/doctor/test_doctor_command.py",
    "ampsweep sync ": "tests/commands/test_sync_command.py",
    "ampsweep report wandb://": "tests/commands/test_report_from_wandb.py",
    "ampsweep report 'wandb://": "tests/commands/test_report_from_wandb.py",
    "ampsweep report --wandb ": "tests/commands/test_comparison_in_wandb.py",
    "ampsweep report --publish ": "tests/report/test_wandb_views.py",
    "python train.py -m hydra/launcher=": "tests/commands/test_launcher_plugins.py",
    "python train.py -m trainer.compile=true": "tests/commands/test_compiled_runs.py",
    "torchrun ": "tests/slurm/test_job_scripts.py",
}
"""Commands that need a W&B server, a compiler or another launcher, by how they begin, and where they are run."""
NEEDS = {
    "data=image_folder": "PIL",
    "data=stored": "datasets",
    "data=streamed": "datasets",
    **dict.fromkeys(("fp8_", "adamw_8bit", "experiment=modes", "experiment=optimizer_states"), "torchao"),
}
"""Packages that commands need and a plain installation has not, by a word of theirs."""
SHORT = ("trainer.epochs=null", "trainer.steps=4", "trainer.warmup_steps=1", "predict.with_runs=false")
SHORT_MATRIX = (*SHORT, "trainer.checkpoint_every=3", "seed=0")
SHORT_RANKS = (*SHORT, "precision=amp_bf16", "parallel.mixed_precision=policy", "seed=0")
SHORT_SEARCH = (*SHORT, "max_batch.limit=16", "precision=fp32,amp_bf16")
PATIENCE_S = 120


def blocks(page: Path, language: str) -> list[str]:
    """The blocks of a page in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    """All command lines of all pages, without comments, each once."""
    told = "\n".join(block for page in PAGES for block in blocks(page, "bash")).replace("\\\n", " ")
    lines = [" ".join(line.partition(" # ")[0].split()) for line in told.splitlines()]
    return list(dict.fromkeys(line for line in lines if line))


def runs_elsewhere(command: str) -> bool:
    return command.startswith(tuple(ELSEWHERE))


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Iterator[Path]:
    """A directory as a reader's: the program and its sweeps, the modules and configs that the pages show, a sweep."""
    place = tmp_path_factory.mktemp("checkout")
    for name in ("train.py", "sweeps"):
        (place / name).symlink_to(ROOT / name)
    for page in PAGES:
        for block in (*blocks(page, "python"), *blocks(page, "yaml")):
            if named := re.match(r"# (\S+\.(?:py|yaml))\n", block):
                file = place / named[1]
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(block)
    sweep = ("-m", "seed=0,1", "precision=fp32,amp_bf16", "model=mlp_small", "name=fp32_vs_amp")
    temporary = tmp_path_factory.mktemp("tmp")
    with users_machine(place, tmp_path_factory.mktemp("home"), temporary), pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_MODE", "disabled")
        run(place, f"python train.py {' '.join(sweep)}", "trainer.steps=4", "trainer.checkpoint_every=2")
        yield place


def draw_photos(folder: Path) -> None:
    """Draw a folder with two classes of images."""
    from PIL import Image

    for name, colour in (("cats", "red"), ("dogs", "blue")):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(12):
            Image.new("RGB", (40, 40 + number), colour).save(folder / name / f"{number}.jpg")


def run(place: Path, command: str, *short: str) -> str:
    """Run a line as a shell would, with a sweep that is there in place of the one that is named; its output.

    A line without a path of its own runs in this process: its trainings begin in a fork server that is warm.
    """
    sweep = next((path.parent for path in place.glob("outputs/fp32_vs_amp/*/multirun.yaml")), None)
    if sweep is not None:
        named = sweep.relative_to(place).as_posix()
        (checkpoint, *_) = sweep.glob("fp32-*/checkpoints/*.pt")
        command = re.sub(r"outputs/train/[^/ ]+/\S+", checkpoint.parents[1].as_posix(), command)
        command = re.sub(r"outputs/fp32_vs_amp/2[^/ ]+", named, command)
    if "outputs/resume_matrix/" in command:
        run(place, "python train.py experiment=resume_matrix precision=fp32,amp_bf16", *SHORT_MATRIX)
        matrix = max(place.glob("outputs/resume_matrix/*")).relative_to(place).as_posix()
        command = re.sub(r"outputs/resume_matrix/2[^/ ]+", matrix, command)
    words = [*shlex.split(command), *short]
    if words[0] == "PYTHONPATH=.":
        return run_apart(place, words[1:])
    assert words[:2] == ["python", "train.py"] or words[0] == "ampsweep"
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = train_main(words[2:]) if words[0] == "python" else ampsweep_main(words[1:])
    assert code == 0, err.getvalue()
    return out.getvalue()


def run_apart(place: Path, words: list[str]) -> str:
    """Run a line that begins with `PYTHONPATH=.` in a process of its own."""
    program = {"python": [sys.executable], "ampsweep": [sys.executable, "-m", "ampsweep.commands.main"]}[words[0]]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), "."])}
    ended = subprocess.run(
        [*program, *words[1:]], cwd=place, env=environment, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.slow
@pytest.mark.parametrize("command", [one for one in commands() if not runs_elsewhere(one)])
def test_a_command_of_the_pages_runs(command, checkout):
    for word, package in NEEDS.items():
        if word in command:
            pytest.importorskip(package, reason=f"{package} is not installed")
    if "data=image_folder" in command:
        draw_photos(checkout / "photos")
    if "experiment=resume_matrix" in command:
        short = SHORT_MATRIX
    elif "resume=" in command:
        short = SHORT[:1]  # the length is that of what is resumed
    elif "experiment=max_batch" in command:
        short = SHORT_SEARCH
    elif "experiment=ddp_vs_fsdp2" in command:
        short = SHORT_RANKS
    else:
        short = SHORT if "train.py" in command or "ampsweep sweep" in command else ()
    if "model=resnet18" in command and "data.batch_size" not in command:
        short = (*short, "data.batch_size=2")  # a CPU without AVX-512 takes seconds for an image in bfloat16
    if "seed=0,1,2" in command:
        short = (*short, "seed=0")  # three seeds are as one, three times
    assert run(checkout, command, *short)


@pytest.mark.parametrize(("beginning", "place"), ELSEWHERE.items())
def test_other_commands_are_run_elsewhere(beginning, place):
    assert any(command.startswith(beginning) for command in commands()), "no page shows it any more"
    assert (ROOT / place).is_file()


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", page.read_text()) if "://" not in link]
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_the_page_of_metrics_has_every_key():
    rows = re.findall(
        r"^\| `([^`]+)` \| (.*?) \| (.*?) \| (.*?) \|$", (ROOT / "docs/metrics.md").read_text(), re.MULTILINE
    )
    assert {key: tuple(facts) for key, *facts in rows} == {
        key: (one.unit, one.meaning, "" if one.better == "neither" else one.better) for key, one in METRICS.items()
    }


def test_the_page_of_modes_has_every_mode():
    text = (ROOT / "docs/modes.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| ([\w-]+) \| ([\w-]+) \|", text, re.MULTILINE)
    short = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
    assert {mode: (parameters, autocast, scaler) for mode, parameters, autocast, scaler in rows} == {
        mode: (
            short[one.parameters],
            one.dtype if one.autocast else "-",
            "yes" if one.grad_scaler else "refused" if mode == "pure_fp16" else "-",
        )
        for mode, one in PRECISION_MODES.items()
    }


def _has_policy(strategy, mode):
    return strategy == "fsdp2" and MODES[mode].implementation is None


REFUSED = {("fsdp2", mode) for mode in ("bf16_sr", "master_bf16", "master_fp16")}
"""Modes whose update takes no shards."""


def test_the_page_of_several_devices_has_all_dtypes():
    text = (ROOT / "docs/parallel.md").read_text()
    _, _, section = text.partition("## Which dtype is what")
    table = [[cell.strip() for cell in row.split("|")[1:-1]] for row in section.splitlines() if row.startswith("| `")]
    told = {
        (strategy, mode): tuple(of)
        for strategies, modes, *of in (row for row in table if len(row) == 8)
        for strategy in re.findall(r"`(\w+)`", strategies)
        for mode in re.findall(r"`(\w+)`", modes)
    }
    assert told == {
        (strategy, mode): (
            "-" if not one.autocast else "policy" if _has_policy(strategy, mode) else "autocast",
            *asdict(step_dtypes(one)).values(),
        )
        for strategy in ("ddp", "fsdp2")
        for mode, one in PRECISION_MODES.items()
        if mode != "pure_fp16" and (strategy, mode) not in REFUSED
    }


@pytest.mark.parametrize(
    ("page", "group", "schema", "is_complete"),
    [
        ("modes.md", "precision", PrecisionConfig, True),
        ("sweeps.md", "trainer", TrainerConfig, False),
        ("wandb.md", "tracking", TrackingConfig, True),
        ("parallel.md", "parallel", ParallelConfig, True),
    ],
)
def test_keys_that_pages_name_exist(page, group, schema, is_complete):
    text = (ROOT / "docs" / page).read_text()
    told = {key for row in text.splitlines() if row.startswith("| `") for key in re.findall(rf"`{group}\.(\w+)`", row)}
    known = (
        {field.name for field in fields(schema)} - {"mode"}
        if group == "precision"
        else {f.name for f in fields(schema)}
    )
    assert told <= known
    assert told == known or not is_complete


def test_contributing_shows_the_diff_that_a_test_applies():
    diff = (ROOT / "tests/precision/new_mode.diff").read_text().rstrip("\n")
    assert blocks(ROOT / "CONTRIBUTING.md", "diff") == [diff + "\n"]


def test_contributing_shows_the_floors_as_they_are_held():
    told = re.findall(r"^\| \d+ \| (.*?) \| ", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    rooms = {name.removesuffix(".py") for row in told for name in re.findall(r"`([\w.]+)`", row)}
    found = {path.stem for path in (ROOT / "src/ampsweep").iterdir() if path.is_dir() or path.suffix == ".py"}
    assert rooms == found - {"__init__", "__pycache__"}


def test_contributing_names_files_that_exist():
    named = re.findall(r"`([\w.]+/[\w./]*\w)`", (ROOT / "CONTRIBUTING.md").read_text())
    places = (ROOT, ROOT / "src/ampsweep")
    assert [path for path in named if not any((place / path).exists() for place in places)] == [
        "train/grad_norm",
        "perf/step_ms",
    ]
