"""`ampsweep record -- COMMAND` records a training of which nothing is changed, and is never in its way."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ampsweep.commands.main import main
from ampsweep.integrations.script.launcher import ScriptOptions, run_recorded
from ampsweep.records import RunRecord, read_history

LOOP = """\
import os, signal, sys, time
import torch
from torch import nn

torch.manual_seed(5)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**22, growth_interval=1000, enabled="--fp16" in sys.argv)
for step in range(1, 25):
    total = 0.0
    for _ in range(2):
        with torch.autocast("cpu", torch.float16, enabled="--fp16" in sys.argv):
            loss = nn.functional.cross_entropy(model(torch.randn(8, 16)), torch.randint(4, (8,))) / 2
        scaler.scale(loss).backward()
        total += loss.item()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    print(step, total, int(scaler.get_scale()), flush=True)
    if step == 20:
        {end}
"""
ENDS = {
    "sys.exit(3)": (3, "failed", "the command ended with exit code 3"),
    "os._exit(0)": (0, "completed", None),
    "raise ValueError('theirs')": (1, "failed", "theirs ("),
    "torch.empty(10**15)": (1, "oom", "out of memory of step 21"),
    "os.kill(os.getpid(), signal.SIGKILL)": (137, "failed", "killed by SIGKILL"),
    "os.kill(os.getpid(), signal.SIGTERM)": (143, "interrupted", "stopped by SIGTERM"),
    "raise KeyboardInterrupt": (130, "interrupted", "KeyboardInterrupt"),
    "_ = os.fork() or sys.exit(0)": (0, "completed", None),
}


def script(place: Path, text: str = LOOP, end: str = "pass") -> Path:
    file = place / "train.py"
    file.write_text(text.replace("{end}", end))
    return file


def recorded(capfd, *command: object, **options):
    """Run a command; returns what `run_recorded` does, and what the command has printed."""
    run = run_recorded([str(word) for word in command], ScriptOptions(**options))
    return run, capfd.readouterr().out


@pytest.mark.nightly
def test_a_loop_with_scaler_and_micro_batches_has_its_own_losses(tmp_path, capfd):
    run, printed = recorded(capfd, sys.executable, script(tmp_path), "--fp16", into=tmp_path / "runs")
    (record,), rows = run.records, read_history(run.directory)
    theirs = {int(step): (float(loss), int(scale)) for step, loss, scale in map(str.split, printed.splitlines())}
    skipped = sum(scale < 2**22 / 2 ** (step - 1) for step, (_, scale) in theirs.items())
    assert skipped > 2, "the scale is too large at first"
    assert [row["step"] for row in rows] == [10, 20, 24]
    assert [row["train/loss"] for row in rows] == pytest.approx([theirs[step][0] for step in (10, 20, 24)], rel=1e-5)
    assert rows[-1]["amp/skipped_steps"] == skipped
    assert (rows[-1]["amp/applied_steps"], rows[-1]["amp/scale"]) == (24 - skipped, theirs[23][1])
    assert (run.exit_code, record.status, record.arm, record.source) == (0, "completed", "amp_fp16", "script")
    assert (record.identity.seed, record.identity.model, record.identity.steps) == (5, "Sequential", 24)
    assert record.config["own"] == {"fp16": True}
    assert record.memory.peak["optimizer_state"] > record.memory.peak["parameters"] > 0


def test_a_flag_that_does_nothing_is_disproved_on_stderr(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    bare = subprocess.run([sys.executable, script(tmp_path), "--bf16"], capture_output=True, text=True, check=True)
    assert main(["record", "--", sys.executable, "train.py", "--bf16"]) == 0
    out, err = capfd.readouterr()
    assert (out, bare.stderr) == (bare.stdout, "")
    first, second = err.splitlines()
    assert first.startswith("ampsweep: fp32: completed, 100% of matmul and convolution operations in float32; recorded")
    assert second.startswith("ampsweep: amp_bf16 asked for; only 0% of the matmul and convolution operations ran in bf")
    assert list(tmp_path.glob("outputs/train/*/run.json"))


@pytest.mark.nightly
@pytest.mark.parametrize("end", ENDS)
def test_however_a_script_ends_its_exit_code_is_its_own(end, tmp_path, capfd):
    run, printed = recorded(capfd, sys.executable, script(tmp_path, end=end), into=tmp_path / "runs")
    code, status, error = ENDS[end]
    (record,) = run.records
    assert (run.exit_code, record.status) == (code, status)
    assert (record.error or "").startswith(error or "")
    assert record.proof.flops, "it was traced before"
    assert [row["step"] for row in read_history(run.directory)][:1] == [10]
    assert len(printed.splitlines()) == (24 if error is None and "fork" in end else 20)


@pytest.mark.nightly
@pytest.mark.parametrize("sender", ["a process", "a terminal"])
def test_a_signal_reaches_the_script_once(sender, tmp_path):
    end = "signal.signal(signal.SIGINT, lambda *_: print('one signal', flush=True)); time.sleep(1.5); print('on')"
    command = [sys.executable, "-m", "ampsweep.commands.main", "record", "--into", str(tmp_path / "runs"), "--"]
    terminal, side = pty.openpty()
    launcher = subprocess.Popen(
        [*command, sys.executable, str(script(tmp_path, end=end))],
        **dict.fromkeys(("stdin", "stdout", "stderr"), side),
        preexec_fn=lambda: (os.setsid(), os.close(os.open(os.ttyname(0), os.O_RDWR))),
    )
    os.close(side)
    printed = b""
    while b"\n20 " not in printed:
        printed += os.read(terminal, 4096)
    time.sleep(0.3)
    if sender == "a terminal":
        os.write(terminal, b"\x03")
    else:
        launcher.send_signal(signal.SIGINT)
    try:
        while chunk := os.read(terminal, 4096):
            printed += chunk
    except OSError:  # closed by the last process
        pass
    assert launcher.wait(20) == 0
    assert printed.count(b"one signal") == 1
    assert b"\n24 " in printed


def test_what_cannot_be_recorded_is_said_in_a_sentence(tmp_path, capfd, monkeypatch):
    blind, hidden = tmp_path / "blind", script(tmp_path, "print('unseen')")
    blind.mkdir()
    (blind / "torch.py").write_text("")
    (blind / "sitecustomize.py").write_text("print('their own')")
    monkeypatch.setenv("PYTHONPATH", str(blind))
    runs = {
        "no Python process of it imported torch": ["sh", "-c", "exit 5"],
        "with -I, Python does not look": [sys.executable, "-I", hidden],
        "cannot import the recorder": [
            sys.executable,
            "-c",
            "import importlib.util as u; u.find_spec('torch'); import torch",
        ],
    }
    for why, command in runs.items():
        run, printed = recorded(capfd, *command, into=tmp_path / "runs")
        assert (why in (run.why_none or ""), run.directories) == (True, ()), run.why_none
        assert ("their own" in printed) == ("recorder" in why), "another sitecustomize runs as ever"
        assert run.exit_code == (5 if command[0] == "sh" else 0)
    for wrong, sentence in {
        ("--", "no-such-command"): "error: no-such-command: No such file or directory",
        (): "error: no command to record",
        ("python", "t.py"): "the command to record comes behind `--`",
        ("--claimed", "bf17", "--", "true"): "error: --claimed bf17: not a known precision",
        ("--log-every", "0", "--", "true"): "error: --log-every 0: must be at least 1",
    }.items():
        assert main(["record", *wrong]) == 2
        assert sentence in capfd.readouterr().err
    assert not (tmp_path / "runs").exists()


FRAMEWORKS = {
    "transformers": (
        [
            "--output_dir",
            "out",
            "--max_steps",
            "12",
            "--bf16",
            "--use_cpu",
            "--report_to",
            "none",
            "--save_strategy",
            "no",
        ],
        """
