"""Explanations in words: why figures came out as they did, and what a reader of them must know of the runs."""

from collections.abc import Sequence
from typing import Final

from ampsweep.analysis.arm_notes import ArmNote
from ampsweep.analysis.causes import Cause
from ampsweep.analysis.comparison import ComparisonNote
from ampsweep.analysis.pairing import Unpaired
from ampsweep.analysis.reasons import MULTIPLE, Reason, wide_flops
from ampsweep.analysis.runs import TrainedOn
from ampsweep.analysis.step_limits import SmallStep
from ampsweep.analysis.workload_size import MIN_PEAK_BYTES, Caution, SmallPeak
from ampsweep.report.sentences import float8
from ampsweep.report.sentences.arm_findings import step_limit
from ampsweep.text import listed, milliseconds, num_bytes, number, plural

TOO_SMALL: Final = "the workload is too small to judge speed by"


def caution(of: Caution) -> str:
    """Say what is too small about a workload, or limits its baseline, with the evidence."""
    if isinstance(of, SmallStep):
        return f"{TOO_SMALL} ({_operators(of)})"
    if not isinstance(of, SmallPeak):
        return f"the baseline's own step is limited by {step_limit(of)}"
    return (
        f"a peak of {num_bytes(of.peak_bytes)} is too small for the memory figures to carry over (under "
        f"{num_bytes(MIN_PEAK_BYTES)})"
    )


def reason(of: Reason, baseline: str) -> str:
    """Say why speed or memory came out as it did, in a clause."""
    figures = of.evidence
    match of.kind:
        case "too_small":
            assert of.small_step is not None
            return caution(of.small_step)
        case "launching":
            assert of.small_step is not None
            return f"its speed is the host's more than its arithmetic's: {_operators(of.small_step)}"
        case "little_arithmetic":
            reached = number(figures["perf/mfu_pct"])
            return f"{baseline} reaches {reached}% of the device's peak: little of a step is arithmetic"
        case "odd_sizes":
            told = ", ".join(f"{key} = {size}" for key, size in figures.items())
            return f"no multiple of {MULTIPLE}, so that tensor cores do not multiply at full rate: {told}"
        case "idle_device":
            idle = 100 - figures["device/utilization_pct"]
            return f"no kernel ran on the device in {idle:.0f}% of the time: it waited for the host"
        case "waiting_for_data":
            waits, median = milliseconds(figures["perf/data_wait_ms"]), milliseconds(figures["perf/step_ms"])
            hidden = ", some of it perhaps while the device was busy" if of.on_gpu else ""
            return f"the host waits for data for {waits} a step on average{hidden}; the median step takes {median}"
        case "float32_arithmetic":
            share = 100 * wide_flops(figures) / sum(figures.values())
            return f"{share:.0f}% of the matmul and convolution operations stayed in float32"
        case "skipped_steps":
            skipped, steps = figures["skipped_steps"], figures["steps"]
            return f"the scaler skipped {skipped:.0f} of {steps:.0f} steps, in which nothing was learned"
        case "contaminated":
            return f"{figures['num_runs']} of {plural(of.num_runs, 'run')} contaminated: {causes(of.causes)}"
        case "cast_cache":
            return "half-precision copies of the weights take as much as the activations save, or more"
        case "few_activations":
            share = 100 * figures["activations_bytes"] / figures["peak_bytes"]
            return f"at the peak of {baseline}, activations, all that autocast shrinks, are {share:.0f}% of the bytes"


def _operators(of: SmallStep) -> str:
    if of.launch_ms is not None:
        number_of = "" if of.num_operators is None else f"{of.num_operators} "
        launching = f"launching its {number_of}operators takes the host {milliseconds(of.launch_ms)}"
        return f"{launching} of a step of {milliseconds(of.step_ms)}"
    assert of.us_per_operator is not None, of
    return (
        f"{of.num_operators} operators in {number(of.step_ms)} ms, {number(of.us_per_operator, 2)} us each: under "
        f"{of.min_us_per_operator:.0f} us, launching them counts"
    )


