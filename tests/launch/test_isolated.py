import ast
import importlib.util
import itertools
import multiprocessing
import os
import re
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import isolated_targets as targets
import joblib
import psutil
import pytest
from devices import needs_cuda
from isolated_targets import target

import ampsweep
from ampsweep.launch import isolated_process
from ampsweep.launch.isolated_process import ChildError, run_isolated, run_together
from ampsweep.launch.processes import SLOW_IMPORTS, start_fork_server
from ampsweep.launch.signal_handlers import StopRequest
from ampsweep.monitors.processors import own_processes

forkserver_only = pytest.mark.skipif(sys.platform != "linux", reason="children are spawned here, not forked")
KILL = signal.SIGKILL


def place_in(function):
    """The place of a function's first line, as a sentence names it."""
    file, line = Path(targets.__file__), function.__code__.co_firstlineno + 1
    return f"{file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file}, line {line}"


@pytest.fixture(scope="module", autouse=True)
def _server():
    start_fork_server()


def test_arguments_messages_and_result_arrive_whole_and_in_order():
    large, heard = bytes(range(256)) * 65536, []
    end = run_isolated(target("echo"), (large,))
    assert (end.exitcode, end.error, end.stopped_by) == (0, None, "")
    assert end.result == end.unpacked() == large, "more than a pipe holds"
    assert run_isolated(target("count"), (500,), on_message=heard.append).exitcode == 0
    assert heard == list(range(500))


@forkserver_only
def test_orphans_of_others_are_not_adopted_after_a_run(request):
    run_isolated(target("echo"), (1,))
    before = own_processes()
    request.getfixturevalue("foreign_load")
    assert own_processes() == before


def test_a_slow_parent_does_not_hold_up_the_run():
    spent_s = run_isolated(target("send_large"), (3, 2**20), on_message=lambda _: time.sleep(0.4)).result
    assert spent_s < 0.7, "waiting for the parent it would take 0.8 s"


def test_a_run_has_the_parents_environment_and_directory(monkeypatch, tmp_path):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    monkeypatch.delenv("HOME")
    monkeypatch.chdir(tmp_path)
    found, directory, born_with_torch = run_isolated(target("surroundings"), ()).result
    assert (found["CUDA_VISIBLE_DEVICES"], directory) == ("7", str(tmp_path))
    assert "HOME" not in found
    assert born_with_torch == (sys.platform == "linux")
    given = {name: os.environ[name] for name in os.environ if name.startswith(("PATH", "OMP_", "MKL_", "TORCH"))}
    given["COLOUR"] = "blue"
    with StopRequest() as stop:
        (ended,) = run_together(target("surroundings"), (), [given], stop=stop)
    assert ended.result[0] == given, "a given environment replaces the parent's"


def test_a_variable_that_torch_reads_at_import_counts(monkeypatch):
    monkeypatch.setenv("TORCH_LOGS", "+inductor")
    found, _, born_with_torch = run_isolated(target("surroundings"), ()).result
    assert (found["TORCH_LOGS"], born_with_torch) == ("+inductor", False)


