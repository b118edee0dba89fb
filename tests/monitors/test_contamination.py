"""Who else used the machine during a run is noticed, and the run itself is not mistaken for somebody else."""

import os
import subprocess
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import psutil
import pytest
import torch
from devices import needs_cuda

from ampsweep.monitors import processors
from ampsweep.monitors.contamination import MAX_FOREIGN_CORES, Evidence, UseBeforeRun, UseDuringRun, judge
from ampsweep.monitors.nvml import NvmlDevice
from ampsweep.monitors.processors import ProcessorUse, ProcessorWindow, num_available_cores, own_processes
from ampsweep.text import GIB, plural

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
LOOP = "while True: pass"
ALONE = ProcessorUse(window_s=20.0, num_cores=8, own_cores=3.9, foreign_cores=0.04)


def keep_busy(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def wait_until_it_runs(process):
    while process.cpu_times().user < 0.1:
        time.sleep(0.01)


@pytest.fixture
def child():
    """A busy loop that this process started."""
    with subprocess.Popen([sys.executable, "-c", LOOP]) as started:
        wait_until_it_runs(psutil.Process(started.pid))
        yield started
        started.kill()


def verdict_on(work, **evidence):
    watch = UseDuringRun(CPU)
    watch.after_warmup()
    work()
    watch.end()
    return watch.verdict(Evidence(**evidence))


@pytest.mark.usefixtures("foreign_load")
def test_a_load_in_another_process_contaminates():
    found = verdict_on(lambda: keep_busy(0.7))
    assert found.verdict == "contaminated"
    assert found.reasons[0].startswith("other processes kept ")
    assert found.reasons[0].endswith(f"of {plural(num_available_cores(), 'core')} busy during the run")
    assert found.figures["foreign_cores"] > MAX_FOREIGN_CORES


@pytest.mark.usefixtures("foreign_load")
def test_a_load_is_noticed_before_the_run_begins():
    began = time.perf_counter()
    told = UseBeforeRun(CPU).sentence()
    assert told is not None
    assert told.startswith("the CPU was busy before the run began: other processes kept ")
    assert time.perf_counter() - began < 5.0, "a tenth of a second on a machine with a core to spare"


def test_load_before_a_run_on_a_free_cpu_does_not_matter():
    free = Evidence(busy_before="the CPU was busy", host=ALONE)
    assert judge(CPU, free).verdict == "clean"
    assert judge(CPU, free).busy_before == "the CPU was busy"
    unseen = judge(CPU, replace(free, host=None))
    assert (unseen.verdict, unseen.reasons) == ("contaminated", ["the CPU was busy"])


def test_what_the_run_starts_is_part_of_the_run(child):
    window = ProcessorWindow()
    its_share = psutil.Process(child.pid).cpu_times().user
    own = time.process_time()
    keep_busy(0.7)
    used = time.process_time() - own + psutil.Process(child.pid).cpu_times().user - its_share
    use = window.use()
    assert use.own_cores == pytest.approx(used / use.window_s, abs=0.1)
    assert use.own_cores + use.foreign_cores < use.num_cores + 0.1, "nothing is counted on both sides"
    assert child.pid in own_processes()


def test_child_processes_that_ended_count_as_the_runs_own():
    window = ProcessorWindow()
    spend = "import time\nwhile time.process_time() < 0.5: pass"
    subprocess.run([sys.executable, "-c", spend], check=True)
    use = window.use()
    assert use.own_cores * use.window_s > 0.45  # counted in ticks of 10 ms


def test_the_verdict_follows_what_the_system_counted():
    def others(times, own):
        return times.user + times.system + getattr(times, "nice", 0.0) - own

    before, own = psutil.cpu_times(), time.process_time()
    found = verdict_on(lambda: keep_busy(1.0))
    foreign_cores = others(psutil.cpu_times(), time.process_time()) - others(before, own)
    if len(psutil.cpu_times(percpu=True)) == num_available_cores():
        assert found.figures["foreign_cores"] == pytest.approx(foreign_cores, abs=0.2)
    if foreign_cores < MAX_FOREIGN_CORES / 2:
        assert found.verdict == "clean"
    elif foreign_cores > MAX_FOREIGN_CORES * 2:
        assert found.verdict == "contaminated"


@pytest.mark.skipif(sys.platform != "linux", reason="needs the affinity of Linux")
def test_a_run_kept_to_cores_is_judged_by_these(monkeypatch, tmp_path):
    stat = tmp_path / "stat"
    ticks = os.sysconf("SC_CLK_TCK")

    def busy(**seconds):
        lines = [
            f"cpu{core} {int(seconds.get(f'cpu{core}', 0) * ticks)} 0 0 {100 * ticks * len(seconds)} 0 0 0 0"
            for core in (0, 1)
        ]
        stat.write_text("\n".join(lines))

    monkeypatch.setattr(processors, "_STAT", stat)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})

    def judged(**seconds):
        busy()
        watch = UseDuringRun(CPU)
        watch.after_warmup()
        keep_busy(0.6)
        busy(**seconds)
        watch.end()
        return watch.verdict(Evidence())

    assert [reason for reason in judged(cpu1=30).reasons if "other processes" in reason] == []
    (of_own,) = [reason for reason in judged(cpu0=3).reasons if "other processes" in reason]
    assert of_own.endswith("of 1 core busy during the run")