def arm_note(of: ArmNote) -> str:
    """A note on an arm's runs, with their seeds."""
    match of.kind:
        case "repeats":
            return f"{plural(of.num_runs or 0, 'run')} of seed {of.seeds[0]} are repeats and averaged"
        case "several pair keys":
            note = "under several pair keys, each a pair of its own: other code, data, device or environment"
        case "other device":
            told = [_on_devices(of, found) for found in (of.num_runs_on, of.num_baseline_runs_on)]
            pairs = f"{of.num_apart} of {plural(of.num_pairs or 0, 'pair')}"
            note = f"another device than {of.baseline} in {pairs}: on {told[0]}; {of.baseline} on {told[1]}"
        case "not completed":
            note = f"{of.status}" + ("" if of.cause is None else f": {of.cause}")
        case "cut short":
            note = f"cut short, hence no loss to compare: {of.cause}"
        case "disproved":
            note = f"disproved, hence compared with nothing: {of.cause}"
        case "contaminated":
            note = f"contaminated, hence no speed to compare: {of.cause}"
        case "not timed":
            note = f"no speed: {of.cause}"
        case "graph breaks":
            note = f"torch.compile broke the graph in {plural(of.num_breaks or 0, 'place')}, first at {of.cause}"
        case "recompiled":
            note = f"torch.compile compiled again after warm-up ({of.cause}); those steps are in no figure of time"
        case "not compiled":
            note = "torch.compile found nothing to compile: every step ran eagerly"
        case "float8":
            assert of.float8 is not None
            can_gain = "" if of.float8.gain is None else f". {float8.gain(of.float8.gain, of.float8.recipe)}"
            note = f"{float8.layers(of.float8)}{can_gain}"
        case "not paired":
            assert of.unpaired is not None
            note = f"not paired: {unpaired(of.unpaired)}"
        case "unusable figure":
            note = f"{of.metric} is not a usable figure ({of.cause}) and left out"
        case "no channels last":
            note = "trainer.channels_last=true, and no convolution had its input and weight in that format"
        case "nothing recomputed":
            note = "trainer.activation_checkpointing=true, and torch.utils.checkpoint recomputed nothing in backward"
    return f"{note} ({'seed' if len(of.seeds) == 1 else 'seeds'} {listed(map(str, of.seeds))})"


def _on_devices(of: ArmNote, num_runs_on: Sequence[tuple[TrainedOn, int]]) -> str:
    """Devices with the number of runs on each; with their machines if they are of several."""
    hosts = {place.hosts for place, _ in (*of.num_runs_on, *of.num_baseline_runs_on)}
    names = [
        " and ".join(place.devices) + (f" of {' and '.join(place.hosts)}" if len(hosts) > 1 and place.hosts else "")
        for place, _ in num_runs_on
    ]
    return ", ".join(f"{name} ({count})" for name, (_, count) in zip(names, num_runs_on, strict=True))


def unpaired(of: Unpaired) -> str:
    """Say why a run is in no pair."""
    match of.kind:
        case "not measured":
            return f"{of.outcome}" if of.error is None else f"{of.outcome}: {of.error}"
        case "no other arm":
            return "no other arm has a completed run with its pair key"
        case "no baseline run":
            return f"there is no {of.baseline} run"
        case "no baseline run of this seed":
            return f"there is no {of.baseline} run with seed {of.seed}"
        case "baseline run without figures":
            return f"the {of.baseline} run with its pair key is {of.outcome}"
        case "unknown difference":
            return f"its pair key is that of no {of.baseline} run, for a reason the records do not name"
        case "nearest baseline run differs":
            told = ", ".join(f"{one.key} ({one.there} there, {one.here} here)" for one in of.differences)
            more = of.num_differences - len(of.differences)
            return f"the nearest {of.baseline} run differs in {told}" + (f" and {more} more" if more else "")


def comparison_note(of: ComparisonNote) -> str:
    """A note on all runs of a comparison."""
    match of.kind:
        case "given twice":
            return f"{plural(of.num_runs, 'run')} given more than once, counted once"
        case "predicted":
            return f"{plural(of.num_runs, 'predicted run')} left out: only measured runs are compared"
        case "several devices":
            told = ", ".join(f"{name} ({plural(count, 'run')})" for name, count in of.num_runs_of)
            return f"runs of {len(of.num_runs_of)} devices are compared only with those of the same: {told}"
        case "several world sizes":
            told = ", ".join(f"{plural(count, 'rank')} ({', '.join(arms)})" for count, arms in of.arms_of)
            return f"arms ran on different numbers of ranks and are compared only with those on the same: {told}"
        case "mixed devices":
            told = ", ".join(f"{names} ({plural(count, 'run')})" for names, count in of.num_runs_of)
            return f"in some runs the ranks had different devices, and the slowest and smallest decide: {told}"
        case "other margin":
            chosen = f"the margin of {of.margin_pct:g}% was chosen after the runs"
            return f"{chosen}, which recorded one of {of.recorded_margin_pct:g}%"
        case "contamination unknown":
            return f"whether anything else slowed {plural(of.num_runs, 'run')} down is unknown: {of.cause}"


def arm_notes(of: Sequence[ArmNote]) -> str:
    """The notes on an arm in one text."""
    return "; ".join(map(arm_note, of))


def causes(of: Sequence[Cause]) -> str:
    """The causes with their numbers of runs; of a single one just the text."""
    if len(of) == 1:
        return of[0].text
    return "; ".join(f"{one.text} ({one.num_runs})" for one in of)
