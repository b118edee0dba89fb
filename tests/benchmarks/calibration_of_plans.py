"""How often a verdict is wrong, and how many pairs it takes, where it is looked for after each pair (`report.decide`).

    python tests/benchmarks/calibration_of_plans.py [--comparisons 10000] [--json FILE]

prints the tables on plans in CALIBRATION.md. A comparison is a row of gaps, in margins, judged by the levels of
`ampsweep.analysis.sequential`; the first hundred of each array are judged by its `equivalence_tests` too, and must end
alike. Noise is that of `calibration.py`; in `skewed` it is lognormal, in the arm alone.
"""

import argparse
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from calibration import NOISES, lognormal, table
from scipy.special import stdtrit

from ampsweep.analysis.sequential import (
    ALPHA_OF_LOOKS,
    CONFIDENCE_OF_LOOKS,
    NARROW,
    equivalence_tests,
    nominal_levels,
    seeds_for,
)

PLANS = (3, 5, 12, 20, 40)
SKEWED = (0.25, 0.5, 1.0)
"""Sigma of the lognormal noise: skewness of 0.8, 1.7 and 6.2."""
SPREAD = 0.5  # standard deviation of the gaps over the margin
SPREADS = (0.1, 0.25, 0.5, 0.75, 1.0)
STEP_NOISES = (0.5, 1.0, 3.0)

OF_PLANS = {
    "edge_inside": "worse by the margin: equivalent",
    "edge_not_worse": "... not worse",
    "edge_above": "... worse",
    "equal_apart": "equal: worse or better",
    "equal_covered": "... 95% interval covers 0",
    "equal_inside": "... equivalent",
    "pairs_equal": "pairs",
    "worse_above": "worse by two margins: worse",
    "pairs_worse": "pairs",
    "better_below": "better by two margins: better",
    "pairs_better": "pairs",
}
OF_SPREADS = {
    "pairs_planned": "seeds that the plan asks for",
    "power": "equivalent by then",
    "all": "equivalent at the end",
    "pairs": "pairs",
    "saved": "fewer than N",
}
OF_SPEEDS = {
    "covered_95": "nominal 95% covers",
    "false_95": "called faster or slower",
    "pairs_95": "pairs",
    "covered": "nominal 98% covers",
    "false": "called faster or slower",
    "pairs": "pairs",
}
OF_ATTEMPTS = {
    "normal": "normal: `edge` equivalent",
    **{f"skewed {sigma}": f"skewed {sigma}" for sigma in SKEWED},
    "power_0.5": "normal, equal: equivalent",
    "pairs_0.5": "pairs",
    "power_0.75": "at a spread of 0.75",
    "pairs_0.75": "pairs",
}

Ends = Callable[[np.ndarray, int, float], tuple[np.ndarray, np.ndarray]]
"""From gaps (comparisons, n), n and a level to the ends of an interval for each comparison."""


