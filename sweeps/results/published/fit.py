"""The speed model fitted to `measurements.csv`, and its errors on what a fit has not seen: in `sweeps/results`

    python -m published.fit TRACES [--write]

with the file of `published.traces`. It prints the errors and the parameters; `--write` puts them into `errors.md` and
`src/ampsweep/speed/fitted.json`. It takes all cores and some minutes, and needs SciPy.
"""

import argparse
import json
import multiprocessing
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from scipy.optimize import least_squares

from ampsweep.speed import fitted as fitted_module
from ampsweep.speed.fitted import Fit
from ampsweep.speed.kernel_times import Floats, Parameters, chip
from published.errors import Prediction, errors_page, rounded, spreads
from published.measured_rows import OnDevice, Row, load, on_devices, pairs, predict

_STEP_ERROR: Final = 0.1  # standard deviation of the logarithm, in the loss
_PRIOR_SPREAD: Final = 0.1  # of the logarithm of a parameter, in units of the loss, around `START`
_EVALUATIONS, _EVALUATIONS_OF_A_FOLD = 12, 4

_RELATIVES: Final = {
    "6.0": "6.1",
    "6.1": "7.0",
    "7.0": "7.5",
    "7.5": "7.0",
    "8.0": "8.6",
    "8.6": "8.0",
    "8.9": "8.6",
    "9.0": "8.0",
    "10.0": "8.0",
    "10.3": "8.0",
    "12.0": "8.6",
}
"""Kinds of chips, and for each the one whose values it takes where nothing was measured on it."""
START: Final = Parameters(
    watts=dict.fromkeys(_RELATIVES, 2.3),
    tensor_share=dict.fromkeys(_RELATIVES, 0.75),
    float32_share=0.85,
    convolution_share={"half": 0.9, "float32": 0.9, "float32 3x3": 1.3, "float32 9.0": 0.9},
    convolution_reading={"half": 0.9, "half channels first": 0.5, "tf32": 0.7},
    grouped_share={"half": 0.3, "half channels first": 0.1, "tf32": 0.1, "float32": 0.2},
    overlap=4.0,
    misaligned_share=0.7,
    attention_share=0.5,
    tile_us=0.5,
    tile_bytes_per_clock=64.0,
    bandwidth_share=0.8,
    l2_speed=1.5,
    strided_share=0.5,
    elements_per_clock={
        "elementwise": 2.5,
        "transcendental": 2.0,
        "normalization": 1.0,
        "batch_norm": 1.0,
        "batch_norm bfloat16": 1.0,
        "softmax": 0.8,
        "reduction": 0.8,
    },
    kernel_us=3.0,
    forward_us=30.0,
    backward_us=12.0,
    compiled_us=6.0,
    step_us=500.0,
    others_step_us=3000.0,
)
_BOUNDS: Final[dict[str, tuple[float, float]]] = {
    "watts": (1, 4),
    "tensor_share": (0.3, 1),
    "float32_share": (0.5, 1),
    "convolution_share": (0.2, 1),
    "convolution_share float32 3x3": (0.5, 2.25),
    "convolution_reading": (0.1, 3),
    "grouped_share": (0.02, 1),
    "overlap": (1.5, 12),
    "misaligned_share": (0.15, 1),
    "attention_share": (0.1, 1),
    "tile_us": (0.1, 1.5),
    "tile_bytes_per_clock": (20, 130),
    "bandwidth_share": (0.5, 0.95),
    "l2_speed": (1, 4),
    "strided_share": (0.2, 1),
    "elements_per_clock": (0.2, 8),
    "kernel_us": (1, 6),
    "forward_us": (4, 60),
    "backward_us": (4, 40),
    "compiled_us": (1, 30),
    "step_us": (1, 20000),
    "others_step_us": (200, 20000),
}
"""What each may be, its starting value and its bounds: physics, not data; where a fit has no data the start stays."""

Name = tuple[str, str | None]  # of a parameter and, in a mapping, its key
Key = Callable[[Row], str]


def flat(parameters: Parameters) -> dict[Name, float]:
    found: dict[Name, float] = {}
    for field in fields(parameters):
        value = getattr(parameters, field.name)
        found |= (
            {(field.name, key): one for key, one in value.items()}
            if isinstance(value, dict)
            else {(field.name, None): value}
        )
    return found


def with_values(parameters: Parameters, values: dict[Name, float]) -> Parameters:
    changes: dict[str, Any] = {}
    for (name, key), value in values.items():
        changes[name] = value if key is None else {**changes.get(name, getattr(parameters, name)), key: value}
    return replace(parameters, **changes)


