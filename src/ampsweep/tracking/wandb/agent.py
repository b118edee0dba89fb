"""Runs of a `wandb agent`, which starts this process to train a point of its sweep, and may stop it."""

import ast
import os
from collections.abc import Iterator, Sequence
from typing import Final

from ampsweep.record import RunRecord

STOPPED_THERE: Final = "a stop on W&B"
"""The reason of a stop that the server asks for."""

_FORWARDING: Final = frozenset({"--forward-signals", "-f"})


def is_agents_run() -> bool:
    """Tell whether a `wandb agent` has started this process for a point of its sweep."""
    return "WANDB_SWEEP_ID" in os.environ


def is_stopped_by_sweep(reason: str) -> bool:
    """Tell whether a run that is ending for that ``reason``, a `StopRequest`'s, does so because its sweep wants it.

    The server marks such a run, or only has the agent send it a SIGTERM, and goes on with that. An agent that is taken
    away with its machine is gone by the end of the run, unless it forwards signals: then nothing tells.
    """
    if not is_agents_run() or reason not in (STOPPED_THERE, "SIGTERM"):
        return False
    if reason == STOPPED_THERE:
        return True
    import psutil  # only here: no other run needs it for this

    try:
        for process in psutil.Process().parents():  # the run may be in a fork of the process that the agent started
            words = process.cmdline()
            if "agent" in words and any("wandb" in word for word in words[: words.index("agent")]):
                return _FORWARDING.isdisjoint(words)
    except psutil.Error:
        pass  # gone
    return False


def settle_stop(record: RunRecord) -> None:
    """Count a run that its sweep has stopped (early termination) as completed: it ended as intended.

    An agent stops a run by SIGTERM, as a cluster takes a machine away: `record.wandb` says whether it was the sweep.
    """
    if record.status == "interrupted" and record.wandb.stopped:
        record.status, record.error, record.cut_short = "completed", None, f"stopped by its sweep: {record.error}"


def agent_overrides(arguments: Sequence[str]) -> list[str]:
    """The command line that an agent writes with `${args_no_hyphens}`, in Hydra's grammar.

    An agent writes values as Python prints them: None, and nested parameters as one dict. Here they become null and an
    override for each value in the dict, `optimizer={'lr': 0.1}` thus `optimizer.lr=0.1`.
    """
    return [override for argument in arguments for override in _overrides(argument)]


def _overrides(argument: str) -> Iterator[str]:
    key, equals, text = argument.partition("=")
    try:
        value = ast.literal_eval(text) if equals else text
    except (ValueError, SyntaxError, MemoryError, RecursionError):  # a word, or something that only Hydra reads
        value = text
    yield from _flat(key, value) if isinstance(value, dict) or value is None else (argument,)


def _flat(key: str, value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _flat(f"{key}.{name}", inner)
    else:
        yield f"{key}={'null' if value is None else value}"
