"""The peak memory and the speed of the arms on a CUDA GPU, as predicted by a sweep's runs without one."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass

from ampsweep.analysis.runs import Run
from ampsweep.analysis.statistics import known_median, saved_pct
from ampsweep.finding import Finding
from ampsweep.records.sections import StepPrediction
from ampsweep.speed.predicted_range import PredictedRange, speedup
from ampsweep.text import milliseconds, not_vouched_for, num_bytes, number, percent


@dataclass(frozen=True, kw_only=True)
class ArmOnGpu:
    """Figures are medians over the arm's runs; None if nothing could be predicted, for the reason `refused`."""

    arm: str
    peak_bytes: float | None  # what torch.cuda.max_memory_allocated would return
    reserved_bytes: float | None
    saved_pct: float | None  # of the baseline's peak, negative if the arm needs more; None for the baseline
    refused: str | None
    step_ms: PredictedRange | None = None
    speedup: PredictedRange | None = None  # over the baseline; None for the baseline


class GpuPrediction(Finding):
    target: str  # a GPU's name, or its capability, such as `cuda 8.0`
    world_size: int
    arms: tuple[ArmOnGpu, ...]
    unvouched: tuple[str, ...]

    @property
    def sentence(self) -> str:
        known = [
            f"{arm.arm} {num_bytes(arm.peak_bytes)}{_share(arm.saved_pct)}"
            for arm in self.arms
            if arm.peak_bytes is not None
        ]
        refusals = defaultdict[str, list[str]](list)
        for arm in self.arms:
            if arm.refused is not None:
                refusals[arm.refused].append(arm.arm)
        whose = "on the fullest rank, " if self.world_size > 1 else ""
        figures = f"peak memory of {', '.join(known)}, {whose}with cuBLAS workspaces and without the driver's context"
        said = [figures + not_vouched_for(self.unvouched)] if known else []
        speeds = [text for arm in self.arms if (text := _speed(arm))]
        said += [f"speed: {', '.join(speeds)}"] if speeds else []
        said += [f"nothing for {', '.join(arms)}: {reason}" for reason, arms in refusals.items()]
        return f"on {self.target.replace('cuda', 'CUDA')}: {'; '.join(said)}"


def _speed(arm: ArmOnGpu) -> str:
    if arm.step_ms is None:
        return ""
    if arm.speedup is None:
        return f"{arm.arm} {milliseconds(arm.step_ms.expected)} a step"
    expected, low, high = (number(value, 2) for value in astuple(arm.speedup))
    return f"{arm.arm} {expected}x as fast ({low}-{high}x)"


def _share(saved: float | None) -> str:
    if saved is None:
        return ""
    return f" ({percent(abs(saved))} {'less' if saved > 0 else 'more'})" if saved else " (the same)"


def predicted_on_gpu(runs_of: Mapping[str, Sequence[Run]], baseline: str) -> GpuPrediction | None:
    """The predictions of the runs of each arm, or None. Of predictions for several GPUs those for the first count."""
    found = {
        arm: [on for run in runs if run.record.prediction and (on := run.record.prediction.on_cuda)]
        for arm, runs in runs_of.items()
    }
    target = next((on.target for predictions in found.values() for on in predictions), None)
    if target is None:
        return None
    found = {arm: own for arm, all in found.items() if (own := [on for on in all if on.target == target])}
    peaks = {arm: known_median(on.allocator_peak_bytes for on in predictions) for arm, predictions in found.items()}
    times = {arm: time for arm, predictions in found.items() if (time := _step_ms(predictions)) is not None}
    correlation = known_median(on.error_correlation for predictions in found.values() for on in predictions)
    of_baseline = peaks.get(baseline)
    arms = [
        ArmOnGpu(
            arm=arm,
            peak_bytes=peak,
            reserved_bytes=known_median(on.reserved_bytes for on in found[arm]),
            saved_pct=None if arm == baseline or not (of_baseline and peak) else saved_pct(of_baseline, peak),
            refused=None if peak else next((on.refused for on in found[arm]), None),
            step_ms=times.get(arm),
            speedup=speedup(times[baseline], times[arm], correlation or 0.0)
            if arm != baseline and {arm, baseline} <= times.keys()
            else None,
        )
        for arm, peak in peaks.items()
    ]
    unvouched = {operator.name for of_arm in found.values() for on in of_arm for operator in on.unvouched or ()}
    return GpuPrediction(
        target=target,
        world_size=max(run.record.identity.world_size or 1 for runs in runs_of.values() for run in runs),
        arms=tuple(arms),
        unvouched=tuple(sorted(unvouched)),
    )


def _step_ms(predictions: Sequence[StepPrediction]) -> PredictedRange | None:
    expected, high = (known_median(getattr(on, key) for on in predictions) for key in ("step_ms", "step_ms_high"))
    return None if expected is None or high is None else PredictedRange(expected, expected**2 / high, high)