def fit(rows: Sequence[Row], begin: Parameters, evaluations: int) -> Parameters:
    """The parameters that minimize the errors of step times and of speed-ups, as logarithms, and the distance to
    `START`; outliers count by the square root of their squares."""
    devices = on_devices(rows)
    position = {row: place for place, row in enumerate(row for device in devices for row in device.rows)}
    places = np.array([position[row] for row in rows])
    names, starts = [*flat(START)], np.log([*flat(START).values()])
    measured, weights = np.log([1e3 * row.step_ms for row in rows]), np.array([row.weight for row in rows])
    base, low = np.array(pairs(rows)).T
    pair_weights = np.sqrt(weights[base] * weights[low])
    # A device has times of its own for each set of the values that concern it; most values concern one kind of chip.
    concern = {
        device: [n for n, (_, key) in enumerate(names) if key not in _RELATIVES or key == chip(device.device)]
        for device in devices
    }
    known: dict[tuple[OnDevice, bytes], list[float]] = {}

    def steps(device: OnDevice, values: Floats, parameters: Parameters) -> list[float]:
        key = device, values[concern[device]].tobytes()
        if key not in known:
            known[key] = device.steps_us(parameters)
        return known[key]

    def residuals(values: Floats) -> Floats:
        parameters = with_values(START, dict(zip(names, np.exp(values).tolist(), strict=True)))
        predicted = np.concatenate([steps(device, values, parameters) for device in devices])[places]
        errors = np.log(predicted) - measured
        speedups = pair_weights * (errors[base] - errors[low])
        prior = (values - starts) * _PRIOR_SPREAD
        joined: Floats = np.concatenate([weights * errors, speedups, prior]) / _STEP_ERROR
        return joined

    limits = np.log([_BOUNDS.get(f"{name} {key}") or _BOUNDS[name] for name, key in names]).T
    first = np.clip(np.log([*flat(begin).values()]), limits[0] + 1e-6, limits[1] - 1e-6)
    found = least_squares(residuals, first, bounds=limits, loss="soft_l1", diff_step=1e-3, max_nfev=evaluations)
    values = dict(zip(names, np.exp(found.x).tolist(), strict=True))
    measured_chips = {chip(device.device) for device in devices}
    for name, key in names:
        if key in _RELATIVES and key not in measured_chips:
            values[name, key] = values[name, _RELATIVES[key]]
    return with_values(START, values)


def unseen(rows: Sequence[Row], key: Key, begin: Parameters) -> list[Prediction]:
    """Predictions of each row by a fit to the rows with another key. A model or family that the aims are not for is
    never left out; its rows are as `begin` predicts them."""
    folds = sorted({key(row) for row in rows if row.is_known or key in (gpu, chip_of)})
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("fork")) as pool:
        of_folds = [*pool.map(partial(_fold, rows, key, begin), folds)]
    found = dict(enumerate(predict(rows, begin)))
    found |= {place: prediction for fold in of_folds for place, prediction in fold.items()}
    return [found[place] for place in range(len(rows))]


def _fold(rows: Sequence[Row], key: Key, begin: Parameters, left_out: str) -> dict[int, Prediction]:
    fitted = fit([row for row in rows if key(row) != left_out], begin, _EVALUATIONS_OF_A_FOLD)
    places = [place for place, row in enumerate(rows) if key(row) == left_out]
    return dict(zip(places, predict([rows[place] for place in places], fitted), strict=True))


def gpu(row: Row) -> str:
    return row.table["gpu"]


def chip_of(row: Row) -> str:
    return chip(row.device)


def family(row: Row) -> str:
    return row.table["family"]


def model(row: Row) -> str:
    """BERT-large's head may vary."""
    return re.sub("(bert_[a-z]+)_.*", r"\1", row.table["recipe"].split()[0])


_KEYS: Final[dict[str, Key]] = {"GPU": gpu, "kind of chip": chip_of, "model": model, "family of models": family}


def main(path: Path, *, writes: bool) -> None:
    rows = load(path)
    fitted = fit(rows, START, _EVALUATIONS)
    left_out = {name: unseen(rows, key, fitted) for name, key in _KEYS.items()}
    found = spreads(left_out["GPU"], left_out["family of models"], left_out["kind of chip"], pairs(rows))
    chips = tuple(sorted({chip(row.device) for row in rows}))
    result = rounded(msgspec.to_builtins(Fit(fitted, found.of, found.correlation, chips)))
    page, text = errors_page(predict(rows, fitted), left_out, pairs(rows), found), json.dumps(result, indent=2)
    print(page, text, sep="\n")
    if writes:
        Path(__file__).with_name("errors.md").write_text(page)
        Path(fitted_module.__file__).with_name("fitted.json").write_text(text + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", type=Path, help="the file of published.traces")
    parser.add_argument("--write", action="store_true", help="write the parameters and the errors")
    given = parser.parse_args()
    main(given.traces, writes=given.write)
