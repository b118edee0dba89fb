"""How wrong predictions of published speeds are: the spreads of ranges, and a page of errors."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from typing import Any, Final

import numpy as np
from scipy.optimize import brentq, minimize

from ampsweep.speed.fitted import Class
from ampsweep.speed.kernel_times import Floats
from ampsweep.speed.predicted_range import NINE_OF_TEN, in_range

CLASSES: Final[tuple[Class, ...]] = (
    "step",
    "product",
    "convolution",
    "grouped convolution",
    "moving",
    "small",
    "launching",
)
_LEAST_SPREAD: Final = 0.02
_NOT_MEASURED: Final = 0.4  # a guess: nothing tells the spread of fused attention, recurrent layers and float8
_OUTLIER: Final = 3.0  # standard deviations beyond which an error says nothing more about the spread


Pair = tuple[int, int]  # places of two rows that differ in precision


@dataclass(frozen=True)
class Prediction:
    """A predicted step beside the measured one."""

    table: dict[str, str]
    is_known: bool
    step_ms: float
    shares: Mapping[Class, float]

    @property
    def error(self) -> float:
        """The logarithm of predicted over measured."""
        return log(self.step_ms / float(self.table["step_ms"]))


@dataclass(frozen=True)
class Spreads:
    """Standard deviations of errors by class of work, and the correlation of two modes' errors."""

    of: Mapping[Class, float]
    correlation: float

    def step(self, prediction: Prediction) -> float:
        shares = {"step": 1.0, **prediction.shares}
        return float(np.sqrt(sum((shares[name] * self.of[name]) ** 2 for name in CLASSES)))

    def speedup(self, first: Prediction, second: Prediction) -> float:
        return _joined(self.step(first), self.step(second), self.correlation)


def _joined(first: float, second: float, correlation: float) -> float:
    return float(np.sqrt(first**2 + second**2 - 2 * correlation * first * second))


def spreads(
    by_gpu: Sequence[Prediction],
    by_family: Sequence[Prediction],
    by_chip: Sequence[Prediction],
    pairs: Sequence[Pair],
) -> Spreads:
    """The spreads by which nine of ten steps and speed-ups lie within their ranges where a GPU or a family of models
    was left out; the classes' shares are the likeliest. `unknown chip` is what leaving out a kind of chip adds."""
    sure = [one for one in by_gpu if not one.table["doubt"]]
    unseen = [*sure, *(one for one in by_family if one.is_known)]
    errors, shares = (
        _errors(unseen),
        np.array([[{"step": 1.0, **one.shares}[name] for name in CLASSES] for one in unseen]),
    )

    def variances(logarithms: Floats) -> Floats:
        found: Floats = (shares * np.exp(logarithms)) ** 2 @ np.ones(len(CLASSES))
        return found

    def cost(logarithms: Floats) -> float:
        of_each = variances(logarithms)
        return float(np.sum(np.log(of_each) + np.minimum(errors**2 / of_each, _OUTLIER**2)))

    bounds = [(log(_LEAST_SPREAD), 0.0)] * len(CLASSES)
    best = minimize(cost, np.full(len(CLASSES), log(0.1)), bounds=bounds).x
    scale = np.quantile(errors / np.sqrt(variances(best)), 0.9) / NINE_OF_TEN
    steps = Spreads(dict(zip(CLASSES, (np.exp(best) * scale).tolist(), strict=True)), 0.0)
    of_chips = [one for one in by_chip if not one.table["doubt"]]
    sigmas, chip_errors = np.array([steps.step(one) for one in of_chips]), _errors(of_chips)
    unknown = _root(lambda added: _nine(chip_errors, np.sqrt(sigmas**2 + added**2)), 0.0, 1.0)
    couples = [(by_gpu[base], by_gpu[low]) for base, low in pairs if not by_gpu[base].table["doubt"]]
    couples += [(by_family[base], by_family[low]) for base, low in pairs if by_family[base].is_known]
    of_pairs = np.abs([base.error - low.error for base, low in couples])

    def excess(correlation: float) -> float:
        return _nine(of_pairs, np.array([_joined(steps.step(a), steps.step(b), correlation) for a, b in couples]))

    correlation = -_root(lambda value: excess(-value), -0.95, 0.95)
    return Spreads({**steps.of, "unknown chip": unknown, "not measured": _NOT_MEASURED}, correlation)


def _errors(predictions: Sequence[Prediction]) -> Floats:
    errors: Floats = np.abs([one.error for one in predictions])
    return errors


