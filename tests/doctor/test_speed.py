"""Why a training gains little time: the faults that were planted, and the arithmetic with played times."""

from functools import partial

import patients
import planted_speed
import pytest
import torch

from ampsweep.doctor.diagnosis import in_order
from ampsweep.doctor.speed.bare_training import BareTraining, doubled
from ampsweep.doctor.speed.examine import examine_speed
from ampsweep.doctor.speed.filling import gain_pct
from ampsweep.doctor.speed.products import product_rates
from ampsweep.doctor.speed.step_times import Ratio, StepTimes, times_in_turn
from ampsweep.doctor.speed.timed_calls import TimedCall, reads_device, timed_in_turn
from ampsweep.doctor.speed.waiting import host_waits
from ampsweep.doctor.spot import spots
from ampsweep.monitors.step_clock import Moments

CPU = torch.device("cpu")


patient_of = partial(patients.patient_of, num_steps=5, seconds=60.0)


@pytest.fixture(scope="module")
def has_fast_bfloat16() -> bool:
    rates = product_rates(CPU, Moments(CPU), seconds=1.0)
    return rates["bfloat16"] > 1.3 * rates["float32"]


def played(index: int, ms: float, *, module: str, place: str | None = None) -> TimedCall:
    dtypes = (torch.float32,)
    return TimedCall(index, "aten.mm", "forward", module, place, dtypes, dtypes, ms=ms)


FLAWS = {one.name: one for one in planted_speed.PLANTED}
ON_ANY_CPU = ("tiny operators",)
"""Faults that cost much of a step even where bfloat16 takes ten times as long as float32."""


@pytest.mark.slow
@pytest.mark.parametrize("name", FLAWS)
def test_a_planted_fault_is_named_first(name, has_fast_bfloat16):
    if name not in ON_ANY_CPU and not has_fast_bfloat16:
        pytest.skip("this CPU multiplies no faster in bfloat16")
    one = FLAWS[name]

    findings = in_order(examine_speed(patient_of(*one.overrides)))

    # Not planted, but true: a fast processor gains more by twice the batch, another has no units, and where others
    # compute beside this, the host's own work between many operators may cost more than launching them.
    also_true = {"small_batch", "no_fast_units"} | ({"host_bound"} if one.kind == "launch_bound" else set())
    findings = [found for found in findings if found.kind() not in also_true - {one.kind}]
    assert findings, "nothing found"
    first = findings[0]
    assert first.kind() == one.kind
    assert first.modules[:1] == ([] if one.module is None else [one.module])
    assert (first.cost_pct or 0.0) >= 0.0
    assert not any(text.endswith(".") for text in (first.sentence, *first.evidence, first.advice))


def test_a_training_in_float32_is_not_compared():
    patient = patient_of("precision=fp32", *planted_speed.SLEEPING)

    findings = examine_speed(patient)

    assert [one.kind() for one in findings][:1] == ["host_bound"]
    assert "speed/speedup" not in patient.facts
    assert patient.facts["speed/own_step_ms"] > 0


def test_a_speedup_is_that_of_blocks_taken_in_turn():
    drifting = StepTimes((10.0, 20.0, 40.0, 80.0))
    half_of_it = StepTimes((5.0, 10.0, 20.0, 40.0))

    assert Ratio.of(drifting, half_of_it) == Ratio(2.0, 2.0)


def test_a_gain_within_the_spread_of_blocks_is_none():
    own, noisy = StepTimes((10.0, 10.0, 10.0, 10.0)), StepTimes((10.0, 20.0, 20.0, 20.0))

    assert gain_pct(own, noisy) == 0.0
    assert gain_pct(own, StepTimes((10.0, 10.0, 10.0, 10.0))) == 50.0


def test_steps_are_timed_in_turn():
    order = []
    times = times_in_turn([lambda: order.append("own"), lambda: order.append("other")], Moments(CPU), seconds=0.0)

    assert len(times) == 2
    assert order.index("other") < len(order) - 1 - order[::-1].index("own")


def test_modules_of_a_kind_are_one_spot():
    costs = [(played(0, 1.0, module="blocks.0.norm"), 1.0), (played(1, 3.0, module="blocks.1.norm"), 3.0)]

    (spot,) = spots([*costs])

    assert spot.modules == ["blocks.1.norm", "blocks.0.norm"]
    assert spot.cost == 4.0


def test_modules_of_one_line_are_told_by_what_holds_them():
    costs = [(played(0, 1.0, module="b.0.up", place="net.py, line 3"), 2.0)]
    costs += [(played(1, 1.0, module="b.0.down", place="net.py, line 3"), 1.0)]

    (spot,) = spots(costs, by_line=True)

    assert spot.modules == ["b.0", "b.0.up", "b.0.down"]


def test_a_larger_batch_has_the_same_items():
    batch = (torch.arange(4), {"scale": torch.tensor(1.0)})

    joined, scale = doubled(batch)

    assert joined.tolist() == [0, 1, 2, 3, 0, 1, 2, 3]
    assert scale["scale"].dim() == 0


def test_reading_a_number_is_seen_with_its_line():
    patient = patient_of(*planted_speed.CHECKING)
    training = BareTraining(patient, patient.config.precision)

    (step,) = timed_in_turn([training], Moments(CPU), seconds=0.0)
    (spot,) = host_waits(step.of_phases("forward"))

    assert spot.modules == ["middle"]
    assert spot.operator == "aten._local_scalar_dense"
    assert "planted_speed.py" in spot.place


def test_a_copy_to_the_host_makes_it_wait():
    there, here = torch.zeros(1, device="meta"), torch.zeros(1)

    assert reads_device("aten._to_copy", [there], [here])
    assert not reads_device("aten._to_copy", [here], [here])
    assert reads_device("aten.nonzero", [there], [there])
    assert reads_device("aten.index", [there, there.bool()], [there])
    assert not reads_device("aten.index", [there, there.long()], [there])


@pytest.mark.gpu
def test_a_step_that_reads_numbers_is_told_on_a_gpu():
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    patient = patient_of(*planted_speed.CHECKING, "device=cuda")

    examine_speed(patient)

    assert any("planted_speed.py" in str(line) for line in patient.facts["speed/synchronizations"])
