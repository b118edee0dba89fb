"""Operators that refuse the dtypes of their arguments: each planted fault is named, and the cast tried."""

from functools import partial

import pytest
import torch
from examined_trainings import examined_of
from planted_loss import model
from planted_types import PLANTED, net

from ampsweep.doctor.examined_training import NotExaminedError
from ampsweep.doctor.types.examine import examine_types

examined = partial(examined_of, num_steps=2, seconds=120.0)
FOUND = {}


def first(name):
    """The first finding of a planted fault, which is examined once."""
    if name not in FOUND:
        (planted,) = (planted for planted in PLANTED if planted.name == name)
        FOUND[name] = examine_types(examined(*planted.overrides))[0]
    return FOUND[name]


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.name)
def test_a_planted_fault_is_named_and_fixed(planted):
    found = first(planted.name)
    assert (found.kind(), planted.module) == (planted.kind, planted.module and found.modules[0])
    assert planted.operator in (None, found.operator)
    assert found.place.startswith("tests/doctor/planted_types.py, line ")
    assert found.proof.mends
    assert found.change.code is not None


def test_both_operands_say_where_they_were_made():
    query, value = first("rotary angles").operands
    assert (query.argument, query.dtype) == ("query", "float32")
    assert (value.argument, value.dtype) == ("value", "bfloat16")
    assert (query.made.operator, query.made.module) == ("aten.add", "inner")
    assert query.dtype_from.operator == "aten.linspace"
    assert (value.made.operator, value.made.module) == ("aten.add", "inner.layers.2")
    assert value.sentence.startswith("value is bfloat16: aten.add makes it in inner.layers.2 (")


def test_the_code_casts_what_does_not_fit():
    code = first("rotary angles").change.code
    assert code == "return F.scaled_dot_product_attention(q.to(v.dtype), k.to(v.dtype), v)"
    assert first("experts").change.code == "out.index_add_(0, rows, expert(tokens[rows]).float())"
    assert first("mask").change.code == "scores = scores.masked_fill(future, torch.finfo(scores.dtype).min)"


def test_facts_beyond_the_call_are_found():
    assert (first("exact head").operands[1].made.name, first("exact head").cast) == ("inner.layers.1.weight", "input")
    assert first("frequencies").operands[0].dtype_from.name == "inner.frequencies"
    assert first("frequencies").runs_with == ["precision=amp_bf16"]
    assert first("custom function").phase == "backward"
    assert first("table from training").stage == "evaluation"
    assert first("moments").phase == "update"
    assert first("mask").number == -1e9
    assert first("experts").evidence[0].startswith("the forward pass of step 1 stops with RuntimeError: ")
    assert (first("experts").cast, first("experts").cast_to) == ("source", "float32")
    assert first("experts").proof.loss == pytest.approx(first("experts").proof.baseline_loss, rel=0.05)


def test_a_line_that_fails_in_several_modules_is_one_finding():
    (finding,) = examine_types(examined(*net("gated", "pure_bf16")))
    assert finding.modules == ["inner.layers.0", "inner.layers.1", "inner.layers.2"]


def test_another_error_is_shown_as_it_is():
    (finding,) = examine_types(examined(*net("refusing_bfloat16", "amp_bf16")))
    assert (finding.kind(), finding.modules) == ("stops_with_error", ["inner"])
    assert finding.error == "ValueError: no bfloat16 here"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_refuses_a_loss_of_probabilities():
    (found,) = examine_types(examined(*model("Likelihood", "amp_bf16", task="CrossEntropy"), "device=cuda"))
    assert found.kind() == "refused_loss"
    assert "binary_cross_entropy" in found.operator


def test_an_error_of_float32_is_not_examined():
    with pytest.raises(NotExaminedError, match=r"stops in float32, too: .*always"):
        examine_types(examined(*net("broken", "amp_bf16")))


@pytest.mark.parametrize("precision", ["fp32", "amp_bf16", "pure_bf16"])
def test_a_training_that_runs_has_no_finding(precision):
    assert examine_types(examined(*net("attention", precision))) == []
