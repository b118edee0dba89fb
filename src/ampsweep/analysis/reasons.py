"""Why speed and memory came out as they did: reasons computed from records, each with the figures it stands on.

A fact that the records lack gives no reason. A reason says what is so, not how much it costs.
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from ampsweep.analysis.arms import SKIPPED_STEPS, STEP_MS
from ampsweep.analysis.runs import Run
from ampsweep.analysis.shapes import MULTIPLE, odd_sizes
from ampsweep.analysis.waterfall import Waterfall
from ampsweep.analysis.workload_size import speed_caution
from ampsweep.text import number, plural

Kind = Literal[
    "too_small",
    "little_arithmetic",
    "odd_sizes",
    "idle_device",
    "waiting_for_data",
    "float32_arithmetic",
    "skipped_steps",
    "contaminated",
    "cast_cache",
    "few_activations",
]

MAX_MFU_PCT: Final = 20.0
"""A step of which the arithmetic at full rate takes less than this is bound by something else."""
MIN_UTILIZATION_PCT: Final = 80.0
"""Samples in which any kernel ran: below this the device certainly waited. Above it, it may have."""
MIN_WAIT_SHARE: Final = 0.1
MIN_FLOAT32_SHARE: Final = 0.05
MIN_SKIPPED_SHARE: Final = 0.01
MIN_ACTIVATIONS_SHARE: Final = 0.5

_HALF: Final = ("float16", "bfloat16")


@dataclass(frozen=True, kw_only=True)
class Reason:
    """One reason, of an arm or (None) of the whole workload."""

    kind: Kind
    arm: str | None
    text: str
    evidence: Mapping[str, float]


def find_reasons(
    runs: Sequence[Run], waterfalls: Mapping[str, Waterfall | None], *, baseline: str
) -> tuple[Reason, ...]:
    """The reasons of a workload: first those of all of it, then arm by arm.

    Args:
        runs: its runs; only those that may be compared count.
        waterfalls: of each arm but the baseline, in the order of tables.
        baseline: label of the arm the others are compared with.
    """
    measured = [run for run in runs if run.measured]
    found = [*_of_the_workload([run for run in measured if run.arm == baseline], measured)]
    for arm in (baseline, *waterfalls):
        own = [run for run in measured if run.arm == arm]
        if own:
            found += _of_the_arm(arm, own)
            found += _of_its_memory(arm, own[0], baseline, waterfalls.get(arm))
    return tuple(found)


def _of_the_workload(baseline_runs: Sequence[Run], runs: Sequence[Run]) -> Iterator[Reason]:
    caution = speed_caution(baseline_runs)
    if caution is not None:
        yield Reason(kind="too_small", arm=None, text=caution, evidence=_medians(baseline_runs, STEP_MS))
    mfu = _medians(baseline_runs, "perf/mfu_pct")
    for share in mfu.values():
        if share < MAX_MFU_PCT:
            text = (
                f"{baseline_runs[0].arm} reaches {number(share)}% of the device's peak: little of a step is arithmetic"
            )
            yield Reason(kind="little_arithmetic", arm=None, text=text, evidence=mfu)
    halves = [run for run in runs if run.record.identity.dtype in _HALF and _on_gpu(run)]
    sizes = odd_sizes(halves[0].record) if halves else {}
    if sizes:
        told = ", ".join(f"{key} = {size}" for key, size in sizes.items())
        text = f"no multiple of {MULTIPLE}, so that tensor cores do not multiply at full rate: {told}"
        yield Reason(kind="odd_sizes", arm=None, text=text, evidence=sizes)


def _of_the_arm(arm: str, runs: Sequence[Run]) -> Iterator[Reason]:
    utilization = _medians(runs, "device/utilization_pct")
    for share in utilization.values():
        if _on_gpu(runs[0]) and share < MIN_UTILIZATION_PCT:
            text = f"no kernel ran on the device in {100 - share:.0f}% of the time: it waited for the host"
            yield Reason(kind="idle_device", arm=arm, text=text, evidence=utilization)
    undisturbed = [run for run in runs if run.contamination is None]
    wait = _medians(undisturbed, "perf/data_wait_ms", STEP_MS)
    if len(wait) == 2 and wait["perf/data_wait_ms"] >= MIN_WAIT_SHARE * wait[STEP_MS]:
        share = 100 * wait["perf/data_wait_ms"] / wait[STEP_MS]
        hidden = ", some of it perhaps while the device was busy" if _on_gpu(runs[0]) else ""
        text = f"the host waits for data in {share:.0f}% of a step{hidden}"
        yield Reason(kind="waiting_for_data", arm=arm, text=text, evidence=wait)
    yield from _float32_arithmetic(arm, runs)
    yield from _skipped_steps(arm, runs)
    contaminated = [run for run in runs if run.contamination is not None]
    if contaminated:
        text = f"{len(contaminated)} of {plural(len(runs), 'run')} contaminated: {contaminated[0].contamination}"
        yield Reason(kind="contaminated", arm=arm, text=text, evidence={"num_runs": len(contaminated)})


def _float32_arithmetic(arm: str, runs: Sequence[Run]) -> Iterator[Reason]:
    flops = next((found for run in runs if (found := run.record.proof.flops)), {})
    total = sum(flops.values())
    wide = sum(count for dtype, count in flops.items() if dtype in ("float32", "float64"))
    if runs[0].record.identity.dtype in _HALF and wide >= MIN_FLOAT32_SHARE * total > 0:
        text = f"{100 * wide / total:.0f}% of the matmul and convolution operations stayed in float32"
        yield Reason(kind="float32_arithmetic", arm=arm, text=text, evidence=dict(flops))


def _skipped_steps(arm: str, runs: Sequence[Run]) -> Iterator[Reason]:
    skipped = sum(run.figure(SKIPPED_STEPS) or 0 for run in runs)
    steps = skipped + sum(run.figure("amp/applied_steps") or 0 for run in runs)
    if skipped > 0 and skipped >= MIN_SKIPPED_SHARE * steps:
        text = f"the scaler skipped {skipped:.0f} of {steps:.0f} steps, in which nothing was learned"
        yield Reason(kind="skipped_steps", arm=arm, text=text, evidence={"skipped_steps": skipped, "steps": steps})


def _of_its_memory(arm: str, run: Run, baseline: str, waterfall: Waterfall | None) -> Iterator[Reason]:
    """What autocast does to memory: float32 weights stay and are copied, activations shrink."""
    precision = run.record.config.get("precision", {})
    if waterfall is None or not precision.get("autocast") or precision.get("parameters") != "float32":
        return
    steps = {step.category: step for step in waterfall.steps}
    copies, activations = steps.get("autocast_weights"), steps.get("activations")
    saved = -activations.change_bytes if activations else 0
    if copies is not None and copies.change_bytes > 0 and copies.change_bytes >= saved:
        text = "half-precision copies of the weights take as much as the activations save, or more"
        evidence = {"autocast_weights_bytes": copies.change_bytes, "activations_saved_bytes": saved}
        yield Reason(kind="cast_cache", arm=arm, text=text, evidence=evidence)
    held = activations.baseline_bytes if activations else 0
    if held < MIN_ACTIVATIONS_SHARE * waterfall.baseline_bytes:
        share = 100 * held / waterfall.baseline_bytes
        text = f"at the peak of {baseline}, activations, all that autocast shrinks, are {share:.0f}% of the bytes"
        evidence = {"activations_bytes": held, "peak_bytes": waterfall.baseline_bytes}
        yield Reason(kind="few_activations", arm=arm, text=text, evidence=evidence)


def _medians(runs: Sequence[Run], *keys: str) -> dict[str, float]:
    """Median over runs of each metric that is known."""
    values = {key: [value for run in runs if (value := run.figure(key)) is not None] for key in keys}
    return {key: statistics.median(known) for key, known in values.items() if known}


def _on_gpu(run: Run) -> bool:
    return run.record.identity.device.startswith("cuda")
