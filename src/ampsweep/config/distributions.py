"""The distributions that a W&B sweep draws its parameters from.

https://docs.wandb.ai/guides/sweeps/sweep-config-keys/#distribution-options-for-random-and-bayesian-search
"""

import math
import random
from collections.abc import Callable, Mapping
from typing import Any, Final

from ampsweep.config.errors import UserError

Parameter = Mapping[str, Any]


def _uniform(given: Parameter, source: random.Random) -> float:
    return source.uniform(given["min"], given["max"])


def _log_uniform_values(given: Parameter, source: random.Random) -> float:
    return math.exp(source.uniform(math.log(given["min"]), math.log(given["max"])))


def _normal(given: Parameter, source: random.Random) -> float:
    return source.gauss(given.get("mu", 0.0), given.get("sigma", 1.0))


_DRAWS: Final[Mapping[str, Callable[[Parameter, random.Random], Any]]] = {
    "constant": lambda given, source: given["value"],
    "categorical": lambda given, source: source.choices(given["values"], given.get("probabilities"))[0],
    "int_uniform": lambda given, source: source.randint(given["min"], given["max"]),
    "uniform": _uniform,
    "log_uniform": lambda given, source: math.exp(_uniform(given, source)),
    "log_uniform_values": _log_uniform_values,
    "inv_log_uniform": lambda given, source: math.exp(-_uniform(given, source)),
    "inv_log_uniform_values": lambda given, source: (
        1 / _log_uniform_values({"min": 1 / given["max"], "max": 1 / given["min"]}, source)
    ),
    "normal": _normal,
    "log_normal": lambda given, source: math.exp(_normal(given, source)),
}
_ROUNDED: Final = ("uniform", "log_uniform", "log_uniform_values", "normal", "log_normal")
"""Those that have a form `q_...`, whose values are multiples of `q` (by default 1)."""


def draw(key: str, parameter: Parameter, source: random.Random) -> Any:
    """A value of the parameter ``key``.

    Raises:
        UserError: the parameter has no such distribution, or not what it takes.
    """
    name = str(parameter.get("distribution") or _default(parameter))
    plain = name.removeprefix("q_")
    if plain not in (_ROUNDED if name.startswith("q_") else _DRAWS):
        known = ", ".join([*_DRAWS, *(f"q_{one}" for one in _ROUNDED)])
        raise UserError(f"parameter {key}: no distribution {name!r}; there are {known}")
    try:
        value = _DRAWS[plain](parameter, source)
        if name.startswith("q_"):
            value = round(value / parameter.get("q", 1)) * parameter.get("q", 1)
    except (KeyError, TypeError, ValueError, ZeroDivisionError, OverflowError) as error:
        raise UserError(f"parameter {key}: {name} cannot be drawn from {dict(parameter)}") from error
    return value


def _default(parameter: Parameter) -> str:
    if "value" in parameter:
        return "constant"
    if "values" in parameter:
        return "categorical"
    are_whole = all(isinstance(parameter.get(end), int) for end in ("min", "max"))
    return "int_uniform" if are_whole else "uniform"
