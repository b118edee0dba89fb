"""The doctor of a command: a script that runs once, as a user wrote it, and faults that its own calls prove."""

import errno
import json
import sys

import pytest
import torch
from torch import nn

from ampsweep.commands.main import main
from ampsweep.doctor.script.watched_calls import WatchedCalls

LOOP = """
import sys, torch, torch.nn as nn, torch.nn.functional as F
from concurrent.futures import ThreadPoolExecutor
torch.manual_seed(0)
{model}
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale={scale})
for step in range({steps}):
    x, y = batch(step)
    optimizer.zero_grad()
    with torch.autocast("{device}", torch.float16):
        loss = criterion(model(x), y)
    {backward}
    scaler.step(optimizer)
    scaler.update()
print("the script's last line")
"""
PLAIN = """
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
def batch(step): return torch.randn(64, 16), torch.randint(0, 4, (64,))
criterion = nn.CrossEntropyLoss()
"""
LAYER = """class Own(nn.Module):
    def forward(self, x): {}
model = nn.Sequential(nn.Linear(16, 32), Own(), nn.Linear(32, 4))"""
WITH_LAYER = PLAIN.partition("def")[2].join(["\n{}\ndef", ""])
WITHOUT = "@torch.autocast('cpu', enabled=False)\ndef off(*given): return F.linear(*given)\n"


def with_layer(body):
    return WITH_LAYER.format(LAYER.format(body))


SCALED = "scaler.scale(loss).backward()"
CLIPPED = SCALED + "\n    nn.utils.clip_grad_{}_(model.parameters(), {})"
UNSCALED = "\n+    scaler.unscale_(optimizer)\n     nn.utils.clip_grad_"
FAULTS = {
    "exp": ({"model": with_layer("return x / torch.exp((x * 30).half())")}, "exp_overflow", "float16"),
    "float64": ({"model": with_layer("return x.double()")}, "stops_with_error", "float64"),
    "NaN in the data": (
        {"model": PLAIN + "own = batch\ndef batch(n): x, y = own(n); return (x.log() if n == 2 else x), y"},
        "makes_nonfinite",
        "aten.log",
    ),
    "eps": ({"model": with_layer("return x / (x.half().relu() * 0 + 1e-8)")}, "eps_vanishes", "1.00e-08"),
    "not scaled": ({"backward": "scaler.scale(loss); loss.backward()"}, "not_scaled", "unscaled loss"),
    "no scaler": (
        {"backward": "loss *= 1e-7\n    loss.backward()\n    optimizer.step()\n    continue"},
        "gradients_vanish",
        "\n+    grad_scaler.scale(loss).backward()\n+    grad_scaler.step(optimizer)\n+    grad_scaler.update()\n",
    ),
    "clipped": ({"backward": CLIPPED.format("norm", 1.0)}, "limited_scaled", UNSCALED),
    "cut off": ({"backward": CLIPPED.format("value", 0.1)}, "limited_scaled", UNSCALED),
    "log of one less": (
        {"model": with_layer("\n        y = torch.tanh(3 * x)\n        return (1 - y ** 2).log()")},
        "log_of_zero",
        "\n+        y = torch.tanh(3 * x.float())\n",
    ),
    "elsewhere": ({"device": "cuda", "steps": 60}, "autocast_elsewhere", '\n+    with torch.autocast("cpu", '),
    "read one by one": (
        {"backward": "for n in range(40): loss.item()\n    " + SCALED, "steps": 60}, "host_reads", " 40 single numbers"
    ),
    "scale": ({"scale": 2.0**40, "steps": 80}, "wrong_scale", "1099511627776"),
    "root at zero": ({"model": with_layer("return (x.float() * 0).sqrt()")}, "makes_nonfinite", "aten.div"),
    "autocast off": (
        {"model": WITHOUT + PLAIN + "model[0].forward = lambda x: off(x, model[0].weight)\n"
         "model[2].forward = lambda x: off(x, model[2].weight)", "steps": 60},
        "disproof",
        "only 0%",
    ),
}  # fmt: skip


