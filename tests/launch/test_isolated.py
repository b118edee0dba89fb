import importlib.util
import multiprocessing
import os
import signal
import sys
import threading
import time
from pathlib import Path

import isolated_targets as targets
import joblib
import psutil
import pytest
import torch
from isolated_targets import target

from ampsweep.launch.isolated import run_isolated, run_together
from ampsweep.launch.processes import SLOW_IMPORTS, start_fork_server
from ampsweep.launch.signals import StopRequest
from ampsweep.monitors.processors import own_processes

forkserver_only = pytest.mark.skipif(sys.platform != "linux", reason="children are spawned here, not forked")


def place_in_targets(statement):
    """The place of a statement of `isolated_targets`, as a sentence names it."""
    file = Path(targets.__file__)
    lines = file.read_text(encoding="utf-8").splitlines()
    (number,) = [number for number, line in enumerate(lines, start=1) if line.strip().startswith(statement)]
    place = file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
    return f"{place}, line {number}"


LEAVES = place_in_targets("sys.exit(code)")


@pytest.fixture(scope="module", autouse=True)
def _server():
    start_fork_server()


def test_a_run_returns_what_its_target_returns():
    end = run_isolated(target("echo"), ({"loss": 1.5},))
    assert (end.exitcode, end.result, end.error, end.stopped_by) == (0, {"loss": 1.5}, None, "")


@forkserver_only
def test_what_is_without_a_parent_after_a_run_stays_foreign(request):
    assert run_isolated(target("echo"), (1,)).exitcode == 0
    before = own_processes()
    request.getfixturevalue("foreign_load")
    assert own_processes() == before


def test_messages_arrive_in_order():
    heard = []
    assert run_isolated(target("count"), (500,), on_message=heard.append).exitcode == 0
    assert heard == list(range(500))


def test_arguments_and_result_may_be_larger_than_a_pipe_holds():
    large = bytes(range(256)) * 65536
    assert run_isolated(target("echo"), (large,)).result == large


def test_a_slow_parent_does_not_hold_up_the_run():
    spent_s = run_isolated(target("send_large"), (3, 2**20), on_message=lambda _: time.sleep(1)).result
    assert spent_s < 1.8, "waiting for the parent it would take 2 s"