def gaps_of(noise: str, rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Gaps with a mean of 0 and a standard deviation of 1."""
    if noise.startswith("skewed"):
        return lognormal(rng, shape, float(noise.split()[1]))
    return (NOISES[noise](rng, shape) - NOISES[noise](rng, shape)) / math.sqrt(2)


def student(gaps: np.ndarray, n: int, level: float) -> tuple[np.ndarray, np.ndarray]:
    mean, half_width = gaps.mean(axis=1), -stdtrit(n - 1, level) * gaps.std(axis=1, ddof=1) / math.sqrt(n)
    return mean - half_width, mean + half_width


def for_skewness(gaps: np.ndarray, n: int, level: float) -> tuple[np.ndarray, np.ndarray]:
    """The wider of Student's interval and that shifted by the skewness of the sample, on either side.

    Source: N. J. Johnson, Modified t tests and confidence intervals for asymmetrical populations, J. Am. Stat. Assoc.
    73 (1978); P. Hall, On the removal of skewness by transformation, J. R. Stat. Soc. B 54 (1992).
    """
    low, high = student(gaps, n, level)
    third = ((gaps - gaps.mean(axis=1, keepdims=True)) ** 3).sum(axis=1) * n / ((n - 1) * (n - 2))
    shift = third / (6 * n * gaps.var(axis=1, ddof=1)) * (1 + 2 * stdtrit(n - 1, level) ** 2)
    return np.minimum(low, low + shift), np.maximum(high, high + shift)


def with_unseen(size: float) -> Ends:
    """The interval also with one more pair, `size` standard deviations to either side."""

    def ends(gaps: np.ndarray, n: int, level: float) -> tuple[np.ndarray, np.ndarray]:
        low, high = student(gaps, n, level)
        away = size * gaps.std(axis=1, ddof=1)
        below, above = (np.column_stack([gaps, gaps.mean(axis=1) + side * away]) for side in (-1, 1))
        return np.minimum(low, student(below, n + 1, level)[0]), np.maximum(high, student(above, n + 1, level)[1])

    return ends


def decided(
    gaps: np.ndarray, ends: Ends = student, first: int = 3, alpha: float = ALPHA_OF_LOOKS
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of each row of gaps: the position, the number of pairs, and whether the arm is known not to be worse. Looks begin
    after `first` pairs, and spend `alpha`."""
    max_pairs = gaps.shape[1]
    looks = range(3, max_pairs + 1)
    levels = dict(zip(looks, nominal_levels(tuple(n / max_pairs for n in looks), alpha), strict=True))
    position, used = np.full(len(gaps), "open", dtype="<U6"), np.full(len(gaps), max_pairs)
    not_worse = np.zeros(len(gaps), bool)
    for n, level in levels.items():
        is_open = position == "open"
        if n < first or not is_open.any():
            continue
        low, high = np.full((2, len(gaps)), np.nan)
        low[is_open], high[is_open] = ends(gaps[is_open, :n], n, level)
        not_worse |= high < 1
        for word, found in (("inside", (low > -1) & (high < 1)), ("above", low > 1), ("below", high < -1)):
            position[found], used[found] = word, n
    if (ends, first, alpha) == (student, 3, ALPHA_OF_LOOKS):
        for row, *of in zip(gaps[:100].tolist(), position, used, strict=False):
            *_, last = equivalence_tests(row, [1.0] * len(row), len(row))
            assert [last.position, last.n] == of
    return position, used, not_worse


def simulate_plan(noise: str, max_pairs: int, comparisons: int) -> dict[str, float]:
    """Shares in percent and mean numbers of pairs, for gaps of `SPREAD`."""
    rng, found = np.random.default_rng([max_pairs, *noise.encode()]), {}
    for truth, gap in (("edge", 1.0), ("equal", 0.0), ("worse", 2.0), ("better", -2.0)):
        gaps = gap + SPREAD * gaps_of(noise, rng, (comparisons, max_pairs))
        position, used, not_worse = decided(gaps)
        found |= {f"{truth}_{word}": 100 * np.mean(position == word) for word in ("inside", "above", "below")}
        found |= {f"pairs_{truth}": used.mean(), f"{truth}_not_worse": 100 * not_worse.mean()}
        if truth == "equal":
            ends = [student(row[None, :n], n, (1 - CONFIDENCE_OF_LOOKS) / 2) for row, n in zip(gaps, used, strict=True)]
            found["equal_covered"] = 100 * np.mean([low <= 0 <= high for (low,), (high,) in ends])
    found["equal_apart"] = found["equal_above"] + found["equal_below"]
    return {key: float(found[key]) for key in OF_PLANS}


def simulate_spread(spread: float, max_pairs: int, comparisons: int) -> dict[str, float]:
    """An equal arm whose gaps are normal with this standard deviation, in margins."""
    planned = seeds_for(spread, max_pairs) or math.nan
    position, used, _ = decided(np.random.default_rng(max_pairs).normal(0, spread, (comparisons, max_pairs)))
    inside = position == "inside"
    power = math.nan if math.isnan(planned) else 100 * float(np.mean(inside & (used <= planned)))
    saved = 100 * (1 - float(used.mean()) / max_pairs)
    found = {"power": power, "all": 100 * float(inside.mean()), "pairs": float(used.mean()), "saved": saved}
    return {"pairs_planned": planned} | found


def simulate_speed(step_noise: float, max_pairs: int, comparisons: int) -> dict[str, float]:
    """An arm as fast as the baseline, timed until it is settled; log step times vary by `step_noise` percent."""
    logs = np.random.default_rng(max_pairs).normal(0, step_noise / 100 * math.sqrt(2), (comparisons, max_pairs))
    found = {}
    for name, confidence in (("_95", 0.95), ("", CONFIDENCE_OF_LOOKS)):
        looks = [student(logs[:, :n], n, (1 - confidence) / 2) for n in range(3, max_pairs + 1)]
        low, high = np.array(looks).transpose(1, 2, 0)
        settled = (high - low <= 2 * math.log(NARROW)) | (np.maximum(low, -high) > math.log(NARROW))
        settled[:, -1] = True
        last = settled.argmax(axis=1)
        covered = 100 * float(((low <= 0) & (high >= 0))[np.arange(comparisons), last].mean())
        found |= {f"covered{name}": covered, f"false{name}": 100 - covered, f"pairs{name}": 3 + float(last.mean())}
    return found


ATTEMPTS: Mapping[str, tuple[Ends, int, float]] = {
    "none: Student's t": (student, 3, ALPHA_OF_LOOKS),
    "no look before 8 pairs": (student, 8, ALPHA_OF_LOOKS),
    "the wider of Student's and Johnson's": (for_skewness, 3, ALPHA_OF_LOOKS),
    "an unseen pair at 2 sd": (with_unseen(2.0), 3, ALPHA_OF_LOOKS),
    "an unseen pair at 3 sd": (with_unseen(3.0), 3, ALPHA_OF_LOOKS),
    "an unseen pair at 6 sd": (with_unseen(6.0), 3, ALPHA_OF_LOOKS),
    "Student's t at 1% in all": (student, 3, 0.01),
}


def simulate_attempt(ends: Ends, first: int, alpha: float, max_pairs: int, comparisons: int) -> dict[str, float]:
    """Against skewness: errors at the margin, and what they cost under normal noise."""
    rng, shape, found = np.random.default_rng(max_pairs), (comparisons, max_pairs), dict[str, float]()
    for noise in ("normal", *(f"skewed {sigma}" for sigma in SKEWED)):
        position, _, _ = decided(1.0 + SPREAD * gaps_of(noise, rng, shape), ends, first, alpha)
        found[noise] = 100 * float(np.mean(position == "inside"))
    for spread in (0.5, 0.75):
        position, used, _ = decided(rng.normal(0, spread, shape), ends, first, alpha)
        found |= {f"power_{spread}": 100 * float(np.mean(position == "inside")), f"pairs_{spread}": float(used.mean())}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--comparisons", type=int, default=10_000)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    count, noises = arguments.comparisons, [*NOISES, *(f"skewed {sigma}" for sigma in SKEWED)]
    tables = {
        "noise | N": (OF_PLANS, {f"{of}, n={n}": simulate_plan(of, n, count) for of in noises for n in PLANS}),
        "spread / margin | N": (
            *(OF_SPREADS, {f"{of}, n={n}": simulate_spread(of, n, count) for n in PLANS for of in SPREADS}),
        ),
        "step times | N": (
            OF_SPEEDS,
            {f"{of}%, n={n}": simulate_speed(of, n, count) for of in STEP_NOISES for n in PLANS},
        ),
        "attempt | N": (
            *(OF_ATTEMPTS, {f"{name}, n=12": simulate_attempt(*of, 12, count) for name, of in ATTEMPTS.items()}),
        ),
    }
    print("\n\n".join(table(rows, columns, first) for first, (columns, rows) in tables.items()))
    if arguments.json is not None:
        shares = {first: rows for first, (_, rows) in tables.items()}
        arguments.json.write_text(json.dumps({"comparisons": count, "figures": shares}, indent=1))


if __name__ == "__main__":
    main()
