import signal
import threading
import time
from types import SimpleNamespace

import pytest

from ampsweep.launch import signal_handlers
from ampsweep.launch.signal_handlers import StopRequest, forward_signal
from ampsweep.stop_signals import STOP_SIGNALS, WARNING_SIGNALS

needs_warnings = pytest.mark.skipif(not WARNING_SIGNALS, reason="Windows has no such signals")
INT, TERM = signal.SIGINT, signal.SIGTERM


@pytest.fixture
def send(monkeypatch):
    """Raises a signal some seconds after the one before, by a clock of its own."""
    now = SimpleNamespace(s=100.0)
    monkeypatch.setattr(signal_handlers, "time", SimpleNamespace(monotonic=lambda: now.s))
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)

    def send(number, after_s=0.6):
        now.s += after_s
        signal.raise_signal(number)

    return send


def handlers():
    return [signal.getsignal(number) for number in STOP_SIGNALS]


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_signal_only_raises_the_flag(number, send):
    before = handlers()
    with StopRequest() as stop:
        assert not stop.requested
        send(number)
        assert (stop.requested, stop.reason) == (True, number.name)
    assert handlers() == before


def test_a_second_signal_interrupts_but_no_echo(send):
    with StopRequest() as stop:
        send(TERM)
        send(TERM, after_s=0.4)  # as wrappers signal a process and then its group
        with pytest.raises(KeyboardInterrupt):
            send(INT)
        assert stop.reason == "SIGTERM"


def test_a_request_without_a_signal_is_not_the_first(send):
    with StopRequest() as stop:
        stop.request("max_seconds")
        send(INT)
        assert stop.reason == "max_seconds"


@needs_warnings
def test_a_warning_and_the_sigterm_after_it_interrupt_nothing(send):
    with StopRequest() as stop:
        for number in (*WARNING_SIGNALS, TERM):
            send(number)
        assert stop.reason == "SIGUSR1"


def test_sigterm_is_never_the_second_in_a_job_of_slurm(send, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "5")
    with StopRequest() as stop:
        for number in (TERM, TERM, INT):
            send(number)
        assert stop.reason == "SIGTERM"
        with pytest.raises(KeyboardInterrupt):
            send(INT)


@needs_warnings
def test_a_warning_is_forwarded_to_an_earlier_handler():
    heard = []
    before = signal.signal(signal.SIGUSR2, lambda number, frame: heard.append(number))
    try:
        with StopRequest() as stop:
            signal.raise_signal(signal.SIGUSR2)
            assert (stop.reason, heard) == ("SIGUSR2", [])
        forward_signal(KeyboardInterrupt(stop.reason))
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert heard == [signal.SIGUSR2]
    for unhandled in (KeyboardInterrupt("SIGUSR1"), KeyboardInterrupt("SIGTERM"), KeyboardInterrupt()):
        forward_signal(unhandled)


def test_outside_the_main_thread_no_handler_is_installed():
    before, seen = handlers(), []

    def enter():
        with StopRequest() as stop:
            stop.request("its owner")
            seen.extend([*handlers(), stop.requested])

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert seen == [*before, True]


@needs_warnings
def test_another_thread_can_interrupt_a_sleeping_main_thread():
    assert not StopRequest().interrupt(), "without a handler nothing is raised"
    with StopRequest() as stop:
        threading.Timer(0.05, stop.interrupt).start()
        with pytest.raises(KeyboardInterrupt):
            time.sleep(30)
        assert not stop.requested
