"""Why a training gains little time: the planted faults, and the arithmetic with invented times."""

import linecache
from functools import partial
from types import SimpleNamespace

import planted
import planted_speed
import pytest
import torch

from ampsweep.config.compose import compose_one
from ampsweep.doctor.code_edits import CodeEdit
from ampsweep.doctor.diagnosis import Change, in_order
from ampsweep.doctor.hot_spots import hot_spots
from ampsweep.doctor.speed import examine, matrix_products, operators, timed_calls, waiting
from ampsweep.doctor.speed.examine import examine_speed
from ampsweep.doctor.speed.matrix_products import autocast_is_off, no_fast_units, product_rates
from ampsweep.doctor.speed.measured_steps import MeasuredSteps
from ampsweep.doctor.speed.operators import loops, slower_operators, unfused_optimizer
from ampsweep.doctor.speed.step_times import BareTraining, TimedAgain, timed_ms, times_in_turn
from ampsweep.doctor.speed.timed_calls import TimedCall, timed_in_turn
from ampsweep.monitors.processors import ProcessorUse
from ampsweep.monitors.step_clock import Moments
from ampsweep.speed.devices import DEVICES
from ampsweep.user_code import CodeLine

CPU = torch.device("cpu")
FLAWS = {planted.name: planted for planted in planted_speed.PLANTED}
TRIED = ("data_bound", "no_fast_units", "autocast_is_off", "slower_operators", "activation_casts")
ON_ANY_CPU = ("tiny operators", "sleep")  # they cost much of a step even where bfloat16 takes ten times as long
examined_of = partial(planted.examined_of, num_steps=5, seconds=60.0)


def call(index, ms, *, half=False, operator="aten.mm", module="net", **facts) -> TimedCall:
    dtypes = (torch.bfloat16 if half else torch.float32,)
    known = {"phase": "forward", "inputs": dtypes, "outputs": dtypes, "place": None}
    return TimedCall(index=index, operator=operator, module=module, ms=ms, **known | facts)


class Measured(MeasuredSteps):
    """Steps whose trials take half of the time."""

    def tried(self, config, edit=None):
        self.examined.tried = config
        return TimedAgain(mends=True, former_step_ms=8.0, step_ms=4.0)


def measured(own, baseline=(), step_ms=0.0):
    """A step of these calls, and that in float32."""
    config = compose_one(["device=cpu", "precision=amp_bf16", "optimizer.fused=false", "data.batch_size=8"])
    return Measured(
        SimpleNamespace(facts={}, config=config, data=SimpleNamespace(batch_size=8), seconds_left=60.0),
        SimpleNamespace(precision=config.precision, device=CPU, moments=Moments(CPU)),
        times=(step_ms,),
        step=own,
        lines=(),
        baseline=baseline,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "sleep" else pytest.mark.nightly) for name in FLAWS]
)
def test_a_planted_fault_is_named_first(name):
    rates = {} if name in ON_ANY_CPU else product_rates(CPU, Moments(CPU))
    if rates and rates["bfloat16"] <= 1.3 * rates["float32"]:
        pytest.skip("this CPU multiplies no faster in bfloat16")
    planted = FLAWS[name]
    also_true = {"no_fast_units"}  # of a device without them
    for _ in range(3):  # beside the load of others it finds less
        examined = examined_of(*planted.overrides)
        found = [one for one in in_order(examine_speed(examined)) if one.kind() not in also_true - {planted.kind}]
        if found:
            break
    first = found[0]
    assert (first.kind(), next(iter(first.modules), None)) == (planted.kind, planted.module)
    assert all(one.cost_pct >= 1 for one in found)
    assert sum(one.cost_pct for one in found) <= 100.001
    assert not any(text.endswith(".") for text in (first.sentence, *first.evidence, first.advice or ""))
    assert (first.proof is not None) == (planted.kind in TRIED)
    if (code := planted_speed.NAMED_LINES.get(name)) is not None:
        assert code in linecache.getline(planted_speed.__file__, int(first.place.rpartition(" ")[2]))
    assert examined.facts["speed/own_step_ms"] > 0


