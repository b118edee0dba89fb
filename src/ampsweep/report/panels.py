"""The panels of a comparison, each with the question it answers: a new panel is a new entry of `PANELS`."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, get_args

from ampsweep.analysis.figure_keys import FigureKeys
from ampsweep.memory_categories import MEMORY_CATEGORIES, memory_key
from ampsweep.metrics import METRICS

Kind = Literal["front", "curves", "by_arm", "stack", "pairs", "narrowing", "against", "effects_against"]
"""The way a panel shows its metrics:

- `front`: step time, peak memory and final loss of each arm, with the Pareto front;
- `curves`: a metric of the history over the steps, each arm in its colour, with the band of its seeds;
- `by_arm`: a metric of the summary, a bar for each arm (median over runs) and a dot for each run;
- `stack`: parts of the peak memory and its rest, `unattributed`, stacked for each arm, predicted beside measured;
- `pairs`: an effect, with a dot for each pair of runs, their mean and its interval;
- `narrowing`: an effect with its interval after each pair of runs, where a number of pairs is planned;
- `against`: a metric of the summary over a size of the model or batch that was varied;
- `effects_against`: the mean effect in pairs over such a size, with its interval.
"""

Effect = Literal["speedup", "memory_saved", "memory_saved_pct", "loss_gap"]
"""A mean over pairs that the comparison has of each arm."""

Section = Literal["Overall", "Memory", "Speed", "Learning", "Gradient scaler", "Device"]
SECTIONS: Final[tuple[Section, ...]] = get_args(Section)
"""The headings, in the order in which they are shown."""


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One picture. All its metrics have the same unit, except in the kind `front`."""

    key: str  # its name in files and links: lower case, unique
    title: str
    question: str
    section: Section
    kind: Kind
    metrics: tuple[str, ...]
    effect: Effect | None = None  # kinds `pairs`, `narrowing` and `effects_against`
    log: bool = False  # the axis of the metric is logarithmic
    note: str = ""  # a hint for reading the panel
    keys: FigureKeys = field(default_factory=FigureKeys)  # the figures compared, by which title and note are named

    def of(self, keys: FigureKeys) -> "Panel":
        """This panel of other figures than the validation loss and the peak of tensors."""
        return replace(self, keys=keys, title=keys.named(self.title), note=keys.named(self.note))

    @property
    def unit(self) -> str:
        return METRICS[self.metrics[0]].unit


def _panel(section: Section, kind: Kind, key: str, title: str, question: str, *metrics: str, **more: Any) -> Panel:
    return Panel(kind=kind, key=key, title=title, question=question, section=section, metrics=metrics, **more)


_STEP, _PEAK, _LOSS = "perf/step_ms", "memory/peak_allocated_gib", "val/loss"
_SAMPLES, _TOKENS = "perf/samples_per_sec", "perf/tokens_per_sec"
_SKIPPED, _ENERGY = "amp/skipped_steps", "device/energy_per_sample_j"

