"""The README's table of modes: its dtypes are those of the table of modes, and its bytes those that are there."""

import re
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from torch import nn

from ampsweep.config.modes import PRECISION_MODES, step_dtypes
from ampsweep.precision import Precision

README = (Path(__file__).parents[2] / "README.md").read_text()
SECTION = README.partition("## The modes")[2].partition("## ")[0]
ROWS = {
    mode: [cell.strip() for cell in row.split("|")[2:-1]]
    for row in SECTION.splitlines()
    if row.startswith("| `")
    for mode in re.findall(r"`(\w+)`", row.split("|")[1])
}
HERE = [mode for mode in PRECISION_MODES if mode != "tf32"]


def test_the_table_has_each_mode_with_its_five_dtypes():
    assert {mode: tuple(row[:5]) for mode, row in ROWS.items()} == {
        mode: tuple(dtypes[key] for key in ("compute", "parameters", "gradients", "reduction", "optimizer_state"))
        for mode, dtypes in ((mode, asdict(step_dtypes(one))) for mode, one in PRECISION_MODES.items())
    }


@pytest.mark.parametrize(
    ("mode", "state_dtype", "expected"),
    [
        *((mode, None, None) for mode in HERE),
        ("fp32", "bfloat16", 12),
        ("pure_bf16", "float32", 12),
        ("master_bf16", "bfloat16", 12),
        ("bf16_sr", "float32", 12),
    ],
)
def test_a_parameter_takes_the_bytes_of_the_table(mode, state_dtype, expected):
    if mode.startswith("fp8"):
        pytest.importorskip("torchao")
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
    told = float(re.match(r"\d+", ROWS[mode][5])[0]) if expected is None else expected
    assert taken / sum(p.numel() for p in model.parameters()) == told
