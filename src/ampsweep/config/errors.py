"""User errors: one sentence about a wrong config, with the key and the allowed values."""

import re
from collections.abc import Iterable

from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    InterpolationKeyError,
    InterpolationResolutionError,
    MissingMandatoryValue,
    OmegaConfBaseException,
    ValidationError,
)
from yaml import MarkedYAMLError

from ampsweep.config.schema import COMPONENTS


class UserError(ValueError):
    """Wrong input of the user; exit code 2."""


class UnsupportedError(UserError):
    """This model or device does not support the settings. In a sweep the point ends as `unsupported`, and the others
    run."""


def user_error(error: HydraException | OmegaConfBaseException) -> UserError:
    """Translate an error of Hydra or OmegaConf about a config."""
    if isinstance(error, OverrideParseException):
        return UserError(_unreadable(error))
    cause: BaseException = error
    while isinstance(cause.__cause__, HydraException | OmegaConfBaseException):
        cause = cause.__cause__
    if isinstance(cause, MissingConfigException):
        return UserError(_missing_option(cause))
    if isinstance(cause, ConfigKeyError | ConfigAttributeError):
        return UserError(_unknown_key(cause))
    if isinstance(cause, MissingMandatoryValue):
        named = re.search(r"Missing mandatory value: (\S+)", str(cause))
        return UserError(f"{cause.full_key or (named[1] if named else _first_line(cause))} must be given a value")
    if isinstance(cause, InterpolationKeyError | InterpolationResolutionError):
        hint = "; the chosen model, data and task do not fit together" if "data.provides" in str(cause) else ""
        return UserError(f"{cause.full_key}: {_first_line(cause)}{hint}")
    if isinstance(cause, ValidationError) and "is not Optional" in str(cause):
        return UserError(f"{cause.full_key}=null: must be given a value")
    if isinstance(cause, ValidationError) and "is not a ListConfig" in str(cause):
        return UserError(f"{cause.full_key}: must be a list, such as [first,second]")
    if isinstance(cause, ValidationError):
        return UserError(f"{cause.full_key}: {_first_line(cause)}")
    if isinstance(cause, ConfigCompositionException) and "Ambiguous value" in str(cause):
        return UserError(f"{_first_line(cause)}; add -m to sweep over several values")
    return UserError(" ".join(str(cause).split()))


def unknown_key(key: str, allowed: Iterable[object]) -> str:
    """The error about an unknown key, with the known ones."""
    where, _, _ = key.rpartition(".")
    names = ", ".join(sorted(str(name) for name in allowed if str(name) != "_target_"))
    hint = "; another launcher is chosen with hydra/launcher=NAME" if where == "hydra.launcher" else ""
    return f"unknown key {key}; {where or 'the config'} has {names or 'no keys'}{hint}"


def not_yaml(error: MarkedYAMLError) -> str:
    """The error about a file that is not YAML, with the line."""
    problem = " ".join(filter(None, (error.context, error.problem)))
    mark = error.problem_mark or error.context_mark
    if mark is None:
        return f"not YAML: {problem}"
    return f"{mark.name}: not YAML: {problem} in line {mark.line + 1}, column {mark.column + 1}"


def _unreadable(error: OverrideParseException) -> str:
    given = str(error.override)
    if "=" not in given:
        return f"{given}: is not key=value"
    return f"{given}: cannot be read as key=value; a value with special characters needs quotes"


def _missing_option(error: MissingConfigException) -> str:
    missing = str(error.missing_cfg_file)
    group, _, option = missing.rpartition("/")
    if group and error.options:
        return f"{group}={option}: no such option; allowed are {', '.join(sorted(error.options))}"
    return _first_line(error)


def _unknown_key(error: OmegaConfBaseException) -> str:
    parent = error.parent_node
    if isinstance(parent, DictConfig):
        key = str(error.full_key)
        is_open = OmegaConf.get_type(parent) is dict and key.partition(".")[0] in COMPONENTS
        hint = f"; +{key} adds one" if is_open else ""
        return unknown_key(key, (key for key in parent if key != "hydra")) + hint
    return f"unknown key {error.full_key}"


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0].rstrip(".")