PANELS: Final = (
    _panel(
        *("Overall", "front", "front", "Speed, memory and loss", "Which arms does no other beat?", _STEP, _PEAK, _LOSS),
        note="To the left is faster, below is less memory. Filled: on the front. Hollow: beaten by an arm that is "
        "better in one of the three and worse in none. Circle: the final loss is not worse by the margin; triangle up: "
        "worse; triangle down: better; diamond: not known; square: not measured.",
    ),
    _panel(
        *("Memory", "stack", "memory-categories", "Where the memory goes", "Where do the bytes go?"),
        *map(memory_key, MEMORY_CATEGORIES),
        note="At the peak of one traced training step. Compiled code makes no difference between activations and "
        "half-precision copies of weights: both count as activations of compiled runs.",
    ),
    _panel(
        *("Memory", "pairs", "memory-saved", "Peak memory saved", "How much memory does it save?", _PEAK),
        effect="memory_saved",
        note="Each dot is a pair of runs of one seed: the baseline's peak minus the arm's. Right of zero it saves. "
        "Whiskers: 95% interval of the mean.",
    ),
    _panel("Memory", "against", "memory-against-size", "Peak memory against size", "Which size still fits?", _PEAK),
    _panel(
        *("Memory", "effects_against", "memory-saved-against-size", "Peak memory saved against size"),
        *("From which size on does it save memory?", _PEAK),
        effect="memory_saved_pct",
    ),
    _panel(
        *("Speed", "pairs", "speedup", "Speedup", "How much faster is it?", _STEP),
        effect="speedup",
        note="Each dot is a pair of runs of one seed: the baseline's step time over the arm's. Right of 1 is faster. "
        "Whiskers: 95% interval of the mean.",
    ),
    _panel(
        *("Speed", "narrowing", "speedup-by-pairs", "Speedup by number of pairs", "When was its speed known?", _STEP),
        effect="speedup",
        note="The mean after each pair of runs, with its 95% interval: above 1 is faster.",
    ),
    _panel(
        *("Speed", "curves", "step-time", "Step time over the run", "Was the speed steady while it was measured?"),
        _STEP,
        note="Spikes and drift are the machine's, not the precision's: compare arms only where both are flat.",
    ),
    _panel("Speed", "by_arm", "samples-per-sec", "Throughput in samples", "How many samples a second?", _SAMPLES),
    _panel("Speed", "by_arm", "tokens-per-sec", "Throughput in tokens", "How many tokens a second?", _TOKENS),
    _panel(
        *("Speed", "effects_against", "speedup-against-size", "Speedup against size"),
        *("From which size on is it faster?", _STEP),
        effect="speedup",
        note="Each point is the mean over pairs of runs: the baseline's step time over the arm's. Whiskers: 95% "
        "interval of the mean.",
    ),
    _panel("Speed", "against", "samples-against-size", "Throughput against size", "Which size is fastest?", _SAMPLES),
    _panel("Speed", "by_arm", "mfu", "Share of the device's peak", "How much of its peak is used?", "perf/mfu_pct"),
    _panel("Speed", "by_arm", "data-wait", "Waiting for data", "Is the device kept waiting?", "perf/data_wait_ms"),
    _panel(
        *("Learning", "pairs", "loss-gap", "Gap of the final validation loss", "Does it still learn the same?", _LOSS),
        effect="loss_gap",
        note="Each dot is a pair of runs of one seed: the arm's final validation loss minus the baseline's. "
        "Left of zero is better. Thin whiskers: 95% interval of the mean. Thick: the 90% interval that decides parity: "
        "inside the shaded margin it is equivalent.",
    ),
    _panel(
        *("Learning", "narrowing", "loss-gap-by-pairs", "Gap of the validation loss by number of pairs"),
        *("When was parity decided?", _LOSS),
        effect="loss_gap",
        note="The mean gap after each pair of runs, with the 90% interval that holds at all of these looks together, "
        "hence so wide at first. The first that lies inside the shaded margin, or beyond it, decides.",
    ),
    _panel("Learning", "curves", "train-loss", "Training loss", "Do the arms learn alike?", "train/loss"),
    _panel("Learning", "curves", "val-loss", "Validation loss", "Do they generalize alike?", _LOSS),
    _panel(
        *("Learning", "curves", "grad-norm", "Gradient norm", "Are the gradients the same size?", "train/grad_norm"),
        log=True,
    ),
    _panel("Gradient scaler", "curves", "scale", "Scale", "Did the scale settle, or collapse?", "amp/scale", log=True),
    _panel("Gradient scaler", "curves", "skipped-steps", "Skipped steps so far", "How many, and when?", _SKIPPED),
    _panel(
        *("Device", "by_arm", "utilization", "Utilization", "Was the device busy?", "device/utilization_pct"),
        note="On a GPU the share of time in which some kernel ran, however small: a busy device can be badly used.",
    ),
    _panel("Device", "by_arm", "power", "Power", "What does it draw?", "device/power_w"),
    _panel(
        *("Device", "by_arm", "energy-per-sample", "Energy of a sample", "What does it cost?", _ENERGY),
        note="By the device's own counter, after warm-up; evaluation and checkpoints are left out.",
    ),
)


def curve_keys(panels: Sequence[Panel] = PANELS) -> list[str]:
    """The metrics of the history that `panels` show."""
    return list(dict.fromkeys(key for panel in panels if panel.kind == "curves" for key in panel.metrics))
