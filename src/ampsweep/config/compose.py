"""Compose every point of a command line before anything starts, exactly as Hydra will compose it for the jobs."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import MarkedYAMLError

from ampsweep.config import hydra_config  # which also registers the schemas
from ampsweep.config.errors import UserError, not_yaml, unknown_key, user_error
from ampsweep.config.hydra_config import to_config, without_hydra
from ampsweep.config.overrides import (
    check_overrides,
    deferred,
    first_values,
    is_for_points,
    line,
    parse_overrides,
    product,
)
from ampsweep.config.schema import Config
from ampsweep.config.value_checks import check

CONFIG_NAME = "config"
_BASIC_SWEEPER = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"

Launcher = Literal["here", "workers", "slurm"]
_LAUNCHERS: Final[dict[str, Launcher]] = {
    "hydra._internal.core_plugins.basic_launcher.BasicLauncher": "here",
    "hydra_plugins.hydra_submitit_launcher.submitit_launcher.SlurmLauncher": "slurm",
}


@dataclass(frozen=True)
class Point:
    """One training of a command line: its overrides and the config they compose to."""

    overrides: tuple[str, ...]
    config: Config


@dataclass(frozen=True)
class Points:
    """All the trainings that a command line asks for."""

    multirun: bool
    points: tuple[Point, ...]
    """All points in the order they run. A sweeper that chooses points as it goes makes only the first known."""
    calls: tuple[tuple[str, ...], ...]
    """The command lines to give Hydra one after another (`ampsweep.config.overrides.deferred`), mostly one."""
    all_known: bool = True
    """True if `points` holds every point of the command line."""
    launcher: Launcher = "here"
    """The processes in which the jobs are called: this one, one after the other; workers of this machine; jobs of Slurm
    on machines that need not be like this one."""


def conf_dir() -> Path:
    """Find the suite's `conf/`.

    Raises:
        UserError: it is gone.
    """
    if not hydra_config.CONF.is_dir():
        raise UserError(f"{hydra_config.CONF} does not exist; install ampsweep again from its repository")
    return hydra_config.CONF


def compose_points(
    overrides: Sequence[str],
    *,
    multirun: bool,
    config_name: str = CONFIG_NAME,
    on_multirun: Callable[[], None] | None = None,
) -> Points:
    """Compose and check every point of `overrides`; call `on_multirun` as soon as there may be several.

    Raises:
        UserError: one sentence about the first fault.
    """
    with _hydra(), _as_user_errors():
        parsed = parse_overrides(overrides)
        check_overrides(parsed, conf_dir())
        swept = [override for override in parsed if override.is_sweep_override()]
        for_all = [line(override) for override in parsed if not is_for_points(override)]
        base = _compose(config_name, for_all)
        if not (multirun or base.hydra.mode == RunMode.MULTIRUN):
            if swept:
                raise UserError(f"{line(swept[0])} names several values; add -m to sweep over them")
            composed = base if len(for_all) == len(parsed) else _compose(config_name, overrides)
            return Points(False, (_point(composed, overrides),), (tuple(overrides),))
        if on_multirun is not None:
            on_multirun()
        target = base.hydra.launcher.get("_target_")
        launcher = _LAUNCHERS.get(str(target), "workers")
        if base.hydra.sweeper.get("_target_") != _BASIC_SWEEPER:
            first = tuple(first_values(parsed))
            known = (_point(_compose(config_name, first), first),)
            return Points(True, known, (tuple(overrides),), all_known=False, launcher=launcher)
        lines = [deferred(override) for override in parsed]
        params = [f"{key}={value}" for key, value in (base.hydra.sweeper.params or {}).items()]
        choices = product(parse_overrides([*params, *lines]))
        points = tuple(map(_PointComposer(config_name).point, choices))
        return Points(True, points, (tuple(lines),), launcher=launcher)


def compose_each(points: Sequence[Sequence[str]]) -> Points:
    """Compose and check points given one by one, each with its overrides, as one multirun.

    Raises:
        UserError: one sentence about the first fault.
    """
    with _hydra(), _as_user_errors():
        for point in points:
            parsed = parse_overrides(point)
            check_overrides(parsed, conf_dir())
            for override in parsed:
                if override.is_sweep_override():
                    raise UserError(f"{line(override)} names several values for one point")
        composed = tuple(map(_PointComposer(CONFIG_NAME).point, points))
        return Points(True, composed, tuple(tuple(point) for point in points))


class _PointComposer:
    """Composes the points of a sweep; Hydra takes a tenth of a second for each.

    A point that differs from an earlier one in plain values only is made from that, by the function that Hydra sets
    values with. What that refuses Hydra composes, too, and says why.
    """

    def __init__(self, config_name: str) -> None:
        self._config_name = config_name
        self._composed: dict[tuple[tuple[str, ...], tuple[str, ...]], DictConfig] = {}
        """By overrides and by keys of plain values: the config, with the values of the last point."""
        self._parsed: dict[str, Override] = {}
        self._is_group: dict[str, bool] = {}

    def point(self, overrides: Sequence[str]) -> Point:
        parsed = [self._parse(one) for one in overrides]
        plain = {one.key_or_group: one.value() for one in parsed if self._is_plain(one)}
        others = [one for one in parsed if not self._is_plain(one)]
        place = tuple(map(line, others)), tuple(plain)
        composed = self._composed.get(place)
        if composed is not None and all(_keeps_type(composed, key, value) for key, value in plain.items()):
            try:
                for key, value in plain.items():
                    OmegaConf.update(composed, key, value, merge=True)
                return _point(composed, overrides)
            except OmegaConfBaseException:
                pass
        composed = _compose(self._config_name, overrides)
        if all(_takes_plain(composed, key, others) for key in plain):
            self._composed[place] = without_hydra(composed)
        return _point(composed, overrides)

    def _parse(self, override: str) -> Override:
        if override not in self._parsed:
            (self._parsed[override],) = parse_overrides([override])
        return self._parsed[override]

    def _is_plain(self, override: Override) -> bool:
        """True if the override sets a number, a text or null, and chooses no option of a group."""
        key, value = override.key_or_group, override.value()
        if override.is_add() or override.is_force_add() or override.is_delete() or override.is_hydra_override():
            return False
        if key not in self._is_group:
            self._is_group[key] = bool(GlobalHydra.instance().config_loader().get_group_options(key))
        is_scalar = value is None or isinstance(value, str | int | float | bool)
        return is_scalar and override.package is None and not self._is_group[key]


def _keeps_type(composed: DictConfig, key: str, value: object) -> bool:
    """True if a key of the topmost level, whose type is lost without Hydra's part, gets a value of the type it has."""
    return "." in key or type(value) is type(composed[key])


