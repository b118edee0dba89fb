"""Functions that the tests of this folder run in a process of their own.

As a script it runs one of them in isolation, and prints what it hears and how that ended, a line of JSON each.
"""

import atexit
import ctypes
import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from ampsweep.launch import watchdog as watchdog_module
from ampsweep.launch.isolated_child import NamedFunction
from ampsweep.launch.isolated_process import run_isolated
from ampsweep.launch.processes import start_fork_server


def target(name):
    """A function of this or another module, as `run_isolated` takes it."""
    return NamedFunction(name if ":" in name else f"isolated_targets:{name}")


def echo(value):
    return value


def count(number, *, send):
    for n in range(number):
        send(n)


def isolate(value):
    """For a worker of joblib's: a run of its own, from a fork server of its own."""
    start_fork_server(["json"])
    return run_isolated(target("echo"), (value,))


def surroundings():
    """What a run finds before it does anything: variables, directory, whether it was born with torch imported."""
    return dict(os.environ), str(Path.cwd()), "torch" in sys.modules


def num_threads():
    import torch

    return torch.get_num_threads()


def clock():
    return time.time()


def fail(text):
    raise ArithmeticError(text)


def leave(code):
    sys.exit(code)


def by_fate():
    if os.environ["FATE"] == "vanish":
        os._exit(7)
    time.sleep(600)


def write_at_exit(path):
    atexit.register(Path(path).write_text, "farewell")


def linger():
    threading.Thread(target=time.sleep, args=(60,)).start()
    return "done"


def send_large(number, size, *, send):
    started = time.monotonic()
    for _ in range(number):
        send(bytes(size))
    return time.monotonic() - started


def train_until_stopped(path, *, send, stop):
    """Ends some steps after it was asked to, and writes why it was."""
    send(os.getpid())
    while not stop.requested:
        time.sleep(0.01)
    time.sleep(0.3)
    Path(path).write_text(stop.reason)
    return stop.reason


def linger_once_stopped(path, *, send, stop):
    train_until_stopped(path, send=send, stop=stop)
    linger()


def never_stop(path, *, send):
    send(os.getpid())
    time.sleep(600)


def leave_a_process(path, *, send):
    send(subprocess.Popen(["sleep", "60"], start_new_session=True).pid)
    time.sleep(0.2)  # the message is on its way
    os._exit(7)


def orphan(path, *, send):
    """Kills the fork server that it came from."""
    send(os.getpid())
    time.sleep(0.2)  # the message is on its way
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(600)


def log_to_wandb(die, *, send):
    import psutil
    import wandb

    run = wandb.init(mode="offline", dir=tempfile.gettempdir(), settings=wandb.Settings(console="off", silent=True))
    run.log({"train/loss": 1.0})
    send([(child.pid, child.create_time()) for child in psutil.Process().children(recursive=True)])
    if die:
        time.sleep(0.2)  # the message is on its way
        os.kill(os.getpid(), signal.SIGKILL)


def sleep_for_ever():
    time.sleep(1000)


def spin_for_ever():
    while True:
        pass


def lock_for_ever():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def deaf_for_ever():
    while True:
        try:
            time.sleep(1000)
        except KeyboardInterrupt:
            continue


def lock_python_for_ever():
    ctypes.PyDLL(None).sleep(1000)


def watched(how, stuck, stacks, *, stop):
    """Stands still under a watchdog that says so in the file `stuck`, and waits for a signal's effect for a moment."""
    watchdog_module._STAGE_S = 0.5
    watchdog = watchdog_module.Watchdog(0.1, 0.1, interrupt=stop.interrupt, on_stuck=stuck.write_text, stacks=stacks)
    with watchdog.over(lambda: "step 3"):
        globals()[how]()


def main(name, path, grace_s, preload):
    def say(message):
        print(json.dumps(message), flush=True)

    start_fork_server([preload])
    say("ready")
    end = run_isolated(target(name), (path,), on_message=say, grace_s=float(grace_s))
    say({name: fact for name, fact in dataclasses.asdict(end).items() if name != "lost_s"})  # a moment of its clock
    say(run_isolated(target("echo"), ("next",)).result)


if __name__ == "__main__":
    main(*sys.argv[1:])
