"""Reads W&B sweep files without W&B: the points of a sweep, as overrides for those of train.py.

The keys are those of https://docs.wandb.ai/guides/sweeps/sweep-config-keys/.
"""

import hashlib
import itertools
import math
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from ampsweep.config.errors import UserError
from ampsweep.config.overrides import quoted

Parameter = Mapping[str, Any]  # one parameter of a sweep, as written in its file
Key = tuple[str, ...]  # of a parameter; nested ones have several names
Values = dict[Key, Any]  # of a point's parameters

_PLAIN: Final = re.compile(r"[A-Za-z_][\w./+-]*")
"""Text that needs no quotes in an override (https://hydra.cc/docs/advanced/override_grammar/basic/)."""


@dataclass(frozen=True)
class SweepFile:
    """A sweep that grid or random search can take the points of, without a W&B server."""

    content: Mapping[str, Any]
    digest: str  # of the text, which seeds the draws

    @property
    def command(self) -> list[str]:
        return [str(word) for word in self.content.get("command") or ()]

    @property
    def program(self) -> str | None:
        """The program, which a file may name in its command only; `train.py` if it does not say."""
        is_open = not self.command or "${program}" in self.command
        of_command = next((word for word in self.command if word.endswith(".py")), "train.py" if is_open else None)
        return str(self.content.get("program") or "") or of_command

    def points(self, count: int | None = None) -> list[Values]:
        """The values of each point, in the order in which an agent gets them.

        In a grid the first parameter varies slowest. A random sweep has `count` or `run_cap` points, whichever is less,
        and the same each time. Raises UserError if it has no such points, or needs a W&B server.
        """
        method, parameters = self.content.get("method"), dict(_flat(self.content["parameters"]))
        most = min((limit for limit in (count, self.content.get("run_cap")) if limit is not None), default=None)
        points: Iterator[Values]
        if method == "grid":
            values = [_values(".".join(key), of) for key, of in parameters.items()]
            points = (dict(zip(parameters, point, strict=True)) for point in itertools.product(*values))
        elif method != "random":
            raise UserError(
                f"method {method}: needs a W&B server (`wandb sweep`); without one there are grid and random"
            )
        elif most is None:
            raise UserError("a random sweep has no end; say how many points with --count or run_cap")
        else:
            sources = (random.Random(f"{self.digest}/{number}") for number in itertools.count())
            points = ({key: draw(".".join(key), of, source) for key, of in parameters.items()} for source in sources)
        return list(itertools.islice(points, most))

    def overrides(self, given: Sequence[str] = (), count: int | None = None) -> list[tuple[str, ...]]:
        """The distinct points of a sweep of train.py, each as overrides; `given` replace the values of their keys."""
        fixed = [word for word in self.command if "=" in word and not word.startswith(("$", "-"))]
        found: dict[tuple[str, ...], None] = {}
        for point in self.points(count):
            own = [f"{'.'.join(key)}={_hydra(value)}" for key, value in point.items()]
            found[tuple({item.partition("=")[0]: item for item in (*fixed, *own, *given)}.values())] = None
        return list(found)


def read_sweep(path: Path) -> SweepFile:
    """Read a sweep file; UserError: it cannot be read, or is not a sweep."""
    try:
        text = path.read_text(encoding="utf-8")
        content = yaml.safe_load(text)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot be read: {error}") from error
    except yaml.YAMLError as error:
        raise UserError(f"not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict) or not isinstance(content.get("parameters"), dict):
        raise UserError("not a sweep (it has no parameters)")
    return SweepFile(content, hashlib.sha256(text.encode()).hexdigest())


def _flat(parameters: Mapping[str, Any], prefix: Key = ()) -> Iterator[tuple[Key, Parameter]]:
    for name, parameter in parameters.items():
        key = (*prefix, str(name))
        if not isinstance(parameter, dict):
            raise UserError(f"parameter {'.'.join(key)}: has neither value nor values")
        if "parameters" in parameter:
            yield from _flat(parameter["parameters"], key)
        else:
            yield key, parameter


def _values(key: str, parameter: Parameter) -> Sequence[Any]:
    values = [parameter["value"]] if "value" in parameter else parameter.get("values")
    if not isinstance(values, list) or not values:
        raise UserError(f"parameter {key}: a grid takes a value or a list of values")
    return values


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
    return quoted(text)


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