from transformers import BertConfig, BertForSequenceClassification, HfArgumentParser, Trainer, TrainingArguments
(args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
config = BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
rows = [{"input_ids": [1, n % 50, 2], "labels": n % 2} for n in range(64)]
Trainer(model=BertForSequenceClassification(config), args=args, train_dataset=rows).train()
""",
        ("BertForSequenceClassification", 12, 42),
    ),
    "lightning": (
        ["--precision", "bf16-mixed"],
        """
import sys, torch, lightning
from torch.utils.data import DataLoader, TensorDataset
lightning.seed_everything(7)
class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 2)
    def training_step(self, batch, at):
        return torch.nn.functional.cross_entropy(self.layer(batch[0]), batch[1])
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())
settings = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
settings |= {"max_epochs": 1, "accumulate_grad_batches": 2, "accelerator": "cpu", "precision": sys.argv[2]}
data = DataLoader(TensorDataset(torch.randn(192, 8), torch.randint(2, (192,))), batch_size=8)
lightning.Trainer(**settings).fit(Net(), data)
""",
        ("Net", 12, 7),
    ),
    "accelerate": (
        ["--mixed_precision", "bf16"],
        """
import sys, torch
from accelerate import Accelerator
from accelerate.utils import set_seed
accelerator = Accelerator(cpu=True, mixed_precision=sys.argv[2], gradient_accumulation_steps=2)
set_seed(3)
data = torch.utils.data.DataLoader(torch.randn(192, 8), batch_size=8)
model = torch.nn.Linear(8, 4)
model, optimizer, data = accelerator.prepare(model, torch.optim.AdamW(model.parameters()), data)
for batch in data:
    with accelerator.accumulate(model):
        accelerator.backward(model(batch).square().mean())
        optimizer.step()
        optimizer.zero_grad()
