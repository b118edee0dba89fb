"""Reasons for the speed and memory of the arms, and known pitfalls of their dtypes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from ampsweep.analysis.runs import SKIPPED_STEPS, Run
from ampsweep.analysis.statistics import known_median
from ampsweep.analysis.waterfall import Waterfall
from ampsweep.config.modes import mode_of
from ampsweep.finding import Finding
from ampsweep.numeric_formats import FORMATS
from ampsweep.records import RunRecord

MAX_MFU_PCT: Final = 20.0  # percent of peak FLOPS below which something other than arithmetic limits a step
MIN_FLOAT32_SHARE: Final = 0.05
MIN_SKIPPED_SHARE: Final = 0.01
MIN_ACTIVATIONS_SHARE: Final = 0.5

MULTIPLE: Final = 8
"""16 bytes of a 16-bit type. Other sizes are slower, or before cuBLAS 11 not run on tensor cores. Source: NVIDIA,
Matrix Multiplication Background User's Guide, "Tensor Core Requirements"."""

_NARROW: Final = ("bfloat16", "float16")
_UPDATES: Final = "P. Zamirai et al., Revisiting BFloat16 Training, arXiv:2010.06192"

_SIZES: Final = ("hidden_size", "vocab_size", "in_features", "out_features")


class Reason(Finding):
    arm: str | None  # None: the whole workload


class LittleArithmetic(Reason):
    template = "{baseline} reaches {mfu_pct:number}% of the device's peak: little of a step is arithmetic"
    baseline: str
    mfu_pct: float


class OddSizes(Reason):
    sizes: dict[str, int]

    @property
    def sentence(self) -> str:
        sizes = ", ".join(f"{key} = {size}" for key, size in self.sizes.items())
        return f"no multiple of {MULTIPLE}, so that tensor cores do not multiply at full rate: {sizes}"


class Float32Arithmetic(Reason):
    template = "{share_pct:.0f}% of the matmul and convolution operations stayed in float32"
    share_pct: float


class SkippedSteps(Reason):
    template = "the scaler skipped {skipped_steps} of {steps} steps, in which nothing was learned"
    skipped_steps: int
    steps: int


class CastCache(Reason):
    autocast_weights_bytes: int
    activations_saved_bytes: int
    template = "half-precision copies of the weights take as much as the activations save, or more"


class FewActivations(Reason):
    template = "at the peak of {baseline}, activations, all that autocast shrinks, are {share_pct:.0f}% of the bytes"
    baseline: str
    activations_bytes: int
    peak_bytes: int

    @property
    def share_pct(self) -> float:
        return 100 * self.activations_bytes / self.peak_bytes


class Pitfall(Finding):
    arms: tuple[str, ...]
    dtype: str


class VanishingUpdates(Pitfall):
    template = (
        "updates of less than {lost_below:share} of a weight vanish, "
        f"as {{dtype}} parameters are rounded ({_UPDATES})"
    )
    lost_below: float


class StuckMoment(Pitfall):
    template = (
        "the optimizer's second moment cannot fall: a step takes {decay:share} off it, and {dtype} loses changes of "
        "less than {lost_below:share} ({digits} binary digits, torch.finfo)"
    )
    decay: float
    lost_below: float

    @property
    def digits(self) -> int:
        return FORMATS[self.dtype].digits


def find_reasons(
    runs_of: Mapping[str, Sequence[Run]], waterfalls: Mapping[str, Waterfall | None], *, baseline: str
) -> tuple[Reason, ...]:
    """Find the reasons of the whole workload, then arm by arm, starting with the baseline."""
    measured = {arm: own for arm, runs in runs_of.items() if (own := [run for run in runs if run.measured])}
    found = [*_of_the_workload(measured.get(baseline, []), [run for own in measured.values() for run in own])]
    for arm, own in measured.items():
        found += _of_the_arm(arm, own)
        found += _of_its_memory(arm, baseline, own[0], waterfalls.get(arm))
    return tuple(found)


def find_pitfalls(runs: Mapping[str, Sequence[Run]]) -> tuple[Pitfall, ...]:
    arms: dict[Pitfall, list[str]] = {}
    for arm, own in runs.items():
        first = next((run for run in own if run.dtypes), None)
        for pitfall in () if first is None else _pitfalls(first):
            arms.setdefault(pitfall, []).append(arm)
    return tuple(replace(pitfall, arms=tuple(names)) for pitfall, names in arms.items())


