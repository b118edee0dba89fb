"""Reasons for the speed and memory of the arms, computed from records, each with its figures.

A fact that the records lack gives no reason. A reason states a fact, not its cost.
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from ampsweep.analysis.arms import SKIPPED_STEPS
from ampsweep.analysis.causes import Cause, causes
from ampsweep.analysis.runs import STEP_MS, Run
from ampsweep.analysis.step_limits import (
    DATA_WAIT_MS,
    LAUNCH_MS,
    MIN_UTILIZATION_PCT,
    MIN_WAIT_SHARE,
    UTILIZATION_PCT,
    SmallStep,
    small_step,
)
from ampsweep.analysis.waterfall import Waterfall
from ampsweep.record import RunRecord

ReasonKind = Literal[
    "too_small",
    "launching",
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
"""Utilization of the peak, in percent, below which a step is bound by something other than arithmetic."""
MIN_FLOAT32_SHARE: Final = 0.05
MIN_SKIPPED_SHARE: Final = 0.01
MIN_ACTIVATIONS_SHARE: Final = 0.5

MULTIPLE: Final = 8
"""16 bytes of a 16-bit type: sizes that are no multiple of it are slower, or before cuBLAS 11 not done by tensor cores.
Source: NVIDIA, Matrix Multiplication Background User's Guide, "Tensor Core Requirements"."""

_SIZES: Final = ("hidden_size", "vocab_size", "in_features", "out_features")
_HALF: Final = ("float16", "bfloat16")


@dataclass(frozen=True, kw_only=True)
class Reason:
    """One reason, of an arm or (None) of the whole workload."""

    kind: ReasonKind
    arm: str | None
    evidence: Mapping[str, float]
    """The figures behind the reason, by metric, config key, dtype or name."""
    small_step: SmallStep | None = None
    """The sign of a reason `too_small` or `launching`."""
    on_gpu: bool = False
    num_runs: int = 0
    """The arm's runs, of which some are contaminated."""
    causes: tuple[Cause, ...] = ()
    """The causes that contaminated runs recorded."""


def find_reasons(
    runs: Sequence[Run], waterfalls: Mapping[str, Waterfall | None], *, baseline: str
) -> tuple[Reason, ...]:
    """Find the reasons of a workload: first those of the whole workload, then arm by arm.

    Args:
        runs: its runs; only those that may be compared count.
        waterfalls: of each arm but the baseline, in the order of tables.
        baseline: label of the arm the others are compared with.
    """
    measured = [run for run in runs if run.measured]
    baseline_runs = [run for run in measured if run.arm == baseline]
    is_small = small_step(baseline_runs) is not None
    found = [*_of_the_workload(baseline_runs, measured)]
    for arm in (baseline, *waterfalls):
        own = [run for run in measured if run.arm == arm]
        if own:
            small = None if is_small else small_step(own)
            if small is not None:
                found.append(Reason(kind="launching", arm=arm, evidence=_of_small(small), small_step=small))
            found += _of_the_arm(arm, own)
            found += _of_its_memory(arm, own[0], waterfalls.get(arm))
    return tuple(found)


def odd_sizes(record: RunRecord) -> dict[str, int]:
    """Config keys (or products of them) with sizes of matrix products that are no multiple of 8.

    Tensor cores cannot take these at full rate. Empty where the config names none.
    """
    model, identity = _mapping(record.config.get("model")), record.identity
    known = {key: size for key, size in model.items() if type(size) is int and size > 0}
    sizes = {f"model.{key}": known[key] for key in _SIZES if key in known}
    if "hidden_size" in known and "num_heads" in known:
        sizes["model.hidden_size / model.num_heads"] = known["hidden_size"] // known["num_heads"]
    rows = "data.batch_size" if identity.seq_len is None else "data.batch_size * data.seq_len"
    sizes[rows] = identity.batch_size * (identity.seq_len or 1)
    return {key: size for key, size in sizes.items() if size % MULTIPLE}


def _of_the_workload(baseline_runs: Sequence[Run], runs: Sequence[Run]) -> Iterator[Reason]:
    small = small_step(baseline_runs)
    if small is not None:
        yield Reason(kind="too_small", arm=None, evidence=_of_small(small), small_step=small)
    mfu = _medians(baseline_runs, "perf/mfu_pct")
    if any(share < MAX_MFU_PCT for share in mfu.values()):
        yield Reason(kind="little_arithmetic", arm=None, evidence=mfu)
    halves = [run for run in runs if run.record.identity.dtype in _HALF and _on_gpu(run)]
    sizes = odd_sizes(halves[0].record) if halves else {}
    if sizes:
        yield Reason(kind="odd_sizes", arm=None, evidence=sizes)