""",
        ("Linear", 12, 3),
    ),
}


@pytest.mark.nightly
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_scripts_of_frameworks_are_recorded_unchanged(name, tmp_path, capfd, monkeypatch):
    pytest.importorskip(name, reason=f"{name} is not installed")
    monkeypatch.chdir(tmp_path)
    arguments, text, (model, steps, seed) = FRAMEWORKS[name]
    run, _ = recorded(capfd, sys.executable, script(tmp_path, text), *arguments, into=tmp_path / "runs")
    (record,) = run.records
    identity = record.identity
    assert (run.exit_code, record.status, record.arm) == (0, "completed", "amp_bf16"), record.error
    assert (identity.model, identity.steps, identity.seed, identity.precision_mode) == (model, steps, seed, "amp_bf16")
    assert record.summary["train/loss"] > 0


@pytest.mark.nightly
def test_ranks_of_torchrun_share_a_record_and_w_and_b_rows_are_copied(tmp_path, capfd, monkeypatch):
    text = """
import torch, torch.distributed as dist, wandb
dist.init_process_group("gloo")
torch.manual_seed(1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
run = wandb.init(mode="offline", config={"lr": 0.1}) if dist.get_rank() == 0 else None
for step in range(1, 13):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
    if run and step % 6 == 0:
        wandb.log({"eval/loss": 1 / step, "nested": {"f1": torch.tensor(0.5)}, "table": "no number", "perf/mine": 1})
dist.destroy_process_group()
"""
    monkeypatch.chdir(tmp_path)
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    run, _ = recorded(capfd, *launch, script(tmp_path, text), into=tmp_path / "runs")
    (record,), rows = run.records, read_history(run.directory)
    assert (run.exit_code, record.status, [own.rank for own in record.ranks]) == (0, "completed", [0, 1])
    assert record.config["own"] == {"lr": 0.1}
    own = {
        row["step"]: {key: row[key] for key in row if key in ("eval/loss", "nested.f1", "perf/mine")} for row in rows
    }
    assert own == {6: {"eval/loss": 1 / 6, "nested.f1": 0.5}, 10: {}, 12: {"eval/loss": 1 / 12, "nested.f1": 0.5}}
    assert json.loads((run.directory / "run.json").read_text())["ranks"]
    assert RunRecord.read(run.directory).identity.parallel == "ddp"


@pytest.mark.nightly
def test_a_loop_with_a_recording_of_its_own_is_recorded_once(tmp_path, capfd):
    """The loop of docs/own_loop.md, under what was said to the launcher."""
    text = (
        (Path(__file__).parents[2] / "docs/own_loop.md").read_text().split("```python\n# loop.py\n")[1].split("```")[0]
    )
    asked = {"arm": "half", "seed": 7, "metric": "train/loss", "into": tmp_path / "runs"}
    run, printed = recorded(capfd, sys.executable, script(tmp_path, text), "bf16", "3", **asked)
    (record,), (directory,) = run.records, run.directories
    assert [path.parent for path in tmp_path.rglob("run.json")] == [directory]
    assert printed.strip() == str(directory)
    assert (record.arm, record.identity.seed, record.source, record.status) == ("half", 7, "script", "completed")
    assert record.config["report"] == {"metric": "train/loss", "goal": None}
    assert (record.identity.steps, record.config["own"]) == (60, {"lr": 1e-3})
    assert "val/loss" in record.summary
