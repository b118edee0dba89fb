"""How often the verdict is wrong: simulated comparisons of known truth, judged as a sweep's records are.

    python tests/benchmarks/calibration.py [--comparisons 10000] [--json FILE]

prints the table of CALIBRATION.md and, with --json, writes the same figures to a file. Each comparison is a sweep of
three arms over n seeds, paired by seed:

- `fp32`, the baseline;
- `same`: as fast as the baseline, and learns the same (a true loss gap of 0);
- `edge`: 1.3 times as fast, and worse by exactly the margin: the hardest arm to refuse.

Log step times vary by 3% from run to run; final losses vary by 2% over seeds and, from arm to arm of a seed, so that
the gaps' standard deviation is half the margin. Noise is normal, Student's t with 3 degrees of freedom, or lognormal
(that of exp(z), z normal), centred and scaled to the same standard deviation. The differences of a pair are symmetric
then, whatever the noise; in `skewed` they are not: lognormal noise in every arm but the baseline, which has none.
"""

import argparse
import json
import math
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "analysis"))

from synthetic_records import sweep

from ampsweep.analysis.comparison import compare

NUM_SEEDS = (3, 5, 10)
LOSS, MARGIN = 2.0, 0.02
TRUTH = {"fp32": (1.0, 0.0), "same": (1.0, 0.0), "edge": (1.3, MARGIN)}
"""Speedup and loss gap of each arm."""


def lognormal(rng, n, sigma=1.0):
    variance = math.exp(sigma**2)
    return (np.exp(rng.normal(0, sigma, size=n)) - math.sqrt(variance)) / math.sqrt((variance - 1) * variance)


NOISES = {
    "normal": lambda rng, n: rng.normal(size=n),
    "t, 3 df": lambda rng, n: rng.standard_t(3, size=n) / math.sqrt(3),
    "lognormal": lognormal,
}

COLUMNS = {
    "speed_false": "`same` called faster or slower",
    "speed_covered": "95% interval of speed covers the truth",
    "gap_covered": "95% interval of loss gap covers the truth",
    "tost_false": "`edge` called equivalent",
    "worse_false": "`edge` called worse",
    "tost_power": "`same` called equivalent",
    "recommended_false": "`edge` recommended",
}


def simulate(noise: str, n: int, comparisons: int) -> dict[str, float]:
    """Shares in percent, over `comparisons` comparisons of `n` seeds."""
    rng = np.random.default_rng([n, *noise.encode()])
    counted = Counter(key for _ in range(comparisons) for key in judge_one(rng, noise, n))
    halves = {"speed_covered", "gap_covered"}  # counted for two arms each
    return {key: 100 * counted[key] / comparisons / (2 if key in halves else 1) for key in COLUMNS}


def judge_one(rng: np.random.Generator, noise: str, n: int) -> list[str]:
    """What happened in one comparison, by keys of `COLUMNS`."""
    draw = NOISES["lognormal" if noise == "skewed" else noise]
    seeds = LOSS + 0.02 * LOSS * draw(rng, n)
    entries = []
    for arm, (speedup, gap) in TRUTH.items():
        share = 1.0 if noise != "skewed" else 0.0 if arm == "fp32" else math.sqrt(2)
        times = 100 / speedup * np.exp(0.03 * share * draw(rng, n))
        losses = seeds + gap + MARGIN / 2 / math.sqrt(2) * share * draw(rng, n)
        entries += sweep(arm, times.tolist(), val_loss=losses.tolist())
    (workload,) = compare(entries, baseline="fp32", margin_pct=100 * MARGIN / LOSS).workloads
    figures = {arm.arm: arm for arm in workload.arms}
    words = {arm.arm: arm.judgements for arm in workload.verdict.arms}
    found = ["speed_false"] * (words["same"].speed in ("faster", "slower"))
    found += ["tost_false"] * (words["edge"].parity == "equivalent")
    found += ["worse_false"] * (words["edge"].parity == "worse")
    found += ["tost_power"] * (words["same"].parity == "equivalent")
    found += ["recommended_false"] * (workload.verdict.recommendation.arm == "edge")
    for arm in ("same", "edge"):
        speedup, gap = TRUTH[arm]
        found += ["speed_covered"] * (figures[arm].speedup.low <= speedup <= figures[arm].speedup.high)
        found += ["gap_covered"] * (figures[arm].loss_gap.low <= gap <= figures[arm].loss_gap.high)
    return found


def table(results: dict[str, dict[str, float]], columns: dict[str, str], first: str = "noise | n") -> str:
    """The results as Markdown, a row for each name; shares in percent, but for numbers of `pairs`."""
    lines = [f"| {first} | {' | '.join(columns.values())} |", "| --- " + "| ---: " * (1 + len(columns)) + "|"]
    for name, shares in results.items():
        noise, n = name.rsplit(", n=", 1)
        cells = (f"{shares[key]:.1f}{'' if key.startswith('pairs') else '%'}" for key in columns)
        lines.append(f"| {noise} | {n} | {' | '.join(cells)} |".replace("nan%", "-").replace("nan", "-"))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--comparisons", type=int, default=10_000)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with ProcessPoolExecutor() as pool:
        names = {f"{noise}, n={n}": (noise, n) for noise in (*NOISES, "skewed") for n in NUM_SEEDS}
        running = [pool.submit(simulate, *of, arguments.comparisons) for of in names.values()]
        results = {name: future.result() for name, future in zip(names, running, strict=True)}
    print(table(results, COLUMNS))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({"comparisons": arguments.comparisons, "shares_pct": results}, indent=1))


if __name__ == "__main__":
    main()
