"""The panels of a comparison, each with the question it answers. All renderers take them from here.

A renderer knows kinds, not panels: a further panel is a further entry of `PANELS`.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal

from ampsweep.memory_categories import MEMORY_CATEGORIES, memory_key
from ampsweep.metrics import AUTOCAST_PENALTY, METRICS

Kind = Literal["front", "curves", "by_arm", "stack", "changes", "chain", "pairs", "against", "effects_against"]
"""The way a panel shows its metrics:

- `front`: cost, peak memory and final loss of each arm, and which of them no other beats;
- `curves`: one metric of the history over the steps, an arm a colour, with the band of its seeds;
- `by_arm`: one metric of the summary, a bar an arm (median over runs) and a dot a run;
- `stack`: metrics of the summary that add up, stacked for each arm, predicted beside measured;
- `changes`: the same metrics, what an arm saves or adds of each against the baseline;
- `chain`: metrics of the summary that contain one another, side by side for each arm;
- `pairs`: one metric of the summary, each pair of runs as a dot, with the mean and its interval;
- `against`: one metric of the summary over a size of the model or its batches, where that was varied;
- `effects_against`: the effect in pairs of one metric of the summary over such a size, with its interval.
"""

Effect = Literal["ratio", "saved", "saved_pct", "gap"]
"""Baseline over arm, baseline minus arm (the second time in percent of the baseline), or arm minus baseline."""

Section = Literal["overall", "memory", "speed", "learning", "scaler", "device"]

SECTIONS: Final[dict[Section, str]] = {
    "overall": "Overall",
    "memory": "Memory",
    "speed": "Speed",
    "learning": "Learning",
    "scaler": "Gradient scaler",
    "device": "Device",
}
"""Sections in the order they are shown, with their headings."""


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One picture, whose metrics all have the same unit but for the kind `front`."""

    key: str
    """Names it in files and links: lower case, unique."""
    title: str
    question: str
    section: Section
    kind: Kind
    metrics: tuple[str, ...]
    whole: str = ""
    """For the kind `stack`: the metric that its metrics are parts of. What they lack of it is `unattributed`."""
    effect: Effect = "gap"
    """For the kinds `pairs` and `effects_against`."""
    from_zero: bool = True
    """False where a difference between arms is small beside the values: their axis fits the values."""
    log: bool = False
    """The axis of its metric is logarithmic."""
    of_ranks: bool = False
    """It is only asked for where a run had several ranks."""
    beside: tuple[str, str] | None = None
    """Title and question where it is over words, such as strategies, beside each other."""
    over: Literal["sizes", "words"] = "sizes"
    """For the kinds `against` and `effects_against`; over words too, if it has other titles for them."""
    note: str = ""
    """A hint for reading the panel, if it needs one."""

    @property
    def unit(self) -> str:
        return METRICS[self.metrics[0]].unit if self.metrics[0] in METRICS else ""


def _of_kind(kind: Kind, key: str, title: str, question: str, section: Section, metric: str, **more: Any) -> Panel:
    return Panel(kind=kind, key=key, title=title, question=question, section=section, metrics=(metric,), **more)


_by_arm, _curves = partial(_of_kind, "by_arm"), partial(_of_kind, "curves")

_BY_CATEGORY: Final = tuple(map(memory_key, MEMORY_CATEGORIES))