@pytest.mark.parametrize("foreign_cores", [0.0, 1.5])
def test_a_training_in_float32_is_not_compared_and_other_load_is_named(foreign_cores, monkeypatch):
    use = ProcessorUse(window_s=1.0, num_cores=2, own_cores=0.5, foreign_cores=foreign_cores)
    monkeypatch.setattr(examine, "ProcessorWindow", lambda: SimpleNamespace(use=lambda: use))
    examined, num_threads = examined_of(*planted_speed.net("waiting", precision="fp32")), torch.get_num_threads()
    first = next(iter(examine_speed(examined)))
    assert (first.kind(), torch.get_num_threads()) == ("host_bound", num_threads)
    assert "speed/speedup" not in examined.facts
    named = "other processes kept 1.5 of 2 cores busy: timed with 1 thread"
    assert (examined.facts.get("speed/other_load") == named) == bool(foreign_cores)


SAMPLER = {"operator": "aten.grid_sampler_2d"}
SAMPLED = [call(0, 6.0, half=True, **SAMPLER), call(1, 4.0, half=True, flops=9)]
PRODUCTS = [call(0, 8.0, half=True, flops=9), call(1, 2.0)]
UPDATE = [call(number, 1.0, module=None, phase="update") for number in range(6)]
LINE = CodeLine("net.py, line 3")
LINE.file, LINE.number = __file__, 3
TINY = [call(number, 0.001, place=LINE, function=number) for number in range(100)]
RECURRENT = [call(number, 0.001, place=LINE) for number in range(100)]
OFF = {"place": LINE}
UNCAST = [call(0, 4.0, flops=9, **OFF), call(1, 2.0, operator="aten.add", **OFF)]
UNCAST += [call(2, 4.0, flops=9, **OFF, phase="backward", forward=UNCAST[0])]
CASES = {
    "slower than in float32": slower_operators(measured(SAMPLED, [call(0, 2.0, **SAMPLER), call(1, 4.0, flops=9)])),
    "a fifth slower": slower_operators(measured(SAMPLED, [call(0, 5.0, **SAMPLER)])),
    "slow products": no_fast_units(measured(PRODUCTS, [call(0, 8.0, flops=9)])),
    "products faster here all the same": no_fast_units(measured(PRODUCTS, [call(0, 12.0, flops=9)])),
    "an update of 60%": unfused_optimizer(measured([*UPDATE, call(6, 4.0)])),
    "an update of 30%": unfused_optimizer(measured([*UPDATE, call(6, 14.0)])),
    "tiny operators": loops(measured(TINY, step_ms=0.6)),
    "one call with many operators": loops(measured(RECURRENT, step_ms=0.6)),
    "a decorator that switches autocast off": autocast_is_off(measured(UNCAST)),
}


@pytest.fixture
def invented(monkeypatch):
    """Edits that take a fifth of the time or leave autocast on, and a device whose products are fast in float16."""
    rates = {"bfloat16": 1e9, "float16": 4e9, "float32": 2e9}
    monkeypatch.setattr(matrix_products, "product_rates", lambda *_: rates)
    edit = CodeEdit("net.py", "@off\ndef f(): ...\n", "def f(): ...\n")
    monkeypatch.setattr(matrix_products, "autocast_on_at", lambda *_: {LINE: edit})
    proof = TimedAgain(mends=True, former_step_ms=1.0, step_ms=0.2)
    monkeypatch.setattr(operators, "_in_float32", lambda *_: (Change(code="x.float()"), proof))


def test_findings_of_invented_times(golden, invented):
    """The page has what each finding costs, where, its evidence and its change."""
    lines = []
    for name, findings in CASES.items():
        known = [*findings]
        lines += [f"## {name}", *([] if known else ["nothing"])]
        for found in known:
            overrides = found.change.overrides
            lines += [f"{found.sentence}: {found.cost_pct:.4g}% {found.modules} {overrides}", *found.evidence]
            lines += [found.proof.sentence] if found.proof else []
    golden("speed.md", "\n".join(lines))


