"""The runs of a command line as its display names them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from ampsweep.config.compose import Point
from ampsweep.config.identity import config_hash
from ampsweep.config.modes import DOTTED_ARM_KEYS
from ampsweep.config.schema import Config, component_name
from ampsweep.redaction import hide
from ampsweep.run.request import planned_arm
from ampsweep.text import first_line

_MAX_SETTING: Final = 32
_NOT_IN_SETTING: Final = {"precision", "tracking", "into", "resume", *DOTTED_ARM_KEYS}
"""Left out of a run's setting: the arm names precision and checkpoint; the others do not change any figure."""
_SHORT: Final = {"data.batch_size": "batch"}
_NAMES: Final = ("model", "data", "task", "optimizer", "scheduler", "parallel")
"""Groups whose choices are shown without their name."""


@dataclass(frozen=True)
class PlannedRun:
    arm: str
    setting: str  # the settings that distinguish the run from others of its arm, such as 'gpt_tiny batch 8 seed 0'
    max_seconds: float | None = None


class Plan:
    """The runs of a command line in their order; `finished` are the hashes of configs that need no run. Runs that are
    not the suite's come with their hashes. `is_open`: only those will run that turn out to be needed."""

    def __init__(
        self,
        points: Sequence[Point] | Mapping[str, PlannedRun],
        finished: Collection[str] = (),
        *,
        is_open: bool = False,
    ) -> None:
        if not isinstance(points, Mapping):
            varied = _varied(points)
            points = {config_hash(point.config): _planned(point.config, _setting(point, varied)) for point in points}
        self._runs = {key: run for key, run in points.items() if key not in finished}
        self.runs, self.num_runs = tuple(self._runs.values()), len(points)  # those to run, and how many with the others
        self.num_finished = self.num_runs - len(self.runs)
        self.is_open = is_open
        self.arm_width = max((len(run.arm) for run in self.runs), default=0)
        self.setting_width = max((len(run.setting) for run in self.runs), default=0)

    def of(self, config: Config | PlannedRun) -> PlannedRun:
        """Find the run of `config`, or name it by its config if it was not planned."""
        if isinstance(config, PlannedRun):
            return config
        return self._runs.get(config_hash(config)) or _planned(config, _alone(config))


def _planned(config: Config, setting: str) -> PlannedRun:
    setting = hide(setting, beside=asdict(config))
    return PlannedRun(planned_arm(config), setting, config.trainer.max_seconds)


def _varied(points: Sequence[Point]) -> list[str]:
    """List the keys whose values differ between points."""
    values: dict[str, set[str]] = {}
    for point in points:
        for key, value in _choices(point).items():
            if not {key, key.split(".")[0]} & _NOT_IN_SETTING:
                values.setdefault(key, set()).add(value)
    return [key for key, chosen in values.items() if len(chosen) > 1]


def _setting(point: Point, varied: Sequence[str]) -> str:
    if not varied:
        return _alone(point.config)
    words = []
    for key, value in _choices(point).items():
        if key in varied:
            words.append(value if key in _NAMES else f"{_SHORT.get(key) or key.rpartition('.')[2]} {value}")
    return first_line(" ".join(words), _MAX_SETTING)


def _alone(config: Config) -> str:
    return f"{component_name(config.model)} seed {config.seed}"


def _choices(point: Point) -> dict[str, str]:
    """Map each override's key to its value as written, with the seed last."""
    pairs = (override.lstrip("+~").partition("=") for override in point.overrides)
    found = {key: value for key, _, value in pairs}
    return {key: found[key] for key in sorted(found, key=lambda key: key == "seed")}
