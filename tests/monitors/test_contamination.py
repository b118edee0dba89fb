"""Other users of the machine are noticed during a run, and the run itself is not mistaken for one."""

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
from ampsweep.monitors.processors import ProcessorUse, ProcessorWindow, num_available_cores, own_processes
from ampsweep.text import plural

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
ALONE = ProcessorUse(window_s=20.0, num_cores=8, own_cores=3.9, foreign_cores=0.04)


@pytest.mark.usefixtures("foreign_load")
def test_a_load_in_another_process_contaminates():
    before = UseBeforeRun(CPU).sentence()
    assert before.startswith("the CPU was busy before the run began: other processes kept ")
    watch = UseDuringRun(CPU)
    watch.after_warmup()
    end = time.perf_counter() + 0.7
    while time.perf_counter() < end:
        pass
    watch.end()
    found = watch.verdict(Evidence())
    assert found.verdict == "contaminated"
    assert found.reasons[0].startswith("other processes kept ")
    assert found.reasons[0].endswith(f"of {plural(num_available_cores(), 'core')} busy during the run")
    assert found.figures["foreign_cores"] > MAX_FOREIGN_CORES


def test_processes_that_the_run_starts_are_part_of_it():
    spend = "import time\nwhile time.process_time() < 0.5: pass"
    window, own_s = ProcessorWindow(), time.process_time()
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as started:
        child = psutil.Process(started.pid)
        assert started.pid in own_processes()
        subprocess.run([sys.executable, "-c", spend], check=True)
        use, child_s = window.use(), child.cpu_times().user
        started.kill()
    used_s = time.process_time() - own_s + child_s + 0.5
    assert use.own_cores * use.window_s == pytest.approx(used_s, abs=0.3)
    assert use.own_cores + use.foreign_cores < use.num_cores + 0.1, "nothing is counted on both sides"


@pytest.fixture
def machine(monkeypatch):
    """Two cores in simulated time, of which `run` keeps so many busy."""

    def run(seconds, own=1.0, foreign=0.0):
        machine.now_s += seconds
        machine.own_s += own * seconds
        machine.busy_s += (own + foreign) * seconds

    machine = SimpleNamespace(now_s=0.0, own_s=0.0, busy_s=0.0, counts=True, run=run)
    clock = SimpleNamespace(perf_counter=lambda: machine.now_s, process_time=lambda: machine.own_s)
    monkeypatch.setattr(processors, "time", clock)
    monkeypatch.setattr(processors, "num_available_cores", lambda: 2)
    monkeypatch.setattr(processors, "_own_processor_time", lambda: machine.own_s)
    monkeypatch.setattr(processors, "quota_cores", lambda: None)
    counters = lambda: (machine.busy_s, 2 * machine.now_s if machine.counts else 0.0)  # noqa: E731
    monkeypatch.setattr(processors, "_processor_times", counters)
    return machine


def test_the_verdict_follows_the_counted_use_without_pauses(machine):
    watch = UseDuringRun(CPU)
    watch.pause()
    watch.after_warmup()
    for _ in range(2):
        machine.run(1.0, own=1.0)
        watch.pause()
        machine.run(3.0, own=0.1, foreign=0.5)  # an evaluation or checkpoint, which may wait for a disk
        watch.resume()
    watch.pause()
    machine.run(2.0, own=0.0)
    watch.end()
    found = watch.verdict(Evidence())
    facts = {"window_s": 2.0, "own_cores": 1.0, "num_cores": 2, "foreign_cores": 0.3}
    assert found.figures == pytest.approx(facts | {"num_threads": torch.get_num_threads()})
    assert found.reasons == ["other processes kept 0.3 of 2 cores busy during the run"]
    standing = replace(ALONE, own_cores=0.04)
    (reason,) = judge(CPU, Evidence(host=standing)).reasons
    assert reason == "the run kept only 0.04 cores busy: it waited for a processor or the disk"


def test_nothing_is_known_without_steps_or_counters(machine):
    watch = UseDuringRun(CPU)
    watch.end()
    found = watch.verdict(Evidence())
    assert (found.verdict, found.reasons, found.figures) == ("unknown", ["no step came after warm-up"], {})
    machine.counts = False
    window = ProcessorWindow()
    machine.run(2.0)
    assert window.use().foreign_cores is None


@pytest.mark.skipif(sys.platform != "linux", reason="needs the affinity of Linux")
def test_only_the_cores_of_the_run_are_counted(monkeypatch, tmp_path):
    (tmp_path / "stat").write_text("cpu0 100 20 30 400 50 6 7 8 9 9\ncpu1 9 9 9 9 9 9 9 9\nprocs_running 1\n")
    monkeypatch.setattr(processors, "_STAT", tmp_path / "stat")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    ticks = os.sysconf("SC_CLK_TCK")
    assert processors._processor_times() == (171 / ticks, 621 / ticks)
    assert processors.nobody_else_runs()
    assert num_available_cores() == 1


@pytest.mark.parametrize(
    ("seen", "verdict"),
    [
        *(({"foreign_cores": 0.2}, "clean"), ({"foreign_cores": 0.3}, "contaminated")),
        ({"foreign_cores": 1.0, "num_cores": 128}, "clean"),
        ({"foreign_cores": 1.5, "num_cores": 128}, "contaminated"),
        *(({"own_cores": 0.6}, "clean"), ({"own_cores": 0.3}, "contaminated")),
        ({"foreign_cores": None}, "unknown"),
        ({"foreign_cores": None, "own_cores": 0.3}, "contaminated"),
        ({"own_cores": 0.07, "data_wait_share": 0.94}, "clean"),
        ({"own_cores": 0.07, "data_wait_share": 0.5}, "contaminated"),
        ({"foreign_cores": 1.0, "window_s": 0.2}, "unknown"),
    ],
)
def test_a_cpu_is_judged_by_its_users(seen, verdict):
    evidence = Evidence(data_wait_share=seen.pop("data_wait_share", 0.0), host=replace(ALONE, **seen))
    found = judge(CPU, evidence)
    assert found.verdict == verdict
    assert bool(found.reasons) == (verdict != "clean")