def test_a_run_that_stands_still_is_no_measure_of_speed():
    found = verdict_on(lambda: time.sleep(0.6))
    assert found.verdict == "contaminated"
    assert found.reasons[-1].startswith("the run kept only 0.0")


def test_evaluation_and_checkpoints_may_wait_for_a_disk():
    watch = UseDuringRun(CPU)
    watch.pause()
    watch.after_warmup()
    own = time.process_time()
    for _ in range(2):
        keep_busy(0.3)
        watch.pause()
        time.sleep(0.6)
        watch.resume()
    own = time.process_time() - own
    watch.pause()
    time.sleep(0.1)
    watch.end()
    figures = watch.verdict(Evidence()).figures
    assert figures["window_s"] == pytest.approx(0.6, abs=0.2)
    assert figures["own_cores"] * figures["window_s"] == pytest.approx(own, abs=0.1)


def test_too_short_a_time_tells_nothing():
    found = verdict_on(lambda: keep_busy(0.1))
    assert (found.verdict, found.reasons) == (
        "unknown",
        ["the steps after warm-up took less than 0.5 s, too short to tell"],
    )


def test_a_run_without_steps_after_warmup_tells_nothing():
    watch = UseDuringRun(CPU)
    watch.end()
    found = watch.verdict(Evidence())
    assert (found.verdict, found.reasons) == ("unknown", ["no step came after warm-up"])
    assert found.figures == {}


@pytest.mark.parametrize(
    ("seen", "verdict"),
    [
        ({}, "clean"),
        ({"foreign_cores": 0.2}, "clean"),
        ({"foreign_cores": 1.0}, "contaminated"),
        ({"foreign_cores": 1.0, "num_cores": 128}, "clean"),
        ({"foreign_cores": 1.5, "num_cores": 128}, "contaminated"),
        ({"own_cores": 1.0}, "clean"),
        ({"own_cores": 0.3}, "contaminated"),
        ({"foreign_cores": None}, "unknown"),
        ({"foreign_cores": None, "own_cores": 0.3}, "contaminated"),
        ({"own_cores": 0.07, "data_wait_share": 0.94}, "clean"),
        ({"own_cores": 0.07, "data_wait_share": 0.5}, "contaminated"),
        ({"own_cores": 0.07, "data_wait_share": 0.94, "foreign_cores": 1.0}, "contaminated"),
        ({"foreign_cores": 1.0, "window_s": 0.2}, "unknown"),
    ],
)
def test_a_cpu_is_judged_by_who_used_it(seen, verdict):
    waited = {"data_wait_share": seen.pop("data_wait_share", 0.0)}
    found = judge(CPU, Evidence(host=replace(ALONE, **seen), **waited))
    assert found.verdict == verdict
    assert bool(found.reasons) == (verdict != "clean")


