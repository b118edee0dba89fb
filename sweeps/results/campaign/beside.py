"""The suite beside loops by hand: tables that compare the two."""

from collections.abc import Sequence

from ampsweep.report.columns import ABSENT
from ampsweep.report.estimate_text import ratio_figure
from ampsweep.text import milliseconds, num_bytes, percent, ratio
from campaign.results import ArmRuns, ByHand, Results, arms_of
from campaign.section import signed_percent, table, thousands, told
from campaign.workloads import SCALES


def beside_hand(results: Results, experiment: str, arms: Sequence[ArmRuns]) -> list[str]:
    """Two tables: the suite's time and its memory against those of the same loop by hand."""
    both = [(arm, by_hand) for arm in arms if (by_hand := results.hand(experiment, arm.arm, arm)) is not None]
    if not both:
        return ["The loop by hand was not measured."]
    headers = ["step time", "n", "suite", "by hand", "ratio [95 %]", "suite by the wall", "by hand", "difference"]
    lines = table([*headers, "reported"], [_times(arm, by_hand) for arm, by_hand in both])
    memory = [_peaks(arm, by_hand.peak_bytes) for arm, by_hand in both if by_hand.peak_bytes is not None]
    if memory:
        lines += ["", *table(["peak memory", "suite", "by hand", "difference"], memory)]
    return lines


def _times(arm: ArmRuns, by_hand: ByHand) -> list[str]:
    wall = arm.wall_ms
    return [
        arm.arm,
        f"{arm.n}, {by_hand.n}",
        told(milliseconds, arm.figures.step_ms),
        milliseconds(by_hand.step_ms),
        ABSENT if by_hand.against is None else ratio_figure(by_hand.against),
        told(milliseconds, wall),
        milliseconds(by_hand.wall_ms),
        told(signed_percent, None if wall is None else 100 * (wall / by_hand.wall_ms - 1)),
        told(percent, arm.median("instrumentation/overhead_pct")),
    ]


def _peaks(arm: ArmRuns, by_hand: float) -> list[str]:
    peak = arm.figures.peak_memory_bytes
    difference = None if peak is None else 100 * (peak / by_hand - 1)
    return [arm.arm, told(num_bytes, peak), num_bytes(by_hand), told(signed_percent, difference)]


def nanogpt_pairs(results: Results) -> list[tuple[int, ArmRuns | None, ByHand | None]]:
    """Vocabulary size, the suite's amp_bf16 runs and nanoGPT's, of which one may be missing."""
    scale = SCALES["full" if results.ledger.scale == "full" else "tiny"]
    found = []
    for vocab_size, experiment in ((scale.gpt.vocab_size, "gpt_small"), (scale.padded_vocab_size, "nanogpt")):
        runs = results.of(experiment, compile=scale.compiled, precision_mode="amp_bf16")
        arms = arms_of(runs)
        suite = arms[0] if arms else None
        by_hand = results.hand("nanogpt", "amp_bf16", suite, **{"vocab-size": vocab_size})
        found.append((vocab_size, suite, by_hand))
    return found


def beside_nanogpt(pairs: Sequence[tuple[int, ArmRuns | None, ByHand | None]]) -> list[str]:
    rows = []
    for vocab_size, suite, by_hand in pairs:
        ours = None if suite is None else suite.median("perf/tokens_per_sec")
        theirs = None if by_hand is None else by_hand.tokens_per_sec
        times = ABSENT if ours is None or theirs is None else ratio(ours / theirs)
        numbers = f"{0 if suite is None else suite.n}, {0 if by_hand is None else by_hand.n}"
        rows.append([f"{vocab_size} ids", numbers, told(thousands, ours), told(thousands, theirs), times])
    if not any(theirs is not None for _, _, theirs in pairs):
        return ["nanoGPT was not measured: its code was not brought (`--nanogpt`)."]
    return table(["bfloat16, compiled", "n", "ampsweep, tokens/s", "nanoGPT, tokens/s", "ampsweep / nanoGPT"], rows)
