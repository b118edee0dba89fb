import os
import signal
import threading
import time

import pytest

from ampsweep.launch.signals import StopRequest, pass_on
from ampsweep.stop_signals import STOP_SIGNALS, WARNING_SIGNALS


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_signal_only_raises_the_flag(number):
    with StopRequest() as stop:
        assert not stop.requested
        signal.raise_signal(number)
        assert stop.requested
        assert stop.reason == number.name


def test_a_second_signal_interrupts():
    with StopRequest() as stop:
        signal.raise_signal(signal.SIGTERM)
        time.sleep(0.6)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert stop.reason == "SIGTERM"


@pytest.mark.skipif(not WARNING_SIGNALS, reason="Windows has no such signals")
def test_a_warning_and_the_sigterm_after_it_interrupt_nothing():
    with StopRequest() as stop:
        for number in WARNING_SIGNALS:
            signal.raise_signal(number)
            time.sleep(0.6)
        signal.raise_signal(signal.SIGTERM)
        assert stop.reason == "SIGUSR1"


@pytest.mark.skipif(not WARNING_SIGNALS, reason="Windows has no such signals")
def test_a_warning_is_passed_on_to_whom_it_was_meant_for():
    heard = []
    before = signal.signal(signal.SIGUSR2, lambda number, frame: heard.append(number))
    try:
        with StopRequest() as stop:
            signal.raise_signal(signal.SIGUSR2)
            assert (stop.reason, heard) == ("SIGUSR2", [])
        pass_on(KeyboardInterrupt(stop.reason))
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert heard == [signal.SIGUSR2]
    pass_on(KeyboardInterrupt("SIGUSR1"))
    pass_on(KeyboardInterrupt("SIGTERM"))
    pass_on(KeyboardInterrupt())  # nobody waits for these


def test_sigterm_is_never_the_second_in_a_job_of_slurm(monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "5")
    with StopRequest() as stop:
        signal.raise_signal(signal.SIGTERM)
        time.sleep(0.6)
        signal.raise_signal(signal.SIGTERM)
        assert stop.reason == "SIGTERM"
        signal.raise_signal(signal.SIGINT)
        time.sleep(0.6)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_a_signal_delivered_twice_at_once_is_one_request():
    with StopRequest() as stop:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        assert stop.requested


def test_a_request_without_a_signal_does_not_count_as_the_first():
    with StopRequest() as stop:
        stop.request("max_seconds")
        time.sleep(0.6)
        signal.raise_signal(signal.SIGINT)
        assert stop.reason == "max_seconds"


def test_handlers_are_put_back():
    before = [signal.getsignal(number) for number in STOP_SIGNALS]
    with StopRequest():
        assert [signal.getsignal(number) for number in STOP_SIGNALS] != before
    assert [signal.getsignal(number) for number in STOP_SIGNALS] == before


def test_outside_the_main_thread_no_handler_is_installed():
    before = [signal.getsignal(number) for number in STOP_SIGNALS]
    seen = []

    def enter():
        with StopRequest() as stop:
            seen.extend(signal.getsignal(number) for number in STOP_SIGNALS)
            stop.request("its owner")
            seen.append(stop.requested)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert seen == [*before, True]


def test_a_stop_request_reaches_a_sleeping_process():
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
    with StopRequest() as stop:
        time.sleep(0.3)
        assert stop.reason == "SIGINT"
