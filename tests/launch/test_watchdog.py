"""A part of a run that never returns is ended, wherever it stands, and costs nothing while it goes on."""

import sys
import threading
import time

import isolated_targets as targets
import pytest
from isolated_targets import target

from ampsweep.launch.isolated_process import run_isolated
from ampsweep.launch.watchdog import STACKS_BEGIN, TimeLimitError, Watchdog
from ampsweep.text import one_line

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals to a thread are a POSIX matter")


@pytest.mark.parametrize("how", [targets.sleep_for_ever, targets.spin_for_ever, targets.lock_for_ever])
def test_python_that_never_returns_is_interrupted(how):
    watchdog = Watchdog(0.1, 0.1)
    with pytest.raises(TimeLimitError) as raised, watchdog.over(lambda: "step 3"):
        how()
    sentence = one_line(raised.value)
    assert "step 3 did not end within 0.2 s (trainer.max_seconds=0.1, trainer.grace_seconds=0.1) (" in sentence
    assert "isolated_targets.py, line " in sentence
    assert not [thread for thread in threading.enumerate() if thread.name == "watchdog"]


def test_a_part_within_another_has_its_own_time():
    watchdog = Watchdog(0.2, 0.2)
    with watchdog.over(lambda: "training"):
        time.sleep(0.3)
        with watchdog.over(lambda: "evaluation"):
            time.sleep(0.3)
        time.sleep(0.1)

    def train_for_ever():
        with watchdog.over(lambda: "training"):
            with watchdog.over(lambda: "evaluation"):
                pass
            time.sleep(1000)

    with pytest.raises(TimeLimitError, match="training"):
        train_for_ever()


def test_without_a_limit_nothing_is_watched():
    before = threading.active_count()
    with Watchdog(None).over(lambda: "step 3"):
        assert threading.active_count() == before


def test_the_users_own_interrupt_stays_one():
    with pytest.raises(KeyboardInterrupt), Watchdog(60.0).over(lambda: "step 3"):
        raise KeyboardInterrupt


@pytest.mark.parametrize("how", ["deaf_for_ever", "lock_python_for_ever"])
def test_a_process_that_hears_no_signal_is_ended(how, tmp_path):
    stuck, stacks = tmp_path / "stuck", tmp_path / "stacks"
    assert run_isolated(target("watched"), (how, stuck, stacks)).exitcode == 1
    if how == "deaf_for_ever":
        assert "step 3 did not end within " in stuck.read_text()
        assert "isolated_targets.py, line " in stuck.read_text()
        assert not stacks.exists() or stacks.read_text() == ""
    else:  # no Python code runs any more, so the stacks are all that is left
        assert stacks.read_text().startswith(STACKS_BEGIN)
        assert "lock_python_for_ever" in stacks.read_text()