def odd_sizes(record: RunRecord) -> dict[str, int]:
    """Sizes of matrix products that are no multiple of 8, by config key or product of keys."""
    model, identity = record.config.get("model", {}), record.identity
    known = {key: size for key, size in model.items() if type(size) is int and size > 0}
    sizes = {f"model.{key}": known[key] for key in _SIZES if key in known}
    if "hidden_size" in known and "num_heads" in known:
        sizes["model.hidden_size / model.num_heads"] = known["hidden_size"] // known["num_heads"]
    rows = "data.batch_size" if identity.seq_len is None else "data.batch_size * data.seq_len"
    sizes[rows] = (identity.batch_size or 0) * (identity.seq_len or 1)
    return {key: size for key, size in sizes.items() if size % MULTIPLE}


def _of_the_workload(baseline_runs: Sequence[Run], runs: Sequence[Run]) -> Iterator[Reason]:
    mfu_pct = known_median(run.figure("perf/mfu_pct") for run in baseline_runs)
    if mfu_pct is not None and mfu_pct < MAX_MFU_PCT:
        yield LittleArithmetic(arm=None, baseline=baseline_runs[0].arm, mfu_pct=mfu_pct)
    narrow = [run.record for run in runs if run.record.identity.dtype in _NARROW]
    halves = [record for record in narrow if record.identity.device.startswith("cuda")]
    if halves and (sizes := odd_sizes(halves[0])):
        yield OddSizes(arm=None, sizes=sizes)


def _of_the_arm(arm: str, runs: Sequence[Run]) -> Iterator[Reason]:
    flops = next((found for run in runs if (found := run.record.proof.flops)), {})
    total, wide = sum(flops.values()), sum(flops.get(dtype, 0) for dtype in ("float32", "float64"))
    if runs[0].record.identity.dtype in _NARROW and wide >= MIN_FLOAT32_SHARE * total > 0:
        yield Float32Arithmetic(arm=arm, share_pct=100 * wide / total)
    skipped = sum(run.figure(SKIPPED_STEPS) or 0 for run in runs)
    steps = skipped + sum(run.figure("amp/applied_steps") or 0 for run in runs)
    if skipped > 0 and skipped >= MIN_SKIPPED_SHARE * steps:
        yield SkippedSteps(arm=arm, skipped_steps=round(skipped), steps=round(steps))


def _of_its_memory(arm: str, baseline: str, run: Run, waterfall: Waterfall | None) -> Iterator[Reason]:
    """Explain autocast's memory: float32 weights are copied, activations shrink."""
    precision = run.record.config.get("precision", {})
    if waterfall is None or not precision.get("autocast") or precision.get("parameters") != "float32":
        return
    steps = {step.category: step for step in waterfall.steps}
    copies, activations = steps.get("autocast_weights"), steps.get("activations")
    saved = -activations.change_bytes if activations else 0
    if copies is not None and copies.change_bytes > 0 and copies.change_bytes >= saved:
        yield CastCache(arm=arm, autocast_weights_bytes=copies.change_bytes, activations_saved_bytes=saved)
    held = activations.baseline_bytes if activations else 0
    if held < MIN_ACTIVATIONS_SHARE * waterfall.baseline_bytes:
        yield FewActivations(arm=arm, baseline=baseline, activations_bytes=held, peak_bytes=waterfall.baseline_bytes)


def _pitfalls(run: Run) -> Iterator[Pitfall]:
    dtypes = run.dtypes
    parameters, state = dtypes.get("parameters", ""), dtypes.get("optimizer_state", "")
    mode = mode_of(run.arm)
    rounds_to_nearest = mode is not None and mode.implementation is None  # torch's optimizer updates them itself
    if parameters in _NARROW and rounds_to_nearest:
        yield VanishingUpdates(arms=(), dtype=parameters, lost_below=_lost_below(parameters))
    decay = 1 - run.record.config.get("optimizer", {}).get("beta2", 1)
    if state in _NARROW and rounds_to_nearest and 0 < decay < _lost_below(state):
        yield StuckMoment(arms=(), dtype=state, decay=decay, lost_below=_lost_below(state))


def _lost_below(dtype: str) -> float:
    return 2.0 ** -(FORMATS[dtype].digits + 1)