def _takes_plain(composed: DictConfig, key: str, others: Sequence[Override]) -> bool:
    """True if the config has a plain value at the key, and no other override sets what holds it, or a part of it."""
    top, _, name = key.rpartition(".")
    node = OmegaConf.select(composed, top) if top else composed
    if not isinstance(node, DictConfig):
        return False
    has_no_type = OmegaConf.is_missing(node, name) or OmegaConf.is_interpolation(node, name)
    if not has_no_type and OmegaConf.is_config(node[name]):
        return False
    chosen = [one.key_or_group for one in others if not isinstance(one.value(), str)]  # a text chooses an option
    return not any(f"{key}.".startswith(f"{one}.") or f"{one}.".startswith(f"{key}.") for one in chosen)


def compose_one(overrides: Sequence[str], config_name: str = CONFIG_NAME) -> Config:
    """Compose and check a single point.

    Raises:
        UserError: one sentence about the first fault.
    """
    return compose_points(overrides, multirun=False, config_name=config_name).points[0].config


def _point(composed: DictConfig, overrides: Sequence[str]) -> Point:
    unknown = [str(key) for key in composed if key != "hydra" and key not in Config.__dataclass_fields__]
    if unknown:
        raise UserError(unknown_key(unknown[0], Config.__dataclass_fields__))
    config = to_config(composed)
    check(config)
    return Point(tuple(overrides), config)


def _compose(config_name: str, overrides: Sequence[str]) -> DictConfig:
    try:
        with composing():
            return compose(config_name, list(overrides), return_hydra_config=True)
    except AssertionError as error:  # what OmegaConf raises for a key below a value that is None (`resume.x=1`)
        raise UserError(f"{' '.join(overrides)}: one of the keys is below a value that has none") from error


def _hydra() -> AbstractContextManager[None]:
    return initialize_config_dir(config_dir=str(conf_dir()), version_base="1.3")


@contextmanager
def composing() -> Iterator[None]:
    """Turn what Hydra raises inside about the user's config files into one sentence, as a UserError."""
    try:
        with _as_user_errors():
            yield
    except UserError:
        raise
    except MarkedYAMLError as error:
        raise UserError(not_yaml(error)) from error
    except UnicodeDecodeError as error:
        raise UserError(f"a YAML file of the config is not UTF-8 text: {error.reason} at byte {error.start}") from error
    except (ValueError, TypeError, AttributeError, RecursionError) as error:  # a file of another shape than Hydra's
        raise UserError(f"the config cannot be composed: {' '.join(str(error).split())}") from error


@contextmanager
def _as_user_errors() -> Iterator[None]:
    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        raise user_error(error) from error
