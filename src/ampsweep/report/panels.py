"""The panels of a comparison, each with the question it answers. All renderers take them from here.

A renderer knows kinds, not panels: a further panel is a further entry of `PANELS`.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal

from ampsweep.memory_categories import MEMORY_CATEGORIES, memory_key
from ampsweep.metrics import METRICS

Kind = Literal["front", "curves", "by_arm", "stack", "pairs", "against", "effects_against"]
"""The way a panel shows its metrics:

- `front`: cost, peak memory and final loss of each arm, and which of them no other beats;
- `curves`: one metric of the history over the steps, an arm a colour, with the band of its seeds;
- `by_arm`: one metric of the summary, a bar an arm (median over runs) and a dot a run;
- `stack`: metrics of the summary that add up, stacked for each arm, predicted beside measured;
- `pairs`: an effect, each pair of runs as a dot, with the mean and its interval;
- `against`: one metric of the summary over a size of the model or its batches, where that was varied;
- `effects_against`: the mean effect in pairs over such a size, with its interval.
"""

Effect = Literal["speedup", "memory_saved", "memory_saved_pct", "loss_gap"]
"""A mean over pairs that the comparison has of each arm."""

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
    effect: Effect | None = None
    """For the kinds `pairs` and `effects_against`."""
    log: bool = False
    """The axis of its metric is logarithmic."""
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
        "worse; triangle down: better; diamond: not known; square: not measured.",
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
        effect="memory_saved",
        note="Each dot is a pair of runs of one seed: the baseline's peak minus the arm's. Right of zero it saves. "
        "Whiskers: 95% interval of the mean.",
    ),
    Panel(
        key="memory-against-size",
        title="Peak memory against size",
        question="Which size still fits?",
        section="memory",
        kind="against",
        metrics=("memory/peak_allocated_gib",),
    ),
    Panel(
        key="memory-saved-against-size",
        title="Peak memory saved against size",
        question="From which size on does it save memory?",
        section="memory",
        kind="effects_against",
        metrics=("memory/peak_allocated_gib",),
        effect="memory_saved_pct",
    ),
    Panel(
        key="speedup",
        title="Speedup",
        question="How much faster is it?",
        section="speed",
        kind="pairs",
        metrics=("perf/step_ms",),
        effect="speedup",
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
        effect="speedup",
        note="Each point is the mean over pairs of runs: the baseline's step time over the arm's. Whiskers: 95% "
        "interval of the mean.",
    ),
    Panel(
        key="samples-against-size",
        title="Throughput against size",
        question="Which size uses the device?",
        section="speed",
        kind="against",
        metrics=("perf/samples_per_sec",),
    ),
    _by_arm(
        "mfu",
        "Share of the device's peak",
        "How much of what the device could compute is used?",
        "speed",
        "perf/mfu_pct",
    ),
    _by_arm("data-wait", "Waiting for data", "Does the data keep the device waiting?", "speed", "perf/data_wait_ms"),
    Panel(
        key="loss-gap",
        title="Gap of the final validation loss",
        question="Does it still learn the same?",
        section="learning",
        kind="pairs",
        metrics=("val/loss",),
        effect="loss_gap",
        note="Each dot is a pair of runs of one seed: the arm's final validation loss minus the baseline's. "
        "Left of zero is better. Thin whiskers: 95% interval of the mean. Thick: the 90% interval that decides parity: "
        "inside the shaded margin it is equivalent.",
    ),
    _curves("train-loss", "Training loss", "Do the arms learn along the same curve?", "learning", "train/loss"),
    _curves("val-loss", "Validation loss", "Do they generalize along the same curve?", "learning", "val/loss"),
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
    _by_arm(
        "energy-per-sample",
        "Energy of a sample",
        "What does a training sample cost in energy?",
        "device",
        "device/energy_per_sample_j",
        note="By the device's own counter, after warm-up; evaluation and checkpoints are left out.",
    ),
)