def _of_the_arm(arm: str, runs: Sequence[Run]) -> Iterator[Reason]:
    on_gpu = _on_gpu(runs[0])
    utilization = _medians(runs, UTILIZATION_PCT)
    if on_gpu and any(share < MIN_UTILIZATION_PCT for share in utilization.values()):
        yield Reason(kind="idle_device", arm=arm, evidence=utilization)
    wait = _medians([run for run in runs if run.contamination is None], DATA_WAIT_MS, STEP_MS)
    if len(wait) == 2 and wait[DATA_WAIT_MS] >= MIN_WAIT_SHARE * wait[STEP_MS]:
        yield Reason(kind="waiting_for_data", arm=arm, evidence=wait, on_gpu=on_gpu)
    yield from _float32_arithmetic(arm, runs)
    yield from _skipped_steps(arm, runs)
    contaminated = [(run, cause) for run in runs if (cause := run.contamination) is not None]
    if contaminated:
        yield Reason(
            kind="contaminated",
            arm=arm,
            evidence={"num_runs": len(contaminated)},
            num_runs=len(runs),
            causes=causes((run.seed, cause) for run, cause in contaminated),
        )


def _of_small(small: SmallStep) -> dict[str, float]:
    known = {STEP_MS: small.step_ms, LAUNCH_MS: small.launch_ms, "num_operators": small.num_operators}
    return {key: value for key, value in known.items() if value is not None}


def _float32_arithmetic(arm: str, runs: Sequence[Run]) -> Iterator[Reason]:
    flops = next((found for run in runs if (found := run.record.proof.flops)), {})
    if runs[0].record.identity.dtype in _HALF and wide_flops(flops) >= MIN_FLOAT32_SHARE * sum(flops.values()) > 0:
        yield Reason(kind="float32_arithmetic", arm=arm, evidence=dict(flops))


def wide_flops(flops: Mapping[str, float]) -> float:
    """The part of `flops`, by dtype, that was computed in float32 or wider."""
    return sum(count for dtype, count in flops.items() if dtype in ("float32", "float64"))


def _skipped_steps(arm: str, runs: Sequence[Run]) -> Iterator[Reason]:
    skipped = sum(run.figure(SKIPPED_STEPS) or 0 for run in runs)
    steps = skipped + sum(run.figure("amp/applied_steps") or 0 for run in runs)
    if skipped > 0 and skipped >= MIN_SKIPPED_SHARE * steps:
        yield Reason(kind="skipped_steps", arm=arm, evidence={"skipped_steps": skipped, "steps": steps})


def _of_its_memory(arm: str, run: Run, waterfall: Waterfall | None) -> Iterator[Reason]:
    """Reasons from autocast's effects on memory: float32 weights stay and are copied, activations shrink."""
    precision = run.record.config.get("precision", {})
    if waterfall is None or not precision.get("autocast") or precision.get("parameters") != "float32":
        return
    steps = {step.category: step for step in waterfall.steps}
    copies, activations = steps.get("autocast_weights"), steps.get("activations")
    saved = -activations.change_bytes if activations else 0
    if copies is not None and copies.change_bytes > 0 and copies.change_bytes >= saved:
        evidence = {"autocast_weights_bytes": copies.change_bytes, "activations_saved_bytes": saved}
        yield Reason(kind="cast_cache", arm=arm, evidence=evidence)
    held = activations.baseline_bytes if activations else 0
    if held < MIN_ACTIVATIONS_SHARE * waterfall.baseline_bytes:
        evidence = {"activations_bytes": held, "peak_bytes": waterfall.baseline_bytes}
        yield Reason(kind="few_activations", arm=arm, evidence=evidence)


def _medians(runs: Sequence[Run], *keys: str) -> dict[str, float]:
    """Median over runs of each metric that is known."""
    values = {key: [value for run in runs if (value := run.figure(key)) is not None] for key in keys}
    return {key: statistics.median(known) for key, known in values.items() if known}


def _on_gpu(run: Run) -> bool:
    return run.record.identity.device.startswith("cuda")


def _mapping(node: Any) -> Mapping[str, Any]:
    return node if isinstance(node, Mapping) else {}
