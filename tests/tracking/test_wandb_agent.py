"""SIGTERM under an agent: the wish of its sweep, or the end of its machine."""

import psutil
import pytest

from ampsweep.tracking.wandb.agent import STOPPED_THERE, is_stopped_by_sweep

AGENT = ("/usr/bin/python", "/usr/bin/wandb", "agent", "team/p/s1")


@pytest.mark.parametrize(
    ("parent", "reason", "sweep", "is_wish"),
    [
        (AGENT, "SIGTERM", "s1", True),
        (("python", "-m", "wandb", "agent", "--count", "3", "team/p/s1"), "SIGTERM", "s1", True),
        (AGENT, "SIGINT", "s1", False),
        (AGENT, STOPPED_THERE, "s1", True),
        ((*AGENT, "--forward-signals"), "SIGTERM", "s1", False),
        ((*AGENT, "-f"), "SIGTERM", "s1", False),
        ((*AGENT, "-f"), STOPPED_THERE, "s1", True),
        (("/sbin/init",), "SIGTERM", "s1", False),
        (None, "SIGTERM", "s1", False),
        (AGENT, "SIGTERM", None, False),
    ],
)
def test_a_sweep_stops_its_run_through_an_agent_that_goes_on(parent, reason, sweep, is_wish, monkeypatch):
    def cmdline(process):
        if parent is None:
            raise psutil.NoSuchProcess(process.pid)
        return list(parent)

    monkeypatch.setattr(psutil.Process, "cmdline", cmdline)
    if sweep is not None:
        monkeypatch.setenv("WANDB_SWEEP_ID", sweep)
    assert is_stopped_by_sweep(reason) == is_wish
