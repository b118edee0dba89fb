"""Composes every point of a command line before anything starts, exactly as Hydra will compose it for the jobs."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from ampsweep.config import registry  # noqa: F401  (registers the schemas)
from ampsweep.config.checks import check
from ampsweep.config.errors import UserError, unknown_key, user_error
from ampsweep.config.resolved import COMPONENTS, to_config
from ampsweep.config.schema import Config

CONFIG_NAME = "config"
_BASIC_SWEEPER = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"


@dataclass(frozen=True)
class Point:
    """One training of a command line: its overrides and what they compose to."""

    overrides: tuple[str, ...]
    config: Config


@dataclass(frozen=True)
class Points:
    """What a command line asks for."""

    multirun: bool
    points: tuple[Point, ...]
    """All points in the order they run; of a sweeper that chooses them as it goes, only the first can be known."""


def conf_dir() -> Path:
    """The repository's `conf/`.

    Raises:
        UserError: the package was installed without its repository.
    """
    directory = Path(__file__).resolve().parents[3] / "conf"
    if not directory.is_dir():
        raise UserError(f"{directory} does not exist; install ampsweep from its repository with pip install -e .")
    return directory


def compose_points(
    overrides: Sequence[str],
    *,
    multirun: bool,
    config_name: str = CONFIG_NAME,
    on_multirun: Callable[[], None] | None = None,
) -> Points:
    """Compose and check every point of `overrides`; `on_multirun` is called as soon as there may be several.

    Raises:
        UserError: one sentence about the first thing that is wrong.
    """
    with _hydra(), _as_user_errors():
        parsed = OverridesParser.create().parse_overrides(list(overrides))
        _refuse_new_keys(parsed)
        first = [_single(override) for override in parsed]
        base = compose(config_name, first, return_hydra_config=True)
        is_multirun = multirun or base.hydra.mode == RunMode.MULTIRUN
        swept = [override for override in parsed if override.is_sweep_override()]
        if not is_multirun and swept:
            raise UserError(f"{swept[0].input_line} names several values; add -m to sweep over them")
        if is_multirun and on_multirun is not None:
            on_multirun()
        if not is_multirun or base.hydra.sweeper.get("_target_") != _BASIC_SWEEPER:
            return Points(is_multirun, (_point(base, first),))
        params = [f"{key}={value}" for key, value in (base.hydra.sweeper.params or {}).items()]
        lines = _product(OverridesParser.create().parse_overrides([*params, *overrides]))
        return Points(True, tuple(_point(compose(config_name, list(line)), line) for line in lines))


def compose_one(overrides: Sequence[str], config_name: str = CONFIG_NAME) -> Config:
    """Compose and check a single point.

    Raises:
        UserError: one sentence about the first thing that is wrong.
    """
    return compose_points(overrides, multirun=False, config_name=config_name).points[0].config


def _point(composed: DictConfig, overrides: Sequence[str]) -> Point:
    unknown = [str(key) for key in composed if key != "hydra" and key not in Config.__dataclass_fields__]
    if unknown:
        raise UserError(unknown_key(unknown[0], Config.__dataclass_fields__))
    config = to_config(composed)
    check(config)
    return Point(tuple(overrides), config)


def _product(overrides: Sequence[Override]) -> Iterator[tuple[str, ...]]:
    """The points in the order of Hydra's basic sweeper: the first key varies slowest, a later value replaces."""
    choices: dict[str, list[str]] = {}
    for override in overrides:
        key = override.get_key_element()
        if override.is_discrete_sweep():
            choices[key] = [f"{key}={value}" for value in override.sweep_string_iterator()]
        elif override.is_sweep_override():
            raise UserError(f"{override.input_line}: the basic sweeper takes lists, not intervals")
        else:
            choices[key] = [f"{key}={override.get_value_element_as_str()}"]
    return itertools.product(*choices.values())


def _single(override: Override) -> str:
    """The override itself, or with its first value where it names several."""
    if not override.is_discrete_sweep():
        return str(override.input_line)
    return f"{override.get_key_element()}={next(iter(override.sweep_string_iterator()))}"


def _refuse_new_keys(overrides: Sequence[Override]) -> None:
    for override in overrides:
        top = override.key_or_group.partition(".")[0].partition("/")[0]
        changes_shape = override.is_add() or override.is_force_add() or override.is_delete()
        if changes_shape and top not in (*COMPONENTS, "hydra"):
            raise UserError(f"{override.input_line}: keys can be added or removed only in {', '.join(COMPONENTS)}")


@contextmanager
def _hydra() -> Iterator[None]:
    with initialize_config_dir(config_dir=str(conf_dir()), version_base="1.3"):
        yield


@contextmanager
def _as_user_errors() -> Iterator[None]:
    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        raise user_error(error) from error
