"""What an agent's SIGTERM means: the wish of its sweep, or the end of its machine."""

import psutil
import pytest

from ampsweep.tracking.wandb.agent import STOPPED_THERE, is_stopped_by_sweep

AGENT = ("/usr/bin/python", "/usr/bin/wandb", "agent", "team/p/s1")


@pytest.mark.parametrize(
    ("parent", "reason", "is_wish"),
    [
        (AGENT, "SIGTERM", True),
        (("python", "-m", "wandb", "agent", "--count", "3", "team/p/s1"), "SIGTERM", True),
        (AGENT, "SIGINT", False),
        (AGENT, STOPPED_THERE, True),
        ((*AGENT, "--forward-signals"), "SIGTERM", False),
        ((*AGENT, "-f"), "SIGTERM", False),
        ((*AGENT, "-f"), STOPPED_THERE, True),
        (("/sbin/init",), "SIGTERM", False),
        (None, "SIGTERM", False),
    ],
)
def test_an_agent_that_goes_on_stops_its_run_on_purpose(parent, reason, is_wish, monkeypatch: pytest.MonkeyPatch):
    def cmdline(process: psutil.Process) -> list[str]:
        if parent is None:
            raise psutil.NoSuchProcess(process.pid)
        return list(parent)

    monkeypatch.setattr(psutil.Process, "cmdline", cmdline)
    monkeypatch.setenv("WANDB_SWEEP_ID", "s1")
    assert is_stopped_by_sweep(reason) == is_wish


def test_no_other_run_is_stopped_by_a_sweep(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("WANDB_SWEEP_ID", raising=False)
    monkeypatch.setattr(psutil.Process, "cmdline", lambda process: list(AGENT))
    assert not is_stopped_by_sweep("SIGTERM")