def test_the_environment_is_the_parents_at_the_time_of_the_call(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    monkeypatch.delenv("HOME")
    found, _, born_with_torch = run_isolated(target("surroundings"), (["CUDA_VISIBLE_DEVICES", "HOME"],)).result
    assert found == {"CUDA_VISIBLE_DEVICES": "7", "HOME": None}
    assert born_with_torch == (sys.platform == "linux")


def test_a_given_environment_replaces_the_parents():
    given = {name: os.environ[name] for name in os.environ if name.startswith(("PATH", "OMP_", "MKL_", "TORCH"))}
    given["AMPSWEEP_TEST_COLOUR"] = "blue"
    with StopRequest() as stop:
        (ended,) = run_together(target("variables"), (), [given], stop=stop)
    assert ended.result == given


def test_the_working_directory_is_the_parents(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert run_isolated(target("surroundings"), ([],)).result[1] == str(tmp_path)


@pytest.mark.parametrize("number", [1, 2])
def test_the_number_of_threads_reaches_torch(monkeypatch, number):
    monkeypatch.setenv("OMP_NUM_THREADS", str(number))
    assert run_isolated(target("num_threads"), ()).result == number


def test_a_variable_that_torch_reads_at_import_counts(monkeypatch):
    monkeypatch.setenv("TORCH_LOGS", "+inductor")
    found, _, born_with_torch = run_isolated(target("surroundings"), (["TORCH_LOGS"],)).result
    assert found == {"TORCH_LOGS": "+inductor"}
    assert not born_with_torch


def test_workers_of_a_run_start_as_they_do_in_any_process():
    assert run_isolated(target("start_method"), ()).result == multiprocessing.get_all_start_methods()[0]


def test_an_exception_comes_back_as_its_traceback():
    end = run_isolated(target("fail"), ("scale is nought",))
    assert end.exitcode == 1
    assert end.result is None
    assert end.error.startswith("Traceback")
    assert end.error.endswith("ArithmeticError: scale is nought\n")
    assert end.sentence == f"ArithmeticError: scale is nought ({place_in_targets('raise ArithmeticError')})"


def test_a_result_that_cannot_be_sent_is_an_error_of_the_run():
    end = run_isolated(target("return_a_function"), ())
    assert end.exitcode == 1
    assert "pickle" in end.error


@pytest.mark.parametrize(
    ("target", "code", "error"),
    [
        (target("leave"), 3, f"ended by sys.exit(3) ({LEAVES})"),
        (target("leave"), 0, f"ended by sys.exit(0) ({LEAVES})"),
        (target("vanish"), 7, "ended with exit code 7 before it returned"),
        (target("vanish"), 0, "ended with exit code 0 before it returned"),
    ],
)
def test_leaving_without_a_result_is_an_error(target, code, error):
    end = run_isolated(target, (code,))
    assert (end.exitcode, end.result, end.error) == (code, None, error)


@pytest.mark.skipif(sys.platform == "win32", reason="no such signals on Windows")
@pytest.mark.parametrize(
    ("number", "error"),
    [
        (9, "killed by SIGKILL (often the system's out-of-memory killer)"),
        (11, "killed by SIGSEGV"),
    ],
)
def test_a_signal_that_killed_a_run_is_named(number, error):
    end = run_isolated(target("die_of"), (number,))
    assert (end.exitcode, end.result, end.error, end.stopped_by) == (-number, None, error, "")


def test_exit_functions_run_as_in_any_process(tmp_path):
    assert run_isolated(target("write_at_exit"), (tmp_path / "last",)).exitcode == 0
    assert (tmp_path / "last").read_text() == "farewell"


def test_a_run_that_hangs_after_its_result_is_killed():
    end = run_isolated(target("linger"), (), grace_s=0.5)
    assert end.result == "done"
    assert end.exitcode != 0
    assert end.error == "killed: it had not ended 0.5 s after it was to"


def test_what_the_listener_raises_is_raised_and_ends_the_run(tmp_path):
    def refuse(message):
        raise LookupError(message)

    with pytest.raises(LookupError) as raised:
        run_isolated(target("train_until_stopped"), (tmp_path / "end",), on_message=refuse)
    assert (tmp_path / "end").read_text() == "the parent process died"
    assert not psutil.pid_exists(raised.value.args[0])


def test_a_run_can_be_started_outside_the_main_thread():
    ends = []
    thread = threading.Thread(target=lambda: ends.append(run_isolated(target("echo"), (1,))))
    thread.start()
    thread.join()
    assert ends[0].result == 1


@pytest.mark.slow
def test_a_run_can_be_started_from_joblib_workers():
    ends = joblib.Parallel(n_jobs=2)(joblib.delayed(targets.isolate)(n) for n in range(3))
    assert [(end.exitcode, end.result) for end in ends] == [(0, 0), (0, 1), (0, 2)]


@forkserver_only
def test_a_child_of_the_warm_server_is_ready_at_once():
    def start_s():
        asked_at = time.time()
        return run_isolated(target("clock"), ()).result - asked_at

    assert min(start_s() for _ in range(5)) < 0.5


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_child_of_the_warm_server_can_use_the_device():
    assert run_isolated(target("cuda_sum"), ()).result == 3.0


@pytest.mark.parametrize("name", SLOW_IMPORTS)
def test_a_module_the_fork_server_imports_exists(name):
    assert importlib.util.find_spec(name) is not None


@pytest.mark.slow
@pytest.mark.parametrize("die", [False, True])
def test_no_wandb_service_outlives_its_run(die, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    heard = []
    end = run_isolated(target("log_to_wandb"), (die,), on_message=heard.append)
    assert end.exitcode == (-signal.SIGKILL if die else 0)
    (services,) = heard
    assert services
    deadline = time.monotonic() + 20  # wandb-core looks for its parent every 5 s
    while any(map(_lives, services)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(_lives, services))
    if not die:
        assert time.monotonic() < deadline - 16, "a run that ended in order waited for its service"


def _lives(identity):
    pid, create_time = identity
    try:
        process = psutil.Process(pid)
        return process.create_time() == create_time and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
