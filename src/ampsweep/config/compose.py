"""Composes and checks all points of a command line before any of them starts, and makes typed Configs of them."""

import copy
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from hydra import compose, initialize_config_dir
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException
from yaml import MarkedYAMLError

from ampsweep.config.components import SCHEMAS
from ampsweep.config.errors import UserError, unknown_key, user_error
from ampsweep.config.identity import run_directory_name
from ampsweep.config.modes import MODES, differences
from ampsweep.config.overrides import check_overrides, line, parse_overrides, product
from ampsweep.config.schema import COMPONENTS, Config, PrecisionConfig
from ampsweep.config.value_checks import check

_HERE: Final = Path(__file__).resolve()
_IN_WHEEL: Final = _HERE.parents[1] / "conf"
CONF: Final = _IN_WHEEL if _IN_WHEEL.is_dir() else _HERE.parents[3] / "conf"
"""The repository's `conf/`, or its copy in an installed package (setup.py)."""
CONFIG_NAME: Final = "config"
_OF_ANOTHER_SHAPE: Final = (ValueError, TypeError, AttributeError, RecursionError)
"""Errors of Hydra's own code about a file that is not shaped like a config."""
_BASIC_SWEEPER: Final = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"


@dataclass(frozen=True)
class Point:
    """One training of a command line: its overrides (without Hydra's own keys) and its config."""

    overrides: tuple[str, ...]
    config: Config


@dataclass(frozen=True)
class Points:
    """All trainings of a command line."""

    multirun: bool
    points: tuple[Point, ...]  # in the order they run
    composed: DictConfig
    """With Hydra's settings: the config of a single run; of a multirun the options chosen for all points."""
    overrides: tuple[str, ...] = ()  # as given, without Hydra's own keys

    @property
    def launcher(self) -> str:
        """The class of Hydra's launcher: BasicLauncher runs jobs in this process one after another, SlurmLauncher on
        machines that may differ, any other in workers on this machine."""
        return str(self.composed.hydra.launcher.get("_target_")).rpartition(".")[2]


def conf_dir() -> Path:
    """The suite's `conf/`; raises UserError if it does not exist."""
    if not CONF.is_dir():
        raise UserError(f"{CONF} does not exist; install ampsweep again from its repository")
    return CONF


def compose_points(
    overrides: Sequence[str], *, multirun: bool, on_multirun: Callable[[], None] | None = None
) -> Points:
    """Compose and check every point of `overrides`; raises UserError for the first fault. `on_multirun` is called once
    it is a multirun, before its points are composed."""
    with refusing(), initialized():
        parsed = _checked(overrides)
        swept = [override for override in parsed if override.is_sweep_override()]
        composer = _Composer(parsed)
        base, _ = composer.options([override for override in parsed if override not in swept])
        own = tuple(line(override) for override in parsed if not override.is_hydra_override())
        if not (multirun or base.hydra.mode == RunMode.MULTIRUN):
            if swept:
                raise UserError(f"{line(swept[0])} names several values; add -m to sweep over them")
            set_values(base, filter(_is_value, parsed))
            base.hydra.overrides.task = list(own)
            return Points(False, (_point(base, own),), base, own)
        if on_multirun is not None:
            on_multirun()
        if base.hydra.sweeper.get("_target_") != _BASIC_SWEEPER:
            raise UserError(
                f"hydra/sweeper: {base.hydra.sweeper.get('_target_')} chooses points as it goes; a multirun has the "
                "points of its command line, which Hydra's basic sweeper lists"
            )
        params = [f"{key}={value}" for key, value in (base.hydra.sweeper.params or {}).items()]
        return Points(True, tuple(map(composer.point, product(parse_overrides([*params, *own])))), base, own)


def compose_each(points: Sequence[Sequence[str]]) -> Points:
    """Compose and check points, each given by its overrides, as one multirun; see `compose_points`."""
    with refusing(), initialized():
        for point in points:
            for override in _checked(point):
                if override.is_sweep_override():
                    raise UserError(f"{line(override)} names several values for one point")
        first = parse_overrides(points[0])
        composer = _Composer(first)
        return Points(True, tuple(map(composer.point, points)), composer.options(first)[0])


def compose_one(overrides: Sequence[str]) -> Config:
    """Compose and check a single point; see `compose_points`."""
    return compose_points(overrides, multirun=False).points[0].config


