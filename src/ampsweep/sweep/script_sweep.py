"""W&B sweep files of any program: their points as commands, which a `wandb agent` would run."""

import json
import os
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ampsweep.analysis.foreign_runs import OF_PRECISION
from ampsweep.config.claims import claimed_precision
from ampsweep.config.errors import UserError
from ampsweep.config.sweep_file import SweepFile, Values
from ampsweep.redaction import hide
from ampsweep.sweep.command_runs import JSON_FILE, CommandPoint
from ampsweep.text import first_line, listed
from ampsweep.tracking.wandb.foreign_run import arm_label

_DEFAULT: Final = ("${env}", "${interpreter}", "${program}", "${args}")
_VARIABLE: Final = re.compile(r"\$\{envvar:([A-Z0-9_]*)\}")
_MACRO: Final = re.compile(r"\$\{(\w+)\}")
_SIGNS: Final = {"args": "--", "args_no_hyphens": "", "args_append_hydra": "+", "args_override_hydra": "++"}
"""What stands before each `name=value`, by macro."""
_MAX_SETTING: Final = 40


def is_of_suite(sweep: SweepFile) -> bool:
    """Whether the sweep's program is the suite's `train.py`, which need not be there."""
    file = Path(sweep.program or "")
    return file.name == "train.py" and (not file.is_file() or b"ampsweep.commands" in file.read_bytes())


def script_points(
    sweep: SweepFile, count: int | None, arm_keys: Sequence[str] = (), seed_key: str | None = None
) -> list[CommandPoint]:
    """The points of a sweep of any program, seed by seed, with those together that differ in their arm only: drift of
    the machine falls on all arms alike.

    UserError: the sweep needs a W&B server, its command or keys are wrong, or no key names the arms.
    """
    if sweep.content.get("early_terminate"):
        raise UserError("early_terminate: needs a W&B server; without one all points run to their end")
    points = sweep.points(None if sweep.content.get("method") == "grid" else count)
    flat = [{".".join(key): value for key, value in point.items()} for point in points]
    if not flat:
        raise UserError("it has no points")
    several = [key for key in flat[0] if len({repr(values[key]) for values in flat}) > 1]
    arms = arm_keys or [_key_of_arms(flat, several)]
    seeds = [seed_key] if seed_key else [key for key in flat[0] if key == "seed"]
    for option, key in [*(("--arm-key", key) for key in arms), *(("--seed-key", key) for key in seeds)]:
        if key not in flat[0]:
            raise UserError(f"{option} {key}: no such parameter; there are {listed(flat[0])}")
    others = [key for key in several if key not in (*arms, *seeds)]
    found: dict[int | None, dict[str, dict[str, CommandPoint]]] = defaultdict(lambda: defaultdict(dict))
    for point, values in zip(points, flat, strict=True):
        seed = values[seeds[0]] if seeds else None
        if seeds and type(seed) is not int:
            raise UserError(f"parameter {seeds[0]}: {seed} is no seed, which is a whole number")
        parameters, setting = _nested(point), {key: values[key] for key in others}
        new = CommandPoint(
            words=_command(sweep, parameters),
            arm=arm_label({key: values[key] for key in arms}),
            seed=seed,
            setting=_in_words(setting | ({"seed": seed} if seeds else {})),
            parameters=parameters,
        )
        found[seed][repr(setting)].setdefault(new.key, new)
    return [new for of_seed in found.values() for alike in of_seed.values() for new in alike.values()][:count]


def _in_words(setting: Mapping[str, Any]) -> str:
    shown = {key: f"{value:.4g}" if isinstance(value, float) else value for key, value in setting.items()}
    text = " ".join(f"{key.rpartition('.')[2]} {value}" for key, value in shown.items())
    return hide(first_line(text, _MAX_SETTING), beside=setting)


def _key_of_arms(points: Sequence[Mapping[str, Any]], several: Sequence[str]) -> str:
    """Of the parameters with several values, the one whose name or values are words for a precision."""
    named = [key for key in several if OF_PRECISION.search(key.lower())]
    found = named or [key for key in several if _are_precisions([point[key] for point in points])]
    if len(found) == 1:
        return found[0]
    which = f"{listed(found)} all could" if found else f"none of {listed(several or points[0])} seems to"
    raise UserError(f"which parameter names the arms? {which}; say which with --arm-key")


def _are_precisions(values: Iterable[Any]) -> bool:
    claims = [claimed_precision(value) if isinstance(value, str) else None for value in values]
    return None not in claims and any(claim is not None and claim.mode != "fp32" for claim in claims)


def _nested(values: Values) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for (*outer, name), value in values.items():
        inner = found
        for of in outer:
            inner = inner.setdefault(of, {})
        inner[name] = value
    return found


def _command(sweep: SweepFile, parameters: Mapping[str, Any]) -> tuple[str, ...]:
    """The command of a point, as an agent expands it (https://docs.wandb.ai/guides/sweeps/define-sweep-configuration/).
    `${interpreter}` is this Python, into which ampsweep is installed."""
    pairs = {key: f"{key}={value}" for key, value in parameters.items()}
    macros = {
        "env": [] if sys.platform == "win32" else ["/usr/bin/env"],
        "interpreter": [sys.executable],
        "program": [] if sweep.program is None else [sweep.program],
        "args_no_equals": [word for key, value in parameters.items() for word in (f"--{key}", str(value))],
        "args_no_boolean_flags": [
            f"--{key if value is True else pairs[key]}" for key, value in parameters.items() if value is not False
        ],
        "args_json": [json.dumps(parameters, default=str)],
        "args_json_file": [JSON_FILE],
        **{name: [f"{sign}{pair}" for pair in pairs.values()] for name, sign in _SIGNS.items()},
    }
    words: list[str] = []
    for word in sweep.command or _DEFAULT:
        plain = _VARIABLE.sub(lambda found: os.environ.get(found[1], found[1]), word)
        macro = _MACRO.fullmatch(plain)
        if macro is not None and macro[1] not in macros:
            raise UserError(f"command: no macro {plain}; there are {listed(macros)} and envvar:NAME")
        words += [plain] if macro is None else macros[macro[1]]
    return tuple(words)
