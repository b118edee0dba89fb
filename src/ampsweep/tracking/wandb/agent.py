"""Runs that a `wandb agent` has started for a point of its sweep, and may stop."""

import ast
import os
from collections.abc import Iterator, Sequence
from typing import Final

from ampsweep.records import RunRecord

STOPPED_THERE: Final = "a stop on W&B"  # the reason of a stop that the server requests

_FORWARDING: Final = frozenset({"--forward-signals", "-f"})


def is_agents_run() -> bool:
    return "WANDB_SWEEP_ID" in os.environ


def is_stopped_by_sweep(reason: str) -> bool:
    """Return True if a run ends because its sweep stopped it, given the ``reason`` of its `StopRequest`. The server
    either marks the run or has the agent send SIGTERM and go on. An agent whose machine is taken away is gone by the
    end of the run; if it forwards signals, the two cases cannot be distinguished (False)."""
    if not is_agents_run() or reason not in (STOPPED_THERE, "SIGTERM"):
        return False
    if reason == STOPPED_THERE:
        return True
    import psutil  # slow, and only needed here

    try:
        for process in psutil.Process().parents():  # the run may be in a fork of the process that the agent started
            words = process.cmdline()
            if "agent" in words and any("wandb" in word for word in words[: words.index("agent")]):
                return _FORWARDING.isdisjoint(words)
    except psutil.Error:
        pass  # gone
    return False


def settle_stop(record: RunRecord) -> None:
    """Count a run that its sweep has stopped (early termination, see `record.wandb.stopped`) as completed."""
    if record.status == "interrupted" and record.wandb.stopped:
        record.status, record.error, record.cut_short = "completed", None, f"stopped by its sweep: {record.error}"


def agent_overrides(arguments: Sequence[str]) -> list[str]:
    """Translate what an agent writes for `${args_no_hyphens}`, with values as Python prints them, into Hydra's grammar:
    None becomes null, `optimizer={'lr': 0.1}` becomes `optimizer.lr=0.1`."""
    overrides: list[str] = []
    for argument in arguments:
        key, equals, text = argument.partition("=")
        try:
            value = ast.literal_eval(text) if equals else text
        except (ValueError, SyntaxError, MemoryError, RecursionError):  # a word, or something that only Hydra reads
            value = text
        overrides += _flat(key, value) if isinstance(value, dict) or value is None else [argument]
    return overrides


def _flat(key: str, value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _flat(f"{key}.{name}", inner)
    else:
        yield f"{key}={'null' if value is None else value}"