PANELS: Final[tuple[Panel, ...]] = (
    Panel(
        key="front",
        title="Speed, memory and loss",
        question="Which arms does no other beat?",
        section="overall",
        kind="front",
        metrics=("perf/step_ms", "memory/peak_allocated_gib", "val/loss"),
        note="To the left is faster, below is less memory. Filled: on the front. Hollow: beaten by an arm that is "
        "better in one of the three and worse in none. Circle: the final loss is not worse by the margin; triangle up: "
        "worse; triangle down: better; diamond: not known; square: not measured. The line connects the arms of the "
        "front whose loss is not worse. Whiskers: 95% interval of the ratio to the baseline.",
    ),
    Panel(
        key="memory-categories",
        title="Where the memory goes",
        question="Where do the bytes go?",
        section="memory",
        kind="stack",
        metrics=_BY_CATEGORY,
        whole="memory/peak_allocated_gib",
        note="At the peak of one traced training step. Compiled code makes no difference between activations and "
        "half-precision copies of weights: of compiled runs these are activations, too.",
    ),
    Panel(
        key="memory-saved",
        title="Peak memory saved",
        question="How much memory does it save?",
        section="memory",
        kind="pairs",
        metrics=("memory/peak_allocated_gib",),
        effect="saved",
        note="Each dot is a pair of runs of one seed: the baseline's peak minus the arm's. Right of zero it saves. "
        "Whiskers: 95% interval of the mean.",
    ),
    Panel(
        key="memory-changes",
        title="What is saved and what is added",
        question="Which bytes shrink, and which are added?",
        section="memory",
        kind="changes",
        metrics=_BY_CATEGORY,
        note="Left of zero the arm needs less than the baseline. The categories add up to the change of the peak.",
    ),
    Panel(
        key="memory-chain",
        title="From tensors to the process",
        question="How much of what the process takes are tensors?",
        section="memory",
        kind="chain",
        metrics=("memory/peak_allocated_gib", "memory/peak_reserved_gib", "memory/process_gib"),
        note="Peaks: tensors allocated, memory the allocator reserved for them, and the whole process.",
    ),
    Panel(
        key="memory-against-size",
        title="Peak memory against size",
        question="Which size still fits?",
        section="memory",
        kind="against",
        metrics=("memory/peak_allocated_gib",),
        beside=("Peak memory side by side", "Which one needs least on its fullest rank?"),
    ),
    Panel(
        key="memory-saved-against-size",
        title="Peak memory saved against size",
        question="From which size on does it save memory?",
        section="memory",
        kind="effects_against",
        metrics=("memory/peak_allocated_gib",),
        effect="saved_pct",
        beside=("Peak memory saved side by side", "Where does it save most?"),
    ),
    _by_arm(
        "memory-spread",
        "Spread of memory over ranks",
        "Is one rank fuller than the others?",
        "memory",
        "memory/peak_allocated_spread_gib",
        of_ranks=True,
        note="Peak of the fullest rank less that of the emptiest: all other memory here is the fullest rank's.",
    ),
    Panel(
        key="speedup",
        title="Speedup",
        question="How much faster is it?",
        section="speed",
        kind="pairs",
        metrics=("perf/step_ms",),
        effect="ratio",
        note="Each dot is a pair of runs of one seed: the baseline's step time over the arm's. Right of 1 is faster. "
        "Whiskers: 95% interval of the mean.",
    ),
    _curves(
        "step-time",
        "Step time over the run",
        "Was the speed steady while it was measured?",
        "speed",
        "perf/step_ms",
        note="Spikes and drift are the machine's, not the precision's: compare arms only where both are flat.",
    ),
    _by_arm(
        "samples-per-sec",
        "Throughput in samples",
        "How many samples does it train on in a second?",
        "speed",
        "perf/samples_per_sec",
    ),
    _by_arm(
        "tokens-per-sec",
        "Throughput in tokens",
        "How many tokens does it train on in a second?",
        "speed",
        "perf/tokens_per_sec",
    ),
    Panel(
        key="speedup-against-size",
        title="Speedup against size",
        question="From which size on is it faster?",
        section="speed",
        kind="effects_against",
        metrics=("perf/step_ms",),
        effect="ratio",
        note="Each point is the mean over pairs of runs: the baseline's step time over the arm's. Whiskers: 95% "
        "interval of the mean.",
        beside=("Speedup side by side", "Where does it gain most?"),
    ),
    Panel(
        key="samples-against-size",
        title="Throughput against size",
        question="Which size uses the device?",
        section="speed",
        kind="against",
        metrics=("perf/samples_per_sec",),
        beside=("Throughput side by side", "Which one trains fastest?"),
    ),
    Panel(
        key="reduced-against-size",
        title="Gradients reduced against size",
        question="How much does each rank send in a step?",
        section="speed",
        kind="against",
        metrics=("perf/reduced_mib",),
        of_ranks=True,
        beside=("Gradients reduced side by side", "How much does each rank send in a step?"),
    ),
    Panel(
        key="step-time-side-by-side",
        title="Step time side by side",
        question="How long is a step of the slowest rank?",
        section="speed",
        kind="against",
        metrics=("perf/step_ms",),
        over="words",
    ),
    _by_arm(
        "mfu",
        "Share of the device's peak",
        "How much of what the device could compute is used?",
        "speed",
        "perf/mfu_pct",
    ),
    _by_arm("data-wait", "Waiting for data", "Does the data keep the device waiting?", "speed", "perf/data_wait_ms"),
    _by_arm(
        "communication",
        "Waiting for other ranks",
        "How much of a step is communication that no arithmetic hides?",
        "speed",
        "perf/communication_ms",
        of_ranks=True,
    ),
    _by_arm(
        "reduced",
        "Gradients reduced in a step",
        "How much does each rank send?",
        "speed",
        "perf/reduced_mib",
        of_ranks=True,
        note="Handed to the reduction by each rank, in the dtype of the reduction.",
    ),
    _by_arm(
        "overhead",
        "Cost of measuring",
        "Does the measurement itself slow the training down?",
        "speed",
        "instrumentation/overhead_pct",
    ),
    Panel(
        key="loss-gap",
        title="Gap of the final validation loss",
        question="Does it still learn the same?",
        section="learning",
        kind="pairs",
        metrics=("val/loss",),
        note="Each dot is a pair of runs of one seed: the arm's final validation loss minus the baseline's. "
        "Left of zero is better. Thin whiskers: 95% interval of the mean. Thick: the 90% interval that decides parity: "
        "inside the shaded margin it is equivalent.",
    ),
    _curves("train-loss", "Training loss", "Do the arms learn along the same curve?", "learning", "train/loss"),
    _curves("val-loss", "Validation loss", "Do they generalize along the same curve?", "learning", "val/loss"),
    Panel(
        key="loss-side-by-side",
        title="Final validation loss side by side",
        question="Do they learn the same?",
        section="learning",
        kind="against",
        metrics=("val/loss",),
        from_zero=False,
        over="words",
    ),
    _by_arm(
        "val-accuracy", "Validation accuracy", "Does it classify as well?", "learning", "val/accuracy", from_zero=False
    ),
    _by_arm(
        "autocast-penalty",
        "Penalty of evaluating under autocast",
        "Does autocast make the evaluation of the same weights worse?",
        "learning",
        AUTOCAST_PENALTY,
        note="Validation loss under autocast minus that in full precision, of the final weights. Right of zero "
        "autocast is worse.",
    ),
    _curves("grad-norm", "Gradient norm", "Are the gradients the same size?", "learning", "train/grad_norm", log=True),
    _curves("scale", "Scale", "Did the scale settle, or collapse?", "scaler", "amp/scale", log=True),
    _curves(
        "skipped-steps",
        "Skipped steps so far",
        "How many steps were lost to non-finite gradients, and when?",
        "scaler",
        "amp/skipped_steps",
    ),
    _by_arm(
        "utilization",
        "Utilization",
        "Was the device busy?",
        "device",
        "device/utilization_pct",
        note="On a GPU the share of time in which some kernel ran, however small: a busy device can be badly used.",
    ),
    _by_arm("power", "Power", "What does it draw?", "device", "device/power_w"),
    _by_arm("energy", "Energy of the run", "What does a training cost in energy?", "device", "device/energy_j"),
    _by_arm(
        "energy-per-sample",
        "Energy of a sample",
        "What does a training sample cost in energy?",
        "device",
        "device/energy_per_sample_j",
        note="By the device's own counter, after warm-up; evaluation and checkpoints are left out.",
    ),
    _by_arm("clock", "Clock", "Did every arm run at the same clock?", "device", "device/clock_mhz", from_zero=False),
    _by_arm("temperature", "Temperature", "Did heat play a part?", "device", "device/temperature_c", from_zero=False),
)

SEARCH_PANELS: Final[tuple[Panel, ...]] = (
    _by_arm(
        "largest-batch", "Largest batch that trains", "Which batch becomes possible?", "memory", "memory/largest_batch"
    ),
    Panel(
        key="memory-there",
        title="Where the memory goes there",
        question="What fills the memory at each arm's own largest batch, and was it predicted?",
        section="memory",
        kind="stack",
        metrics=_BY_CATEGORY,
        whole="memory/peak_allocated_gib",
        note="At the peak of one traced training step; evaluation and what is kept beside it may add to that.",
    ),
    _by_arm(
        "samples-per-sec-there",
        "Throughput there",
        "How fast does each arm train with its own largest batch?",
        "speed",
        "perf/samples_per_sec",
    ),
)
"""Panels of a search for the largest batches."""
