"""From a composed DictConfig to the typed Config that everything below the entries works with."""

from typing import Any

from omegaconf import DictConfig, OmegaConf

from ampsweep.config.schema import Config

COMPONENTS = ("model", "data", "task")


def to_config(composed: DictConfig) -> Config:
    """Resolve a composed config (with or without its `hydra` node) into a Config; components become plain dicts.

    Raises:
        omegaconf.errors.OmegaConfBaseException: a mandatory value is missing, or an interpolation points nowhere.
    """
    own = OmegaConf.masked_copy(composed, [str(key) for key in composed if key != "hydra"])
    return Config(**{str(key): _plain(str(key), own) for key in own})


def _plain(key: str, own: DictConfig) -> Any:
    value = own[key]
    if not OmegaConf.is_config(value):
        return value
    if key in COMPONENTS:
        return OmegaConf.to_container(value, resolve=True, throw_on_missing=True)
    return OmegaConf.to_object(value)


def component_name(component: dict[str, Any]) -> str:
    """The name of a model, data set or task: its `name`, else the last part of its `_target_`.

    >>> component_name({"_target_": "mine.nets.Net", "width": 8})
    'Net'
    """
    name = component.get("name")
    if name and name != "custom":
        return str(name)
    return str(component["_target_"]).rpartition(".")[2]
