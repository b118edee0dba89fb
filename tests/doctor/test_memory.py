"""Memory that does not shrink: each planted cause is named, and the change traced."""

from functools import partial

import pytest
import torch
from patients import patient_of
from planted_memory import PLANTED, net

from ampsweep.doctor.memory.examine import examine_memory
from ampsweep.doctor.patient import NotExaminedError

CPU = torch.device("cpu")
patient = partial(patient_of, num_steps=2, seconds=200.0)


def planted(name):
    (one,) = [one for one in PLANTED if one.name == name]
    return one.overrides


@pytest.mark.parametrize("fault", PLANTED, ids=lambda fault: fault.name)
def test_a_planted_cause_is_named_and_mended(fault):
    found = examine_memory(patient(*fault.overrides))
    assert found[0].kind() == fault.kind
    assert fault.module is None or found[0].modules[0] == fault.module
    assert found[0].cost_pct >= 8
    assert found[0].proof.mends
    assert found[0].change.overrides or found[0].change.code


def test_activations_that_halve_have_no_finding():
    one = patient(*net("Layers"))
    assert examine_memory(one) == []
    assert one.facts["memory/own_peak_bytes"] < 0.7 * one.facts["memory/baseline_peak_bytes"]
    assert one.facts["memory/own_activations_bytes"] < 0.6 * one.facts["memory/baseline_activations_bytes"]


def test_parameters_in_half_precision_have_no_finding():
    assert examine_memory(patient(*net("Layers", precision="pure_bf16"))) == []


def test_nothing_is_traced_in_float32():
    one = patient(*net("CastToFloat", precision="fp32"))
    assert examine_memory(one) == []
    assert one.facts == {}


def test_a_step_that_fails_is_not_examined():
    fails = ("precision=amp_bf16", "model=custom", "model._target_=planted_types.Net", "+model.inner=Refusing")
    with pytest.raises(NotExaminedError, match="no bfloat16 here"):
        examine_memory(
            patient(*fails, "data=synthetic", "data.in_features=16", "data.out_features=1", "task=regression")
        )


def test_a_recurrence_is_followed_back_once():
    found = examine_memory(patient(*net("Recurrences", precision="pure_bf16")))
    assert {one.kind() for one in found} == {"float32_cast"}
    assert {module for one in found for module in one.modules} == {"inner.0", "inner.1"}


def test_the_code_leaves_out_what_keeps_float32():
    (finding,) = examine_memory(patient(*planted("cast to float32")))
    assert finding.change.code == "x = F.gelu(layer(x))"
    assert finding.sentence.startswith(
        f"float in inner ({finding.place}) casts to float32, and what follows stays there"
    )


def test_the_holder_of_what_grows_is_named():
    (finding,) = examine_memory(patient(*planted("probes for the log")))
    assert finding.attribute == "inner.total"
    assert finding.proof.growth_bytes < finding.growth_bytes / 10