def _nine(errors: Floats, sigmas: Floats) -> float:
    """Above 0 if fewer than nine of ten errors lie within their ranges."""
    return float(np.quantile(errors / sigmas, 0.9) - NINE_OF_TEN)


def _root(excess: Callable[[float], float], low: float, high: float) -> float:
    """Where a falling excess is 0, or the end that is nearest."""
    if excess(low) <= 0:
        return low
    return high if excess(high) >= 0 else float(brentq(excess, low, high, xtol=1e-3))


def errors_page(
    seen: Sequence[Prediction],
    unseen: Mapping[str, Sequence[Prediction]],
    pairs: Sequence[Pair],
    found: Spreads,
) -> str:
    """Markdown: errors of what was left out, by workload and by GPU, and the worst."""
    title = "# Errors of predicted speeds\n\nWritten by `python -m published.fit`. An error of 10 % is a factor of 1.1."
    header = ["what was left out of the fit", *_HEADER]
    lines = [_line("nothing (all was seen)", seen, pairs, found, known=True)]
    lines += [_line(f"the {name}", those, pairs, found, known=True) for name, those in unseen.items()]
    others = [_line(f"the {name}", unseen[name], pairs, found, known=False) for name in ("GPU", "kind of chip")]
    by_gpu = unseen["GPU"]
    return "\n\n".join(
        [
            title,
            f"## BERT, GPT, OPT and ResNet-50, rows without a doubt\n\n{_table(header, lines)}",
            f"## All other rows\n\n{_table(header, others)}",
            *(
                f"## By {name}, its GPU left out\n\n{_table([name, *_HEADER], _groups(by_gpu, pairs, found, name))}"
                for name in ("workload", "gpu")
            ),
            f"## The worst ten of the known families, their GPU left out\n\n{_worst(by_gpu)}\n",
        ]
    )


_HEADER: Final = (
    *("rows", "step: median", "90th pct.", "in range", "width (factor)"),
    *("pairs", "speed-up: median", "90th pct.", "in range"),
)


def _line(name: str, those: Sequence[Prediction], pairs: Sequence[Pair], found: Spreads, *, known: bool) -> list[str]:
    own = [one for one in those if one.is_known == known]
    couples = [(those[a], those[b]) for a, b in pairs if those[a].is_known == those[b].is_known == known]
    return [name, *_figures(own, couples, found)]


def _groups(those: Sequence[Prediction], pairs: Sequence[Pair], found: Spreads, column: str) -> Iterator[list[str]]:
    groups: dict[str, list[Prediction]] = defaultdict(list)
    for one in those:
        groups[one.table[column]].append(one)
    for name, own in sorted(groups.items()):
        couples = [(those[a], those[b]) for a, b in pairs if those[a].table[column] == name]
        yield [name, *_figures(own, couples, found)]


def _figures(own: Sequence[Prediction], couples: Sequence[tuple[Prediction, Prediction]], found: Spreads) -> list[str]:
    steps = np.abs([one.error for one in own])
    sigmas = np.array([found.step(one) for one in own])
    width = f"{np.median([in_range(1.0, sigma).high ** 2 for sigma in sigmas]):.2f}"
    cells = [str(len(own)), *_quantiles(steps, sigmas), width, str(len(couples))]
    if not couples:
        return [*cells, "", "", ""]
    speedups = np.abs([base.error - low.error for base, low in couples])
    return [*cells, *_quantiles(speedups, np.array([found.speedup(*couple) for couple in couples]))]


def _quantiles(errors: Floats, sigmas: Floats) -> list[str]:
    median, most = (100 * (exp(value) - 1) for value in np.quantile(errors, (0.5, 0.9)))
    return [f"{median:.1f} %", f"{most:.1f} %", f"{100 * np.mean(errors <= NINE_OF_TEN * sigmas):.0f} %"]


def _worst(those: Sequence[Prediction]) -> str:
    worst = sorted((one for one in those if one.is_known), key=lambda one: -abs(one.error))[:10]
    names = ("workload", "gpu", "batch", "precision", "source", "framework")
    rows = [
        [*(one.table[name] for name in names), f"{float(one.table['step_ms']):.0f}", f"{one.step_ms:.0f}"]
        for one in worst
    ]
    return _table([*names, "measured ms", "predicted ms"], rows)


def _table(header: Sequence[str], rows: Any) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def rounded(values: Any) -> Any:
    """Nested values with numbers of three digits."""
    if isinstance(values, dict):
        return {key: rounded(value) for key, value in values.items()}
    return float(f"{values:.3g}") if isinstance(values, float) else values
