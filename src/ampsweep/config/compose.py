"""Compose every point of a command line before anything starts, exactly as Hydra will compose it for the jobs."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException
from yaml import MarkedYAMLError

from ampsweep.config import hydra_config  # which also registers the schemas
from ampsweep.config.errors import UserError, not_yaml, unknown_key, user_error
from ampsweep.config.hydra_config import to_config
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
_BASIC_LAUNCHER = "hydra._internal.core_plugins.basic_launcher.BasicLauncher"


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
    in_this_process: bool = True
    """True if the launcher calls the jobs in this process, one after the other."""


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
        launched = {"in_this_process": base.hydra.launcher.get("_target_") == _BASIC_LAUNCHER}
        if base.hydra.sweeper.get("_target_") != _BASIC_SWEEPER:
            first = tuple(first_values(parsed))
            known = (_point(_compose(config_name, first), first),)
            return Points(True, known, (tuple(overrides),), all_known=False, **launched)
        lines = [deferred(override) for override in parsed]
        params = [f"{key}={value}" for key, value in (base.hydra.sweeper.params or {}).items()]
        choices = product(parse_overrides([*params, *lines]))
        points = tuple(_point(_compose(config_name, chosen), chosen) for chosen in choices)
        return Points(True, points, (tuple(lines),), **launched)


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
        composed = tuple(_point(_compose(CONFIG_NAME, point), point) for point in points)
        return Points(True, composed, tuple(tuple(point) for point in points))


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


@contextmanager
def _hydra() -> Iterator[None]:
    with initialize_config_dir(config_dir=str(conf_dir()), version_base="1.3"):
        yield


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