def test_each_millisecond_is_counted_once(invented):
    steps = measured([*UNCAST, call(3, 10.0, half=True, **SAMPLER)], [call(0, 2.0, **SAMPLER)])
    found = [*autocast_is_off(steps), *slower_operators(steps)]
    assert [one.cost_pct for one in found] == [pytest.approx(50), pytest.approx(40)]
    assert not [*autocast_is_off(steps), *slower_operators(steps)], "their calls are claimed"
    assert steps.share_pct(20.0) == pytest.approx(10)


def test_a_wait_for_data_costs_its_share_of_the_step_and_hides_what_it_causes(monkeypatch):
    now_s, training = 0.0, SimpleNamespace(next_batch=0, instruments=SimpleNamespace(data_wait_s=0.0))

    def step(data):
        nonlocal now_s
        now_s += 0.006 + data.wait_s
        training.instruments.data_wait_s += data.wait_s

    for clock in ("monotonic", "perf_counter"):
        monkeypatch.setattr(waiting, clock, lambda: now_s)
    for wait_s in (0.004, 0.0005):
        steps = measured([call(0, 6.0)])
        steps.training.step, steps.training.trainer = step, training
        steps.examined.data = SimpleNamespace(next_unread=0, source=None, wait_s=wait_s, batch_size=8)
        steps.examined.device = torch.device("meta")
        found = [*waiting.data_wait(steps)]
        assert steps.examined.facts["speed/data_wait_ms"] == pytest.approx(1e3 * wait_s)
        assert [one.cost_pct for one in found] == ([pytest.approx(40)] if wait_s == 0.004 else [])
        assert steps.share_pct(10.0) == pytest.approx(60 if found else 100)


@pytest.mark.parametrize("device", [None, DEVICES["A100-80"]])
def test_calls_have_the_time_that_their_work_takes_on_a_known_device(device, monkeypatch):
    monkeypatch.setattr(timed_calls, "timed_device", lambda *_: device)
    monkeypatch.setattr(timed_calls, "kept_calibration", lambda _: None)
    examined = examined_of(*planted_speed.net("relu"))
    (step,) = timed_in_turn([BareTraining(examined, examined.config)], seconds=0.0)
    products = [call for call in step if call.flops]
    assert len(products) == 5
    if device is None:
        assert {call.expected_ms for call in step} == {None}
    else:
        assert all(call.flops / 1e9 / device.bfloat16 < call.expected_ms < 1 for call in products)


def test_steps_are_timed_in_turn():
    order = []
    blocks = [partial(timed_ms, partial(order.append, name), Moments(CPU)) for name in ("own", "other")]
    times = times_in_turn(blocks, seconds=0.0)
    assert len(times) == 2
    assert order.index("other") < len(order) - 1 - order[::-1].index("own")


def test_calls_are_grouped_by_what_holds_them():
    blocks = [(call(0, 1.0, module="blocks.0.norm"), 1.0), (call(1, 3.0, module="blocks.1.norm"), 3.0)]
    (spot,) = hot_spots(blocks)
    assert (spot.modules, spot.cost) == (["blocks.1.norm", "blocks.0.norm"], 4.0)


def test_reading_a_number_is_seen_with_its_line():
    examined = examined_of(*planted_speed.net("checked"))
    (step,) = timed_in_turn([BareTraining(examined, examined.config)], seconds=0.0)
    (read,) = [call for call in step if call.reads_device and call.phase != "update"]
    assert (read.module, read.operator) == ("inner", "aten._local_scalar_dense")
    assert "planted_speed.py" in read.place
    assert {call.flops for call in step if call.operator == "aten.addmm"} == {2 * 256 * 512 * 1024}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_step_that_reads_numbers_is_found_on_a_gpu():
    examined = examined_of(*planted_speed.net("checked"), "device=cuda")
    [*examine_speed(examined)]
    assert any("planted_speed.py" in str(line) for line in examined.facts["speed/synchronizations"])
