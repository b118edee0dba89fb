"""The panels of a comparison, each with the question it answers.

Renderers know kinds of panels only, so that a new panel is a new entry of `PANELS`.
"""

from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from ampsweep.analysis.figure_keys import FigureKeys
from ampsweep.memory_categories import MEMORY_CATEGORIES, memory_key
from ampsweep.metrics import METRICS

Kind = Literal["front", "curves", "by_arm", "stack", "pairs", "against", "effects_against"]
"""The way a panel shows its metrics:

- `front`: step time, peak memory and final loss of each arm, with the Pareto front;
- `curves`: a metric of the history over the steps, each arm in its colour, with the band of its seeds;
- `by_arm`: a metric of the summary, a bar for each arm (median over runs) and a dot for each run;
- `stack`: metrics of the summary that add up, stacked for each arm, predicted beside measured;
- `pairs`: an effect, with a dot for each pair of runs, their mean and its interval;
- `against`: a metric of the summary over a size of the model or batch that was varied;
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
"""Section -> heading, in the order in which they are shown."""


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One picture. All its metrics have the same unit, except in the kind `front`."""

    key: str  # its name in files and links: lower case, unique
    title: str
    question: str
    section: Section
    kind: Kind
    metrics: tuple[str, ...]
    whole: str = ""  # kind `stack`: the metric that the metrics are parts of. The rest of it is `unattributed`.
    effect: Effect | None = None  # kinds `pairs` and `effects_against`
    log: bool = False  # the axis of the metric is logarithmic
    note: str = ""  # a hint for reading the panel
    keys: FigureKeys = field(default_factory=FigureKeys)  # the figures compared, by which title and note are named

    def of(self, keys: FigureKeys) -> "Panel":
        """This panel of other figures than the validation loss and the peak of tensors."""
        return replace(self, keys=keys, title=keys.named(self.title), note=keys.named(self.note))

    @property
    def unit(self) -> str:
        return METRICS[self.metrics[0]].unit if self.metrics[0] in METRICS else ""


def _panel(section: Section, kind: Kind, key: str, title: str, question: str, *metrics: str, **more: Any) -> Panel:
    return Panel(kind=kind, key=key, title=title, question=question, section=section, metrics=metrics, **more)


_STEP, _PEAK, _LOSS = "perf/step_ms", "memory/peak_allocated_gib", "val/loss"

PANELS: Final = (
    _panel(
        *("overall", "front", "front", "Speed, memory and loss", "Which arms does no other beat?", _STEP, _PEAK, _LOSS),
        note="To the left is faster, below is less memory. Filled: on the front. Hollow: beaten by an arm that is "
        "better in one of the three and worse in none. Circle: the final loss is not worse by the margin; triangle up: "
        "worse; triangle down: better; diamond: not known; square: not measured.",
    ),
    _panel(
        *("memory", "stack", "memory-categories", "Where the memory goes", "Where do the bytes go?"),
        *map(memory_key, MEMORY_CATEGORIES),
        whole=_PEAK,
        note="At the peak of one traced training step. Compiled code makes no difference between activations and "
        "half-precision copies of weights: both count as activations of compiled runs.",
    ),
    _panel(
        *("memory", "pairs", "memory-saved", "Peak memory saved", "How much memory does it save?", _PEAK),
        effect="memory_saved",
        note="Each dot is a pair of runs of one seed: the baseline's peak minus the arm's. Right of zero it saves. "
        "Whiskers: 95% interval of the mean.",
    ),
    _panel("memory", "against", "memory-against-size", "Peak memory against size", "Which size still fits?", _PEAK),
    _panel(
        *("memory", "effects_against", "memory-saved-against-size", "Peak memory saved against size"),
        *("From which size on does it save memory?", _PEAK),
        effect="memory_saved_pct",
    ),
    _panel(
        *("speed", "pairs", "speedup", "Speedup", "How much faster is it?", _STEP),
        effect="speedup",
        note="Each dot is a pair of runs of one seed: the baseline's step time over the arm's. Right of 1 is faster. "
        "Whiskers: 95% interval of the mean.",
    ),
    _panel(
        *("speed", "curves", "step-time", "Step time over the run", "Was the speed steady while it was measured?"),
        _STEP,
        note="Spikes and drift are the machine's, not the precision's: compare arms only where both are flat.",
    ),
    _panel(
        *("speed", "by_arm", "samples-per-sec", "Throughput in samples"),
        *("How many samples does it train on in a second?", "perf/samples_per_sec"),
    ),
    _panel(
        *("speed", "by_arm", "tokens-per-sec", "Throughput in tokens"),
        *("How many tokens does it train on in a second?", "perf/tokens_per_sec"),
    ),
    _panel(
        *("speed", "effects_against", "speedup-against-size", "Speedup against size"),
        *("From which size on is it faster?", _STEP),
        effect="speedup",
        note="Each point is the mean over pairs of runs: the baseline's step time over the arm's. Whiskers: 95% "
        "interval of the mean.",
    ),
    _panel(
        *("speed", "against", "samples-against-size", "Throughput against size"),
        *("Which size uses the device?", "perf/samples_per_sec"),
    ),
    _panel(
        *("speed", "by_arm", "mfu", "Share of the device's peak"),
        *("How much of what the device could compute is used?", "perf/mfu_pct"),
    ),
    _panel(
        *("speed", "by_arm", "data-wait", "Waiting for data", "Does the data keep the device waiting?"),
        "perf/data_wait_ms",
    ),
    _panel(
        *("learning", "pairs", "loss-gap", "Gap of the final validation loss", "Does it still learn the same?", _LOSS),
        effect="loss_gap",
        note="Each dot is a pair of runs of one seed: the arm's final validation loss minus the baseline's. "
        "Left of zero is better. Thin whiskers: 95% interval of the mean. Thick: the 90% interval that decides parity: "
        "inside the shaded margin it is equivalent.",
    ),
    _panel(
        *("learning", "curves", "train-loss", "Training loss", "Do the arms learn along the same curve?"), "train/loss"
    ),
    _panel("learning", "curves", "val-loss", "Validation loss", "Do they generalize along the same curve?", _LOSS),
    _panel(
        *("learning", "curves", "grad-norm", "Gradient norm", "Are the gradients the same size?", "train/grad_norm"),
        log=True,
    ),
    _panel("scaler", "curves", "scale", "Scale", "Did the scale settle, or collapse?", "amp/scale", log=True),
    _panel(
        *("scaler", "curves", "skipped-steps", "Skipped steps so far"),
        *("How many steps were lost to non-finite gradients, and when?", "amp/skipped_steps"),
    ),
    _panel(
        *("device", "by_arm", "utilization", "Utilization", "Was the device busy?", "device/utilization_pct"),
        note="On a GPU the share of time in which some kernel ran, however small: a busy device can be badly used.",
    ),
    _panel("device", "by_arm", "power", "Power", "What does it draw?", "device/power_w"),
    _panel(
        *("device", "by_arm", "energy-per-sample", "Energy of a sample"),
        *("What does a training sample cost in energy?", "device/energy_per_sample_j"),
        note="By the device's own counter, after warm-up; evaluation and checkpoints are left out.",
    ),
)