class _Composer:
    """Composes points. Hydra takes 0.1 s for each choice of options, so each choice is composed once."""

    def __init__(self, for_all: Sequence[Override]) -> None:
        self._hydra = [line(override) for override in for_all if override.is_hydra_override()]
        self._composed: dict[tuple[str, ...], tuple[DictConfig, bytes]] = {}
        """Chosen options -> what `options` returns; a pickle copies four times as fast."""
        self._parsed: dict[str, Override] = {}

    def point(self, overrides: Sequence[str]) -> Point:
        for text in overrides:
            if text not in self._parsed:
                (self._parsed[text],) = parse_overrides([text])
        parsed = [self._parsed[text] for text in overrides]
        composed = pickle.loads(self.options(parsed)[1])
        set_values(composed, filter(_is_value, parsed))
        return _point(composed, [text for text in overrides if not self._parsed[text].is_hydra_override()])

    def options(self, overrides: Sequence[Override]) -> tuple[DictConfig, bytes]:
        """The config of the chosen options before values are set: with Hydra's settings, and pickled without them."""
        options = tuple(line(each) for each in overrides if not (_is_value(each) or each.is_hydra_override()))
        if options not in self._composed:
            composed = compose(CONFIG_NAME, [*self._hydra, *options], return_hydra_config=True)
            own = copy.deepcopy(composed)
            with open_dict(own):
                del own["hydra"]
            self._composed[options] = composed, pickle.dumps(own)
        return self._composed[options]


def set_values(composed: DictConfig, overrides: Iterable[Override]) -> None:
    """Set values in a composed config with Hydra's own function (`tests/config/test_points.py` compares)."""
    for override in overrides:
        try:
            ConfigLoaderImpl._apply_overrides_to_config([override], composed)
        except AssertionError as error:  # a key below None, such as `resume.x=1`
            raise UserError(f"{line(override)}: a key before the last has no keys of its own") from error


def _is_value(override: Override) -> bool:
    """Return False if the override chooses an option or is for Hydra itself."""
    if override.is_hydra_override() or override.package is not None:
        return False
    return _is_key(override.key_or_group) or isinstance(override.value(), dict)


@cache
def _is_key(key: str) -> bool:
    return "." in key or (key in Config.__dataclass_fields__ and not (CONF / key).is_dir())


def _checked(overrides: Sequence[str]) -> list[Override]:
    parsed = parse_overrides(overrides)
    check_overrides(parsed, conf_dir())
    return parsed


def _point(composed: DictConfig, overrides: Sequence[str]) -> Point:
    unknown = [str(key) for key in composed if key != "hydra" and key not in Config.__dataclass_fields__]
    if unknown:
        raise UserError(unknown_key(unknown[0], Config.__dataclass_fields__))
    config = to_config(composed)
    check(config)
    return Point(tuple(overrides), config)


def initialized() -> AbstractContextManager[None]:
    """Initialize Hydra with the suite's `conf/`."""
    return initialize_config_dir(config_dir=str(conf_dir()), version_base="1.3")


@contextmanager
def refusing() -> Iterator[None]:
    """Translate Hydra's errors about overrides and config files into UserErrors of one sentence."""
    try:
        yield
    except UserError:
        raise
    except (HydraException, OmegaConfBaseException, MarkedYAMLError, *_OF_ANOTHER_SHAPE) as error:
        raise user_error(error) from error


def to_config(composed: DictConfig) -> Config:
    """Resolve a composed config (with or without its `hydra` node) into a Config; components become plain dicts. Raises
    OmegaConf's errors if a mandatory value is missing, or an interpolation points nowhere."""
    return Config(**{str(key): _plain(str(key), composed) for key in composed if key != "hydra"})


def _plain(key: str, own: DictConfig) -> Any:
    value = own[key]
    if not OmegaConf.is_config(value):
        return value
    if key in COMPONENTS:
        return OmegaConf.to_container(value, resolve=True, throw_on_missing=True)
    return OmegaConf.to_object(value)


def _register() -> None:
    """Register the schemas outside the groups of options, so that `--help` does not list them."""
    store = ConfigStore.instance()
    store.store(name="schema", node=Config)
    for group, nodes in SCHEMAS.items():
        for name, node in nodes.items():
            store.store(name=f"schema_{group}_{name}", node=node)
    for mode in MODES.values():
        if not (CONF / "precision" / f"{mode.name}.yaml").is_file():  # Hydra takes only one of the two
            store.store(name=mode.name, node=differences(mode.settings, PrecisionConfig()), group="precision")
    run_directory = lambda *, _root_: run_directory_name(to_config(_root_))  # noqa: E731
    OmegaConf.register_new_resolver("run_directory", run_directory, replace=True)


_register()