def write(folder, *, model=PLAIN, scale=2.0**16, steps=30, backward=SCALED, device="cpu"):
    text = LOOP.format(model=model, scale=scale, steps=steps, backward=backward, device=device)
    (folder / "loop.py").write_text(text)
    return "loop.py"


@pytest.mark.nightly
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_in_a_script_is_named(name, tmp_path, monkeypatch, capfd):
    settings, kind, words = FAULTS[name]
    monkeypatch.chdir(tmp_path)
    assert main(["doctor", "format=json", "--", sys.executable, write(tmp_path, **settings), "--fp16"]) == 0
    out, err = capfd.readouterr()
    found = {finding["kind"]: finding for finding in json.loads(out)["findings"]}
    finding = found[kind]
    assert words in f"{finding['headline']}\n{finding['change']['code']}"
    assert finding["proof"] is None, "nothing is tried"
    assert ("the script's last line" in err) == (kind != "stops_with_error"), (
        "the script's output is not the diagnosis's"
    )
    if kind != "wrong_scale":
        assert finding["place"].startswith("loop.py, line ")


@pytest.mark.nightly
def test_a_healthy_script_ends_after_the_steps_asked_for(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    script = write(tmp_path, steps=10**9, backward=CLIPPED.format("norm", "0.01 * scaler.get_scale()"))
    command = ["--steps", "55", "format=json", "--", sys.executable, script, "--fp16"]
    assert main(["doctor", *command]) == 0
    diagnosis = json.loads(capfd.readouterr().out)
    assert {finding["complaint"] for finding in diagnosis["findings"]} <= {"speed"}
    assert diagnosis["facts"]["loss/steps_in_all"] == 55
    assert diagnosis["facts"]["types/float16_pct"] == 100


@pytest.mark.nightly
def test_findings_are_printed_where_the_record_has_no_room(tmp_path, monkeypatch, capfd):
    def no_room(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device", "run.json")

    monkeypatch.setattr("ampsweep.integrations.script.launcher._completed", no_room)
    monkeypatch.setattr("ampsweep.commands.doctor.write_atomically", no_room)
    monkeypatch.chdir(tmp_path)
    assert main(["doctor", "--", sys.executable, write(tmp_path, **FAULTS["exp"][0])]) == 1
    out, err = capfd.readouterr()
    assert "1. Exp overflows float16" in out
    assert "Loss was not examined to the end: run.json: No space left on device." in out
    assert "the diagnosis's files are not written: " in err


def watched(forward, value):
    calls, parameter = WatchedCalls(), nn.Parameter(torch.ones(4))
    calls.enter()
    loss = forward(parameter * value).sum()
    found = calls.nonfinite.source_of(loss)
    calls.leave()
    assert not calls.is_on
    return found


def test_inf_and_nan_are_followed_back_to_the_first_call_and_no_mask_is_one():
    hidden = torch.tensor([True, False, False, True])
    _, bad = watched(lambda x: x.log() * x.masked_fill(hidden, -torch.inf).softmax(-1), torch.tensor([0.0, 1, 1, 1]))
    assert (bad.made.call.operator, bad.made.is_range) == ("aten.log", False)
    _, bad = watched(lambda x: x.masked_fill(hidden | ~hidden, -torch.inf).softmax(-1), torch.ones(4))
    assert bad.made.call.operator == "aten._softmax"
    origin, bad = watched(lambda x: x + 1, torch.tensor([torch.nan, 1, 1, 1]))
    assert (bad.arrived_in.operator, origin.kind) == ("aten.mul", "unknown")
    assert watched(lambda x: x.masked_fill(hidden, -torch.inf).softmax(-1), torch.ones(4)) is None


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (["--"], "no command to examine"),
        (["--steps", "0", "--", "python"], "--steps 0: before `--`"),
        (["precision=amp_fp16", "--", "python"], "precision=amp_fp16: before `--`"),
    ],
)
def test_wrong_options_before_a_command_are_refused(given, sentence, capsys):
    assert main(["doctor", *given]) == 2
    assert sentence in capsys.readouterr().err
