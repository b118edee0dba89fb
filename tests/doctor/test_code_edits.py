"""Edits of a training's code: they run in the functions that exist, and nothing of them stays."""

import subprocess
from functools import partial
from pathlib import Path

import edited_code as code
import pytest
import torch

from ampsweep.doctor.code_edits import CodeEdit, NotAppliedError

FILE = code.__file__
SOURCE = Path(FILE).read_text()


def edit(old, new):
    assert old in SOURCE
    return CodeEdit(FILE, SOURCE, SOURCE.replace(old, new))


def under_autocast(function):
    with torch.autocast("cpu", torch.bfloat16):
        return function(1.0)


WITHOUT = '    @torch.autocast("cpu", enabled=False)\n'
DERIVED, EXACT = code.Derived(), code.Exact()


@pytest.mark.parametrize(
    ("changed", "run", "before", "after"),
    [
        (edit(".forward(x) * 2", ".forward(x) * 7"), partial(DERIVED, 1.0), 4.0, 14.0),
        (edit("return x * factor\n", "return x - factor\n"), partial(code.kept, 1.0), 3.0, -2.0),
        (edit("factor, x: x * factor", "factor, x: x - factor"), partial(code.in_partial, 1.0), 5.0, -4.0),
        (edit(WITHOUT + "    def forward", "    def forward"), partial(under_autocast, EXACT), False, True),
        (edit(WITHOUT + "    def wrapped", "    def wrapped"), partial(under_autocast, code.hidden), False, True),
        (edit("    def forward", "    # a line more\n    def forward") , partial(DERIVED, 1.0), 4.0, None),
    ],
    ids=["method with super", "closure", "lambda in a partial", "decorator", "decorator of a closure", "no code"],
)  # fmt: skip
def test_an_edit_runs_in_the_functions_that_exist_until_it_ends(changed, run, before, after):
    assert run() == before
    if after is None:
        with pytest.raises(NotAppliedError), changed.applied():
            pass
    else:
        with changed.applied():
            assert run() == after
            assert code.unchanged(1.0) == 1.0
    assert run() == before


def test_a_patch_applies_as_it_is_printed(tmp_path, monkeypatch):
    copy = tmp_path / "edited_code.py"
    copy.write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    shown = CodeEdit(str(copy), SOURCE, SOURCE.replace("* 2", "* 7").replace("x - 1", "x"))
    assert shown.patch.startswith("--- edited_code.py\n+++ edited_code.py\n@@ ")
    subprocess.run(["git", "apply", "--unidiff-zero", "-p0"], input=f"{shown.patch}\n", text=True, check=True)
    assert copy.read_text() == shown.new