@pytest.mark.parametrize(
    ("num_threads", "cores", "own", "foreign", "quota", "setting"),
    [
        *((2, 2, 0.53, 1.47, None, 1), (2, 2, 1.0, 1.0, None, 1), (16, 16, 7.6, 8.1, None, 8)),  # others hold the rest
        *((64, 64, 1.9, 0.1, 2.0, 2), (2, 2, 0.4, 1.4, 0.5, 1)),  # a container may not use the rest
        (64, 64, 1.9, None, 2.0, 2),
        (8, 2, 1.98, 0.02, None, 2),  # more threads than cores, on an idle machine
        *((2, 2, 1.73, 0.24, None, None), (1, 2, 0.97, 1.03, None, None), (2, 64, 1.9, 0.1, 2.0, None)),
        *((2, 2, 0.3, 0.9, None, None), (16, 16, 14.9, 1.0, None, None)),  # waits for data; has nearly all cores
    ],
)
def test_threads_that_wait_for_each_other_are_named_with_the_setting(num_threads, cores, own, foreign, quota, setting):
    use = replace(ALONE, num_cores=cores, own_cores=own, foreign_cores=foreign, quota_cores=quota)
    reasons = judge(CPU, Evidence(host=use, num_threads=num_threads, data_wait_share=0.9)).reasons
    shared = f"{num_threads} threads shared {own:.1f} free cores, and threads wait for each other"
    found = [reason for reason in reasons if "threads" in reason]
    assert found == ([] if setting is None else [f"{shared}: set OMP_NUM_THREADS={setting}"])
    assert not any("waited for a processor" in reason for reason in reasons), "it is said once"


def test_the_smallest_limit_of_the_control_groups_counts(monkeypatch, tmp_path):
    monkeypatch.setattr(processors, "_OWN_GROUPS", tmp_path / "own")
    monkeypatch.setattr(processors, "_GROUPS", tmp_path)
    assert processors.quota_cores() is None, "another system"
    (tmp_path / "own").write_text("4:memory:/job\n3:cpu,cpuacct:/job/task\n0::/pod/box\n")
    for folder in ("cpu/job/task", "pod/box"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "pod/box/cpu.max").write_text("max 100000\n")
    (tmp_path / "cpu/job/task/cpu.cfs_quota_us").write_text("-1\n")
    (tmp_path / "cpu/job/task/cpu.cfs_period_us").write_text("100000\n")
    assert processors.quota_cores() is None, "no limit"
    (tmp_path / "pod/cpu.max").write_text("250000 100000\n")
    assert processors.quota_cores() == 2.5
    (tmp_path / "cpu/job/task/cpu.cfs_quota_us").write_text("150000\n")
    assert processors.quota_cores() == 1.5


def test_load_before_a_run_on_a_free_cpu_does_not_matter():
    free, unseen = (judge(CPU, Evidence(busy_before="the CPU was busy", host=host)) for host in (ALONE, None))
    assert (free.verdict, free.busy_before) == ("clean", "the CPU was busy")
    assert (unseen.verdict, unseen.reasons) == ("contaminated", ["the CPU was busy"])


IN_USE = "cuda:0 was in use"
WAITED = "other processes kept 4.0 of 8 cores busy during the run, and cuda:0 waited for its host"
SLOWED = "heat or hardware protection slowed cuda:0 down in 12% of the samples"


@pytest.mark.parametrize(
    ("seen", "verdict", "reasons"),
    [
        ({}, "clean", []),
        ({"throttled_pct": 0.5}, "clean", []),
        ({"others": frozenset({7, 5})}, "contaminated", ["processes 5, 7 computed on cuda:0 during the run"]),
        ({"throttled_pct": 12.0}, "contaminated", [SLOWED]),
        ({"busy_before": IN_USE}, "contaminated", [IN_USE]),
        ({"others": None, "busy_before": IN_USE}, "contaminated", [IN_USE]),
        ({"others": None}, "unknown", None),
        ({"host": None}, "unknown", ["no step came after warm-up"]),
        ({"waits_for_host": True}, "contaminated", [WAITED]),
        ({"waits_for_host": True, "host": replace(ALONE, own_cores=0.2)}, "clean", []),
        ({"waits_for_host": True, "host": replace(ALONE, foreign_cores=4.0, window_s=0.2)}, "clean", []),
    ],
)
def test_a_gpu_is_judged_by_its_processes_and_slowdowns(seen, verdict, reasons):
    found = judge(CUDA, Evidence(**({"host": replace(ALONE, foreign_cores=4.0, own_cores=0.2)} | seen)))
    assert found.verdict == verdict
    assert reasons is None or found.reasons == reasons


@needs_cuda
def test_cuda_memory_of_another_process_is_noticed_before():
    torch.cuda.empty_cache()  # what earlier tests held
    assert UseBeforeRun(torch.device("cuda")).sentence() is None
    hold = "import torch; held = torch.zeros(2**29, device='cuda'); print('held', flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"held\n"
        busy = UseBeforeRun(torch.device("cuda")).sentence()
        other.kill()
    assert busy.startswith("cuda was in use before the run began: ")
