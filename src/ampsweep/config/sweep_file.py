"""Reads W&B sweep files without W&B: the points of a sweep as overrides.

The keys are those of https://docs.wandb.ai/guides/sweeps/sweep-config-keys/.
"""

import hashlib
import itertools
import math
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from ampsweep.config.errors import UserError

Parameter = Mapping[str, Any]  # one parameter of a sweep, as written in its file

_PLAIN: Final = re.compile(r"[A-Za-z_][\w./+-]*")
"""Text that needs no quotes in an override (https://hydra.cc/docs/advanced/override_grammar/basic/)."""


def sweep_points(path: Path, count: int | None = None) -> list[tuple[str, ...]]:
    """The points of the sweep in `path`, each as overrides, in the order in which an agent gets them.

    In a grid the first parameter varies slowest. A random sweep has `count` or `run_cap` points, whichever is less, and
    the same each time.

    Raises:
        UserError: the file cannot be read, is not a sweep, or needs a W&B server.
    """
    try:
        text = path.read_text(encoding="utf-8")
        content = yaml.safe_load(text)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from error
    except yaml.YAMLError as error:
        raise UserError(f"{path}: not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict) or not isinstance(content.get("parameters"), dict):
        raise UserError(f"{path}: not a sweep (it has no parameters)")
    try:
        return list(_points(content, count, seed=hashlib.sha256(text.encode()).hexdigest()))
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def _points(content: Mapping[str, Any], count: int | None, *, seed: str) -> Iterator[tuple[str, ...]]:
    method, cap = content.get("method"), content.get("run_cap")
    parameters = dict(_flat(content["parameters"]))
    program, words = content.get("program", "train.py"), map(str, content.get("command", ()))
    if Path(str(program)).name != "train.py":
        raise UserError(f"program {program}: is not train.py")
    fixed = [word for word in words if "=" in word and not word.startswith(("$", "-"))]
    if method == "grid":
        keys = [[f"{key}={_hydra(value)}" for value in _values(key, of)] for key, of in parameters.items()]
        points: Iterator[tuple[str, ...]] = itertools.product(*keys)
    elif method == "random":
        if count is None and cap is None:
            raise UserError("a random sweep has no end; say how many points with --count or run_cap")
        points = (_drawn(parameters, random.Random(f"{seed}/{number}")) for number in itertools.count())
    else:
        raise UserError(f"method {method}: needs a W&B server (`wandb sweep`); without one there are grid and random")
    limits = [limit for limit in (count, cap) if limit is not None]
    yield from ((*fixed, *point) for point in itertools.islice(points, min(limits) if limits else None))


def _flat(parameters: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Parameter]]:
    for key, parameter in parameters.items():
        if not isinstance(parameter, dict):
            raise UserError(f"parameter {prefix}{key}: has neither value nor values")
        if "parameters" in parameter:
            yield from _flat(parameter["parameters"], f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", parameter


def _values(key: str, parameter: Parameter) -> Sequence[Any]:
    values = [parameter["value"]] if "value" in parameter else parameter.get("values")
    if not isinstance(values, list) or not values:
        raise UserError(f"parameter {key}: a grid takes a value or a list of values")
    return values


def _drawn(parameters: Mapping[str, Parameter], source: random.Random) -> tuple[str, ...]:
    return tuple(f"{key}={_hydra(draw(key, parameter, source))}" for key, parameter in parameters.items())


def _hydra(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{','.join(_hydra(item) for item in value)}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{key}:{_hydra(item)}' for key, item in value.items())}}}"
    text = str(value)
    if not isinstance(value, str) or (_PLAIN.fullmatch(text) and text not in ("null", "true", "false", "nan", "inf")):
        return text
    return "'" + text.replace("\\'", "\\\\'").replace("'", "\\'") + "'"


# https://docs.wandb.ai/guides/sweeps/sweep-config-keys/#distribution-options-for-random-and-bayesian-search
_DRAWS: Final[Mapping[str, Callable[[Parameter, random.Random], Any]]] = {
    "constant": lambda given, source: given["value"],
    "categorical": lambda given, source: source.choices(given["values"])[0],
    "int_uniform": lambda given, source: source.randint(given["min"], given["max"]),
    "uniform": lambda given, source: source.uniform(given["min"], given["max"]),
    "log_uniform_values": lambda given, source: math.exp(source.uniform(*map(math.log, (given["min"], given["max"])))),
}


def draw(key: str, parameter: Parameter, source: random.Random) -> Any:
    """Draw a value of the parameter `key`; raises UserError if its distribution is unknown or incomplete."""
    if "probabilities" in parameter:
        raise UserError(f"parameter {key}: probabilities are left to a W&B server; here all values are equally likely")
    are_whole = all(isinstance(parameter.get(end), int) for end in ("min", "max"))
    by_default = "categorical" if "values" in parameter else "int_uniform" if are_whole else "uniform"
    name = str(parameter.get("distribution") or ("constant" if "value" in parameter else by_default))
    if name not in _DRAWS:
        raise UserError(f"parameter {key}: no distribution {name!r}; there are {', '.join(_DRAWS)}")
    try:
        return _DRAWS[name](parameter, source)
    except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
        raise UserError(f"parameter {key}: {name} cannot be drawn from {dict(parameter)}") from error
