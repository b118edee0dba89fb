"""The table of bytes a parameter: its dtypes are those of the table of modes, and its bytes the measured ones."""

import re
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from torch import nn

from ampsweep.config.modes import PRECISION_MODES, step_dtypes
from ampsweep.precision import Precision

PAGE = (Path(__file__).parents[2] / "docs/modes.md").read_text()
ROWS = {
    mode: [cell.strip() for cell in row.split("|")[2:-1]]
    for row in PAGE.partition("## Bytes a parameter")[2].partition("## ")[0].splitlines()
    if row.startswith("| `")
    for mode in re.findall(r"`(\w+)`", row.split("|")[1])
}
OTHER_STATES = (("fp32", "bfloat16", 12), ("pure_bf16", "float32", 12), ("master_bf16", "bfloat16", 12))


def test_the_table_has_each_mode_with_its_five_dtypes():
    dtypes = {name: list(asdict(step_dtypes(mode)).values()) for name, mode in PRECISION_MODES.items()}
    assert {mode: row[:5] for mode, row in ROWS.items()} == dtypes


def test_a_parameter_takes_the_bytes_of_the_table():
    pytest.importorskip("torchao")
    shown = [(mode, None, float(re.match(r"\d+", row[5])[0])) for mode, row in ROWS.items() if mode != "tf32"]
    for mode, state_dtype, expected in (*shown, *OTHER_STATES, ("bf16_sr", "float32", 12)):
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