@pytest.mark.parametrize("number", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_the_number_of_threads_reaches_torch(monkeypatch, number):
    monkeypatch.setenv("OMP_NUM_THREADS", str(number))
    assert run_isolated(target("num_threads"), ()).result == number


def test_workers_of_a_run_start_as_they_do_in_any_process():
    found = run_isolated(target("multiprocessing:get_start_method"), ()).result
    assert found == multiprocessing.get_all_start_methods()[0]


def test_an_exception_comes_back_as_its_traceback():
    end = run_isolated(target("fail"), ("scale is nought",))
    assert (end.exitcode, end.result) == (1, None)
    assert end.error.startswith("Traceback")
    assert end.error.endswith("ArithmeticError: scale is nought\n")
    assert end.sentence == f"ArithmeticError: scale is nought ({place_in(targets.fail)})"
    with pytest.raises(ChildError, match=r"^ArithmeticError: scale is nought") as raised:
        end.unpacked()
    (note,) = raised.value.__notes__
    assert note.endswith(end.error)
    end = run_isolated(target("sys:_getframe"), ())
    assert end.exitcode == 1
    assert "pickle" in end.error, "a result that cannot be sent"


@pytest.mark.parametrize(
    ("name", "argument", "code", "error"),
    [
        ("leave", 3, 3, f"ended by sys.exit(3) ({place_in(targets.leave)})"),
        ("os:_exit", 7, 7, "ended with exit code 7 before it returned"),
        ("os:_exit", 0, 0, "ended with exit code 0 before it returned"),
        ("signal:raise_signal", 9, -9, "killed by SIGKILL (often the system's out-of-memory killer)"),
        ("signal:raise_signal", 11, -11, "killed by SIGSEGV"),
    ],
)
def test_an_end_without_a_result_is_an_error(name, argument, code, error):
    end = run_isolated(target(name), (argument,))
    assert (end.exitcode, end.result, end.error, end.stopped_by) == (code, None, error, "")


@pytest.mark.parametrize(("number", "counted"), [(9, True), (9, False), (11, True)])
def test_only_a_kill_that_the_kernel_counted_is_out_of_memory(number, counted, monkeypatch):
    counts = itertools.count() if counted else itertools.repeat(4)
    monkeypatch.setattr(isolated_process, "num_oom_kills", lambda: next(counts))
    assert run_isolated(target("signal:raise_signal"), (number,)).oom_killed == (counted and number == KILL)


def test_exit_functions_run_as_in_any_process(tmp_path):
    run_isolated(target("write_at_exit"), (tmp_path / "last",))
    assert (tmp_path / "last").read_text() == "farewell"


def test_a_run_that_hangs_after_its_result_is_killed():
    end = run_isolated(target("linger"), (), grace_s=0.5)
    assert (end.result, end.error) == ("done", "killed: it had not ended 0.5 s after it was to")
    assert end.exitcode != 0


def test_an_error_of_the_listener_ends_the_run_and_is_raised(tmp_path):
    def refuse(message):
        raise LookupError(message)

    with pytest.raises(LookupError) as raised:
        run_isolated(target("train_until_stopped"), (tmp_path / "end",), on_message=refuse)
    assert (tmp_path / "end").read_text() == "the parent process died"
    assert not psutil.pid_exists(raised.value.args[0])


def test_one_lost_process_of_several_ends_the_others(monkeypatch):
    monkeypatch.setattr(isolated_process, "_LEFT_S", 0.3)
    environments = [{**os.environ, "FATE": fate} for fate in ("vanish", "sleep")]
    with StopRequest() as stop:
        lost, other = run_together(target("by_fate"), (), environments, stop=stop)
    assert (lost.exitcode, other.exitcode) == (7, -KILL)
    assert lost.lost_s < other.lost_s
    assert other.sentence.startswith("killed: it had not ended")


def test_a_run_can_be_started_outside_the_main_thread():
    with ThreadPoolExecutor() as threads:
        assert threads.submit(run_isolated, target("echo"), (1,)).result().result == 1


@pytest.mark.nightly
def test_a_run_can_be_started_from_joblib_workers():
    ends = joblib.Parallel(n_jobs=2)(joblib.delayed(targets.isolate)(n) for n in range(3))
    assert [(end.exitcode, end.result) for end in ends] == [(0, 0), (0, 1), (0, 2)]


@forkserver_only
def test_a_child_of_the_warm_server_is_ready_at_once():
    def start_s():
        asked_at = time.time()
        return run_isolated(target("clock"), ()).result - asked_at

    assert min(start_s() for _ in range(5)) < 0.5
    assert all(importlib.util.find_spec(name) is not None for name in SLOW_IMPORTS)


@needs_cuda
def test_a_child_of_the_warm_server_can_use_the_device():
    free, total = run_isolated(target("torch.cuda:mem_get_info"), ()).result
    assert 0 < free <= total


def test_functions_called_by_name_exist_where_they_are_named():
    pattern = re.compile(r'NamedFunction\[.+\]\(\s*"([\w.]+:\w+)"')
    source = Path(ampsweep.__path__[0])
    names = [name for path in source.rglob("*.py") for name in pattern.findall(path.read_text(encoding="utf-8"))]
    assert len(names) > 5
    for name in names:
        module, _, function = name.partition(":")
        tree = ast.parse((source.parent / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8"))
        assert function in [node.name for node in tree.body if isinstance(node, ast.FunctionDef)], name


@pytest.mark.parametrize("die", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_no_wandb_service_outlives_its_run(die, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    heard = []
    end = run_isolated(target("log_to_wandb"), (die,), on_message=heard.append)
    assert end.exitcode == (-KILL if die else 0)
    (services,) = heard
    assert services
    deadline = time.monotonic() + (20 if die else 3)  # a wandb-core looks for its parent every 5 s
    while (left := living(services)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left


def living(identities):
    found = [process.info for process in psutil.process_iter(["pid", "create_time", "status"])]
    alive = {(info["pid"], info["create_time"]) for info in found if info["status"] != psutil.STATUS_ZOMBIE}
    return alive.intersection(identities)