@pytest.mark.parametrize(
    ("seen", "verdict", "told"),
    [
        ({}, "clean", ""),
        ({"throttled_pct": 0.5}, "clean", ""),
        ({"others": frozenset({7, 5})}, "contaminated", "processes 5, 7 computed on cuda:0 during the run"),
        (
            {"throttled_pct": 12.0},
            "contaminated",
            "heat or hardware protection slowed cuda:0 down in 12% of the samples",
        ),
        ({"busy_before": "cuda:0 was in use"}, "contaminated", "cuda:0 was in use"),
        ({"others": None}, "unknown", "nothing here tells which processes use cuda (in a container, say)"),
        ({"others": None, "busy_before": "cuda:0 was in use"}, "contaminated", "cuda:0 was in use"),
        ({"host": None}, "unknown", "no step came after warm-up"),
        (
            {"waits_for_host": True},
            "contaminated",
            "other processes kept 4.0 of 8 cores busy during the run, and cuda:0 waited for its host",
        ),
        ({"waits_for_host": True, "host": replace(ALONE, own_cores=0.2)}, "clean", ""),
        ({"waits_for_host": True, "host": replace(ALONE, foreign_cores=4.0, window_s=0.2)}, "clean", ""),
    ],
)
def test_a_gpu_is_judged_by_its_processes_and_slowdowns(seen, verdict, told):
    found = judge(CUDA, Evidence(**({"host": replace(ALONE, foreign_cores=4.0, own_cores=0.2)} | seen)))
    assert (found.verdict, "; ".join(found.reasons)) == (verdict, told)


class Driver:
    """As much of NVML as is asked for here, with one GPU."""

    NVMLError = RuntimeError
    nvmlMemory_v2 = 2  # noqa: N815
    nvmlClocksThrottleReasonHwSlowdown, nvmlClocksThrottleReasonSwThermalSlowdown = 8, 32  # noqa: N815
    nvmlClocksThrottleReasonHwThermalSlowdown, nvmlClocksThrottleReasonHwPowerBrakeSlowdown = 64, 128  # noqa: N815
    nvmlClocksThrottleReasonSwPowerCap = 4  # noqa: N815

    def __init__(self, reasons=0, computing=(), drawing=()):
        self.reasons, self.computing, self.drawing = reasons, computing, drawing

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, _):  # noqa: N802
        return self.reasons

    def nvmlDeviceGetComputeRunningProcesses(self, _):  # noqa: N802
        return [SimpleNamespace(pid=pid) for pid in self.computing]

    def nvmlDeviceGetGraphicsRunningProcesses(self, _):  # noqa: N802
        return [SimpleNamespace(pid=pid) for pid in self.drawing]

    def nvmlDeviceGetMemoryInfo(self, _, version=1):  # noqa: N802
        return SimpleNamespace(used=(3 if version == 1 else 2) * GIB)

    def __getattr__(self, name):
        raise RuntimeError(f"{name}: not supported")


@pytest.mark.parametrize(
    ("reasons", "throttled_pct", "power_capped_pct"),
    [(0, 0.0, 0.0), (1 | 4, 0.0, 100.0), (8 | 4, 100.0, 100.0), (32, 100.0, 0.0), (64, 100.0, 0.0)],
)
def test_heat_slows_down_and_a_power_cap_is_a_setting(reasons, throttled_pct, power_capped_pct):
    assert NvmlDevice(Driver(reasons), None).readings() == {
        "device/throttled_pct": throttled_pct,
        "device/power_capped_pct": power_capped_pct,
        "device/memory_used_gib": 3.0,
    }


def test_a_display_is_no_process_that_computes():
    assert NvmlDevice(Driver(computing=(1, 2), drawing=(2, 3)), None).compute_processes() == {1}


def test_what_the_driver_keeps_for_itself_is_held_by_nobody():
    assert NvmlDevice(Driver(), None).held_gib() == 2


HOLD = (
    "import sys, torch; held = torch.zeros(2**31, dtype=torch.uint8, device='cuda'); print('held', flush=True); input()"
)


@needs_cuda
def test_cuda_memory_of_another_process_is_noticed_before():
    torch.cuda.empty_cache()  # what earlier tests held
    assert UseBeforeRun(torch.device("cuda")).sentence() is None
    with subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"held\n"
        told = UseBeforeRun(torch.device("cuda")).sentence()
        other.kill()
    assert told is not None
    assert told.startswith("cuda was in use before the run began: ")
