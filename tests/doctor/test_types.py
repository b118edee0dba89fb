"""Operators that do not take the dtypes which they get: each planted one is named, and the cast tried."""

from functools import partial

import pytest
import torch
from patients import patient_of
from planted_loss import DATA
from planted_types import PLANTED, net

from ampsweep.doctor.patient import NotExaminedError
from ampsweep.doctor.types.examine import examine_types

patient = partial(patient_of, num_steps=2, seconds=120.0)


def first(name):
    (one,) = [one for one in PLANTED if one.name == name]
    return examine_types(patient(*one.overrides))[0]


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.name)
def test_a_planted_fault_is_named_and_mended(planted):
    found = examine_types(patient(*planted.overrides))
    assert found[0].kind() == planted.kind
    assert planted.module is None or found[0].modules[0] == planted.module
    assert planted.operator in (None, found[0].operator)
    assert found[0].place.startswith("tests/doctor/planted_types.py, line ")
    assert found[0].proof.mends
    assert found[0].change.code is not None


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.name)
def test_float32_has_no_finding(planted):
    assert examine_types(patient(*planted.overrides, "precision=fp32")) == []


def test_both_operands_tell_where_they_were_made():
    query, value = first("rotary angles").operands
    assert (query.argument, query.dtype) == ("query", "float32")
    assert (value.argument, value.dtype) == ("value", "bfloat16")
    assert (query.made.operator, query.made.module) == ("aten.add", "inner")
    assert query.dtype_from.operator == "aten.linspace"
    assert (value.made.operator, value.made.module) == ("aten.addmm", "inner.value")


def test_the_code_casts_what_does_not_fit():
    code = first("rotary angles").change.code
    assert code == "return F.scaled_dot_product_attention(q.to(v.dtype), k.to(v.dtype), v)"
    assert first("experts").change.code == "out.index_add_(0, rows, expert(tokens[rows]).float())"
    assert first("mask").change.code == "scores = scores.masked_fill(future, torch.finfo(scores.dtype).min)"


def test_a_parameter_is_not_cast():
    finding = first("exact head")
    assert finding.operands[1].made.name == "inner.exact.weight"
    assert finding.cast == "input"


def test_a_tensor_that_is_no_buffer_is_told():
    assert first("frequencies").operands[0].dtype_from.name == "inner.frequencies"


def test_the_backward_pass_is_told():
    assert first("custom function").phase == "backward"


def test_an_evaluation_is_examined_too():
    assert first("table from training").stage == "evaluation"


def test_a_line_that_fails_in_several_modules_is_one_finding():
    (finding,) = examine_types(patient(*net("Gated", "pure_bf16")))
    assert finding.modules == ["inner.layers.0", "inner.layers.1", "inner.layers.2"]


def test_another_error_is_told_as_it_is():
    (finding,) = examine_types(patient(*net("Refusing", "amp_bf16")))
    assert (finding.kind(), finding.modules) == ("stops_with_error", ["inner"])
    assert finding.error == "ValueError: no bfloat16 here"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_refuses_a_loss_of_probabilities():
    task = ("task=custom", "task._target_=planted_loss.CrossEntropy")
    model = ("model=custom", "model._target_=planted_loss.Likelihood")
    (found,) = examine_types(patient(*DATA, *model, *task, "precision=amp_bf16", "device=cuda"))
    assert found.kind() == "refused_loss"
    assert "binary_cross_entropy" in found.operator


def test_an_error_of_float32_is_not_examined():
    with pytest.raises(NotExaminedError, match=r"stops in float32, too: .*always"):
        examine_types(patient(*net("Broken", "amp_bf16")))


def test_a_training_that_runs_has_no_finding():
    assert examine_types(patient(*net("Attention", "amp_bf16"))) == []
    assert examine_types(patient(*net("Attention", "pure_bf16"))) == []


def test_an_error_is_told_in_sentences():
    said = first("experts")
    assert said.sentence == (
        f"aten.index_add_ in inner ({said.place}) gets source in bfloat16 and self in float32, which it "
        "does not take together"
    )
    assert said.advice == "cast source to float32"
    assert "go through" in said.proof.sentence
