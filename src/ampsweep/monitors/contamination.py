"""Whether anything but the training itself could have changed its speed: the verdict, and what it is judged by."""

from dataclasses import dataclass
from typing import Final

import torch

from ampsweep.monitors.host_load import HostUse
from ampsweep.record.parts import Contamination

MAX_FOREIGN_CORES: Final = 0.25
"""A system's services, a sweep's parent and W&B's helpers take some hundredths of a core, a process that computes a
whole one."""
MAX_FOREIGN_SHARE: Final = 0.01
"""Of all cores, for large machines: their services grow with them, and what they take weighs less."""
MIN_OWN_CORES: Final = 0.5
"""However many threads a training on the CPU has, one of them always computes: 1 is about the least. At half of that
it stood still half of the time, and its speed is not that of its arithmetic."""
MIN_WINDOW_S: Final = 0.5
"""Processors count their time in ticks of 10 ms: within less than this, a few of them look like a load."""
MAX_THROTTLED_PCT: Final = 1.0
"""The driver may report a slowdown for a moment while clocks change (NVML, nvmlClocksEventReasonHwSlowdown)."""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What was seen of a run's surroundings."""

    busy_before: str | None = None
    """A sentence on who used the device before the run did."""
    host: HostUse | None = None
    """Who used the processors during the steps after warm-up; None where there were none."""
    others: frozenset[int] | None = frozenset()
    """Other processes seen to compute on the GPU meanwhile; None where nobody tells."""
    throttled_pct: float | None = None
    """Share of samples in which heat or hardware protection slowed the GPU down; None where nobody tells."""


def judge(device: torch.device, evidence: Evidence) -> Contamination:
    """The verdict on a run on `device`.

    On a GPU the load of the processors is told but not judged; power cap and clocks are settings and not judged either.
    """
    reasons, unknown = _judge(device, evidence)
    # A CPU that was seen to be free afterwards was free. A GPU shows only some of its users.
    if evidence.busy_before is not None and (unknown or device.type != "cpu"):
        reasons = [evidence.busy_before, *reasons]
    if not reasons and unknown:
        return Contamination(verdict="unknown", reasons=[unknown], figures=_figures(evidence))
    return Contamination(
        verdict="contaminated" if reasons else "clean",
        reasons=reasons,
        busy_before=evidence.busy_before,
        figures=_figures(evidence),
    )


def foreign_load(host: HostUse) -> str | None:
    """What other processes did, if it is more than a system at rest does."""
    limit = max(MAX_FOREIGN_CORES, MAX_FOREIGN_SHARE * host.num_cores)
    if host.foreign_cores is None or host.foreign_cores <= limit:
        return None
    return f"other processes kept {host.foreign_cores:.1f} of {host.num_cores} cores busy"


def computing(processes: frozenset[int]) -> str:
    """The processes as the beginning of a sentence."""
    ids = ", ".join(map(str, sorted(processes)))
    return f"process {ids} computed" if len(processes) == 1 else f"processes {ids} computed"


def _judge(device: torch.device, evidence: Evidence) -> tuple[list[str], str]:
    """Reasons to call it contaminated, and the reason why the rest is not known (empty if it is)."""
    if evidence.host is None:
        return [], "no step came after warm-up"
    return _judge_cpu(evidence.host) if device.type == "cpu" else _judge_gpu(device, evidence)


def _judge_cpu(host: HostUse) -> tuple[list[str], str]:
    if host.window_s < MIN_WINDOW_S:
        return [], f"the steps after warm-up took less than {MIN_WINDOW_S:g} s, too short to tell"
    reasons = []
    if (load := foreign_load(host)) is not None:
        reasons.append(f"{load} during the run")
    if host.own_cores < MIN_OWN_CORES:
        reasons.append(
            f"the run kept only {host.own_cores:.2f} cores busy: it waited for a processor, its data or the disk"
        )
    return reasons, "" if host.foreign_cores is not None else "the system does not tell what else its processors did"


def _judge_gpu(device: torch.device, evidence: Evidence) -> tuple[list[str], str]:
    reasons = []
    if evidence.others:
        reasons.append(f"{computing(evidence.others)} on {device} during the run")
    if evidence.throttled_pct is not None and evidence.throttled_pct > MAX_THROTTLED_PCT:
        share = f"{evidence.throttled_pct:.0f}% of the samples"
        reasons.append(f"heat or hardware protection slowed {device} down in {share}")
    if evidence.others is not None:
        return reasons, ""
    return reasons, f"nothing here tells which processes use {device.type} (in a container, say)"


def _figures(evidence: Evidence) -> dict[str, float]:
    figures = {} if evidence.throttled_pct is None else {"throttled_pct": evidence.throttled_pct}
    if (host := evidence.host) is not None:
        figures |= {"window_s": host.window_s, "own_cores": host.own_cores, "num_cores": host.num_cores}
        figures |= {"num_threads": torch.get_num_threads()}
        figures |= {} if host.foreign_cores is None else {"foreign_cores": host.foreign_cores}
    return figures
