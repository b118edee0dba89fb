"""Registers schemas, modes and resolvers with Hydra, and turns composed configs into a typed Config."""

from pathlib import Path
from typing import Any, Final

from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf

from ampsweep.config.components import SCHEMAS
from ampsweep.config.identity import run_directory_name
from ampsweep.config.modes import MODES, differences
from ampsweep.config.schema import COMPONENTS, Config, PrecisionConfig

_HERE: Final = Path(__file__).resolve()
_IN_WHEEL: Final = _HERE.parents[1] / "conf"
CONF: Final = _IN_WHEEL if _IN_WHEEL.is_dir() else _HERE.parents[3] / "conf"
"""The repository's `conf/`, or its copy in an installed package (setup.py)."""


def register() -> None:
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


def to_config(composed: DictConfig) -> Config:
    """Resolve a composed config (with or without its `hydra` node) into a Config; components become plain dicts.

    Raises:
        omegaconf.errors.OmegaConfBaseException: a mandatory value is missing, or an interpolation points nowhere.
    """
    return Config(**{str(key): _plain(str(key), composed) for key in composed if key != "hydra"})


def _plain(key: str, own: DictConfig) -> Any:
    value = own[key]
    if not OmegaConf.is_config(value):
        return value
    if key in COMPONENTS:
        return OmegaConf.to_container(value, resolve=True, throw_on_missing=True)
    return OmegaConf.to_object(value)


register()
