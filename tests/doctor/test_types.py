"""Operators that refuse the dtypes of their arguments: each planted fault is named, and the cast tried."""

import re
from functools import partial

import pytest
import torch
from planted import examined_of
from planted_loss import model
from planted_types import PLANTED, net

from ampsweep.doctor.examined_training import NotExaminedError
from ampsweep.doctor.types.examine import examine_types

examined = partial(examined_of, num_steps=2, seconds=120.0)


def test_planted_faults_are_named_and_fixed(golden):
    """The page has the call, where its operands were made, and the line that fixes it."""
    lines = []
    for planted in PLANTED:
        found = examine_types(examined(*planted.overrides))[0]
        assert (found.kind(), planted.module) == (planted.kind, planted.module and found.modules[0]), planted.name
        assert planted.operator in (None, found.operator)
        assert found.place.startswith("tests/doctor/planted_types.py, line ")
        assert found.proof.mends
        if planted.name == "first state of an LSTM":
            continue  # CPUs differ in its operators
        lines += [f"## {planted.name}", found.sentence, found.advice or "no words", found.change.code]
        assert re.match(r"it raises (Runtime|Type)Error: ", found.evidence[0])
        assert found.proof.loss == pytest.approx(found.proof.baseline_loss, rel=0.05)
        lines += [operand.sentence for operand in found.operands]
    golden("types.md", re.sub(r"[\w/]*?(\w+\.py), line \d+", r"\1", "\n".join(lines)))


def test_a_line_that_fails_in_several_modules_is_one_finding():
    (finding,) = examine_types(examined(*net("gated", "pure_bf16")))
    assert finding.change.code.count("\n+ ") == 1
    assert finding.proof.mends


def test_an_error_of_float32_is_not_examined():
    with pytest.raises(NotExaminedError, match=r"stops in float32, too: .*always"):
        examine_types(examined(*net("broken", "amp_bf16")))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_refuses_a_loss_of_probabilities():
    (found,) = examine_types(examined(*model("Likelihood", "amp_bf16", task="CrossEntropy"), "device=cuda"))
    assert "binary_cross_entropy" in found.operator
