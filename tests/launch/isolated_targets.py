"""What the tests of this folder run in a process of its own: functions of a module, as a training is."""

import atexit
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

from ampsweep.launch.isolated import run_isolated, warm_up


def echo(value, *, send, stop):
    return value


def count(number, *, send, stop):
    for n in range(number):
        send(n)


def isolate(value):
    """For a worker of joblib's: a run of its own, from a fork server of its own."""
    warm_up(["json"])
    return run_isolated(echo, (value,))


def surroundings(names, *, send, stop):
    """What a run finds before it does anything: variables, directory, whether it was born with torch imported."""
    return {name: os.environ.get(name) for name in names}, str(Path.cwd()), "torch" in sys.modules


def variables(*, send, stop):
    return dict(os.environ)


def num_threads(*, send, stop):
    born_with_torch = "torch" in sys.modules
    import torch

    return torch.get_num_threads(), born_with_torch


def start_method(*, send, stop):
    return multiprocessing.get_start_method()


def clock(*, send, stop):
    return time.time()


def cuda_sum(*, send, stop):
    import torch

    return torch.ones(3, device="cuda").sum().item()


def fail(text, *, send, stop):
    raise ArithmeticError(text)


def leave(code, *, send, stop):
    sys.exit(code)


def vanish(code, *, send, stop):
    os._exit(code)


def die_of(number, *, send, stop):
    os.kill(os.getpid(), number)
    time.sleep(60)


def return_a_function(*, send, stop):
    return lambda: None


def write_at_exit(path, *, send, stop):
    atexit.register(Path(path).write_text, "farewell")


def linger(*, send, stop):
    threading.Thread(target=time.sleep, args=(60,)).start()
    return "done"


def send_large(number, size, *, send, stop):
    started = time.monotonic()
    for _ in range(number):
        send(bytes(size))
    return time.monotonic() - started


def train_until_stopped(path, *, send, stop):
    """Ends some steps after it was asked to, and writes how often and why it was."""
    send(os.getpid())
    while not stop.requested:
        time.sleep(0.01)
    time.sleep(0.3)
    Path(path).write_text(stop.reason)
    return stop.reason


def never_stop(path, *, send, stop):
    send(os.getpid())
    time.sleep(600)


def orphan(path, *, send, stop):
    """Kills the fork server that it came from."""
    send(os.getpid())
    time.sleep(0.2)  # the message is on its way
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(600)


def log_to_wandb(die, *, send, stop):
    import psutil
    import wandb

    run = wandb.init(mode="offline", dir=tempfile.gettempdir(), settings=wandb.Settings(console="off", silent=True))
    run.log({"train/loss": 1.0})
    send([(child.pid, child.create_time()) for child in psutil.Process().children(recursive=True)])
    if die:
        time.sleep(0.2)  # the message is on its way
        os.kill(os.getpid(), signal.SIGKILL)
